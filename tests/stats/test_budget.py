"""How many rounds a run makes."""

from ladder.stats import rounds_budget


def again(done: int, **more) -> bool:
    options = {"fixed": None, "budget_s": 600.0, "spent_s": 0.0, "round_s": 60.0, "wanted": False} | more
    return rounds_budget.another_round(done, **options)


def test_three_generations_whatever_the_budget() -> None:
    assert again(2) and not again(3)
    assert again(2, spent_s=5000.0) and not again(3, spent_s=5000.0)


def test_more_only_where_wanted_and_within_the_budget() -> None:
    assert again(3, wanted=True) and again(11, wanted=True, budget_s=None)
    assert not again(3, wanted=True, spent_s=560.0) and again(3, wanted=True, spent_s=540.0)


def test_what_was_asked_for_is_done() -> None:
    assert again(1, fixed=2, spent_s=5000.0) and not again(2, fixed=2, wanted=True)


def test_cycles_give_way_before_rounds() -> None:
    fits = {"budget_s": 600.0, "spent_s": 130.0}
    assert rounds_budget.fitting_cycles(2, 1, round_s=200.0, **fits) == 2
    assert rounds_budget.fitting_cycles(2, 1, round_s=240.0, **fits) == 1
    assert rounds_budget.fitting_cycles(2, 3, round_s=1e9, **fits) == 2  # three are done
    assert rounds_budget.fitting_cycles(2, 1, round_s=1e9, budget_s=None, spent_s=0.0) == 2
