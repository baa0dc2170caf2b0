"""The report of `ladder kernels`: rows of text, the table in the terminal, and Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ladder.base.records import given
from ladder.base.text import NO_TIME, escaped, piped
from ladder.report import output
from ladder.results import words
from ladder.studies.kernelbench import verdicts as kernelverdicts
from ladder.studies.kernelbench.schema import Kernels, Measured, Row, Summary

CONTENDERS = {"ours": "ours", "plain": "plain PyTorch", "compile": "torch.compile"}
STYLES = {"ours faster": "green", "plain faster": "red", "compile faster": "red"}
SIZE = re.compile(r"(|not quite cold: only )([0-9.]+(?:e[+-]?[0-9]+)?)( s a call: .*| MiB between .*)")
TAKEN = "plain PyTorch taken"
LARGE = 128  # pixels a side; in maps of this size and above, a low share of a copy means waste
# Functions whose share of a copy is no aim: arithmetic counts in the first four, and the others are there to compare.
NO_AIM = (
    "conv2d", "conv_transpose2d", "cuda.divergent", "cuda.predicated",
    "cuda.strided_act", "cuda.coalesced_act", "cuda.shared_sum", "cuda.shuffle_sum",
    "cuda.scalar_copy", "cuda.vector_copy",
)  # fmt: skip
HEADINGS = (
    "ours us", "plain us", "compile us", "copy us", "share of copy", "interval", "hot: ours us", "plain us",
    "compile us", "verdict",
)  # fmt: skip
LEAST_IMPORTANT = (7, 8, 5, 6, 3, 4, 2, 1)  # columns of HEADINGS that a narrow terminal drops, in this order


def cells(row: Row) -> list[str]:
    """Return one row's texts, under HEADINGS. A missing number shows a short reason."""
    cold, hot = row.us.cold, row.us.hot
    share = row.share.get("ours")
    interval = share and share.interval
    return [
        *(_us(cold, name, row) for name in CONTENDERS),
        _us(cold, "copy", row),
        f"{share.median:.0%}" if share else "",
        f"{interval[0]:.0%}-{interval[1]:.0%}" if interval else "",
        *(_us(hot, name, row) for name in CONTENDERS),
        verdict(row),
    ]


def verdict(row: Row) -> str:
    """Return the row's verdict, and whether the op's callers get plain PyTorch instead.

    The number of `less than X%` is that of the quickest alternative.
    """
    quickest = next(iter(kernelverdicts.by_time(row.us.cold, row.against)), None)
    below = given(row.against[quickest].below) if quickest else None
    return words.word(words.Seen(row.verdict, below=below)) + (f"; {TAKEN}" if row.taken else "")


def _us(numbers: Mapping[str, Summary], name: str, row: Row) -> str:
    if name in numbers:
        value = numbers[name].median
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return "n/a" if name in row.reasons else ""


def labels(row: Row) -> tuple[str, str, str]:
    """Return (op, shape, setting) of a row."""
    shape = "x".join(map(str, row.shape))
    if row.shape[0] != row.batch:
        shape += f" batch {row.batch}"
    return row.op, shape, f"{row.dtype} {row.layout}"


def title(result: Kernels) -> str:
    machine = result.machine
    return f"Kernels on {machine.gpu or machine.cpu}, PyTorch {machine.torch}, Triton {machine.triton}"


def reached(result: Kernels) -> list[Row]:
    """Return the rows that were measured. An unfinished run shows these, and how many it lacks."""
    missing = kernelverdicts.unreached(result.rows)
    return [row for row in result.rows if row.case not in missing]


def lacking(result: Kernels) -> str:
    """Return how many cases an unfinished run never reached, as text; empty for a finished run."""
    missing = len(kernelverdicts.unreached(result.rows))
    cases = len({row.case for row in result.rows})
    return f"{missing} of {cases} cases not measured: {NO_TIME}" if missing else ""


def remarks(result: Kernels) -> list[str]:
    """Return the remarks below a table."""
    rules = result.protocol
    measured = [row for row in result.rows if row.against]
    repeats = sorted({len(row.samples_us.cold["ours"]) for row in measured})
    span = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else str(repeats[0] if repeats else 0)
    lines = [
        f"microseconds of one call, median of {span} fresh repeats; cold L2 (of {rules.l2_bytes / 2**20:.0f} MiB)"
        " unless it says hot; backward: autograd.grad alone over a kept graph",
        "share: time of a copy of the same number of bytes, cold, measured alike in the same repeat, by ours",
        "verdict: ours against plain PyTorch and torch.compile, cold L2, Holm over all comparisons of the run",
    ]
    rows = reached(result)
    counts = Counter(row.verdict for row in rows)
    if missing := lacking(result):
        lines.append(missing)
    if counts:
        lines.append("; ".join(f"{words.kind(word)}: {count}" for word, count in counts.most_common()))
    if worst := least_share(result.rows):
        where = " ".join((*labels(worst), worst.direction))
        share = f"{worst.share['ours'].median:.0%}"
        lines.append(
            f"least share from {LARGE}x{LARGE} on, first setting, but for convolutions: {share}, {where}"
        )
    if count := sum(bool(row.taken) for row in result.rows):
        lines.append(f"{TAKEN}: by kernels/alternatives.py callers of the op get it, not ours ({count} rows)")
    if len(sittings := result.sittings or []) > 1:
        counts = ", ".join(str(each.cases) for each in sittings)
        lines.append(f"measured in {len(sittings)} sittings, of {counts} cases; no case spans two")
    found = [note for row in result.rows for note in row.notes]
    told = _in_one(found)
    notes = Counter(told.get(note, note) for note in found)
    lines += [f"{note} ({count} rows)" for note, count in notes.items()]
    return lines + reasons(rows)


