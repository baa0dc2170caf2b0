"""The outcomes of tests that plant faults, as files: `pytest --record-outcomes=FOLDER tests`, or `make faults`.

A test asks for one of the fixtures `outcome`, `planted_bug` and `sabotaged_rung` and says in them what it planted and
what came of it. Under the option only those tests run, and what they said becomes a JSON file and a Markdown table
each. Nothing is written unless every one of them passed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ladder.core import git
from ladder.core import text as texts
from tests.support.typed import write_run

ROOT = Path(__file__).resolve().parents[2]

# Every fault that has an outcome promised, in the order of the tables
FAULTS = (
    "worker killed",
    "worker ends by itself",
    "out of memory",
    "NaN or Inf in a loss or gradient",
    "CUDA error",
    "hang",
    "zero, negative or infinite time",
    "writes into the protocol",
    "outlying process",
    "silent fallback",
    "parity failed",
    "a rung failed",
    "allocator retry",
    "impossible time",
    "SIGTERM",
    "run killed outright",
    "two runs into one folder",
    "nothing measured",
    "dirty work tree",
    "torch or CUDA upgrade",
    "disk full",
    "torn write",
    "truncated result",
    "duplicate result",
    "throttled visit",
    "every sample rejected",
    "company on the GPU",
    "NVML absent or refused",
    "wrong GPU",
)

_OVER_BUDGET = re.compile(r"(\w+)(?: in \S+)? (\w+)(?: of ((?:all )?\S+))?: error (\S+), budget (\S+)")
_TITLES = {
    "faults": (
        "Injected faults",
        "Each row was injected by a test, and the outcome is what the run, the command or the decision then said."
        " A number is a published step time; kept means that everything finished before was still there.",
    ),
    "planted-bugs": (
        "Planted bugs and what caught them",
        "Each bug was planted in a training step that parity then compared with the FP64 reference. Errors are relative"
        " L2 errors of the named quantity; where there is none, a check beside the errors spoke.",
    ),
    "hostile": (
        "Hostile result files and the line that refuses them",
        "Each was planted in a genuine results folder. It was left out, and everything else in the folder was accepted."
        " Lines are stored as a result may hold them: quotes and brackets are spelled in other ways.",
    ),
    "sabotaged-rungs": (
        "Sabotaged rungs and the line that caught them",
        "Each rung had its switch set and its change taken back. `step`: in a real step that was then inspected;"
        " `evidence`: in the record of an inspected step, for what only a GPU shows.",
    ),
}


def fault(
    *,
    fault: str,
    injected: str,
    outcome: str | dict[str, Any],
    count: int = 1,
    number: bool | None = None,
    kept: bool | None = None,
    test: str,
) -> dict[str, Any]:
    """A row of the faults: `outcome` is one line, or the rung's record (then it tells status, reason and number).

    `number`: was a step time published for what went wrong; `kept`: was everything that was finished still there.
    None: the question does not arise.
    """
    if isinstance(outcome, dict):
        number = outcome["step_ms"] is not None if number is None else number
        reason = outcome["reason"]
        outcome = outcome["status"] if reason is None else f"{outcome['status']}: {reason}"
    if fault not in FAULTS:
        raise ValueError(f"no fault {fault!r} in tests/support/outcomes.py")
    return _checked(
        {
            "fault": fault,
            "injected": injected,
            "count": count,
            "outcome": outcome,
            "number": number,
            "kept": kept,
            "test": test,
        }
    )


def planted_bug(*, bug: str, planted: str, problem: str, test: str) -> dict[str, Any]:
    """A row of the planted bugs: `problem` is the line of `ladder.parity.check.check_step` that names the quantity."""
    row: dict[str, Any] = {"bug": bug, "planted": planted, "caught_by": problem}
    row |= dict.fromkeys(("phase", "quantity", "tensor", "error", "budget", "over_budget"))
    if match := _OVER_BUDGET.fullmatch(problem):
        error, budget = float(match[4]), float(match[5])
        row |= {"phase": match[1], "quantity": match[2], "tensor": match[3], "error": error, "budget": budget}
        row["over_budget"] = float(f"{error / budget:.3g}") if budget else None
    return _checked(row | {"test": test})


def sabotaged_rung(*, rung: str, sabotage: str, planted: str, line: str, test: str) -> dict[str, Any]:
    """A row of the sabotaged rungs: `line` is what the receipt says; `planted` in the "step" or in the "evidence"."""
    row = {"rung": rung, "sabotage": sabotage, "planted": planted, "caught_by": line}
    return _checked(row | {"test": test})


def hostile_file(*, file: str, planted: str, line: str, test: str) -> dict[str, Any]:
    """A row of the hostile files: what was planted in which file, and the one line that refused it."""
    from ladder.core.text import make_display

    return {"file": file, "planted": make_display(planted), "refused": line, "test": test}


def write(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> list[Path]:
    """The files of each table that has rows; returns their paths. Nothing in them depends on time or order of tests."""
    from ladder.core.files import replace_file
    from ladder.machine import system

    commit, dirty = git.commit_of(ROOT)
    dirty = dirty if dirty is None else dirty or _tests_changed()
    paths = []
    for what, found in rows.items():
        facts = system.describe_machine(system.choose_device())
        data = {"schema": 1, "what": what, "machine": facts, "commit": commit, "dirty": dirty}
        data = texts.fit_texts(data | {"rows": _merged(found)})
        path = folder / f"{what}.json"
        write_run(path, data)
        with replace_file(path.with_suffix(".md")) as temporary:
            temporary.write_text(markdown(data), encoding="utf-8")
        paths += [path, path.with_suffix(".md")]
    return paths


def _tests_changed() -> bool:
    """The tests are no part of the measured code, but here they are what is told of."""
    return bool(git.list_changes(ROOT, ["tests"]))


def markdown(data: dict[str, Any]) -> str:
    """One table, its machine and its commit."""
    title, text = _TITLES[data["what"]]
    facts, rows = data["machine"], data["rows"]
    commit = (data["commit"] or "unknown")[:12] + (" with changes" if data["dirty"] else "")
    where = (
        f"{facts['gpu'] or facts['cpu']}, PyTorch {facts['torch']}, Python {facts['python']}, commit {commit}"
    )
    counted = sum(row.get("count", 1) for row in rows)
    columns = list(rows[0])
    lines = [f"# {title}", "", text, "", f"{counted} in {len(rows)} rows: {where}.", ""]
    lines.append("| " + " | ".join(column.replace("_", " ") for column in columns) + " |")
    lines.append("|" + "---|" * len(columns))
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row. The test's own words must be storable as they are; the run's are cut to fit, like any reason."""
    from ladder.core.text import TEXT

    for key in ("injected", "bug", "planted", "rung", "sabotage"):
        if key in row and not TEXT.fullmatch(row[key]):
            raise ValueError(f"{key}: {row[key]!r} is no text that a result may hold")
    return row


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorted; rows that tell the same become one, their counts added; of several tests the module is named."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = repr({**row, "count": None, "test": row["test"].split()[0]})
        if key not in found:
            found[key] = dict(row)
            continue
        if "count" in row:
            found[key]["count"] += row["count"]
        if row["test"] != found[key]["test"]:
            found[key]["test"] = row["test"].split()[0]
    return sorted(found.values(), key=_place)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    first = FAULTS.index(row["fault"]) if "fault" in row else 0
    return (
        first,
        *(str(row[key]) for key in ("rung", "bug", "injected", "sabotage", "file", "planted") if key in row),
        repr(row),
    )
