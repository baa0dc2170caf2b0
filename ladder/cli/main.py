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

import click

from ladder.base import files, starting
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.cli import convert as cli_convert
from ladder.cli import doctor as cli_doctor
from ladder.cli import explain as cli_explain
from ladder.cli import export as cli_export
from ladder.cli import history as cli_regressions
from ladder.cli import listing, options, report_page
from ladder.cli import merge as cli_merge
from ladder.cli import recommend as cli_recommend
from ladder.cli import sample as cli_sample
from ladder.cli import submit as cli_submit
from ladder.cli import train as cli_train
from ladder.cli import version as about
from ladder.results.file import OUT

RESULTS = ROOT / "results" / "ladder"


@click.group(
    cls=options.Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `ladder doctor` (what can this machine do?), then `ladder run --quick`, then `ladder run`.",
)
@about.version_option
def main() -> None:
    """Climb the StyleGAN2 optimization ladder on this machine.

    Each rung is one optimization on top of the ones before it. Every rung is timed on a StyleGAN2-style reference
    model. The gains are shown beside those of the article that the ladder comes from (312 to 104 ms a step on one
    A100).

    Exit status: 0 if done. 2 if the request is impossible; stderr has one line. 130 if interrupted. A command's help
    tells what 1 means.
    """


@main.command(
    epilog="""\b
Examples:
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
  ladder run --workload mine.yaml --json          your own workload; the result on stdout"""
)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option(None, "The ladder whose rungs are used. [default: article]")
@click.option(
    "--rungs", metavar="A,B,...", help="Measure only these; each keeps its recipe of the whole ladder."
)
@click.option(
    "--without", multiple=True, metavar="RUNG",
    help="Measure the whole ladder, and the whole ladder without this rung; may be repeated.",
)  # fmt: skip
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="Time for measuring; generations and cycles are fitted to it. [default: 10; mistakes: 8]",
)
@options.rounds_option(1, "Exact number of generations. [default: 3 to 12, as the budget allows; quick: 3]")
@click.option(
    "--cycles",
    type=options.IntRange(1, 1000),
    help="Timed 16-step cycles of each process. [default: 2; quick: 1]",
)
@options.seed_option("weights, latents, and the order of images and visits", default=None)
@click.option(
    "--quick", is_flag=True, help="Three generations of one cycle. The result is marked as not to be quoted."
)
@click.option(
    "--mode",
    type=click.Choice(["cumulative", "solo", "leave-one-out", "mistakes", "levers"]),
    help="Rungs on top of each other, each rung alone, or all rungs but one, which says what to adopt. Or common"
    " mistakes beside a clean step, or levers that change the model. [default: cumulative]",
)
@click.option(
    "--recipe",
    metavar="RUNG|FILE",
    help="Measure the baseline and this recipe alone: a YAML file of recipe fields, as `ladder recommend` writes it.",
)
@click.option(
    "--gpu-memory",
    metavar="GIB",
    type=options.FloatRange(2, 10_000),
    help="Simulate a card with GIB of memory, the limit of each process. The result is marked, and is compared with"
    " no other.",
)
@options.resume_option
@options.data_option
@options.device_option
@options.out_option("results/ladder")
@options.json_option
def run(
    workload: str | None,
    ladder_name: str | None,
    rungs: str | None,
    without: tuple[str, ...],
    budget: float | None,
    rounds: int | None,
    cycles: int | None,
    seed: int | None,
    quick: bool,
    mode: str | None,
    recipe: str | None,
    gpu_memory: float | None,
    resume: Path | None,
    data: str | None,
    device: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure every rung of a ladder, and judge what it gains.

    The table is printed, and the result is written with chart, Markdown and CSV beside it.

    A generation is a process of each rung, all alive together. Each is prepared, then visited in turn: one timed
    16-step cycle a visit, in random order. The lowest and the highest rung have two processes. These twins differ
    only by noise, and a gain below that noise does not count. A rung that this machine cannot run is n/a, and a rung
    that fails is shown with its reason; the others go on. Ctrl-C keeps the finished generations.

    Exit status: 0 if every rung that can run here has a number. 1 if one has none. 2 if the request is impossible. 130
    if interrupted.
    """
    from ladder.cli import climb as climbing
    from ladder.report import output as ending
    from ladder.report import tables

    if resume is not None and out is not None and out.resolve() not in resume.resolve().parents:
        raise UserError(f"{resume}: --resume goes on in its own file: leave out --out")
    if without and (rungs or mode or recipe):
        raise UserError("--without leaves one rung out: leave out --rungs, --mode and --recipe")
    request = climbing.Request(
        workload=workload,
        ladder=ladder_name,
        rungs=list(without) or options.names(rungs),
        budget=budget,
        rounds=rounds,
        cycles=cycles,
        seed=seed,
        quick=quick,
        mode="leave-one-out" if without else mode,
        recipe=recipe,
        resume=resume,
        data=data,
        device=device,
        out=out or RESULTS,
        gpu_memory=gpu_memory,
    )
    paths: list[Path] = []
    result = climbing.run(request, quiet=as_json, on_file=paths.append)
    if as_json:
        click.echo(json.dumps(tables.data_of(result), indent=1, allow_nan=False))
    lacks = not result.complete or any(rung.status in ("failed", "skipped") for rung in result.rungs)
    ending.say_files(
        paths, as_json, lacks, drop=("rungs", "without", "seed", "mode", "quick", "cycles", "gpu_memory")
    )
    if not result.complete:
        sys.exit(130)
    if any(rung.status in OUT for rung in result.rungs):
        sys.exit(1)


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
@click.option(
    "--markdown",
    metavar="FILE",
    type=options.FILE,
    help="Write the table to this file.",
)
@click.option(
    "--csv",
    "csv_path",
    metavar="FILE",
    type=options.FILE,
    help="Write one row per rung to this file.",
)
@click.option(
    "--chart",
    "charts",
    metavar="FILE",
    multiple=True,
    type=options.FILE,
    help="Draw one result to this .png or .svg file; may be repeated.",
)
@report_page.html_option
@report_page.price_option
@click.option("--receipts", is_flag=True, help="Also show every receipt and every parity error of each rung.")
@click.option(
    "--all", "everything", is_flag=True, help="Show the best result of each machine, workload and ladder."
)
@click.option(
    "--publish",
    is_flag=True,
    help="Write results/charts, which README and docs show, again from the committed results, and remove the rest.",
)
@options.json_option
def report(
    paths: tuple[Path, ...],
    markdown: Path | None,
    csv_path: Path | None,
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
    from ladder.publish.regressions import judging
    from ladder.publish.regressions import report as comparisons
    from ladder.report import tables as reporting
    from ladder.studies import frame
    from ladder.studies.host import attach_host

    if publish:
        if paths or markdown or csv_path or charts or page or price or receipts or everything or as_json:
            raise UserError("--publish draws all committed results: leave out every other option")
        from ladder.publish import gallery

        for path in (written := gallery.publish(ROOT)):
            click.echo(path.relative_to(ROOT))
        removed, unknown = gallery.remove_stale(ROOT, written)
        for path in removed:
            click.echo(f"{path.relative_to(ROOT)}: removed, no committed result stands behind it")
        for path in unknown:
            click.echo(
                f"{path.relative_to(ROOT)}: no committed result stands behind it; stays, git lacks it",
                err=True,
            )
        return
    if page is not None:
        if markdown or csv_path or charts or receipts or everything or as_json:
            raise UserError("--html makes a page of its own: leave out every other option")
        report_page.write_page(page, paths, price)
        return
    if price is not None:
        raise UserError("--price is for --html")
    if everything and paths:
        raise UserError("--all is for results/ladder: leave out PATH")
    reporting.refuse_outputs([*filter(None, (markdown, csv_path)), *charts], paths)
    if len(paths) == 1 and comparisons.is_comparison(paths[0]):
        comparisons.show_result(judging.load(paths[0]), as_json, markdown, csv_path)
        return
    if paths and not (charts or receipts) and frame.report_stored(paths, as_json, markdown, csv_path):
        return
    if charts:
        from ladder.report import chart

        for path in charts:
            chart.kind_of(path)
    results, refused = reporting.collect(list(paths) or [RESULTS])
    results = [attach_host(each, ROOT / "results" / "host") for each in results]
    remarks: list[str] = []
    if not paths and not everything:
        results, remarks = reporting.of_this_machine(results)
    if charts and len(results) != 1:
        raise UserError(f"--chart draws one result, and {len(results)} were found; name one file")
    for line in refused:
        click.echo(f"ladder: {line}", err=True)
    if as_json:
        data = [reporting.data_of(result) for result in results]
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=1, allow_nan=False))
    else:
        for result in results:
            reporting.print_table(result)
            if receipts:
                reporting.print_checks(result)
    for line in remarks:
        click.echo(starting.named(line), err=as_json)
    if markdown is not None:
        files.write(markdown, "\n".join(reporting.markdown(result) for result in results))
    if csv_path is not None:
        files.write(csv_path, reporting.csv_text(results))
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
    *(cli_doctor.doctor, cli_explain.explain, listing.list_, listing.show, cli_recommend.recommend),
    *(cli_train.train, cli_convert.convert, cli_sample.sample),
    *(cli_merge.merge, cli_submit.submit),
    *(cli_regressions.bench_compare, cli_regressions.history, cli_export.export),
):
    main.add_command(command)
