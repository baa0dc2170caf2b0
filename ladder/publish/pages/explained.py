"""Tables of stored profiles: the difference of two rungs by kernels, and the kernels of ours in a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.text import escaped
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import absent, link, table, text, under
from ladder.report import explain
from ladder.results import parts, ranking
from ladder.results.publishable import publishable
from ladder.studies import frame
from ladder.studies.profile.study import STUDY, tabulate_passes


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


LEAST_SHOWN_MS = 0.05  # a step


def passes(committed: Committed, name: str) -> str:
    """Return our larger kernels in a step beside copies of as many bytes, by the profile with this name."""
    paths = committed.names(f"profile/{name}.json")
    files = [frame.decode_file(STUDY, committed.read(path)) for path in paths]
    if not files or not (passes := STUDY.derive(files[0]).passes):
        return absent("ladder profile graph_fills")
    shown = tabulate_passes(passes)
    *kernels, total = shown.format_cells()
    rows = [[f"`{row[0]}`", *row[1:]] for row in kernels if float(row[1]) >= LEAST_SHOWN_MS]
    rows.append([f"all {len(kernels)}", *total[1:]])
    lines = "\n".join(f"- {text(line)}" for line in shown.notes)
    about = under(link("profile", f"profile/{name}.md"), f"commit {(files[0].commit or '')[:7]}")
    return f"{table([column.title for column in shown.columns], rows)}\n{lines}\n{about}"


TABLES: dict[str, Callable[..., str]] = {"explained": explained, "passes": passes}
