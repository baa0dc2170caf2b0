"""The view of a result: what table, Markdown, CSV and chart have in common.

A result may come from a stranger, so its text is reduced to one printable line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ladder.base.text import factor, plain
from ladder.machine import environment
from ladder.plan import catalog, modes
from ladder.report import checks, entries, noise, remarks
from ladder.report.sentences import WAITS, at_the_top, sentence
from ladder.results import sources
from ladder.results.publishable import publishable
from ladder.results.ranking import top_gains
from ladder.results.run import Ladder, Result, RungResult, TopGain
from ladder.results.values import INSIDE
from ladder.results.words import Seen, word

GIB = 2**30
ARTICLE = "one A100"
WORKLOAD = "article"  # of which the article has numbers: a file of a user with this name and other fields gets another
REPORTED_THEN = "judged when it was measured, with the statistics of that time"
UNPROVED = "not yet proved: timed before its inspection ended"
VERSUS = {
    modes.CUMULATIVE: "vs previous",
    modes.SOLO: "alone",
    modes.LEAVE_ONE_OUT: "gain at top",
    modes.MISTAKES: "times clean",
    modes.LEVERS: "times unchanged",
    modes.RECIPE: "vs baseline",
}


@dataclass(frozen=True)
class GpuTime:
    """The GPU's work in a step of a rung, with an answer of its own. Times in ms a step."""

    ms: float
    interval: tuple[float, float] | None  # 95 %, over generations
    waiting_ms: float | None  # wall time in which the GPU has no work
    previous: float | None
    gain: tuple[float, float] | None
    verdict: str
    below: float | None  # log ratio, X of "less than X%"
    total: float | None
    floor: float | None  # a share
    top_gain: float | None
    top_interval: tuple[float, float] | None
    host_ms: float | None = None  # what the CPU needs to issue a step, by `ladder host`
    times: bool = False  # `previous` and `gain` are in times of the first entry's time

    @property
    def seen(self) -> Seen:
        """The answer of the run on the GPU's work."""
        return Seen(self.verdict, self.previous, self.below, self.times)


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
    article_ms: float | None  # of the article's own workload alone
    article_total: float | None  # the article's speedup against the same rung as `total`
    notes: tuple[str, ...]
    below: float | None = None  # log ratio, X of "less than X%"
    gpu: GpuTime | None = None
    sentence: str = ""  # what the rung does to the GPU's work and to the step
    cost: entries.Cost = entries.NOTHING
    host_ms: float | None = None  # what the CPU needs to issue a step, by `ladder host`
    times: bool = False  # `previous` and `gain` are in times of the first entry's time

    @property
    def seen(self) -> Seen:
        """The answer of the run on the step."""
        return Seen(self.verdict, self.previous, self.below, self.times)


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
    generations: bool = False  # of live processes; older runs had rounds of visits
    gpu_noise: str = ""  # noise floors and resolution of GPU time, in a line

    @property
    def unit(self) -> str:
        """The word for what the numbers are medians of."""
        return sources.UNITS[self.generations]

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
        """The sentences on the rungs, a line each; rungs with equal sentences share a line."""
        if not (self.has_gpu_time or self.is_study):
            return []
        return _joined((row.name, row.sentence) for row in self.rows if row.sentence)


