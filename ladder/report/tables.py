"""The tables of a run for terminal, Markdown and page: its rungs, its receipts and parity; and its rungs as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from ladder.core import files, starting
from ladder.core.errors import UserError
from ladder.core.protocol import AMBIGUOUS, INSIDE, LESS_THAN, TOO_FEW
from ladder.core.text import clean_line, escape_markdown, fine_factor, format_count
from ladder.plan import modes
from ladder.report import output, tiles
from ladder.report.view import TITLE, Row, View, derive_share, shown_top, turn_row, view
from ladder.results import sources
from ladder.results.run import Result
from ladder.results.words import answer, word
from ladder.show.table import Column, Table, join_lines, render_csv, render_markdown, render_text
from ladder.stats.rounds_budget import LEAST_ROUNDS

Field = tuple[str, str, int, str | Callable[[Row], Any]]  # title, kind, priority, and what it shows of a row
MARKED = "each entry trains another model; none is an optimization, and none counts in a ladder"
ABOUT = {
    modes.MISTAKES: "times: the clean entry is 1, by either clock; GPU ms: from one step of each kind",
    modes.LEVERS: f"times: the unchanged model is 1, by either clock; {MARKED}",
    modes.LEAVE_ONE_OUT: "each row: the whole ladder without that rung; gain at top: what the rung gains there",
}


def tabulate(shown: View, titles: bool = False) -> Table:
    """Return the table of a run with the columns that have something in them, and the lines below it.

    Args:
        titles: whether a row is named by the rung's title instead of its name.
    """
    versus, is_study = shown.versus, shown.is_study
    fields: list[Field] = [
        ("entry" if is_study else "rung", "text", 0, "title" if titles else "name"),
        ("ms/step", "ms", 0, lambda row: row.step_ms if row.status == "ok" else row.status),
        ("95% interval", "ms_interval", 32, "interval"),
    ]
    if shown.has_gpu_time:
        fields += [
            ("GPU ms", "ms", 4, "gpu.ms"),
            ("waiting\n(ms)", "ms", 5, "gpu.waiting_ms"),
            ("host ms", "ms", 10, "host_ms"),
            (f"{versus}\n(GPU)", "amount", 2, lambda row: answer(row.gpu.seen) if row.gpu else None),
            ("interval\n(GPU)", "interval", 14, "gpu.seen.interval"),
            (f"{versus}\n(step)", "amount", 1, lambda row: answer(row.seen)),
            ("interval\n(step)", "interval", 15, "seen.interval"),
        ]
    else:
        fields += [
            (versus, "speedup", 2, lambda row: None if row.seen.verdict in INSIDE else row.seen.ratio),
            ("interval", "interval", 26, "seen.interval"),
            ("verdict", "text", 1, lambda row: word(row.seen)),
        ]
    if is_study:
        per_image = len({row.rung.updates for row in shown.rows}) > 1  # the entries have other images a step
        fields += [("ms/image", "ms", 6, "ms_per_image")] if per_image else []
        fields += [
            ("images/s", "amount", 7, "rung.images_per_s"),
            ("GFLOP/step", "amount", 8, "gflop"),
            ("parameters, M", "amount", 9, "million_parameters"),
        ]
    elif shown.mode != modes.LEAVE_ONE_OUT:  # there the rows themselves are about the top
        fields += [
            ("gain at top", "amount", 20, shown_top),
            ("at the top", "interval", 28, "top_interval"),
            ("at the top\n(GPU)", "factor", 16, "gpu.top_gain"),
        ]
    fields += [
        ("advice", "text", 3, lambda row: explain_advice(row, shown.mode)),
        ("total", "speedup", 0, "total"),
        ("total interval", "interval", 27, "total_interval"),
        ("total\n(GPU)", "speedup", 17, lambda row: row.gpu.total if row.gpu and row.total else None),
        ("main ms", "ms", 29, lambda row: None if is_study else row.rung.main_ms),
        ("host bound", "percent", 23, lambda row: None if is_study else row.rung.host_bound),
        ("in force" if shown.mode == modes.MISTAKES else "receipts", "text", 19, "receipts"),
        ("parity", "text", 19, "parity"),
        ("rejected", "count", 21, lambda row: row.rejected or None),
        ("images/s", "amount", 25, lambda row: None if is_study else row.rung.images_per_s),
        (shown.memory, "amount", 24, "memory"),
        ("allocated GiB", "amount", 31, "allocated"),
        ("device GiB", "amount", 22, "device"),
        ("article ms", "amount", 30, "article_ms"),
        ("article total", "speedup", 18, "article_total"),
    ]
    rows = [
        [find_figure(row, value) if isinstance(value, str) else value(row) for *_, value in fields]
        for row in (turn_row(row, shown) for row in shown.rows)
    ]
    columns = [Column(title, kind, priority) for title, kind, priority, _ in fields]
    return Table(columns, rows, notes=list_notes(shown)).drop_empty()


def explain_advice(row: Row, mode: str) -> str:
    """Return the advice with what decided it: on a staircase the gain at the top, as the row's own may be undecided."""
    if not row.advice_clock:
        return row.advice
    if mode == modes.LEAVE_ONE_OUT:
        return f"{row.advice} by {row.advice_clock}"
    gain = row.top_gain if row.advice_clock == modes.STEP else find_figure(row, "gpu.top_gain")
    return f"{row.advice}: {row.advice_clock} {fine_factor(gain)} at top"


