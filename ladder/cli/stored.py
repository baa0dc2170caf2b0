"""The commands that read stored results and measure nothing: report, explain, recommend, compare, validate, merge.

`ladder history` is here, too; it measures only with `--confirm`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ladder.core import files, locks, options, starting, text
from ladder.core.errors import UserError
from ladder.core.paths import ROOT

RESULTS, EVERYTHING = ROOT / "results" / "ladder", ROOT / "results"
REPORTS = EVERYTHING / "reports"
UNNAMED = ".html"  # stands for a page that is named after the result


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=1, allow_nan=False))


@click.command(
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
@click.option("--chart", "charts", metavar="FILE", multiple=True, type=options.FILE,
              help="Draw one result to this .png or .svg file; may be repeated.")  # fmt: skip
@click.option("--html", "page", metavar="[FILE.html]", is_flag=False, flag_value=UNNAMED,
              help="Write one self-contained page of everything about one machine and workload. [default:"
              " in results/reports]")  # fmt: skip
@click.option("--price", metavar="PRICE/h",
              help="With --html: the price of an hour of this machine, in any currency: 2.5/h.")  # fmt: skip
@click.option("--receipts", is_flag=True, help="Also show every receipt and every parity error of each rung.")
@click.option("--all", "everything", is_flag=True,
              help="Show the best result of each machine, workload and ladder.")  # fmt: skip
@click.option("--publish", is_flag=True,
              help="Write results/charts, which README and docs show, again from the committed results,"
              " and remove the rest.")  # fmt: skip
@options.json_option
def report(
    paths: tuple[Path, ...], markdown: Path | None, csv: Path | None, charts: tuple[Path, ...],
    page: str | None, price: str | None, receipts: bool, everything: bool, publish: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show stored results as tables, charts or one HTML page.

    A file of any command gets a table, and a folder the best run of each workload. Without PATH, show the newest
    result of this machine, or of another machine if this one has none. In a pipe or a file the table has the columns
    that fit 120 characters, or as many as the variable COLUMNS says. The files of --markdown and --csv
    have all columns.

    Exit status: 0 if done. 1 if a file was refused. 2 if the request is impossible.
    """
    from ladder.core.records import write_whole
    from ladder.publish import gallery
    from ladder.report import chart, tables
    from ladder.results.combine import series
    from ladder.studies import frame
    from ladder.studies.host import attach_host

    shown = markdown or csv or charts or receipts or everything or as_json
    if publish:
        if paths or page or price or shown:
            raise UserError("--publish draws all committed results: leave out every other option")
        written = gallery.publish(ROOT)
        removed, unknown = gallery.remove_stale(ROOT, written)
        stale = "no committed result stands behind it"
        lines = [*((path, "") for path in written), *((path, f": {stale}: removed") for path in removed)]
        for path, state in (*lines, *((path, f": {stale}: stays, git lacks it") for path in unknown)):
            click.echo(f"{path.relative_to(ROOT)}{state}")
        return
    if page is not None:
        if shown:
            raise UserError("--html makes a page of its own: leave out every other option")
        write_page(page, paths, price)
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
    results, refused = series.collect(list(paths) or [RESULTS])
    results = [attach_host(each, EVERYTHING / "host") for each in results]
    remarks: list[str] = []
    if not paths and not everything:
        results, remarks = series.of_this_machine(results)
    if charts and len(results) != 1:
        raise UserError(f"--chart draws one result, and {len(results)} were found; name one file")
    for line in refused:
        click.echo(f"ladder: {line}", err=True)
    if as_json:
        data = [write_whole(result) for result in results]
        print_json(data[0] if len(data) == 1 else data)
    for result in results if not as_json else ():
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


def write_page(page: str, paths: Sequence[Path], price: str | None) -> None:
    """Write the page of these files and print its path.

    A value of --html that does not end in .html is the first of the files, as in `--html RESULT.json`.

    Raises:
        UserError: a file is no result, does not belong to the others, or the page cannot be written.
    """
    from ladder.publish import report as reports
    from ladder.report import recommend, tables

    first = Path(page).expanduser()
    into = first if first.suffix.lower() in (".html", ".htm") else None
    named = [*paths] if into or page == UNNAMED else [first, *paths]
    if named and named[0].suffix != ".json" and not named[0].exists():
        name = text.clean_line(page)
        raise UserError(f"--html {name}: the name of a page ends in .html, and no result has this name")
    tables.refuse_outputs([into] if into else [], named)
    inputs = reports.find_inputs(named, EVERYTHING, None if price is None else recommend.price_of(price))
    into = into or REPORTS / f"{reports.name_page(inputs.main)}.html"
    reports.write_report(inputs, into)
    click.echo("\n".join([text.clean_line(inputs.whose), *inputs.shown.marks]))
    click.echo(f"page: {starting.shorten_path(into)}")


