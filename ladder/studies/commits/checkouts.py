"""Two commits' measured packages in folders of their own, for as long as they are measured.

Only `kernels/` and `stylegan_lite/` are taken from a commit, as a tree without git. The timing code comes from the
working tree. Of a user's repository the whole tree is taken. A killed run leaves no worktree registered, only a
temporary folder of the system.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ladder.core import git
from ladder.core.errors import UserError, one_line
from ladder.core.paths import ROOT

PACKAGES = ("kernels", "stylegan_lite")


def commit_of(name: str, option: str, root: Path = ROOT) -> str:
    """Return the commit that `name` stands for: a branch, a tag, a hash, HEAD~3. Raises `UserError`."""
    git.read_commit(root)  # says why this is no checkout, if it is none
    try:
        return git.read_output(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        )
    except UserError:
        older = f"; this clone is shallow: {git.DEEPEN}" if git.is_shallow(root) else ""
        raise UserError(f"{option} {one_line(name)}: git knows no such commit{older}") from None


def read_hashes(commit: str, root: Path = ROOT) -> dict[str, str]:
    """Return the first 16 digits of git's hashes of a commit's packages, by name."""
    rows = [row.split() for row in git.read_output(root, "ls-tree", "-d", commit, *PACKAGES).splitlines()]
    return {name: digest[:16] for *_, digest, name in rows}


def find_repository(folder: Path) -> Path:
    """Return the top folder of the git repository that holds a user's pair. Raises `UserError`."""
    try:
        return Path(git.read_output(folder, "rev-parse", "--show-toplevel")).resolve()
    except UserError as error:
        raise UserError(f"--model: two commits of its repository are measured: {error}") from None


@contextlib.contextmanager
def checked_out(commits: list[str], root: Path = ROOT, whole: bool = False) -> Iterator[list[Path]]:
    """Yield a folder for each commit, in order, and remove the folders at the end. Raises `UserError`.

    `whole`: all of the commit, not the measured packages alone.
    """
    with tempfile.TemporaryDirectory(prefix="ladder-compare-") as folder:
        places = [Path(folder) / f"code-{number}" for number in range(len(commits))]
        for commit, place in zip(commits, places, strict=True):
            place.mkdir()
            packages = git.read_output(root, "ls-tree", "-d", "--name-only", commit, *PACKAGES).splitlines()
            packages = ["."] if whole else packages
            if packages:  # else the worker finds nothing to measure
                archive = git.read_bytes(root, *git.LF, "archive", "--format=tar", commit, "--", *packages)
                with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                    tar.extractall(place, filter="data")
        yield places
