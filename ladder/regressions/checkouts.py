"""Two commits' measured packages in folders of their own, for as long as they are measured.

Only `kernels/` and `stylegan_lite/` are taken from a commit, as a tree without git: what times comes from the working
tree, and a killed run leaves no worktree registered, only a folder in the system's temporary one.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ladder.errors import UserError, one_line
from ladder.pool import ROOT

PACKAGES = ("kernels", "stylegan_lite")


def git(root: Path, *command: str) -> str:
    """What a git command prints. Raises `UserError` with its first line of complaint."""
    try:
        run = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"git cannot be run: {one_line(str(error))}") from None
    if run.returncode:
        raise UserError(f"git {command[0]}: {one_line(run.stderr) or f'status {run.returncode}'}")
    return run.stdout.strip()


def commit_of(name: str, option: str, root: Path = ROOT) -> str:
    """The commit that `name` stands for: a branch, a tag, a hash, HEAD~3. Raises `UserError`."""
    git(root, "rev-parse", "--git-dir")  # says that this is no checkout, if it is none
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except UserError:
        raise UserError(f"{option} {one_line(name)}: git knows no such commit") from None


def is_ancestor(commit: str, of: str, root: Path = ROOT) -> bool:
    """Whether `of` contains `commit`; a commit that this clone lacks is contained in nothing."""
    command = ["git", "-C", str(root), "merge-base", "--is-ancestor", commit, of]
    return subprocess.run(command, capture_output=True, timeout=120).returncode == 0


@contextlib.contextmanager
def checked_out(commits: list[str], root: Path = ROOT) -> Iterator[list[Path]]:
    """A folder for each commit, in order, removed at the end. Raises `UserError`."""
    with tempfile.TemporaryDirectory(prefix="ladder-compare-") as folder:
        places = []
        for number, commit in enumerate(commits):
            place = Path(folder) / f"code-{number}"  # names of one length: the environment's size can matter
            place.mkdir()
            _export(commit, place, root)
            places.append(place)
        yield places


def _export(commit: str, into: Path, root: Path) -> None:
    there = git(root, "ls-tree", "-d", "--name-only", commit, *PACKAGES).splitlines()
    if not there:
        return  # the worker says that there is nothing to measure
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, "--", *there]
    run = subprocess.run(command, capture_output=True, timeout=300)
    if run.returncode:
        raise UserError(
            f"commit {commit[:10]} cannot be checked out: {one_line(run.stderr.decode(errors='replace'))}"
        )
    try:
        with tarfile.open(fileobj=io.BytesIO(run.stdout)) as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"commit {commit[:10]} cannot be checked out: {one_line(str(error))}") from None
