"""The judge of the self-test on a device: raw rounds become rows, broken promises and tables."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ladder.base.plain import Fields
from ladder.base.text import aligned
from ladder.results import record, words
from ladder.selfcheck.selftest import spin
from ladder.stats import answers, estimates
from ladder.stats.answers import Answer, Quantity

RUN = 7  # comparisons that are judged together
CALLED = (answers.FASTER, answers.SLOWER)
Table = tuple[str, list[str], list[list[str]]]  # title, heads, rows


class Program(TypedDict):
    """One program and its rounds. A copy has nothing planted."""

    name: str
    group: str
    planted: float | None  # share of a step
    against: str | None  # the copy that it is compared with
    status: str
    reason: str | None
    planted_ms: float | None
    rounds: list[Mapping[str, Any]]  # each a `ladder.results.types.Round`


class Compared(TypedDict):
    """The verdict on two programs."""

    first: str
    second: str
    planted: float | None
    seen: float  # how much slower the second is, as a share
    interval: list[float]
    confidence: float
    least: float
    below: float | None  # log ratio, the far end of the interval, for "less than"
    rounds: int
    verdict: str
    ok: bool


class Noise(TypedDict):
    """The noise of identical programs, as standard deviations of logarithms."""

    between_processes: float | None
    inside_process: float | None


class Judged(Noise):
    """The verdicts on a group's programs."""

    twins: list[str]
    floor: float | None
    resolution: float | None
    step_ms: float | None
    comparisons: list[Compared]


class Group(Judged):
    """One kind of step, and the verdicts on it."""

    name: str
    workload: Fields
    recipe: Fields
    settings: Fields | None
    waits_on: str
    promised: list[float]
    calibration: Mapping[str, Any] | None  # the round that its step time is from


class Protocol(TypedDict):
    """How a self-test measured."""

    budget_s: float
    rounds: int
    cycles: int
    cycle_steps: int
    seed: int
    settle_s: float
    settle_cycles: int
    built_together: int


class Result(record.Header):
    """The result of a self-test on a device, as its file has it."""

    what: str
    protocol: Protocol
    spin: list[spin.Row]
    groups: list[Group]
    programs: list[Program]
    gpu: Mapping[str, Any] | None  # `ladder.results.types.RunGpu`
    gpu_notes: list[str]
    broken: list[str]


def judge(result: Result) -> None:
    """Fill in the verdicts of each group, and "broken": a line for each promise that was not kept."""
    lines = spin.broken(result["spin"])
    for group in result["groups"]:
        programs = of_group(result, group)
        group.update(_judged(group, programs))
        lines += _broken(group, programs)
    result["broken"] = lines


def of_group(result: Result, group: Group) -> list[Program]:
    return [each for each in result["programs"] if each["group"] == group["name"]]


def wants_rounds(result: Result) -> bool:
    """Return whether a run with these comparisons would make one more round."""
    done, differences = 0, []
    for group in result["groups"]:
        of, asked = compared(of_group(result, group))
        done = max(done, *(each.generations for each in of.groups.values()), 0)
        differences += [of.difference(first, second) for first, second, _ in asked]
    return answers.wants_generations(done, differences)


Asked = tuple[str, str, float | None]  # first, second, what is planted in it


def compared(programs: list[Program]) -> tuple[Quantity, list[Asked]]:
    """Return the times of a group's programs, and the comparisons, as in a run.

    The first two copies are twins and help to set the floor. Every other pair of copies is compared, and every planted
    program with the copy that it was given. Three rounds that both programs have are needed.
    """
    known = {each["name"]: each for each in programs if each["status"] == "ok" and each["rounds"]}
    logs = {name: {at: math.log(ms) for at, ms in _medians(each).items()} for name, each in known.items()}
    twins = _twins(programs)
    of = answers.quantity(logs, dict.fromkeys(logs, _KIND), [twins] if len(twins) == 2 else [], is_gpu=False)
    copies = [each["name"] for each in programs if each["planted"] is None]
    asked: list[Asked] = [(a, b, None) for a, b in itertools.combinations(copies, 2) if (a, b) != twins]
    asked += [(e["against"] or "", e["name"], e["planted"]) for e in programs if e["planted"] is not None]
    return of, [each for each in asked if of.difference(*each[:2])]


