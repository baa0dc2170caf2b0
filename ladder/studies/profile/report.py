"""The report of `ladder profile`: tables for a terminal and for a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.base.text import aligned, escaped, piped, plain
from ladder.receipts import categories, kernel_names
from ladder.results import store as results
from ladder.results.parts import OVERLAP
from ladder.results.types import head
from ladder.studies.profile import composing, counted, rates, tracing
from ladder.studies.profile.record import Category, Memory, Pass, Result

LONG_MS, NEAR = 0.1, 0.6  # a kernel is far from a copy if it takes longer in a step and reaches less

MIB = 2**20
LAYERS = 24  # rows of a table; the others are one row
MOMENTS = ("at the beginning", "most gradients", "most activations", "at the end")
SEEN = 0.005  # ms: less is 0.00 in a table
SMALL = 0.1  # TB/s: less is told in GB/s


@dataclass(frozen=True)
class Table:
    """A table with its title, and lines under it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[str] = ()


def tables(result: Result) -> list[Table]:
    """Return all tables of a profile."""
    found = [
        _categories(result),
        _expected(result),
        _phases(result),
        *_gaps(result),
        _layers(result),
        *_heaviest(result),
        *passes(result),
        *_counters(result),
        *_memory(result.memory),
    ]
    return [*found, *_largest(result)]


def sentence(result: Result) -> str:
    """Return the first line: the step, the work in it, and the heaviest category."""
    first = max(result.categories, key=lambda row: row.shown_ms)
    work = "GPU work" if result.protocol.of == tracing.GPU else "operators' own time on the CPU"
    return (
        f"{result.rung}: a step takes {result.step_ms:.2f} ms, with {result.gpu_ms:.2f} ms of {work};"
        f" {first.name} is {100 * first.share:.0f} percent of {'it' if result.once else 'all kernels together'}"
    )


def together(result: Result) -> str:
    """Return the name of the row that all categories add up to."""
    return "GPU time" if result.protocol.of == tracing.GPU else "all operators"


def _categories(result: Result) -> Table:
    rows = [
        [row.name, _ms(row.shown_ms), _percent(row.share), f"{row.launches:,.1f}", _rate(row), _replaced(row)]
        for row in result.categories
    ]
    overlaps = abs(result.overlap_ms) >= SEEN
    if overlaps and not result.once:
        rows.append([OVERLAP, _ms(-result.overlap_ms), "", "", "", ""])
    told = any(row.replaced for row in result.categories)
    total = sum(row.launches for row in result.categories)
    of_gpu = result.protocol.of == tracing.GPU
    rows.append([together(result), _ms(result.gpu_ms), "", f"{total:,.1f}", "", ""])
    if of_gpu:
        rows.append(["waiting", _ms(max(0.0, result.step_ms - result.gpu_ms)), "", "", "", ""])
    rows.append(["step", _ms(result.step_ms), "", "", "", ""])
    other = next((row.share for row in result.categories if row.name == categories.OTHER), 0.0)
    limit = f"{100 * composing.MOST_OTHER:.0f} percent"
    said = f"under {limit}" if other <= composing.MOST_OTHER else f"above {limit}: the classifier lacks names"
    lines = [f"other is {100 * other:.1f} percent, {said}"]
    if overlaps and result.once:
        lines.append(
            f"beside another kernel ran {result.overlap_ms:.2f} ms more: an instant counts for the kernel of the busier"
            " stream alone; rates are of all milliseconds, and so are the tables below"
        )
    if any(row.replaced for row in result.categories):
        sources = sorted({row.replaced.source for row in result.categories if row.replaced})
        lines.append(f"took the place of: what other categories lost at that rung, by {', '.join(sources)}")
    launched = "launches" if of_gpu else "calls"
    head = ["category", "ms a step", "share", launched, "rate", *["took the place of"] * told]
    return Table("By category", head, [row[: len(head)] for row in rows], lines)


def _rate(row: Category) -> str:
    """Return the rate, or nothing for work of which a table shows 0.00 ms."""
    if row.rate is None or row.ms < SEEN:
        return ""
    if row.unit == rates.TBS and row.rate < SMALL:
        return f"{1000 * row.rate:.3g} GB/s"
    return f"{row.rate:.3g} {row.unit}"


def _replaced(row: Category) -> str:
    if (found := row.replaced) is None:
        return ""
    return f"{found.lost_ms:.2f} ms by {found.fused_ms:.2f} at {found.at}"


def _expected(result: Result) -> Table:
    rows = [
        [row.name, f"{100 * row.low:.0f}-{100 * row.high:.0f}%", _percent(row.share)]
        for row in result.expected
    ]
    lines = [
        "the article speaks of its own baseline on an A100",
        "convolutions here are the categories convolution and matmul",
        "names of plain PyTorch's kernels do not tell modulation from activation: both count as nonlinearities",
    ]
    return Table("Beside the article's expectation", ["group", "article", "here"], rows, lines)


