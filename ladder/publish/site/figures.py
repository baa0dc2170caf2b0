"""The picture of a history: the highest rung over commits, in the charts' style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ladder.publish.history.series import Step
from ladder.report import drawing
from ladder.report.panels import short_ms
from ladder.show.themes import Theme

WIDTH, HEIGHT, LEFT, RIGHT, BELOW = 9.0, 2.75, 0.95, 2.0, 0.75  # inches
MOST_COMMITS = 12  # named under the axis


def draw_history(steps: Sequence[Step], theme: Theme) -> bytes:
    """Draw the milliseconds of the highest rung at each commit, one line per set of libraries, and return SVG."""
    return drawing.save(lambda: make_figure(steps, theme), "svg", theme)


def make_figure(steps: Sequence[Step], theme: Theme) -> Any:
    """Return the figure of the milliseconds of the highest rung at each commit.

    A line's last point is labelled. A dotted line marks a new driver or cuDNN.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    commits = list(dict.fromkeys(step.commit for step in steps))
    figure = Figure(figsize=(WIDTH, HEIGHT))
    width, height = (WIDTH - LEFT - RIGHT) / WIDTH, (HEIGHT - BELOW - 0.3) / HEIGHT
    axes = figure.add_axes((LEFT / WIDTH, BELOW / HEIGHT, width, height))
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_ylim(*find_range([step.ms for step in steps]))
    axes.set_xlim(-0.5, len(commits) - 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.tick_params(axis="y", length=0, labelcolor=theme.muted, labelsize=8.5)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8, zorder=0)
    axes.set_ylabel("ms per step,\nhighest rung", color=theme.muted, fontsize=9)
    looks = ((theme.busy, "o", "-"), (theme.article, "s", "--"), (theme.muted, "^", ":"))
    several = list(dict.fromkeys(step.software for step in steps))
    for index, software in enumerate(several):
        color, marker, line = looks[index % len(looks)]
        own = [step for step in steps if step.software == software]
        places, times = [commits.index(step.commit) for step in own], [step.ms for step in own]
        axes.plot(
            places,
            times,
            color=color,
            marker=marker,
            linestyle=line,
            markersize=5,
            label=name_software(software, several),
        )
        axes.annotate(
            f"{own[-1].rung}, {short_ms(own[-1].ms)}", (places[-1], times[-1]), xytext=(8, 0), color=color,
            fontsize=8.5, textcoords="offset points", va="center", annotation_clip=False,
        )  # fmt: skip
    for place in {commits.index(step.commit) for step in steps if step.marks}:
        axes.axvline(place - 0.5, color=theme.muted, linestyle=":", linewidth=1, zorder=1)
    if len(several) > 1:
        figure.legend(loc="upper right", ncols=3, frameon=False, fontsize=8.5, borderpad=0)
    every = -(-len(commits) // MOST_COMMITS)
    axes.set_xticks(range(0, len(commits), every), [commit[:8] for commit in commits[::every]])
    axes.tick_params(axis="x", length=0, labelcolor=theme.muted, labelsize=8, rotation=45)
    return figure


def name_software(software: tuple[str, ...], several: Sequence[tuple[str, ...]]) -> str:
    """Return the name of a set of libraries: its torch, and the versions that distinguish it from the others."""
    differs = [part for part in software[1:] if any(part not in other for other in several)]
    return ", ".join(
        [software[0], *differs] if sum(other[0] == software[0] for other in several) > 1 else software[:1]
    )


def find_range(times: Sequence[float]) -> tuple[float, float]:
    """Return the range of the axis: from 0 if times differ much, otherwise so wide that noise looks small."""
    low, high = min(times), max(times)
    return (0.0, high * 1.25) if high > 1.3 * low else (low * 0.85, high * 1.15)
