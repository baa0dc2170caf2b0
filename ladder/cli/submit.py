"""Options of `ladder submit`, which measures this machine for others. `ladder.cli.submission` does the work."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import cast

import click
from click.core import ParameterSource

from ladder.base.errors import UserError
from ladder.base.starting import named
from ladder.base.text import counted
from ladder.cli import options


@click.command(
    epilog="""\b
Examples:
  ladder submit                  on an otherwise idle machine; once more after Ctrl-C, it goes on
  ladder submit --budget 40      tighter intervals
  ladder submit --slurm a100 --slurm h100 -w article -w article-b32 --sbatch=--gres=gpu:1 -- --budget 20
                                 two workloads on a node of each partition of a Slurm cluster"""
)
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(2, 600),
    help="Time of this call: two fifths for `ladder run`, the rest for asv, which the next call continues."
    " [default: 18; without a GPU `ladder run --quick`, then asv]",
)
@click.option(
    "--slurm",
    "partitions",
    multiple=True,
    metavar="PARTITION",
    help="Measure a node of this partition instead of this machine; may be repeated. docs/distributed.md",
)
@click.option(
    "-w",
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME|FILE",
    help="With --slurm: a workload; may be repeated. [default: article]",
)
@click.option(
    "--sbatch",
    "extra",
    multiple=True,
    metavar="OPTION",
    help="With --slurm: an option of sbatch's; may be repeated.",
)
@click.option(
    "--out",
    type=options.FOLDER,
    metavar="DIR",
    help="With --slurm: the fleet's folder. [default: runs/fleet]",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF ladder run]")
def submit(
    budget: float | None,
    partitions: tuple[str, ...],
    workloads: tuple[str, ...],
    extra: tuple[str, ...],
    out: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Measure this machine for others, and say how to send it.

    `ladder run` and `asv run` measure, and the files are checked. Nothing is sent. Without a GPU the workload is
    `tiny`, and without --budget its run is then a quick one and marked so. With --slurm, jobs of a cluster run the
    ladder, with the options behind --. Their results meet in one folder.

    Exit status: 0 if everything is measured. 1 if a rung has no number or is left for the next call. 2 if it is
    impossible here. 130 if interrupted.
    """
    from ladder.cli import submission as submitting

    if partitions:
        if budget is not None:
            raise UserError(
                "--budget is for this machine: with --slurm give it to `ladder run`: -- --budget MINUTES"
            )
        _to_cluster(partitions, workloads or ("article",), extra, out or Path("runs/fleet"), arguments)
        return
    given = {"--workload": workloads, "--sbatch": extra, "--out": out, "arguments behind --": arguments}
    if lone := next((name for name, value in given.items() if value), None):
        raise UserError(f"{lone}: only with --slurm PARTITION")

    def say(line: str) -> None:
        click.echo(click.style(line, bold=True), err=True)

    submission = submitting.prepare(budget, say)
    if lacking := submitting.lacks_asv():
        say(f"without asv's history: {named(lacking)}")
    ladder = submitting.paired(submission)
    if ladder is None:
        click.echo(named("ladder: interrupted; `ladder submit` goes on"), err=True)
        sys.exit(130)
    left, problem = [], lacking
    if lacking is None:
        try:
            left = submitting.history(submission)
        except UserError as error:
            problem = str(error)  # the run of the ladder can be sent all the same
        except KeyboardInterrupt:
            click.echo(named("ladder: interrupted; `ladder submit` goes on"), err=True)
            sys.exit(130)
    paths = submitting.files(submission, ladder)
    if wrong := submitting.refused(paths):
        click.echo(
            "These files would be refused, which is a mistake of this project; please report it:", err=True
        )
        click.echo("\n".join(wrong), err=True)
        sys.exit(1)
    click.echo(named(f"{counted(len(paths), 'file')} to send, all accepted by `ladder validate`:"))
    for path in paths:
        click.echo(f"  {path.relative_to(submission.root)}")
    click.echo("To send them as a pull request, in a fork of the repository:")
    for line in submitting.commands(submission, paths):
        click.echo(f"  {line}")
    if left:
        problem = f"asv has no time of {', '.join(left)}: call `ladder submit` again"
    if problem:
        click.echo(named(f"{problem}; what is there can be sent all the same"))
        sys.exit(1)


def _to_cluster(
    partitions: tuple[str, ...],
    workloads: tuple[str, ...],
    extra: tuple[str, ...],
    out: Path,
    arguments: tuple[str, ...],
) -> None:
    """Give a fleet to Slurm, and say where its results come. Exits with 1 if a partition refused, with 2 if all did."""
    from ladder.cli import submission as submitting
    from ladder.publish import fleet

    _refuse_arguments(arguments)
    submitting.refuse_changes()
    jobs = fleet.submit(fleet.Fleet(out, partitions, workloads, arguments, extra))
    for job in jobs:
        what = f"job {job.number}, {len(workloads)} tasks" if job.number else f"refused: {job.problem}"
        click.echo(f"{job.partition}: {what}", err=job.number is None)
    given = [job.number for job in jobs if job.number]
    if given:
        click.echo(f"`squeue -j {','.join(given)}` shows them, {out / 'logs'} has their words; then:")
        click.echo(named(f"  ladder report {shlex.quote(str(out / 'results' / 'ladder'))}"))
    if len(given) < len(jobs):
        sys.exit(1 if given else 2)


def _refuse_arguments(arguments: tuple[str, ...]) -> None:
    """Raise UserError for what `ladder run` does not take, or the tasks set: a task would fail after its turn."""
    from ladder.plan import catalog, modes, needs

    here = click.get_current_context()
    run = cast("click.Group", here.find_root().command).commands["run"]
    context = click.Context(run, info_name="ladder run")
    try:
        run.parse_args(context, [*arguments])
    except click.UsageError as error:
        raise UserError(f"behind --, options of `ladder run`: {error.format_message()}") from None
    for name in ("workload", "out", "resume"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"behind --: --{name} is set by each task: leave it out")
    asked = context.params
    ladder = catalog.load_ladder(asked["ladder_name"] or "article")
    able = dict.fromkeys(needs.NEEDS)  # a node has what this machine may lack
    modes.plan(asked["mode"] or modes.CUMULATIVE, ladder, able, options.names(asked["rungs"]))
