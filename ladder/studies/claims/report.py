"""The report of the claims: the table in the terminal, and a Markdown page with every number behind it."""

from __future__ import annotations

from ladder.base.text import escaped, ms, piped
from ladder.report import output
from ladder.studies.claims import registry
from ladder.studies.claims.hardware.counters import UNCOUNTED
from ladder.studies.claims.schema import ClaimResult, Claims, Counted, ExperimentResult, Kernel
from ladder.studies.claims.view import View

HEADINGS = ("claim", "the article says", "article", "ours", "95% interval", "verdict", "why")
SIGNS = {"x": "x", "percent": "%"}  # written right behind a number
WIDE = 150  # columns of a terminal with room for all of HEADINGS
STYLES = {registry.HOLDS: "green", registry.LESS: "yellow", registry.MORE: "yellow"}
KERNEL_HEADINGS = (
    "kernel", "language", "threads", "registers", "shared bytes", "local bytes", "blocks an SM", "occupancy",
    "limited by", "achieved", "forms, spilling",
)  # fmt: skip
SOURCES = {
    "step": "Kernels of a step: `article` with every rung of `full`",
    "ops": "More kernels of `ladder kernels`, at their largest shapes",
    "calls": "More kernels, called alone",
    "built": "More kernels of CUDA C++, not launched here",
}
UNCOUNTED_SOURCES = {  # kernels of these sources have a count only from an op of `ladder kernels`
    "step": "only a step launches it",
    "ops": "only as part of another op",
    "calls": "no op of ladder kernels launches it",
    "built": "nothing launches it here",
}


def amount(value: float, unit: str) -> str:
    """Return a number as 2.31x, 91% or 3.40 us: three digits, or whole numbers from 100 on."""
    text = f"{value:,.0f}" if value >= 100 or unit == "percent" else f"{value:.{1 if value >= 10 else 2}f}"
    return text + SIGNS.get(unit, f" {unit}")


def figure(claim: registry.Claim) -> str:
    if claim.figure is None:
        return "no figure"
    low, high = claim.figure
    text = f"{low:g}" if low == high else f"{low:g}-{high:g}"
    return text + SIGNS.get(claim.unit, f" {claim.unit}")


def cells(row: ClaimResult, result: Claims) -> list[str]:
    """Return one claim's texts, under HEADINGS."""
    claim = registry.BY_NAME[row.name]
    ours = row.ours
    interval = ours and ours.interval
    return [
        claim.name,
        claim.statement,
        figure(claim),
        amount(ours.median, claim.unit) if ours else "n/a",
        f"{amount(interval[0], claim.unit)} to {amount(interval[1], claim.unit)}"
        if interval
        else claim.once * bool(ours),
        row.verdict,
        registry.sentence(claim, result),
    ]


def title(result: Claims) -> str:
    machine = result.machine
    return f"The article's claims on {machine.gpu or machine.cpu}, PyTorch {machine.torch}"


def remarks(result: Claims) -> list[str]:
    rules, counted = result.protocol, result.protocol.counters
    repeats = [len(v) for each in result.experiments for v in each.samples_us.values()]
    span = "no" if not repeats else " to ".join(map(str, sorted({min(repeats), max(repeats)})))
    lines = [
        f"{span} repeats with new inputs, in random order; cold L2 (of {rules.l2_bytes / 2**20:.0f} MiB); ratios are"
        " paired by repeat, intervals Student's t over repeats",
        "verdict: holds where the interval comes within a tenth of the article's figure, else more or less; not"
        " separated where the two times differ in something else as well",
    ]
    lines.append(
        "TB/s at least: bytes that have to cross memory, by count, over the median time; in DRAM: what it saw"
    )
    ncu = "Nsight Compute, L2 emptied before each kernel; achieved occupancy is the mean over a contender's kernels by"
    ncu += " their time, and of a kernel that of its longest launch"
    lines.append(f"hardware counters: {counted or ncu}")
    return lines


def print_table(result: Claims) -> None:
    """Print the claims. Only a terminal gets colours."""
    from rich.table import Table
    from rich.text import Text

    console = output.console()
    output.say_line(console, title(result), "bold")
    for note in result.protocol.notes:
        output.say_line(console, note, "bold yellow")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    wide = console.width >= WIDE
    shown = range(len(HEADINGS)) if wide else (0, 2, 3, 5, 6)
    for column in shown:
        table.add_column(Text(HEADINGS[column]), overflow="fold")
    for row in result.claims:
        texts = cells(row, result)
        if not wide and texts[4]:  # a narrow terminal has no column for the interval
            texts[3] += f" ({texts[4]})"
        table.add_row(*(Text(texts[c], style=STYLES.get(texts[c], "")) for c in shown))
    console.print(table)
    for line in remarks(result):
        output.say_line(console, line, "dim")
    output.say_left_out(console, 0 if wide else 1)  # the interval stands beside our number


