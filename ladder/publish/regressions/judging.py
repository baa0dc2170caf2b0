"""Verdicts from two commits' interleaved rounds, in wall and GPU time, and the exit status. Pure functions.

Every round is a generation of live processes and holds BASE twice and HEAD once of each rung. BASE is its own twin: the
difference of its two processes is noise. The statistics are those of generations (`ladder.stats.nested`,
`ladder.stats.answers`): the error is joint over the processes of one kind, eager or captured, and one quantity. Holm's
correction is over the rungs of one quantity. HEAD is compared with the geometric mean of BASE's two processes.

GPU time repeats where the wall time of an eager step scatters, so a regression may be seen in one of the two alone. A
verdict takes three rounds: many samples of few processes support none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from ladder.base import files, text
from ladder.base.errors import UserError
from ladder.publish.regressions import schema
from ladder.publish.regressions.schema import (
    BASE,
    HEAD,
    TWIN,
    Answered,
    Compared,
    Judged,
    JudgedRung,
    Program,
)
from ladder.publish.regressions.schema import SIDES as SIDES
from ladder.results import derive
from ladder.results import store as results
from ladder.results.file import OUT
from ladder.stats import answers, estimates, nested
from ladder.stats.answers import Answer, Quantity
from ladder.stats.nested import Difference

MOST_BYTES = 2**21  # of a file
LEAST_ROUNDS, MOST_ROUNDS = nested.LEAST_GENERATIONS, nested.MOST_GENERATIONS
ENOUGH = 0.02  # the slowdown that is to be seen, if twelve rounds can; captured rungs are there after three
BROKEN = "broken"  # HEAD fails where BASE has a number: worse than slower
WORDS = (answers.FASTER, answers.SLOWER, answers.LESS, answers.AMBIGUOUS, BROKEN)
WALL, GPU = "wall time", "GPU time"
SAME_OR_FASTER, SLOWER, NOTHING = 0, 1, 2  # exit statuses
Of = TypeVar("Of", bound=Answered)


@dataclass(frozen=True)
class Times:
    """Milliseconds a step of one rung, by round: of BASE, of BASE again, and of HEAD."""

    base: Mapping[int, float]
    twin: Mapping[int, float]
    head: Mapping[int, float]

    def rounds(self) -> list[int]:
        """Return the complete rounds, which alone count."""
        return sorted(self.base.keys() & self.twin.keys() & self.head.keys())

    def side(self, side: str) -> Mapping[int, float]:
        return {BASE: self.base, TWIN: self.twin, HEAD: self.head}[side]


def build_quantity(times_by_rung: Mapping[str, Times], kinds: Mapping[str, str], *, is_gpu: bool) -> Quantity:
    """Return wall or GPU time of a comparison.

    Args:
        asked: the times by rung.
        kinds: "eager" or "captured" by rung.
    """
    logs = {
        _name(rung, side): {number: math.log(times.side(side)[number]) for number in times.rounds()}
        for rung, times in times_by_rung.items()
        for side in SIDES
    }
    sides = {_name(rung, side): kinds[rung] for rung in times_by_rung for side in SIDES}
    twins = [(_name(rung, BASE), _name(rung, TWIN)) for rung in times_by_rung]
    return answers.quantity(logs, sides, twins, is_gpu=is_gpu)


def _name(rung: str, side: str) -> str:
    return f"{rung} {side}"


def _list_complete(of: Quantity, rungs: Iterable[str]) -> list[str]:
    """Return the rungs that have a complete round."""
    return [rung for rung in rungs if _name(rung, HEAD) in of.kinds]


def find_difference(of: Quantity, rung: str) -> Difference | None:
    """Return the mean of BASE's two processes minus HEAD, or None below three rounds. It is positive if HEAD is faster.

    The variance of a round is 1.5 times that of a process. If a process is odd, it is that of the rounds themselves.
    """
    base, twin, head = (_name(rung, side) for side in (BASE, TWIN, HEAD))
    firsts, seconds = of.paired(base, head), of.paired(twin, head)
    apart = [(firsts[number] + seconds[number]) / 2 for number in firsts]
    rounds, group = len(apart), of.group(head)
    if rounds < LEAST_ROUNDS:
        return None
    variance, freedom = 1.5 * (group.variance or 0.0), group.freedom
    if group.odd & {base, twin, head} or not freedom:
        variance, freedom = float(np.var(apart, ddof=1)), rounds - 1
    return Difference(float(np.mean(apart)), math.sqrt(variance / rounds), freedom, rounds)


def decide(of: Quantity, rungs: Iterable[str]) -> dict[str, Answer]:
    """Return the answer of each rung with a complete round, with Holm's correction over all of them."""
    complete = _list_complete(of, rungs)
    floors, questions = of.floors(len(complete)), []
    for rung in complete:
        known = floors.get(of.kinds[_name(rung, HEAD)])
        questions.append(answers.question(find_difference(of, rung), [known], len(complete), gpu=of.is_gpu))
    return dict(zip(complete, answers.answer(questions), strict=True))


