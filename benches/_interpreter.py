"""The Python that measures and its libraries, found without importing them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from asv.console import log

from benches import ROOT

VENV = (".venv/bin/python", ".venv/Scripts/python.exe")
_ASK = """
import importlib.metadata, importlib.util, json, pathlib, re, sys
sys.path.pop(0)
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            pass
    return "none"
spec = importlib.util.find_spec("torch")
file = pathlib.Path(spec.origin).with_name("version.py") if spec and spec.origin else None
cuda = re.search(r"^cuda\\b[^=\\n]*= *['\\"]([\\d.]+)['\\"]", file.read_text() if file and file.exists() else "", re.M)
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "torch": version("torch"),
    "triton": version("triton", "pytorch-triton"),  # there is no wheel of it for some systems
    "cuda": cuda[1] if cuda else "none",
    "asv_runner": version("asv_runner"),
}))
"""


def interpreter(python: str = "same") -> Path:
    """Return the measuring Python: the named one, else the one that runs asv.

    If the latter lacks torch, it is that of `.venv`.
    """
    here, own = f"{sys.version_info[0]}.{sys.version_info[1]}", Path(sys.executable)
    made = next((path for name in VENV if (path := ROOT / name).is_file()), own)
    chosen = made if made != own and lacks(libraries(own)) else own
    if python in ("same", here):  # by default, asv asks for its own version
        return chosen
    if os.sep in python and (named := Path(python)).is_file():
        return named.absolute()  # not resolved, because a virtual environment's Python is a link
    if (libraries(chosen) or {}).get("python") == python:
        return chosen
    stop(f"there is no Python {python} to measure with: only {here}, and those named by path are measured")


@functools.cache
def libraries(python: Path) -> dict[str, str] | None:
    """Return the versions of torch, triton, torch's CUDA and asv_runner, or None if the Python does not run.

    A missing library has the version "none".
    """
    try:
        run = ask(python, _ASK)
        return json.loads(run.stdout) if run.returncode == 0 else None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def ask(python: Path, code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a few lines in a Python as asv runs benchmarks, without PYTHONPATH."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(python), "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )


def lacks(found: dict[str, str] | None) -> str | None:
    """Return the first thing needed for measuring that the Python lacks, or None."""
    if found is None:
        return "working interpreter"
    return next((name for name in ("torch", "asv_runner") if found[name] == "none"), None)


def stop(reason: str) -> NoReturn:
    log.flush()
    print(f"asv: {reason}", file=sys.stderr)
    raise SystemExit(2)
