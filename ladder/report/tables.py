"""The tables of results: in the terminal, as Markdown and as CSV, escaped for where they go."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladder.base import files, starting
from ladder.base.errors import UserError
from ladder.base.text import (
    aligned,
    amount,
    between,
    bounds,
    counted,
    escaped,
    factor,
    fine_factor,
    ms,
    piped,
    plain,
)
from ladder.core.records import write_whole
from ladder.plan import modes
from ladder.report import beside, checks, output
from ladder.report.errorbars import Interval
from ladder.report.view import (
    Row,
    View,
    shown_gain,
    shown_top,
    shown_verdict,
    view,
)
from ladder.results import sources
from ladder.results.combine.series import collect as collect
from ladder.results.combine.series import of_this_machine as of_this_machine
from ladder.results.combine.series import readable as readable
from ladder.results.combine.series import with_top as with_top
from ladder.results.run import Result
from ladder.results.types import Plain, head
from ladder.results.values import LESS_THAN
from ladder.results.words import answer


def columns_of(shown: View) -> list[tuple[str, Any]]:
    """Return (heading, cell of a row) for terminal and Markdown: the columns with something in them."""
    leave_out = shown.mode == modes.LEAVE_ONE_OUT  # there the rows themselves are about the top
    around = bounds if shown.generations else between
    step = [
        ("ms/step", lambda r: ms(r.step_ms) if r.status == "ok" else r.status),
        ("95% interval", lambda r: f"{ms(r.interval[0])}-{ms(r.interval[1])}" if r.interval else ""),
    ]
    clocks = _two_clocks(shown) if shown.has_gpu_time else _one_clock(shown, around)
    if shown.is_study:
        return _filled(shown, [*step, *beside.columns(shown, clocks), *_checked_and_memory(shown)])
    columns = [
        *step,
        *clocks,
        ("gain at top", lambda r: "" if leave_out else shown_top(r)),
        ("at the top", lambda r: "" if leave_out else around(r.top_interval)),
        ("at the top (GPU)", lambda r: "" if leave_out or not r.gpu else fine_factor(r.gpu.top_gain)),
        ("advice", lambda r: "" if leave_out and not shown.has_gpu_time else r.advice),
        ("total", lambda r: factor(r.total)),
        ("total interval", lambda r: around(r.total_interval)),
        ("total (GPU)", lambda r: factor(r.gpu.total) if r.gpu else ""),
        ("main ms", lambda r: ms(r.main_ms)),
        ("host bound", lambda r: "" if r.host_bound is None else f"{100 * r.host_bound:.0f}%"),
        *_checked_and_memory(shown, ("images/s", lambda r: amount(r.images_per_s))),
        ("article ms", lambda r: "" if r.article_ms is None else f"{r.article_ms:g}"),
        ("article total", lambda r: factor(r.article_total)),
    ]
    return _filled(shown, columns)


def _filled(shown: View, columns: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(heading, cell) for heading, cell in columns if any(cell(row) for row in shown.rows)]


def _checked_and_memory(shown: View, *middle: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Return the columns of checks and of memory, with others between the two."""
    return [
        ("in force" if shown.mode == modes.MISTAKES else "receipts", lambda r: r.receipts),
        ("parity", lambda r: r.parity),
        ("rejected", lambda r: str(r.rejected) if r.rejected else ""),
        *middle,
        (shown.memory, lambda r: amount(r.memory)),
        ("allocated GiB", lambda r: amount(r.allocated)),
        ("device GiB", lambda r: amount(r.device)),
    ]


def _one_clock(shown: View, around: Callable[[Interval | None], str]) -> list[tuple[str, Any]]:
    """Return the columns of what a rung gains, in a result without GPU time."""
    leave_out = shown.mode == modes.LEAVE_ONE_OUT
    return [
        (shown.versus, shown_gain),
        ("interval", lambda r: around(r.gain)),
        ("verdict", lambda r: r.advice if leave_out else shown_verdict(r)),
    ]


