"""Forward `python -m ladder.claims.redraw` to `python -m ladder.studies.claims.redraw`."""

import runpy
import sys

sys.stderr.write("ladder.claims.redraw is ladder.studies.claims.redraw now\n")
runpy.run_module("ladder.studies.claims.redraw", run_name="__main__", alter_sys=True)