def _phases(result: Result) -> Table:
    rows = [
        [
            row.name,
            _ms(row.ms),
            "" if row.run_ms is None else _ms(row.run_ms),
            "" if row.runs is None else f"{row.runs:g}",
            f"{row.launches:,.1f}",
        ]
        for row in result.phases
    ]
    return Table("By phase", ["phase", "ms a step", "ms a run", "runs a step", "launches a step"], rows)


def _gaps(result: Result) -> list[Table]:
    if not result.gaps:
        return []
    rows = [
        [f"{row.before}, then {row.after}", _ms(row.ms), f"{row.number:,.1f}", f"{row.median_us:.2f}"]
        for row in result.gaps
    ]
    lines = ["inside runs of phases, in the traced cycle: its gaps are longer than those of a timed one"]
    return [Table("Where nothing runs", ["between", "ms a step", "gaps a step", "median us"], rows, lines)]


def _layers(result: Result) -> Table:
    found = result.layers
    names = ["layer", "ms a step", "of it backward", "launches a step"]
    if found.reason is not None:
        return Table("By layer", names, [], [f"no layers: {found.reason}"])
    rows = [
        [row.name, _ms(row.ms), _ms(row.backward_ms), f"{row.launches:,.1f}"] for row in found.rows[:LAYERS]
    ]
    if rest := found.rows[LAYERS:]:
        sums = sum(row.ms for row in rest), sum(row.backward_ms for row in rest)
        launches = sum(row.launches for row in rest)
        rows.append([f"{len(rest)} other layers", *map(_ms, sums), f"{launches:,.1f}"])
    return Table(
        "By layer", names, rows, [f"unknown layers: {100 * (found.unknown or 0):.1f} percent of the work"]
    )


def _memory(found: Memory) -> list[Table]:
    lasting = found.parameters + found.optimizer + found.buffers
    sizes = [
        ("peak, allocated", found.peak_allocated),
        ("peak, reserved", found.peak_reserved),
        ("in use on the device", found.device_used),
        ("parameters, average and copies", found.parameters),
        ("optimizer state", found.optimizer),
        ("inputs and images", found.buffers),
        ("graph pools", found.graph_pools),
    ]
    rows = [[name, f"{size / MIB:,.1f}"] for name, size in sizes if size is not None]
    made = [Table("Memory", ["", "MiB"], rows, found.notes)]
    moments = []
    for phase, each in found.timeline.items():
        if not each:
            continue
        chosen = (
            each[0],
            max(each, key=lambda m: m.gradients),
            max(each, key=lambda m: m.activations),
            each[-1],
        )
        for name, moment in zip(MOMENTS, chosen, strict=True):
            total = lasting + moment.gradients + moment.activations
            sizes_ = [f"{size / MIB:,.1f}" for size in (moment.gradients, moment.activations, total)]
            moments.append([phase, name, f"{moment.at_ms:.1f}", *sizes_])
    if moments:
        names = ["phase", "moment", "at ms", "gradients MiB", "activations MiB", "all MiB"]
        made.append(Table("Memory over time, in an eager run of each phase", names, moments))
    return made


def _heaviest(result: Result) -> list[Table]:
    if not result.heaviest:
        return []
    of_gpu = result.protocol.of == tracing.GPU
    names = unlike([row.kernel for row in result.heaviest])
    rows = [
        [
            name,
            _ms(row.ms),
            _percent(row.ms / (result.total_ms or 1)),
            f"{row.launches:,.1f}",
            f"{1000 * row.ms / row.launches:,.1f}" if row.launches else "",
            f"{row.phase} ({100 * row.phase_ms / (row.ms or 1):.0f}%)",
        ]
        for name, row in zip(names, result.heaviest, strict=True)
    ]
    head = [
        "kernel" if of_gpu else "operator",
        "ms a step",
        "share",
        "launches" if of_gpu else "calls",
        "us each",
    ]
    lines = ["names are shortened; kernels of one name may differ in their templates' numbers"] * of_gpu
    return [Table(f"Heaviest {'kernels' if of_gpu else 'operators'}", [*head, "most of it in"], rows, lines)]


