"""Options of `ladder submit`, which measures this machine for others. `ladder.cli.submission` does the work."""

from __future__ import annotations

import sys

import click

from ladder.base.starting import named
from ladder.cli import options


@click.command(
    epilog="""\b
Examples:
  ladder submit                  on an otherwise idle machine; once more after Ctrl-C, it goes on
  ladder submit --budget 40      tighter intervals"""
)
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(2, 600),
    help="Time for everything. `ladder run` gets two fifths, asv the rest; the next call continues asv."
    " [default: 18; without a GPU a quick `ladder run`]",
)
def submit(budget: float | None) -> None:
    """Measure this machine with `ladder run` and `asv run`, check the files, and say how to send them.

    Nothing is sent. Without a GPU the workload is `tiny`, and without --budget its run is then a quick one and marked
    so.

    Exit status: 0 if everything is measured. 1 if a rung has no number or is left for the next call. 2 if it is
    impossible here. 130 if interrupted.
    """
    from ladder.cli import submission as submitting

    def say(line: str) -> None:
        click.echo(click.style(line, bold=True), err=True)

    submission = submitting.prepare(budget, say)
    ladder = submitting.paired(submission)
    if ladder is None:
        click.echo(named("ladder: interrupted; `ladder submit` goes on"), err=True)
        sys.exit(130)
    try:
        left = submitting.history(submission)
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
    click.echo(named(f"{len(paths)} files to send, all accepted by `ladder validate`:"))
    for path in paths:
        click.echo(f"  {path.relative_to(submission.root)}")
    click.echo("To send them as a pull request, in a fork of the repository:")
    for line in submitting.commands(submission, paths):
        click.echo(f"  {line}")
    if left:
        click.echo(
            named(f"asv has no time of {', '.join(left)}: call `ladder submit` again, or send what is there.")
        )
        sys.exit(1)