def find_figure(row: Row, path: str) -> Any:
    """Return a field of a row, or of what it has; an end of an interval is a number. None where there is none."""
    value: Any = row
    for name in path.split("."):
        value = None if value is None else value[int(name)] if name.isdigit() else getattr(value, name)
    return value


def list_notes(shown: View) -> list[str]:
    """Return the lines below the table: a sentence on each rung, the noise, and what a reader must know."""
    lines = [*shown.sentences, *shown.noise, *shown.remarks]
    lines += [ABOUT[shown.mode]] if shown.mode in ABOUT else []
    if any(row.advice for row in shown.rows) and shown.mode != modes.LEAVE_ONE_OUT:
        lines.append(
            "at the top, advice: from the newest leave-one-out run of this machine, software and code"
        )
    if any(row.article_ms for row in shown.rows):
        lines.append(
            f"article: {TITLE}, {shown.reference}; another machine and another PyTorch, not a target"
        )
    return lines


def print_table(result: Result) -> None:
    """Print the table; without room, the least important columns leave."""
    shown = view(result)
    heading = [f"{shown.title} on {shown.machine}", f"{shown.workload}; {shown.protocol}", *shown.marks]
    table = render_text(tabulate(shown), output.measure_width())
    click.echo(starting.name_program("\n".join([*heading, table, ""])))


def describe_interim(result: Result) -> list[str]:
    """Return what a run that goes on knows: its times alone, until there are verdicts; then who lacks one, and why."""
    shown = view(result)
    rows = [row for row in shown.rows if row.status == "ok"]
    done = format_count(max((len(rung.rounds) for rung in result.rungs), default=0), shown.unit)
    verdicts = {
        row.name: modes.choose_advice(row.gpu.seen.verdict if row.gpu else "", row.seen.verdict)
        for row in rows
    }
    if not {*verdicts.values()} - {"", TOO_FEW}:
        columns = [Column("rung"), Column("ms/step", "ms"), Column("GPU ms", "ms")]
        times = [[row.name, row.step_ms, row.gpu and row.gpu.ms] for row in rows]
        table = render_text(Table(columns, times).drop_empty())
        return [f"after {done}, times alone (verdicts need {LEAST_ROUNDS}):", *table.splitlines()]
    judged = [verdict for verdict in verdicts.values() if verdict]
    undecided = [name for name, verdict in verdicts.items() if verdict in (AMBIGUOUS, TOO_FEW)]
    line = f"after {done}: {len(judged) - len(undecided)} of {format_count(len(judged), 'verdict')}"
    more = f"undecided: {', '.join(undecided)}" if undecided else "more generations narrow the intervals"
    return [f"{line}; {more}"]


