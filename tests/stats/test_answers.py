"""The words about differences over generations, their floors, and when a generation is added."""

import math

import numpy as np
import pytest

from ladder.core import text
from ladder.stats import answers, estimates, nested
from ladder.stats.nested import Difference


def asked(mean: float, error: float, floor: float = 0.0, widest: float = 0.015, freedom: float = 18.0):
    return answers.Question(Difference(mean, error, freedom, 3), floor, widest)


def words(*questions: answers.Question) -> list[str]:
    return [each.verdict for each in answers.answer_questions(questions)]


def test_outside_the_floor_a_sign_and_inside_it_how_much_it_can_be() -> None:
    assert words(asked(0.02, 0.001), asked(-0.02, 0.001)) == ["faster", "slower"]
    for mean in (0.004, -0.004, 0.0):
        (answer,) = answers.answer_questions([asked(mean, 0.001)])
        half = estimates.t_quantile(0.975, 18) * 0.001
        assert answer.verdict == "less than" and answer.below == pytest.approx(abs(mean) + half)
        assert answer.interval == pytest.approx((mean - half, mean + half))


def test_only_what_leaves_more_open_than_enough_is_ambiguous() -> None:
    wide = asked(0.0, 0.01)  # 2.1% either way
    assert words(wide) == ["ambiguous"] and answers.answer_questions([wide])[0].below is None
    assert words(asked(0.0, 0.01, widest=0.03)) == ["less than"]
    for sign in (1, -1):
        assert words(asked(sign * 0.013, 0.001, floor=0.02)) == ["ambiguous"]  # it may be 1.51%
        assert words(asked(sign * 0.0125, 0.001, floor=0.02)) == ["less than"]


def test_no_answer_on_gpu_time_leaves_more_open_than_one_and_a_half_percent() -> None:
    """A bound of 0.015 on the logarithm let `less than 1.6%` pass."""
    half = estimates.t_quantile(0.975, 18)
    for far, word in ((0.0149, "less than"), (0.01505, "ambiguous")):
        error = math.log1p(far) / half
        question = answers.make_question(Difference(0.0, error, 18, 3), [], 1, gpu=True)
        (answer,) = answers.answer_questions([question])
        assert answer.verdict == word
    assert text.less_than(answers.GPU_RESOLUTION) == "less than 1.5%"


def test_no_run_is_so_noisy_that_less_than_twice_says_something() -> None:
    """A busy CPU stated a resolution of 390%, and a row read `less than 390%`."""
    half, ln2 = estimates.t_quantile(0.975, 18), math.log(2)
    for mean in (0.1, -0.1, 0.0):
        (wide,) = answers.answer_questions([asked(mean, (1.58 - abs(mean)) / half, floor=1.0, widest=1.6)])
        assert wide.verdict == "ambiguous" and wide.below is None
    for far, word in ((ln2 - 1e-6, "less than"), (ln2 + 1e-6, "ambiguous")):
        assert words(asked(0.0, far / half, floor=1.0, widest=1.6)) == [word]


def test_nothing_below_a_quarter_percent_or_the_floor_is_a_difference() -> None:
    assert words(asked(0.0024, 0.0)) == ["less than"] and words(asked(0.0026, 0.0)) == ["faster"]
    assert words(asked(0.0026, 0.0, floor=0.01)) == ["less than"]
    (answer,) = answers.answer_questions([asked(0.0026, 0.0, floor=0.01)])
    assert answer.floor == answer.least == 0.01
    assert answers.answer_questions([asked(0.0, 0.0)])[0].least == 0.0025


def test_holm_is_over_the_verdicts_of_the_run() -> None:
    close = asked(0.0058, 0.0014)  # 2.36 errors beyond 0.25%: enough alone, not among seven
    assert words(close) == ["faster"] and words(close, *[asked(0.0, 0.0001)] * 6)[0] == "less than"


def test_the_interval_is_the_one_that_was_judged() -> None:
    found = answers.answer_questions([asked(0.02, 0.001), asked(0.03, 0.001)])
    assert sorted(each.confidence for each in found) == pytest.approx([0.95, 0.975])
    for answer in found:
        half = estimates.t_quantile(0.5 + answer.confidence / 2, 18) * 0.001
        assert answer.interval == pytest.approx((answer.effect - half, answer.effect + half))


