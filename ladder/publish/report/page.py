"""The page: a head with the outcome, the sections, and style and script inside. It asks nothing of a network."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from ladder.base.text import amount
from ladder.plan import modes
from ladder.publish.report import html, section
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.report import panels, recommend
from ladder.report.themes import DARK, LIGHT, Theme
from ladder.report.view import View
from ladder.results import words

ASSETS = Path(__file__).resolve().parent / "assets"
# Colours of the page beside those of the charts. Text on a colour keeps a contrast of 4.5:1, which a test counts.
PAGE = {
    LIGHT: {
        "good": "#1A6E34", "line": "#D5DAE0", "link": "#005A8C", "soft": "#F6F7F9", "warn": "#FFF3E6",
        "open": "#8A4B00", "more": "#C9CDD2", "on": "#FFFFFF",
        "k0": "#0072B2", "k1": "#5B4B9E", "k2": "#B34E00", "k3": "#1A6E34", "k4": "#A32020", "k5": "#7A5A00",
        "k6": "#9B2F7A", "k7": "#00727A", "k8": "#6B3FA0", "k9": "#52606D", "k10": "#5E6400", "k11": "#6B6B6B",
    },
    DARK: {
        "good": "#6CCB88", "line": "#343C45", "link": "#7CC5F0", "soft": "#1A2027", "warn": "#2E2417",
        "open": "#F0B060", "more": "#4A5561", "on": "#12161B",
        "k0": "#56B4E9", "k1": "#B0A3F0", "k2": "#F0A35E", "k3": "#6CCB88", "k4": "#FF8B80", "k5": "#E3C24A",
        "k6": "#EE92CF", "k7": "#4FCFD6", "k8": "#CDA0F5", "k9": "#A9B8C6", "k10": "#C3CC5A", "k11": "#A8A8A8",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The outcome above the sections."""

    title: str
    machine: str
    facts: tuple[str, ...]
    marks: tuple[str, ...]
    tiles: html.Markup


def colors(theme: Theme) -> dict[str, str]:
    """Return the page's colours by the names in its style sheet."""
    return {**vars(theme), **PAGE[theme]}


def sections(found: Found) -> list[Section]:
    """Return the sections of which the files say something, in order."""
    made = (module.section(found) for module in section.modules())
    return [each for each in made if each is not None]


def page(found: Found) -> str:
    """Return the whole page. The same files give the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style, script = _style(), (ASSETS / "report.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html.jinja").render(
        policy=html.Markup(policy),
        style=html.Markup(style),
        script=html.Markup(script),
        head=_head(found),
        sections=sections(found),
        marked=html.marked,
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _style() -> str:
    text = (ASSETS / "report.css").read_text(encoding="utf-8")
    for name, theme in (("LIGHT", LIGHT), ("DARK", DARK)):
        values = " ".join(f"--{key}: {value};" for key, value in colors(theme).items())
        text = text.replace(f"VARIABLES_{name}", values)
    return text


def _head(found: Found) -> Head:
    shown = found.shown
    machine, _, facts = shown.machine.partition(", ")
    protocol = f"{shown.protocol[0].upper()}{shown.protocol[1:]}."
    return Head(
        title=f"{machine}: {shown.workload.partition(':')[0]}, {shown.title}",
        machine=machine,
        facts=(facts, f"{shown.title}; workload {shown.workload}", protocol),
        marks=shown.marks,
        tiles=html.tiles(_outcome(shown, int(found.main.workload["batch"]))),
    )


def _outcome(shown: View, batch: int) -> list[tuple[str, str, str]]:
    """Return the figures of the first screen: step, GPU time, and what a whole training takes."""
    timed = [row for row in shown.rows if row.step_ms]
    if not timed:
        return [("step", "none", "no rung has a number")]
    first, last = timed[0], timed[-1]
    if shown.mode == modes.LEAVE_ONE_OUT:
        first = last = next((row for row in timed if row.name == modes.ALL), last)
    made = [_change("a step", first.step_ms, last.step_ms, last.total, last.total_interval)]
    if first.gpu and last.gpu:
        made.append(_change("GPU work of a step", first.gpu.ms, last.gpu.ms, last.gpu.total, None))
    one, other = (recommend.units(row.step_ms or 0.0, batch, recommend.IMAGES, None) for row in (first, last))
    beside = f"{amount(one.hours)} at {first.title}" if first is not last else ""
    made.append((f"hours for {recommend.count(recommend.IMAGES)} images", amount(other.hours), beside))
    beside = f"{amount(one.images_per_s)} at {first.title}" if first is not last else ""
    made.append(("images/s", amount(other.images_per_s), beside))
    return made


def _change(
    what: str,
    before: float | None,
    after: float | None,
    total: float | None,
    interval: tuple[float, float] | None,
) -> tuple[str, str, str]:
    told = [f"{panels.short_ms(each)}" for each in (before, after) if each is not None]
    figure = " → ".join(dict.fromkeys(told))
    return (f"ms {what}", figure, words.whole(before, after, total, interval) if before != after else "")


def write(found: Found, path: Path) -> None:
    """Write the page, whole or not at all. Raises UserError."""
    from ladder.base import files

    files.write(path, page(found))
