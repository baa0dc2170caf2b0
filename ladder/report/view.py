"""The view of a run: what its table, Markdown, CSV, chart and page have in common.

`view` makes it of a result: a `Row` for each rung, and the words around them. A result may come from a stranger, so its
text is reduced to one printable line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ladder.core.protocol import FASTER, LESS_THAN, SLOWER
from ladder.core.text import at_commits, clean_line, format_difference, format_factor, format_ms
from ladder.machine import environment
from ladder.plan import beside, catalog, modes
from ladder.results import derive, sources
from ladder.results.file import OUT, Machine
from ladder.results.publishable import publishable
from ladder.results.ranking import top_gains
from ladder.results.run import Gain, JudgedParity, ParityEntry, Result, RungResult, TopGain
from ladder.results.words import Seen, answer, word
from ladder.show.table import join_lines

Interval = tuple[float, float]
GIB = 2**30
ARTICLE = "one A100"
TITLE = '"Optimizing CUDA Kernels for Generative Adversarial Networks"'  # the article's
WORKLOAD = "article"  # of which the article has numbers: a file of a user with this name and other fields gets another
REPORTED_THEN = "judged when it was measured, with the statistics of that time"
UNPROVED = "not yet proved"  # timed before its inspection ended
EXEMPT = "exempt"
WAITS = 0.04  # a step whose GPU waits for this share of it has its pace from the CPU
LAZY = {"G_pl": "path length", "D_r1": "R1"}
WORKERS = "workers"  # a field of the recipe that a rung sets by the cores of the host
VERSUS = {
    modes.CUMULATIVE: "vs previous", modes.SOLO: "alone", modes.LEAVE_ONE_OUT: "gain at top",
    modes.MISTAKES: "times clean", modes.LEVERS: "times unchanged", modes.RECIPE: "vs baseline",
}  # fmt: skip
# Why a mistake costs what it costs, and what a lever changes.
REASONS = {
    name: each.why for mode in modes.STUDIES for name, each in beside.load_beside(mode).entries.items()
}


@dataclass(frozen=True, kw_only=True)
class Clock:
    """What a rung gains by one clock: the step, or the GPU's work in it. A factor above 1 is a gain."""

    interval: Interval | None = None  # 95%, of the milliseconds
    seen: Seen  # the answer of the run on this clock, against what the mode compares the rung with
    floor: float | None = None  # noise of the rung's kind, a log ratio
    total: float | None = None  # against the baseline
    top_gain: float | None = None  # at the top: the whole ladder without it / with it
    top_interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class GpuTime(Clock):
    """The GPU's work in a step. Times in ms."""

    ms: float
    waiting_ms: float | None = None  # wall time in which the GPU has no work


@dataclass(frozen=True, kw_only=True)
class Row(Clock):
    """One rung as it is shown. Times in ms a step, memory in GiB; None where there is no number."""

    rung: RungResult
    name: str
    title: str
    reason: str
    step_ms: float | None
    gpu: GpuTime | None
    total_interval: Interval | None
    main_total: float | None  # without the lazy regularization phases
    advice: str  # ADOPT, SKIP, NO DIFFERENCE, ambiguous; "" where it was not left out
    advice_clock: str = ""  # that decided it at the top
    sentence: str = ""  # what the rung does to the GPU's work and to the step
    receipts: str  # "ok", "not engaged", UNPROVED; "" where there are none
    rejected: int | None  # visits that were void and repeated
    memory: float | None  # most that the allocator reserved; on a CPU resident
    allocated: float | None  # most that was allocated of it
    device: float | None  # in use on the whole GPU after timing
    gflop: float | None  # of a step
    million_parameters: float | None
    host_ms: float | None = None  # what the CPU needs to issue a step, by `ladder host`
    article_ms: float | None = None  # of the article's own workload alone
    article_total: float | None = None  # the article's speedup against the same rung as `total`

    @property
    def status(self) -> str:
        """The status of the rung: `ok`, or why it has no number."""
        return self.rung.status

    @property
    def parity(self) -> str:
        """The words on the rung's parity: "0.41 of budget", "failed" or "exempt"; "" where it was not checked."""
        rung = self.rung
        if not rung.parity:
            return EXEMPT if rung.status == "ok" and rung.variant and rung.variant.exempt else ""
        share = self.parity_share
        return (
            "failed" if rung.parity.verdict != "ok" else "ok" if share is None else f"{share:.2f} of budget"
        )

    @property
    def parity_share(self) -> float | None:
        """The rung's largest error as a share of its budget."""
        return parity_share(self.rung.parity)

    @property
    def ms_per_image(self) -> float | None:
        """Milliseconds of an image."""
        return 1000 / self.rung.images_per_s if self.rung.images_per_s else None

    @property
    def waits(self) -> bool:
        """Whether the GPU waits for a share of the step that counts."""
        if self.gpu and self.gpu.waiting_ms is not None and self.step_ms:
            return self.gpu.waiting_ms / self.step_ms >= WAITS
        return (self.rung.host_bound or 0.0) >= WAITS


