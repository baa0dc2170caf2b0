"""Wall and GPU time of two commits, judged apart: planted differences are found in the quantity that shows them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ladder.core.records import read_record
from ladder.engine import profiling
from ladder.engine.outcomes import Visited
from ladder.results.file import KernelProfile
from ladder.stats import answers
from ladder.studies import frame
from ladder.studies.commits import judging, known, study
from ladder.studies.commits.judging import BASE, HEAD, MOST_ROUNDS, SIDES, TWIN, judge
from ladder.studies.commits.record import Visit
from ladder.studies.commits.study import STUDY
from tests.support.made_up_comparison import made_up, on_a_gpu, with_side
from tests.support.simulation import CYCLES, FAMILIES, KINDS

GPU_SD = {"captured": 0.0003, "eager": 0.002}  # of GPU time between processes
NOISY = 0.06  # of wall time between eager processes on a host with neighbours


def drawn(
    rng: Any, family: str, sd: float, slowdown: float, rounds: int, cycle: float = 0.0
) -> judging.Times:
    """The times of BASE, BASE again and HEAD, in an order that is new in each round."""
    logs = FAMILIES[family](rng, rounds * 3, sd).reshape(rounds, 3)
    logs += np.median(rng.normal(0, cycle, (rounds, 3, CYCLES)), axis=-1)
    base, twin, head = 100 * np.exp(rng.permuted(logs, axis=1)).T
    by_side = {BASE: base, TWIN: twin, HEAD: head * (1 + slowdown)}
    return {side: dict(enumerate(values)) for side, values in by_side.items()}


def words(
    rng: Any, family: str, sds: dict[str, float], slowdown: float, *, gpu: bool, rounds: int
) -> dict[str, str]:
    """The verdicts of an eager and a captured rung, in one quantity of a run."""
    asked = {kind: drawn(rng, family, sd, slowdown, rounds) for kind, sd in sds.items()}
    of = judging.build_quantity(asked, {kind: kind for kind in asked}, is_gpu=gpu)
    return {kind: answer.verdict for kind, answer in judging.decide(of, asked).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_five_percent_of_gpu_work_is_found_where_wall_times_differ_by_six(family: str) -> None:
    rng, wall, gpu = np.random.default_rng(0), [], []
    for _ in range(60):
        wall.append(words(rng, family, {"eager": NOISY}, 0.05, gpu=False, rounds=3)["eager"])
        gpu.append(words(rng, family, GPU_SD, 0.05, gpu=True, rounds=3)["eager"])
    assert gpu.count(answers.SLOWER) >= 57 and answers.FASTER not in {*gpu, *wall}
    assert wall.count(answers.SLOWER) <= 6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_delay_of_the_host_is_found_in_wall_time_where_the_host_is_calm(family: str) -> None:
    rng, calm = np.random.default_rng(1), KINDS["eager"]
    found = []
    for _ in range(60):
        asked = {"eager": drawn(rng, family, calm.process, 0.05, MOST_ROUNDS, calm.cycle)}
        of = judging.build_quantity(asked, {"eager": "eager"}, is_gpu=False)
        found.append(judging.decide(of, asked)["eager"].verdict)
        gpu = words(rng, family, GPU_SD, 0.0, gpu=True, rounds=MOST_ROUNDS)
        assert answers.SLOWER not in gpu.values()
    assert found.count(answers.SLOWER) >= 57


@pytest.mark.parametrize("family", FAMILIES)
def test_one_percent_of_a_captured_step_is_found_in_three_rounds(family: str) -> None:
    rng = np.random.default_rng(2)
    for gpu in (False, True):
        sds = {"eager": GPU_SD["eager"], "captured": KINDS["captured"].process}
        found = [words(rng, family, sds, 0.01, gpu=gpu, rounds=3)["captured"] for _ in range(60)]
        assert found.count(answers.SLOWER) >= 57


@pytest.mark.covering
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rounds", [3, 5, MOST_ROUNDS])
def test_identical_programs_are_not_called_different(family: str, rounds: int) -> None:
    """At most 1 verdict in 300, in both quantities together."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(150):
        for gpu, sds in ((False, {"eager": NOISY, "captured": 0.0005}), (True, GPU_SD)):
            found = words(rng, family, sds, 0.0, gpu=gpu, rounds=rounds)
            wrong += sum(word in (answers.SLOWER, answers.FASTER) for word in found.values())
    assert wrong <= 2  # of 600


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wall, gpu, noise, verdicts, slower",
    [
        (1.0, 1.05, NOISY, (None, answers.SLOWER), "GPU time"),
        (1.05, 1.0, 0.0002, (answers.SLOWER, answers.LESS), "wall time"),
        (1.05, 1.05, 0.0002, (answers.SLOWER, answers.SLOWER), "wall time and GPU time"),
        (1.0, 1.0, 0.0002, (answers.LESS, answers.LESS), ""),
    ],
)
def test_the_line_says_which_quantity_shows_a_slowdown(
    wall: float, gpu: float, noise: float, verdicts: tuple[str | None, str], slower: str
) -> None:
    judged = judge(on_a_gpu(wall, gpu, noise))
    (rung,) = judged.rungs
    assert rung.gpu and rung.gpu.ratio == pytest.approx(1 / gpu, rel=0.01)
    assert rung.gpu.verdict == verdicts[1] and verdicts[0] in (None, rung.verdict)
    assert judging.find_status(judged) == bool(slower)
    line = f"HEAD is slower or broken: baseline ({slower})" if slower else "nothing is slower"
    assert study.conclude(judged) == line


