"""What a user sees while they wait, on stderr: a bar on a terminal, now and then a line where it is piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ladder.texts import printable

OnEvent = Callable[[dict[str, Any]], None]


@contextmanager
def ladder_progress(title: str, quiet: bool) -> Iterator[OnEvent]:
    """Yield the callback for ``measure.run_ladder``: rung, round and time left; failures as lines of their own."""
    with _Bar(title, "visits", quiet) as bar:

        def on_event(event: dict[str, Any]) -> None:
            kind = event["event"]
            if kind == "failed":
                bar.line(f"{event['rung']}: {event['status']}: {event['reason']}")
            elif kind == "waiting":
                bar.update(text="waiting: another run uses this device")
            elif kind in ("visit", "inspect", "phase", "visited"):
                bar.update(
                    event["done"], event["total"], _where(event), event["left_s"], say=kind == "visited"
                )

        yield on_event


def _where(event: dict[str, Any]) -> str:
    number, doing = event["round"], event.get("phase", "")
    place = "inspecting" if number is None else f"round {number + 1}/{event['rounds']}"
    if event["event"] == "visited":
        doing = f"{event['step_ms']:.1f} ms" if event.get("step_ms") else ""
    return f"{place}  {event['rung']}  {doing}".rstrip()


@contextmanager
def bar(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) that draws a bar; nothing is drawn before its first call."""
    with _Bar(title, "", quiet) as drawn:
        yield lambda done, total: drawn.update(done, total, say=True)


@contextmanager
def kernels_progress(quiet: bool, line: Callable[[dict[str, Any]], str]) -> Iterator[OnEvent]:
    """Yield the callback for ``kernelbench.run``: the case on the bar, each measured row as ``line`` says it."""
    with _Bar("kernels", "cases", quiet) as drawn:

        def on_event(event: dict[str, Any]) -> None:
            for row in event.get("rows", []):
                drawn.line(line(row))
            drawn.update(event["done"], event["total"], f"{event['case']}  {event.get('doing', '')}")

        yield on_event


@contextmanager
def training_progress(steps: int, quiet: bool) -> Iterator[OnEvent]:
    """Yield the callback for ``train.train``: the step and its losses; files as lines of their own."""
    with _Bar("training", "steps", quiet) as drawn:

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "log":
                losses = {key: event[key] for key in ("G_main", "D_main") if event.get(key) is not None}
                text = "  ".join(f"{key} {value:.3f}" for key, value in losses.items())
                drawn.update(event["step"], steps, text, say=True)
            elif event["event"] == "sample":
                drawn.line(f"step {event['step']}: {event['path']}")
            elif event["event"] == "note":
                drawn.line(event["text"])

        yield on_event


class _Bar:
    """A rich progress bar on a terminal; lines at most every ten seconds elsewhere; silent if quiet."""

    def __init__(self, title: str, unit: str, quiet: bool) -> None:
        self.title, self.unit, self.quiet = title, unit, quiet
        self.live = not quiet and sys.stderr.isatty()
        self.progress: Any = None
        self.said = time.monotonic()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def update(
        self, done: int = 0, total: int = 0, text: str = "", left_s: float | None = None, say: bool = False
    ) -> None:
        if self.live:
            self._draw(done, total, f"{text}{_left(left_s)}")
        elif say and not self.quiet and time.monotonic() - self.said > 10:
            self.said = time.monotonic()
            click.echo(f"{self.title}: {done}/{total} {self.unit}  {text}{_left(left_s)}".rstrip(), err=True)

    def line(self, text: str) -> None:
        text = printable(text)
        if self.progress is not None:
            from rich.text import Text

            self.progress.console.print(Text(text))
        elif not self.quiet:
            click.echo(text, err=True)

    def _draw(self, done: int, total: int, text: str) -> None:
        if self.progress is None:
            self.progress, self.task = _rich_bar(self.title)
        if total:
            self.progress.update(self.task, completed=done, total=total)
        self.progress.update(self.task, text=text)


def _rich_bar(title: str) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress, progress.add_task(title, total=None, text="")


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"  {seconds / 60:.0f} min left" if seconds >= 90 else f"  {seconds:.0f} s left"
