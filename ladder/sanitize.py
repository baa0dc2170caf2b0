"""Forward `python -m ladder.sanitize` to `python -m ladder.selfcheck.sanitize`."""

import runpy
import sys

sys.stderr.write("ladder.sanitize is ladder.selfcheck.sanitize now\n")
runpy.run_module("ladder.selfcheck.sanitize", run_name="__main__", alter_sys=True)