def wants_rounds(result: Compared, alive: Iterable[str]) -> bool:
    """Return whether one more round is worth it: below twelve, while a slowdown of 2% of a living rung might be missed.

    The widths of the intervals and the floors decide, never the places of the intervals. GPU time decides where it is
    known: on a noisy host no number of rounds makes the wall time of an eager step that sharp.
    """
    wall, gpu = (read_quantity(result, is_gpu=is_gpu) for is_gpu in (False, True))
    wide, fewest, most = False, MOST_ROUNDS, 0
    for rung in alive:
        of = gpu if _name(rung, HEAD) in gpu.kinds else wall
        done = len(of.paired(_name(rung, BASE), _name(rung, HEAD)))
        fewest, most = min(fewest, done), max(most, done)
        resolution = _resolution(of, rung, len(_list_complete(of, [each.name for each in result.rungs])))
        wide |= resolution is None or resolution > ENOUGH
    if most >= MOST_ROUNDS or fewest == MOST_ROUNDS:
        return False
    return fewest < LEAST_ROUNDS or wide


def _resolution(of: Quantity, rung: str, verdicts_: int) -> float | None:
    floor = of.floors(verdicts_).get(of.kinds.get(_name(rung, HEAD), ""))
    return None if floor is None else floor.resolution


def load(path: Path) -> Judged:
    """Return the comparison in a file, judged anew. Raises `UserError` with the problem in one line."""
    name = text.display(Path(path).name)
    try:
        data = results.parse(files.read(path, MOST_BYTES, links=False))
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{name}: not a result file: {error}") from None
    try:
        return judge(schema.read_compared(data))
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def judge(result: Compared) -> Judged:
    """Return the comparison with the verdicts of each rung, computed from the programs' raw rounds."""
    wall, gpu = (_decided(result, is_gpu=is_gpu) for is_gpu in (False, True))
    rungs = []
    for rung in result.rungs:
        sides = find_sides(result, rung.name)
        fresh = JudgedRung(name=rung.name, title=rung.title, skipped=rung.skipped)
        fresh = wall.enter(fresh, rung.name)
        if rung.skipped:
            fresh = replace(fresh, reason=rung.skipped)
        elif reason := _out(sides):
            fresh = replace(fresh, reason=reason, verdict=BROKEN if _is_broken(sides) else None)
        elif result.machine.device == "cuda":
            of_gpu = gpu.enter(Answered(), rung.name)
            fresh = replace(fresh, gpu=of_gpu if of_gpu.rounds else replace(of_gpu, reason=_void(sides)))
        rungs.append(fresh)
    stored = {name: getattr(result, name) for name in Compared.__struct_fields__}
    return Judged(**{**stored, "rungs": rungs}, notes=schema.list_notes(result))