def markdown(result: Claims) -> str:
    """Return the page: the claims, every experiment, and every kernel's occupancy."""
    commit = (result.commit or "unknown")[:12]
    state = ", with changes" if result.dirty else ""
    lines = [f"# {escaped(title(result))}", "", f"Commit {commit}{state}, {result.started}.", ""]
    lines += [f"**{escaped(note)}**\n" for note in result.protocol.notes]
    lines += _table(HEADINGS, [cells(row, result) for row in result.claims])
    lines += [f"- {escaped(remark)}" for remark in remarks(result)]
    lines += ["", "## What was timed", ""]
    for experiment in result.experiments:
        lines += _experiment(experiment, View(result))
    lines += ["## Occupancy", ""]
    for source, heading in SOURCES.items():
        rows = [row for row in result.kernels if row.source == source]
        if rows:
            lines += [
                f"### {heading}",
                "",
                *_table(KERNEL_HEADINGS, [kernel_cells(row, result) for row in rows]),
            ]
    order = [f"{each.name}: {name}" for each in result.experiments for name in each.bytes]
    rows = [row for source in order for row in result.kernels if row.source == source]
    if rows:
        texts = [[row.source, *kernel_cells(row, result)] for row in rows]
        lines += ["### Kernels of the experiments", "", *_table(("experiment", *KERNEL_HEADINGS), texts)]
    return "\n".join(lines) + "\n"


def uncounted(source: str, result: Claims) -> str:
    """Return why a kernel of this source has no achieved occupancy."""
    if result.protocol.counters:
        return "not counted here"
    if source in UNCOUNTED_SOURCES:
        return UNCOUNTED_SOURCES[source]
    return "left out, to save time" if source.split(":")[0] in UNCOUNTED else "Nsight Compute saw no launch"


def kernel_cells(row: Kernel, result: Claims) -> list[str]:
    """Return one kernel's texts, under KERNEL_HEADINGS. Unknown values are empty."""
    forms = str(row.forms) + ("" if row.spilling is None else f", {row.spilling}")
    texts = [row.kernel, row.language]
    texts += [
        _or_empty(each)
        for each in (row.threads, row.registers, row.shared_bytes, row.local_bytes, row.blocks)
    ]
    achieved = _share(row.achieved) or f"n/a: {uncounted(row.source, result)}"
    return [*texts, _share(row.occupancy), row.limited_by or "", achieved, forms]


def _experiment(experiment: ExperimentResult, view: View) -> list[str]:
    name = experiment.name
    rows = []
    for contender in dict.fromkeys((*experiment.us, *experiment.reasons)):
        us = experiment.us.get(contender)
        counted = view.counted(name, contender)
        interval = us and us.interval
        bandwidth = view.bandwidth(name, contender) if contender in experiment.bytes else None
        seen = view.rate(name, contender) if counted and _megabytes(counted) else None
        rows.append(
            [
                contender,
                ms(us.median) if us else "n/a",
                f"{ms(interval[0])} to {ms(interval[1])}" if interval else "",
                f"{bandwidth:.3g}" if bandwidth else "",
                f"{seen:.3g}" if seen else "",
                _share(view.occupancy(name, contender)),
                _share(counted.occupancy if counted else None),
                _megabytes(counted),
                _sectors(counted),
                experiment.reasons.get(contender, ""),
            ]
        )
    shape = "x".join(map(str, experiment.shape))
    shape = "" if shape == "1" else f", {shape}"
    headings = (
        "", "us", "95% interval", "TB/s at least", "in DRAM", "occupancy", "achieved", "DRAM MB in, out",
        "sectors a load, store", "n/a because",
    )  # fmt: skip
    return [f"### {escaped(name)}{shape}", "", *_table(headings, rows)]


def _megabytes(counted: Counted | None) -> str:
    if not counted or None in (counted.dram_read, counted.dram_written):
        return ""
    return f"{counted.dram_read / 1e6:,.0f}, {counted.dram_written / 1e6:,.0f}"


def _sectors(counted: Counted | None) -> str:
    if not counted or not (counted.sectors_a_load or counted.sectors_a_store):
        return ""
    return f"{counted.sectors_a_load or 0:.1f}, {counted.sectors_a_store or 0:.1f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _or_empty(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _table(headings: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    return [*piped([headings, *rows], words=range(len(headings))), ""]
