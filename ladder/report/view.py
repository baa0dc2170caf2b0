"""The view of a result: what table, Markdown, CSV and chart have in common.

A result may come from a stranger, so its text is reduced to one printable line.
"""

from __future__ import annotations

from dataclasses import dataclass

from ladder.base.text import at_commits, factor, percent, plain
from ladder.machine import environment
from ladder.plan import catalog, modes
from ladder.report import checks
from ladder.results import derive, sources
from ladder.results import store as results
from ladder.results.judging import top_gains
from ladder.results.publishable import publishable
from ladder.results.types import (
    ABSENT,
    Absent,
    Ladder,
    Machine,
    Plain,
    Result,
    RungResult,
    TopGain,
    given,
    head,
)
from ladder.stats import answers, verdicts

GIB = 2**30
ARTICLE = "one A100"
LAZY = {"G_pl": "path length", "D_r1": "R1"}
VERSUS = {
    modes.CUMULATIVE: "vs previous",
    modes.SOLO: "alone",
    modes.LEAVE_ONE_OUT: "gain at top",
}


@dataclass(frozen=True)
class Row:
    """One rung as it is shown. Times in ms a step, memory in GiB, shares 0..1; None where there is no number."""

    name: str
    title: str
    status: str
    reason: str
    step_ms: float | None
    interval: tuple[float, float] | None  # 95 %, over rounds
    previous: float | None  # speedup against the last rung with a number, or what the mode compares it with
    gain: tuple[float, float] | None  # interval of `previous`, by which the verdict was made
    verdict: str  # "" where none was made
    top_gain: float | None  # at the top: the whole ladder without it / with it
    top_interval: tuple[float, float] | None
    advice: str  # ADOPT, SKIP, NO DIFFERENCE, ambiguous; "" where it was not left out
    total: float | None  # against the baseline
    total_interval: tuple[float, float] | None  # 95 %, over rounds
    floor: float | None  # noise of the rung's kind, a share
    receipts: str  # "ok", "not engaged"; "" where there are none
    parity: str  # "0.41 of budget", "failed"; "" where it was not checked
    parity_share: float | None
    rejected: int | None  # visits that were void and repeated
    main_ms: float | None  # without the lazy regularization phases
    main_total: float | None
    host_bound: float | None
    images_per_s: float | None
    memory: float | None  # most that the allocator reserved; on a CPU resident
    allocated: float | None  # most that was allocated of it
    device: float | None  # in use on the whole GPU after timing
    article_ms: float | None
    article_total: float | None  # the article's speedup against the same rung as `total`
    notes: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """A result as it is shown: rows, and the words around them."""

    machine: str
    workload: str
    protocol: str
    marks: tuple[str, ...]  # why not to quote it, if so
    remarks: tuple[str, ...]  # what a reader must know: baseline, reasons, notes
    reference: str
    memory: str  # what the memory column means
    title: str
    quick: bool
    mode: str
    versus: str  # heading of `previous`
    visits: int
    rejected: int | None  # visits of the whole run, None where nobody watched
    noise: str  # noise floors and resolution, in a line
    baseline: str | None
    rows: tuple[Row, ...]


def view(result: Result) -> View:
    """Return everything that table and chart show of one result."""
    on_cpu = result.machine.device == "cpu"
    base = result.baseline
    article_base = next((rung.article_ms for rung in result.rungs if rung.name == base), None)
    mode = result.protocol.mode or modes.CUMULATIVE
    top = (top_gains(result) if mode == modes.LEAVE_ONE_OUT else result.at_top) or {}
    rows = tuple(_row(rung, article_base, on_cpu, top.get(rung.name), mode) for rung in result.rungs)
    return View(
        machine=_machine(result.machine),
        workload=_workload(result.workload),
        protocol=_protocol(result),
        marks=tuple(map(plain, publishable(result))),
        remarks=(
            *_remarks(rows, base, article_base, mode),
            *_unmeasured(result, mode),
            *_lazy(result.rungs),
            *map(plain, environment.said(result.environment or None)),
        ),
        reference=_reference(result.ladder),
        memory="peak RSS, GiB" if on_cpu else "reserved GiB",
        title=plain(result.ladder.title),
        quick=result.protocol.quick,
        mode=mode,
        versus=VERSUS[mode],
        visits=sum(len(each.rounds) for each in sources.records(result)),
        rejected=result.gpu.rejected_visits if result.gpu else None,
        noise=_noise(result),
        baseline=base,
        rows=rows,
    )


