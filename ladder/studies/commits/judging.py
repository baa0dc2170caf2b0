"""Verdicts from two commits' interleaved rounds, in wall and GPU time, and the exit status. Pure functions.

Every round is a generation of live processes and holds BASE twice and HEAD once of each rung. BASE is its own twin: the
difference of its two processes is noise. The statistics are those of generations (`ladder.stats.nested`,
`ladder.stats.answers`): the error is joint over the processes of one kind, eager or captured, and one quantity. Holm's
correction is over the rungs of one quantity. HEAD is compared with the geometric mean of BASE's two processes.

GPU time repeats where the wall time of an eager step scatters, so a regression may be seen in one of the two alone. A
verdict takes three rounds: many samples of few processes support none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from msgspec import structs
from msgspec.structs import replace

from ladder.core.protocol import CYCLE_STEPS
from ladder.plan import catalog
from ladder.results import derive
from ladder.results.file import OUT
from ladder.stats import answers, estimates, nested
from ladder.stats.answers import Answer, Quantity
from ladder.stats.nested import Difference
from ladder.studies.commits import record
from ladder.studies.commits.record import BASE, HEAD, SIDES, TWIN, Program

LEAST_ROUNDS, MOST_ROUNDS = nested.LEAST_GENERATIONS, nested.MOST_GENERATIONS
ENOUGH = 0.02  # the slowdown that is to be seen, if twelve rounds can; captured rungs are there after three
BROKEN = "broken"  # HEAD fails where BASE has a number: worse than slower
WALL, GPU = "wall time", "GPU time"
SAME_OR_FASTER, SLOWER, NOTHING = 0, 1, 2  # exit statuses
Times = Mapping[str, Mapping[int, float]]  # milliseconds a step of one rung, by side and round
Programs = Mapping[str, Program]  # by name, "fused_act head"


def list_complete(times: Times) -> list[int]:
    """Return the rounds that all three sides have, which alone count."""
    return sorted(set.intersection(*(set(times[side]) for side in SIDES)))


def build_quantity(times_by_rung: Mapping[str, Times], kinds: Mapping[str, str], *, is_gpu: bool) -> Quantity:
    """Return wall or GPU time of a comparison; `kinds` are "eager" or "captured" by rung."""
    logs = {
        f"{rung} {side}": {number: math.log(times[side][number]) for number in list_complete(times)}
        for rung, times in times_by_rung.items()
        for side in SIDES
    }
    twins = [(f"{rung} {BASE}", f"{rung} {TWIN}") for rung in times_by_rung]
    return answers.make_quantity(
        logs, {name: kinds[name.rpartition(" ")[0]] for name in logs}, twins, is_gpu=is_gpu
    )


def find_difference(of: Quantity, rung: str) -> Difference | None:
    """Return the mean of BASE's two processes minus HEAD, or None below three rounds. It is positive if HEAD is faster.

    The variance of a round is 1.5 times that of a process.
    """
    base, twin, head = (f"{rung} {side}" for side in (BASE, TWIN, HEAD))
    firsts, seconds = of.paired(base, head), of.paired(twin, head)
    means = [(firsts[number] + seconds[number]) / 2 for number in firsts]
    return nested.average_differences(means, {base, twin, head}, of.group(head), 1.5)


def decide(of: Quantity, rungs: Iterable[str]) -> dict[str, Answer]:
    """Return the answer of each rung with a complete round, with Holm's correction over all of them."""
    complete = [rung for rung in rungs if f"{rung} {HEAD}" in of.kinds]
    floors, questions = of.floors(len(complete)), []
    for rung in complete:
        floor = floors.get(of.kinds[f"{rung} {HEAD}"])
        questions.append(
            answers.make_question(find_difference(of, rung), [floor], len(complete), gpu=of.is_gpu)
        )
    return dict(zip(complete, answers.answer_questions(questions), strict=True))


