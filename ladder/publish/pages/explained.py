"""Tables that explain the difference of two rungs by the kernels of their steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.text import escaped
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import link, text, under
from ladder.report import explain
from ladder.results import parts, ranking
from ladder.results.publishable import publishable


def explained(committed: Committed, name: str, before: str, after: str) -> str:
    """Return the milliseconds of two rungs of one result by category.

    Raises:
        UserError: the result is not there, or a rung has no number or no profile.
    """
    result = committed.ladder(name)
    path = committed.path_of(result)
    sides = []
    for wanted in (before, after):
        rung = ranking.rung_of(result, wanted)
        found = parts.parts_of(rung) if rung else None
        if rung is None or found is None:
            raise UserError(f"results/{path}: rung {wanted} has no profile")
        sides.append(explain.Side(Path(path), result, rung, found))
    told = explain.explain(*sides)
    about = f"**{text(result.machine.gpu or '')}**, `{result.workload['name']}`: {escaped(explain.sentence(told))}"
    lines = "\n".join(f"- {escaped(line)}" for line in explain.notes(told))
    source = under(link("samples", path), *map(text, publishable(result)))
    return f"{about}\n\n{explain.table(told)}\n{lines}\n{source}"


TABLES: dict[str, Callable[..., str]] = {"explained": explained}
