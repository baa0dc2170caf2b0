"""Two commits' measured packages in folders of their own, for as long as they are measured.

Only `kernels/` and `stylegan_lite/` are taken from a commit, as a tree without git. The timing code comes from the
working tree. A killed run leaves no worktree registered, only a temporary folder of the system.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ladder.base import git
from ladder.base.errors import UserError, one_line
from ladder.base.paths import ROOT

PACKAGES = ("kernels", "stylegan_lite")


def commit_of(name: str, option: str, root: Path = ROOT) -> str:
    """Return the commit that `name` stands for: a branch, a tag, a hash, HEAD~3. Raises `UserError`."""
    git.commit(root)  # says why this is no checkout, if it is none
    try:
        return git.read(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except UserError:
        older = f"; this clone is shallow: {git.DEEPEN}" if git.is_shallow(root) else ""
        raise UserError(f"{option} {one_line(name)}: git knows no such commit{older}") from None


def is_ancestor(commit: str, of: str, root: Path = ROOT) -> bool:
    """Return whether `of` contains `commit`; a commit that this clone lacks is contained in nothing."""
    return git.succeeds(root, "merge-base", "--is-ancestor", commit, of)


@contextlib.contextmanager
def checked_out(commits: list[str], root: Path = ROOT) -> Iterator[list[Path]]:
    """Yield a folder for each commit, in order, and remove the folders at the end. Raises `UserError`."""
    with tempfile.TemporaryDirectory(prefix="ladder-compare-") as folder:
        places = []
        for number, commit in enumerate(commits):
            place = Path(folder) / f"code-{number}"  # names of one length: the environment's size can matter
            place.mkdir()
            _export(commit, place, root)
            places.append(place)
        yield places


def _export(commit: str, into: Path, root: Path) -> None:
    there = git.read(root, "ls-tree", "-d", "--name-only", commit, *PACKAGES).splitlines()
    if not there:
        return  # the worker says that there is nothing to measure
    try:
        archive = git.read_bytes(root, *git.LF, "archive", "--format=tar", commit, "--", *there)
    except UserError as error:
        raise UserError(f"commit {commit[:10]} cannot be checked out: {error}") from None
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"commit {commit[:10]} cannot be checked out: {one_line(str(error))}") from None
