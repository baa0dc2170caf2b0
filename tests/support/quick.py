"""The tests of what changed, in seconds: `make quick`.

Changed are the files that git lists for the working tree; if there are none, the files of the last commit. A module's
tests are the files with its name in the mirrored folder, or that whole folder. Slow tests are left to `make test`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ladder.core.git import clean_environment

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = ("tests/project/test_order.py",)
QUICK = ("-q", "-n", "2", "-m", "not slow and not gpu and not exhaustive")


def changed(root: Path = ROOT) -> list[str]:
    """Return the paths that differ from the last commit, else those that differ in it."""

    def git(*arguments: str) -> list[str]:
        run = subprocess.run(
            ["git", *arguments], cwd=root, env=clean_environment(), capture_output=True, text=True, check=True
        )
        return [line for line in run.stdout.split("\0") if line]

    here = git("diff", "--name-only", "-z", "HEAD") + git("ls-files", "-z", "--others", "--exclude-standard")
    return sorted(here) or git("show", "--name-only", "-z", "--format=", "HEAD")


def tests_of(path: str, root: Path = ROOT) -> list[str]:
    """Return the test files, or the folder of tests, of one changed file; an empty list where it has none."""
    package, *inner = Path(path).parts
    name = Path(path).stem
    if not path.endswith(".py") or not inner:
        return []
    if package == "tests":
        return [path] if name.startswith("test_") and (root / path).exists() else []
    room = root / "tests" / Path(*(inner[:-1] if package == "ladder" else (package, *inner[:-1])))
    named = [] if name == "__init__" else sorted(room.glob(f"test_*{name}*.py"))
    while not room.is_dir():
        room = room.parent
    if not named and room == root / "tests":
        return []
    return [each.relative_to(root).as_posix() for each in named or [room]]


def chosen(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return what pytest is to run for these changes, each file and folder once."""
    return list(dict.fromkeys([*ALWAYS, *(test for path in paths for test in tests_of(path, root))]))


if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", *QUICK, *chosen(changed())]
    print("+", *command[1:], flush=True)
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)