def _two_clocks(shown: View) -> list[tuple[str, Any]]:
    """Return the columns of GPU time, and of what a rung gains by each clock, the word beside the factor."""
    return [
        ("GPU ms", lambda r: ms(r.gpu.ms) if r.gpu else ""),
        ("waiting (ms)", lambda r: ms(r.gpu.waiting_ms) if r.gpu else ""),
        ("host ms", lambda r: ms(r.host_ms)),
        (f"{shown.versus} (GPU)", lambda r: answer(r.gpu.seen) if r.gpu else ""),
        ("interval (GPU)", lambda r: bounds(r.gpu.gain).rstrip("x") if r.gpu else ""),
        (f"{shown.versus} (step)", lambda r: answer(r.seen)),
        ("interval (step)", lambda r: bounds(r.gain).rstrip("x")),
    ]


def print_table(result: Result) -> None:
    """Print the table: colours only on a terminal; without room, the least important columns are only named."""
    console, shown = output.console(), view(result)
    columns = columns_of(shown)
    fitting = _fitting(columns, shown, console.width)
    left_out = {heading for heading, _ in columns} - dict(fitting).keys()
    output.say_line(console, f"{shown.title} on {shown.machine}", "bold")
    output.say_line(console, f"{shown.workload}; {shown.protocol}", "dim")
    for mark in shown.marks:
        output.say_line(console, mark, "bold yellow")
    output.say_table(console, _table(shown, fitting))
    for remark in lines_below(shown):
        about = remark.partition(":")[0]
        if left_out.isdisjoint((about, f"{about} total")):  # `article` explains `article total`
            output.say_line(console, starting.named(remark), "dim")
    output.say_left_out(console, len(left_out))
    console.print()


