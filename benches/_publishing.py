"""The plugin behind `asv publish`: only valid results are drawn, and our front page lies above asv's own pages.

asv loads this module by asv.conf.json and calls `setup`. It also imports it while it discovers benchmarks, perhaps
in an environment without asv, when the module must do nothing. Module `ladder.publish.site` does the work.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any, NoReturn

from benches import ROOT

_REGISTERED: list[type] = []  # keeps the class alive, because asv finds publishers among live subclasses


def accepted(results: Path, into: Path) -> list[tuple[str, str]]:
    """Copy the valid results of asv into a fresh folder, and return (path, why) of each refused file."""
    from ladder.publish.validation import validate

    return [(row.path, row.problem) for row in validate.accept_asv(results, into) if row.problem]


def publish(original: Any, conf: Any, range_spec: Any, pull: bool) -> Any:
    """Stand in for asv's `Publish.run`: validate, let asv work beside the old site, then exchange the two."""
    from asv.console import log

    if str(ROOT) not in sys.path:  # the front page needs every package of the project
        sys.path.append(str(ROOT))
    from benches._git import refuse_unknown_commit
    from ladder.core.errors import UserError
    from ladder.publish import site as publishing

    refuse_unknown_commit(Path(conf.repo))
    try:
        with publishing.replacing(Path(conf.html_dir)) as site:
            results = site.with_name("results")
            results.mkdir()
            refused = accepted(Path(conf.results_dir), results)
            for path, why in refused:
                _say(f"refused: {path}: {why}")
            if not any(path.name != "machine.json" for path in results.glob("*/*.json")):
                _stop(
                    f"{conf.results_dir}: no valid result of asv, nothing is published; `asv run` makes one"
                )
            mine = copy.copy(conf)
            mine.every_result = Path(conf.results_dir).parent
            mine.results_dir, mine.html_dir = str(results), str(site / publishing.ASV)
            _discover(mine)
            status = original(conf=mine, range_spec=range_spec, pull=pull)
    except UserError as error:
        _stop(str(error))
    log.flush()
    print(f"Front page: {Path(conf.html_dir) / 'index.html'}; asv's pages need a web server: asv preview")
    return status


def _discover(conf: Any) -> None:
    """Write benchmarks.json from the benchmarks here. A contributor's file is never read or merged.

    Benchmarks without a result are left out, because asv's pages would ask for graphs that do not exist.
    """
    from asv import environment, repo, results, util
    from asv.benchmarks import Benchmarks

    here, commits = list(environment.get_environments(conf, ["existing:same"])), repo.get_repo(conf)
    Benchmarks.discover(conf, commits, here, []).save()
    path = Benchmarks.get_benchmark_file_path(conf.results_dir)
    found = util.load_json(path, api_version=Benchmarks.api_version)
    known = {commit for branch in conf.branches for commit in commits.get_branch_commits(branch)}
    every = list(results.iter_results(conf.results_dir))
    mine = [result for result in every if result.commit_hash in known]
    lacking = _lacking({result.commit_hash for result in every} - known, Path(conf.repo))
    if not mine:
        _stop(
            f"no result is of a commit on the branches that asv.conf.json names, nothing is published{lacking}"
        )
    if lacking:
        _say(f"older commits are not drawn{lacking}")
    used = {name for result in mine for name in result.get_result_keys(found)}
    kept = {name: found[name] for name in sorted(used)}
    util.write_json(path, kept, Benchmarks.api_version)


def _lacking(commits: set[str], root: Path) -> str:
    """Return the remedy if a shallow clone lacks some of these commits, else an empty text."""
    from ladder.core import git

    if not git.is_shallow(root) or not commits - git.read_dates(root, commits).keys():
        return ""
    return f"; this clone is shallow: {git.DEEPEN}"


def _say(line: str) -> None:
    from asv.console import log

    log.flush()
    print(f"asv: {line}", file=sys.stderr)


def _stop(reason: str) -> NoReturn:
    _say(reason)
    raise SystemExit(2)


def setup() -> None:
    """Install our publisher in asv. asv calls this hook once, in its own process."""
    import asv.commands.preview
    import asv.commands.publish
    from asv.console import log
    from asv.publishing import OutputPublisher

    Publish = asv.commands.publish.Publish

    class FrontPage(OutputPublisher):
        """The publisher of our front page. It runs when asv knows which commits are on the branch."""

        name = "frontpage"
        button_label = "Front page"
        description = "The ladder of each GPU, and the highest rung over commits"
        order = 10

        @classmethod
        def publish(
            cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]
        ) -> None:
            from ladder.publish import site as publishing

            site, known = Path(conf.html_dir).parent, _on_branches(conf, repo, revisions)
            arguments = site, conf.every_result, Path(conf.results_dir), known, Path(conf.repo)
            for line in publishing.write_front(*arguments, log.info):
                _say(f"refused: {line}")

    _REGISTERED.append(FrontPage)
    original = Publish.run.__func__

    def run(cls: type, conf: Any, range_spec: Any = None, pull: bool = True) -> Any:
        return publish(
            lambda **arguments: original(cls, **arguments), conf=conf, range_spec=range_spec, pull=pull
        )

    Publish.run = classmethod(run)
    preview = asv.commands.preview.Preview.run.__func__

    def look(cls: type, conf: Any, port: int = 0, browser: bool = False) -> Any:
        if not Path(conf.html_dir).is_dir():
            _stop(f"{conf.html_dir}: no such folder; `asv publish` makes the site")
        return preview(cls, conf=conf, port=port, browser=browser)

    asv.commands.preview.Preview.run = classmethod(look)


def _on_branches(conf: Any, repo: Any, revisions: dict[str, int]) -> dict[str, int]:
    """Return the commits of the published branches only. asv draws no result of other commits either."""
    known = {commit for branch in conf.branches for commit in repo.get_branch_commits(branch)}
    return {commit: number for commit, number in revisions.items() if commit in known}
