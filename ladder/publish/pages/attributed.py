"""Tables that attribute a ladder's gain: to rungs whatever their order, and to batch sizes and resolutions."""

from __future__ import annotations

from collections.abc import Callable

from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import absent, link, text, under
from ladder.show.table import render_markdown
from ladder.studies import frame


def attribute(kind: str, shown: slice) -> Callable[[Committed], str]:
    """Return the function that shows some tables of every complete file of a study, with their findings."""

    def fill(committed: Committed) -> str:
        study, parts = frame.load_studies()[kind], []
        for name in committed.names(f"{study.folder}/*.json"):
            file = frame.decode_file(study, committed.read(name))
            machine, workload = file.machine, (file.workload or {})["name"]
            about = f"**{text(machine.gpu or machine.cpu)}**, `{workload}`, ladder `{file.ladder}`"
            tables = [render_markdown(table) for table in list(study.list_tables(file))[shown]]
            source = under(
                link("page", name.replace(".json", ".md")),
                link("chart", name.replace(".json", ".png")),
                link("samples", name),
                *map(text, frame.list_cautions(study, file)),
            )
            parts.append("\n\n".join([about, *tables]) + f"\n{source}")
        return "\n".join(parts) or absent(f"ladder {study.name}")

    return fill


TABLES: dict[str, Callable[..., str]] = {
    "ablated": attribute("ablation", slice(2)),  # without stored runs
    "mapped": attribute("map", slice(-1)),  # without the times of cells
}
