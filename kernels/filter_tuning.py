"""Forward `python -m kernels.filter_tuning` to `python -m kernels.tuning.filters`."""

import runpy
import sys

sys.stderr.write("kernels.filter_tuning is kernels.tuning.filters now\n")
runpy.run_module(f"{__package__}.tuning.filters", run_name="__main__", alter_sys=True)
