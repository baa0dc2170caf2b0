"""Tables that attribute a ladder's gain: to rungs whatever their order, and to batch sizes and resolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ladder.base.records import build
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import absent, link, text, under
from ladder.studies.ablate import record as ablation
from ladder.studies.ablate import report as ablated_report
from ladder.studies.map import record as maps
from ladder.studies.map import report as mapped_report


def ablated(committed: Committed) -> str:
    """Return the worth of each rung and the strongest pairs, for every complete ablation."""
    parts = []
    for name, result in _complete(committed, "ablation/*.json", ablation.Result):
        about = _about(result, f"ladder `{result.protocol.ladder}`")
        tables = ablated_report.tables(result, stored=False)
        parts.append(_part(about, ablated_report.sentences(result), tables, name, result))
    return "\n".join(parts) or absent("ladder ablate")


def mapped(committed: Committed) -> str:
    """Return the heat maps of every complete map."""
    parts = []
    for name, result in _complete(committed, "map/*.json", maps.Result):
        about = _about(result, f"map of ladder `{result.protocol.ladder}`")
        grids = "\n\n".join(mapped_report.grid(*each) for each in mapped_report.tables(result)[:-1])
        parts.append(_part(about, mapped_report.sentences(result), grids, name, result))
    return "\n".join(parts) or absent("ladder map")


def _complete(committed: Committed, pattern: str, kind: type) -> Iterator[tuple[str, Any]]:
    for name in committed.names(pattern):
        result = build(kind, committed.read(name))
        if result.complete:
            yield name, result


def _about(result: Any, what: str) -> str:
    machine = result.machine
    return f"**{text(machine.gpu or machine.cpu)}**, `{result.workload['name']}`, {what}"


def _part(about: str, sentences: list[str], tables: str, name: str, result: Any) -> str:
    told = "\n".join(f"- {text(line)}" for line in sentences)
    source = under(
        link("page", name.replace(".json", ".md")),
        link("chart", name.replace(".json", ".png")),
        link("samples", name),
        *map(text, result.protocol.notes),
    )
    return f"{about}\n\n{told}\n\n{tables}\n{source}"


TABLES: dict[str, Callable[..., str]] = {"ablated": ablated, "mapped": mapped}