def _table(shown: View, columns: list[tuple[str, Any]]) -> Any:
    """Return rich's table of the rungs."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("entry" if shown.is_study else "rung", no_wrap=True)
    for heading, _ in columns:
        table.add_column(Text("\n".join(_heading(heading, shown))), justify="right", no_wrap=True)
    for row in shown.rows:
        style = {"ok": "", "n/a": "dim", "skipped": "dim"}.get(row.status, "red")
        table.add_row(Text(row.name), *(Text(cell(row)) for _, cell in columns), style=style)
    return table


def interim(result: Result, width: int) -> list[str]:
    """Return the lines of the table of a run that goes on: the rungs and their sentences, without colours."""
    from rich.console import Console

    shown, out = view(result), io.StringIO()
    table = _table(shown, _fitting(columns_of(shown), shown, width))
    Console(file=out, width=width, no_color=True, highlight=False).print(table)
    done = max((len(rung.rounds) for rung in result.rungs), default=0)
    head = f"after {counted(done, shown.unit)}:"
    return [head, *(line.rstrip() for line in out.getvalue().splitlines()), *shown.sentences]


DEVICE = "device GiB: in use on the whole GPU after timing, context, graph pools and others' memory included"
DEVICE_ADDED = (
    "device GiB: what a process holds on the GPU at its peak, with its context, libraries and graphs"
)

LEAST_IMPORTANT = (
    "95% interval", "allocated GiB", "article ms", "main ms", "at the top", "total interval", "interval", "images/s",
    "reserved GiB", "host bound", "device GiB", "rejected", "gain at top", "receipts", "parity", "article total",
    "peak RSS, GiB", "in force", "total (GPU)", "at the top (GPU)", "interval (step)", "interval (GPU)",
    "total",
)  # fmt: skip


def _heading(heading: str, shown: View) -> list[str]:
    """Return the lines of a heading: `vs previous` over `(GPU)`. Without GPU time it is one line."""
    first, _, clock = heading.partition(" (")
    return [first, f"({clock}"] if clock and shown.has_gpu_time else [heading]


def _fitting(columns: list[tuple[str, Any]], shown: View, width: int) -> list[tuple[str, Any]]:
    """Return the columns that fit a terminal's width beside the rung's name: the least important go first."""
    wide = {
        heading: 2 + max(map(len, [*_heading(heading, shown), *map(cell, shown.rows)]))
        for heading, cell in columns
    }
    left = width - 2 - max(len(row.name) for row in shown.rows)
    for heading in LEAST_IMPORTANT:
        if sum(wide.values()) > left:
            wide.pop(heading, None)
    return [(heading, cell) for heading, cell in columns if heading in wide]


def lines_below(shown: View) -> list[str]:
    floors = [line for line in (shown.gpu_noise, shown.noise) if line]
    first, last = (floors, []) if shown.generations else ([], floors)
    lines = [*shown.sentences, *first, *shown.remarks, *last]
    if shown.is_study:
        lines.append(beside.ABOUT[shown.mode])
    elif shown.mode == modes.LEAVE_ONE_OUT:
        lines.append("each row: the whole ladder without that rung; gain at top: what the rung gains there")
    elif any(row.advice for row in shown.rows):
        lines.append(
            "at the top, advice: from the newest leave-one-out run of this machine, software and code"
        )
    if shown.rejected is not None:
        lines.append(
            f"visits rejected for the state of the GPU: {shown.rejected} of {shown.visits + shown.rejected}"
        )
    if any(row.parity for row in shown.rows):
        lines.append(
            "parity: the error nearest to its budget; `ladder report --receipts` shows all, and every receipt"
        )
    if any(row.device for row in shown.rows):
        lines.append(DEVICE_ADDED if shown.generations else DEVICE)
    if any(row.main_ms for row in shown.rows):
        lines.append("main ms: without the lazy phases (path length, R1)")
    if any(row.article_ms for row in shown.rows):
        lines.append(f"article: {shown.reference}; another machine and another PyTorch, not a target")
    return lines


def markdown(result: Result) -> str:
    """Return the table as a section of Markdown."""
    shown = view(result)
    columns = [("entry" if shown.is_study else "rung", lambda r: r.title), *columns_of(shown)]
    lines = [f"### {escaped(shown.title)} on {escaped(shown.machine)}", ""]
    lines += [f"{escaped(shown.workload)}; {escaped(shown.protocol)}", ""]
    lines += [f"**{escaped(mark)}**\n" for mark in shown.marks]
    cells = [[cell(row) for _, cell in columns] for row in shown.rows]
    lines += piped([[heading for heading, _ in columns], *cells])
    lines += ["", *(f"- {escaped(remark)}" for remark in lines_below(shown)), *_checks_markdown(result)]
    return "\n".join(lines) + "\n"


def _checks_markdown(result: Result) -> list[str]:
    """Return receipts and parity errors of every rung that has them, under its name; then the kernels' tiles."""
    lines: list[str] = []
    for rung in result.rungs:
        receipts, cells = checks.receipt_lines(rung), checks.parity_cells(rung)
        if not (receipts or cells):
            continue
        lines += ["", f"#### {escaped(plain(rung.name))}: receipts and parity", ""]
        lines += [f"- {escaped(plain(line))}" for line in [*receipts, *checks.parity_lines(rung)]]
        if cells:
            table = [checks.PARITY_HEADINGS, *(list(map(plain, row)) for row in cells)]
            lines += ["", *piped(table, words=(0, 1, 4))]
    if tiles := checks.choice_lines(result):
        lines += [
            "",
            "#### Tiles that the kernels ran with",
            "",
            *(f"- {escaped(plain(line))}" for line in tiles),
        ]
    return lines


def print_checks(result: Result) -> None:
    """Print every receipt line and the parity table of each rung."""
    for rung in result.rungs:
        cells = [checks.PARITY_HEADINGS, *(list(map(plain, row)) for row in checks.parity_cells(rung))]
        lines = [*checks.receipt_lines(rung), *(f"parity: {line}" for line in checks.parity_lines(rung))]
        print(plain(rung.name) + ("" if lines else ": no receipts and no parity check in this result"))
        for line in lines:
            print(f"  {plain(line)}")
        for line in aligned(cells) if len(cells) > 1 else []:
            print(f"    {line}")
    for line in checks.choice_lines(result):
        print(plain(f"tiles of {line}"))
    print()


