"""The table of `ladder kernels`, the remarks below it, and its chart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ladder.results import words
from ladder.show.table import Column, Table
from ladder.studies.kernelbench.record import (
    CONTENDERS,
    COPY,
    NO_AIM,
    File,
    Kernels,
    Row,
    Summary,
    describe_lack,
    list_by_time,
    list_reached,
)

TAKEN = "plain PyTorch taken"
LARGE = 128  # pixels a side; in maps of this size and above, a low share of a copy means waste
SLOW = re.compile(r"\S+ s a call: ")  # the time of a contender that was too slow to repeat
COLUMNS = [
    Column("op"),
    Column("shape"),
    Column("setting"),
    Column("direction"),
    Column("ours us", "microseconds"),
    Column("plain us", "microseconds", priority=1),
    Column("compile us", "microseconds", priority=2),
    Column("copy us", "microseconds", priority=3),
    Column("share of copy", "percent", priority=4),
    Column("interval", priority=5),
    Column("hot: ours us", "microseconds", priority=7),
    Column("plain us", "microseconds", priority=8),
    Column("compile us", "microseconds", priority=6),
    Column("verdict", "verdict"),
]


def make_table(kernels: Kernels) -> Table:
    """Return a row for each direction that was measured, op after op. A missing number is a short reason."""
    ops = [row.op for row in kernels.rows]

    def find_time(row: Row, numbers: Mapping[str, Summary], name: str) -> Any:
        return numbers[name].median if name in numbers else "n/a" if name in row.reasons else None

    cells = []
    for row in sorted(list_reached(kernels), key=lambda row: ops.index(row.op)):
        share = row.share.get("ours")
        cold = [find_time(row, row.us.cold, name) for name in (*CONTENDERS, COPY)]
        hot = [find_time(row, row.us.hot, name) for name in CONTENDERS]
        between = "{:.0%}-{:.0%}".format(*share.interval) if share and share.interval else None
        quickest = next(iter(list_by_time(row.us.cold, row.against)), None)
        verdict = words.word(words.Seen(row.verdict, below=row.against[quickest].below if quickest else None))
        verdict += f"; {TAKEN}" if row.taken else ""
        numbers = [*cold, share.median if share else None, between, *hot]
        cells.append([*describe_case(row), row.direction, *numbers, verdict])
    return Table(COLUMNS, cells, "", list_remarks(kernels))


def describe_case(row: Row) -> tuple[str, str, str]:
    """Return (op, shape, setting) of a row."""
    shape = "x".join(map(str, row.shape)) + (f" batch {row.batch}" if row.shape[0] != row.batch else "")
    return row.op, shape, f"{row.dtype} {row.layout}"


def list_remarks(kernels: Kernels) -> list[str]:
    """Return the remarks below a table: what the numbers are, the counts, and why a number is missing."""
    rows = list_reached(kernels)
    repeats = [len(row.samples_us.cold["ours"]) for row in rows if row.against] or [0]
    lines = [
        f"microseconds of one call, median of at least {min(repeats)} fresh repeats; cold L2 (of"
        f" {(kernels.protocol.l2_bytes or 0) / 2**20:.0f} MiB) unless it says hot; backward: autograd.grad alone over a"
        " kept graph",
        "share: time of a copy of the same number of bytes, cold, measured alike in the same repeat, by ours",
        "verdict: ours against plain PyTorch and torch.compile, cold L2, Holm over all comparisons of the run",
        *filter(None, [describe_lack(kernels)]),
    ]
    if counts := Counter(words.kind(row.verdict) for row in rows):
        lines.append("; ".join(f"{word}: {count}" for word, count in counts.most_common()))
    if worst := find_least_share(rows):
        where = " ".join((*describe_case(worst), worst.direction))
        least = f"{worst.share['ours'].median:.0%}, {where}"
        lines.append(f"least share from {LARGE}x{LARGE} on, first setting, but for convolutions: {least}")
    if count := sum(bool(row.taken) for row in rows):
        lines.append(f"{TAKEN}: by kernels/alternatives.py callers of the op get it, not ours ({count} rows)")
    if len(kernels.sittings) > 1:
        lines.append(f"measured in {len(kernels.sittings)} sittings; no case spans two")
    tepid = Counter(note.partition(":")[0] for row in rows for note in row.notes)
    lines += [f"{note} ({count} rows)" for note, count in tepid.items()]
    reasons = Counter(
        (SLOW.sub("a slow call: ", reason), CONTENDERS.get(name, name), row.direction)
        for row in rows
        for name, reason in row.reasons.items()
    )
    lines += [f"n/a ({n}x): {why} ({name}; {direction})" for (why, name, direction), n in reasons.items()]
    return lines


def find_least_share(rows: Sequence[Row]) -> Row | None:
    """Return the memory-bound row furthest from a copy, among large activations in the setting of the ladder's top."""
    large = [
        row
        for row in rows
        if row.setting == 0 and row.function not in NO_AIM and "ours" in row.share
        if len(row.shape) == 4 and row.shape[2] >= LARGE
    ]
    return min(large, key=lambda row: row.share["ours"].median, default=None)


# --- the chart: how near each op comes to a copy of the same bytes, beside its alternatives ---------------------------