def _row(rung: RungResult, article_base: float | None, on_cpu: bool, top: TopGain | None, mode: str) -> Row:
    ok, gain = rung.status == "ok", rung.gain or None
    peak = rung.peak_reserved_bytes or (_most(rung, "peak_rss_bytes") if on_cpu else None)
    allocated, device = rung.peak_allocated_bytes, _most(rung, "device_used_bytes")
    # A leave-one-out run does not measure the base, so `total` would only be the gain's inverse.
    whole = mode != modes.LEAVE_ONE_OUT
    rejected = [each.rejected for each in rung.rounds if each.rejected is not ABSENT]
    return Row(
        name=plain(rung.name),
        title=plain(rung.title),
        status=rung.status,
        reason=plain(rung.reason or ""),
        step_ms=rung.step_ms if ok else None,
        interval=_pair(rung.interval_ms) if ok else None,
        previous=gain.ratio if gain else rung.speedup_previous if mode == modes.CUMULATIVE else None,
        gain=_pair(gain.interval) if gain else None,
        verdict=rung.verdict or "",
        top_gain=top.gain if top else None,
        top_interval=_pair(top.interval) if top else None,
        advice=top.advice if top else "",
        total=rung.speedup_total if whole else None,
        total_interval=_pair(rung.total_interval) if whole else None,
        floor=given(gain.floor) if gain and rung.verdict else None,
        receipts=checks.receipts_word(rung),
        parity=checks.parity_word(rung),
        parity_share=checks.parity_share(rung.parity or None),
        rejected=sum(map(len, rejected)) if rejected else None,
        main_ms=rung.main_ms,
        main_total=rung.main_speedup_total if whole else None,
        host_bound=rung.host_bound,
        images_per_s=rung.images_per_s,
        memory=peak and peak / GIB,
        allocated=allocated and allocated / GIB,
        device=device and device / GIB,
        article_ms=rung.article_ms,
        article_total=article_base / rung.article_ms if article_base and rung.article_ms else None,
        notes=tuple(map(plain, rung.notes)),
    )


def _pair(interval: list[float] | Absent | None) -> tuple[float, float] | None:
    return (interval[0], interval[1]) if interval else None


def _most(rung: RungResult, key: str) -> float | None:
    return max((value for each in rung.rounds if (value := getattr(each, key))), default=None)


_KINDS = {
    "host": "host-bound rungs",
    "gpu": "GPU-bound rungs",
    "eager": "eager rungs",
    "captured": "captured rungs",
}


def _noise(result: Result) -> str:
    """Return the line of noise: `noise floor 1.8% (host-bound rungs, differences from 2.9% on are seen); ...`."""
    found, said = result.noise or {}, []
    for kind, of in _KINDS.items():
        if kind in found:
            seen = found[kind].resolution
            resolved = f", differences from {percent(seen)} on are seen" if seen else ""
            of = of if result.machine.device == "cuda" else "CPU"
            said.append(f"{percent(found[kind].floor)} ({of}{resolved})")
    gains = [rung.gain for rung in result.rungs if rung.kind == verdicts.HOST and rung.gain]
    if said and "host" not in found and any(gain.floor == verdicts.HOST_FLOOR for gain in gains):
        said.append(f"{percent(verdicts.HOST_FLOOR)} (host-bound rungs, assumed: none of them has a twin)")
    if said:
        inside = answers.LESS if derive.EAGER in found or derive.CAPTURED in found else verdicts.NO_GAIN
        return f"noise floor {'; '.join(said)}; what lies inside reads {inside}"
    several = sum(rung.status == "ok" for rung in result.rungs) > 1
    return f"no verdicts: {_no_twins(result)}, so the noise is unknown" if several else ""


def _no_twins(result: Result) -> str:
    """Return why nothing is known of the noise, where no floor could be made of the twins."""
    timed, why = [rung.name for rung in result.rungs if rung.status == "ok"], []
    for twin in result.twins or []:
        if twin.status in results.OUT:
            reason = f": {twin.reason}" if twin.reason else ""
            why.append(f"the twin of {twin.of} is out ({twin.status}{reason})")
        elif twin.rounds and twin.of not in timed:
            why.append(f"{twin.of} has a twin and no number itself")
        elif twin.rounds:
            why.append(f"the twin of {twin.of} has too few rounds")
    return "; ".join(map(plain, why)) or "no twin was measured"


def shown_gain(row: Row) -> str:
    """Return the factor that a rung gains; nothing where it lies inside the noise, whatever its sign."""
    return "" if row.verdict in (verdicts.NO_GAIN, answers.LESS) else factor(row.previous)


def shown_top(row: Row) -> str:
    """Return the factor that a rung gains at the top; nothing inside the noise."""
    return "" if row.advice == modes.ADVICE[verdicts.NO_GAIN] else factor(row.top_gain)


def _reference(ladder: Ladder) -> str:
    """Return whose `article_ms` the ladder quotes."""
    known = catalog.load_ladder(ladder.name).reference if ladder.name in catalog.ladders() else None
    return plain(known) if known else ARTICLE


