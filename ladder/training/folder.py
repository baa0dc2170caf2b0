"""The folder of a training: its content, and whether a training may begin or continue there.

Callers hold ``locks.folder_lock``, so that no other training interferes.
"""

from __future__ import annotations

from pathlib import Path

from ladder.base.errors import UserError
from ladder.training import checkpoint
from ladder.training.losslog import trim_log

CHECKPOINT, LOG, SAMPLES = "checkpoint.pt", "losses.jsonl", "samples-*.png"


def refuse_occupied(out: Path) -> None:
    """Refuse to begin a training in a folder that holds one.

    Raises:
        UserError: the folder is occupied; one line names its content and the remedy.
    """
    path = out / CHECKPOINT
    if path.exists():
        try:
            content = checkpoint.load(path)
        except UserError as error:
            raise UserError(
                f"{out}: holds a training run that cannot go on ({error}): give another --out"
            ) from None
        if checkpoint.is_converted(content):
            raise UserError(f"{out}: holds a converted checkpoint: give another --out, and --from {path}")
        step = content["state"]["count"]
        raise UserError(
            f"{out}: holds a training run: go on with --resume {path} (it is at step {step}: give --steps above"
            " that) or give another --out"
        )
    if there := _name_remains(out):
        raise UserError(
            f"{out}: holds {there} of a training that left no checkpoint, so it cannot go on: delete what is there or"
            " give another --out"
        )


def refuse_other(out: Path, resume: Path, content: checkpoint.Content) -> None:
    """Refuse to resume if that would overwrite another training, or a later state of this training.

    The checkpoint's own folder is allowed. In a folder without a training, the run becomes a fork.

    Raises:
        UserError: the folder holds another training or a later state.
    """
    path, step = out / CHECKPOINT, content["state"]["count"]
    if path.exists() and not path.samefile(resume):
        try:
            here = checkpoint.load(path)
        except UserError as error:
            raise UserError(f"{out}: holds another training run ({error}): give another --out") from None
        if difference := _name_difference(here, content):
            raise UserError(
                f"{out}: holds another training run ({difference}) than {resume}: give another --out, or go on with"
                f" --resume {path}"
            )
        if here["state"]["count"] > step:
            raise UserError(
                f"{out}: is at step {here['state']['count']} of this run, ahead of {resume} (step {step}): give another"
                f" --out, or go on with --resume {path}"
            )
    elif not path.exists() and not _is_inside(out, resume) and (there := _name_remains(out)):
        raise UserError(
            f"{out}: holds {there} of another training run than {resume}: give another --out, or delete what is there"
        )


def prepare(out: Path, content: checkpoint.Content | None) -> None:
    """Remove half-written files of a killed training, and log lines that will be written again.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        for name in (CHECKPOINT, LOG, SAMPLES):
            for path in out.glob(f".{name}-*.tmp"):
                path.unlink(missing_ok=True)
        if content is not None:
            trim_log(out / LOG, content["state"]["count"], content["log"])
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error


def is_fork(out: Path, resume: Path) -> bool:
    """Return whether resuming ``resume`` in ``out`` begins a separate run beside the original."""
    return not (out / CHECKPOINT).exists() and not _is_inside(out, resume)


def _is_inside(out: Path, resume: Path) -> bool:
    return resume.resolve().parent == out.resolve()


def _name_remains(out: Path) -> str | None:
    """Return the remains of a training in a folder without a checkpoint, as text, or None."""
    if (out / LOG).exists() and (out / LOG).stat().st_size:
        return f"the loss log ({LOG})"
    samples = sorted(out.glob(SAMPLES))
    return f"samples ({samples[-1].name})" if samples else None


def _name_difference(here: checkpoint.Content, other: checkpoint.Content) -> str | None:
    """Return a few words on how two checkpoints' trainings differ, or None if they are the same."""
    if here["run"] and other["run"]:
        return None if here["run"] == other["run"] else "begun apart"
    # Checkpoints of earlier versions have only these.
    ours, theirs = ({key: each.get(key) for key in ("seed", "images", "workload")} for each in (here, other))
    return next((f"another {key}" for key, value in ours.items() if value != theirs[key]), None)
