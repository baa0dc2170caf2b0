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
MOMENT_S = 0.5  # seconds of work that needs no bar
NARROW = 80  # columns: on a narrower terminal a bar leaves no room for its text


@contextmanager
def ladder_progress(title: str, quiet: bool) -> Iterator[OnEvent]:
    """Yield the callback for a run: rung, generation and time left. A failure is a line of its own."""
    with _Bar(title, "visits", quiet) as bar:

        def on_event(event: Event) -> None:
            kind = event["event"]
            if kind == "failed":
                bar.line(f"{event['rung']}: {event['status']}: {event['reason']}")
            elif kind == "waiting":
                bar.update(text="waiting: another run uses this device")
            elif kind in ("inspect", "phase", "visited"):
                # Outcomes come at the end of a generation: meanwhile phases show that the run goes on.
                place = _describe_place(event)
                bar.update(event["done"], event["total"], place, event["left_s"], often=kind != "visited")

        yield on_event


def _describe_place(event: Event) -> str:
    number, doing = event["round"], event.get("phase", "")
    place = "inspecting" if number is None else f"generation {number + 1}/{event['rounds']}"
    if event["event"] == "visited":
        doing = f"{event['step_ms']:.1f} ms" if event.get("step_ms") else ""
    return f"{place}  {event['rung']}  {doing}".rstrip()


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

    def __init__(self, title: str, unit: str, quiet: bool) -> None:
        self.title, self.unit, self.quiet = title, unit, quiet
        self.live = not quiet and can_move_its_cursor()
        self.progress: Any = None
        self.said = -EVERY_S  # on the monotonic clock, which may have begun just now

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def update(
        self, done: int = 0, total: int = 0, text: str = "", left_s: float | None = None, often: bool = False
    ) -> None:
        """Redraw the bar. Without a bar, print a line; where updates come `often`, at most one in ten seconds."""
        if left_s is not None:
            text += f"  {left_s / 60:.0f} min left" if left_s >= 90 else f"  {left_s:.0f} s left"
        if self.live:
            if self.progress is None:
                self.progress, self.task = _rich_bar(self.title)
            if total:
                self.progress.update(self.task, completed=done, total=total)
            self.progress.update(self.task, text=text)
        elif not self.quiet and not (often and time.monotonic() - self.said < EVERY_S):
            self.said = time.monotonic()
            count = f"{done}/{total} {self.unit}".rstrip() if total else ""
            click.echo(f"{self.title}: {'  '.join(filter(None, (count, text)))}", err=True)

    def line(self, text: str) -> None:
        text = escape_controls(text)
        if self.progress is not None:
            from rich.text import Text

            self.progress.console.print(Text(text))
        elif not self.quiet:
            click.echo(text, err=True)


def _rich_bar(title: str) -> tuple[Any, Any]:
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
        MofNCompleteColumn(),
        *([TimeElapsedColumn()] if wide else []),
        text("{task.fields[text]}", ratio=1),
    )
    progress = Progress(*columns, console=console, transient=True, expand=True)
    progress.start()
    return progress, progress.add_task(title, total=None, text="")
