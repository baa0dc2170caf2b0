"""The advice on each rung of a result: ADOPT, SKIP, NO DIFFERENCE, BROKEN or undecided, and why. Pure functions.

`docs/recommend.md` states the rules. A leave-one-out run decides where it has an answer; else the staircase does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ladder.base.plain import Fields
from ladder.base.text import amount
from ladder.plan import catalog, modes
from ladder.report.sentences import ALONE, WAITS
from ladder.report.view import Row, view
from ladder.results import parts
from ladder.results.run import Result
from ladder.results.values import FASTER, INSIDE, OUT, SLOWER, TOO_FEW
from ladder.results.words import Seen
from ladder.stats.rounds_budget import LEAST_ROUNDS

ADOPT, SKIP, NO_DIFFERENCE = "ADOPT", "SKIP", modes.NO_DIFFERENCE
BROKEN, UNDECIDED, NOT_HERE = "BROKEN", "undecided", "n/a"
SKIPPED = "skipped"  # the status of a rung that contains a broken one
STAIRCASE, LEFT_OUT = "staircase", modes.LEAVE_ONE_OUT
GPU, STEP = "GPU", "step"
TWICE = 2  # a larger budget, to settle an open verdict
WORKERS = "workers"  # a field of the recipe that a rung sets by the cores of the host
COUNTS = math.log(1.05)  # a run that cannot exclude a difference of 5% does not say that there is none
USUAL_S = 600.0  # seconds of measuring where a result does not say its budget


@dataclass(frozen=True)
class Advised:
    """The advice on one rung. `ratio` is the gain by the clock that decided, above 1 where the rung helps."""

    name: str
    title: str
    advice: str
    source: str  # STAIRCASE, LEFT_OUT; "" without a verdict
    clock: str  # GPU, STEP; "" without a verdict
    seen: Seen
    interval: tuple[float, float] | None
    said: str  # why, without the parts of the GPU's work
    decide: str | None  # the command that would decide
    ms: float | None  # with the rung, by that clock, a step
    prepare_s: float | None  # more seconds of preparing than without the rung
    between: tuple[str, ...] = ()  # rungs that a run of some rungs left untimed: the gain is theirs, too
    profiles: tuple[parts.Parts, parts.Parts] | None = None  # of a sure difference of GPU work: before, after
    told: bool = False  # whether the gain and the parts of the GPU's work say all that `said` says

    @property
    def reason(self) -> str:
        """Why, with the categories that a sure difference of GPU work is made of."""
        return f"{self.said}; GPU work: {parts.made_of(*self.profiles)}" if self.profiles else self.said

    @property
    def saved_ms(self) -> float | None:
        """Milliseconds a step that the rung saves; below 0 if it costs, None without a sure verdict."""
        if self.advice not in (ADOPT, SKIP) or not (self.ms and self.seen.ratio):
            return None
        return self.ms * (self.seen.ratio - 1)

    @property
    def pays_back(self) -> int | None:
        """Steps after which the preparing is paid back; None where nothing is saved or the seconds are unknown."""
        return steps_to_pay_back(self.prepare_s, self.saved_ms)


@dataclass(frozen=True)
class Sources:
    """The results that the advice comes from: a staircase, a leave-one-out run, or both.

    `resumes` names the file of each that this machine can go on with.
    """

    staircase: Result | None
    left_out: Result | None
    resumes: dict[str, str]

    @property
    def main(self) -> Result:
        """The result that names machine, workload and ladder."""
        found = self.staircase or self.left_out
        assert found is not None
        return found


def steps_to_pay_back(seconds: float | None, saved_ms: float | None) -> int | None:
    """Return after how many steps the seconds are saved; None if they are unknown or nothing is saved."""
    if seconds is None or not saved_ms or saved_ms <= 0:
        return None
    return math.ceil(1000 * max(seconds, 0.0) / saved_ms)


def more_preparing(result: Result | None, name: str, than: str) -> float | None:
    """Return how many seconds one entry of a result prepares longer than another; None if either is unknown."""
    seconds = {rung.name: rung.prepare_s for rung in result.rungs} if result else {}
    one, other = seconds.get(name), seconds.get(than)
    return None if one is None or other is None else one - other


def rival(result: Result) -> str | None:
    """Return the entry of a staircase that is the top of another ladder, or None."""
    if result.ladder.name not in catalog.ladders():
        return None
    known = catalog.load_ladder(result.ladder.name)
    return catalog.load_ladder(known.rival).rungs[-1].name if known.rival else None


def changes_in(result: Result, recipe: Mapping[str, Any]) -> dict[str, Fields]:
    """Return the changes of the rungs of the whole ladder that a recipe with all fields contains, in order.

    A run may have timed some rungs alone. A rung that was timed counts even if its change is another one today. A
    rung that this version does not know is left out.
    """
    changes = {each: catalog.load_rung(each).change for each in _order(result) if each in catalog.rungs()}
    timed = {rung.name for rung in result.rungs if rung.status == "ok"}
    return {each: change for each, change in changes.items() if each in timed or contains(recipe, change)}


def _order(result: Result) -> list[str]:
    """Return the rungs of the whole ladder. One of ours may hold the rungs of a ladder that is gone."""
    name, names = result.ladder.name, result.ladder.rungs
    if name in catalog.ladders():
        return _rungs_of(name)
    orders = map(_rungs_of, catalog.ladders())
    return next((order for order in orders if [each for each in order if each in names] == names), names)


def _rungs_of(ladder: str) -> list[str]:
    return [step.name for step in catalog.load_ladder(ladder).rungs]


def contains(recipe: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
    """Return whether a recipe contains a change. The number of data workers follows the host, and does not count."""
    return all(recipe.get(key) == value for key, value in change.items() if key != WORKERS)


def _between(result: Result, name: str, before: str) -> tuple[str, ...]:
    """Return the rungs that one entry contains, and neither the one before it nor an entry of their own."""
    recipes = {rung.name: rung.recipe for rung in result.rungs}
    one, other = recipes[name] or {}, recipes[before] or {}
    return tuple(
        each
        for each, change in changes_in(result, one).items()
        if each not in recipes and change and not contains(other, change)
    )


def advise(sources: Sources) -> list[Advised]:
    """Return the advice on every rung but the first of the staircase, in the order of the ladder."""
    stairs = _staircase(sources) if sources.staircase else []
    tops = {each.name: each for each in (_top(sources) if sources.left_out else [])}
    if not sources.staircase:
        return list(tops.values())
    return [_joined(each, tops.get(each.name)) for each in stairs]


def _joined(stair: Advised, top: Advised | None) -> Advised:
    """Return the advice of the leave-one-out run where it has a verdict. A rung that is BROKEN stays so."""
    if top is None or not top.clock or stair.advice in (BROKEN, NOT_HERE):
        return stair
    return replace(top, title=stair.title)


def of_staircase(gpu: str, wall: str, waits: bool, removed: bool) -> str:
    """Return the advice by the verdicts of the staircase, "" without any.

    Args:
        gpu, wall: verdicts on the GPU's work and on the step.
        waits: whether the GPU waits in this step or in the one before, so that its work alone is no step time.
        removed: whether a later rung removes this waiting, so that the GPU's work is what stays of it.
    """
    if removed and (gpu, wall) == (FASTER, SLOWER):
        return ADOPT
    if removed and (gpu, wall) == (SLOWER, FASTER):
        return UNDECIDED
    found = modes.advice(gpu if removed or not waits else "", wall)
    return found if found in (ADOPT, SKIP, NO_DIFFERENCE, "") else UNDECIDED


def _staircase(sources: Sources) -> list[Advised]:
    result = sources.staircase
    assert result is not None
    shown, other = view(result), rival(result)
    rows = [row for row in shown.rows if row.name != other]
    kinds = {rung.name: rung.kind for rung in result.rungs}
    timed = [row for row in rows if row.status == "ok"]
    before = dict(zip([row.name for row in timed[1:]], timed, strict=False))
    captured = [row for row in timed if kinds[row.name] == "captured"]
    graphs = captured[0] if captured and timed[-1] in captured and not _waits(timed[-1]) else None
    if graphs and (graphs.name not in before or _verdict(graphs, before[graphs.name], False) != ADOPT):
        graphs = None
    found = []
    for row in rows:
        if row.status == "ok" and row.name not in before:
            continue  # the first: nothing to compare it with
        removing = graphs.name if graphs and row not in captured else None
        found.append(_stair(row, before.get(row.name), removing, sources))
    return found


def _verdict(row: Row, before: Row, removed: bool) -> str:
    gpu, waits = row.gpu.seen if row.gpu else Seen(), _waits(row) or _waits(before)
    advice = of_staircase(gpu.verdict, row.verdict, waits, removed)
    return ruled_out(advice, [row.seen, *([gpu] if removed or not waits else [])])


def ruled_out(advice: str, clocks: Sequence[Seen]) -> str:
    """Return the advice; `UNDECIDED` for a "no difference" that leaves more than `COUNTS` open by every clock."""
    known = [seen.below for seen in clocks if seen.verdict in INSIDE and seen.below is not None]
    return UNDECIDED if advice == NO_DIFFERENCE and known and min(known) > COUNTS else advice


def _stair(row: Row, before: Row | None, removing: str | None, sources: Sources) -> Advised:
    if before is None:
        return _without_number(row, sources)
    advice, reason = _verdict(row, before, removing is not None), row.sentence
    if row.receipts == "not yet proved":
        advice, reason = UNDECIDED, f"timed before its inspection ended; {reason}"
    elif not advice:
        advice, reason = UNDECIDED, "the run has no verdict on it"
    elif removing and _waits(row):
        reason += f"; {removing} removes this waiting"
    order = (GPU, STEP) if removing else (STEP, GPU)
    result = sources.main
    between = _between(result, row.name, before.name)
    if between:
        reason += f"; together with {', '.join(between)}, which the run did not time"
    if advice != ADOPT:
        reason += _memory(before, row)
    more = more_preparing(result, row.name, before.name)
    made = _made(row, advice, STAIRCASE, reason, order, row, more, sources)
    found = _profiles(result, before.name, row)
    return replace(made, between=between, profiles=found, told=reason == row.sentence and _told(row, found))


def _memory(before: Row, row: Row) -> str:
    """Return what a rung saves of the reserved memory, "" if it is little: a rung may be there for that alone."""
    if not (before.memory and row.memory) or before.memory < row.memory * math.exp(COUNTS):
        return ""
    return f"; it takes less memory, {amount(row.memory)} GiB instead of {amount(before.memory)}"


def _told(row: Row, profiles: object) -> bool:
    """Return whether a gain and the parts of the GPU's work say it all, because the step gains as much as the work."""
    if not (profiles and row.gpu and row.previous and row.gpu.previous):
        return False
    alike = abs(math.log(row.previous / row.gpu.previous)) < COUNTS
    return row.verdict == row.gpu.verdict == FASTER and alike