def _machine(machine: Machine) -> str:
    parts = [machine.gpu or machine.cpu]
    if machine.gpu:
        parts.append(f"{machine.gpu_memory_gb:.0f} GiB" if machine.gpu_memory_gb else "")
    else:
        parts.append(f"{machine.cores} core{'s' if machine.cores != 1 else ''}")
    parts.append(f"PyTorch {machine.torch}" if machine.torch else "")
    parts.append(f"CUDA {machine.cuda}" if machine.cuda else "")
    return plain(", ".join(part for part in parts if part))


def _workload(workload: Plain) -> str:
    resolution, batch = workload.get("resolution"), workload.get("batch")
    norms = f"{workload.get('norm')}{', spectral norm' if workload.get('spectral_norm') else ''}"
    return plain(f"{workload['name']}: {resolution}x{resolution}, batch {batch}, {norms}")


def _protocol(result: Result) -> str:
    at = at_commits(sources.commits(head(result)), result.dirty)
    at += ", " if at else ""
    cycles = result.protocol.cycles
    return plain(
        f"{_rounds(result)} of {cycles} timed cycle{'s' if cycles != 1 else ''}"
        f" (16 steps each), lazy regularization included; {at}{result.started[:10]}"
    )


def _rounds(result: Result) -> str:
    """Return how many rounds the numbers are made of: `median of 2 to 3 rounds`. A stopped run planned more."""
    timed = [rung for rung in result.rungs if rung.status == "ok"]
    counts = [len(derive.counted(rung)) for rung in timed]
    most = max(counts, default=0) or result.protocol.rounds
    said = f"{min(counts)} to {most}" if counts and 0 < min(counts) < most else f"{most}"
    said += f" round{'s' if most != 1 else ''}"
    said += f" (of {len(result.merged)} runs)" if result.merged else ""
    return f"median of {said}" if timed else f"{said} planned, none with a number,"


def _unmeasured(result: Result, mode: str) -> list[str]:
    """Name the unmeasured rungs (`--rungs`) that a shown rung contains beside the one before it."""
    ladder, names = result.ladder.name, {rung.name for rung in result.rungs}
    if mode != modes.CUMULATIVE or ladder not in catalog.ladders():
        return []
    others = [rung.name for rung in catalog.load_ladder(ladder).rungs if rung.name not in names]
    # How many loaders there are depends on the machine, and this may be another machine.
    changes = {
        name: {k: v for k, v in catalog.load_rung(name).change.items() if k != "workers"} for name in others
    }
    lines, below = [], set[str]()
    for rung in result.rungs:
        recipe = rung.recipe
        if rung.status == "ok" and recipe is not None:
            there = [name for name in others if changes[name] and changes[name].items() <= recipe.items()]
            if more := [name for name in there if name not in below]:
                lines.append(f"part of {plain(rung.name)} and not measured here: {', '.join(more)}")
            below |= {*there}
    return lines


def _lazy(rungs: list[RungResult]) -> list[str]:
    """Say how much lazy phases add to a step that has them, for the first and the last rung that know it."""
    lines = []
    found = {rung.name: costs for rung in rungs if (costs := derive.lazy_costs(rung))}
    for name in dict.fromkeys([*list(found)[:1], *list(found)[-1:]]):
        each = []
        for phase, (ms, interval) in sorted(found[name].items()):
            if ms <= 0 or (interval and interval[0] <= 0):
                each.append(f"what {LAZY.get(phase, phase)} adds is within the noise")
                continue
            around = f" ({interval[0]:.4g} to {interval[1]:.4g})" if interval else ""
            each.append(f"{LAZY.get(phase, phase)} adds {ms:.4g} ms{around} to a step that has it")
        lines.append(f"{plain(name)}: {', '.join(each)}")
    return lines


def _remarks(rows: tuple[Row, ...], base: str | None, article_base: float | None, mode: str) -> list[str]:
    remarks = []
    if base is None:
        remarks.append("no rung has a number")
    elif base != "baseline" and mode != modes.LEAVE_ONE_OUT:
        there = any(row.name == "baseline" for row in rows)
        why_not = "the baseline has no number here" if there else "the baseline was not measured"
        remarks.append(f"speedups refer to {plain(base)}: {why_not}")
        if article_base is None and any(row.article_ms for row in rows):
            remarks.append(f"the article has no number for {plain(base)}, so none of its speedups are shown")
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != "ok":
            why.setdefault((row.status, row.reason), []).append(row.name)
    for (status, reason), names in why.items():
        remarks.append(f"{', '.join(names)}: {status}{': ' + reason if reason else ''}")
    said: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            said.setdefault(note, []).append(row.name)
    return remarks + [f"{', '.join(names)}: {note}" for note, names in said.items()]
