"""The table of a run, as one `Table` for terminal, Markdown and page, and its rungs as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ladder.core import files, starting
from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.core.protocol import INSIDE, LESS_THAN
from ladder.core.records import write_whole
from ladder.core.text import clean_line, escape_markdown, format_count
from ladder.plan import modes
from ladder.report import checks, output
from ladder.report.view import Row, View, shown_top, turn_row, view
from ladder.results import sources
from ladder.results.combine.series import collect as collect
from ladder.results.combine.series import of_this_machine as of_this_machine
from ladder.results.combine.series import readable as readable
from ladder.results.combine.series import with_top as with_top
from ladder.results.run import Result
from ladder.results.words import answer, word
from ladder.show.table import Column, Table, render_csv, render_markdown, render_text

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
    fields: list[Field] = [
        ("entry" if shown.is_study else "rung", "text", 0, "title" if titles else "name"),
        ("ms/step", "ms", 0, lambda row: row.step_ms if row.status == "ok" else row.status),
        ("95% interval", "ms_interval", 32, "interval"),
    ]
    if shown.has_gpu_time:
        fields += [
            ("GPU ms", "ms", 4, "gpu.ms"),
            ("waiting\n(ms)", "ms", 5, "gpu.waiting_ms"),
            ("host ms", "ms", 10, "host_ms"),
            (f"{shown.versus}\n(GPU)", "amount", 2, lambda row: answer(row.gpu.seen) if row.gpu else None),
            ("interval\n(GPU)", "interval", 14, "gpu.gain"),
            (f"{shown.versus}\n(step)", "amount", 1, lambda row: answer(row.seen)),
            ("interval\n(step)", "interval", 15, "gain"),
        ]
    else:
        fields += [
            (shown.versus, "speedup", 2, lambda row: None if row.verdict in INSIDE else row.previous),
            ("interval", "interval", 26, "gain"),
            ("verdict", "text", 1, lambda row: word(row.seen)),
        ]
    if shown.is_study:
        several = len({row.updates for row in shown.rows}) > 1  # images a step
        fields += [
            (
                "ms/image",
                "ms",
                6,
                lambda row: 1000 / row.images_per_s if several and row.images_per_s else None,
            ),
            ("images/s", "amount", 7, "images_per_s"),
            ("GFLOP/step", "amount", 8, lambda row: row.flops and row.flops / 1e9),
            ("parameters, M", "amount", 9, lambda row: row.parameters and row.parameters / 1e6),
        ]
    elif shown.mode != modes.LEAVE_ONE_OUT:  # there the rows themselves are about the top
        fields += [
            ("gain at top", "amount", 20, shown_top),
            ("at the top", "interval", 28, "top_interval"),
            ("at the top\n(GPU)", "factor", 16, "gpu.top_gain"),
        ]
    fields += [
        ("advice", "text", 3, "advice"),
        ("total", "speedup", 0, "total"),
        ("total interval", "interval", 27, "total_interval"),
        ("total\n(GPU)", "speedup", 17, lambda row: row.gpu.total if row.gpu and row.total else None),
        ("main ms", "ms", 29, lambda row: None if shown.is_study else row.main_ms),
        ("host bound", "percent", 23, lambda row: None if shown.is_study else row.host_bound),
        ("in force" if shown.mode == modes.MISTAKES else "receipts", "text", 19, "receipts"),
        ("parity", "text", 19, "parity"),
        ("rejected", "count", 21, lambda row: row.rejected or None),
        ("images/s", "amount", 25, lambda row: None if shown.is_study else row.images_per_s),
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
        lines.append(f"article: {shown.reference}; another machine and another PyTorch, not a target")
    return lines


def print_table(result: Result) -> None:
    """Print the table; without room, the least important columns leave."""
    shown = view(result)
    heading = [f"{shown.title} on {shown.machine}", f"{shown.workload}; {shown.protocol}", *shown.marks]
    table = render_text(tabulate(shown), output.measure_width())
    click.echo(starting.name_program("\n".join([*heading, table, ""])))


def interim(result: Result, width: int) -> list[str]:
    """Return the lines of the table of a run that goes on: the rungs and their sentences."""
    shown = view(result)
    table = replace(tabulate(shown), notes=shown.sentences)
    done = max((len(rung.rounds) for rung in result.rungs), default=0)
    return [f"after {format_count(done, shown.unit)}:", *render_text(table, width).splitlines()]


def markdown(result: Result) -> str:
    """Return the table as a section of Markdown, with receipts and parity errors of every rung that has them."""
    shown = view(result)
    lines = [f"### {escape_markdown(shown.title)} on {escape_markdown(shown.machine)}", ""]
    lines += [f"{escape_markdown(shown.workload)}; {escape_markdown(shown.protocol)}", ""]
    lines += [f"**{escape_markdown(mark)}**\n" for mark in shown.marks]
    lines.append(render_markdown(tabulate(shown, titles=True)))
    lines += [f"\n{render_markdown(table)}" for table in checks.tabulate_checks(result)]
    return "\n".join(lines) + "\n"


def print_checks(result: Result) -> None:
    """Print every receipt, every parity error and the tiles of a run."""
    tables = [render_text(table, output.measure_width()) for table in checks.tabulate_checks(result)]
    click.echo("\n\n".join(tables or ["no receipts and no parity check in this result"]) + "\n")


def data_of(result: Result) -> Plain:
    """Return a run with every figure that follows from it, for programs; an unknown value is None."""
    return write_whole(result)


# The columns of CSV behind those of the whole run: name of the column, and where a row has its value.
CSV_ROW = {
    "rung": "name", "title": "title", "mode": "", "status": "status", "reason": "reason", "step_ms": "step_ms",
    "interval_low_ms": "interval.0", "interval_high_ms": "interval.1", "speedup_previous": "previous",
    "speedup_previous_low": "gain.0", "speedup_previous_high": "gain.1", "verdict": "verdict",
    "gain_at_top": "top_gain", "advice": "advice", "speedup_total": "total", "main_ms": "main_ms",
    "main_speedup_total": "main_total", "host_bound": "host_bound", "images_per_s": "images_per_s",
    "peak_gib": "memory", "article_ms": "article_ms", "article_speedup_total": "article_total",
    "speedup_total_low": "total_interval.0", "speedup_total_high": "total_interval.1",
    "gain_at_top_low": "top_interval.0", "gain_at_top_high": "top_interval.1", "noise_floor": "floor",
    "receipts": "receipts", "parity": "parity", "parity_of_budget": "parity_share", "rejected_visits": "rejected",
    "allocated_gib": "allocated", "device_gib": "device", "torch": "", "cuda": "", "triton": "",
    "not_publishable": "", "gpu_ms": "gpu.ms", "gpu_interval_low_ms": "gpu.interval.0",
    "gpu_interval_high_ms": "gpu.interval.1", "waiting_ms": "gpu.waiting_ms", "gpu_speedup_previous": "gpu.previous",
    "gpu_speedup_previous_low": "gpu.gain.0", "gpu_speedup_previous_high": "gpu.gain.1", "gpu_verdict": "gpu.verdict",
    "gpu_less_than": "gpu.below", "less_than": "below", "gpu_speedup_total": "gpu.total",
    "gpu_noise_floor": "gpu.floor", "gpu_gain_at_top": "gpu.top_gain", "gpu_gain_at_top_low": "gpu.top_interval.0",
    "gpu_gain_at_top_high": "gpu.top_interval.1",
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
                cells[name] = clock.below if clock and clock.verdict == LESS_THAN else None
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
        if real.is_file() and any(real == each.resolve() for each in inputs):
            raise UserError(
                f"{path}: it is the result that is read, and would be overwritten; name another file"
            )
        if behind.count(real) > 1 and (real.is_file() or not real.exists()):
            raise UserError(f"{path}: two outputs cannot go into one file; name another one")
        if real.is_file() or not real.exists():
            files.refuse_unwritable(real.parent)
