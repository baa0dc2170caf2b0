"""The table of `ladder kernels`, the remarks below it, and its chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ladder.results import words
from ladder.show.table import Column, Table
from ladder.studies.kernelbench.record import (
    CONTENDERS,
    COPY,
    LARGE,
    NO_AIM,
    SIZE,
    TAKEN,
    File,
    Kernels,
    Measured,
    Row,
    Summary,
    describe_lack,
    divide_times,
    list_by_time,
    list_reached,
    summarize,
    summarize_all,
)

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
    """Return a row for each direction that was measured, op after op."""
    ops = [row.op for row in kernels.rows]
    rows = sorted(list_reached(kernels), key=lambda row: ops.index(row.op))
    return Table(COLUMNS, [_cells_of(row) for row in rows], "", list_remarks(kernels))


def describe_case(row: Row) -> tuple[str, str, str]:
    """Return (op, shape, setting) of a row."""
    shape = "x".join(map(str, row.shape))
    if row.shape[0] != row.batch:
        shape += f" batch {row.batch}"
    return row.op, shape, f"{row.dtype} {row.layout}"


def _cells_of(row: Row) -> list[Any]:
    """Return one row's values. A missing number is a short reason."""

    def time_of(numbers: Mapping[str, Summary], name: str) -> Any:
        return numbers[name].median if name in numbers else "n/a" if name in row.reasons else None

    share = row.share.get("ours")
    interval = share.interval if share else None
    return [
        *describe_case(row),
        row.direction,
        *(time_of(row.us.cold, name) for name in (*CONTENDERS, COPY)),
        share.median if share else None,
        f"{interval[0]:.0%}-{interval[1]:.0%}" if interval else None,
        *(time_of(row.us.hot, name) for name in CONTENDERS),
        describe_verdict(row),
    ]


def describe_verdict(row: Row) -> str:
    """Return the row's verdict, and whether the op's callers get plain PyTorch instead.

    The number of `less than X%` is that of the quickest alternative.
    """
    quickest = next(iter(list_by_time(row.us.cold, row.against)), None)
    below = row.against[quickest].below if quickest else None
    return words.word(words.Seen(row.verdict, below=below)) + (f"; {TAKEN}" if row.taken else "")


def describe_times(row: Measured) -> str:
    """Return a line for one measured direction. Verdicts are missing, as they need the whole run."""
    cold = row.samples_us.cold
    times = summarize_all(cold)
    numbers = ", ".join(f"{name} {each.median:.1f}" for name, each in times.items())
    share = ""
    if "ours" in cold and "copy" in cold:
        share = f"; {summarize(divide_times(cold['copy'], cold['ours'])).median:.0%} of a copy"
    return f"{row.direction} {numbers or 'n/a'}{' us' if numbers else ''}{share}"


def list_remarks(kernels: Kernels) -> list[str]:
    """Return the remarks below a table."""
    measured = [row for row in kernels.rows if row.against]
    repeats = sorted({len(row.samples_us.cold["ours"]) for row in measured})
    span = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else str(repeats[0] if repeats else 0)
    lines = [
        f"microseconds of one call, median of {span} fresh repeats; cold L2 (of"
        f" {(kernels.protocol.l2_bytes or 0) / 2**20:.0f} MiB) unless it says hot; backward: autograd.grad alone over a"
        " kept graph",
        "share: time of a copy of the same number of bytes, cold, measured alike in the same repeat, by ours",
        "verdict: ours against plain PyTorch and torch.compile, cold L2, Holm over all comparisons of the run",
    ]
    rows = list_reached(kernels)
    counts = Counter(row.verdict for row in rows)
    if missing := describe_lack(kernels):
        lines.append(missing)
    if counts:
        lines.append("; ".join(f"{words.kind(word)}: {count}" for word, count in counts.most_common()))
    if worst := find_least_share(kernels.rows):
        where = " ".join((*describe_case(worst), worst.direction))
        share = f"{worst.share['ours'].median:.0%}"
        lines.append(
            f"least share from {LARGE}x{LARGE} on, first setting, but for convolutions: {share}, {where}"
        )
    if count := sum(bool(row.taken) for row in kernels.rows):
        lines.append(f"{TAKEN}: by kernels/alternatives.py callers of the op get it, not ours ({count} rows)")
    if len(kernels.sittings) > 1:
        shares = ", ".join(str(each.cases) for each in kernels.sittings)
        lines.append(f"measured in {len(kernels.sittings)} sittings, of {shares} cases; no case spans two")
    notes = [note for row in kernels.rows for note in row.notes]
    joined = _join_sizes(notes)
    lines += [f"{note} ({n} rows)" for note, n in Counter(joined.get(note, note) for note in notes).items()]
    return lines + list_reasons(rows)


