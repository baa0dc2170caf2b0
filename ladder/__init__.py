"""Measures StyleGAN2 training rung by rung: workloads, rungs, worker processes, statistics, results, charts.

Importing this package costs nothing: torch is imported by the worker processes only.
"""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m ladder...`: the module that was asked for has not been read yet
    from ladder.base import starting

    starting.watch()