def view(result: Result) -> View:
    """Return everything that table and chart show of one result."""
    on_cpu = result.machine.device == "cpu"
    base = result.baseline
    article = _articles(result)
    article_base = article.get(base or "")
    mode = result.protocol.mode
    top = (top_gains(result) if mode == modes.LEAVE_ONE_OUT else result.at_top) or {}
    rows = tuple(
        _row(rung, article.get(rung.name), article_base, on_cpu, top.get(rung.name), mode)
        for rung in result.rungs
    )
    host = result.host or {}
    rows = tuple(replace(row, host_ms=host[row.name].ms) if row.name in host else row for row in rows)
    return View(
        machine=remarks.machine(result.machine),
        workload=remarks.workload(result.workload),
        protocol=remarks.protocol(result),
        marks=tuple(map(plain, publishable(result))),
        remarks=(
            *remarks.part(result),
            *([REPORTED_THEN] if result.reported_then else []),
            *_remarks(rows, base, article_base, mode),
            *(f"host time of {each.change}" for each in host.values() if each.change),
            *remarks.unmeasured(result, mode),
            *remarks.lazy(result.rungs),
            *(remarks.duration(result) if sources.in_generations(result) else ()),
            *_unproved(result, rows),
            *entries.exempt(result.rungs),
            *map(plain, environment.describe_variables(result.environment or None)),
        ),
        reference=_reference(result.ladder),
        memory="peak RSS, GiB" if on_cpu else "reserved GiB",
        title=_title(result),
        quick=result.protocol.quick,
        mode=mode,
        versus=VERSUS[mode],
        visits=sum(len(each.rounds) for each in sources.records(result)),
        rejected=result.gpu.rejected_visits if result.gpu else None,
        noise=noise.of_step(result),
        baseline=base,
        rows=rows,
        generations=sources.in_generations(result),
        gpu_noise=noise.of_gpu_time(result),
    )


def _articles(result: Result) -> dict[str, float]:
    """Return the article's milliseconds by rung. It has none of another workload than its own."""
    if result.workload["name"] != WORKLOAD:
        return {}
    return {rung.name: rung.article_ms for rung in result.rungs if rung.article_ms}


def _row(
    rung: RungResult,
    article_ms: float | None,
    article_base: float | None,
    on_cpu: bool,
    top: TopGain | None,
    mode: str,
) -> Row:
    ok, gain = rung.status == "ok", rung.gain or None
    peak = rung.peak_reserved_bytes or (_most(rung, "peak_rss_bytes") if on_cpu else None)
    allocated, device = rung.peak_allocated_bytes, _most(rung, "device_used_bytes")
    # A leave-one-out run does not measure the base, so `total` would only be the gain's inverse. A study has no total.
    whole = mode != modes.LEAVE_ONE_OUT and mode not in modes.STUDIES
    rejected = [each.rejected for each in rung.rounds if each.rejected is not None]
    previous = gain.ratio if gain else rung.speedup_previous if mode == modes.CUMULATIVE else None
    below = gain.below if gain else None
    gpu = _gpu_time(rung, top, mode) if ok else None
    wall = Seen(rung.verdict or "", previous, below)
    if mode in modes.STUDIES:
        said = entries.sentence(mode, rung.name, gpu.seen if gpu else Seen(), wall, _waits(rung))
    else:
        # without a rung, the GPU may wait for longer than with it
        said = sentence(gpu.seen if gpu else Seen(), wall, _waits(rung) and whole)
        said = said if whole else at_the_top(said, rung.title)
    return Row(
        name=plain(rung.name),
        title=plain(rung.title),
        status=rung.status,
        reason=plain(rung.reason or ""),
        step_ms=rung.step_ms if ok else None,
        interval=_pair(rung.interval_ms) if ok else None,
        previous=previous,
        gain=_pair(gain.interval) if gain else None,
        verdict=rung.verdict or "",
        top_gain=top.gain if top else None,
        top_interval=_pair(top.interval) if top else None,
        advice=top.advice if top else "",
        total=rung.speedup_total if whole else None,
        total_interval=_pair(rung.total_interval) if whole else None,
        floor=gain.floor if gain and rung.verdict else None,
        receipts="not yet proved" if is_unproved(rung) else checks.receipts_word(rung),
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
        article_ms=article_ms,
        article_total=article_base / article_ms if article_base and article_ms else None,
        notes=tuple(map(plain, rung.notes)),
        below=below,
        gpu=gpu,
        sentence=said,
        cost=entries.cost(rung),
    )