def find_least_share(rows: Sequence[Row]) -> Row | None:
    """Return the memory-bound row furthest from a copy, among large activations in the setting of the ladder's top."""
    large = [
        row
        for row in rows
        if row.setting == 0 and row.function not in NO_AIM and "ours" in row.share
        if len(row.shape) == 4 and row.shape[2] >= LARGE
    ]
    return min(large, key=lambda row: row.share["ours"].median, default=None)


def list_reasons(rows: Sequence[Row]) -> list[str]:
    """Return every reason for a missing number once, with its count, contender and direction."""
    joined = _join_sizes(reason for row in rows for reason in row.reasons.values())
    places: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for name, reason in row.reasons.items():
            place = CONTENDERS.get(name, name), row.direction
            places.setdefault(joined.get(reason, reason), []).append(place)
    return [
        f"n/a ({len(where)}x): {reason} ({', '.join(dict.fromkeys(name for name, _ in where))};"
        f" {', '.join(dict.fromkeys(direction for _, direction in where))})"
        for reason, where in places.items()
    ]


def _join_sizes(lines: Iterable[str]) -> dict[str, str]:
    """Return the words for each line with a measured size: one for all lines that differ in the size alone."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if match := SIZE.fullmatch(line):
            sizes.setdefault((match[1], match[3]), []).append(match[2])
    joined = {}
    for (before, after), known in sizes.items():
        low, high = min(known, key=float), max(known, key=float)
        span = low if float(low) == float(high) else f"{low} to {high}"
        joined |= {f"{before}{each}{after}": f"{before}{span}{after}" for each in known}
    return joined


# --- the chart: how near each op comes to a copy of the same bytes, beside its alternatives ---------------------------

DRAWN = ("forward", "backward")
WIDTH, ROW, BETWEEN, TOP, BOTTOM = 12.5, 0.21, 0.14, 1.15, 0.45  # inches
NAME, SHAPE, PANELS, PANEL = 0.2, 2.3, (4.3, 8.6), 3.3  # places and width, inches


def list_marks() -> dict[str, tuple[str, str]]:
    """Return mark and colour of the alternatives. Ours is a bar."""
    from ladder.report.panels import ARTICLE, IDLE

    return {"plain": ("o", IDLE), "compile": ("D", ARTICLE)}


def list_shown(kernels: Kernels) -> dict[str, dict[str, list[Row]]]:
    """Return op -> direction -> rows with a yardstick, in the setting of the ladder's top. The tables show the rest."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in list_reached(kernels):
        if row.setting == 0 and row.direction in DRAWN:
            found.setdefault(row.op, {d: [] for d in DRAWN})[row.direction].append(row)
    for directions in found.values():
        for rows in directions.values():
            rows.sort(key=lambda row: -row.batch)  # a stable sort keeps the largest first within a batch
    return found


def draw_figure(file: File, kernels: Kernels) -> Any:
    """Each op has a row for each shape, the largest batch first; forward is left, backward right."""
    from ladder.report import drawing
    from ladder.report.panels import GRID, MUTED

    ops = list_shown(kernels)
    lines = {op: _lines(directions) for op, directions in ops.items()}
    height = TOP + BOTTOM + ROW * sum(map(len, lines.values())) + BETWEEN * len(lines)
    made, axes = drawing.sheet(WIDTH, height)
    marks = [row.share for directions in ops.values() for rows in directions.values() for row in rows]
    ends = [
        end for share in marks for each in share.values() for end in (each.median, *(each.interval or ()))
    ]
    scale = PANEL / max([1.05, *ends])
    y = TOP
    if ops:
        _draw_rule(axes, scale, height)
    for op, of_op in lines.items():
        axes.plot([NAME, WIDTH - 0.2], [y, y], color=GRID, linewidth=0.8)
        y += BETWEEN / 2
        axes.text(NAME, y + ROW / 2, op, fontsize=9.5, fontweight="bold", va="center")
        for shape, of_shape in of_op.items():
            axes.text(SHAPE, y + ROW / 2, shape, fontsize=8.5, color=MUTED, va="center")
            for left, direction in zip(PANELS, DRAWN, strict=True):
                if row := of_shape.get(direction):
                    _draw_bar(axes, left, y + ROW / 2, scale, row)
            y += ROW
        y += BETWEEN / 2
    _draw_header(made, file, kernels, bool(ops))
    return made