@dataclass(frozen=True, kw_only=True)
class View:
    """A result as it is shown: rows, and the words around them."""

    machine: str
    workload: str
    protocol: str
    rows: tuple[Row, ...]
    title: str
    mode: str
    marks: tuple[str, ...]  # why not to quote it, if so
    remarks: tuple[str, ...]  # what a reader must know: baseline, reasons, notes
    noise: tuple[str, ...]  # floors and resolutions, a line for each clock
    reference: str  # whose the article's figures are
    memory: str  # what the memory column means
    baseline: str | None
    unit: str  # what the numbers are medians of

    @property
    def versus(self) -> str:
        """The heading of what a rung gains."""
        return VERSUS[self.mode]

    @property
    def has_gpu_time(self) -> bool:
        """Whether any rung has a GPU time."""
        return any(row.gpu for row in self.rows)

    @property
    def is_study(self) -> bool:
        """Whether the rows are entries of a study, and no rungs."""
        return self.mode in modes.STUDIES

    @property
    def sentences(self) -> list[str]:
        """The sentences on the rungs whose clocks differ in their answers, and on all entries of a study."""
        rows = [
            row
            for row in self.rows
            if self.is_study or (row.gpu and row.gpu.seen.verdict != row.seen.verdict)
        ]
        return join_lines((row.name, row.sentence) for row in rows if row.sentence)


def view(result: Result) -> View:
    """Return everything that table and chart show of one result."""
    mode, machine, ladder = result.protocol.mode, result.machine, result.ladder
    article = {rung.name: rung.article_ms for rung in result.rungs if result.workload["name"] == WORKLOAD}
    base = article.get(result.baseline or "")
    top = (top_gains(result) if mode == modes.LEAVE_ONE_OUT else result.at_top) or {}
    rows = []
    for rung in result.rungs:
        row, ms = _make_row(rung, top.get(rung.name), mode, machine.device == "cpu"), article.get(rung.name)
        host = (result.host or {}).get(rung.name)
        total = base / ms if base and ms else None
        rows.append(replace(row, article_ms=ms, article_total=total, host_ms=host.ms if host else None))
    known = catalog.load_ladder(ladder.name).reference if ladder.name in catalog.list_ladders() else None
    limit = result.protocol.gpu_memory_limit_gb
    norm = result.workload.get("norm")
    norm = f"{norm}, spectral norm" if result.workload.get("spectral_norm") else norm
    size, batch = result.workload.get("resolution"), result.workload.get("batch")
    model = f"{size}x{size}, batch {batch}, {norm}"
    if pair := result.workload.get("pair"):
        model = f"your pair {pair}, {f'{size}x{size}, ' if size else ''}batch {batch}"
    return View(
        machine=_describe_machine(machine), protocol=_describe_protocol(result), rows=tuple(rows),
        workload=clean_line(f"{result.workload['name']}: {model}"),
        title=clean_line(f"{ladder.title}{f' in {limit:g} GiB of GPU memory' if limit else ''}"), mode=mode,
        marks=tuple(map(clean_line, publishable(result))), remarks=tuple(_list_remarks(result, rows)),
        noise=tuple(_describe_noise(result)), reference=clean_line(known or ARTICLE),
        memory="peak RSS, GiB" if machine.device == "cpu" else "reserved GiB",
        baseline=result.baseline, unit=sources.unit(result),
    )  # fmt: skip


