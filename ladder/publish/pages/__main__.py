"""Make the generated parts of the documents: `python -m ladder.publish.pages`, which `make docs` runs.

A document has marked regions: `<!-- table: NAME ARGUMENT... -->`, lines that are replaced, and `<!-- end -->`. NAME is
a function of `TABLES`. Nothing else of a document is changed. The page of each GPU, `docs/results-MACHINE.md`, and the
pages and pictures beside results are made anew.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.text import escape_markdown
from ladder.plan import catalog, modes
from ladder.publish import gallery
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.pages import tables
from ladder.publish.pages.committed import Committed, Key, check_out
from ladder.results.run import Result
from ladder.studies import frame

PREFIX = "docs/results-"  # of the page of a machine
NOTICE = "<!-- made by `make docs` from the committed results: edit ladder/publish/pages instead -->\n"
FEW_RUNGS = 3  # the overview of a ladder's workloads has such a run whole
OPENING = re.compile(r"^<!-- table: ([^>]*?) -->$", re.MULTILINE)
REGION = re.compile(r"^(<!-- table: ([^>]*?) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
HERE = "(@/"  # a link's beginning, for the folder of the checkout


# --- the page of a machine --------------------------------------------------------------------------------------------


def render_machine(committed: Committed, machine: str) -> str:
    """Return the page of one machine: its ladders, the article's first, then `full`, and its studies."""
    runs = list_runs(committed, machine)
    blocks = [
        f"{NOTICE}# Results of the {escape_markdown(name_gpu(runs))}\n",
        "Each table comes from a complete run of three generations or more. [Results](results.md) explains how to\n"
        "read the rows, and the [glossary](glossary.md) defines the terms and names the article.\n",
    ]
    ladders = sorted({key[2] for key in runs}, key=lambda name: (name != ARTICLE, name != FULL, name))
    for ladder in ladders:
        # An overview of the workloads, then each run that it does not show whole.
        own = {key: run for key, run in runs.items() if key[2] == ladder}
        title = next(iter(own.values())).ladder.title  # of a ladder that is no longer here
        title = catalog.load_ladder(ladder).title if ladder in catalog.list_ladders() else title
        blocks.append(f"## {escape_markdown(title)} (`{ladder}`)\n")
        tops = tables.list_tops(committed, machine, ladder)
        if len(tops) > 1:
            blocks.append(tables.render_workloads(committed, machine, ladder))
        for (_, workload, _, mode), run in own.items():
            if len(tops) < 2 or run not in tops or len(run.rungs) > FEW_RUNGS:
                blocks.append(f"`{workload}`{'' if mode == modes.CUMULATIVE else f', {mode}'}:\n")
                blocks.append(tables.render_run(committed, "/".join((machine, workload, ladder, mode))))
    others = [[kind, ", ".join(links)] for kind, links in link_others(committed, machine).items()]
    if others:
        table = tables.make_table([("kind", "text"), ("pages", "markdown")], others)
        blocks += ["## Other results\n", tables.render(table)]
    return "\n".join(blocks).replace(HERE, "(../").rstrip() + "\n"


def render_machines(committed: Committed) -> str:
    """Return one row for each GPU with complete runs: its page, and what was run."""
    rows = []
    for machine in committed.machines:
        runs = list_runs(committed, machine)
        ladders = ", ".join(f"`{name}`" for name in dict.fromkeys(key[2] for key in runs))
        page = f"[{escape_markdown(name_gpu(runs))}]{HERE}{PREFIX}{machine}.md)"
        newest = max(run.started for run in runs.values())[:10]
        rows.append([page, newest, ladders, ", ".join(link_others(committed, machine))])
    titles = ("GPU", "newest run", "ladders", "other results")
    return tables.render(tables.make_table([(title, "markdown") for title in titles], rows))


def list_runs(committed: Committed, machine: str) -> dict[Key, Result]:
    """Return the best run of each workload, ladder and mode on a machine."""
    return {key: result for key, result in committed.best.items() if key[0] == machine}


def name_gpu(runs: dict[Key, Result]) -> str:
    """Return the name of the GPU of runs of one machine."""
    return next(str(result.machine.gpu) for result in runs.values() if result.machine.gpu)


def link_others(committed: Committed, machine: str) -> dict[str, list[str]]:
    """Return links to the results of other commands, by kind."""
    links: dict[str, list[str]] = {}
    for kind in frame.load_studies():
        for name, _ in committed.list_files(kind, f"{machine}*"):
            words = Path(name).stem.removeprefix(machine).strip("-") or machine
            links.setdefault(kind, []).append(tables.link_page(words, name))
    return links


# --- documents --------------------------------------------------------------------------------------------------------