def test_what_is_probably_slower_is_not_called_as_fast() -> None:
    judged = judge(on_a_gpu())
    (rung,) = judged.rungs
    interval = [0.53, 0.81]  # of speed: 24 to 89% slower, and the floor is wider
    doubtful = replace(rung, gpu=None, verdict=answers.AMBIGUOUS, ratio=0.65, interval=interval)
    line = study.conclude(replace(judged, rungs=[doubtful]))
    assert line.startswith("probably slower, not decided: baseline (wall time, +53.8%)")
    unclear = replace(doubtful, interval=[0.53, 1.01])
    assert study.conclude(replace(judged, rungs=[unclear])) == "nothing is slower"


def test_without_gpu_times_the_wall_decides_and_the_reason_is_there() -> None:
    judged = judge(on_a_gpu(wall=1.05, void="the profiler saw no kernels"))
    (rung,) = judged.rungs
    assert rung.gpu and rung.gpu.verdict is None and rung.gpu.reason == "the profiler saw no kernels"
    assert judging.find_status(judged) == 1
    assert judge(made_up()).rungs[0].gpu is None  # on a CPU


def test_an_accepted_slowdown_of_gpu_time_is_silent() -> None:
    file = on_a_gpu(gpu=1.05)
    entry = known.Entry("b" * 40, "tiny/baseline", "wider tile", known.today())
    marked = known.mark(file, [entry])
    assert judging.find_status(judge(file)) == 1 and judging.find_status(marked) == 0
    assert "wider tile" in marked.rungs[0].known


def profile(**us: float) -> KernelProfile:
    """The profile of kernels that follow one another; microseconds of a step by name."""
    at, events = 0, []
    for name, size in us.items():
        events.append((name, True, 7, at, at + round(size * 16_000)))
        at += round(size * 16_000)
    return read_record(KernelProfile, profiling.derive_composition(events))


def test_a_difference_of_gpu_work_is_explained_by_category_and_kernel() -> None:
    """The profile of a program's first process stays in the file; BASE a second time needs none."""
    file = on_a_gpu(gpu=1.05)
    kernels = {BASE: {"nvjet_gemm": 700_000, "reduce_kernel": 100_000}}
    kernels[HEAD] = {"nvjet_gemm": 700_000, "bias_act_kernel": 140_000}
    for side in SIDES:

        def visit(before: Visit, side: str = side) -> Visit:
            program, own = SimpleNamespace(side=side), kernels.get(side, kernels[BASE])
            cycles = [replace(each, gpu_ms=sum(own.values()) / 1000) for each in before.round.profiled]
            one, is_first = replace(before.round, profiled=cycles), before.round.round == 0
            shown = profile(**own) if is_first else profile(later=9.0)
            return study.make_visit(Visited(program, "ok", None, one, {}, {}, [], shown), is_first)

        file = with_side(file, side, visit)
    assert [bool(each.profile) for each in judge(file).programs] == [True, True, False]
    text = frame.render_terminal(STUDY, file, 200)
    for words in (
        "baseline: +40.00 ms GPU work in the profiled cycles:"
        " fused: activation and bias +140.00 ms, reductions -100.00 ms",
        "baseline: kernels that appeared: bias_act_kernel 140.00 ms",
        "baseline: kernels that went: reduce_kernel 100.00 ms",
    ):
        assert words in text
    assert "later" not in text


def test_rounds_are_added_until_gpu_time_is_sharp_whatever_the_host_does() -> None:
    names = ["baseline"]
    assert judging.wants_rounds(on_a_gpu(rounds=2), names)
    assert not judging.wants_rounds(on_a_gpu(noise=NOISY), names)
    assert judging.wants_rounds(on_a_gpu(noise=NOISY, void="no CUPTI"), names)
    assert judging.wants_rounds(made_up(rounds=3, noise=NOISY), names)
    assert not judging.wants_rounds(made_up(rounds=3), names)
    assert not judging.wants_rounds(made_up(rounds=MOST_ROUNDS, noise=NOISY), names)
    assert not judging.wants_rounds(made_up(), [])


def test_passes_and_base_again_are_taken_together() -> None:
    """A slow pass that HEAD missed does not make HEAD faster; the two processes of BASE count alike."""
    file = made_up(rounds=3, noise=0.0)
    samples = {0: 1000.0, 1: 1500.0, 2: 1000.0}
    for side in SIDES:
        passes = [0, 2] if side == HEAD else [0, 1, 2]
        more = {"samples_ms": [samples[each] for each in passes], "passes": passes}
        file = with_side(file, side, lambda v, more=more: replace(v, round=replace(v.round, **more)))
    (rung,) = judge(file).rungs
    assert rung.ratio == pytest.approx(1.0) and rung.verdict == answers.LESS
    times = {side: dict.fromkeys(range(3), 100.0) for side in SIDES}
    times[TWIN] = dict.fromkeys(range(3), 102.0)
    of = judging.build_quantity({"a": times}, {"a": "eager"}, is_gpu=True)
    assert judging.find_difference(of, "a").mean == pytest.approx(np.log(1.02) / 2)
