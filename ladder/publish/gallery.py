"""The charts and tables of results/charts, which the documents show: made anew from the committed results.

A command that measures writes its pictures beside its own result, so no user's run changes the documents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ladder.core import files, git, text
from ladder.core.errors import UserError
from ladder.plan import catalog, modes, needs
from ladder.report import chart, gpus, tables, view
from ladder.results import loading, ranking, sources
from ladder.results.combine import series
from ladder.results.publishable import publishable
from ladder.results.run import Result, RungResult
from ladder.show.themes import DARK, LIGHT
from ladder.studies import frame
from ladder.studies.host import attach_host
from ladder.studies.upstream.record import Figures
from ladder.studies.upstream.study import STUDY as upstream

ARTICLE, FULL = "article", "full"  # workload and ladder of the article, and the ladder that goes on from it
CHARTS, SUFFIXES = "results/charts", (".md", ".csv", ".png", ".svg")  # the gallery's folder, and its files
Write = Callable[[Path], list[Path]]  # takes a name without suffix, and returns the files that it wrote


def publish(root: Path) -> list[Path]:
    """Write the gallery of a checkout and return its files.

    Raises:
        UserError: git does not know the checkout's files, a committed result is none or missing here, or a file cannot
            be written.
    """
    drawn = list_drawings(functools.partial(list_tracked, root))
    return [path for stem, write in drawn.items() for path in write(root / CHARTS / stem)]


def list_drawings(files_of: Callable[[str], list[Path]]) -> dict[str, Write]:
    """Return what writes each picture of the gallery with its tables, by the name of the files without suffix.

    For each machine, workload, ladder and mode the best committed run is drawn. ``files_of`` returns the results below
    a folder such as `results/ladder`. Raises UserError.
    """
    runs = [loading.load_run(path) for path in files_of("results/ladder")]
    hosts = next((path.parent for path in files_of("results/host")), Path("results/host"))
    best = [attach_host(run, hosts) for run in choose_best(runs)]
    drawn: dict[str, Write] = {name_files(run): functools.partial(_write_run, run) for run in best}
    if pairs := pair_gpus(runs):
        for suffix, theme in (("", LIGHT), ("-dark", DARK)):
            draw = functools.partial(gpus.render, pairs, theme=theme)
            drawn[f"gpus-{ARTICLE}{suffix}"] = functools.partial(files.draw_pictures, render=draw)
            hero = functools.partial(
                gpus.render_hero, pairs[0], find_official(pairs[0][0], files_of), theme=theme
            )
            drawn[f"hero{suffix}"] = functools.partial(files.draw_pictures, render=hero)
    return drawn


def find_official(result: Result, files_of: Callable[[str], list[Path]]) -> float | None:
    """Return the milliseconds of a step of NVIDIA's own code on the same machine and workload, or None."""
    name = f"{result.machine.name}-{result.workload['name']}.json"
    path = next((path for path in files_of("results/upstream") if path.name == name), None)
    return Figures(frame.read_file(upstream, path)).programs["upstream"].step_ms if path else None


