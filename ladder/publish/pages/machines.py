"""A page for each GPU, `docs/results-MACHINE.md`: all that its complete runs say. `make docs` writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ladder.base import files
from ladder.plan import catalog, modes
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.pages import ladders, studies
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import link, table, text
from ladder.results.run import Result

FOLDER, PREFIX = "docs", "results-"
MADE = (
    "<!-- made by `make docs` from the committed results: edit ladder/publish/pages/machines.py instead -->\n"
)
TABLE_OF = {
    modes.CUMULATIVE: ladders.render_rungs,
    modes.LEAVE_ONE_OUT: ladders.render_gains,
    modes.SOLO: ladders.render_rungs,
}
FEW_RUNGS = 3  # a run of so few is told whole by the overview of its ladder
Section = tuple[str, list[str]]  # a heading, and its paragraphs and tables

# Each table of another command: heading, an introduction, the pattern of its files, the function of the table.
STUDIES: tuple[tuple[str, str, str, Callable[[Committed, str], str]], ...] = (
    (
        "NVIDIA's own step",
        "[What is compared](upstream.md).",
        "upstream/{}-*.json",
        studies.study("upstream"),
    ),
    (
        "Several GPUs",
        "[What is compared](distributed.md). A point with fewer than three generations has no number here.",
        "scaled/{}-*.json",
        studies.scaled,
    ),
    ("Precisions", "[How they are measured](precision.md).", "precision/{}.json", studies.precision),
    (
        "The speed of light",
        "[What it counts](profile.md#distance-to-the-speed-of-light).",
        "roofline/{}-*.json",
        studies.roofline,
    ),
    ("Kernels", "[How they are measured](kernels.md).", "kernels/{}.json", studies.kernels),
    (
        "Does it last?",
        "`ladder sustain` runs a rung for longer than a visit.",
        "sustained/{}-*.json",
        studies.study("sustained"),
    ),
    (
        "Does it train?",
        "`ladder train --canary` trains on each rung and measures the distance of its images to the data. A distance"
        " within the band of the baseline's seeds is as good.",
        "canary/{}/*.json",
        studies.canary,
    ),
)


def render_pages(committed: Committed) -> dict[str, str]:
    """Return the text of each page by its path below the checkout."""
    return {_path(machine): render_page(committed, machine) for machine in committed.machines}


def list_stale(root: Path, wanted: dict[str, str]) -> list[Path]:
    """Return the generated pages of machines whose results have left the checkout."""
    found = sorted((root / FOLDER).glob(f"{PREFIX}*.md"))
    return [path for path in found if path.name not in {Path(name).name for name in wanted} and is_made(path)]


def write_pages(root: Path, wanted: dict[str, str]) -> list[Path]:
    """Write the page of each machine, and remove those of machines without results. Return the changed files."""
    changed = []
    for name, words in wanted.items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != words:
            files.write(path, words)
            changed.append(path)
    for path in list_stale(root, wanted):
        path.unlink()
        changed.append(path)
    return changed


def render_page(committed: Committed, machine: str) -> str:
    """Return the page of one machine."""
    sections = [*_climbed(committed, machine), *_studied(committed, machine)]
    body = "\n".join(f"## {heading}\n\n" + "\n".join(blocks) for heading, blocks in sections)
    head = (
        f"{MADE}# Results of the {text(_gpu(committed, machine))}\n\n"
        "Each table comes from a complete run of three generations or more. [Results](results.md) explains how to\n"
        "read the rows, and the [glossary](glossary.md) defines the terms.\n\n"
    )
    return (head + body).replace("(@/", "(../").rstrip() + "\n"


def _gpu(committed: Committed, machine: str) -> str:
    """Return the GPU's name, as the runs of a machine have it."""
    names = (result.machine.gpu for key, result in committed.best.items() if key[0] == machine)
    return next(filter(None, names), machine)


def _path(machine: str) -> str:
    return f"{FOLDER}/{PREFIX}{machine}.md"


def is_made(path: Path) -> bool:
    """Return whether a document is one of these pages."""
    return path.read_text(encoding="utf-8").startswith(MADE)


def _climbed(committed: Committed, machine: str) -> list[Section]:
    """Return a section for each ladder: the article's first, then `full`, then the others by name."""
    names = {key[2] for key in committed.best if key[0] == machine}
    order = [name for name in (ARTICLE, FULL) if name in names]
    return [_ladder(committed, machine, name) for name in (*order, *sorted(names - {*order}))]


def _ladder(committed: Committed, machine: str, ladder: str) -> Section:
    """Return the runs of one ladder: an overview of the workloads, then each run that it does not tell whole."""
    runs = [key for key in committed.best if key[0] == machine and key[2] == ladder]
    blocks, tops = [], ladders.list_climbed(committed, machine, ladder)
    if len(tops) > 1:
        blocks.append(ladders.render_workloads(committed, machine, ladder))
    if tops and ladder == FULL:
        blocks += [
            "What R1 and path length add to a step that has them:\n",
            ladders.render_lazy(committed, machine, ladder),
        ]
    for _, workload, _, mode in runs:
        key = (machine, workload, ladder, mode)
        result = committed.best[key]
        if len(tops) > 1 and mode == modes.CUMULATIVE and len(result.rungs) <= FEW_RUNGS and result in tops:
            continue
        if mode in TABLE_OF:
            words = "" if mode == modes.CUMULATIVE else f", {mode}"
            blocks += [f"`{workload}`{words}:\n", TABLE_OF[mode](committed, "/".join(key))]
        else:
            blocks.append(f"{link_to(key, committed, result)}\n")
        again = ladders.list_staircases(committed, machine, workload, ladder)
        if mode == modes.CUMULATIVE and len(again) > 1:
            blocks += [
                "The lowest and the highest rung of every run:\n",
                ladders.render_hosts(committed, again),
            ]
    stored = committed.best[runs[0]].ladder.title
    return f"{text(_title(ladder, stored))} (`{ladder}`)", blocks


def _title(ladder: str, stored: str) -> str:
    """Return the title of a ladder, or the stored one of a ladder that is not here, or no longer."""
    return catalog.load_ladder(ladder).title if ladder in catalog.ladders() else stored


def _studied(committed: Committed, machine: str) -> list[Section]:
    """Return a section for each other command with a result."""
    return [
        (heading, [words + "\n", made(committed, machine)])
        for heading, words, pattern, made in STUDIES
        if committed.names(pattern.format(machine))
    ]


def render_machines(committed: Committed) -> str:
    """Return one row for each GPU with complete runs: its page, and what was run."""
    rows = []
    for machine in committed.machines:
        runs = {key: result for key, result in committed.best.items() if key[0] == machine}
        climbed = ", ".join(f"{link_to(key, committed, result)}" for key, result in runs.items())
        newest = max(result.started for result in runs.values())[:10]
        others = [heading for heading, _, pattern, _ in STUDIES if committed.names(pattern.format(machine))]
        rows.append(
            [f"[{text(_gpu(committed, machine))}](@/{_path(machine)})", newest, climbed, ", ".join(others)]
        )
    return table(["GPU", "newest run", "ladders", "other studies"], rows, 4)


def link_to(key: tuple[str, str, str, str], committed: Committed, result: Result) -> str:
    """Return a link to the table of a run, named by workload, ladder and mode."""
    _, workload, ladder, mode = key
    return link(
        f"`{workload}` on `{ladder}`" + f", {mode}" * (mode != modes.CUMULATIVE), committed.chart(result)
    )


TABLES: dict[str, Callable[..., str]] = {"machines": render_machines}
