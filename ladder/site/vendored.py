"""Forward `python -m ladder.site.vendored` to `python -m ladder.publish.site.vendored`."""

import runpy
import sys

sys.stderr.write("ladder.site.vendored is ladder.publish.site.vendored now\n")
runpy.run_module("ladder.publish.site.vendored", run_name="__main__", alter_sys=True)
