"""The images that a workload is trained on, with progress and notes for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ladder.core import progress
from ladder.core import text as texts
from ladder.core.plain import Fields, Scalar

if TYPE_CHECKING:
    from ladder.images.prepare import ImageSet

DEFAULT_WORKLOAD = {"cuda": "article", "cpu": "tiny"}


def prepare_images(
    data: Scalar, workload: Fields, quiet: bool, first: progress.First | None = None
) -> ImageSet:
    """Return the workload's images, with a progress bar while they are made and their notes on stderr.

    ``data`` is a user's folder, or the workload's own field; None takes the sample photographs.
    ``first`` is printed before images are made. If none are, it waits, and the images' notes with it: the caller
    prints it after its last check.
    """
    from ladder.images import prepare as images

    folder = None if data is None else str(data)
    resolution, batch = int(workload["resolution"]), int(workload["batch"])
    with progress.show_bar("images", quiet, first) as on_progress:
        prepared = images.prepare_images(folder, resolution, progress=on_progress, at_least=batch)
    for note in prepared.notes:
        line = f"images: {texts.escape_controls(note)}"
        if first is not None:
            first.note(line)
        elif not quiet:
            click.echo(line, err=True)
    return prepared