DRAWN = ("forward", "backward")
WIDTH, ROW, BETWEEN, TOP, BOTTOM = 12.5, 0.21, 0.14, 1.15, 0.45  # inches
NAME, SHAPE, PANELS, PANEL = 0.2, 2.3, (4.3, 8.6), 3.3  # places and width, inches


def list_lines(kernels: Kernels) -> dict[str, dict[str, dict[str, Row]]]:
    """Return op -> shape -> direction -> row, in the setting of the ladder's top, the largest batch first."""
    lines: dict[str, dict[str, dict[str, Row]]] = {}
    rows = [row for row in list_reached(kernels) if row.setting == 0 and row.direction in DRAWN]
    for op in dict.fromkeys(row.op for row in rows):
        for row in sorted((row for row in rows if row.op == op), key=lambda row: -row.batch):
            shape = row.case.removeprefix(op).removesuffix(f"{row.dtype} {row.layout}").strip()
            lines.setdefault(op, {}).setdefault(shape, {})[row.direction] = row
    return lines


def draw_figure(file: File, kernels: Kernels) -> Any:
    """Draw a line for each shape of each op: the share of a copy forward on the left, backward on the right."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from ladder.report.drawing import fitted, sheet
    from ladder.report.panels import ARTICLE, BUSY, GAP, GRID, IDLE, INK, MUTED

    marks = {"plain": ("o", IDLE), "compile": ("D", ARTICLE)}
    ops, machine = list_lines(kernels), file.machine
    drawn = [row for shapes in ops.values() for directions in shapes.values() for row in directions.values()]
    height = TOP + BOTTOM + ROW * sum(map(len, ops.values())) + BETWEEN * len(ops)
    shares = [each for row in drawn for each in row.share.values()]
    scale = PANEL / max([1.05, *(end for each in shares for end in (each.median, *(each.interval or ())))])
    figure, axes = sheet(WIDTH, height)

    def write(x: float, y: float, text: str, size: float, **how: Any) -> None:
        axes.text(x, y, text, fontsize=size, va="center", **how)

    for left, direction in zip(PANELS, DRAWN, strict=True):
        write(left, TOP - 0.3, direction, 11, fontweight="bold")
        for share in (0, 0.5, 1):
            x = left + share * scale
            write(x, TOP - 0.1, f"{100 * share:.0f}%", 8, color=MUTED, ha="center")
            color, style = (MUTED, "--") if share == 1 else (GRID, "-")
            axes.plot([x, x], [TOP, height - BOTTOM], color=color, linestyle=style, linewidth=0.9, zorder=1)
    y = TOP
    for op, shapes in ops.items():
        axes.plot([NAME, WIDTH - 0.2], [y, y], color=GRID, linewidth=0.8)
        y += BETWEEN / 2 + ROW / 2  # the middle of a line
        write(NAME, y, op, 9.5, fontweight="bold")
        for shape, directions in shapes.items():
            write(SHAPE, y, shape, 8.5, color=MUTED)
            for left, direction in zip(PANELS, DRAWN, strict=True):
                if (row := directions.get(direction)) is None:
                    continue
                if not row.share:
                    axes.barh(y, PANEL, 0.8 * ROW, left=left, color=GAP, zorder=2)
                    write(left + 0.06, y, "not measured", 7.5, color=MUTED, zorder=5)
                for name, (mark, color) in marks.items():
                    if each := row.share.get(name):
                        axes.plot(left + scale * each.median, y, mark, color=color, markersize=5, zorder=5)
                if ours := row.share.get("ours"):
                    axes.barh(y, scale * ours.median, 0.55 * ROW, left=left, color=BUSY, zorder=2)
                    ends = [left + scale * end for end in ours.interval or ()]
                    axes.plot(ends, [y] * len(ends), color=INK, linewidth=1, zorder=4)
                    write(left - 0.08, y, f"{100 * ours.median:.0f}", 8.5, fontweight="bold", ha="right")
            y += ROW
        y += BETWEEN / 2 - ROW / 2
    notes = f" ({kernels.protocol.notes[0]})" if kernels.protocol.notes else ""
    title = f"{machine.gpu or machine.cpu}: share of a copy of the same bytes, cold L2{notes}"
    fitted(figure, 0.2 / WIDTH, 1 - 0.14 / height, title, 15, fontweight="bold", va="top")
    handles: list[Any] = [Patch(color=BUSY, label="this project's kernel, and its number")]
    handles += [
        Line2D([], [], marker=mark, color=color, linestyle="", label=CONTENDERS[name])
        for name, (mark, color) in marks.items()
    ]
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="copy of the same bytes"))
    where = (0.12 / WIDTH, 1 - 0.42 / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=where, ncols=4, frameon=False, fontsize=9)
    footer = [
        f"PyTorch {machine.torch}, Triton {machine.triton}. Higher is better. Line in a bar's end: 95% interval over"
        " repeats. Backward: autograd.grad alone.",
        describe_lack(kernels).partition(":")[0],
    ]
    fitted(figure, 0.2 / WIDTH, 0.12 / height, " ".join(filter(None, footer)), 8, color=MUTED)
    return figure