def markdown(result: Result) -> str:
    """Return the table as a section of Markdown, with receipts and parity errors of every rung that has them."""
    shown = view(result)
    lines = [f"### {escape_markdown(shown.title)} on {escape_markdown(shown.machine)}", ""]
    lines += [f"{escape_markdown(shown.workload)}; {escape_markdown(shown.protocol)}", ""]
    lines += [f"**{escape_markdown(mark)}**\n" for mark in shown.marks]
    lines.append(render_markdown(tabulate(shown, titles=True)))
    lines += [f"\n{render_markdown(table)}" for table in tabulate_checks(result)]
    return "\n".join(lines) + "\n"


# --- receipts and parity ----------------------------------------------------------------------------------------------

RECEIPTS = (Column("rung"), Column("receipt of"), Column("engaged"), Column("evidence"))
PARITY = (
    Column("rung"), Column("phase"), Column("quantity"), Column("error", "error"), Column("budget", "error"),
    Column("nearest tensor", "text", 3), Column("its error", "error", 2), Column("its budget", "error", 2),
    Column("of budget", "decimal"),
)  # fmt: skip
CHOICES = (Column("op"), Column("call"), Column("in", "text", 1), Column("choice"))


def tabulate_checks(result: Result) -> list[Table]:
    """Return every receipt, every parity error, and the tiles that the kernels ran with, as far as there are any."""
    receipts, errors, notes = list[list[Any]](), list[list[Any]](), list[tuple[str, str]]()
    for rung in result.rungs:
        for name, receipt in (rung.receipts or {}).items():
            engaged = "ok" if receipt.engaged else "not engaged"
            receipts += [[rung.name, name, engaged, line] for line in receipt.lines]
        if not (parity := rung.parity):
            continue
        for phase, quantities in (parity.phases or {}).items():
            for name, entry in quantities.items():
                share, nearest = derive_share(entry), (entry.nearest_error, entry.nearest_budget)
                of_budget = "not judged" if share is None else share
                row = [rung.name, phase, name, entry.error, entry.budget, entry.nearest, *nearest, of_budget]
                errors.append(row)
        lines = [] if parity.verdict == "ok" else [parity.verdict, *parity.problems]
        if reference := parity.reference:
            lines += [f"reference: FP64 on {reference.made_on}, batch {reference.batch}", *reference.notes]
        if budget := parity.budget:
            lines.append(f"budget: {budget.factor:g} times the spread of plain PyTorch in {budget.precision}")
        notes += [(rung.name, line) for line in lines]
    choices = []
    for each in result.choices or []:
        facts = msgspec.to_builtins(each)
        known = (name for name in tiles.FACTS if facts.get(name) is not None)
        choice = each.entry or ", ".join(f"{name} {facts[name]}" for name in known)
        choices.append([each.op, each.case or each.direction, ", ".join(each.rungs), choice])
    about = "Parity: errors of the whole, and of the tensor nearest to its budget"
    tables = [
        Table(RECEIPTS, receipts, "Receipts"), Table(PARITY, errors, about, join_lines(notes)),
        Table(CHOICES, choices, "Tiles that the kernels ran with"),
    ]  # fmt: skip
    return [table for table in tables if table.rows or table.notes]


def print_checks(result: Result) -> None:
    """Print every receipt, every parity error and the tiles of a run."""
    tables = [render_text(table, output.measure_width()) for table in tabulate_checks(result)]
    click.echo("\n\n".join(tables or ["no receipts and no parity check in this result"]) + "\n")


# --- CSV --------------------------------------------------------------------------------------------------------------