def passes(result: Result) -> list[Table]:
    """Return the kernels of ours beside copies of as many bytes."""
    if not result.passes:
        return []
    rows = [
        [
            row.kernel,
            _ms(row.ms),
            f"{row.launches:,.1f}",
            "" if row.bytes is None else f"{row.bytes / 1e6:,.1f}",
            f"{row.bytes / row.known_ms / 1e9:.2f}" if row.bytes and row.known_ms else "",
            "" if (share := of_a_copy([row])) is None else _percent(share),
        ]
        for row in result.passes
    ]
    together = of_a_copy(result.passes)
    every = sum(row.ms for row in result.passes), sum(row.launches for row in result.passes)
    rows.append(
        [
            "together",
            _ms(every[0]),
            f"{every[1]:,.1f}",
            "",
            "",
            "" if together is None else _percent(together),
        ]
    )
    far = [row.kernel for row in result.passes if row.ms > LONG_MS and (of_a_copy([row]) or 1) < NEAR]
    lines = [
        f"share: the time that copies of as many bytes take with a cold L2, median of {rates.COPIES}, by the kernel's",
        "bytes: each tensor that a launch is given, once; a kernel may find some of them in the L2",
        "no bytes: kernels that read addresses from a table; the categories of the profile have the optimizer's rate",
        f"over {1000 * LONG_MS:.0f} us a step and below {100 * NEAR:.0f}%: {', '.join(far) or 'none'}",
    ]
    head = ["kernel", "ms a step", "launches", "MB a step", "TB/s", "share of a copy"]
    return [Table("Our kernels beside a copy", head, rows, lines)]


def of_a_copy(rows: Sequence[Pass]) -> float | None:
    """Return the time of copies of as many bytes by the kernels' time, or None if no bytes are known."""
    known = [(row.copy_ms, row.known_ms) for row in rows if row.copy_ms is not None and row.known_ms]
    return sum(copy for copy, _ in known) / sum(own for _, own in known) if known else None


def _counters(result: Result) -> list[Table]:
    if not result.counters:
        return []
    names = unlike([kernel_names.label(row.kernel) for row in result.counters])
    seen = [(name, row) for name, row in zip(names, result.counters, strict=True) if row.us is not None]
    rows = [
        [
            name,
            f"{row.us:,.1f}",
            *("" if each is None else f"{each:.0f}" for each in (row.sm, row.dram, row.l1_hits)),
            "" if row.sector_bytes is None else f"{row.sector_bytes:.1f}",
            counted.bound(row.sm, row.dram, row.blocks or None, row.sms or None),
        ]
        for name, row in seen
    ]
    lines = [
        f"the longest of the first {counted.LAUNCHES} launches of each grid, with emptied caches",
        "SM %, DRAM %: of the peak; of 32 B: bytes that loads use of a sector",
    ]
    missing = [(name, row) for name, row in zip(names, result.counters, strict=True) if row.us is None]
    lines += [f"no counters of {name}: {row.sentence}" for name, row in missing]
    head = ["kernel", "us", "SM %", "DRAM %", "L1 hit %", "of 32 B", "what bounds it"]
    return [Table("Counters of the heaviest kernels", head, rows, lines)]


def unlike(names: Sequence[str]) -> list[str]:
    """Return names for one table. A name that came before gets a number."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _largest(result: Result) -> list[Table]:
    if not (found := result.largest):
        return []
    rows = [[str(each.batch), "fits" if each.reason is None else each.reason] for each in found.tried]
    speed = "" if found.images_per_s is None else f", {found.images_per_s:,.1f} images/s there"
    batch = "none" if found.batch is None else str(found.batch)
    more = "" if found.settled else "; the search was not finished, more may fit"
    return [
        Table("The largest batch", ["batch", "outcome"], rows, [f"largest that fits: {batch}{speed}{more}"])
    ]


# --- the two forms ----------------------------------------------------------------------------------------------------


def text(result: Result) -> str:
    """Return the report for a terminal."""
    lines = [sentence(result)]
    for table in tables(result):
        lines += ["", table.title]
        if table.rows:
            lines += aligned([table.head, *table.rows], _words(table))
        lines += [f"- {plain(line)}" for line in table.lines]
    return "\n".join([*lines, "", *(plain(note) for note in result.protocol.notes)]).rstrip()


def _words(table: Table) -> list[int]:
    """Return which columns have words below their heads."""
    return [k for k, column in enumerate(zip(*table.rows, strict=True)) if not all(map(_is_number, column))]


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "+-"


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    machine, work = result.machine, result.workload
    page = [
        f"# What {escaped(result.rung)} does in a step: {escaped(machine.gpu or machine.cpu)}",
        "",
        escaped(sentence(result)),
        "",
        f"Workload {escaped(work['name'])}, ladder {escaped(result.ladder)}, PyTorch {escaped(machine.torch or '')},"
        f" commit {results.commit_words(head(result))}. One process, one traced cycle.",
    ]
    for table in tables(result):
        page += ["", f"## {escaped(table.title)}", ""]
        if table.rows:
            page += [*piped([table.head, *table.rows], _words(table)), *[""] * bool(table.lines)]
        page += [f"- {escaped(line)}" for line in table.lines]
    page += ["", *(f"- {escaped(note)}" for note in result.protocol.notes)]
    return "\n".join(page).rstrip() + "\n"


def _ms(value: float) -> str:
    told = f"{value:.2f}"
    return told if float(told) else "0.00"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