def _make_row(rung: RungResult, top: TopGain | None, mode: str, on_cpu: bool) -> Row:
    ok, gpu, is_study = rung.status == "ok", None, mode in modes.STUDIES
    # A leave-one-out run does not measure the base, so `total` would only be the gain's inverse. A study has no total.
    whole = mode != modes.LEAVE_ONE_OUT and not is_study

    def see(gain: Gain | None, verdict: str | None, alone: float | None) -> Seen:
        if gain is None:
            return Seen(verdict or "", alone if mode == modes.CUMULATIVE else None)
        return Seen(verdict or "", gain.ratio, gain.below, interval=_pair(gain.interval))

    if ok and rung.gpu_ms:
        gpu = GpuTime(
            ms=rung.gpu_ms, waiting_ms=rung.waiting_ms, interval=_pair(rung.gpu_interval_ms),
            seen=see(rung.gpu_gain, rung.gpu_verdict, rung.gpu_speedup_previous),
            floor=rung.gpu_gain.floor if rung.gpu_gain and rung.gpu_verdict else None,
            total=rung.gpu_speedup_total if mode != modes.LEAVE_ONE_OUT else None,
            top_gain=top.gpu_gain if top else None, top_interval=_pair(top.gpu_interval) if top else None,
        )  # fmt: skip
    live = any(each.passes is not None for each in rung.rounds)
    is_unproved = ok and live and rung.inspection is None and not rung.receipts
    visits = [each.rejected for each in rung.rounds if each.rejected is not None]
    peak = rung.peak_reserved_bytes or (_find_most(rung, "peak_rss_bytes") if on_cpu else None)
    device, inside = _find_most(rung, "device_used_bytes"), rung.inspection
    row = Row(
        rung=rung, name=clean_line(rung.name), title=clean_line(rung.title),
        reason=clean_line(rung.reason or ""), step_ms=rung.step_ms if ok else None, gpu=gpu,
        interval=_pair(rung.interval_ms) if ok else None,
        seen=see(rung.gain, rung.verdict, rung.speedup_previous),
        floor=rung.gain.floor if rung.gain and rung.verdict else None,
        total=rung.speedup_total if whole else None,
        total_interval=_pair(rung.total_interval) if whole else None,
        main_total=rung.main_speedup_total if whole else None,
        top_gain=top.gain if top else None, top_interval=_pair(top.interval) if top else None,
        advice=top.advice if top else "", advice_clock=top.clock if top else "",
        receipts=UNPROVED if is_unproved else receipts_word(rung),
        rejected=sum(map(len, visits)) if visits else None, memory=peak and peak / GIB,
        allocated=rung.peak_allocated_bytes and rung.peak_allocated_bytes / GIB,
        device=device and device / GIB, gflop=inside.flops / 1e9 if inside and inside.flops else None,
        million_parameters=inside.parameters / 1e6 if inside and inside.parameters else None,
    )  # fmt: skip
    # Without a rung, the GPU may wait for longer than with it.
    seen, gpu_seen = (_turn(each) if is_study else each for each in (row.seen, gpu.seen if gpu else Seen()))
    sentence = describe_gain(gpu_seen, seen, row.waits and mode != modes.LEAVE_ONE_OUT)
    if (
        sentence and mode == modes.LEAVE_ONE_OUT
    ):  # the title names all that was left out, and the gain is theirs
        sentence = f"against the ladder {row.title}, {sentence}"
    elif sentence and is_study and row.name in REASONS:
        sentence = f"{sentence}: {REASONS[row.name]}"
    return replace(row, sentence=sentence)


def _pair(interval: list[float] | None) -> Interval | None:
    return (interval[0], interval[1]) if interval else None


def _find_most(rung: RungResult, key: str) -> float | None:
    return max((value for each in rung.rounds if (value := getattr(each, key))), default=None)


def receipts_word(rung: RungResult) -> str:
    """Return "ok" if every receipt of the rung's recipe says so, else "not engaged"; "" without receipts."""
    engaged = [receipt.engaged for receipt in (rung.receipts or {}).values()]
    return "" if not engaged else "ok" if all(engaged) else "not engaged"


def parity_share(parity: JudgedParity | None) -> float | None:
    """Return the largest error of a judged quantity as a share of its budget; None if no quantity was judged."""
    entries = [entry for each in ((parity and parity.phases) or {}).values() for entry in each.values()]
    return max((share for entry in entries if (share := derive_share(entry)) is not None), default=None)