# The columns of CSV behind those of the whole run: name of the column, and where a row has its value.
CSV_ROW = {
    "rung": "name", "title": "title", "mode": "", "status": "status", "reason": "reason", "step_ms": "step_ms",
    "interval_low_ms": "interval.0", "interval_high_ms": "interval.1", "speedup_previous": "seen.ratio",
    "speedup_previous_low": "seen.interval.0", "speedup_previous_high": "seen.interval.1",
    "verdict": "seen.verdict", "gain_at_top": "top_gain", "advice": "advice", "speedup_total": "total",
    "main_ms": "rung.main_ms", "main_speedup_total": "main_total", "host_bound": "rung.host_bound",
    "images_per_s": "rung.images_per_s", "peak_gib": "memory", "article_ms": "article_ms",
    "article_speedup_total": "article_total", "speedup_total_low": "total_interval.0",
    "speedup_total_high": "total_interval.1", "gain_at_top_low": "top_interval.0",
    "gain_at_top_high": "top_interval.1", "noise_floor": "floor", "receipts": "receipts", "parity": "parity",
    "parity_of_budget": "parity_share", "rejected_visits": "rejected", "allocated_gib": "allocated",
    "device_gib": "device", "torch": "", "cuda": "", "triton": "", "not_publishable": "", "gpu_ms": "gpu.ms",
    "gpu_interval_low_ms": "gpu.interval.0", "gpu_interval_high_ms": "gpu.interval.1",
    "waiting_ms": "gpu.waiting_ms", "gpu_speedup_previous": "gpu.seen.ratio",
    "gpu_speedup_previous_low": "gpu.seen.interval.0", "gpu_speedup_previous_high": "gpu.seen.interval.1",
    "gpu_verdict": "gpu.seen.verdict", "gpu_less_than": "gpu.seen.below", "less_than": "seen.below",
    "gpu_speedup_total": "gpu.total", "gpu_noise_floor": "gpu.floor", "gpu_gain_at_top": "gpu.top_gain",
    "gpu_gain_at_top_low": "gpu.top_interval.0", "gpu_gain_at_top_high": "gpu.top_interval.1",
}  # fmt: skip


def csv_text(many: Sequence[Result]) -> str:
    """Return all rungs of all results, a row each, for a spreadsheet: full precision, text that is no formula."""
    rows, columns = [], list[Column]()
    for result in many:
        machine, shown = result.machine, view(result)
        whole = {
            "machine": machine.name, "gpu": machine.gpu, "workload": result.workload["name"],
            "ladder": result.ladder.name, "started": result.started, "commit": " ".join(sources.commits(result)),
            "quick": result.protocol.quick, "complete": result.complete, "baseline": result.baseline,
        }  # fmt: skip
        behind = {
            "mode": shown.mode, "torch": machine.torch, "cuda": machine.cuda, "triton": machine.triton,
            "not_publishable": "; ".join(shown.marks),
        }  # fmt: skip
        columns = [Column(name) for name in (*whole, *CSV_ROW)]
        for row in shown.rows:
            cells = {name: find_figure(row, path) if path else behind[name] for name, path in CSV_ROW.items()}
            for name, clock in (("less_than", row), ("gpu_less_than", row.gpu)):
                cells[name] = clock.seen.below if clock and clock.seen.verdict == LESS_THAN else None
            rows.append([_clean_cell(cell) for cell in (whole | cells).values()])
    return render_csv([Table(columns, rows)])


def _clean_cell(cell: Any) -> Any:
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return float(f"{cell:.12g}")  # the last digits of a derived figure depend on the processor
    return clean_line(cell) if isinstance(cell, str) else cell


def refuse_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse a file that is read, that is named for two outputs, or that cannot be written. UserError, one line."""
    behind = [path.resolve() for path in outputs]
    for path, real in zip(outputs, behind, strict=True):
        if real.exists() and not real.is_file():
            continue  # a device, a pipe
        if real.is_file() and any(real == each.resolve() for each in inputs):
            raise UserError(
                f"{path}: it is the result that is read, and would be overwritten; name another file"
            )
        if behind.count(real) > 1:
            raise UserError(f"{path}: two outputs cannot go into one file; name another one")
        files.refuse_unwritable(real.parent)
