"""The `ladder` command. It reads and checks the options; the modules named here do the work.

Exit status:

- 0: done.
- 1: a rung has no number (failed, oom, invalid) although this machine could run it.
- 2: the request is impossible; stderr has one line.
- 130: interrupted; finished measurements are kept.

Only commands that measure, train or examine the machine import torch, so help, list and show answer at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from ladder.cli import (
    convert,
    doctor,
    explain,
    export,
    group,
    history,
    listing,
    merge,
    recommend,
    report_page,
    sample,
    submit,
    train,
    version,
)
from ladder.cli.request import RESULTS, Request, RunOptions
from ladder.core import files, options, starting
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.results.file import OUT


@click.group(
    cls=group.Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `ladder doctor` (what can this machine do?), then `ladder run --quick`, then `ladder run`.",
)
@version.version_option
def main() -> None:
    """Climb the StyleGAN2 optimization ladder on this machine.

    Each rung is one optimization on top of the ones before it. Every rung is timed on a StyleGAN2-style reference
    model. The gains are shown beside those of the article that the ladder comes from (312 to 104 ms a step on one
    A100).

    Exit status: 0 if done. 2 if the request is impossible; stderr has one line. 130 if interrupted. A command's help
    tells what 1 means.
    """


# --- ladder run -------------------------------------------------------------------------------------------------------


def run_ladder(own: RunOptions, as_json: bool, **shared: Any) -> None:
    """Measure what the options ask for, and end with the status that `ladder run --help` gives."""
    from ladder.cli import climb
    from ladder.report import output, tables

    request = Request(**{**asdict(own), **shared, "rungs": own.without or options.split_names(own.rungs)})
    resume, out = request.resume, request.out
    if resume is not None and out is not None and out.resolve() not in resume.resolve().parents:
        raise UserError(f"{resume}: --resume goes on in its own file: leave out --out")
    if own.without:
        if own.rungs or own.mode or own.recipe:
            raise UserError("--without leaves one rung out: leave out --rungs, --mode and --recipe")
        request = Request(**{**asdict(request), "mode": "leave-one-out"})
    paths: list[Path] = []
    result = climb.run(request, quiet=as_json, on_file=paths.append)
    if as_json:
        click.echo(json.dumps(tables.data_of(result), indent=1, allow_nan=False))
    lacks = not result.complete or any(rung.status in ("failed", "skipped") for rung in result.rungs)
    again = ("rungs", "without", "seed", "mode", "quick", "cycles", "gpu_memory")
    output.say_files(paths, as_json, lacks, drop=again)
    if not result.complete:
        sys.exit(130)
    if any(rung.status in OUT for rung in result.rungs):
        sys.exit(1)


main.add_command(
    options.make_command(
        "run",
        RunOptions,
        run_ladder,
        """Measure every rung of a ladder, and judge what it gains.

    The table is printed, and the result is written with chart, Markdown and CSV beside it.

    A generation is a process of each rung, all alive together. Each is prepared, then visited in turn: one timed
    16-step cycle a visit, in random order. The lowest and the highest rung have two processes. These twins differ
    only by noise, and a gain below that noise does not count. A rung that this machine cannot run is n/a, and a rung
    that fails is shown with its reason; the others go on. Ctrl-C keeps the finished generations.

    Exit status: 0 if every rung that can run here has a number. 1 if one has none. 2 if the request is impossible. 130
    if interrupted.
    """,
        """
ladder run                                      the article's ladder, about ten minutes on a GPU
ladder run --quick                              a first look, not to be quoted
ladder run --mode leave-one-out                 what each rung is worth on top of all the others: adopt or skip
ladder run --without bf16 --quick               the same of one rung: a first look
ladder run --recipe best.yaml                   a recipe of yours, as `ladder recommend` writes it
ladder run --mode mistakes                      what common mistakes cost
ladder run --budget 30                          tighter intervals, half an hour
ladder run --resume results/ladder/MACHINE/RUN.json   go on after Ctrl-C, or with a larger budget
ladder run --workload large --data photos.zip   another workload, your images
ladder run --rungs baseline,bf16,cuda_graphs    three rungs, each with the recipe it has in the whole ladder
ladder run --workload mine.yaml --json          your own workload; the result on stdout""",
        [
            options.workload_option("article on a GPU, tiny on the CPU"),
            options.resume_option,
            options.data_option,
            options.device_option,
            options.out_option("results/ladder"),
            options.json_option,
        ],
    )
)


# --- stored results ---------------------------------------------------------------------------------------------------


@main.command(
    epilog="""\b
