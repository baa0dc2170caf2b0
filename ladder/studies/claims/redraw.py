"""`python -m ladder.claims.redraw [RESULT.json...]`: judges results anew, by the samples in them, and draws them again.

Verdicts and sentences are made from samples, so they follow when the code that makes them changes: the file gets the
claims that it says now and bytes as they are counted now, table and chart are written beside it, and docs/claims.md
from the newest. No sample changes. `make docs` draws the chart of results/charts.
What `ladder precision` says of the same machine is taken from the file that lies in the folder `precision` beside now.
Without a file named, every one in results/claims.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.results import check
from ladder.results import store as results
from ladder.studies.claims import experiments, page, registry, run
from ladder.studies.claims.schema import CLAIMS, KIND
from ladder.studies.claims.timed import Setting


def judged_anew(path: Path) -> dict[str, Any]:
    """The result of a file with the claims that its samples say. UserError where it is none."""
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
    """Bytes that must cross memory, as experiments of these shapes have them now; they are no measurement."""
    known = {each.name: each for each in experiments.all_experiments() if each.moved is None}
    for record in data["experiments"]:
        if experiment := known.get(record["name"]):
            setting = Setting("cpu", tuple(record["shape"]))
            record["bytes"] = {name: experiment.bytes(setting, name) for name in record["bytes"]}


def main(arguments: list[str]) -> int:
    named = [Path(argument) for argument in arguments]
    try:
        for path in named or sorted(run.OUT.glob("*.json")):
            for written in run.write(judged_anew(path), path.parent):
                print(written)
    except (UserError, OSError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    return 0 if named else page.main([])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
