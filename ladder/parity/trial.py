"""The trial of parity's factor: each plain-PyTorch spelling against a budget that is made of all the others.

A rung may stray `budget.FACTOR` times as far from FP64 as the worst plain spelling of its precision. Here every
spelling takes the place of the rung once, and the budget comes from the rest without the factor. The ratio is the
smallest factor with which `parity.judge` would have passed it. Above 1, honest code needs that much beyond the
others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, cast

from ladder.base import text as texts
from ladder.base.files import write
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.machine import system
from ladder.parity import reference
from ladder.parity.budget import FACTOR, LIMIT, RESOLVED, budgets, run_spellings, worst
from ladder.parity.spread import Errors, is_exact, is_whole
from ladder.plan import catalog
from ladder.results import record
from ladder.results import store as results
from stylegan_lite.config import Workload

OUT = ROOT / "results" / "parity"
PRECISIONS = ("fp32", "bf16")
USUAL = {"cuda": ("article", "adain-256"), "cpu": ("tiny",)}
Tell = Callable[[str], None]


class Row(TypedDict):
    """One spelling, judged by all others."""

    spelling: str
    ratio: float  # the smallest factor that passes it
    nearest: str  # the quantity of this ratio
    error: float
    budget: float
    whole: float  # the largest ratio of a loss or of all tensors of a kind together
    judged: int
    unresolved: int


class Tried(TypedDict):
    """The spellings of one workload and precision."""

    workload: str
    norm: str
    precision: str
    left_out: list[str]
    batch: int
    reference_on: str
    spellings: list[Row]


class Trial(record.Header):
    """The result of a trial, as its file has it."""

    what: str
    factor: float
    trials: list[Tried]
    worst: float  # ratio
    cases: int


def named(workloads: Sequence[str], device: str) -> list[tuple[str, Fields]]:
    """Return (name, fields) of the workloads to try: on a CPU `tiny` with both norms unless workloads are named."""
    found = [catalog.load_workload(name) for name in workloads or USUAL[device]]
    if not workloads and device == "cpu":
        found += [(f"{name}-instance", {**fields, "norm": "instance"}) for name, fields in found]
    return found


def run(
    workloads: Sequence[str], device: str, *, cache: Path | None = None, out: Path = OUT, tell: Tell
) -> tuple[Trial, Path]:
    """Try every spelling of every workload and precision. Write <machine>-trial.json and .md after each workload.

    Returns the trial and its JSON file.
    """
    begin, facts = time.monotonic(), system.facts(device)
    empty = {"what": "parity-trial", "factor": FACTOR, "trials": [], "worst": 0.0, "cases": 0}
    found = cast(Trial, record.header(None, facts) | empty)
    path = results.place(out / f"{texts.slug(facts['name'])}-trial.json", found)
    tried = named(workloads, device)
    for number, (name, fields) in enumerate(tried):
        workload = Workload.from_dict({**fields, "data": None}, where=name)
        ref = reference.get(workload, device, cache, _prefixed(tell, name))
        for precision in PRECISIONS:
            label = f"{name}, {precision}"
            runs, left_out = run_spellings(ref, precision, device, _prefixed(tell, label))
            found["trials"].append(
                {
                    "workload": name,
                    "norm": workload.norm,
                    "precision": precision,
                    "left_out": left_out,
                    "batch": ref.workload.batch,
                    "reference_on": ref.made_on,
                    "spellings": left_one_out(runs, precision),
                }
            )
        found["worst"] = max(row["ratio"] for trial in found["trials"] for row in trial["spellings"])
        found["cases"] = sum(len(trial["spellings"]) for trial in found["trials"])
        found["seconds"] = round(time.monotonic() - begin, 1)
        found["complete"] = number + 1 == len(tried)
        results.write(path, found)
        write(path.with_suffix(".md"), markdown(texts.fit(found)))
    return found, path


def _prefixed(tell: Tell, label: str) -> Tell:
    return lambda text: tell(f"{label}: {text}")


def left_one_out(runs: dict[str, list[Errors]], precision: str) -> list[Row]:
    """Return for each spelling the worst ratio to the others' budget without a factor, its place, and counts."""
    rows: list[Row] = []
    for name, errors in runs.items():
        others = worst({other: run for other, run in runs.items() if other != name})
        budget = budgets(others, precision, factor=1.0)
        judged = [key for key in budget if others[key] <= RESOLVED and not is_exact(key)]
        ratios = {key: ratio([run[key] for run in errors], budget[key], is_whole(key)) for key in judged}
        nearest = max(ratios, key=lambda key: ratios[key])
        rows.append(
            {
                "spelling": name,
                "ratio": round(ratios[nearest], 3),
                "nearest": nearest,
                "error": min(run[nearest] for run in errors),
                "budget": budget[nearest],
                "whole": round(max(ratios[key] for key in judged if is_whole(key)), 3),
                "judged": len(judged),
                "unresolved": len(budget) - len(judged),
            }
        )
    return rows


def ratio(errors: Sequence[float], budget: float, whole: bool) -> float:
    """Return the smallest factor on the budget with which `parity.judge` passes these errors, one for each replay.

    It judges the smaller error; for a whole also the larger, if that is beyond `LIMIT`.
    """
    error = max(errors) if whole and max(errors) > LIMIT else min(errors)
    return error / max(budget, 1e-12)


def text(found: Trial) -> str:
    """Return text for a terminal: a line for each workload and precision, and the worst of all."""
    lines = []
    for trial in found["trials"]:
        row = max(trial["spellings"], key=lambda each: each["ratio"])
        said = f"{row['ratio']:.2f} at {row['nearest']} ({row['spelling']})"
        lines.append(
            f"{trial['workload']}, {trial['precision']}: {len(trial['spellings'])} spellings, worst {said}"
        )
    verdict = "within" if found["worst"] <= found["factor"] else "OUTSIDE"
    lines.append(
        f"worst ratio {found['worst']:.2f} in {found['cases']} cases, {verdict} the factor {found['factor']}"
    )
    return "\n".join(lines)


def markdown(found: Trial) -> str:
    """Return one table a workload and precision, the spelling with the largest ratio first."""
    facts = found["machine"]
    commit = results.commit_words(dict(found))
    lines = [
        f"# Trial of parity's factor on {facts['gpu'] or facts['cpu']}",
        "",
        "Each plain-PyTorch spelling judged by a budget made of all the others, without the factor: the ratio is the"
        " smallest factor with which it would have passed. `whole` is the largest ratio of a loss or of all tensors"
        " of a kind together.",
        "",
        f"Worst ratio **{found['worst']:.2f}** in {found['cases']} cases; the factor is {found['factor']}."
        f" PyTorch {facts['torch']}, commit {commit}, {found['seconds']:.0f} s.",
    ]
    for trial in found["trials"]:
        lines += ["", f"## {trial['workload']}, {trial['precision']} (batch {trial['batch']})", ""]
        table = [["spelling", "ratio", "where", "error", "budget", "whole", "judged", "unresolved"]]
        for row in sorted(trial["spellings"], key=lambda each: (-each["ratio"], each["spelling"])):
            cells = [row["spelling"], f"{row['ratio']:.2f}", row["nearest"], f"{row['error']:.2g}"]
            cells += [f"{row['budget']:.2g}", f"{row['whole']:.2f}"]
            table.append([*cells, str(row["judged"]), str(row["unresolved"])])
        lines += texts.piped(table, words=(0, 2), show=str)
        lines += [f"\nleft out: {line}" for line in trial["left_out"]]
    return "\n".join(lines) + "\n"
