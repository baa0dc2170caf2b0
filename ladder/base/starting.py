"""The start of a command of this project, and the one line for a Python that cannot run it.

The standard library alone, in the syntax of Python 3.6: this is read before anything is known to be installed.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from ladder.base.paths import ROOT

VENV = ROOT / ".venv"
OLDEST = (3, 10)
OURS = ("kernels", "stylegan_lite", "ladder", "benches", "tests")
PACKAGES = {
    "PIL": "pillow",
    "yaml": "PyYAML",
    "skimage": "scikit-image",
    "pynvml": "nvidia-ml-py",
}  # by module
_IN_TEXT = re.compile(r"(`|^ +)ladder (?=[a-z-])", re.MULTILINE)  # in backticks, or an example's line


def program() -> str:
    """Return `python -m ladder` where the package was run as a module, else `ladder`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "python -m ladder" if getattr(spec, "name", "") == "ladder.__main__" else "ladder"


def named(text: str) -> str:
    """Return a text about commands with `ladder ...` spelled the way that the user started this one."""
    return _IN_TEXT.sub(lambda match: match.group(1) + program() + " ", text)


def command(*arguments: object) -> str:
    """Return a line for the user's shell that calls this very program with these arguments."""
    if program() != "ladder":
        words = [sys.orig_argv[0], "-m", "ladder"]
    elif Path(sys.argv[0]).name == "ladder" and shutil.which("ladder") != str(Path(sys.argv[0]).absolute()):
        words = [near(sys.argv[0])]
    else:
        words = ["ladder"]
    return _joined([*words, *arguments])


def near(path: object) -> str:
    """Return a path relative to the working folder, or in full if it lies outside."""
    try:
        return str(Path(str(path)).absolute().relative_to(Path.cwd()))
    except (OSError, ValueError):
        try:
            return str(Path(str(path)).resolve().relative_to(Path.cwd().resolve()))
        except (OSError, ValueError):
            return str(path)


def watch() -> None:
    """Refuse a Python that is too old, and an installation without its checkout, each in one line.

    A missing package becomes one line and status 2, too.

    /dev/null takes the place of a closed standard stream (`2>&-`), which the next opened file would take.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    if sys.version_info < OLDEST:
        print(_too_old(), file=sys.stderr)
        sys.exit(2)
    if not any((ROOT / "ladder" / "ladders").glob("*.yaml")):
        print(_no_checkout(), file=sys.stderr)
        sys.exit(2)
    if sys.flags.optimize > 1:
        print("ladder: Python drops docstrings, which name the rungs: unset PYTHONOPTIMIZE", file=sys.stderr)
        sys.exit(2)
    before = sys.excepthook

    def told(kind, error, trace):  # type: ignore[no-untyped-def]
        line = missing(error)
        if line is None:
            return before(kind, error, trace)
        print(line, file=sys.stderr)
        raise SystemExit(2)  # Python ends with the status of an exit that its hook asks for

    sys.excepthook = told


def missing(error: BaseException) -> "str | None":
    """Return one line about a package that is not installed and the command that helps; None for another error."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or type(error) is ImportError or not name or name in OURS:
        return None
    return lacking(PACKAGES.get(name, name))


def lacking(package: str) -> str:
    """Return one line that says which package this Python lacks, and the command that helps."""
    python = near(sys.executable)
    helps = _from_venv()
    if helps is None:
        helps = f"`{_make('setup')}` installs all into .venv; without .venv (NO_VENV=1): `{install(python)}`"
    return f"ladder: {package} is not installed for {python}: {helps}"


def install(python: str) -> str:
    """Return the command that gives this Python everything that the project needs.

    A PyTorch that is there stays: the lock file would replace the build that fits this machine's driver.
    """
    there = importlib.util.find_spec("torch") is not None
    wanted = ["-e", near(ROOT)] if there else ["-r", near(ROOT / "requirements.lock")]
    return _joined([python, "-m", "pip", "install", *wanted])


def _too_old() -> str:
    python, version = near(sys.executable), ".".join(map(str, sys.version_info[:2]))
    helps = _from_venv() or f"`PYTHON=python3.12 {_make('setup')}` makes .venv with a newer one"
    return f"ladder: {python} is Python {version}; 3.10 or newer is needed: {helps}"


def _no_checkout() -> str:
    """Return what a wheel, or `pip install .`, is told: ladders, workloads and results are files of the checkout."""
    helps = "clone the repository, and run `python -m pip install -e .` there"
    return f"ladder: {near(ROOT)} is no checkout, and has no ladders and workloads: {helps}"


def _from_venv() -> "str | None":
    """Return the same command in the checkout's own environment; None if that is missing or in use."""
    python = VENV / "bin" / "python"
    if not python.exists() or Path(sys.prefix).resolve() == VENV.resolve():
        return None
    module = _module()
    words = [near(python), "-m", module]
    script = VENV / "bin" / ("ladder" if module in ("ladder", "ladder.__main__") else module)
    if script.exists():
        words = [near(script)]
    return f"use `{_joined([*words, *sys.argv[1:]])}`"


def _module() -> str:
    """Return the name of the module that `python -m` runs, or of the console command."""
    given = getattr(sys, "orig_argv", None) or _command_line()
    if "-m" in given[:-1]:
        return str(given[given.index("-m") + 1])
    name = Path(sys.argv[0]).name
    return "ladder" if name in ("-m", "__main__.py") else name


def _command_line() -> "list[str]":
    """Return the words that started this process, for a Python before 3.10, which does not say."""
    try:
        return Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def _make(target: str) -> str:
    away = Path.cwd() != ROOT
    return _joined(["make", *(["-C", near(ROOT)] if away else []), target])


def _joined(words: "list[object]") -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def another_checkout() -> "str | None":
    """Return one line if the working folder lies in another checkout than this program, else None."""
    here = Path(os.path.realpath(os.getcwd()))
    for folder in [here, *here.parents]:
        if (folder / "ladder" / "__main__.py").is_file() and (folder / "stylegan_lite").is_dir():
            if folder == ROOT:
                return None
            return f"note: this `ladder` is of {ROOT}, not of the checkout here; `python -m ladder` is"
    return None


def read_version() -> str:
    """Return the version of the checkout. An installed copy of the project may be older."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    return match[1] if match else "unknown"
