"""Forward `python -m ladder.fuzz` to `python -m ladder.selfcheck.fuzz`."""

import runpy
import sys

sys.stderr.write("ladder.fuzz is ladder.selfcheck.fuzz now\n")
runpy.run_module("ladder.selfcheck.fuzz", run_name="__main__", alter_sys=True)
