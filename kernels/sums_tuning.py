"""Forward `python -m kernels.sums_tuning` to `python -m kernels.tuning.sums`."""

import runpy
import sys

sys.stderr.write("kernels.sums_tuning is kernels.tuning.sums now\n")
runpy.run_module(f"{__package__}.tuning.sums", run_name="__main__", alter_sys=True)
