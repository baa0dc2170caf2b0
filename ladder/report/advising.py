"""The advice on each rung of a result: ADOPT, SKIP, NO DIFFERENCE, BROKEN or undecided, and why. Pure functions.

`docs/recommend.md` states the rules. A leave-one-out run decides where it has an answer; else the staircase does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder.core.protocol import AMBIGUOUS, FASTER, INSIDE, SLOWER, TOO_FEW
from ladder.core.text import format_amount, format_difference
from ladder.plan import catalog, modes
from ladder.report.view import UNPROVED, Row, list_untimed, view
from ladder.results import parts
from ladder.results.file import OUT
from ladder.results.run import Result, RungResult
from ladder.results.words import Seen
from ladder.stats.rounds_budget import LEAST_ROUNDS

ADOPT, SKIP, NO_DIFFERENCE = "ADOPT", "SKIP", modes.NO_DIFFERENCE
BROKEN, UNDECIDED, NOT_HERE = "BROKEN", "undecided", "n/a"
SKIPPED = "skipped"  # the status of a rung that contains a broken one
STAIRCASE, LEFT_OUT = "staircase", modes.LEAVE_ONE_OUT
GPU, STEP = modes.GPU, modes.STEP
NO_ANSWER = Seen()
TWICE = 2  # a larger budget, to settle an open verdict
COUNTS = math.log(1.05)  # a run that cannot exclude a difference of 5% does not say that there is none
USUAL_S = 600.0  # seconds of measuring where a result does not say its budget


@dataclass(frozen=True)
class Advised:
    """The advice on one rung. `seen` has the gain by the clock that decided, above 1 where the rung helps."""

    name: str
    title: str
    advice: str
    reason: str
    source: str = ""  # STAIRCASE, LEFT_OUT; "" without a verdict
    clock: str = ""  # GPU, STEP; "" without a verdict
    why: str = ""  # in a few words, why that clock's answer leads to this advice
    seen: Seen = NO_ANSWER
    decide: str | None = None  # the command that would decide
    ms: float | None = None  # with the rung, by that clock, a step
    prepare_s: float | None = None  # more seconds of preparing than without the rung
    between: Sequence[str] = ()  # rungs that a run of some rungs left untimed: the gain is theirs, too

    @property
    def saved_ms(self) -> float | None:
        """Milliseconds a step that the rung saves; below 0 if it costs, None without a sure verdict."""
        if self.advice not in (ADOPT, SKIP) or not (self.ms and self.seen.ratio):
            return None
        return self.ms * (self.seen.ratio - 1)

    @property
    def pays_back(self) -> int | None:
        """Steps after which the preparing is paid back; None where nothing is saved or the seconds are unknown."""
        return count_steps(self.prepare_s, self.saved_ms)


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
        result = self.staircase or self.left_out
        assert result is not None
        return result


def count_steps(seconds: float | None, saved_ms: float | None) -> int | None:
    """Return after how many steps the seconds are saved; None if they are unknown or nothing is saved."""
    if seconds is None or not saved_ms or saved_ms <= 0:
        return None
    return math.ceil(1000 * max(seconds, 0.0) / saved_ms)


def derive_preparing(rung: RungResult, other: RungResult) -> float | None:
    """Return how many seconds a rung prepares longer than another; None if either is unknown."""
    unknown = rung.prepare_s is None or other.prepare_s is None
    return None if unknown else rung.prepare_s - other.prepare_s


def find_rival(result: Result) -> str | None:
    """Return the entry of a staircase that is the top of another ladder, or None."""
    known = catalog.load_ladder(result.ladder.name) if result.ladder.name in catalog.list_ladders() else None
    return catalog.load_ladder(known.rival).rungs[-1].name if known and known.rival else None


def advise(sources: Sources) -> list[Advised]:
    """Return the advice on every rung but the first of the staircase, in the order of the ladder."""
    tops = _advise_top(sources, sources.left_out) if sources.left_out else {}
    if sources.staircase is None:
        return list(tops.values())
    advised = _advise_staircase(sources, sources.staircase)
    for number, each in enumerate(advised):
        top = tops.get(each.name)
        if top and top.clock and each.advice not in (BROKEN, NOT_HERE):
            advised[number] = replace(top, title=each.title)
    return advised


def choose_advice(gpu: Seen, step: Seen, waits: bool, removed: bool) -> str:
    """Return the advice by the answers of the staircase, "" without any.

    A "no difference" that leaves more than `COUNTS` open by every clock is undecided.

    Args:
        gpu, step: answers on the GPU's work and on the step.
        waits: whether the GPU waits in this step or in the one before, so that its work alone is no step time.
        removed: whether a later rung removes this waiting, so that the GPU's work is what stays of it.
    """
    if removed and (gpu.verdict, step.verdict) == (FASTER, SLOWER):
        return ADOPT
    if removed and (gpu.verdict, step.verdict) == (SLOWER, FASTER):
        return UNDECIDED
    if waits and not removed:
        gpu = NO_ANSWER
    return _rule_out(modes.choose_advice(gpu.verdict, step.verdict), gpu, step)


def _rule_out(advice: str, gpu: Seen, step: Seen) -> str:
    below = [seen.below for seen in (gpu, step) if seen.verdict in INSIDE and seen.below is not None]
    is_open = advice == NO_DIFFERENCE and below and min(below) > COUNTS
    return UNDECIDED if is_open or advice not in (ADOPT, SKIP, NO_DIFFERENCE, "") else advice


def _advise_staircase(sources: Sources, result: Result) -> list[Advised]:
    rival, untimed = find_rival(result), list_untimed(result)
    rows = [row for row in view(result).rows if row.name != rival]
    timed = [row for row in rows if row.status == "ok"]
    before = dict(zip([row.name for row in timed[1:]], timed, strict=False))
    captured = [row for row in timed if row.rung.kind == "captured"]
    graphs = captured[0] if captured and captured[-1] is timed[-1] and not timed[-1].waits else None
    if graphs and (graphs.name not in before or _judge(graphs, before[graphs.name], False) != ADOPT):
        graphs = None  # it removes no waiting of the rungs below
    advised = []
    for row in rows:
        if row.status != "ok":
            advice = UNDECIDED if row.status == SKIPPED else BROKEN if row.status in OUT else NOT_HERE
            reason = f"{row.status}: {row.reason}" if advice == BROKEN and row.reason else row.reason
            decide = _write_command(sources.main, "--mode solo") if advice == UNDECIDED else None
            advised.append(Advised(row.name, row.title, advice, reason or row.status, decide=decide))
        elif (below := before.get(row.name)) is not None:  # the first has nothing to be compared with
            removing = graphs if row not in captured else None
            advice, reason = _judge(row, below, removing is not None), row.sentence
            if row.receipts == UNPROVED:
                advice, reason = UNDECIDED, f"timed before its inspection ended; {reason}"
            elif not advice:
                advice, reason = UNDECIDED, "the run has no verdict on it"
            elif removing and row.waits:
                reason += f"; {removing.name} removes this waiting"
            if between := untimed.get(row.name, []):
                reason += f"; together with {', '.join(between)}, which the run did not time"
            each = Advised(row.name, row.title, advice, reason, STAIRCASE, between=between)
            each = _finish(each, row, (below, row), (GPU, STEP) if removing else (STEP, GPU), sources)
            if removing and (row.waits or below.waits) and (each.advice, each.clock) == (ADOPT, GPU):
                each = replace(each, why=f"{removing.name} ends the waiting")
            advised.append(each)
    return advised


def _judge(row: Row, below: Row, removed: bool) -> str:
    gpu = row.gpu.seen if row.gpu else NO_ANSWER
    return choose_advice(gpu, row.seen, row.waits or below.waits, removed)


def _advise_top(sources: Sources, result: Result) -> dict[str, Advised]:
    """Return the advice of the leave-one-out run on the rungs that were left out, by name."""
    rows = {row.name: row for row in view(result).rows}
    whole, advised = rows.pop(modes.ALL, None), {}
    for name, row in rows.items():
        title = catalog.load_rung(name).title if name in catalog.list_rungs() else name
        if whole and row.status == "ok" and row.advice:
            advice = _rule_out(row.advice, row.gpu.seen if row.gpu else NO_ANSWER, row.seen)
            each = Advised(name, title, advice, row.sentence, LEFT_OUT)
            advised[name] = _finish(each, row, (row, whole), (STEP, GPU), sources)
        else:
            reason = f"the ladder without it: {row.status}{': ' + row.reason if row.reason else ''}"
            advice = NOT_HERE if row.status == "n/a" else UNDECIDED
            decide = _write_command(sources.main) if advice == UNDECIDED else None
            advised[name] = Advised(name, title, advice, reason, decide=decide)
    return advised


def _finish(
    each: Advised, row: Row, pair: tuple[Row, Row], order: Sequence[str], sources: Sources
) -> Advised:
    """Return the advice with the figures of the clock that decided, and what it means for memory and GPU work.

    Args:
        row: has the answers.
        pair: the step without the rung and the one with it.
        order: the clocks, in the order in which they decide.
    """
    result = sources.staircase if each.source == STAIRCASE else sources.left_out
    assert result is not None
    (without, with_it), reason = pair, each.reason
    if each.advice != ADOPT and without.memory and with_it.memory:
        if without.memory >= with_it.memory * math.exp(COUNTS):  # a rung may be there for that alone
            amounts = f"{format_amount(with_it.memory)} GiB instead of {format_amount(without.memory)}"
            reason += f"; it takes less memory, {amounts}"
    if row.gpu and row.gpu.seen.verdict in (FASTER, SLOWER):
        was, now = (parts.parts_of(end.rung) for end in pair)
        reason += f"; GPU work: {parts.made_of(was, now)}" if was and now else ""
    figures = {STEP: (row.seen, with_it.step_ms)}
    if row.gpu:
        figures[GPU] = (row.gpu.seen, with_it.gpu.ms if with_it.gpu else None)
    decisive = {ADOPT: FASTER, SKIP: SLOWER}.get(each.advice)
    known = [clock for clock in order if clock in figures and figures[clock][0].verdict]
    clock = next((clock for clock in known if figures[clock][0].verdict == decisive), next(iter(known), ""))
    seen, ms = figures.get(clock, (NO_ANSWER, None))
    floor = row.gpu.floor if row.gpu and clock == GPU else row.floor
    why = f"noise floor {format_difference(floor)}" if seen.verdict == AMBIGUOUS and floor else ""
    decide = _find_command(row, each.source, result, sources) if each.advice == UNDECIDED else None
    prepare_s = derive_preparing(with_it.rung, without.rung)
    return replace(
        each, reason=reason, clock=clock, why=why, seen=seen, ms=ms, prepare_s=prepare_s, decide=decide
    )


def _find_command(row: Row, source: str, result: Result, sources: Sources) -> str:
    """Return the command that would decide about an undecided rung: a longer run, or a leave-one-out run."""
    verdicts = (row.seen.verdict, row.gpu.seen.verdict if row.gpu else "")
    is_unfinished, protocol = TOO_FEW in verdicts or row.receipts == UNPROVED, result.protocol
    mode = f"--mode {LEFT_OUT}" if source == LEFT_OUT else ""
    if source == STAIRCASE and not (is_unfinished or protocol.quick):
        return _write_command(result, f"--mode {LEFT_OUT}")
    if protocol.quick or (file := sources.resumes.get(source)) is None:
        return _write_command(result, mode)
    if protocol.fixed:  # It takes no budget.
        return f"ladder run --resume {file} --generations {max(LEAST_ROUNDS, TWICE * protocol.rounds)}"
    return f"ladder run --resume {file} --budget {TWICE * (protocol.budget_s or USUAL_S) / 60:g}"


def _write_command(result: Result, mode: str = "") -> str:
    """Return a command that measures the workload and ladder of a result anew."""
    name, ladder = result.workload["name"], result.ladder.name
    words = ["ladder run -w", name if name in catalog.list_workloads() else f"{name}.yaml"]
    if "pair" in result.workload:
        words = ["ladder run --model", f"{name}.py"]
    if ladder not in ("article", "pair"):
        words += ["--ladder", ladder if ladder in catalog.list_ladders() else f"{ladder}.yaml"]
    if limit := result.protocol.gpu_memory_limit_gb:
        words += [f"--gpu-memory {limit:g}"]
    return " ".join([*words, mode]).strip()
