"""A measurement of StyleGAN2 training, rung by rung: workloads, rungs, worker processes, statistics, results, charts.

Importing this package costs nothing: only the worker processes import torch.
"""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m ladder...`: the requested module has not been read yet
    from ladder.core import starting

    starting.check_python()
