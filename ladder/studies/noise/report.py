"""The report of `ladder noise`: text for a terminal and Markdown."""

from __future__ import annotations

from ladder.base.text import aligned, difference, escaped, percent, piped, plain
from ladder.results import store as results
from ladder.results.types import head
from ladder.studies.noise.record import Result, Sight

HEAD = ("clock", "a change is seen from", "noise floor", "processes scatter", "cycles scatter", "generations")


def rows(result: Result) -> list[list[str]]:
    """Return the rows of the table."""
    named = [("step time", result.wall), ("GPU time", result.gpu_time)]
    return [[name, *_cells(sight)] for name, sight in named if sight is not None]


def _cells(sight: Sight) -> list[str]:
    differences = ("" if each is None else difference(each) for each in (sight.resolution, sight.floor))
    scatter = ("" if each is None else percent(each) for each in (sight.between, sight.inside))
    return [*differences, *scatter, str(sight.generations)]


def sentence(result: Result) -> str:
    """Return the first line: the change that each clock can show."""
    seen = [
        f"{difference(sight.resolution)} in {name}"
        for name, sight in (("the step's time", result.wall), ("GPU time", result.gpu_time))
        if sight is not None and sight.resolution is not None
    ]
    if not seen:
        failed = next((each.reason for each in result.run.rungs if each.reason), None)
        return f"{result.rung}: nothing is known yet: {failed or 'fewer than three generations'}"
    return f"{result.rung}: a change is seen here from {' and from '.join(seen)}"


def lines(result: Result) -> list[str]:
    """Return the lines under the table: the limits, the clocks and the notes."""
    found = [
        f"{'step time' if each.clock == 'wall' else 'GPU time'}, limited by {each.sentence}"
        for each in result.limits
    ]
    if result.clocks.locked_mhz is not None:
        found.append(f"the SM clock was locked at {result.clocks.locked_mhz:.0f} MHz meanwhile")
    elif result.clocks.asked:
        found.append(f"the clock was not locked: {result.clocks.reason}")
    return [*found, *result.protocol.notes]


def text(result: Result) -> str:
    """Return the report for a terminal."""
    table = aligned([HEAD, *rows(result)])
    return "\n".join([sentence(result), "", *table, "", *map(plain, lines(result))])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    machine, work = result.machine, result.workload
    page = [
        f"# The noise of {escaped(machine.gpu or machine.cpu)}",
        "",
        escaped(sentence(result)),
        "",
        f"Workload {escaped(work['name'])}, two copies of one rung in each generation, PyTorch"
        f" {escaped(machine.torch or '')}, commit {results.commit_words(head(result))}.",
        "",
        *piped([HEAD, *rows(result)]),
        "",
        *(f"- {escaped(line)}" for line in lines(result)),
    ]
    return "\n".join(page).rstrip() + "\n"
