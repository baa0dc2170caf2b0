"""The project's calls of git, whose answers depend neither on the environment nor on the user's settings.

A hook exports GIT_DIR, a user sets log.showSignature, a container owns the clone as another user. Git then answers
for another repository, in another format, or not at all. So the variables that redirect git are dropped, settings
that change an answer are overridden, and plumbing commands are asked. Each failure is one line that says what helps.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from ladder.core.errors import UserError, one_line

# The only GIT_* variables that pass: they say where git's programs and the user's settings are. Git needs the settings
# to know which folders it may trust (safe.directory).
KEPT = frozenset({"GIT_EXEC_PATH", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"})
SETTINGS = (
    *("color.ui=false", "core.pager=cat", "core.quotePath=false", "core.fsmonitor=false"),
    *("core.hooksPath=/dev/null", "core.excludesFile=/dev/null", "core.attributesFile=/dev/null"),
    *("clone.rejectShallow=false", "protocol.file.allow=always"),
)
OVERRIDES = ("--no-replace-objects", "--literal-pathspecs", *(w for each in SETTINGS for w in ("-c", each)))
LF = ("-c", "core.autocrlf=false", "-c", "core.eol=lf")  # for trees that git writes: the bytes of the commit
CLONE = "clone the repository with git and run this in the clone"
DEEPEN = "`git fetch --unshallow` gets them"
SECONDS = 120
# the paths that a result's "dirty" looks at
CODE = ("kernels", "stylegan_lite", "ladder", "requirements.lock")


def clean_environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment for a call of git, in which nothing redirects it and it asks nothing.

    `given` is the environment to start from, by default that of this process.
    """
    given = os.environ if given is None else given
    kept = {key: value for key, value in given.items() if not key.startswith("GIT_") or key in KEPT}
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def read_output(root: Path, *command: str, stdin: str = "") -> str:
    """Return what a git command prints in `root`, without the last line end. Raises `UserError`, one line."""
    return os.fsdecode(read_bytes(root, *command, stdin=stdin)).rstrip("\n")


def read_bytes(root: Path, *command: str, stdin: str = "") -> bytes:
    """Return what a git command prints in `root`. Raises `UserError`: one line, with the command that helps."""
    run = _run_git(root, *command, stdin=stdin)
    if run.returncode:
        raise UserError(_explain_failure(root, command, run.returncode, os.fsdecode(run.stderr)))
    return run.stdout


def has_succeeded(root: Path, *command: str) -> bool:
    """Return whether a git command ends with status 0. Raises `UserError` where git cannot be run."""
    return _run_git(root, *command).returncode == 0


def _run_git(root: Path, *command: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
    called = ["git", "-C", str(root), *OVERRIDES, *command]
    try:
        return subprocess.run(
            called, env=clean_environment(), input=stdin.encode(), capture_output=True, timeout=SECONDS
        )
    except FileNotFoundError:
        raise UserError("git was not found: install git; results belong to a commit") from None
    except subprocess.TimeoutExpired:
        name = next(word for word in command if not word.startswith("-"))
        raise UserError(f"git {name} did not end within {SECONDS} s") from None
    except OSError as error:
        raise UserError(f"git cannot be run: {error.strerror or error}") from None


def _explain_failure(root: Path, command: tuple[str, ...], status: int, said: str) -> str:
    if "dubious ownership" in said or "unsafe repository" in said:
        named = re.search(r"safe\.directory (.+)", said)
        folder = named[1].strip().strip("'\"") if named else str(root)
        return (
            "git does not trust this checkout, as another user owns it:"
            f" git config --global --add safe.directory {shlex.quote(folder)}"
        )
    if "not a git repository" in said:
        return f"this checkout is no git repository, and results belong to a commit: {CLONE}"
    name = next((word for word in command if not word.startswith("-") and "=" not in word), "")
    return f"git {name}: {one_line(said).removeprefix('fatal: ') or f'status {status}'}"


# --- answers of git ---------------------------------------------------------------------------------------------


def read_commit(root: Path) -> str:
    """Return the commit checked out at `root`, 40 digits.

    Raises:
        UserError: one line why results of this folder belong to no commit. A folder inside another repository has none:
            that repository's commit says nothing of the code here.
    """
    if read_output(root, "rev-parse", "--is-inside-work-tree", "--show-prefix").strip() != "true":
        raise UserError(f"this checkout is only a folder of another git repository: {CLONE}")
    try:
        return read_output(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except UserError:
        raise UserError("this git repository has no commit yet, and results belong to a commit") from None


def find_problem(root: Path) -> str | None:
    """Return one line why results of this folder belong to no commit, or None."""
    try:
        read_commit(root)
    except UserError as error:
        return str(error)
    return None


def list_changes(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the files below `paths` that differ from the commit, untracked files too. Raises `UserError`.

    Only the project's own .gitignore hides a file. Files that a user hides are imported all the same, so they count:
    by core.excludesFile, .git/info/exclude or status.showUntrackedFiles.
    """
    paths = tuple(paths)
    asked = ("--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=none")
    tracked = os.fsdecode(read_bytes(root, "status", *asked, "--", *paths)).split("\0")
    others = ("--others", "--exclude-per-directory=.gitignore", "-z")
    untracked = os.fsdecode(read_bytes(root, "ls-files", *others, "--", *paths)).split("\0")
    return [*dict.fromkeys([*(entry[3:] for entry in tracked if entry), *filter(None, untracked)])]


def read_dates(root: Path, commits: Iterable[str]) -> dict[str, int]:
    """Return when each of these commits was written, in Unix seconds. Commits that the repository lacks are left out.

    Raises:
        UserError: git cannot be asked.
    """
    asked = sorted(set(commits))
    if not asked:
        return {}
    command = ("rev-list", "--no-walk=unsorted", "--ignore-missing", "--stdin", "--format=%H %at")
    said = read_output(root, *command, stdin="".join(f"{each}\n" for each in asked))
    pairs = (line.split() for line in said.splitlines() if not line.startswith("commit "))
    return {name: int(seconds) for name, seconds in pairs if name in asked}


def is_shallow(root: Path) -> bool:
    """Return whether the clone at `root` lacks older commits (`git clone --depth`). Raises `UserError`."""
    return read_output(root, "rev-parse", "--is-shallow-repository") == "true"


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """Return (commit, whether the code differs from it) of the checkout at `root`.

    Returns (None, None) if no commit is known; `problem` says why.
    """
    try:
        return read_commit(root), bool(list_changes(root, CODE))
    except UserError:
        return None, None