def _profiles(
    result: Result, before: str, row: Row, after: str = ""
) -> tuple[parts.Parts, parts.Parts] | None:
    """Return the profiles that tell what a sure difference of GPU work is made of; None without one of them.

    ``after``: the entry that is compared with ``before``, where it is not that of the row.
    """
    if not row.gpu or row.gpu.verdict not in (FASTER, SLOWER):
        return None
    entries = {rung.name: rung for rung in result.rungs}
    was, now = (parts.parts_of(entries[name]) for name in (before, after or row.name))
    return (was, now) if was and now else None


def _without_number(row: Row, sources: Sources) -> Advised:
    """Return the advice on a rung of the staircase that has no number."""
    reason = row.reason or row.status
    if row.status == SKIPPED:
        advice, decide = UNDECIDED, _run(sources.main, "--mode solo")
    else:
        advice, decide = (BROKEN if row.status in OUT else NOT_HERE), None
        reason = f"{row.status}: {reason}" if row.status in OUT and reason != row.status else reason
    return Advised(row.name, row.title, advice, "", "", Seen(), None, reason, decide, None, None)


def _top(sources: Sources) -> list[Advised]:
    """Return the advice of the leave-one-out run, on the rungs that were left out."""
    result = sources.left_out
    assert result is not None
    shown = view(result)
    whole = next((row for row in shown.rows if row.name == modes.ALL), None)
    return [_left_out(row, whole, sources) for row in shown.rows if row is not whole]


