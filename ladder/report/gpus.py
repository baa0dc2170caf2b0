"""The picture that compares GPUs: each rung of the article on each of them, beside the article's own machine.

A group of bars is a rung, a bar is a GPU. To the right of a bar stand what the rung gains there and the total, by GPU
time and by the step. The table at the foot has what a whole training takes. The same results give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ladder.base.text import factor, fine_factor, less_than
from ladder.plan import catalog
from ladder.report import drawing, panels
from ladder.report.drawing import fitted, measured, wrapped
from ladder.report.panels import Line, Strip, draw_lines, short_ms
from ladder.report.themes import LIGHT, Theme
from ladder.report.view import Row, View, view
from ladder.results.run import Result
from ladder.results.values import FASTER, LESS_THAN, SLOWER, TOO_FEW
from ladder.results.words import Seen

WIDTH, MARGIN, NAMES, LINE, PAD = (
    10.0,
    0.2,
    1.75,
    0.215,
    0.14,
)  # inches; LINE is a bar's, PAD lies between rungs
COLUMNS = ((("vs previous", 0.86), ("GPU", "step")), (("total", 0.66), ("GPU", "step")))  # with their widths
ARTICLE = "the article"
IMAGES = 25_000_000  # a whole training of StyleGAN2


@dataclass(frozen=True)
class Published:
    """The speed of a training that its authors published."""

    gpu: str
    s_kimg: float  # seconds for a thousand images


# PUBLISHED_AS names their training, hardware and settings, and where they stand.
PUBLISHED = (Published("V100", 20.84), Published("A100", 12.53))
PUBLISHER = "NVIDIA's own"  # whose they are: a heading
PUBLISHED_AS = (
    "NVIDIA's own: its StyleGAN2 at 256x256 with as many channels, two mapping layers, one GPU, batch 16, FP16 in "
    "the four highest resolutions and ADA; the speed of its whole training loop (stylegan3, docs/configs.md)."
)


@dataclass(frozen=True)
class Machine:
    """The rungs of one GPU. ``top`` is the highest rung with a number of the longer ladder, where that was measured."""

    name: str
    shown: View
    top: Row | None
    rungs: int  # of the longer ladder up to ``top``

    def row(self, name: str) -> Row | None:
        """Return a rung of the article's ladder."""
        return next((row for row in self.shown.rows if row.name == name), None)


@dataclass(frozen=True)
class Bar:
    """A line of the picture: a machine's rung, or the article's milliseconds in ``article``."""

    machine: str
    row: Row
    article: float | None = None
    gains: bool = True  # whether it is compared with the rung before it


def render(
    pairs: Sequence[tuple[Result, Result | None]],
    kind: str,
    theme: Theme = LIGHT,
    published: Sequence[Published] = PUBLISHED,
) -> bytes:
    """Return the picture as PNG or SVG bytes.

    Args:
        pairs: for each GPU its staircase of the article's ladder, and that of the longer ladder or None.
        published: speeds to name beside ours.

    Raises:
        UserError: the picture cannot be drawn; one line.
    """
    return drawing.save(lambda: figure(pairs, theme, published), kind, theme)


def figure(
    pairs: Sequence[tuple[Result, Result | None]],
    theme: Theme = LIGHT,
    published: Sequence[Published] = PUBLISHED,
) -> Any:
    """Lay out in inches, from the top: headline, legend, rungs, table, small print."""
    machines, batch = [_machine(*pair) for pair in pairs], int(pairs[0][0].workload["batch"])
    groups = _groups(machines)
    table = _table(machines, batch, published)
    notes = [line for text in _notes(machines, published) for line in wrapped(text, 8, WIDTH - 2 * MARGIN, 4)]
    top = 1.52
    bottom = top + sum(LINE * len(bars) + PAD for _, bars in groups)
    height = bottom + 0.3 + LINE * len(table) + 0.28 + 0.17 * len(notes)
    made, axes = drawing.sheet(WIDTH, height)
    title, details = _headline(machines)
    fitted(made, MARGIN / WIDTH, 1 - 0.16 / height, title, 15, fontweight="bold", va="top")
    fitted(made, MARGIN / WIDTH, 1 - 0.5 / height, details, 10, va="top")
    tones = [
        (theme.busy, "GPU working", False),
        (theme.idle, "GPU waiting; together the step, lower is better", False),
    ]
    if any(row.article_ms for row in machines[0].shown.rows):
        tones.append((theme.article, f"{ARTICLE}: {_reference(machines[0].shown)}, another machine", True))
    panels.draw_legend(axes, MARGIN, 1.0, tones)

    labels = [bar.machine for _, bars in groups for bar in bars]
    left = MARGIN + NAMES + max(measured(label, 8.5) for label in labels) + 0.12
    right = WIDTH - MARGIN - sum(len(under) * wide for (_, wide), under in COLUMNS)
    most = max([bar.article or bar.row.step_ms or 0.0 for _, bars in groups for bar in bars])
    strip = Strip(left, right - left - 0.5, 0.0, LINE / 0.75, most or 1.0)
    _draw_headings(axes, left, top, theme)
    for name, bars in groups:
        axes.plot([MARGIN, WIDTH - MARGIN], [top, top], color=theme.grid, linewidth=0.8, zorder=0)
        lines = [Line(text, theme.ink, 9.5) for text in wrapped(name, 9.5, NAMES - 0.1)]
        draw_lines(axes, MARGIN, top + (PAD + LINE * len(bars)) / 2, lines)
        for number, bar in enumerate(bars):
            _draw_line(axes, strip, top + PAD / 2 + LINE * (number + 0.5), bar, right, theme)
        top += LINE * len(bars) + PAD
    axes.plot([MARGIN, WIDTH - MARGIN], [top, top], color=theme.grid, linewidth=0.8, zorder=0)
    _draw_table(axes, table, left, bottom + 0.3, theme)
    for index, line in enumerate(notes):
        axes.text(
            MARGIN, height - 0.12 - 0.17 * (len(notes) - 1 - index), line, color=theme.muted, fontsize=8
        )
    return made


