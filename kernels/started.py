"""The one-line message of `python -m kernels.tuning` for a Python without torch or Triton.

This module is imported before both, and uses the standard library alone.
"""

import importlib.util
import os
import sys

if sys.argv[:1] == ["-m"]:
    lacking = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if lacking:
        helps = "`make setup` installs all into .venv"
        if os.path.exists(".venv/bin/python"):
            helps = f"use `.venv/bin/python {' '.join(sys.orig_argv[1:])}`"
        print(f"kernels: {lacking[0]} is not installed for {sys.executable}: {helps}", file=sys.stderr)
        sys.exit(2)
