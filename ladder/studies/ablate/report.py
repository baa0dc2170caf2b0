"""The report of `ladder ablate`: sentences, tables of rungs and of pairs, for a terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ladder.base import text as texts
from ladder.base.text import escaped, fine_factor, rounded
from ladder.results import store as results
from ladder.results.types import head
from ladder.stats import estimates
from ladder.studies.ablate.record import GPU, Pair, Result, Worth

HEADINGS = (
    "rung", "on average", "95% interval", "saves ms/step", "in the ladder's order", "first", "last", "all orders",
)  # fmt: skip
OF_LONGER = ("rung", "gain at top", "95% interval", "leaves with it")
PAIRED = ("pair", "interaction", "95% interval")
STORED = ("rung", "run", "GPU", "interval", "step", "interval")
WORDS = {OF_LONGER: (0, 3), STORED: (0, 1)}  # columns of words; of other tables the first
SHOWN = 5  # pairs in the table


def factor(log: float | None) -> str:
    return "" if log is None else fine_factor(math.exp(log))


def bounds(interval: Sequence[float] | None) -> str:
    """Return an interval of logarithms as one of factors."""
    return "" if interval is None else texts.bounds((math.exp(interval[0]), math.exp(interval[1])))


def where(result: Result) -> str:
    """Return for which place in the ladder the figures hold."""
    return "in any order" if result.protocol.whole else "on top of all others"


def clock(result: Result) -> str:
    return "GPU time" if result.protocol.clock == GPU else "wall time on a CPU"


def table(result: Result) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and rows of the rungs, in the order of the ladder."""
    if not result.protocol.whole:
        return OF_LONGER, _of_longer(result)
    rows: list[tuple[str, ...]] = [
        (
            each.rung,
            factor(each.gain),
            bounds(each.interval),
            "" if each.ms is None else f"{each.ms:.2f}",
            factor(each.staircase),
            factor(each.alone),
            factor(each.left_out),
            _span(each),
        )
        for each in result.worth
    ]
    if result.total is not None:
        total = result.total
        rows.append(
            ("all together", factor(total.gain), bounds(total.interval), f"{total.ms:.2f}", *[""] * 4)
        )
    return HEADINGS, rows


def _of_longer(result: Result) -> list[tuple[str, ...]]:
    """Return the rows of a ladder that was measured at its top alone, with the rungs that leave with each."""
    kept = {row.out[0]: {*row.rungs} for row in result.subsets if len(row.out) == 1}
    rows: list[tuple[str, ...]] = []
    for each in result.worth:
        left = kept.get(each.rung, {*result.protocol.rungs})
        others = [name for name in result.protocol.rungs if name not in left and name != each.rung]
        cells = (factor(each.left_out), bounds(each.left_out_interval), ", ".join(others))
        rows.append((each.rung, *cells))
    if result.total is not None:
        rows.append(("all together", factor(result.total.gain), bounds(result.total.interval), ""))
    return rows


def _span(each: Worth) -> str:
    if each.least is None or each.most is None:
        return ""
    return f"{math.exp(each.least):.3f}-{math.exp(each.most):.3f}x"


def pair_rows(result: Result, most: int = SHOWN) -> list[tuple[str, str, str]]:
    """Return the pairs that need or hinder each other most, with the factor and its interval."""
    known = sorted((each for each in result.pairs if each.gain is not None), key=_strength)
    return [
        (f"{each.first}, {each.second}", factor(each.gain), bounds(each.interval)) for each in known[:most]
    ]


def _strength(each: Pair) -> float:
    return -abs(each.gain or 0.0)


def stored_rows(result: Result) -> list[tuple[str, ...]]:
    """Return what stored solo and leave-one-out runs say of the rungs, with their days: newer runs may say more."""
    return [
        (
            each.rung,
            f"{each.mode}, {each.started[:10]}",
            fine_factor(each.gpu),
            texts.bounds((each.gpu_interval[0], each.gpu_interval[1])) if each.gpu_interval else "",
            fine_factor(each.wall),
            texts.bounds((each.wall_interval[0], each.wall_interval[1])) if each.wall_interval else "",
        )
        for each in result.beside
    ]


def order_sentence(result: Result) -> str:
    """Return how much of the staircase is its order, in one sentence."""
    total = result.total
    if total is None:
        return "The ladder's two ends were not both measured, so nothing is known of its order."
    if not result.protocol.whole:
        return _top_sentence(result, total.gain)
    if total.moved is None:
        return "Some subsets have no time, so the share of the order is not known."
    most = max(result.worth, key=lambda each: abs((each.staircase or 0.0) - (each.gain or 0.0)))
    return (
        f"{100 * total.moved:.0f}% of the staircase's {factor(total.gain)} in {clock(result)} is its order: on average"
        f" over all {total.orders:,} orders that share goes to other rungs. {most.rung} depends most on its place:"
        f" {factor(most.staircase)} in the ladder's order, {factor(most.gain)} on average, {_span(most)} from its worst"
        " place to its best."
    )