def _left_out(row: Row, whole: Row | None, sources: Sources) -> Advised:
    if row.status != "ok" or not row.advice or whole is None:
        there = row.status != "n/a"
        reason = f"the ladder without it: {row.status}{': ' + row.reason if row.reason else ''}"
        decide = _run(sources.main, "") if there else None
        advice = UNDECIDED if there else NOT_HERE
        return Advised(row.name, row.title, advice, "", "", Seen(), None, reason, decide, None, None)
    advice = row.advice if row.advice in (ADOPT, SKIP, NO_DIFFERENCE) else UNDECIDED
    advice = ruled_out(advice, [row.seen, *([row.gpu.seen] if row.gpu else [])])
    more = more_preparing(sources.left_out, whole.name, row.name)
    titled = replace(
        row, title=catalog.load_rung(row.name).title if row.name in catalog.rungs() else row.name
    )
    assert sources.left_out is not None
    reason = row.sentence + ("" if advice == ADOPT else _memory(row, whole))
    made = _made(titled, advice, LEFT_OUT, reason, (STEP, GPU), whole, more, sources)
    found = _profiles(sources.left_out, row.name, row, whole.name)
    return replace(made, profiles=found, told=row.sentence.startswith(ALONE) and _told(row, found))


def _made(
    row: Row, advice: str, source: str, reason: str, order: Sequence[str], timed: Row, more: float | None,
    sources: Sources,
) -> Advised:  # fmt: skip
    """Return the advice with the figures of the clock that decided; `timed` is the row of the step with the rung."""
    figures = {STEP: (row.seen, row.gain, timed.step_ms)}
    if row.gpu and row.gpu.verdict:
        figures[GPU] = (row.gpu.seen, row.gpu.gain, timed.gpu.ms if timed.gpu else None)
    wanted = {ADOPT: FASTER, SKIP: SLOWER}.get(advice)
    clock = next((each for each in order if each in figures and figures[each][0].verdict == wanted), None)
    if clock is None:  # no difference, or open: the clock that is asked first
        clock = next((each for each in order if each in figures and figures[each][0].verdict), "")
    seen, interval, ms = figures.get(clock, (Seen(), None, None))
    decide = _decides(row, source, sources) if advice == UNDECIDED else None
    return Advised(row.name, row.title, advice, source, clock, seen, interval, reason, decide, ms, more)