def derive_share(entry: ParityEntry) -> float | None:
    """Return the nearest tensor's error by its budget; None where plain PyTorch itself is too far off."""
    error, budget = entry.nearest_error, entry.nearest_budget
    return error / max(budget, 1e-12) if entry.judged and error is not None and budget is not None else None


def describe_gain(gpu: Seen, step: Seen, waits: bool) -> str:
    """Return what a rung does to the GPU's work and to the step, and why the two differ; "" without an answer.

    Args:
        gpu, step: the answers on either clock.
        waits: whether the GPU waits for a share of the step that counts (`WAITS`).
    """
    known = []
    for name, seen in (("the GPU's work", gpu), ("the step", step)):
        if seen.verdict in (FASTER, SLOWER):
            known.append(f"{name} is {answer(seen)}")
        elif seen.verdict:
            known.append(f"{name}{' changes by' if seen.verdict == LESS_THAN else ':'} {word(seen)}")
    if step.verdict in (FASTER, SLOWER) and gpu.verdict in (FASTER, SLOWER, LESS_THAN) and step.ratio:
        if gpu.verdict != step.verdict and abs(math.log(step.ratio)) > (gpu.below or 0.0):
            waiting = "less" if step.verdict == FASTER else "longer"
            return f"{'; '.join(known)}, because the GPU waits {waiting}"
    return "; ".join(known) + (", the CPU sets the pace" if waits and known else "")


def turn_row(row: Row, shown: View) -> Row:
    """Return a row of a study in times of the first entry's time, where above 1 takes longer; others as they are."""
    if not shown.is_study:
        return row
    gpu = row.gpu and replace(row.gpu, seen=_turn(row.gpu.seen))
    return replace(row, seen=_turn(row.seen), gpu=gpu)


def _turn(seen: Seen) -> Seen:
    interval = (1 / seen.interval[1], 1 / seen.interval[0]) if seen.interval else None
    return replace(seen, ratio=seen.ratio and 1 / seen.ratio, interval=interval, times=True)


def shown_top(row: Row) -> str:
    """Return the factor that a rung gains at the top; nothing inside the noise."""
    return "" if row.advice == modes.NO_DIFFERENCE else format_factor(row.top_gain)


# --- the words around the table ---------------------------------------------------------------------------------------


def _describe_machine(machine: Machine) -> str:
    memory = f"{machine.gpu_memory_gb:.0f} GiB" if machine.gpu_memory_gb else ""
    parts = [machine.gpu, memory] if machine.gpu else [machine.cpu, f"{machine.cores} cores"]
    versions = (("PyTorch", machine.torch), ("CUDA", machine.cuda))
    parts += [f"{name} {version}" for name, version in versions if version]
    return clean_line(", ".join(filter(None, parts)))


def _describe_protocol(result: Result) -> str:
    counted = [derive.counted(rung) for rung in result.rungs if rung.status == "ok"]
    cycles = [len(each.samples_ms) for rounds in counted for each in rounds]
    if not sources.in_generations(result):
        cycles = [result.protocol.cycles]
    rounds = _describe_range(map(len, counted)) or f"{result.protocol.rounds} planned, none with a number"
    parts = [
        f"{sources.unit(result)}s: {rounds}{f' of {len(result.merged)} runs' if result.merged else ''}",
        f"timed cycles of 16 steps: {_describe_range(cycles) or result.protocol.cycles}",
        "" if "pair" in result.workload else "lazy regularization included",
        at_commits(sources.commits(result), result.dirty),
        result.started[:10],
    ]  # fmt: skip
    return clean_line(", ".join(filter(None, parts)))


def _describe_range(numbers: Iterable[int]) -> str:
    """Return "3", or "2 to 3"; "" without a number."""
    ordered = sorted({each for each in numbers if each})
    return " to ".join(map(str, ordered[:1] + ordered[1:][-1:]))


