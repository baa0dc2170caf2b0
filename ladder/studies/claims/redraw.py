"""The judging of stored claims anew by their samples: `python -m ladder.studies.claims.redraw [RESULT.json...]`.

Verdicts and sentences are made from samples, so they change with the code. Each file gets the new claims and the
bytes of today's counting, and table and chart beside it. No sample changes. The claims of `ladder precision` come
from the file of the same machine in the neighbouring folder `precision`. Without an argument every file in
results/claims is judged. Then `make docs` fills docs/claims.md and draws the chart of results/charts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.records import plain
from ladder.results import check
from ladder.studies.claims import experiments, registry, run, schema
from ladder.studies.claims.schema import Claims, ExperimentResult
from ladder.studies.claims.timed import Experiment, Setting


def judged_anew(path: Path) -> Claims:
    """Return the result of a file, with the claims that its samples give now. Raises UserError for another file."""
    result = schema.load(path)
    folder = path.resolve().parent.parent / "precision"
    result = replace(
        result,
        precision=run.precision_claims(result.machine.name, folder) or result.precision,
        experiments=with_bytes(result.experiments),
    )
    result = replace(result, claims=registry.judged(result))
    if problem := check.problem_of_kind(plain(result), registry.KIND):
        raise UserError(f"{path}: {problem}")
    return result


def with_bytes(found: Sequence[ExperimentResult]) -> list[ExperimentResult]:
    """Return results with the bytes that must cross memory, as the experiments count them now."""
    known = {each.name: each for each in experiments.all_experiments() if each.moved is None}
    return [_with_bytes(each, known[each.name]) if each.name in known else each for each in found]


def _with_bytes(found: ExperimentResult, experiment: Experiment) -> ExperimentResult:
    n, c, h, w = found.shape
    setting = Setting("cpu", (n, c, h, w))
    return replace(found, bytes={name: experiment.bytes(setting, name) for name in found.bytes})


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
