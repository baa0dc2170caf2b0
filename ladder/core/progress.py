"""Progress on stderr: a first line at once, then a bar on a terminal or lines elsewhere.

A terminal that cannot move its cursor (TERM=dumb, as in editors and CI) gets lines, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ladder.core.events import Event, OnEvent
from ladder.core.text import escape_controls

EVERY_S = 10.0  # seconds between lines, for work of hundreds of steps
RUN_EVERY_S = 30.0  # of a run: twenty lines in ten minutes
MOMENT_S = 0.5  # seconds of work that needs no bar
NARROW = 80  # columns: on a narrower terminal a bar leaves no room for its text


PHASES = {
    "build": "building the model of {}",
    "prepare": "warming up {}",
    "parity": "comparing a step of {} with FP64",
    "receipts": "checking that {} is active",
    "measure": "timing {}",
    "finish": "measuring the memory of {}",
    "profile": "recording the GPU time of {}",
    "prove": "comparing the timed step of {} with FP64",
}


@contextmanager
def ladder_progress(title: str, quiet: bool, expected_s: float | None = None) -> Iterator[OnEvent]:
    """Yield the callback for a run: what goes on, and the time left. A failure is a line of its own.

    The bar only grows, although a run may add generations. Until one of them is made, `expected_s` of the whole run
    moves it, to half at most.
    """
    percent = 0
    with _Bar(title, "%", quiet, RUN_EVERY_S) as bar:

        def on_event(event: Event) -> None:
            nonlocal percent
            kind = event["event"]
            if kind == "failed":
                bar.line(f"{event['rung']}: {event['status']}: {event['reason']}")
            elif kind == "waiting":
                bar.update(percent, 100, "waiting until another run on this device has ended")
            elif kind == "phase":
                percent = max(percent, min(99, int(100 * _derive_share(event, expected_s))))
                bar.update(percent, 100, _describe_place(event), event["left_s"], often=True)

        yield on_event


def _derive_share(event: Event, expected_s: float | None) -> float:
    """Return the share of a run that is done: of its time, or of its visits while nothing is known of its time."""
    elapsed_s, left_s = event["elapsed_s"], event["left_s"]
    if left_s is None:
        expected = min(0.5, elapsed_s / expected_s) if expected_s else 0.0
        return max(expected, float(event["done"] / max(1, event["total"])))
    return float(elapsed_s / max(1.0, elapsed_s + left_s))


def _describe_place(event: Event) -> str:
    number, rounds = event["round"], event["rounds"]
    place = (
        f"generation {number + 1}{f' of {rounds}' if rounds else ''}"
        if number is not None
        else "first checks"
    )
    doing = PHASES[event["phase"]].format(event["rung"].replace(".twin", " once more"))
    return f"{place}: {doing}"


class First:
    """The first line of a long command, printed once it is certain that the work begins. Notes wait for it."""

    def __init__(self, text: str, quiet: bool) -> None:
        self.quiet, self.begun = quiet, False
        self.waiting = [text]

    def __call__(self) -> None:
        """Print the line, once, and the notes that have come since."""
        self.begun = True
        while self.waiting:
            line = self.waiting.pop(0)
            if not self.quiet:
                click.echo(line, err=True)

    def note(self, line: str) -> None:
        """Print a note behind the first line, at once if that has been printed."""
        self.waiting.append(line)
        if self.begun:
            self()


@contextmanager
def show_bar(title: str, quiet: bool, first: First | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) that draws a bar. Nothing is drawn or printed of work that takes a moment.

    So what refuses at once stays one line.
    """
    begun = time.monotonic()
    with _Bar(title, "", quiet) as drawn:

        def on_progress(done: int, total: int) -> None:
            if time.monotonic() - begun < MOMENT_S:
                return
            if first is not None:
                first()
            drawn.update(done, total, often=True)

        yield on_progress


@contextmanager
def training_progress(steps: int, quiet: bool) -> Iterator[OnEvent]:
    """Yield the callback for ``train.train``: the step and its losses. Files are lines of their own."""
    with _Bar("training", "steps", quiet) as drawn:

        def on_event(event: Event) -> None:
            if event["event"] == "log":
                losses = {key: event[key] for key in ("G_main", "D_main") if event.get(key) is not None}
                text = "  ".join(f"{key} {value:.3f}" for key, value in losses.items())
                drawn.update(event["step"], steps, text, often=True)
            elif event["event"] == "sample":
                drawn.line(f"step {event['step']}: {event['path']}")
            elif event["event"] == "note":
                drawn.line(event["text"])

        yield on_event


def can_move_its_cursor() -> bool:
    """Return whether stderr is a terminal on which a bar can be redrawn in place."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


class _Bar:
    """A rich progress bar on a terminal, lines elsewhere, nothing if quiet."""

    def __init__(self, title: str, unit: str, quiet: bool, every_s: float = EVERY_S) -> None:
        self.title, self.unit, self.quiet, self.every_s = title, unit, quiet, every_s
        self.live = not quiet and can_move_its_cursor()
        self.progress: Any = None
        self.said = -every_s  # on the monotonic clock, which may have begun just now

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def update(
        self, done: int = 0, total: int = 0, text: str = "", left_s: float | None = None, often: bool = False
    ) -> None:
        """Redraw the bar. Without a bar, print a line; where updates come `often`, at most one in `every_s`."""
        if left_s is not None:
            text += f"  {left_s / 60:.0f} min left" if left_s >= 90 else f"  {left_s:.0f} s left"
        if self.live:
            if self.progress is None:
                self.progress, self.task = _rich_bar(self.title, self.unit == "%")
            if total:
                self.progress.update(self.task, completed=done, total=total)
            self.progress.update(self.task, text=text)
        elif not self.quiet and not (often and time.monotonic() - self.said < self.every_s):
            self.said = time.monotonic()
            count = (
                f"{done}%" if self.unit == "%" else f"{done}/{total} {self.unit}".rstrip() if total else ""
            )
            click.echo(f"{self.title}: {'  '.join(filter(None, (count, text)))}", err=True)

    def line(self, text: str) -> None:
        text = escape_controls(text)
        if self.progress is not None:
            from rich.text import Text

            self.progress.console.print(Text(text))
        elif not self.quiet:
            click.echo(text, err=True)


def _rich_bar(title: str, in_percent: bool) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    def text(of: str, ratio: int | None = None) -> TextColumn:
        column = Column(no_wrap=True, overflow="ellipsis", ratio=ratio)
        return TextColumn(of, markup=False, table_column=column)

    console = Console(stderr=True)
    wide = console.width >= NARROW
    columns = (
        *([text("{task.description}"), BarColumn(bar_width=24)] if wide else []),
        text("{task.completed:.0f}%") if in_percent else MofNCompleteColumn(),
        *([TimeElapsedColumn()] if wide else []),
        text("{task.fields[text]}", ratio=1),
    )
    progress = Progress(*columns, console=console, transient=True, expand=True)
    progress.start()
    return progress, progress.add_task(title, total=None, text="")