def least_share(rows: Sequence[Row]) -> Row | None:
    """Return the memory-bound row furthest from a copy, among large activations in the setting of the ladder's top."""
    large = [
        row
        for row in rows
        if row.setting == 0
        and row.function not in NO_AIM
        and "ours" in row.share
        and len(row.shape) == 4
        and row.shape[2] >= LARGE
    ]
    return min(large, key=lambda row: row.share["ours"].median, default=None)


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return every reason for a missing number once, with its count, contender and direction."""
    told = _in_one(reason for row in rows for reason in row.reasons.values())
    seen: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for name, reason in row.reasons.items():
            seen.setdefault(told.get(reason, reason), []).append((CONTENDERS.get(name, name), row.direction))
    return [
        f"n/a ({len(where)}x): {reason} ({', '.join(dict.fromkeys(name for name, _ in where))};"
        f" {', '.join(dict.fromkeys(direction for _, direction in where))})"
        for reason, where in seen.items()
    ]


def _in_one(lines: Iterable[str]) -> dict[str, str]:
    """Return the words for each line with a measured size: one for all lines that differ in the size alone."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if found := SIZE.fullmatch(line):
            sizes.setdefault((found[1], found[3]), []).append(found[2])
    told = {}
    for (before, after), known in sizes.items():
        low, high = min(known, key=float), max(known, key=float)
        span = low if float(low) == float(high) else f"{low} to {high}"
        told |= {f"{before}{each}{after}": f"{before}{span}{after}" for each in known}
    return told


def print_table(result: Kernels) -> None:
    """Print the table. Only a terminal gets colours, and a narrow one lacks the least important columns."""
    from rich.table import Table
    from rich.text import Text

    console = output.console()
    shown = [(*labels(row), row.direction, *cells(row)) for row in reached(result)]
    headings = ("op", "shape", "setting", "direction", *HEADINGS)
    columns = _fitting(headings, shown, console.width)
    output.say_line(console, title(result), "bold")
    for note in result.protocol.notes:
        output.say_line(console, note, "bold yellow")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(Text(headings[column]), justify="left" if column < 4 else "right", no_wrap=True)
    for row in shown:
        table.add_row(*(Text(row[c], style=STYLES.get(row[c].partition(";")[0], "")) for c in columns))
    output.say_table(console, table)
    for line in remarks(result):
        output.say_line(console, line, "dim")
    output.say_left_out(console, len(headings) - len(columns))


def _fitting(headings: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> list[int]:
    columns = list(range(len(headings)))
    wide = [2 + max(len(heading), *(len(row[c]) for row in rows), 0) for c, heading in enumerate(headings)]
    for column in LEAST_IMPORTANT:
        if sum(wide[c] for c in columns) > width:
            columns.remove(column + 4)
    return columns


def markdown(result: Kernels) -> str:
    """Return the page, with one table for each op."""
    commit = result.commit or "unknown"
    state = "" if not result.dirty else ", with changes"
    lines = [f"# {escaped(title(result))}", "", f"Commit {commit[:12]}{state}, {result.started}.", ""]
    lines += [f"**{escaped(note)}**\n" for note in result.protocol.notes]
    rows = reached(result)
    for op in dict.fromkeys(row.op for row in rows):
        texts = [(*labels(row)[1:], row.direction, *cells(row)) for row in rows if row.op == op]
        table = [("shape", "setting", "direction", *HEADINGS), *texts]
        lines += [f"## {escaped(op)}", "", *piped(table, range(3)), ""]
    lines += [f"- {escaped(remark)}" for remark in remarks(result)]
    return "\n".join(lines) + "\n"


def event_line(row: Measured) -> str:
    """Return a line for one measured row. Verdicts are missing, as they need the whole run."""
    (derived,) = kernelverdicts.derive([row])
    numbers = ", ".join(f"{name} {each.median:.1f}" for name, each in derived.us.cold.items())
    share = derived.share.get("ours")
    text = f"{row.case}, {row.direction}: {numbers or 'n/a'}"
    return text + (f" us; {share.median:.0%} of a copy" if share else "")
