"""The front page: one HTML file with embedded pictures and no script, which also works from a folder."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from ladder.base.text import bounds, counted, ms
from ladder.publish.history import series as asvseries
from ladder.publish.site import answers, figures
from ladder.publish.site.collected import Group, Panel, Raw
from ladder.publish.site.vendored import ASSETS
from ladder.report import panels
from ladder.report.themes import DARK, LIGHT, Theme
from ladder.report.view import Row, shown_top
from ladder.results import words

# The page's own colours: green for `faster`, and the lines between rows. All others are the charts' colours.
_PAGE = {
    LIGHT: {"good": "#1A6E34", "line": "#D5DAE0", "mark": LIGHT.article, "link": "#005A8C"},
    DARK: {"good": "#6CCB88", "line": "#343C45", "mark": DARK.article, "link": "#7CC5F0"},
}
Charts = Mapping[
    int, Sequence[tuple[str, str]]
]  # (link text, path) of each whole chart, by the id of its panel
FULL_REPORT = "full report"  # the text of the link to a panel's report
_LOUD = ("faster", "slower", "ADOPT", "SKIP")


@dataclass(frozen=True)
class Link:
    """A link of the page."""

    text: str
    address: str


@dataclass(frozen=True)
class Cell:
    """A text of a table, with the class of its style. ``under``: a smaller text below it, for wide windows."""

    text: str
    kind: str = ""
    under: str = ""


@dataclass(frozen=True)
class TitledRow:
    """A rung's row of a table."""

    title: str
    cells: list[Cell]


@dataclass(frozen=True)
class Picture:
    """A picture in both themes, as SVG, with its alternative text."""

    alt: str
    light: bytes
    dark: bytes


@dataclass(frozen=True)
class ShownPanel:
    """The texts and the picture of a panel."""

    id: str
    name: str
    facts: str
    single: bool
    headline: str
    total: str
    marks: tuple[str, ...]
    protocol: str
    headings: list[Cell]
    rows: list[TitledRow]
    remarks: list[str]
    links: list[Link]
    picture: Picture


@dataclass(frozen=True)
class ShownGroup:
    """The texts and the panels of a group. `split`: its bars show the share of the GPU's work."""

    title: str
    workload: str
    about: str
    split: bool
    panels: list[ShownPanel]


@dataclass(frozen=True)
class Measurement:
    """A commit's row of a history's table."""

    commit: str
    rung: str
    ms: str
    software: str
    marks: str


@dataclass(frozen=True)
class ShownHistory:
    """The texts of a history, and its picture where there are several commits."""

    name: str
    workload: str
    quantity: str
    about: str
    rows: list[Measurement]
    links: list[Link]
    picture: Picture | None


@dataclass(frozen=True)
class Histories:
    """The steps over commits: wall time by (machine, workload), and GPU time by (GPU, workload)."""

    wall: dict[tuple[str, str], list[asvseries.Step]]
    gpu: dict[tuple[str, str], list[asvseries.Step]]


def colors(theme: Theme) -> dict[str, str]:
    """Return the page's colours by the names in its style sheet."""
    return {**vars(theme), **_PAGE[theme]}