def _gpu_time(rung: RungResult, top: TopGain | None, mode: str) -> GpuTime | None:
    if not rung.gpu_ms:
        return None
    gain = rung.gpu_gain or None
    alone = rung.gpu_speedup_previous if mode == modes.CUMULATIVE else None
    return GpuTime(
        ms=rung.gpu_ms,
        interval=_pair(rung.gpu_interval_ms),
        waiting_ms=rung.waiting_ms,
        previous=gain.ratio if gain else alone,
        gain=_pair(gain.interval) if gain else None,
        verdict=rung.gpu_verdict or "",
        below=gain.below if gain else None,
        total=rung.gpu_speedup_total if mode != modes.LEAVE_ONE_OUT else None,
        floor=gain.floor if gain and rung.gpu_verdict else None,
        top_gain=top.gpu_gain if top else None,
        top_interval=_pair(top.gpu_interval) if top else None,
    )


def _waits(rung: RungResult) -> bool:
    """Return whether the GPU waits for a share of the step that counts."""
    if rung.step_ms and (waiting := rung.waiting_ms) is not None:
        return waiting / rung.step_ms >= WAITS
    return (rung.host_bound or 0.0) >= WAITS


def is_unproved(rung: RungResult) -> bool:
    """Return whether a rung was timed before its inspection ended, so that no receipt says that it was on."""
    live = any(each.passes is not None for each in rung.rounds)
    return rung.status == "ok" and live and rung.inspection is None and not rung.receipts


def _pair(interval: list[float] | None) -> tuple[float, float] | None:
    return (interval[0], interval[1]) if interval else None


def _most(rung: RungResult, key: str) -> float | None:
    return max((value for each in rung.rounds if (value := getattr(each, key))), default=None)


def shown_gain(row: Row) -> str:
    """Return the factor that a rung gains; nothing where it lies inside the noise, whatever its sign."""
    return "" if row.verdict in INSIDE else factor(row.previous)


def shown_verdict(row: Row) -> str:
    """Return the verdict on the step, with X where it is "less than X%"."""
    return word(row.seen)


def shown_top(row: Row) -> str:
    """Return the factor that a rung gains at the top; nothing inside the noise."""
    return "" if row.advice == modes.NO_DIFFERENCE else factor(row.top_gain)


def _reference(ladder: Ladder) -> str:
    """Return whose `article_ms` the ladder quotes."""
    known = catalog.load_ladder(ladder.name).reference if ladder.name in catalog.ladders() else None
    return plain(known) if known else ARTICLE


def _title(result: Result) -> str:
    """Return the ladder's title, with the memory of the card that was simulated, if one was."""
    limit = result.protocol.gpu_memory_limit_gb
    return plain(f"{result.ladder.title}{f' in {limit:g} GiB of GPU memory' if limit else ''}")


def _remarks(rows: tuple[Row, ...], base: str | None, article_base: float | None, mode: str) -> list[str]:
    found = []
    if base is None:
        found.append("no rung has a number")
    elif base != "baseline" and mode not in (modes.LEAVE_ONE_OUT, *modes.STUDIES):
        there = any(row.name == "baseline" for row in rows)
        why_not = "the baseline has no number here" if there else "the baseline was not measured"
        found.append(f"speedups refer to {plain(base)}: {why_not}")
        if article_base is None and any(row.article_ms for row in rows):
            found.append(f"the article has no number for {plain(base)}, so none of its speedups are shown")
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != "ok":
            why.setdefault((row.status, row.reason), []).append(row.name)
    for (status, reason), names in why.items():
        found.append(f"{', '.join(names)}: {status}{': ' + reason if reason else ''}")
    return found + _joined((row.name, note) for row in rows for note in row.notes)


def _joined(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and what is said of them; names of which the same is said share a line."""
    found: dict[str, list[str]] = {}
    for name, text in said:
        found.setdefault(text, []).append(name)
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]


def _unproved(result: Result, rows: tuple[Row, ...]) -> list[str]:
    names = [row.name for rung, row in zip(result.rungs, rows, strict=True) if is_unproved(rung)]
    return _joined((name, UNPROVED) for name in names)
