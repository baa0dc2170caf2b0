"""The start of a command of this project, and the one line for a Python that cannot run it.

The standard library alone, in the syntax of Python 3.6: this is read before anything is known to be installed.
"""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

from ladder.core.paths import ROOT

VENV = ROOT / ".venv"
OLDEST = (3, 10)
OURS = ("kernels", "stylegan_lite", "ladder", "benches", "tests")
# by module
PACKAGES = {"PIL": "pillow", "yaml": "PyYAML", "skimage": "scikit-image", "pynvml": "nvidia-ml-py"}
_IN_TEXT = re.compile(r"(`|^ +)ladder (?=[a-z-])", re.MULTILINE)  # in backticks, or an example's line


def program_name() -> str:
    """Return `python -m ladder` where the package was run as a module, else `ladder`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "python -m ladder" if getattr(spec, "name", "") == "ladder.__main__" else "ladder"


def name_program(text: str) -> str:
    """Return a text about commands with `ladder ...` spelled the way that the user started this one."""
    return _IN_TEXT.sub(lambda match: match.group(1) + program_name() + " ", text)


def format_command(*arguments: object) -> str:
    """Return a line for the user's shell that calls this program with these arguments."""
    words = [sys.orig_argv[0], "-m", "ladder"] if program_name() != "ladder" else ["ladder"]
    return _join_words([*words, *arguments])


def shorten_path(path: object) -> str:
    """Return a path relative to the working folder, or in full if it lies outside."""
    try:
        return str(Path(str(path)).absolute().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


def check_python() -> None:
    """Refuse a Python that is too old, an installation without its checkout, and a missing package.

    Each ends the program with one line and status 2. The checkout's packages go before installed ones of their names:
    PyPI has an unrelated `kernels`.
    """
    python = shorten_path(sys.executable)
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        helps = "`PYTHON=python3.12 make setup` makes .venv with a newer one"
        _refuse_start(f"ladder: {python} is Python {version}; 3.10 or newer is needed: {helps}")
    if not any((ROOT / "ladder" / "ladders").glob("*.yaml")):
        helps = "clone the repository, and run `python -m pip install -e .` there"
        _refuse_start(
            f"ladder: {shorten_path(ROOT)} is no checkout, and has no ladders and workloads: {helps}"
        )
    sys.path.insert(0, str(ROOT))
    before = sys.excepthook

    def report_missing(kind, error, trace):  # type: ignore[no-untyped-def]
        line = describe_missing(error)
        if line is None:
            return before(kind, error, trace)
        print(line, file=sys.stderr)
        raise SystemExit(2)  # Python ends with the status of an exit that its hook raises

    sys.excepthook = report_missing


def _refuse_start(line: str) -> None:
    print(line, file=sys.stderr)
    sys.exit(2)


def describe_missing(error: BaseException) -> "str | None":
    """Return one line about a package that is not installed and the command that helps; None for another error."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or type(error) is ImportError or not name or name in OURS:
        return None
    return describe_lacking(PACKAGES.get(name, name))


def describe_lacking(package: str) -> str:
    """Return one line that names the package which this Python lacks, and the command that helps."""
    python = shorten_path(sys.executable)
    if (VENV / "bin" / "python").exists() and Path(sys.prefix).resolve() != VENV.resolve():
        helps = f"use `{shorten_path(VENV / 'bin' / 'python')}`, which has it"
    else:
        helps = (
            f"`make setup` installs all into .venv; without .venv (NO_VENV=1): `{install_command(python)}`"
        )
    return f"ladder: {package} is not installed for {python}: {helps}"


def install_command(python: str) -> str:
    """Return the command that gives this Python everything that the project needs.

    A PyTorch that is there stays: the lock file would replace the build that fits this machine's driver.
    """
    if importlib.util.find_spec("torch") is not None:
        return _join_words([python, "-m", "pip", "install", "-e", shorten_path(ROOT)])
    return _join_words([python, "-m", "pip", "install", "-r", shorten_path(ROOT / "requirements.lock")])


def _join_words(words: "list[object]") -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def read_version() -> str:
    """Return the version of the checkout. An installed copy of the project may be older."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    return match[1] if match else "unknown"
