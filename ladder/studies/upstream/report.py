"""The report of `ladder upstream`: a table of both steps, and our speedup."""

from __future__ import annotations

from ladder.base.text import escaped
from ladder.results import store as results
from ladder.results.types import head
from ladder.studies.upstream import source
from ladder.studies.upstream.record import UPSTREAM, Result

NAMES = {UPSTREAM: "NVIDIA's stylegan2"}
HEADINGS = ("step", "ms/step", "95% interval", "images/s", "allocated GiB", "status")
GIB = 2**30


def cells(result: Result) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in result.programs:
        ms, interval = each.step_ms, each.interval_ms
        sizes = [r.peak_allocated_bytes for r in each.rounds if r.peak_allocated_bytes]
        rows.append(
            (
                NAMES.get(each.side, f"ours, {each.rung}"),
                f"{ms:.2f}" if ms else "",
                f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "",
                f"{1000 * result.workload['batch'] / ms:,.0f}" if ms else "",
                f"{max(sizes) / GIB:.2f}" if sizes else "",
                each.status + (f": {each.reason}" if each.reason else ""),
            )
        )
    return rows


def lines(result: Result) -> list[str]:
    """Return the speedup, the settings in force, our parity and receipts, and why not to quote them."""
    found, ratio, parity = [], result.ratio, result.parity
    if ratio:
        between = ratio.interval
        words = f" (95%: {between[0]:.2f}-{between[1]:.2f})" if between else ""
        found.append(f"ours is {ratio.median:.2f} times as fast{words}, paired by round")
    if settings := result.programs[0].settings:
        weights = " and ".join(f"{settings[f'parameters_{net}']:,} in {net}" for net in ("G", "D"))
        found.append(f"weights of both: {weights}")
        on = {True: "on", False: "off"}
        found.append(
            f"NVIDIA's: FP16 in {settings['fp16_resolutions']} resolutions, its CUDA ops {on[settings['cuda_ops']]}, "
            f"its fast double backward {on[settings['fast_double_backward']]}"
        )
    if parity:
        engaged = sum(each.engaged for each in (result.receipts or {}).values())
        found.append(f"ours: parity {parity.verdict}, {engaged} of {len(result.receipts or {})} receipts")
    return found + result.protocol.notes


def text(result: Result) -> str:
    """Return the report for a terminal."""
    table = [HEADINGS, *cells(result)]
    widths = [max(len(line[k]) for line in table) for k in range(len(HEADINGS))]
    rows = ["  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([*rows, "", *lines(result)])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, work, rules = result.machine, result.workload, result.protocol
    hardware = escaped(facts.gpu or facts.cpu or "")
    page = [
        f"# NVIDIA's own StyleGAN2 and ours on {hardware}",
        "",
        f"Workload {escaped(work['name'])}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, R1 and"
        f" path length included; {rules.rounds} rounds of {rules.cycles} 16-step cycles, each in fresh processes,"
        f" in turn. PyTorch {facts.torch}, commit {results.commit_words(head(result))}. NVIDIA's:"
        f" training/{result.source.networks}.py of [stylegan3]({source.URL}) or of a copy,"
        f" sources {result.source.digest}, as `--cfg=stylegan2 --aug=noaug`.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---:|---|---:|---:|---|",
        *("| " + " | ".join(escaped(cell) for cell in row) + " |" for row in cells(result)),
        "",
        *(f"- {escaped(line)}" for line in lines(result)),
    ]
    return "\n".join(page) + "\n"