def _machine(article: Result, longer: Result | None) -> Machine:
    shown = view(article)
    top = next((row for row in reversed(view(longer).rows) if row.step_ms), None) if longer else None
    count = rungs_up_to(longer, top.name) if longer and top else 0
    return Machine(_short(shown.machine.split(",")[0]), shown, top, count)


def rungs_up_to(result: Result, name: str) -> int:
    """Return how many rungs of its ladder a rung holds, itself included. A run may have timed some of them alone."""
    known = catalog.ladders()
    ladder = (
        [step.name for step in catalog.load_ladder(result.ladder.name).rungs]
        if result.ladder.name in known
        else []
    )
    order = ladder if name in ladder else [rung.name for rung in result.rungs]
    return order.index(name) + 1


def _short(gpu: str) -> str:
    """Return a GPU's name without its maker and its kind of memory: `H100 80GB`."""
    return " ".join(re.sub(r"\b(NVIDIA|Tesla|HBM\w*)\b", " ", gpu).split())[:16] or gpu[:16]


def _reference(shown: View) -> str:
    """Return the name of the article's machine: `one A100 80GB`."""
    return shown.reference.split(",")[0][:40]


def _groups(machines: Sequence[Machine]) -> list[tuple[str, list[Bar]]]:
    """Return the bars of each rung under its title: a machine each, then the article's. The top of all comes last."""
    found = []
    first = machines[0].shown
    for row in first.rows:
        bars = [Bar(each.name, mine) for each in machines if (mine := each.row(row.name))]
        if row.article_ms:
            bars.append(Bar(ARTICLE, row, row.article_ms))
        found.append((row.title, bars))
    tops = [each for each in machines if each.top]
    if tops:
        counts = {each.rungs for each in tops}
        title = (
            f"all {counts.pop()} rungs of the ladder full"
            if len(counts) == 1
            else "the top of the ladder full"
        )
        found.append((title, [Bar(each.name, each.top, gains=False) for each in tops if each.top]))
    return found


def _headline(machines: Sequence[Machine]) -> tuple[str, str]:
    names = [each.name for each in machines]
    said = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    software = sorted(
        {part for each in machines for part in each.shown.machine.split(", ") if "PyTorch" in part}
    )
    return (
        f"What each optimization gains on {said}",
        f"{machines[0].shown.workload}   |   {', '.join(software)}",
    )


def _draw_headings(axes: Any, left: float, top: float, theme: Theme) -> None:
    axes.text(MARGIN, top - 0.1, "each rung with those before it", color=theme.muted, fontsize=8.5)
    axes.text(left, top - 0.1, "ms per step", color=theme.muted, fontsize=8.5)
    x = WIDTH - MARGIN
    for (heading, wide), under in reversed(COLUMNS):
        begin = x - wide - measured(under[0], 8.5)
        axes.text((begin + x) / 2, top - 0.3, heading, ha="center", color=theme.muted, fontsize=8.5)
        axes.plot([begin, x], [top - 0.255] * 2, color=theme.muted, linewidth=0.6)
        for word in reversed(under):
            axes.text(x, top - 0.1, word, ha="right", color=theme.muted, fontsize=8.5)
            x -= wide