def find_resolution(of: Quantity, rung: str) -> float | None:
    """Return the slowdown of a rung that would have been seen, a log ratio; None where the noise is unknown."""
    complete = sum(name.endswith(f" {HEAD}") for name in of.kinds)
    floor = of.floors(complete).get(of.kinds.get(f"{rung} {HEAD}", ""))
    return None if floor is None else floor.resolution


def wants_rounds(file: record.File, alive: Iterable[str]) -> bool:
    """Return whether one more round is worth it: below twelve, while a slowdown of 2% of a living rung might be missed.

    The widths of the intervals and the floors decide, never the places of the intervals. GPU time decides where it is
    known: on a noisy host no number of rounds makes the wall time of an eager step that sharp.
    """
    programs = list_programs(file)
    wall, gpu = (read_quantity(programs, file.machine.device, is_gpu=is_gpu)[1] for is_gpu in (False, True))
    deciding = {rung: gpu if f"{rung} {HEAD}" in gpu.kinds else wall for rung in alive}
    counts = [len(of.paired(f"{rung} {BASE}", f"{rung} {HEAD}")) for rung, of in deciding.items()]
    if not counts or max(counts) >= MOST_ROUNDS:
        return False
    widths = [find_resolution(of, rung) for rung, of in deciding.items()]
    return min(counts) < LEAST_ROUNDS or any(width is None or width > ENOUGH for width in widths)


# --- the programs of a file -------------------------------------------------------------------------------------------


def list_programs(file: record.File) -> dict[str, Program]:
    """Return the rungs on each side by name, with what all generations showed."""
    observed = [file.observed[key] for key in sorted(file.observed, key=read_number)]
    programs = {}
    for rung, side in itertools.product(recipes := next(iter(file.cases.values())).recipes, SIDES):
        name = f"{rung} {side}"
        visits = [each.programs[name] for each in observed if name in each.programs]
        rounds = [visit.round for visit in visits if visit.round]
        out = next((visit for visit in visits if visit.status != "ok"), None)
        status, reason = (out.status, out.reason) if out else ("ok" if rounds else "n/a", None)
        if rounds and not out and all(each.alloc_retries for each in rounds):
            status, reason = "invalid", derive.void_memory(rounds[-1].alloc_retries or None)
        first = {
            key: next((value for visit in visits if (value := getattr(visit, key)) is not None), None)
            for key in ("settings", "choices", "profile")
        }
        programs[name] = Program(
            rung=rung, side=side, status=status, reason=reason, recipe=recipes[rung], rounds=rounds, **first
        )
    return programs


def read_number(generation: str) -> int:
    return int(generation.removeprefix(record.GENERATION))


def is_alive(programs: Programs, rung: str, side: str) -> bool:
    """Return whether a program is to be visited: every program of its rung is still in the run.

    BASE is visited once even where HEAD failed first: only a rung that BASE can do is broken.
    """
    out = [each for each in SIDES if programs[f"{rung} {each}"].reason]
    return not out or (out == [HEAD] and side == BASE and not programs[f"{rung} {BASE}"].rounds)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def judge(file: record.File) -> record.Judged:
    """Return the verdicts of each rung, computed from the programs' raw rounds."""
    programs, case, device = list_programs(file), next(iter(file.cases.values())), file.machine.device
    wall, gpu = (derive_answers(programs, device, is_gpu=is_gpu) for is_gpu in (False, True))
    names, rungs = {BASE: "BASE", HEAD: "HEAD", TWIN: "BASE's second visit"}, []
    for rung in case.recipes:
        of_wall, of_gpu = wall[rung], gpu[rung] if device == "cuda" else None
        sides = {side: programs[f"{rung} {side}"] for side in SIDES}
        if out := next((side for side in SIDES if sides[side].reason), None):
            head, reason = sides[HEAD], f"{names[out]}: {sides[out].status}: {sides[out].reason}"
            is_throttled = (head.reason or "").startswith(
                "throttled:"
            )  # by the GPU, see `ladder.machine.gpu_state`
            is_broken = sides[BASE].status == "ok" and head.status in OUT and not is_throttled
            of_wall, of_gpu = replace(of_wall, reason=reason, verdict=BROKEN if is_broken else None), None
        title = catalog.load_rung(rung).title if rung in catalog.list_rungs() else rung
        rungs.append(record.JudgedRung(name=rung, title=title, gpu=of_gpu, **structs.asdict(of_wall)))
    notes = ["the measured code is the same in both commits: whatever differs is noise"]
    rules = record.Protocol(
        file.options.rounds is not None, len(file.observed), record.CYCLES, CYCLE_STEPS, file.options.seed
    )
    return record.Judged(
        base=case.base, head=case.head, protocol=rules, rungs=rungs, programs=list(programs.values()),
        gpu=next((each.gpu for each in reversed(file.observed.values()) if each.gpu), None),
        notes=notes if case.base.measured_code == case.head.measured_code else [],
    )  # fmt: skip