Examples:
  ladder report                                            the newest result of this machine
  ladder report --all                                      the best of each machine, workload and ladder
  ladder report results/ladder/nvidia-h200                 of one machine
  ladder report RESULT.json --markdown t.md --csv t.csv    tables for a page or a spreadsheet
  ladder report RESULT.json --chart ladder.png             .png or .svg
  ladder report --html                                     one page with everything, in results/reports
  ladder report --html page.html RUN.json SUSTAINED.json   of these files"""
)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=options.ANY)
@click.option("--markdown", metavar="FILE", type=options.FILE, help="Write the table to this file.")
@click.option("--csv", metavar="FILE", type=options.FILE, help="Write one row per rung to this file.")
@click.option(
    "--chart", "charts", metavar="FILE", multiple=True, type=options.FILE,
    help="Draw one result to this .png or .svg file; may be repeated.",
)  # fmt: skip
@report_page.html_option
@report_page.price_option
@click.option("--receipts", is_flag=True, help="Also show every receipt and every parity error of each rung.")
@click.option(
    "--all", "everything", is_flag=True, help="Show the best result of each machine, workload and ladder."
)
@click.option(
    "--publish", is_flag=True,
    help="Write results/charts, which README and docs show, again from the committed results, and remove the rest.",
)  # fmt: skip
@options.json_option
def report(
    paths: tuple[Path, ...],
    markdown: Path | None,
    csv: Path | None,
    charts: tuple[Path, ...],
    page: str | None,
    price: str | None,
    receipts: bool,
    everything: bool,
    publish: bool,
    as_json: bool,
) -> None:
    """Show stored results as tables, charts or one HTML page.

    A file of any command gets a table, and a folder the best run of each workload. Without PATH, show the newest
    result of this machine, or of another machine if this one has none. In a pipe or a file the table has the columns
    that fit 120 characters, or as many as the variable COLUMNS says. The files of --markdown and --csv
    have all columns.

    Exit status: 0 if done. 1 if a file was refused. 2 if the request is impossible.
    """
    from ladder.publish import gallery
    from ladder.report import chart, tables
    from ladder.studies import frame
    from ladder.studies.host import attach_host

    shown = markdown or csv or charts or receipts or everything or as_json
    if publish:
        if paths or page or price or shown:
            raise UserError("--publish draws all committed results: leave out every other option")
        for path in (written := gallery.publish(ROOT)):
            click.echo(path.relative_to(ROOT))
        removed, unknown = gallery.remove_stale(ROOT, written)
        for path in (*removed, *unknown):
            how = "removed" if path in removed else "stays, git lacks it"
            click.echo(f"{path.relative_to(ROOT)}: no committed result stands behind it: {how}")
        return
    if page is not None:
        if shown:
            raise UserError("--html makes a page of its own: leave out every other option")
        report_page.write_page(page, paths, price)
        return
    if price is not None:
        raise UserError("--price is for --html")
    if everything and paths:
        raise UserError("--all is for results/ladder: leave out PATH")
    tables.refuse_outputs([*filter(None, (markdown, csv)), *charts], paths)
    if paths and not (charts or receipts) and frame.report_stored(paths, as_json, markdown, csv):
        return
    for path in charts:
        chart.kind_of(path)
    results, refused = tables.collect(list(paths) or [RESULTS])
    results = [attach_host(each, ROOT / "results" / "host") for each in results]
    remarks: list[str] = []
    if not paths and not everything:
        results, remarks = tables.of_this_machine(results)
    if charts and len(results) != 1:
        raise UserError(f"--chart draws one result, and {len(results)} were found; name one file")
    for line in refused:
        click.echo(f"ladder: {line}", err=True)
    if as_json:
        data = [tables.data_of(result) for result in results]
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=1, allow_nan=False))
    else:
        for result in results:
            tables.print_table(result)
            if receipts:
                tables.print_checks(result)
    for line in remarks:
        click.echo(starting.name_program(line), err=as_json)
    if markdown is not None:
        files.write_file(markdown, "\n".join(tables.markdown(result) for result in results))
    if csv is not None:
        files.write_file(csv, tables.csv_text(results))
    for path in charts:
        chart.draw(results[0], path)
    sys.exit(bool(refused))


@main.command(
    epilog="""\b
Examples:
  ladder compare before.json after.json          two commits, or two versions of torch, on one machine
  ladder compare a100.json h200.json --anyway    two GPUs: not the same machine, and you know it"""
)
@click.argument("before", type=options.FILE)
@click.argument("after", type=options.FILE)
@click.option("--anyway", is_flag=True, help="Compare even if the results are not comparable.")
@options.json_option
def compare(before: Path, after: Path, anyway: bool, as_json: bool) -> None:
    """Say which rungs are slower in file AFTER than in file BEFORE.

    Nothing is measured; `ladder bench-compare` measures two commits. With two machines (--anyway) it also says which
    rungs gain more on one of them, and in which kernels that lies.

    Exit status: 0 if no rung is slower. 1 if any is. 2 if the request is impossible.
    """
    from ladder.results.combine import comparing

    if comparing.show(before, after, anyway, as_json):
        sys.exit(1)


@main.command(
    epilog="""\b
Examples:
  ladder validate results/ladder results/asv   every result in these folders
  ladder validate RESULT.json --json           the verdict as JSON"""
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=options.ANY)
@options.json_option
def validate(paths: tuple[Path, ...], as_json: bool) -> None:
    """Check result files as if a stranger had sent them.

    Each file gets a line: "accepted", or why not. All kinds of file that this project writes below results/ are known,
    including asv's in results/asv.

    Exit status: 1 if any file was refused.
    """
    from ladder.publish.validation import validate as validating

    judged = validating.validate(paths)
    refused = sum(each.problem is not None for each in judged)
    if as_json:
        rows = [{"path": each.path, "problem": each.problem, "marks": each.marks} for each in judged]
        click.echo(json.dumps(rows, indent=1))
    else:
        for each in judged:
            click.echo(f"{each.path}: {each.verdict}")
        click.echo(f"{len(judged) - refused} accepted, {refused} refused")
    sys.exit(bool(refused))


for command in (
    *(doctor.doctor, explain.explain, listing.list_, listing.show, recommend.recommend),
    *(train.train, convert.convert, sample.sample, merge.merge, submit.submit),
    *(history.history, export.export),
):
    main.add_command(command)
