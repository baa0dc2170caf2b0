"""Options of `ladder submit`, which measures this machine for others. `ladder.cli.submission` does the work."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from ladder.core import options
from ladder.core.errors import UserError
from ladder.core.starting import name_program
from ladder.core.text import format_count

if TYPE_CHECKING:
    from ladder.publish.fleet import Fleet


@click.command(
    epilog="""\b
Examples:
  ladder submit                  on an otherwise idle machine; once more after Ctrl-C, it goes on
  ladder submit --budget 40      tighter intervals
  ladder submit --slurm a100 --slurm h100 -w article -w article-b32 --sbatch=--gres=gpu:1 -- --budget 20
                                 two workloads on a node of each partition of a Slurm cluster"""
)
@click.option(
    "--budget", metavar="MINUTES", type=options.FloatRange(2, 600),
    help="Time of this call: two fifths for `ladder run`, the rest for asv, which the next call continues."
    " [default: 18; without a GPU `ladder run --quick`, then asv]",
)  # fmt: skip
@click.option(
    "--slurm", "partitions", multiple=True, metavar="PARTITION",
    help="Measure a node of this partition instead of this machine; may be repeated. docs/distributed.md",
)  # fmt: skip
@click.option(
    "-w", "--workload", "workloads", multiple=True, metavar="NAME|FILE",
    help="With --slurm: a workload; may be repeated. [default: article]",
)  # fmt: skip
@click.option(
    "--sbatch", "extra", multiple=True, metavar="OPTION",
    help="With --slurm: an option of sbatch's; may be repeated.",
)  # fmt: skip
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
    from ladder.publish.fleet import Fleet

    if not partitions:
        alone = {"--workload": workloads, "--sbatch": extra, "--out": out, "arguments behind --": arguments}
        if name := next((name for name, value in alone.items() if value), None):
            raise UserError(f"{name}: only with --slurm PARTITION")
        sys.exit(_submit_machine(budget))
    if budget is not None:
        raise UserError(
            "--budget is for this machine: with --slurm give it to `ladder run`: -- --budget MINUTES"
        )
    folder = out or Path("runs/fleet")
    sys.exit(_submit_fleet(Fleet(folder, partitions, workloads or ("article",), arguments, extra)))


def _submit_machine(budget: float | None) -> int:
    """Measure this machine, print the files and the commands that send them, and return the exit status."""
    from ladder.cli import submission as work
    from ladder.publish.validation import validate

    submission = work.prepare(budget, lambda line: click.echo(click.style(line, bold=True), err=True))
    if problem := work.lacks_asv():
        submission.say(f"without asv's history: {name_program(problem)}")
    ladder, is_over = work.measure_ladder(submission), False
    try:
        if ladder is not None and problem is None and (left := work.measure_history(submission)):
            problem = f"asv has no time of {', '.join(left)}: call `ladder submit` again"
    except UserError as error:
        problem = str(error)  # the run of the ladder can be sent all the same
    except KeyboardInterrupt:
        is_over = True
    if ladder is None or is_over:
        click.echo(name_program("ladder: interrupted; `ladder submit` goes on"), err=True)
        return 130
    paths = work.list_files(submission, ladder)
    if refused := [f"{each.path}: {each.problem}" for each in validate.validate(paths) if each.problem]:
        lines = [
            "These files would be refused, which is a mistake of this project; please report it:",
            *refused,
        ]
        click.echo("\n".join(lines), err=True)
        return 1
    click.echo(
        name_program(f"{format_count(len(paths), 'file')} to send, all accepted by `ladder validate`:")
    )
    for path in paths:
        click.echo(f"  {path.relative_to(submission.root)}")
    click.echo("To send them as a pull request, in a fork of the repository:")
    for line in work.list_commands(submission, paths):
        click.echo(f"  {line}")
    if problem:
        click.echo(name_program(f"{problem}; what is there can be sent all the same"))
    return 1 if problem else 0


def _submit_fleet(fleet: Fleet) -> int:
    """Give a fleet to Slurm, print where its results come, and return the exit status: 2 if every partition refused."""
    from ladder.cli.submission import refuse_changes
    from ladder.publish import fleet as slurm

    _refuse_arguments(fleet.arguments)
    refuse_changes()
    jobs = slurm.submit(fleet)
    numbers = [job.number for job in jobs if job.number]
    for job in jobs:
        what = f"job {job.number}, {len(fleet.workloads)} tasks" if job.number else f"refused: {job.problem}"
        click.echo(f"{job.partition}: {what}", err=job.number is None)
    if numbers:
        click.echo(
            f"`squeue -j {','.join(numbers)}` shows them, {fleet.folder / 'logs'} has their logs; then:"
        )
        click.echo(name_program(f"  ladder report {shlex.quote(str(fleet.folder / 'results' / 'ladder'))}"))
    if len(numbers) == len(jobs):
        return 0
    return 1 if numbers else 2


def _refuse_arguments(arguments: tuple[str, ...]) -> None:
    """Raise UserError for what `ladder run` does not take, or the tasks set: a task would fail after its turn."""
    from ladder.plan import catalog, modes, needs

    run = cast("click.Group", click.get_current_context().find_root().command).commands["run"]
    context = click.Context(run, info_name="ladder run")
    try:
        run.parse_args(context, [*arguments])
    except click.UsageError as error:
        raise UserError(f"behind --, options of `ladder run`: {error.format_message()}") from None
    for name in ("workload", "out", "resume"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"behind --: --{name} is set by each task: leave it out")
    values = context.params
    able = dict.fromkeys(needs.NEEDS)  # a node has what this machine may lack
    ladder = catalog.load_ladder(values["ladder"] or "article")
    modes.plan_run(values["mode"] or modes.CUMULATIVE, ladder, able, options.split_names(values["rungs"]))