def _draw_line(axes: Any, strip: Strip, y: float, bar: Bar, right: float, theme: Theme) -> None:
    """Draw a machine's bar with the words to the right of it, or why there is none."""
    row, color = bar.row, theme.article if bar.article else theme.ink
    draw_lines(axes, MARGIN + NAMES, y, [Line(bar.machine, color)])
    step = bar.article or row.step_ms
    if step is None:
        text = wrapped(
            f"{row.status}: {row.reason}" if row.reason else row.status, 8.5, right - strip.left, 1
        )[0]
        draw_lines(
            axes, strip.left, y, [Line(text, theme.muted if row.status in panels.QUIET else theme.bad)]
        )
        return
    if bar.article:
        axes.barh(
            y,
            strip.scale * step,
            strip.bar - 0.02,
            left=strip.left,
            color=theme.ground,
            edgecolor=theme.article,
            zorder=2,
        )
    else:
        tones = theme.busy if row.gpu else theme.muted, theme.idle
        panels.draw_bar(axes, strip, y, (panels.busy_ms(row), step), *tones)
        if row.gpu:
            panels.draw_parts(axes, strip, y, row.gpu.ms, step, theme, "")
    end = strip.left + strip.scale * step + 0.06
    draw_lines(axes, end, y, [Line(short_ms(step), color, 9, bold=not bar.article)])
    x = WIDTH - MARGIN
    for (_, wide), cells in reversed([*zip([head for head, _ in COLUMNS], _cells(bar, theme), strict=True)]):
        for cell in reversed(cells):
            draw_lines(axes, x, y, [cell], "right")
            x -= wide


def _cells(bar: Bar, theme: Theme) -> list[tuple[Line, Line]]:
    """Return (by GPU time, by the step) of the gain and of the total."""
    row, nothing = bar.row, Line("", theme.ink)
    if bar.article:
        return [(nothing, nothing), (nothing, Line(factor(row.article_total), theme.article, 9))]
    gains = (nothing, nothing)
    if bar.gains:
        gains = (_gain(row.gpu.seen, theme) if row.gpu else nothing, _gain(row.seen, theme))
    gpu = factor(row.gpu.total) if row.gpu else ""
    return [gains, (Line(gpu, theme.ink, 9), Line(factor(row.total), theme.busy, 9, True))]


def _gain(seen: Seen, theme: Theme) -> Line:
    if seen.verdict in (FASTER, SLOWER):
        return Line(fine_factor(seen.ratio), theme.ink if seen.verdict == FASTER else theme.bad, 8.5, True)
    if seen.verdict == LESS_THAN and seen.below is not None:
        return Line(less_than(seen.below).replace("less than ", "< "), theme.muted)
    word = "too few" if seen.verdict == TOO_FEW else seen.verdict
    return Line(word or fine_factor(seen.ratio), theme.muted)


def _table(machines: Sequence[Machine], batch: int, published: Sequence[Published]) -> list[list[str]]:
    """Return the lines of the table of a whole training: headings, then a GPU each, then the article and others."""
    ends = machines[0].shown.rows[0], machines[0].shown.rows[-1]
    longer = ["the top of full"] * any(each.top for each in machines)
    lines = [["a whole training", *(end.title for end in ends), *longer]]
    for each in machines:
        rows = [*(each.row(end.name) for end in ends), *([each.top] if longer else [])]
        lines.append(
            [each.name, *(_speed(row.step_ms / batch) if row and row.step_ms else "" for row in rows)]
        )
    if all(end.article_ms for end in ends):
        lines.append([ARTICLE, *(_speed(end.article_ms / batch) for end in ends if end.article_ms)])
    if published:
        lines[0].append(PUBLISHER)
        empty = [""] * (len(lines[0]) - 2)
        lines += [[each.gpu, *empty, _speed(each.s_kimg)] for each in published]
    return lines


def _speed(s_kimg: float) -> str:
    """Return seconds for a thousand images and hours for a training: `19.0 s/kimg, 132 h`."""
    return f"{short_ms(s_kimg)} s/kimg, {short_ms(s_kimg * IMAGES / 1000 / 3600)} h"


def _draw_table(axes: Any, lines: Sequence[Sequence[str]], left: float, top: float, theme: Theme) -> None:
    wide = (WIDTH - MARGIN - left) / max(3, len(lines[0]) - 1)
    for number, (name, *cells) in enumerate(lines):
        color = theme.article if name == ARTICLE else theme.ink if number else theme.muted
        y = top + LINE * number
        draw_lines(axes, MARGIN, y, [Line(name, color)])
        for index, cell in enumerate(cells):
            text = wrapped(cell, 8.5, wide - 0.1, 1)
            draw_lines(axes, left + wide * index, y, [Line(each, color) for each in text])


def _notes(machines: Sequence[Machine], published: Sequence[Published]) -> list[str]:
    """Return the small print: what would mislead if it were left out."""
    found = [
        "vs previous: bold if the whole interval lies beyond the noise floor; < X%: a larger difference is ruled out."
    ]
    if any(each.top for each in machines):
        found[0] += " Totals of the ladder full are over the baseline of its own run."
    found.append(
        f"s/kimg: seconds for a thousand images; h: hours for {IMAGES // 10**6} million, of steps alone, with lazy"
        " regularization, without metrics and snapshots."
    )
    if any(row.step_ms and not row.gpu for each in machines for row in each.shown.rows):
        found[0] += " A grey bar: its GPU time is unknown."
    if any(panels.is_above(each.shown.rows) for each in machines):
        found[0] += f" {panels.ABOVE}."
    if any(row.article_ms for row in machines[0].shown.rows):
        found.append(
            f"The article: {machines[0].shown.reference}; its GPU time is unknown, and it is not a target."
        )
    return [*found, *([PUBLISHED_AS] if published else [])]