@dataclass(frozen=True)
class _Decided:
    """One quantity of a comparison: the times, the answers and the floors."""

    times: Mapping[str, Times]
    answers: Mapping[str, Answer]
    of: Quantity

    def enter(self, fresh: Of, rung: str) -> Of:
        """Return a record with what this quantity of a rung shows."""
        times, answer = self.times.get(rung, Times({}, {}, {})), self.answers.get(rung)
        answered = replace(
            fresh,
            base_ms=estimates.median([*times.base.values(), *times.twin.values()]),
            head_ms=estimates.median(list(times.head.values())),
            rounds=len(times.rounds()),
        )
        if answer is None or answer.effect is None or answer.interval is None:
            return replace(
                answered, reason=f"{answered.rounds} of {LEAST_ROUNDS} generations: too few for a verdict"
            )
        return replace(
            answered,
            verdict=answer.verdict,
            ratio=math.exp(answer.effect),
            interval=[math.exp(bound) for bound in answer.interval],
            confidence=answer.confidence,
            floor=answer.floor,
            least=answer.least,
            resolution=_resolution(self.of, rung, len(self.answers)),
            below=answer.below,
        )


def _decided(result: Compared, *, is_gpu: bool) -> _Decided:
    of = read_quantity(result, is_gpu=is_gpu)
    return _Decided(list_times(result, is_gpu=is_gpu), decide(of, [rung.name for rung in result.rungs]), of)


def read_quantity(result: Compared, *, is_gpu: bool) -> Quantity:
    """Return the wall times or the GPU times of a comparison, as statistics take them."""
    kinds = {each.rung: derive.kind(each, result.machine.device) for each in result.programs}
    return build_quantity(list_times(result, is_gpu=is_gpu), kinds, is_gpu=is_gpu)


def list_times(result: Compared, *, is_gpu: bool) -> dict[str, Times]:
    """Return the wall times or the GPU times of each rung that has programs."""
    programs = {_name(each.rung, each.side): each for each in result.programs}
    values = derive.gpu_times(programs) if is_gpu else derive.walls(programs, result.machine.device)
    return {
        rung: Times(*(values.get(_name(rung, side), {}) for side in (BASE, TWIN, HEAD)))
        for rung in dict.fromkeys(each.rung for each in result.programs)
    }


def _void(sides: Mapping[str, Program]) -> str:
    """Return why no round of a rung has a GPU time of all its sides."""
    reasons = [each.gpu_void for program in sides.values() for each in program.rounds if each.gpu_void]
    return str(reasons[0]) if reasons else "no generation has GPU times of BASE, BASE again and HEAD"


def find_sides(result: Compared, rung: str) -> dict[str, Program]:
    return {each.side: each for each in result.programs if each.rung == rung}


def _out(sides: Mapping[str, Program]) -> str | None:
    """Return why a rung has no verdict for a program that is out of the run, or None."""
    names = {BASE: "BASE", HEAD: "HEAD", TWIN: "BASE's second visit"}
    out = {side: each for side, each in sides.items() if each.status in (*OUT, "n/a")}
    reasons = [f"{names[side]}: {each.status}: {each.reason}" for side, each in out.items() if each.reason]
    return reasons[0] if reasons else None


def _is_broken(sides: Mapping[str, Program]) -> bool:
    base, head = sides.get(BASE), sides.get(HEAD)
    if not base or not head or base.status != "ok" or head.status not in OUT:
        return False
    return not (head.reason or "").startswith("throttled:")  # the GPU's fault, see `ladder.machine.gpu_state`


def list_slower(rung: JudgedRung) -> list[str]:
    """Return the quantities in which HEAD made a rung slower: wall time, GPU time."""
    slower = [WALL] if rung.verdict == answers.SLOWER else []
    return slower + ([GPU] if rung.gpu and rung.gpu.verdict == answers.SLOWER else [])


def list_alarms(result: Judged) -> list[JudgedRung]:
    """Return the rungs that HEAD made slower or broke, and that nobody accepted."""
    return [each for each in result.rungs if (each.verdict == BROKEN or list_slower(each)) and not each.known]


def find_status(result: Judged) -> int:
    """Return the exit status: 0 same, faster or too close to tell; 1 slower or broken; 2 no rung has a verdict."""
    if list_alarms(result):
        return SLOWER
    judged = any(rung.verdict or (rung.gpu and rung.gpu.verdict) for rung in result.rungs)
    return SAME_OR_FASTER if judged else NOTHING
