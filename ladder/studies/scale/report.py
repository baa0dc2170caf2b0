"""The report of `ladder scale`: terminal table and Markdown."""

from __future__ import annotations

from ladder.base.text import aligned, amount, escaped, ms, piped
from ladder.results import store as results
from ladder.results.types import head
from ladder.studies.scale.record import Point, Result, fewest_of, of_generations, too_few

HEADINGS = (
    "way", "scaling", "GPUs", "batch", "ms/step", "images/s", "efficiency", "95% interval",
    "communication ms", "exposed ms", "GiB reserved",
)  # fmt: skip
RELATIVE = (
    "A sample is the slowest rank's 16-step cycle. Efficiency is images a second and GPU, relative to the same way on"
    " the fewest GPUs"
)
PAIRED = (
    "Its generations are paired and their median counts: under noise the medians beside it do not tell it."
)
MEANINGS = (
    "Communication is profiled. It is the least of all ranks, and what is exposed the most of all: a rank that waits"
    " for another waits inside NCCL's kernel.",
)


TOO_FEW = "too few generations"


def several(result: Result) -> str:
    """Return what a point has a number of: GPUs, or ranks that share a CPU."""
    return "GPUs" if result.machine.gpu else "ranks"


def headings(result: Result) -> list[str]:
    """Return the headings of `cells`."""
    return [several(result) if each == "GPUs" else each for each in HEADINGS]


def cells(result: Result, quoted: bool = False) -> list[tuple[str, ...]]:
    """Return a row for each point. `quoted`: without the numbers of a point that must not be quoted."""
    return [_row(point, result.points, quoted) for point in result.points]


def efficiency(point: Point, points: list[Point]) -> float | None:
    """Return a point's efficiency, None for several GPUs relative to themselves: 100% says nothing about scaling."""
    return None if point.gpus == fewest_of(point, points).gpus > 1 else point.efficiency


def _row(point: Point, points: list[Point], quoted: bool) -> tuple[str, ...]:
    few = too_few(point, points)
    named = (point.way, point.scaling, str(point.gpus), str(point.batch))
    if point.step_ms is None or point.status != "ok":
        return (*named, f"{point.status}: {point.reason}", *[""] * 6)
    if few and quoted:
        return (*named, TOO_FEW, *[""] * 6)
    relative = efficiency(point, points)
    interval = "" if point.low is None else f"{100 * point.low:.1f} to {100 * (point.high or 0):.1f}%"
    return (
        *named,
        ms(point.step_ms),
        amount(point.images_per_s),
        "" if relative is None else f"{100 * relative:.1f}%",
        TOO_FEW if few else interval,
        _number(point.comm_ms),
        _number(point.exposed_ms),
        "" if point.peak_bytes is None else f"{point.peak_bytes / 2**30:.1f}",
    )


def generations(result: Result) -> str:
    """Return how many generations the points have, in words."""
    counts = sorted({len(of_generations(point)) for point in result.points if point.runs}) or [0]
    span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    runs = f" in {len(result.merged)} runs" if result.merged else ""
    return f"{span} generation{'s' * (counts != [1])}{runs}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def proofs(result: Result) -> list[str]:
    """Return one line for each way that was proved."""
    return [
        f"{proof.way} on {proof.gpus} {several(result)}, batch {proof.batch}: "
        + (f"parity {proof.parity}, engaged" if proof.status == "ok" else f"{proof.status}: {proof.reason}")
        for proof in result.proofs
    ]


def text(result: Result) -> str:
    """Return the report for a terminal."""
    rows = aligned([headings(result), *cells(result)])
    return "\n".join([*rows, "", *proofs(result), "", *result.protocol.notes])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, work, rules = result.machine, result.workload, result.protocol
    alone = all(fewest_of(each, result.points).gpus == 1 for each in result.points if each.runs)
    page = [
        f"# Several {several(result)}: {escaped(facts.gpu or facts.cpu or '')}",
        "",
        f"Workload {escaped(work['name'])}: {work['resolution']}x{work['resolution']}, R1 and path length included."
        f" {generations(result)}, of {rules.visits} visits each, over {rules.backend}. PyTorch {facts.torch},"
        f" commit {results.commit_words(head(result))}.",
        "",
        *piped([headings(result), *cells(result)], words=(0, 1)),
        "",
        f"{RELATIVE}{', which has no reduction' if alone else ''}. {PAIRED}",
        *MEANINGS,
        "",
        *(
            f"{indent}- {escaped(line)}"
            for proof, said in zip(result.proofs, proofs(result), strict=True)
            for indent, line in [("", said), *(("  ", each) for each in proof.lines)]
        ),
        *(f"- {escaped(line)}" for line in rules.notes),
    ]
    return "\n".join(page).rstrip() + "\n"
