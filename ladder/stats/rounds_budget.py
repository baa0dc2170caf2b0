"""The number of rounds in a run: pure functions of seconds and widths, so that their decisions can be tested."""

MINUTES, MISTAKES_MINUTES = 10.0, 8.0
LEAST_ROUNDS, MOST_ROUNDS = 3, 12  # the least even beyond the budget: two are no basis for an interval


def another_round(
    done: int, *, fixed: int | None, budget_s: float | None, spent_s: float, round_s: float, wanted: bool
) -> bool:
    """Return whether to make round number `done` (0-based).

    Args:
        fixed: the number of rounds requested; it overrides all else.
        budget_s: seconds the run may take, or None for no limit.
        spent_s, round_s: seconds taken so far, and by one round.
        wanted: whether more rounds are worth it (`ladder.stats.answers.wants_generations`). Ignored below 3.
    """
    if fixed is not None:
        return done < fixed
    if done < LEAST_ROUNDS:
        return True
    return wanted and (budget_s is None or spent_s + round_s <= budget_s)


def fitting_cycles(cycles: int, done: int, *, budget_s: float | None, spent_s: float, round_s: float) -> int:
    """Return the timed cycles of a visit from now on: one, if three generations like the first do not fit the budget.

    Rounds are kept rather than cycles: processes differ more than the cycles of one process.
    """
    left = max(0, LEAST_ROUNDS - done)
    return 1 if budget_s is not None and left and spent_s + left * round_s > budget_s else cycles
