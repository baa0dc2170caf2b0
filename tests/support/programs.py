"""Programs of this project run one after the other in one fresh process: it imports torch once for all."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RUNNER = """
import contextlib, io, json, os, runpy, sys

ended = []
for module, *arguments in json.loads(sys.argv[1]):
    while "=" in module:
        name, _, os.environ[name] = module.partition("=")
        module, *arguments = arguments
    sys.argv, said, status = [module, *arguments], (io.StringIO(), io.StringIO()), 0
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
    ended.append([status, *(text.getvalue() for text in said)])
json.dump(ended, sys.__stdout__)
"""


PDEATHSIG = 1  # of Linux's prctl


def end_with_parent() -> None:
    """Let this process be killed as soon as its parent ends: Ctrl-C may reach the parent alone. A `preexec_fn`."""
    with contextlib.suppress(AttributeError):  # a system without prctl
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*commands: list[str], **env: str) -> list[Ended]:
    """Run `python -m` each command, with Triton's interpreter off and these variables set.

    A command may begin with NAME=VALUE, as in a shell. The variable stays for the commands after it.
    """
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", RUNNER, json.dumps(commands)]
    done = subprocess.run(command, cwd=ROOT, env=kept | env, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return [Ended(*each) for each in json.loads(done.stdout)]