def page(
    groups: Sequence[Group],
    histories: Histories,
    raw: Sequence[Raw],
    asv_files: Sequence[str],
    charts: Charts,
    names: dict[str, str],
    compared: Picture | None = None,
) -> str:
    """Return the whole page as HTML.

    Args:
        groups: ladders that share a scale.
        histories: steps of wall and GPU time.
        raw: result files of `ladder run` in the site.
        asv_files: paths of asv's result files in the site.
        charts: (link text, path in the site) of each whole chart, by the id of its panel.
        names: displayed name of each machine in the histories.
        compared: the picture that compares GPUs, where one was measured whole.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    measured = sorted({panel.machine for group in groups for panel in group.panels})
    return environment.get_template("front.html.jinja").render(
        policy=Markup(policy),
        style=Markup(style),
        said=counted(len(measured), "machine"),
        cards=answers.cards(groups, _reports(charts)),
        compared=compared,
        groups=[_group(group, index, charts) for index, group in enumerate(groups)],
        histories=[
            _history(_titled(key, every, names), *key, steps, is_gpu=is_gpu)
            for is_gpu, every in ((True, histories.gpu), (False, histories.wall))
            for key, steps in every.items()
        ],
        raw=[
            {**vars(each), "address": quote(each.path), "file": each.path.rpartition("/")[2]} for each in raw
        ],
        asv_files=[_asv_file(path) for path in asv_files],
        picture=_picture,
        quote=quote,
    )


def _reports(charts: Charts) -> dict[int, str]:
    """Return the path of each full report by the id of its panel."""
    return {panel: path for panel, links in charts.items() for text, path in links if text == FULL_REPORT}


def _style() -> str:
    text = (ASSETS / "front.css").read_text(encoding="utf-8")
    for name, theme in (("LIGHT", LIGHT), ("DARK", DARK)):
        values = " ".join(f"--{key}: {value};" for key, value in colors(theme).items())
        text = text.replace(f"VARIABLES_{name}", values)
    return text


def _picture(drawn: Picture) -> Any:
    """Return both pictures with one alternative text. The browser shows the one for its background."""
    from ladder.publish.report import html

    return html.picture(drawn.alt, drawn.light, drawn.dark)


def _group(group: Group, index: int, charts: Charts) -> ShownGroup:
    about = {panel.shown.workload for panel in group.panels if not panel.single} or {group.workload}
    several = " All machines share one scale." if len(group.panels) > 1 else ""
    return ShownGroup(
        title=group.title,
        workload=group.workload,
        about=f"{'; '.join(sorted(about))}.{several}",
        split=any(row.host_bound is not None for panel in group.panels for row in panel.shown.rows),
        panels=[
            _panel(panel, group, f"{index}-{number}", charts) for number, panel in enumerate(group.panels)
        ],
    )


def _panel(panel: Panel, group: Group, name: str, charts: Charts) -> ShownPanel:
    shown = panel.shown
    title, _, facts = shown.machine.partition(", ")
    measured = [row for row in shown.rows if row.step_ms]
    headline, total = "no rung has a number", ""
    if measured:
        first, last = measured[0], measured[-1]
        headline = f"{panels.short_ms(first.step_ms)} ms a step"
        if last is not first:
            headline = f"{panels.short_ms(first.step_ms)} to {panels.short_ms(last.step_ms)} ms a step"
            total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
    columns = _columns(shown.rows)
    links = [*charts.get(id(panel), ()), ("raw result", panel.raw[0])]
    alt = _alt(panel, title, group.workload)
    light, dark = (figures.ladder(shown, group.most, theme) for theme in (LIGHT, DARK))
    return ShownPanel(
        id=name,
        name=title,
        facts=facts,
        single=panel.single,
        headline=headline,
        total=total,
        marks=shown.marks,
        protocol=f"{shown.protocol[0].upper()}{shown.protocol[1:]}.",
        headings=[heading for heading, _ in columns],
        rows=[TitledRow(row.title, [cell(row) for _, cell in columns]) for row in shown.rows],
        remarks=[text for text in (shown.gpu_noise, shown.noise, *shown.remarks) if text],
        links=[
            *(Link(text, quote(path)) for text, path in links),
            Link("in asv", _asv(panel.machine, group.workload, "rung")),
        ],
        picture=Picture(alt, light, dark),
    )


def _columns(rows: Sequence[Row]) -> list[tuple[Cell, Callable[[Row], Cell]]]:
    """Return the headings and cells, GPU time before the step as in README; columns without any text are left out."""
    columns: list[tuple[Cell, Callable[[Row], Cell]]] = [
        (
            Cell("ms/step", "number"),
            lambda row: Cell(ms(row.step_ms) if row.step_ms else row.status, "number"),
        ),
        (Cell("GPU ms", "number"), lambda row: Cell(ms(row.gpu.ms) if row.gpu else "", "number")),
        (Cell("GPU work"), lambda row: _gain(row.gpu.seen, row.gpu.gain) if row.gpu else Cell("")),
        (Cell("step"), lambda row: _gain(row.seen, row.gain)),
        (Cell("gain at top", "number"), lambda row: Cell(shown_top(row), "number")),
        (Cell("advice"), lambda row: Cell(row.advice, _loud(row.advice))),
    ]
    return [(heading, cell) for heading, cell in columns if any(cell(row).text for row in rows)]


def _gain(seen: words.Seen, interval: tuple[float, float] | None) -> Cell:
    """Return the verdict on one quantity of a rung, over its interval."""
    return Cell(words.answer(seen), _loud(seen.verdict), bounds(interval))


def _loud(word: str) -> str:
    """Return the style of a verdict or an advice."""
    return word if word in _LOUD else ""


def _alt(panel: Panel, title: str, workload: str) -> str:
    """Return the alternative text of a picture. The table under it has all numbers."""
    bars = [
        f"{row.title} {panels.short_ms(row.step_ms)} ms" if row.step_ms else f"{row.title} {row.status}"
        for row in panel.shown.rows
    ]
    kind = " (single run)" if panel.single else ""
    return f"Bars of milliseconds a step on {title}{kind}, workload {workload}: {', '.join(bars)}."


def _titled(key: tuple[str, str], every: Iterable[tuple[str, str]], names: Mapping[str, str]) -> str:
    """Return the displayed name of a history's machine, and which one where others of that name ran the workload."""
    machine, workload = key
    alike = [each for each, of in every if of == workload and names[each] == names[machine]]
    return names[machine] if len(alike) < 2 else f"{names[machine]} ({machine})"


