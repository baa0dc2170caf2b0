"""The `ladder` command. Options are read and checked here; the work is done by the modules that they
name.

Exit status: 0 done; 1 a rung has no number though this machine could run it (failed, oom, invalid); 2
what was asked for cannot be done, with one line on stderr; 130 interrupted, with what is finished kept.

torch is imported only by the commands that measure, train or examine the machine: help, list and show
answer at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ladder.base import files
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.cli import doctor as cli_doctor
from ladder.cli import history as cli_regressions
from ladder.cli import kernels as cli_kernels
from ladder.cli import listing, options
from ladder.cli import merge as cli_merge
from ladder.cli import precision as cli_precision
from ladder.cli import submit as cli_submit
from ladder.cli import sustain as cli_sustain
from ladder.cli import train as cli_train
from ladder.cli import upstream as cli_upstream
from ladder.cli import version as about
from ladder.results.values import OUT

RESULTS = ROOT / "results" / "ladder"


@click.group(
    cls=options.Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `ladder doctor` (what can this machine do?), then `ladder run --quick`, then `ladder run`.",
)
@about.version_option
def main() -> None:
    """Climb the StyleGAN2 optimization ladder on this machine.

    Each rung is one optimization on top of the ones before it. The ladder is timed rung by rung on a StyleGAN2-style
    reference model, and the gains are put beside those of the article it comes from (312 to 104 ms a step on one A100).
    """


@main.command(
    epilog="""\b
Examples:
  ladder run                                      the article's ladder, about ten minutes on a GPU
  ladder run --quick                              a first look, not to be quoted
  ladder run --mode leave-one-out                 what each rung is worth on top of all the others: adopt or skip
  ladder run --budget 30                          tighter intervals, half an hour
  ladder run --resume results/ladder/MACHINE/RUN.json   go on after Ctrl-C, or with a larger budget
  ladder run --workload large --data photos.zip   another workload, your images
  ladder run --rungs baseline,bf16,cuda_graphs    three rungs, each with the recipe it has in the whole ladder
  ladder run --workload mine.yaml --json          your own workload; the result on stdout"""
)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option
@click.option(
    "--rungs", metavar="A,B,...", help="Measure only these; each keeps its recipe of the whole ladder."
)
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="Fit rounds and cycles to this much measuring. [default: 10]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    help="Exactly so many fresh processes of each rung. [default: 5 to 12, as the budget allows; quick: 3]",
)
@click.option(
    "--cycles", type=click.IntRange(1, 1000), help="Timed 16-step cycles a round. [default: 2; quick: 1]"
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), help="Of the order of visits and of the inputs. [default: 0]"
)
@click.option(
    "--quick", is_flag=True, help="Fewer rounds and cycles. The result is marked as not to be quoted."
)
@click.option(
    "--mode",
    type=click.Choice(["cumulative", "solo", "leave-one-out"]),
    help="Rungs on top of each other, each alone, or all but each: the last says which to adopt."
    " [default: cumulative]",
)
@click.option(
    "--resume",
    metavar="FILE",
    type=options.FILE,
    help="Go on with the run of this file: measure what it lacks.",
)
@options.data_option
@options.device_option
@click.option("--out", metavar="DIR", type=options.FOLDER, help="[default: results/ladder]")
@options.json_option
def run(
    workload: str | None,
    ladder_name: str,
    rungs: str | None,
    budget: float | None,
    rounds: int | None,
    cycles: int | None,
    seed: int | None,
    quick: bool,
    mode: str | None,
    resume: Path | None,
    data: str | None,
    device: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure every rung; print the table; write the result and, beside it, the chart, Markdown and CSV.

    A round runs each rung once, in random order, in a fresh process: prepared, warmed up, then timed over whole
    16-step cycles. The lowest and the highest rung run twice in each round: what these twins differ by is noise, and
    nothing below it is called a difference. A rung that the machine cannot do is n/a and the others go on without it.
    A rung that fails is shown with its reason and the others go on. Ctrl-C keeps what is finished.
    """
    from ladder.cli import climb as climbing
    from ladder.report import output as ending
    from ladder.results.combine.resuming import TRIED_AGAIN

    request = climbing.Request(
        workload=workload,
        ladder=ladder_name,
        rungs=options.names(rungs),
        budget=budget,
        rounds=rounds,
        cycles=cycles,
        seed=seed,
        quick=quick,
        mode=mode,
        resume=resume,
        data=data,
        device=device,
        out=out or RESULTS,
    )
    paths: list[Path] = []
    result = climbing.run(request, quiet=as_json, on_file=paths.append)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    lacks = not result["complete"] or any(rung["status"] in TRIED_AGAIN for rung in result["rungs"])
    ending.say_files(paths, as_json, lacks, drop=("rungs", "seed", "mode", "quick", "cycles"))
    if not result["complete"]:
        sys.exit(130)
    if any(rung["status"] in OUT for rung in result["rungs"]):
        sys.exit(1)


