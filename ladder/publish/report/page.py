"""The page of a report: the outcome at its head, and its sections in their order."""

from __future__ import annotations

from pathlib import Path

from ladder.base import files
from ladder.base.text import amount
from ladder.plan import modes
from ladder.publish.report import sections, studies
from ladder.publish.report.inputs import Inputs
from ladder.report import panels, recommend
from ladder.report.view import View
from ladder.results import words
from ladder.show.page import Head, Section, render_page

SECTIONS = (
    sections.show_staircase,
    sections.show_advice,
    sections.show_verdicts,
    sections.show_categories,
    sections.show_steps,
    studies.show_profiles,
    studies.show_ablations,
    studies.show_maps,
    studies.show_mistakes,
    sections.show_memory,
    studies.show_energy,
    studies.show_light,
    studies.show_upstream,
    sections.show_proofs,
    sections.show_environment,
    sections.show_files,
)


def list_sections(inputs: Inputs) -> list[Section]:
    """Return the sections of which the files say something, in order."""
    shown = (show(inputs) for show in SECTIONS)
    return [section for section in shown if section is not None]


def render_report(inputs: Inputs) -> str:
    """Return the whole page. The same files give the same text."""
    return render_page(make_head(inputs), list_sections(inputs))


def write_report(inputs: Inputs, path: Path) -> None:
    """Write the page, whole or not at all. Raises UserError."""
    files.write(path, render_report(inputs))


def make_head(inputs: Inputs) -> Head:
    """Return the outcome: on which machine, by which protocol, and the figures of the first screen."""
    shown = inputs.shown
    machine, _, facts = shown.machine.partition(", ")
    protocol = f"{shown.protocol[0].upper()}{shown.protocol[1:]}."
    return Head(
        title=f"{machine}: {shown.workload.partition(':')[0]}, {shown.title}",
        heading=machine,
        facts=(facts, f"{shown.title}; workload {shown.workload}", protocol),
        marks=shown.marks,
        tiles=_list_tiles(shown, int(inputs.main.workload["batch"])),
    )


def _list_tiles(shown: View, batch: int) -> list[tuple[str, str, str]]:
    """Return step, GPU time, and what a whole training takes."""
    timed = [row for row in shown.rows if row.step_ms]
    if not timed:
        return [("step", "none", "no rung has a number")]
    first, last = timed[0], timed[-1]
    if shown.mode == modes.LEAVE_ONE_OUT:
        first = last = next((row for row in timed if row.name == modes.ALL), last)
    tiles = [_compare("a step", first.step_ms, last.step_ms, last.total, last.total_interval)]
    if first.gpu and last.gpu:
        tiles.append(_compare("GPU work of a step", first.gpu.ms, last.gpu.ms, last.gpu.total, None))
    one, other = (recommend.units(row.step_ms or 0.0, batch, recommend.IMAGES, None) for row in (first, last))
    for what, before, after in (
        (f"hours for {recommend.count(recommend.IMAGES)} images", one.hours, other.hours),
        ("images/s", one.images_per_s, other.images_per_s),
    ):
        tiles.append((what, amount(after), f"{amount(before)} at {first.title}" if first is not last else ""))
    return tiles


def _compare(
    what: str,
    before: float | None,
    after: float | None,
    total: float | None,
    interval: tuple[float, float] | None,
) -> tuple[str, str, str]:
    times = [panels.short_ms(each) for each in (before, after) if each is not None]
    figure = " → ".join(dict.fromkeys(times))
    return f"ms {what}", figure, words.whole(before, after, total, interval) if before != after else ""
