"""The folder of a training: what is in it, and whether a training may begin or go on there.

Everything here is asked while ``results.folder_lock`` is held, so that no other training comes between.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.training import checkpoint
from ladder.training.losslog import trim

CHECKPOINT, LOG, SAMPLES = "checkpoint.pt", "losses.jsonl", "samples-*.png"


def refuse_occupied(out: Path) -> None:
    """Refuse to begin a training where another one is. UserError, one line: what is there, and what to do."""
    path = out / CHECKPOINT
    if path.exists():
        try:
            step = checkpoint.load(path)["state"]["count"]
        except UserError as error:
            raise UserError(
                f"{out}: holds a training run that cannot go on ({error}): give another --out"
            ) from None
        raise UserError(
            f"{out}: holds a training run: go on with --resume {path} (it is at step {step}: give --steps above"
            " that) or give another --out"
        )
    if there := _without_checkpoint(out):
        raise UserError(
            f"{out}: holds {there} of a training that left no checkpoint, so it cannot go on: delete what is there or"
            " give another --out"
        )


def refuse_other(out: Path, resume: Path, content: dict[str, Any]) -> None:
    """Refuse to go on from ``resume`` where that would write over another training, or over a later state of this one.

    Its own folder is free, and so is one without a training: there the run is forked.
    """
    path, step = out / CHECKPOINT, content["state"]["count"]
    if path.exists() and not path.samefile(resume):
        try:
            here = checkpoint.load(path)
        except UserError as error:
            raise UserError(f"{out}: holds another training run ({error}): give another --out") from None
        if differing := _differing(here, content):
            raise UserError(
                f"{out}: holds another training run ({differing}) than {resume}: give another --out, or go on with"
                f" --resume {path}"
            )
        if here["state"]["count"] > step:
            raise UserError(
                f"{out}: is at step {here['state']['count']} of this run, ahead of {resume} (step {step}): give another"
                f" --out, or go on with --resume {path}"
            )
    elif not path.exists() and not _inside(out, resume) and (there := _without_checkpoint(out)):
        raise UserError(
            f"{out}: holds {there} of another training run than {resume}: give another --out, or delete what is there"
        )


def prepare(out: Path, content: dict[str, Any] | None) -> None:
    """Remove what a killed training left half written, and log lines that come again. UserError if it cannot be."""
    try:
        for name in (CHECKPOINT, LOG, SAMPLES):
            for path in out.glob(f".{name}-*.tmp"):
                path.unlink(missing_ok=True)
        if content is not None:
            trim(out / LOG, content["state"]["count"], content["log"])
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error


def is_fork(out: Path, resume: Path) -> bool:
    """Whether going on from ``resume`` in ``out`` begins a run of its own beside the one that it comes from."""
    return not (out / CHECKPOINT).exists() and not _inside(out, resume)


def _inside(out: Path, resume: Path) -> bool:
    return resume.resolve().parent == out.resolve()


def _without_checkpoint(out: Path) -> str | None:
    """What a training has left in a folder without a checkpoint, or None."""
    if (out / LOG).exists() and (out / LOG).stat().st_size:
        return f"the loss log ({LOG})"
    samples = sorted(out.glob(SAMPLES))
    return f"samples ({samples[-1].name})" if samples else None


def _differing(here: dict[str, Any], other: dict[str, Any]) -> str | None:
    """One word on what tells two checkpoints' trainings apart; None where nothing does."""
    if here["run"] and other["run"]:
        return None if here["run"] == other["run"] else "begun apart"
    for key in ("seed", "images", "workload"):  # all that checkpoints of earlier versions tell
        if here[key] != other[key]:
            return f"another {key}"
    return None