def remove_stale(root: Path, written: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Remove the files of the gallery that no committed result stands behind: all but the written ones.

    Return the removed files, and those that stay because git does not have them.
    """
    kept, known = (
        {path.name for path in written},
        git.read_output(root, "ls-files", "-z", "--", CHARTS).split("\0"),
    )
    old = [
        path
        for path in sorted((root / CHARTS).glob("*"))
        if path.suffix in SUFFIXES and path.name not in kept
    ]
    removed = [path for path in old if f"{CHARTS}/{path.name}" in known]
    for path in removed:
        path.unlink()
    return removed, [path for path in old if path not in removed]


def list_tracked(root: Path, folder: str) -> list[Path]:
    """Return the JSON files that git tracks in a folder of the checkout.

    Raises:
        UserError: git cannot say, or such a file is missing here, so its charts would go.
    """
    names = sorted(git.read_output(root, "ls-files", "-z", "--", folder).split("\0"))
    paths = [root / name for name in names if name.endswith(".json")]
    if lost := next((path.relative_to(root) for path in paths if not path.is_file()), None):
        raise UserError(
            f"{lost} is in git and not here: `git restore {lost}` brings it back, `git rm {lost}` takes its charts"
            " away; a sparse checkout needs `git sparse-checkout disable`"
        )
    return paths


def _write_run(result: Result, stem: Path) -> list[Path]:
    return write_tables(result, stem) + write_charts(result, stem)


def write_tables(result: Result, stem: Path) -> list[Path]:
    """Write the tables of a result of `ladder run`, named ``stem`` with .md and .csv. Raises UserError."""
    files.write_file(markdown := Path(f"{stem}.md"), tables.markdown(result))
    files.write_file(csv := Path(f"{stem}.csv"), tables.csv_text([result]))
    return [markdown, csv]


def write_charts(result: Result, stem: Path) -> list[Path]:
    """Draw a result of `ladder run` as ``stem`` with .png and .svg. Raises UserError."""
    return files.draw_pictures(stem, lambda kind: chart.render(result, kind))


def name_files(result: Result) -> str:
    """Return the name of a result's files without suffix: `nvidia-h200-article-full-leave-one-out-partial`.

    A stopped run is `partial`. One that ended by itself without every rung of the ladder is of `some-rungs`.
    """
    words = [result.machine.name, result.workload["name"], result.ladder.name]
    words += [mode for mode in [ranking.mode(result)] if mode not in (modes.CUMULATIVE, words[-1])]
    words += ["quick"] * result.protocol.quick + ["limited"] * bool(result.protocol.gpu_memory_limit_gb)
    words += ["partial"] if not result.complete else ["some-rungs"] * (not is_whole(result))
    return "-".join(map(text.make_slug, words))


# --- which run is shown -----------------------------------------------------------------------------------------------


def choose_best(runs: Iterable[Result]) -> list[Result]:
    """Return the best result of each machine, workload, ladder and mode, with the gains at the top where known.

    A decided run goes first. Among equal ones, one with gains at the top goes before a newer one without: its chart
    says more.
    """
    runs = list(runs)
    best: dict[tuple[str, ...], tuple[Any, Result]] = {}
    for result in sources.without_sources(runs):
        key = (result.machine.name, result.workload["name"], result.ladder.name, ranking.mode(result))
        shown = series.with_top(result, runs)
        *worth, started = ranking.rank(result)
        rank = (is_decided(result) and is_whole(result), *worth, shown.at_top is not None, started)
        if key not in best or rank > best[key][0]:
            best[key] = rank, shown
    return [best[key][1] for key in sorted(best)]


def pair_gpus(runs: Iterable[Result]) -> list[tuple[Result, Result | None]]:
    """Return for each GPU its best whole staircase of the article, and its best run of the top of `full` or None.

    Only decided runs count. Of `full` the top alone is shown, so a run of selected rungs will do.
    """
    decided = [run for run in runs if run.workload["name"] == ARTICLE and is_decided(run)]
    stairs = [run for run in decided if ranking.mode(run) == modes.CUMULATIVE]
    full = [run for run in stairs if run.ladder.name == FULL]
    return [
        (run, find_top(other for other in full if other.machine.name == run.machine.name))
        for run in choose_best(run for run in stairs if run.ladder.name == ARTICLE and is_whole(run))
    ]


def is_decided(result: Result) -> bool:
    """Return whether a run may be quoted and has whole generations with GPU times."""
    has_gpu_time = any(rung.gpu_ms for rung in result.rungs)
    return sources.in_generations(result) and has_gpu_time and not publishable(result)


def find_top(runs: Iterable[Result]) -> Result | None:
    """Return the run that says best how fast a ladder's top is, None if no run says it.

    The runs are staircases of one machine, workload and ladder. A run that may be quoted goes first, then a whole one,
    then the best rank.
    """
    return max(
        filter(has_top, sources.without_sources(runs)),
        key=lambda each: (not publishable(each), is_whole(each), *ranking.rank(each)),
        default=None,
    )


def has_top(result: Result) -> bool:
    """Return whether the highest rung of a staircase with a number is the top of its ladder.

    In a whole run it is. A run of selected rungs must hold the first and the last rung of the ladder, both proved. The
    last one must have every change of today's ladder: an older recipe may lack a rung that was added since.
    """
    if is_whole(result):
        return True
    planned, rungs = _plan_ladder(result), {rung.name: rung for rung in result.rungs}
    first, last = (rungs.get(planned[end].name) for end in (0, -1))
    if first is None or last is None or not (_is_proved(first) and _is_proved(last)):
        return False
    return view.contains(last.recipe or {}, planned[-1].recipe or {})


def _is_proved(rung: RungResult) -> bool:
    """Return whether a rung has a number, receipts that show it on, and parity."""
    has_parity = rung.parity is not None and rung.parity.verdict == "ok"
    return rung.status == "ok" and view.receipts_word(rung) == "ok" and has_parity


def is_whole(result: Result) -> bool:
    """Return whether a run planned every rung that its ladder has today. A user's own ladder counts as whole."""
    planned = _plan_ladder(result)
    return not planned or [rung.name for rung in result.rungs] == [rung.name for rung in planned]


def _plan_ladder(result: Result) -> Sequence[catalog.Planned]:
    """Return the plan of the whole ladder of a run, in its mode, as of today; empty for a user's own ladder.

    A rung that the workload cannot have is no part of the recipes.
    """
    name = result.ladder.name
    possible = {
        **needs.join_capabilities(dict.fromkeys(needs.OF_MACHINE), result.workload),
        needs.RANKS: None,
    }
    return (
        _plan(name, ranking.mode(result), tuple(possible.items())) if name in catalog.list_ladders() else ()
    )


@functools.cache
def _plan(
    ladder: str, mode: str, possible: tuple[tuple[str, str | None], ...]
) -> tuple[catalog.Planned, ...]:
    return tuple(modes.plan_run(mode, catalog.load_ladder(ladder), dict(possible)))