@click.command(
    epilog="""\b
Examples:
  ladder explain data_loading fused_act                     two rungs of the best result of this machine
  ladder explain baseline fused_act -w article-b32          of the best result of a workload
  ladder explain bf16 fused_act RESULT.json --markdown explained.md
  ladder explain a.json b.json                              the tops of two results
  ladder explain a.json:fused_act b.json:fused_act --json   a rung of each"""
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.argument("file", metavar="[FILE]", required=False, type=options.FILE)
@click.option("-w", "--workload", metavar="NAME|FILE",
              help="The workload of the stored results to choose from. [default: any]")  # fmt: skip
@click.option("--markdown", metavar="FILE", type=options.FILE, help="Write the explanation to this file.")
@options.json_option
def explain(
    before: str, after: str, file: Path | None, workload: str | None, markdown: Path | None, as_json: bool
) -> None:
    """Explain from stored profiles why B takes another time than A.

    No GPU is needed. A and B are rungs of one result, or two result files; a file stands for its top, and FILE:RUNG
    for a rung. Without FILE, the best stored result with both profiles is read, of this machine if it has one. The
    table has milliseconds and launches by category of kernels. A difference below the noise floor is told as "no
    difference", an open verdict as "not decided"; neither is explained. A run on a GPU stores a profile of each rung.
    Two commits are measured and explained by `ladder bench-compare`.
    """
    from ladder.report import explain as explaining
    from ladder.report import output, tables
    from ladder.results import ranking

    pair = explaining.find_sides(before, after, file, workload, RESULTS)
    if markdown is not None:
        tables.refuse_outputs([markdown], [each.path for each in pair])
    if file is None and explaining.split_name(before)[0] is None:
        machine, here = pair[0].result.machine, ranking.machines_here()
        if machine.name not in here:
            whose = text.clean_line(machine.gpu or machine.cpu)
            click.echo(f"no profile of both on this machine ({here[0]}) yet: this is {whose}'s", err=True)
    answer = explaining.explain(*pair)
    if as_json:
        print_json(explaining.write_data(answer))
    else:
        click.echo(explaining.render_terminal(answer, output.measure_width()))
    if markdown is not None:
        files.write_file(markdown, explaining.render_page(answer))


@click.command(
    epilog="""\b
Examples:
  ladder recommend                                      this machine's result, or the nearest one that is stored
  ladder recommend -w article --price 2.5/h             with the money that a whole training costs
  ladder recommend --model my_pair.py --set width=64    of your own networks
  ladder recommend RESULT.json --images 5M              from one file, for a shorter training
  ladder recommend --recipe best.yaml                   then `ladder train --recipe best.yaml --out runs/best`"""
)
@click.argument("path", metavar="[FILE]", required=False, type=options.FILE)
@click.option("-w", "--workload", metavar="NAME|FILE",
              help="Look for results of this workload alone. [default: any]")  # fmt: skip
@options.model_options[0]
@options.model_options[1]
@click.option("--images", metavar="NUMBER", default="25M", show_default=True,
              help="Images of the whole training: 25M, 200k or 1000000.")  # fmt: skip
@click.option("--price", metavar="PRICE/h",
              help="The price of an hour of this machine, in any currency: 2.5/h.")  # fmt: skip
@click.option("--recipe", metavar="FILE", type=options.FILE,
              help="Write the recommended recipe to this YAML file.")  # fmt: skip
@click.option("--markdown", metavar="FILE", type=options.FILE, help="Write the recommendation to this file.")
@options.json_option
def recommend(
    path: Path | None, workload: str | None, model: str | None, settings: tuple[str, ...], images: str,
    price: str | None, recipe: Path | None, markdown: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say which rungs to adopt, from stored results.

    Each rung gets a word, why, and what it saves:

    \b
    ADOPT:          it helps.
    SKIP:           it costs time.
    NO DIFFERENCE:  the run rules out a difference of 5% or more.
    undecided:      the run cannot tell; a command that can is named.
    BROKEN:         it has no valid time, since it failed, lost parity,
                    showed no receipt or ran out of memory.

    Nothing is measured. The advice comes from a stored leave-one-out run where there is one, else from the staircase.
    Without FILE it is of this machine's newest result that may be quoted, or else of its newest. If this machine has
    none, it is of another machine with the same GPU, then with any GPU. The first line names the machine.
    """
    from ladder.engine import models
    from ladder.engine.pool import Pool
    from ladder.plan import catalog
    from ladder.report import advising, tables
    from ladder.report import recommend as recommending
    from ladder.results.combine import series

    number = recommending.images_of(images)
    hourly = None if price is None else recommending.price_of(price)
    pair = models.read_request(model, settings, workload)
    if path is not None and (workload is not None or pair):
        raise UserError("a FILE has its workload: leave out --workload and --model")
    if recipe is not None and recipe.suffix not in (".yaml", ".yml"):
        raise UserError(f"--recipe {recipe}: a recipe's file ends in .yaml")
    tables.refuse_outputs([*filter(None, (recipe, markdown))], [path] if path else [])
    if path:
        chosen = series.read_nearest(path)
    elif pair:
        with Pool() as pool:
            chosen = series.find_nearest(RESULTS, (pair.name, models.identify_model(pair, pool)))
    else:
        chosen = series.find_nearest(RESULTS, catalog.load_workload(workload) if workload else None)
    runs = {advising.STAIRCASE: chosen.staircase, advising.LEFT_OUT: chosen.left_out}
    named = {kind: starting.shorten_path(each[0]) for kind, each in runs.items() if each}
    staircase, left_out = (each and each[1] for each in runs.values())
    sources = advising.Sources(staircase, left_out, named if chosen.here else {})
    advice = recommending.recommend(sources, number, hourly)
    if recipe is not None:
        if advice.recipe is None:
            raise UserError(f"--recipe: {recommending.NO_RECIPE}")
        files.write_file(recipe, recommending.recipe_yaml(advice, chosen.whose))
    if markdown is not None:
        files.write_file(markdown, recommending.render_advice(advice, chosen.whose))
    if as_json:
        print_json(recommending.write_data(advice, chosen.whose, named))
    else:
        other_code = starting.shorten_path(chosen.other_code) if chosen.other_code else None
        page = recommending.render_terminal(advice, chosen.whose, named, other_code)
        click.echo(starting.name_program(page))
    for written in filter(None, (recipe, markdown)):
        click.echo(starting.shorten_path(written), err=as_json)


@click.command(
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

    if not any(path.exists() or path.suffix == ".json" for path in (before, after)):
        command = starting.name_program(f"`ladder bench-compare --base {before} --head {after}`")
        raise UserError(f"{before}, {after}: no files of results; two commits are compared by {command}")
    if comparing.show(before, after, anyway, as_json):
        sys.exit(1)


@click.command(
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
        print_json([{"path": each.path, "problem": each.problem, "marks": each.marks} for each in judged])
    else:
        for each in judged:
            click.echo(f"{each.path}: {each.verdict}")
        click.echo(f"{len(judged) - refused} accepted, {refused} refused")
    sys.exit(bool(refused))


@click.command(
    epilog="""\b
Examples:
  ladder merge a.json b.json                    the table of all generations together; nothing is written
  ladder merge a.json b.json --out whole.json   a result like any other; a.json and b.json are no longer needed"""
)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=options.FILE)
@click.option("--out", metavar="FILE", type=options.FILE, help="Write the result to this file.")
@click.option("--anyway", is_flag=True,
              help="Also merge generations of another CPU or core count, and of unknown code.")  # fmt: skip
@options.json_option
def merge(paths: tuple[Path, ...], out: Path | None, anyway: bool, as_json: bool) -> None:
    """Merge several runs into one result, and judge it anew.

    The runs are of `ladder run` or of `ladder scale`; a single FILE is judged again. All runs must agree in GPU,
    software, code, workload, ladder, mode and timed cycles; a run may cover fewer rungs, ways or numbers of GPUs. Code
    agrees if kernels, model, rungs and timing code are equal, at any commit. Samples are kept, and everything else is
    computed again. No file is deleted, and only a single FILE is overwritten.
    """
    from ladder.core.records import write_record, write_whole
    from ladder.report import output, tables
    from ladder.results import judging, loading, store
    from ladder.results.combine import merging
    from ladder.studies import frame, scale

    def refuse_out() -> None:
        if problem := loading.name_problem(out):
            raise UserError(f"--out {out}: {problem}")
        if out.exists() and not (len(paths) == 1 and out.samefile(paths[0])):
            raise UserError(f"--out {out}: is there already; name a new file")

    if out is not None:
        refuse_out()
    scaled = [path for path in paths if (stored := frame.open_stored(path)) and stored[0] is scale.STUDY]
    if scaled and (others := [path for path in paths if path not in scaled]):
        raise UserError(f"{scaled[0]} is of ladder scale, and {others[0]} is not: merge files of one command")
    if scaled:
        points = scale.join([(path, frame.read_file(scale.STUDY, path)) for path in paths], anyway)
        result, derived = write_record(points), frame.write_derived(scale.STUDY, points)
    else:
        run = merging.merge(paths, anyway)
        whole = judging.derive_result(run)
        result, derived = write_record(run), write_whole(whole)
    written: list[Path] = []
    if out is not None:
        size = len(json.dumps(text.fit_texts(result), indent=1)) + 1
        if size > loading.MOST_BYTES:
            raise UserError(
                f"--out {out}: {size} bytes, and a result has at most {loading.MOST_BYTES}: merge fewer"
            )
        holder = text.make_slug(points.machine.name) if scaled else ""  # as its command holds a folder
        with locks.folder_lock(out.parent, holder):  # no run writes there meanwhile
            refuse_out()
            store.write(out, result)
        written = [out, *(frame.write_pages(scale.STUDY, points, out) if scaled else [])]
    if as_json:
        print_json(derived)
    elif scaled:
        click.echo(frame.render_terminal(scale.STUDY, points))
    else:
        tables.print_table(whole)
    if out is None and not as_json:
        click.echo("not written: --out FILE keeps it")
    output.say_files(written, as_json)


@click.command(
    epilog="""\b
Examples:
  ladder history                      what became slower, on every machine with results
  ladder history --confirm 2          measure the two largest candidates of this machine
  ladder history --threshold 0.5      smaller steps too, in percent"""
)
@click.option("--results", "folder", metavar="DIR", type=options.FOLDER,
              help="Folder of asv's results. [default: results/asv]")  # fmt: skip
@click.option("--compared", metavar="DIR", type=options.FOLDER,
              help="Folder of bench-compare's results. [default: results/compare]")  # fmt: skip
@click.option("--branch", default="HEAD", show_default=True, help="Branch whose commits form the history.")
@click.option("--threshold", metavar="PERCENT", type=options.FloatRange(0, 100), default=1.0,
              show_default=True, help="Steps below this are left out.")  # fmt: skip
@click.option("--confirm", metavar="N", type=options.IntRange(0, 20), default=0,
              help="Measure up to N candidates side by side. [default: none]")  # fmt: skip
@click.option("--budget", metavar="MINUTES", type=options.FloatRange(0, min_open=True),
              help="Minutes for each candidate. [default: 10]")  # fmt: skip
@click.option("--issues", metavar="FILE", type=options.FILE,
              help="Write an issue for each confirmed regression to this file, as JSON.")  # fmt: skip
@options.json_option
def history(
    folder: Path | None, compared: Path | None, branch: str, threshold: float, confirm: int,
    budget: float | None, issues: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """List lasting slowdowns in asv's history.

    A step of more than 1% that lasts is a candidate. `bench-compare` of the two commits around it confirms or refutes
    it. A step at a change of the driver is only labelled. benches/known-regressions.yaml silences accepted slowdowns.

    Exit status: 1 if a regression is confirmed, 2 if the request is impossible.
    """
    from ladder.publish.history import screening
    from ladder.report import tables
    from ladder.studies.commits import checkouts, known

    if budget is not None and not confirm:
        raise UserError("--budget is for --confirm")
    tables.refuse_outputs([issues] if issues else [], [])
    if compared is not None and not compared.is_dir():
        raise UserError(f"--compared {compared}: no such folder")
    checkouts.commit_of(branch, "--branch")
    entries = known.read_entries()
    where = folder or EVERYTHING / "asv", compared or EVERYTHING / "compare"
    steps, lines = screening.screen_accepted(*where, entries, branch, threshold / 100)
    tell = lambda line: click.echo(text.escape_controls(line), err=True)  # noqa: E731
    if confirm and screening.confirm_steps(steps, confirm, where[1], budget, tell):
        steps, lines = screening.screen_accepted(*where, entries, branch, threshold / 100)
    lines += known.list_idle(entries)
    if issues is not None:
        files.write_file(issues, json.dumps(screening.write_issues(steps), indent=1) + "\n")
    if as_json:
        print_json({"steps": [screening.write_step(step) for step in steps], "notes": lines})
    else:
        click.echo(screening.render_text(steps, lines))
    sys.exit(any(step.status == screening.CONFIRMED for step in steps))
