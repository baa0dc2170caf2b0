"""The judging of stored claims anew by their samples: `python -m ladder.claims.redraw [RESULT.json...]`.

Verdicts and sentences are made from samples, so they change with the code. Each file gets the new claims and the
bytes of today's counting, and table and chart beside it. No sample changes. The claims of `ladder precision` come
from the file of the same machine in the neighbouring folder `precision`. Without an argument every file in
results/claims is judged. Then `make docs` fills docs/claims.md and draws the chart of results/charts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.results import check
from ladder.results import store as results
from ladder.studies.claims import experiments, registry, run
from ladder.studies.claims.schema import CLAIMS, KIND
from ladder.studies.claims.timed import Setting


def judged_anew(path: Path) -> dict[str, Any]:
    """Return the result of a file, with the claims that its samples give now. Raises UserError for another file."""
    data = results.read(path)
    if problem := CLAIMS(data):
        raise UserError(f"{path}: {problem[0].lstrip('.') or 'the file'}: {problem[1]}")
    name, folder = data["machine"]["name"], path.resolve().parent.parent / "precision"
    data["precision"] = run.precision_claims(name, folder) or data["precision"]
    count_bytes(data)
    data["claims"] = registry.judged(data)
    if problem := check.problem_of_kind(data, KIND):
        raise UserError(f"{path}: {problem}")
    return data


def count_bytes(data: dict[str, Any]) -> None:
    """Set the bytes that must cross memory, as the experiments count them now. They are not measured."""
    known = {each.name: each for each in experiments.all_experiments() if each.moved is None}
    for record in data["experiments"]:
        if experiment := known.get(record["name"]):
            setting = Setting("cpu", tuple(record["shape"]))
            record["bytes"] = {name: experiment.bytes(setting, name) for name in record["bytes"]}


def main(arguments: list[str]) -> int:
    """Judge and draw the named results, or all. Return the exit status."""
    named = [Path(argument) for argument in arguments]
    try:
        for path in named or sorted(run.OUT.glob("*.json")):
            for written in run.write(judged_anew(path), path.parent):
                print(written)
    except (UserError, OSError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
