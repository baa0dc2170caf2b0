"""A page for each GPU, `docs/results-MACHINE.md`: all that its complete runs say. `make docs` writes it."""

from __future__ import annotations

from pathlib import Path

from ladder.core import files
from ladder.core.text import escape_markdown
from ladder.plan import catalog, modes
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.pages import tables
from ladder.publish.pages.committed import Committed, Key
from ladder.results.run import Result
from ladder.studies import frame

FOLDER, PREFIX = "docs", "results-"
NOTICE = (
    "<!-- made by `make docs` from the committed results: edit ladder/publish/pages/machines.py instead -->\n"
)
FEW_RUNGS = 3  # the overview of a ladder's workloads has such a run whole


def render_pages(committed: Committed) -> dict[str, str]:
    """Return the text of each page by its path below the checkout."""
    return {f"{FOLDER}/{PREFIX}{name}.md": render_page(committed, name) for name in committed.machines}


def write_pages(root: Path, pages: dict[str, str]) -> list[Path]:
    """Write the page of each machine, and remove those of machines without results. Return the changed files."""
    changed = [path for path in (root / FOLDER).glob(f"{PREFIX}*.md") if f"{FOLDER}/{path.name}" not in pages]
    changed = [path for path in changed if is_generated(path)]
    for path in changed:
        path.unlink()
    for name, content in pages.items():
        if not (path := root / name).is_file() or path.read_text(encoding="utf-8") != content:
            files.write_file(path, content)
            changed.append(path)
    return changed


def is_generated(path: Path) -> bool:
    """Return whether a document is one of these pages."""
    return path.read_text(encoding="utf-8").startswith(NOTICE)


def render_page(committed: Committed, machine: str) -> str:
    """Return the page of one machine: its ladders, the article's first, then `full`, and its studies."""
    runs = _list_runs(committed, machine)
    ladders = sorted({key[2] for key in runs}, key=lambda name: (name != ARTICLE, name != FULL, name))
    blocks = [
        f"{NOTICE}# Results of the {escape_markdown(_name_gpu(runs))}\n",
        "Each table comes from a complete run of three generations or more. [Results](results.md) explains how to\n"
        "read the rows, and the [glossary](glossary.md) defines the terms.\n",
    ]
    for ladder in ladders:
        blocks += _render_ladder(committed, machine, ladder)
    others = [[kind, ", ".join(links)] for kind, links in _link_others(committed, machine).items() if links]
    if others:
        blocks += ["## Other results\n", tables.render([("kind", "text"), ("pages", "markdown")], others)]
    return "\n".join(blocks).replace("(@/", "(../").rstrip() + "\n"


def _link_others(committed: Committed, machine: str) -> dict[str, list[str]]:
    """Return links to the results of other commands, by kind."""
    return {
        kind: [
            tables.link_page(Path(name).stem.removeprefix(machine).strip("-") or machine, name)
            for name, _ in committed.list_files(kind, f"{machine}*")
        ]
        for kind in frame.load_studies()
    }


def _list_runs(committed: Committed, machine: str) -> dict[Key, Result]:
    return {key: result for key, result in committed.best.items() if key[0] == machine}


def _name_gpu(runs: dict[Key, Result]) -> str:
    return next(str(result.machine.gpu) for result in runs.values() if result.machine.gpu)


def _render_ladder(committed: Committed, machine: str, ladder: str) -> list[str]:
    """Return the runs of one ladder: an overview of the workloads, then each run that it does not show whole."""
    runs = {key: run for key, run in _list_runs(committed, machine).items() if key[2] == ladder}
    title = next(iter(runs.values())).ladder.title  # of a ladder that is no longer here
    title = catalog.load_ladder(ladder).title if ladder in catalog.list_ladders() else title
    blocks = [f"## {escape_markdown(title)} (`{ladder}`)\n"]
    tops = tables.list_tops(committed, machine, ladder)
    if len(tops) > 1:
        blocks.append(tables.render_workloads(committed, machine, ladder))
    for (_, workload, _, mode), run in runs.items():
        if len(tops) > 1 and run in tops and len(run.rungs) <= FEW_RUNGS:
            continue
        name = "/".join((machine, workload, ladder, mode))
        blocks += [
            f"`{workload}`{'' if mode == modes.CUMULATIVE else f', {mode}'}:\n",
            tables.render_run(committed, name),
        ]
    return blocks


def render_machines(committed: Committed) -> str:
    """Return one row for each GPU with complete runs: its page, and what was run."""
    rows = []
    for machine in committed.machines:
        runs = _list_runs(committed, machine)
        ladders = ", ".join(f"`{name}`" for name in dict.fromkeys(key[2] for key in runs))
        others = [kind for kind, links in _link_others(committed, machine).items() if links]
        page = f"[{escape_markdown(_name_gpu(runs))}](@/{FOLDER}/{PREFIX}{machine}.md)"
        newest = max(run.started for run in runs.values())[:10]
        rows.append([page, newest, ladders, ", ".join(others)])
    titles = ("GPU", "newest run", "ladders", "other results")
    return tables.render([(title, "markdown") for title in titles], rows)
