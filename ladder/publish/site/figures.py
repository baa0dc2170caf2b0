"""The front page's pictures: small ladders on one scale, and the highest rung over commits, in the charts' style."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ladder.publish.history.series import Step
from ladder.report import drawing, panels
from ladder.report.themes import Theme
from ladder.report.view import View

WIDTH, NAMES, ROW, LEFT = 6.2, 1.95, 0.4, 0.95  # inches; LEFT is that of the history
_HISTORY = 6.2
LABELS = 12  # commits named under the axis, at most
# Places of a label beside a point: offset in points, alignment. Only the end of a line tries the first place.
_PLACES = (
    ((8, 0), "left", "center"),
    *(
        ((aside, up), side, "bottom" if up > 0 else "top")
        for up in (7, -7, 18, -18, 30)
        for aside, side in ((0, "left"), (6, "left"), (0, "center"), (-6, "right"))
    ),
)


def draw_ladder(shown: View, most: float, theme: Theme) -> bytes:
    """Draw one machine's rungs as bars up to ``most`` milliseconds and return SVG."""
    return drawing.save(lambda: ladder_figure(shown, most, theme), "svg", theme)


def draw_history(steps: Sequence[Step], theme: Theme) -> bytes:
    """Draw the milliseconds of the highest rung at each commit, one line per set of libraries, and return SVG."""
    return drawing.save(lambda: history_figure(steps, theme), "svg", theme)


def ladder_figure(shown: View, most: float, theme: Theme) -> Any:
    """Return the figure of one machine's rungs as bars up to ``most`` milliseconds."""
    figure, axes = drawing.sheet(WIDTH, ROW * max(1, len(shown.rows)) + 0.1)
    strip = panels.Strip(NAMES, WIDTH - NAMES - 0.6, 0.05, ROW, most)
    rows = tuple(dataclasses.replace(row, reason="") for row in shown.rows)  # the table below has the reasons
    shown = dataclasses.replace(shown, rows=rows)
    panels.draw_names(axes, shown, strip, 0.0, theme)
    panels.draw_bars(axes, shown, strip, theme)
    panels.draw_gaps(axes, shown, strip, (), WIDTH, theme)
    return figure


def history_figure(steps: Sequence[Step], theme: Theme) -> Any:
    """Return the figure of the milliseconds of the highest rung at each commit."""
    from matplotlib.figure import Figure

    commits = list(dict.fromkeys(step.commit for step in steps))
    height = 2.0 + 0.75
    figure = Figure(figsize=(_HISTORY, height))
    axes = figure.add_axes(
        (LEFT / _HISTORY, 0.75 / height, (_HISTORY - LEFT - 1.35) / _HISTORY, 1.75 / height)
    )
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_ylim(*axis_range([step.ms for step in steps]))
    axes.set_xlim(-0.5, len(commits) - 0.5)
    _draw_scale(axes, "ms per step,\nhighest rung", theme)
    looks = ((theme.busy, "o", "-"), (theme.article, "s", "--"), (theme.muted, "^", ":"))
    several, labels, lines = list(dict.fromkeys(step.software for step in steps)), [], []
    for index, software in enumerate(several):
        color, marker, line = looks[index % len(looks)]
        mine = [step for step in steps if step.software == software]
        xs = [commits.index(step.commit) for step in mine]
        times = [step.ms for step in mine]
        look = {"color": color, "marker": marker, "linestyle": line, "markersize": 5}
        lines += axes.plot(xs, times, **look, label=name_software(software, several))
        axes.plot(
            xs, times, **look | {"linestyle": ""}, zorder=7
        )  # above the labels, so that no label hides a point
        for place, (x, step) in enumerate(zip(xs, mine, strict=True)):
            last = place == len(mine) - 1
            if last or place == 0 or mine[place - 1].rung != step.rung:
                labels.append((not last, index, x, step, color))
    for x in {commits.index(step.commit) for step in steps if step.marks}:
        axes.axvline(x - 0.5, color=theme.muted, linestyle=":", linewidth=1, zorder=1)
    _place_labels(figure, lines, [label[1:] for label in sorted(labels, key=lambda label: label[:3])], theme)
    if len(several) > 1:
        figure.legend(loc="upper right", ncols=3, frameon=False, fontsize=8.5, borderpad=0)
    every = -(-len(commits) // LABELS)
    axes.set_xticks(range(0, len(commits), every), [commit[:8] for commit in commits[::every]])
    axes.tick_params(axis="x", length=0, labelcolor=theme.muted, labelsize=8, rotation=45)
    return figure


def _draw_scale(axes: Any, name: str, theme: Theme) -> None:
    """Draw a quiet y axis: light lines, its name in the margin."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    axes.set_yticks(
        [y for y in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= y <= high]
    )
    axes.tick_params(axis="y", length=0, labelcolor=theme.muted, labelsize=8.5)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.annotate(
        name, (0, 0.5), xycoords="axes fraction", xytext=(-42, 0), textcoords="offset points", rotation=90,
        ha="center", va="center", color=theme.muted, fontsize=9,
    )  # fmt: skip


def name_software(software: tuple[str, ...], several: Sequence[tuple[str, ...]]) -> str:
    """Return the name of a set of libraries: its torch, and the versions that distinguish it from the others."""
    differs = [part for part in software[1:] if any(part not in other for other in several)]
    return ", ".join(
        [software[0], *differs] if sum(other[0] == software[0] for other in several) > 1 else software[:1]
    )


def axis_range(times: Sequence[float]) -> tuple[float, float]:
    """Return the range of the axis.

    It starts at 0 if times differ much, and otherwise is wide enough that noise looks small.
    """
    low, high = min(times), max(times)
    return (0.0, high * 1.25) if high > 1.3 * low else (low * 0.85, high * 1.15)


def _place_labels(
    figure: Any, lines: list[Any], labels: list[tuple[int, int, Step, str]], theme: Theme
) -> None:
    """Write rung and time beside points, preferably where no line passes.

    A label that would cover another is left out; the table has its numbers. Earlier labels have precedence.
    """
    from matplotlib import patheffects
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer, taken, axes = FigureCanvasAgg(figure).get_renderer(), [], lines[0].axes
    drawn = [line.get_transform().transform_path(line.get_path()) for line in lines]
    ends = {index: max(x for other, x, *_ in labels if other == index) for index, *_ in labels}
    halo = [patheffects.withStroke(linewidth=2.5, foreground=theme.ground)]
    for index, x, step, color in labels:
        made = axes.annotate(
            f"{step.rung}, {panels.short_ms(step.ms)}", (x, step.ms), xytext=(0, 0), fontsize=8.5,
            textcoords="offset points", color=color, path_effects=halo, zorder=6,
        )  # fmt: skip
        places = _PLACES[x != ends[index] :]
        found = []
        for offset, ha, va in places:
            made.xyann = offset
            made.set(ha=ha, va=va)
            box = made.get_window_extent(renderer)
            crossed = sum(path.intersects_bbox(box, filled=False) for path in drawn)
            crossed += sum(
                box.count_contains(path.vertices) for path in drawn
            )  # also for a line of one point
            covers = any(box.overlaps(other) for other in taken) or box.x0 < axes.bbox.x0
            found.append((covers, crossed, len(found)))
        covers, _, best = min(found)
        if covers:
            made.remove()
            continue
        made.xyann, ha, va = places[best]
        made.set(ha=ha, va=va)
        taken.append(made.get_window_extent(renderer))