_KIND = "step"  # all programs of a group are one kind of step


def _twins(programs: list[Program]) -> tuple[str, ...]:
    return tuple([each["name"] for each in programs if each["planted"] is None][:2])


def _medians(program: Program) -> dict[int, float]:
    """Return the median step time in ms of each round."""
    return {each["round"]: estimates.median(each["samples_ms"]) for each in program["rounds"]}


def _judged(group: Group, programs: list[Program]) -> Judged:
    """Return verdicts as a run makes them, and the noise of this kind of step."""
    of, asked = compared(programs)
    asked.sort(key=lambda each: each[2] is None)  # what is planted is judged together
    rows = []
    for run in _runs(asked):
        found = answers.answer(of.questions([(first, second) for first, second, _ in run], RUN))
        rows += [_row(group, of, *each) for each in zip(run, found, strict=True)]
    copied = [e for e in programs if e["planted"] is None and e["status"] == "ok" and e["rounds"]]
    noise = of.floors(RUN).get(_KIND)
    return {
        "twins": list(_twins(programs)),
        "floor": noise.floor if noise else None,
        "resolution": noise.resolution if noise else None,
        "step_ms": estimates.median([ms for each in copied for ms in _medians(each).values()]),
        **spread(copied),
        "comparisons": rows,
    }


def _row(group: Group, of: Quantity, asked: Asked, answer: Answer) -> Compared:
    first, second, planted = asked
    assert answer.effect is not None and answer.interval is not None  # only pairs with a difference are asked
    return {
        "first": first,
        "second": second,
        "planted": planted,
        "seen": _slower_by(answer.effect),
        "interval": [_slower_by(bound) for bound in reversed(answer.interval)],
        "confidence": answer.confidence,
        "least": answer.least,
        "below": answer.below,
        "rounds": len(of.paired(first, second)),
        "verdict": answer.verdict,
        "ok": _kept(answer.verdict, planted, planted in group["promised"]),
    }


def _runs(asked: Sequence[Asked]) -> list[Sequence[Asked]]:
    """Split the comparisons into runs of eight rungs: Holm's correction is for so many."""
    return [asked[first : first + RUN] for first in range(0, len(asked), RUN)]


def _slower_by(log_ratio: float) -> float:
    """Return how much slower the second program is, as a share: 0.01 is 1%."""
    return float(np.expm1(-log_ratio))


def _kept(verdict: str, planted: float | None, promised: bool) -> bool:
    if planted is None:
        return verdict not in CALLED
    return verdict == answers.SLOWER if promised else verdict != answers.FASTER


def spread(copies: Sequence[Program]) -> Noise:
    """Return the noise of identical programs between processes and inside one, as standard deviations of logarithms."""
    between = [np.log(list(_medians(each).values())) for each in copies]
    inside = [np.log(visit["samples_ms"]) for each in copies for visit in each["rounds"]]
    return {"between_processes": _pooled(between), "inside_process": _pooled(inside)}


def _pooled(samples: Sequence[np.ndarray]) -> float | None:
    variances = [np.var(each, ddof=1) for each in samples if len(each) > 1]
    return float(np.sqrt(np.mean(variances))) if variances else None


def _broken(group: Group, programs: list[Program]) -> list[str]:
    lines, name = [], group["name"]
    for each in programs:
        if each["reason"]:
            lines.append(f"{each['name']}: {each['status']}: {each['reason']}")
    for row in group["comparisons"]:
        if row["ok"]:
            continue
        if row["planted"] is None:
            lines.append(f"{name}: {row['second']} was called {words.of_row(row)} than {row['first']}")
        else:
            lines.append(f"{name}: a slowdown of {percent(row['planted'])} was called {words.of_row(row)}")
    judged = [row["planted"] for row in group["comparisons"]]
    if None not in judged:
        lines.append(f"{name}: no two copies were compared")
    missing = [size for size in group["promised"] if size not in judged]
    lines += [f"{name}: a slowdown of {percent(size)} was not compared" for size in missing]
    return lines


