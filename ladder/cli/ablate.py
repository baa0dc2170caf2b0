"""Options of `ladder ablate`, and the files that it writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, text
from ladder.base.paths import ROOT
from ladder.base.records import plain
from ladder.cli import expecting, options
from ladder.images import for_workload

if TYPE_CHECKING:
    from ladder.results.types import Plain
    from ladder.studies.ablate.plan import Plan
    from ladder.studies.ablate.record import Beside, Result

OUT = ROOT / "results" / "ablation"
RUNS = ROOT / "results" / "ladder"


@click.command(
    epilog="""\b
Examples:
  ladder ablate                             the article's rungs in every possible subset; at most 20 minutes on a GPU
  ladder ablate -w article-b32 --budget 40
  ladder ablate --ladder full               all rungs but one, and all but two of the five that save most
  ladder ablate --resume results/ablation/MACHINE-article-article-partial.json"""
)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option()
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="Begin nothing new after this time; continue with --resume. [default: 20; CPU: no limit]",
)
@options.resume_option
@options.seed_option("weights and latents, and for the choice and order of subsets")
@options.device_option
@options.out_option("results/ablation")
@options.json_option
def ablate(
    workload: str | None, ladder_name: str, budget: float | None, resume: Path | None, seed: int,
    device: str | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what each rung is worth in any order, and in pairs.

    Every subset of the rungs that is possible runs in one process: each kind of step of two cycles. Their GPU times
    give each rung's mean gain over all orders and the interaction of each pair. Some subsets are repeated in fresh
    processes for the intervals. Solo and leave-one-out runs of this machine stand beside them. A ladder of more than
    seven changes is measured without each rung, and without each two of the five that save most. On a CPU it is wall
    time.

    Exit status: 0 if every subset has a time. 1 if one has none, or if the ladder failed parity. 2 if the request is
    impossible. 130 if it was interrupted or the time was over.
    """
    from ladder.base.progress import First
    from ladder.engine import sitting
    from ladder.machine import environment, system
    from ladder.plan import catalog
    from ladder.report import output as ending
    from ladder.studies.ablate import measure, report
    from ladder.studies.ablate import plan as planning

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    folder = out or OUT
    files.refuse_unwritable(folder)
    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[chosen])
    minutes = budget or (20.0 if chosen == "cuda" else None)
    plan = planning.make(name, fields | {"data": None}, chosen, ladder_name, seed, minutes)
    facts = system.facts(chosen)
    result = measure.new_result(plan, facts, stored(plan, facts))
    paths: list[Path] = []

    def save(found: Result) -> None:
        paths[:] = write(found, folder, whole=found.complete)

    with locks.folder_lock(folder, text.slug(result.machine.name)), sitting.kept(paths):
        if resume is not None:
            result = measure.continued(resume, result)
        count, seconds = measure.expected(plan, result)
        about = expecting.words(seconds / 60 if name == expecting.USUAL[chosen] else None)
        rungs = f"{text.counted(len(plan.rungs), 'rung')} of {plan.ladder}"
        said = f"{name} on {chosen}: {rungs}, {text.counted(count, 'measurement')}, {about}"
        First(f"{said}, at most {minutes:g}" if minutes else said, as_json)()
        environment.tell(as_json)
        result = measure.Session(plan, result, lambda line: click.echo(line, err=True), save).run()
        if not result.complete:
            paths[:] = write(result, folder)
    made = plain(result)
    failed = result.parity is not None and result.parity.verdict != "ok"
    if failed:
        made["complete"] = True  # for the exit status: nothing can be gone on with
        ending.end(made, report.text(result), paths, as_json, [])
        sys.exit(1)
    ending.end(made, report.text(result), paths, as_json, made["subsets"], resumes=True)


def stored(plan: Plan, facts: Plain) -> list[Beside]:
    """Return what the best stored solo and leave-one-out runs of this machine say of the rungs."""
    from ladder.plan import content, modes
    from ladder.results import ranking
    from ladder.results.combine import series
    from ladder.studies.ablate.record import Beside

    found = []
    read = series.readable(RUNS / text.slug(str(facts["name"])))
    for mode in (modes.SOLO, modes.LEAVE_ONE_OUT):
        same = [
            each
            for each in read
            if ranking.mode(each) == mode
            and each.ladder.name == plan.ladder
            and content.of_workload(each.workload) == content.of_workload(plan.workload)
        ]
        best = max(same, key=ranking.rank, default=None)
        for rung in best.rungs if best else ():
            if rung.name in plan.changes and (rung.gain or rung.gpu_gain):
                gain, gpu = rung.gain or None, rung.gpu_gain or None
                found.append(
                    Beside(
                        mode=mode,
                        started=best.started if best else "",
                        rung=rung.name,
                        wall=gain.ratio if gain else None,
                        wall_interval=gain.interval if gain else None,
                        gpu=gpu.ratio if gpu else None,
                        gpu_interval=gpu.interval if gpu else None,
                    )
                )
    return found


def write(result: Result, folder: Path, whole: bool = True) -> list[Path]:
    """Write the result as JSON, and if it is ``whole`` with Markdown and charts. Return the files."""
    from ladder.results import store
    from ladder.studies.ablate import chart, report

    names = (result.machine.name, result.workload["name"], result.protocol.ladder)
    stem = "-".join(text.slug(name) for name in names)
    pages = {"md": report.markdown(result)} if whole else None
    return store.save(
        plain(result), folder, pages, (lambda kind: chart.render(result, kind)) if whole else None, stem=stem
    )
