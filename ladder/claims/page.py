"""Forward `python -m ladder.claims.page` to `python -m ladder.studies.claims.page`."""

import runpy
import sys

sys.stderr.write("ladder.claims.page is ladder.studies.claims.page now\n")
runpy.run_module("ladder.studies.claims.page", run_name="__main__", alter_sys=True)
