"""The report of `ladder upstream`: a table of both steps, and our speedup."""

from __future__ import annotations

from ladder.base.protocol import IN_ORDER
from ladder.base.text import aligned, counted, escaped, piped
from ladder.results import store as results
from ladder.results.types import given, head
from ladder.stats import estimates
from ladder.studies.upstream import source
from ladder.studies.upstream.record import PATCHED, UPSTREAM, Patched, Ratio, Result, gpu_ms, gpu_ratio

NAMES = {UPSTREAM: "NVIDIA's stylegan2", PATCHED: "the same, patched"}
HEADINGS = (
    *("step", "ms/step", "95% interval", "GPU ms", "waits for the host", "without R1, path length"),
    *("images/s", "allocated GiB", "status"),
)
GIB = 2**30


def cells(result: Result) -> list[tuple[str, ...]]:
    """Return a row for each step, by the wall clock and in GPU time."""
    rows: list[tuple[str, ...]] = []
    gpu = gpu_ms(result)
    for each in result.programs:
        ms, interval, busy = each.step_ms, each.interval_ms, gpu.get(each.side)
        sizes = [r.peak_allocated_bytes for r in each.rounds if r.peak_allocated_bytes]
        rows.append(
            (
                NAMES.get(each.side, f"ours, {each.rung}"),
                _ms(ms),
                f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "",
                _ms(busy),
                f"{_waits(ms, busy):.0f}%" if ms and busy else "",
                _ms(_walls(result, each.side).get("main")),
                f"{1000 * result.workload['batch'] / ms:,.0f}" if ms else "",
                f"{max(sizes) / GIB:.2f}" if sizes else "",
                each.status + (f": {each.reason}" if each.reason else ""),
            )
        )
    return rows


def lines(result: Result) -> list[str]:
    """Return the speedup, the settings in force, our parity and receipts, and why not to quote them."""
    found, parity = [], result.parity
    if result.ratio:
        found.append(f"ours is {times(result.ratio, 'as fast')}, by the wall clock, paired by generation")
    if ours := gpu_ratio(result):
        found.append(f"ours, its GPU time is {times(ours, 'less')}")
    if result.patched:
        found += patched_lines(result, result.patched)
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


def times(ratio: Ratio, what: str) -> str:
    """Return a factor in words ("2.00 times as fast"), with its interval if there is one."""
    between = ratio.interval
    words = f" (95%: {between[0]:.2f}-{between[1]:.2f})" if between else ""
    return f"{ratio.median:.2f} times {what}{words}"


def patched_lines(result: Result, found: Patched) -> list[str]:
    """Return what the drop-in files change: the time of a step, each phase, and the gradients' errors."""
    made = []
    if found.ratio:
        made.append(
            f"patched, NVIDIA's step is {times(found.ratio, 'as fast')}, by the wall clock, paired by generation"
        )
    if found.gpu_ratio:
        gpu = gpu_ms(result)
        both = ", ".join(f"{side} {gpu[side]:.2f}" for side in (UPSTREAM, PATCHED))
        made.append(f"patched, its GPU time is {times(found.gpu_ratio, 'less')}: {both} ms a step")
    if found.parity:
        made.append(
            f"patched: parity {found.parity.verdict} at batch {found.parity.batch}, of gradients against FP64"
        )
    made.append(f"patched: drop-in files {found.digest}")
    return made


def _waits(wall: float, busy: float) -> float:
    """Return the percentage of a step in which its GPU does nothing."""
    return 100 * max(0.0, 1 - busy / wall)


PHASE_HEADINGS = (
    *("phase", "wall ms, NVIDIA's", "wall ms, patched", "GPU ms, NVIDIA's", "GPU ms, patched", "less by"),
    *("error, NVIDIA's", "error, patched", "over tensors, NVIDIA's", "over tensors, patched"),
)


def phase_cells(result: Result) -> list[tuple[str, ...]]:
    """Return a row for each phase of the patched comparison.

    Wall time is that of both main phases together, and of a lazy phase what it adds to a step that has it.
    """
    found, rows = result.patched, []
    if not found:
        return []
    wall = {side: _walls(result, side) for side in (UPSTREAM, PATCHED)}
    main = ("both main phases", *(_ms(wall[side].get("main")) for side in wall), *[""] * 7)
    for phase in IN_ORDER:
        both = [(found.phases or {}).get(side, {}).get(phase) for side in (UPSTREAM, PATCHED)]
        gpu = [estimates.median(each.gpu_ms) if each else None for each in both]
        wrong = (found.parity.phases if found.parity else {}).get(phase)
        errors = (
            (wrong.unpatched, wrong.patched, wrong.unpatched_tensors, wrong.patched_tensors) if wrong else ()
        )
        rows.append(
            (
                phase,
                *(_ms(wall[side].get(phase)) for side in wall),
                *map(_ms, gpu),
                f"{gpu[0] / gpu[1]:.2f}x" if None not in gpu else "",
                *([f"{each:.2g}" for each in errors] or [""] * 4),
            )
        )
    return [main, *rows]


def _walls(result: Result, side: str) -> dict[str, float]:
    """Return the median wall ms of a step without lazy phases, and of what each lazy phase adds to a step."""
    rounds = result.program(side).rounds
    mains = [ms for each in rounds if (ms := given(each.main_ms))]
    found = {"main": estimates.median(mains)} if mains else {}
    lazy = [given(each.lazy_ms) or {} for each in rounds]
    for phase in IN_ORDER:
        added = [each[phase] for each in lazy if phase in each]
        if added:
            found[phase] = estimates.median(added)
    return found


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def text(result: Result) -> str:
    """Return the report for a terminal."""
    parts = [*aligned([HEADINGS, *cells(result)]), ""]
    if phases := phase_cells(result):
        parts += [*aligned([PHASE_HEADINGS, *phases]), ""]
    return "\n".join([*parts, *lines(result)])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, work, rules = result.machine, result.workload, result.protocol
    phases = phase_cells(result)
    hardware = escaped(facts.gpu or facts.cpu or "")
    page = [
        f"# NVIDIA's own StyleGAN2 and ours on {hardware}",
        "",
        f"Workload {escaped(work['name'])}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, R1 and"
        f" path length included; {counted(rules.rounds, 'generation')} of"
        f" {counted(rules.cycles, '16-step cycle')}, each in fresh processes,"
        f" in turn. PyTorch {facts.torch}, commit {results.commit_words(head(result))}. NVIDIA's:"
        f" training/{result.source.networks}.py of [stylegan3]({source.URL}) or of a copy,"
        f" sources {result.source.digest}, as `--cfg=stylegan2 --aug=noaug`.",
        "",
        *piped([HEADINGS, *cells(result)], words=(0, 2, 8)),
        "",
        *([*piped([PHASE_HEADINGS, *phases]), ""] if phases else []),
        *(f"- {escaped(line)}" for line in lines(result)),
    ]
    return "\n".join(page) + "\n"
