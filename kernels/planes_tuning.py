"""Forward `python -m kernels.planes_tuning` to `python -m kernels.tuning.planes`."""

import runpy
import sys

sys.stderr.write("kernels.planes_tuning is kernels.tuning.planes now\n")
runpy.run_module(f"{__package__}.tuning.planes", run_name="__main__", alter_sys=True)
