"""Forward `python -m ladder.claims.page` to `python -m ladder.publish.pages`."""

import runpy
import sys

sys.stderr.write("ladder.claims.page is ladder.publish.pages now; `make docs` runs it\n")
runpy.run_module("ladder.publish.pages", run_name="__main__", alter_sys=True)