def _top_sentence(result: Result, whole: float) -> str:
    """Return why gains at the top of a longer ladder do not multiply to the whole ladder's."""
    gains = [each.left_out for each in result.worth if each.left_out is not None]
    product = math.fsum(gains)
    why = (
        "rungs that need each other, or leave together, each count the gain that they have in common"
        if product > whole
        else "a gain that two rungs can bring, each without the other, shows at neither"
    )
    return (
        f"The gains at the top, of each rung left out by itself, multiply to {texts.amount(math.exp(product))}x, the"
        f" whole ladder's gain is {factor(whole)}. So do not multiply them: {why}."
    )


def pair_sentence(result: Result) -> str:
    """Return which two rungs act on each other most, as far as the noise lets see."""
    known = [each for each in result.pairs if each.gain is not None]
    sure = [each for each in known if beyond_noise(each, result)]
    if not known:
        return "No pair of rungs was measured in all four ways."
    if not sure:
        return "No pair of rungs gains or loses together beyond the noise."
    most = min(sure, key=_strength)
    words = "more" if (most.gain or 0.0) > 0 else "less"
    return (
        f"{most.first} and {most.second} act on each other most: together they gain {words}, {factor(most.gain)} the"
        f" product of their gains without each other ({len(sure)} of {len(known)} pairs are beyond the noise)."
    )


def beyond_noise(pair: Pair, result: Result) -> bool:
    """Return whether a pair's gain is beyond the noise, at a level shared by all pairs (Bonferroni)."""
    if pair.gain is None or pair.interval is None or result.noise is None:
        return False
    freedom, level = result.noise.freedom, (1 - estimates.CONFIDENCE) / max(1, len(result.pairs))
    wider = estimates.t_quantile(1 - level / 2, freedom)
    wider /= estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, freedom)
    return abs(pair.gain) > wider * (pair.interval[1] - pair.interval[0]) / 2


def noise_sentence(result: Result) -> str:
    noise = result.noise
    if noise is None:
        return "No intervals: fewer than three subsets were repeated in fresh processes."
    apart = rounded(100 * noise.shift, 2)
    took = f"{abs(apart):.2f}% {'longer' if apart > 0 else 'less'}" if apart else "as long"
    return (
        f"{noise.freedom + 1} subsets were measured again in fresh processes: one measurement has a standard deviation"
        f" of {100 * noise.sd:.2f}%, and fresh processes took {took}."
    )


def sentences(result: Result) -> list[str]:
    """Return the findings, one sentence each."""
    failed = [row for row in result.subsets if row.status != "ok"]
    parity = result.parity
    found = [order_sentence(result), pair_sentence(result), noise_sentence(result)]
    if parity is not None and parity.verdict != "ok":
        found = [f"Nothing was measured, because the whole ladder failed parity: {parity.reason}."]
    found += (
        [f"{len(failed)} subsets have no time: {failed[0].status}: {failed[0].reason}."] if failed else []
    )
    found += [f"{name} is left out: {why}." for name, why in result.protocol.skipped.items()]
    return found


def text(result: Result) -> str:
    """Return the report for a terminal."""
    parts = ["\n".join(texts.aligned(each, WORDS.get(each[0], (0,)))) for each in _tables(result)]
    return "\n\n".join([*parts, "\n".join([*sentences(result), *result.protocol.notes])])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, work, rules = result.machine, result.workload, result.protocol
    many = f"{len(result.subsets)} subsets of {len(rules.rungs)} rungs"
    page = [
        f"# What each rung is worth {where(result)}: {escaped(facts.gpu or facts.cpu or '')}",
        "",
        f"Workload {escaped(work['name'])}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, random"
        f" images; ladder `{rules.ladder}`, {many}, {clock(result)} of two cycles each in one process."
        f" PyTorch {facts.torch}, commit {results.commit_words(head(result))}.",
        "",
        *(f"- {escaped(line)}" for line in [*sentences(result), *rules.notes]),
        "",
        tables(result),
    ]
    return "\n".join(page).rstrip() + "\n"


def tables(result: Result, stored: bool = True) -> str:
    """Return the tables alone as Markdown: rungs, pairs and, if `stored`, the runs of other modes."""
    shown = [each for each in _tables(result) if stored or each[0] != STORED]
    return "\n\n".join("\n".join(texts.piped(each, WORDS.get(each[0], (0,)))) for each in shown)


def _tables(result: Result) -> list[list[tuple[str, ...]]]:
    """Return the tables that have rows, each below its headings."""
    headings, rows = table(result)
    made: list[list[tuple[str, ...]]] = [[headings, *rows]]
    for heads, more in ((PAIRED, pair_rows(result)), (STORED, stored_rows(result))):
        made += [[heads, *more]] * bool(more)
    return made