def _history(
    name: str, machine: str, workload: str, steps: list[asvseries.Step], *, is_gpu: bool
) -> ShownHistory:
    drawn = [step for step in steps if step.whole]
    commits = list(dict.fromkeys(step.commit for step in drawn))
    first, last = drawn[0], drawn[-1]
    about = f"One commit so far: {last.rung}, {panels.short_ms(last.ms)} ms a step."
    if len(commits) > 1:
        about = (
            f"{len(commits)} commits, from {panels.short_ms(first.ms)} ms ({first.rung}) "
            f"to {panels.short_ms(last.ms)} ms ({last.rung})."
        )
    if in_part := len(steps) - len(drawn):
        about += f" {in_part} measured without the highest rungs, and in the table alone."
    if any(step.marks for step in drawn):
        about += " A dotted line marks a new driver or cuDNN."
    rows = [
        Measurement(step.commit[:8], step.rung, ms(step.ms), ", ".join(step.software), ", ".join(step.marks))
        for step in steps
    ]
    picture = None
    if len(commits) > 1:
        kind = "GPU milliseconds" if is_gpu else "Milliseconds"
        alt = f"{kind} a step of the highest rung on {name} over commits. {about}"
        picture = Picture(alt, *(figures.history(drawn, theme) for theme in (LIGHT, DARK)))
    link = Link("in asv", _asv(None if is_gpu else machine, workload, "commit", last.rung, is_gpu=is_gpu))
    quantity = "GPU time" if is_gpu else "step time"
    return ShownHistory(name, workload, quantity, about, rows, [link], picture)


def _asv(
    machine: str | None, workload: str, axis: str, rung: str | None = None, *, is_gpu: bool = False
) -> str:
    """Return the address of asv's page of the step time or the GPU time with this selection."""
    asked = {"x-axis": axis, **({"machine": machine} if machine else {}), "p-workload": f"'{workload}'"}
    if rung:
        asked["p-rung"] = f"'{rung}'"
    return f"asv/index.html#{asvseries.GPU_STEP if is_gpu else asvseries.STEP}?{urlencode(asked)}"


def _asv_file(path: str) -> dict[str, str]:
    *_, machine, file = path.split("/")
    return {"machine": machine, "file": file, "address": quote(path)}