TABLES: dict[str, Callable[..., str]] = {
    "ablated": tables.render_files("ablation", slice(2)),  # without stored runs
    "bugs": tables.render_bugs,
    "recommended": tables.render_advice,
    "agreement": tables.render_agreement,
    "cards": tables.render_cards,
    "explained": tables.render_explanation,
    "gpus": tables.render_gpus,
    "kernels": tables.render_kernels,
    "machines": render_machines,
    "mapped": tables.render_files("map", slice(-1)),  # without the times of cells
    "pair": tables.render_pair,
    "parts": tables.render_parts,
    "passes": tables.render_passes,
    "penalty": tables.render_files("penalty", slice(1)),
    "quality": tables.render_quality,
    "rungs": tables.render_run,
    "targets": tables.render_targets,
    "trained": tables.render_trained,
    "usual": tables.render_usual,
    "upstream": tables.render_files("upstream", slice(2)),
}


def main(arguments: list[str]) -> int:
    """Fill every document, make the pages beside results, and print the names of the changed files.

    Return the exit status: 0, or 2 with one line.
    """
    try:
        if arguments:
            raise UserError("this command takes no arguments: tables come from all committed results")
        for path in [*fill_documents(ROOT), *redraw_pages(ROOT)]:
            print(path.relative_to(ROOT))
    except UserError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 2
    return 0


def list_documents(root: Path) -> list[Path]:
    """Return the documents that may hold regions. Pages that are generated whole hold none."""
    paths = sorted((root / "docs").glob("*.md"))
    return [root / "README.md", *(path for path in paths if not is_generated(path))]


def is_generated(path: Path) -> bool:
    """Return whether a document is the page of a machine."""
    return path.read_text(encoding="utf-8").startswith(NOTICE)


def fill_documents(root: Path) -> list[Path]:
    """Fill the documents of a checkout, write the page of each machine, and remove those without results.

    Return the changed files. Raises UserError before a file is written.
    """
    texts = {}
    with check_out(root) as committed:
        for path in list_documents(root):
            texts[path] = fill_text(path.read_text(encoding="utf-8"), path.relative_to(root), committed)
        for machine in committed.machines:
            texts[root / f"{PREFIX}{machine}.md"] = render_machine(committed, machine)
    gone = [path for path in root.glob(f"{PREFIX}*.md") if path not in texts and is_generated(path)]
    for path in gone:
        path.unlink()
    changed = [
        path for path in texts if not path.is_file() or path.read_text(encoding="utf-8") != texts[path]
    ]
    for path in changed:
        files.write_file(path, texts[path])
    return [*changed, *gone]


def fill_text(text: str, page: Path, committed: Committed) -> str:
    """Return a document with its regions filled; `page` is its path below the checkout.

    Raises:
        UserError: an unknown table, a wrong argument, a missing result or a region without end, with page and line.
    """

    def fill(region: re.Match[str]) -> str:
        name, *arguments = region[2].split() or [""]
        if name not in TABLES:
            near = difflib.get_close_matches(name, TABLES, 1)
            raise UserError(f"no table {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        try:
            inspect.signature(TABLES[name]).bind(committed, *arguments)
        except TypeError as error:
            raise UserError(f"table {name!r}: {error}") from None
        body = TABLES[name](committed, *arguments)
        return f"{region[1]}{body.replace(HERE, '(' + '../' * (len(page.parts) - 1)).rstrip()}\n{region[4]}"

    regions = {region.start(): region for region in REGION.finditer(text)}
    parts, at = [], 0
    for opening in OPENING.finditer(text):
        region = regions.get(opening.start())
        try:
            if region is None or OPENING.search(region[3]):
                raise UserError("the region has no line `<!-- end -->`")
            parts += [text[at : region.start()], fill(region)]
            at = region.end()
        except UserError as error:
            line = text.count("\n", 0, opening.start()) + 1
            raise UserError(f"{page}:{line}: {error}") from None
    return "".join([*parts, text[at:]])


def redraw_pages(root: Path) -> list[Path]:
    """Write the pages and pictures beside results that differ from this commit's, and return them.

    A command writes them once, when it ends; else they would keep the words of that day's code. No new file is made.

    Raises:
        UserError: git cannot name the results, or a result is missing or damaged.
    """
    changed = []
    for folder in sorted({study.folder for study in frame.load_studies().values()}):
        for source in gallery.list_tracked(root, f"results/{folder}"):
            for path, content in render_pages(source):
                if path.is_file() and path.read_bytes() != content:
                    files.write_file(path, content)
                    changed.append(path)
    return changed


def render_pages(source: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the page and the pictures of a result with their paths; nothing for a file of another kind."""
    if (opened := frame.open_stored(source)) is not None:
        study, file = opened
        yield source.with_suffix(".md"), frame.render_page(study, file).encode()
        for kind in ("png", "svg"):
            if (picture := study.draw(file, kind)) is not None:
                yield source.with_suffix(f".{kind}"), picture


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