@main.command(
    epilog="""\b
Examples:
  ladder report                                            the newest result of this machine
  ladder report --all                                      the best of each machine, workload and ladder
  ladder report results/ladder/nvidia-h200                 of one machine
  ladder report RESULT.json --markdown t.md --csv t.csv    tables for a page or a spreadsheet
  ladder report RESULT.json --chart ladder.png             .png or .svg"""
)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--markdown",
    metavar="FILE",
    type=options.FILE,
    help="Write the table here.",
)
@click.option(
    "--csv",
    "csv_path",
    metavar="FILE",
    type=options.FILE,
    help="One row a rung.",
)
@click.option(
    "--chart",
    "charts",
    metavar="FILE",
    multiple=True,
    type=options.FILE,
    help="Draw one result, as .png or .svg; may be given twice.",
)
@click.option("--receipts", is_flag=True, help="Also every receipt and every parity error of each rung.")
@click.option(
    "--all", "everything", is_flag=True, help="The best result of each machine, workload and ladder."
)
@click.option(
    "--publish",
    is_flag=True,
    help="Write results/charts, which README and docs show, anew from the committed results.",
)
@options.json_option
def report(
    paths: tuple[Path, ...],
    markdown: Path | None,
    csv_path: Path | None,
    charts: tuple[Path, ...],
    receipts: bool,
    everything: bool,
    publish: bool,
    as_json: bool,
) -> None:
    """Show results that are there: a table for each file, or for the best of each workload in a folder.

    Without PATH it is the newest result of this machine, of another one if this one has none.
    """
    from ladder.report import tables as reporting

    if publish:
        if paths or markdown or csv_path or charts or receipts or everything or as_json:
            raise UserError(
                "--publish writes results/charts of all committed results: give nothing beside it"
            )
        from ladder.publish import gallery

        for path in gallery.publish(ROOT):
            click.echo(path.relative_to(ROOT))
        return
    if everything and paths:
        raise UserError("--all is for results/ladder: leave out PATH")
    results, refused = reporting.collect(list(paths) or [RESULTS])
    for line in refused:
        click.echo(f"ladder: {line}", err=True)
    remarks: list[str] = []
    if not paths and not everything:
        results, remarks = reporting.of_this_machine(results)
    if as_json:
        data = [reporting.data_of(result) for result in results]
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=1, allow_nan=False))
    else:
        for result in results:
            reporting.print_table(result)
            if receipts:
                reporting.print_checks(result)
    for line in remarks:
        click.echo(line, err=as_json)
    if markdown is not None:
        files.write(markdown, "\n".join(reporting.markdown(result) for result in results))
    if csv_path is not None:
        files.write(csv_path, reporting.csv_text(results))
    if charts:
        if len(results) != 1:
            raise UserError(f"--chart draws one result, and {len(results)} were found; name one file")
        from ladder.report import chart

        for path in charts:
            chart.draw(results[0], path)
    if refused:
        sys.exit(1)


@main.command(
    epilog="""\b
Examples:
  ladder compare before.json after.json          two commits, or two versions of torch, on one machine
  ladder compare a100.json h200.json --anyway    two GPUs: not the same machine, and you know it"""
)
@click.argument("before", type=options.FILE)
@click.argument("after", type=options.FILE)
@click.option("--anyway", is_flag=True, help="Also compare what is not comparable.")
@options.json_option
def compare(before: Path, after: Path, anyway: bool, as_json: bool) -> None:
    """Say for each rung whether AFTER is faster or slower than BEFORE. Exit status 1 if any rung is slower."""
    from ladder.results.combine import comparing

    if comparing.show(before, after, anyway, as_json):
        sys.exit(1)


@main.command(
    epilog="""\b
Examples:
  ladder validate results/ladder results/asv   every result in these folders
  ladder validate RESULT.json --json           the verdict as JSON"""
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.json_option
def validate(paths: tuple[Path, ...], as_json: bool) -> None:
    """Check result files as if they came from a stranger: for each, accepted, or one line why not.

    Every kind of file that this project writes below results/ is known, asv's in results/asv among them.

    Exit status 1 if any was refused.
    """
    from ladder.publish.validation import validate as validating

    judged = list(validating.validate(paths))
    refused = sum(each.problem is not None for each in judged)
    if as_json:
        found = [{"path": each.path, "problem": each.problem, "marks": each.marks} for each in judged]
        click.echo(json.dumps(found, indent=1))
    else:
        for each in judged:
            click.echo(f"{each.path}: {each.verdict}")
        click.echo(f"{len(judged) - refused} accepted, {refused} refused")
    if refused:
        sys.exit(1)


for command in (
    *(cli_doctor.doctor, listing.list_, listing.show),
    *(cli_kernels.kernels, cli_precision.precision, cli_train.train),
    *(cli_merge.merge, cli_submit.submit, cli_sustain.sustain, cli_upstream.upstream),
    *(cli_regressions.bench_compare, cli_regressions.history),
):
    main.add_command(command)