def _lines(directions: dict[str, list[Row]]) -> dict[str, dict[str, Row]]:
    """Return shape -> direction -> row, in the order of the rows. The shape is as the case's name has it."""
    found: dict[str, dict[str, Row]] = {}
    for direction, rows in directions.items():
        for row in rows:
            shape = row.case.removeprefix(row.op).removesuffix(f"{row.dtype} {row.layout}").strip()
            found.setdefault(shape, {})[direction] = row
    return found


def _draw_rule(axes: Any, scale: float, height: float) -> None:
    """Draw the directions' names, the scale, and the line of a copy."""
    from ladder.report.panels import GRID, MUTED

    for left, direction in zip(PANELS, DRAWN, strict=True):
        axes.text(left, TOP - 0.3, direction, fontsize=11, fontweight="bold", va="center")
        for share in (0, 0.5, 1):
            x = left + share * scale
            axes.text(x, TOP - 0.1, f"{100 * share:.0f}%", fontsize=8, color=MUTED, ha="center", va="center")
            line: dict[str, Any] = {"color": GRID, "linewidth": 0.8}
            if share == 1:
                line = {"color": MUTED, "linewidth": 1, "linestyle": "--"}
            axes.plot([x, x], [TOP, height - BOTTOM], zorder=1, **line)


def _draw_bar(axes: Any, left: float, y: float, scale: float, row: Row) -> None:
    """Draw the bar of our kernel with its interval, its number, and the marks of the others."""
    from ladder.report.panels import BUSY, GAP, INK, MUTED

    if not row.share:
        axes.barh(y, PANEL, 0.8 * ROW, left=left, color=GAP, zorder=2)
        axes.text(left + 0.06, y, "not measured", fontsize=7.5, color=MUTED, va="center", zorder=5)
    for name, (mark, color) in list_marks().items():
        if each := row.share.get(name):
            look = {"color": color, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.7}
            axes.plot(left + scale * each.median, y, mark, zorder=5, **look)
    if not (ours := row.share.get("ours")):
        return
    axes.barh(y, scale * ours.median, 0.55 * ROW, left=left, color=BUSY, zorder=2)
    low, high = ours.interval or (ours.median, ours.median)
    axes.plot([left + scale * low, left + scale * high], [y, y], color=INK, linewidth=1, zorder=4)
    axes.text(
        left - 0.08, y, f"{100 * ours.median:.0f}", fontsize=8.5, fontweight="bold", ha="right", va="center"
    )


def _draw_header(made: Any, file: File, kernels: Kernels, any_rows: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from ladder.report.drawing import fitted
    from ladder.report.panels import BUSY, MUTED

    width, height = made.get_size_inches()
    machine, said = file.machine, kernels.protocol.notes
    notes = f" ({said[0]})" if said else ""
    headline = f"{machine.gpu or machine.cpu}: share of a copy of the same bytes, cold L2{notes}"
    if not any_rows:
        headline = f"{machine.gpu or machine.cpu}: nothing was measured"
    fitted(made, 0.2 / width, 1 - 0.14 / height, headline, 15, fontweight="bold", va="top")
    handles: list[Any] = [Patch(color=BUSY, label="this project's kernel, and its number")]
    handles += [
        Line2D([], [], marker=mark, color=color, linestyle="", label=CONTENDERS[name])
        for name, (mark, color) in list_marks().items()
    ]
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="copy of the same bytes"))
    made.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.12 / width, 1 - 0.42 / height), ncols=4,
        frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.8, borderpad=0.2,
    )  # fmt: skip
    settings = {" ".join((row.dtype, row.layout)) for row in list_reached(kernels) if row.setting == 0}
    footer = (
        f"PyTorch {machine.torch}, Triton {machine.triton}; {', '.join(sorted(settings))}. Higher is better."
        " Line in a bar's end: 95% interval over repeats. Backward: autograd.grad alone."
    )
    if missing := describe_lack(kernels):
        footer += f" {missing.partition(':')[0]}."
    fitted(made, 0.2 / width, 0.12 / height, footer, 8, color=MUTED)