def test_without_a_difference_there_are_too_few_generations_and_no_interval() -> None:
    (answer,) = answers.answer_questions([answers.Question(None, 0.0, 0.015)])
    assert (
        answer.verdict == "too few generations" and answer.interval is answer.effect is answer.below is None
    )
    assert words(answers.Question(None, 0.0, 0.015), asked(0.02, 0.001)) == ["too few generations", "faster"]
    assert answers.answer_questions([]) == []


def test_generations_are_added_for_width_alone() -> None:
    def wanted(done: int, error: float, mean: float = 0.0) -> bool:
        return answers.wants_generations(
            done, [Difference(0.0, 1e-4, 18, done), Difference(mean, error, 18, done)]
        )

    assert wanted(2, 0.0) and wanted(1, 1.0)
    for mean in (0.0, 0.011, 0.5):  # undecided, nearly significant, clear: the same answer
        assert wanted(3, 0.002, mean) and wanted(11, 0.002, mean)
        assert not wanted(3, 0.0015, mean) and not wanted(12, 0.002, mean)
    assert answers.wants_generations(5, [Difference(0.0, 0.0, 18, 5), None])
    assert not answers.wants_generations(12, [None]) and not answers.wants_generations(0, [])


# --- a whole quantity -----------------------------------------------------------------------------------------------


def quantity(drift: float = 0.0, *, gpu: bool = False, noise: float = 0.01) -> answers.Quantity:
    """Two eager and three captured rungs, and a twin of each kind."""
    rng = np.random.default_rng(3)
    kinds = {"a": "eager", "b": "eager", "t": "eager"} | dict.fromkeys("cdeu", "captured")
    apart = rng.normal(0, drift, 5)
    values = {
        name: {
            number: float(
                rng.normal(0, noise if kind == "eager" else 0.0002) + apart[number] * (kind == "eager")
            )
            for number in range(5)
        }
        for name, kind in kinds.items()
    }
    return answers.make_quantity(values, kinds, [("a", "t"), ("e", "u")], is_gpu=gpu)


def test_each_kind_has_a_floor_of_its_own_and_a_resolution_beyond_it() -> None:
    floors = quantity().floors(4)
    assert 0.005 < floors["eager"].floor < 0.05 and floors["captured"].floor < 0.001
    for kind, floor in floors.items():
        group = quantity().groups[kind]
        half = estimates.t_quantile(1 - 0.025 / 4, 6) * np.sqrt(2 * group.variance / 5)
        assert floor.resolution == pytest.approx(max(0.0025, floor.floor) + half)
        assert floor.floor >= nested.residual_bound(group)


def test_twins_that_differ_raise_the_floor_of_their_kind_alone() -> None:
    calm = quantity()
    values = {name: dict(each) for group in calm.groups.values() for name, each in group.values.items()}
    values["u"] = {number: value + 0.01 for number, value in values["u"].items()}
    floors = answers.make_quantity(values, calm.kinds, calm.twins, is_gpu=False).floors(4)
    assert 0.01 < floors["captured"].floor < 0.011 and floors["eager"] == calm.floors(4)["eager"]


def test_a_wall_answer_is_enough_within_the_resolution_and_a_gpu_answer_within_one_and_a_half_percent() -> (
    None
):
    (wall,), (gpu,) = (quantity(gpu=gpu).answers([("a", "b")]) for gpu in (False, True))
    assert wall.interval == gpu.interval and wall.interval[1] > 0.015
    assert wall.verdict == "less than" and gpu.verdict == "ambiguous"


def test_a_wall_answer_within_the_resolution_of_a_run_that_sees_nothing_is_ambiguous() -> None:
    noisy = quantity(noise=0.5)
    (answer,) = noisy.answers([("a", "b")])
    far = max(map(abs, answer.interval or ()))
    assert math.log(2) < far < noisy.floors(1)["eager"].resolution
    assert answer.verdict == "ambiguous"


def test_the_drift_of_two_kinds_is_part_of_the_floor_between_them() -> None:
    calm, drifting = (quantity(drift).answers([("b", "c"), ("c", "d")]) for drift in (0.0, 0.2))
    assert drifting[0].floor > 0.1 > calm[0].floor >= quantity().floors(2)["eager"].floor
    assert drifting[1].floor == pytest.approx(calm[1].floor)
    assert drifting[0].verdict == "ambiguous" and calm[0].verdict == "less than"