def _decides(row: Row, source: str, sources: Sources) -> str:
    """Return the command that would decide about an undecided rung."""
    result = sources.left_out if source == LEFT_OUT else sources.staircase
    assert result is not None
    mode = "--mode leave-one-out"
    if result.protocol.quick:
        return _run(result, mode if source == LEFT_OUT else "")
    unfinished = (
        TOO_FEW in (row.verdict, row.gpu.verdict if row.gpu else "") or row.receipts == "not yet proved"
    )
    if source == STAIRCASE and not unfinished:
        return _run(result, mode)
    if (file := sources.resumes.get(source)) is None:
        return _run(result, mode if source == LEFT_OUT else "")
    if result.protocol.fixed:  # It takes no budget.
        return f"ladder run --resume {file} --generations {max(LEAST_ROUNDS, TWICE * result.protocol.rounds)}"
    minutes = TWICE * (result.protocol.budget_s or USUAL_S) / 60
    return f"ladder run --resume {file} --budget {minutes:g}"


def _run(result: Result, mode: str) -> str:
    """Return a command that measures the workload and ladder of a result anew."""
    name = result.workload["name"]
    words = ["ladder run -w", name if name in catalog.workloads() else f"{name}.yaml"]
    if (ladder := result.ladder.name) != "article":
        words += ["--ladder", ladder if ladder in catalog.ladders() else f"{ladder}.yaml"]
    if limit := result.protocol.gpu_memory_limit_gb:
        words += [f"--gpu-memory {limit:g}"]
    return " ".join([*words, mode]).strip()


def _waits(row: Row) -> bool:
    """Return whether the GPU waits for a share of the step that counts."""
    if row.gpu and row.gpu.waiting_ms is not None and row.step_ms:
        return row.gpu.waiting_ms / row.step_ms >= WAITS
    return (row.host_bound or 0.0) >= WAITS