def percent(share: float | None, digits: int | None = None) -> str:
    if share is None:
        return ""
    return f"{100 * share:g}%" if digits is None else f"{100 * share:+.{digits}f}%"


def tables(result: Result) -> list[Table]:
    """Return the tables for people: waits, planted slowdowns, and noise."""
    waits, planted, noise = [], [], []
    for row in result["spin"]:
        event = estimates.median(row["event_us"]) if row["event_us"] else None
        figures = [
            estimates.median(row["clock_us"]),
            row["seen_us"],
            event,
            row["error_us"],
            row["allowed_us"],
        ]
        cells = ["" if each is None else f"{each:.2f}" for each in figures]
        waits.append([f"{row['asked_us']:g}", *cells, "yes" if row["ok"] else "NO"])
    for group in result["groups"]:
        rows = group["comparisons"]
        for row in (row for row in rows if row["planted"] is not None):
            between = " to ".join(percent(bound, 2) for bound in row["interval"])
            promised = "yes" if row["planted"] in group["promised"] else "no"
            cells = [
                percent(row["seen"], 2),
                between,
                words.of_row(row),
                promised,
                "yes" if row["ok"] else "NO",
            ]
            planted.append([group["name"], percent(row["planted"]), *cells])
        same = [row["verdict"] for row in rows if row["planted"] is None]
        called = sum(word in CALLED for word in same)
        cells = [str(len(same)), str(called), str(same.count(answers.AMBIGUOUS))]
        sizes = [group[key] for key in ("floor", "resolution", "between_processes", "inside_process")]
        ms = "" if group["step_ms"] is None else f"{group['step_ms']:.2f}"
        noise.append([group["name"], ms, *cells, *("" if s is None else f"{100 * s:.3f}%" for s in sizes)])
    heads = ["asked us", "by its clock", "wall", "events", "worst error", "allowed", "kept"]
    found = ["steps", "planted", "seen", "interval", "verdict", "promised", "kept"]
    same = ["steps", "ms/step", "pairs", "called different", "ambiguous", "noise floor", "would be seen"]
    every = [
        ("Waits of known length", heads, waits),
        ("Planted slowdowns", found, planted),
        ("Identical programs, and their noise", [*same, "between processes", "inside one"], noise),
    ]
    return [each for each in every if each[2]]


def text(result: Result) -> str:
    """Return the result for a terminal, the most important lines last."""
    lines = [_title(result)]
    for title, heads, rows in tables(result):
        lines += ["", title, *(f"  {line}" for line in aligned([heads, *rows], words=()))]
    return "\n".join([*lines, "", *result["gpu_notes"], *_kept_lines(result)])


def markdown(result: Result) -> str:
    """Return the result as a page."""
    lines = [f"# {_title(result)}"]
    for title, heads, rows in tables(result):
        lines += ["", f"## {title}", ""]
        for cells in (heads, ["---:"] * len(heads), *rows):
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {line}" for line in [*result["gpu_notes"], *_kept_lines(result)])]
    return "\n".join(lines) + "\n"


def _title(result: Result) -> str:
    machine, rounds = result["machine"], result["protocol"]["rounds"]
    commit = (result["commit"] or "unknown")[:8] + (" and changes" if result["dirty"] else "")
    where = f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, commit {commit}"
    return f"The measure measured on {where}: {rounds} generations, {result['seconds']:.0f} s"


def _kept_lines(result: Result) -> list[str]:
    ended = [] if result["complete"] else ["incomplete: it was interrupted"]
    return [*ended, *(result["broken"] or ["everything promised was kept"])]
