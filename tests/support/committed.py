"""The results that git has, whatever a user of this checkout has measured, changed or removed since.

Tests of what the project publishes read these. They are git's staged files, so that a new result and the text that
quotes it can be tested before they are committed.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import pytest

from ladder.core import git
from ladder.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
# A run of the article's ladder that no document quotes.
RUN = ROOT / "tests/data/results/ladder/nvidia-h100-80gb-hbm3/article-article-20261125T180506Z.json"


@functools.cache
def _copied() -> Path | None:
    """Return a folder that holds git's results/ alone, until this process ends; None where there is no repository."""
    try:
        git.read_commit(ROOT)
        names = git.read_output(ROOT, "ls-files", "-z", "--", "results")
    except UserError:
        return None
    into = Path(tempfile.mkdtemp(prefix="ladder-committed-"))
    atexit.register(shutil.rmtree, into, ignore_errors=True)
    git.read_output(ROOT, *git.LF, "checkout-index", "-z", "--stdin", f"--prefix={into}/", stdin=names)
    return into


def folder(name: str = "results") -> Path:
    """Return a folder of committed results; the test is skipped where there is no repository, as in an archive."""
    if (copied := _copied()) is None:
        pytest.skip("not a git clone: what is committed is not known")
    return copied / name


def file(name: str) -> Path:
    """Return a committed file by its path; the checkout's own in an archive without a repository."""
    return (_copied() or ROOT) / name


def listed(pattern: str) -> list[Path]:
    """Return the committed files that match, to parametrize by; none where there is no repository."""
    return sorted(copied.glob(pattern)) if (copied := _copied()) else []