def derive_answers(programs: Programs, device: str, *, is_gpu: bool) -> dict[str, record.Answered]:
    """Return what wall or GPU time shows of each rung."""
    times_by_rung, of = read_quantity(programs, device, is_gpu=is_gpu)
    decided, answered = decide(of, times_by_rung), {}
    for rung, times in times_by_rung.items():
        answer, rounds = decided.get(rung), len(list_complete(times))
        base_ms = estimates.median([*times[BASE].values(), *times[TWIN].values()])
        shown = record.Answered(
            base_ms=base_ms, head_ms=estimates.median(list(times[HEAD].values())), rounds=rounds
        )
        if answer is not None and answer.effect is not None and answer.interval is not None:
            answered[rung] = replace(
                shown, verdict=answer.verdict, ratio=math.exp(answer.effect), confidence=answer.confidence,
                interval=[math.exp(bound) for bound in answer.interval], floor=answer.floor, least=answer.least,
                resolution=find_resolution(of, rung), below=answer.below,
            )  # fmt: skip
            continue
        sides = (programs[f"{rung} {side}"] for side in SIDES)
        void = [each.gpu_void for side in sides for each in side.rounds if each.gpu_void]
        reason = f"{rounds} of {LEAST_ROUNDS} generations: too few for a verdict"
        answered[rung] = replace(shown, reason=void[0] if is_gpu and void and not rounds else reason)
    return answered


def read_quantity(programs: Programs, device: str, *, is_gpu: bool) -> tuple[Mapping[str, Times], Quantity]:
    """Return the wall times or the GPU times of each rung, and the quantity that statistics take."""
    by_name = derive.gpu_times(programs) if is_gpu else derive.walls(programs, device)
    rungs = dict.fromkeys(each.rung for each in programs.values())
    times = {rung: {side: by_name.get(f"{rung} {side}", {}) for side in SIDES} for rung in rungs}
    kinds = {rung: derive.kind(programs[f"{rung} {BASE}"], device) for rung in rungs}
    return times, build_quantity(times, kinds, is_gpu=is_gpu)


def list_slower(rung: record.JudgedRung) -> list[str]:
    """Return the quantities in which HEAD made a rung slower: wall time, GPU time."""
    both = ((WALL, rung), (GPU, rung.gpu))
    return [of for of, answer in both if answer and answer.verdict == answers.SLOWER]


def list_alarms(result: record.Judged) -> list[record.JudgedRung]:
    """Return the rungs that HEAD made slower or broke, and that nobody accepted."""
    return [each for each in result.rungs if (each.verdict == BROKEN or list_slower(each)) and not each.known]


def find_status(result: record.Judged) -> int:
    """Return the exit status: 0 same, faster or too close to tell; 1 slower or broken; 2 no rung has a verdict."""
    if list_alarms(result):
        return SLOWER
    judged = any(rung.verdict or (rung.gpu and rung.gpu.verdict) for rung in result.rungs)
    return SAME_OR_FASTER if judged else NOTHING