def _describe_noise(result: Result) -> list[str]:
    """Return the noise floors and smallest detectable differences of either clock, or why there are no verdicts."""
    lines = []
    for name, noise in (("GPU time", result.gpu_noise), ("step time", result.noise)):
        floors = []
        for kind, each in (noise or {}).items():
            floors.append(f"{format_difference(each.floor)} for {kind} rungs")
            if each.resolution:
                floors[-1] += f", smallest detectable difference {format_difference(each.resolution)}"
        lines += [f"{name}: noise floor {'; '.join(floors)}"] if floors else []
    if not result.noise and sum(rung.status == "ok" for rung in result.rungs) > 1:
        lost = [
            f"the twin of {twin.of} has no number ({twin.reason or twin.status})"
            for twin in result.twins
            if twin.status in OUT
        ]
        lines.append(f"no verdicts: {clean_line('; '.join(lost) or 'too few generations of twins')}")
    return lines


def _list_remarks(result: Result, rows: list[Row]) -> list[str]:
    """Return what a reader must know of a result, a line each."""
    base, mode = result.baseline, result.protocol.mode
    lines = [REPORTED_THEN] if result.reported_then else []
    if base is None:
        lines.append("no rung has a number")
    elif base != "baseline" and mode not in (modes.LEAVE_ONE_OUT, *modes.STUDIES):
        lines.append(f"speedups refer to {clean_line(base)}: the baseline has no number here")
    pairs: list[tuple[str, str]] = []
    for row in rows:
        if row.status != "ok":
            pairs.append((row.name, f"{row.status}: {row.reason}" if row.reason else row.status))
        if row.receipts == UNPROVED:
            pairs.append((row.name, f"{UNPROVED}: timed before its inspection ended"))
        if row.parity == EXEMPT and row.rung.variant:
            pairs.append((row.name, f"exempt from parity: {clean_line(row.rung.variant.exempt)}"))
        pairs += [(row.name, clean_line(note)) for note in row.rung.notes]
    lines += join_lines(pairs)
    lines += [f"host time of {each.change}" for each in (result.host or {}).values() if each.change]
    if mode == modes.CUMULATIVE:
        for name, untimed in list_untimed(result).items():
            lines.append(f"part of {clean_line(name)} and not measured here: {', '.join(untimed)}")
    costs = {rung.name: cost for rung in result.rungs if (cost := derive.lazy_costs(rung))}
    for name in dict.fromkeys([*list(costs)[:1], *list(costs)[-1:]]):
        added = [
            f"{LAZY.get(phase, phase)} adds {format_ms(ms)} ms"
            + (f" ({format_ms(interval[0])} to {format_ms(interval[1])})" if interval else "")
            for phase, (ms, interval) in sorted(costs[name].items())
            if ms > 0 and not (interval and interval[0] <= 0)  # else it is within the noise
        ]
        lines += [f"{clean_line(name)}: {', '.join(added)} to a step that has it"] if added else []
    if sources.in_generations(result) and result.seconds:
        lines.append(f"the run took {result.seconds / 60:.1f} minutes")
    return [*lines, *map(clean_line, environment.describe_variables(result.environment or None))]


# --- the rungs that a recipe contains ---------------------------------------------------------------------------------


def contains(recipe: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
    """Return whether a recipe contains a change. The number of data workers follows the host, and does not count."""
    return all(recipe.get(key) == value for key, value in change.items() if key != WORKERS)


def list_ladder(result: Result) -> list[str]:
    """Return the rungs of the whole ladder of a run. One of ours may hold the rungs of a ladder that is gone."""
    name, names = result.ladder.name, result.ladder.rungs
    ours = [name] if name in catalog.list_ladders() else catalog.list_ladders()
    orders = ([step.name for step in catalog.load_ladder(each).rungs] for each in ours)
    return next((each for each in orders if {*names} <= {*each} or len(ours) == 1), names)


def list_untimed(result: Result) -> dict[str, list[str]]:
    """Return by timed rung what it contains beside the rung before it, although the run did not time that."""
    entries = {rung.name for rung in result.rungs}
    others = [name for name in list_ladder(result) if name in catalog.list_rungs() and name not in entries]
    changes = {name: catalog.load_rung(name).change for name in others}
    untimed, below = dict[str, list[str]](), list[str]()
    for rung in result.rungs:
        if rung.status == "ok" and (recipe := rung.recipe):
            inside = [
                name for name, each in changes.items() if each.keys() - {WORKERS} and contains(recipe, each)
            ]
            if more := [name for name in inside if name not in below]:
                untimed[rung.name] = more
            below = inside
    return untimed
