"""asv's calls of git with our settings (`ladder.core.git`), so that they answer for this repository.

Without git, or in a checkout that git does not know, asv stops in one line before it measures, writes or
publishes.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from asv.plugins.git import Git

from benches import ROOT
from benches._interpreter import stop
from ladder.core import git
from ladder.core.errors import UserError


def refuse_unknown_commit(root: Path = ROOT) -> None:
    """Stop in one line if results of the checkout at `root` would belong to no commit."""
    if problem := git.find_problem(root):
        stop(problem)


def setup() -> None:
    """Replace asv's calls of git with ours."""
    start, call, find = Git.__init__, Git._run_git, Git.get_hashes_from_range

    def __init__(self: Git, url: str, mirror_path: str) -> None:
        if Path(url).is_dir():
            refuse_unknown_commit(Path(url))
        start(self, url, mirror_path)

    def _run_git(self: Git, args: list[str], cwd: Any = True, **kwargs: Any) -> str:
        kwargs["env"] = git.clean_environment(kwargs.get("env"))
        return call(self, [*git.OVERRIDES, *git.LF, *args], cwd, **kwargs)

    def get_hashes_from_range(self: Git, range_spec: str) -> list[str]:
        try:
            if not (words := shlex.split(range_spec)):
                stop("an empty range of commits: name a commit, or a range such as main~9..main")
            git.read_output(Path(self._path), "rev-list", "--max-count=0", *words, "--")
        except (UserError, ValueError) as error:
            older = f"; this clone is shallow: {git.DEEPEN}" if git.is_shallow(Path(self._path)) else ""
            stop(f"commits {range_spec!a}: {error}{older}")
        return find(self, range_spec)

    Git.__init__, Git._run_git, Git.get_hashes_from_range = __init__, _run_git, get_hashes_from_range