def data_of(result: Result) -> Plain:
    """Return a run with every figure that follows from it, for programs; an unknown value is None."""
    return write_whole(result)


CSV_COLUMNS = (
    "machine", "gpu", "workload", "ladder", "started", "commit", "quick", "complete", "baseline", "rung", "title",
    "mode", "status", "reason", "step_ms", "interval_low_ms", "interval_high_ms", "speedup_previous",
    "speedup_previous_low", "speedup_previous_high", "verdict", "gain_at_top", "advice", "speedup_total",
    "main_ms", "main_speedup_total", "host_bound", "images_per_s", "peak_gib", "article_ms", "article_speedup_total",
    "speedup_total_low", "speedup_total_high", "gain_at_top_low", "gain_at_top_high", "noise_floor", "receipts",
    "parity", "parity_of_budget", "rejected_visits", "allocated_gib", "device_gib", "torch", "cuda", "triton",
    "not_publishable", "gpu_ms", "gpu_interval_low_ms", "gpu_interval_high_ms", "waiting_ms", "gpu_speedup_previous",
    "gpu_speedup_previous_low", "gpu_speedup_previous_high", "gpu_verdict", "gpu_less_than", "less_than",
    "gpu_speedup_total", "gpu_noise_floor", "gpu_gain_at_top", "gpu_gain_at_top_low", "gpu_gain_at_top_high",
)  # fmt: skip


def csv_text(many: list[Result]) -> str:
    """Return all rungs of all results, a row each, for a spreadsheet: full precision, text that is no formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for result in many:
        machine = result.machine
        first = [machine.name, machine.gpu or "", result.workload["name"], result.ladder.name]
        first += [result.started, " ".join(sources.commits(head(result))), result.protocol.quick]
        first += [result.complete, result.baseline or ""]
        software = [machine.torch or "", machine.cuda or "", machine.triton or ""]
        shown = view(result)
        for row in shown.rows:
            low, high = row.interval or (None, None)
            cells = [
                row.name,
                row.title,
                shown.mode,
                row.status,
                row.reason,
                row.step_ms,
                low,
                high,
                row.previous,
                *(row.gain or (None, None)),
                row.verdict,
                row.top_gain,
                row.advice,
                row.total,
            ]
            cells += [row.main_ms, row.main_total, row.host_bound, row.images_per_s, row.memory]
            cells += [row.article_ms, row.article_total, *(row.total_interval or (None, None))]
            cells += [
                *(row.top_interval or (None, None)),
                row.floor,
                row.receipts,
                row.parity,
                row.parity_share,
            ]
            cells += [row.rejected, row.allocated, row.device, *software, "; ".join(shown.marks)]
            cells += _gpu_cells(row)
            writer.writerow([_csv(cell) for cell in [*first, *cells]])
    return out.getvalue()


def _gpu_cells(row: Row) -> list[Any]:
    """Return the cells of GPU time, as `CSV_COLUMNS` names them."""
    none, less_than = (None, None), row.below if row.verdict == LESS_THAN else None
    if (gpu := row.gpu) is None:
        return [None] * 9 + [less_than] + [None] * 5
    cells: list[Any] = [gpu.ms, *(gpu.interval or none), gpu.waiting_ms, gpu.previous, *(gpu.gain or none)]
    cells += [gpu.verdict, gpu.below if gpu.verdict == LESS_THAN else None, less_than]
    return [*cells, gpu.total, gpu.floor, gpu.top_gain, *(gpu.top_interval or none)]


def _csv(cell: object) -> object:
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return float(f"{cell:.12g}")  # the last digits of a derived figure depend on the processor
    if cell is None:
        return cell
    text = plain(cell)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text  # a spreadsheet would compute it


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
