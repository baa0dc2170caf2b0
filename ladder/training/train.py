"""Real training with sample grids, a loss log, and a checkpoint that resumes exactly.

The step is the one that the ladder times, with any recipe.
"""

from __future__ import annotations

import gc
import math
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import torch

import stylegan_lite
from ladder.base import locks
from ladder.base.errors import UserError, words_of
from ladder.base.events import Event, OnEvent
from ladder.base.plain import Fields
from ladder.base.stopping import stop_between
from ladder.images.prepare import ImageSet
from ladder.training import checkpoint, grid, losslog, mishaps
from ladder.training import folder as trainingfolder
from ladder.training.losslog import Diverged, LossLog, Row
from ladder.training.origin import FRESH, Origin
from ladder.training.ranks import Ranks
from stylegan_lite.config import ConfigError
from stylegan_lite.step import PHASES, TrainingStep

__all__ = ["Diverged", "train"]

COPY_EVERY = (
    64  # steps on a GPU, approximately; copying 684 MB of state takes 5 ms on an H100, half of a fast step
)


class Files(TypedDict):
    """The names of the files of a training, in its folder."""

    samples: str
    log: str
    checkpoint: str


class Summary(TypedDict):
    """The outcome of a training."""

    step: int
    images: int
    seconds: float
    seed: int
    recipe: Fields
    losses: losslog.Line | None  # of the last line of the log
    files: Files


def train(
    workload: Fields,
    recipe: Fields,
    images: ImageSet,
    *,
    steps: int,
    out: Path,
    device: str,
    seed: int = 0,
    resume: Path | None = None,
    origin: Origin | None = None,
    sample_every: int = 250,
    log_every: int = 16,
    checkpoint_every: int | None = None,
    truncation: float = 1.0,
    on_event: OnEvent | None = None,
    ranks: Ranks | None = None,
) -> Summary:
    """Train up to step ``steps``, and write samples, loss log and checkpoint to ``out``.

    The files are ``samples-<step>.png``, ``losses.jsonl`` and ``checkpoint.pt``.

    Args:
        workload, recipe: the arguments of ``stylegan_lite.make_step``; ``images`` replaces ``workload["data"]``.
        steps: the last step, also when resuming: 500, then 1000 with ``resume``, equals 1000 at once.
        seed: seed of weights, latents and data order. A resumed run keeps its own.
        resume: a checkpoint. Log lines in ``out`` after its step are removed.
        origin: networks to begin with, in place of random ones; not with ``resume``.
        sample_every, log_every, checkpoint_every: steps between outputs. Grid and checkpoint are also written at the
            end. By default every grid comes with a checkpoint.
        truncation: truncation of the sample grids; 1 is none.
        ranks: this process's place in a group, if several train together. It is that of the writing process.
        on_event: gets dicts with "event" ("checked", "start", "note", "log", "sample", "checkpoint", "end") and its
            details. Nothing is refused after "checked".

    Returns:
        The summary, which is plain data.

    Raises:
        UserError: ``out`` holds another run, or the checkpoint does not fit; one line.
        Diverged: NaN or infinity, with phase and step; the last good checkpoint is kept.
        KeyboardInterrupt: Ctrl-C, after the current step and a checkpoint. A second Ctrl-C ends at once.
    """
    out, resume = Path(out), None if resume is None else Path(resume)
    with locks.folder_lock(out):
        if origin is not None:
            origin.refuse_other(workload)
        content = _open(out, resume, workload, images, device, steps)
        if content is not None:
            seed = content["seed"]
        name = "" if content is None else content["run"]
        if not name or trainingfolder.is_fork(out, resume):
            name = checkpoint.new_run()
        trainingfolder.prepare(out, content)
        tell = _telling(on_event)
        tell({"event": "checked"})
        step = None
        try:
            step = stylegan_lite.make_step(
                {**workload, "data": images.path}, recipe, device=device, seed=seed
            )
            step.prepare()
            log = LossLog(
                out / "losses.jsonl",
                PHASES,
                every=log_every,
                batch=step.workload.batch,
                device=device,
                also=_scales(step),
            )
            run = _Run(step, out, images, seed, name, log, truncation, tell, ranks)
            if content is not None:
                run.restore(resume, content)
            if origin is not None:
                origin.load_into(step)
                run.kept = origin.content.get("kept")
                tell({"event": "note", "text": FRESH.format(origin.path)})
            tell({"event": "start", "step": step.count, "steps": steps})
            return run.to(steps, sample_every, checkpoint_every or sample_every)
        except (UserError, ConfigError, Diverged):
            raise
        except Exception as error:  # errors before the first step; `_Run.to` handles later ones
            if (cause := mishaps.explain(error)) is None:
                raise
            raise UserError(f"{out}: training cannot begin: {cause}") from error
        finally:
            if step is not None:
                step.close()


def _telling(on_event: OnEvent | None) -> OnEvent:
    """Return ``on_event`` without its OSErrors: a closed terminal or pipe must not end a training."""

    def tell(event: Event) -> None:
        with suppress(OSError):
            if on_event is not None:
                on_event(event)

    return tell


def _scales(step: TrainingStep) -> dict[str, torch.Tensor]:
    """Return FP16's loss scales and counts of skipped updates by name, or {} for other precisions."""
    of = {"loss_scale": "scale", "skipped": "skipped"}
    scales = step.scales.items()
    return {f"{key}_{name}": getattr(scale, value) for key, value in of.items() for name, scale in scales}


def _open(
    out: Path,
    resume: Path | None,
    workload: Fields,
    images: ImageSet,
    device: str,
    steps: int,
) -> checkpoint.Content | None:
    """Return the checkpoint to resume from, or None, and check that ``out`` is free.

    It is called before anything costly is built.
    """
    if resume is None:
        trainingfolder.refuse_occupied(out)
        return None
    content = content_of(resume, workload, images, device, steps)
    trainingfolder.refuse_other(out, resume, content)
    return content


def content_of(
    resume: Path, workload: Fields, images: ImageSet, device: str, steps: int
) -> checkpoint.Content:
    """Return the checkpoint to resume from, if it is one of this training."""
    content = checkpoint.load(resume)
    checkpoint.refuse_converted(resume, content)
    full = stylegan_lite.Workload.from_dict({**workload, "data": None}).to_dict()
    checkpoint.refuse_other(resume, content, full, _identity(images), device)
    if content["state"]["count"] >= steps:
        raise UserError(f"{resume}: is at step {content['state']['count']} already: give --steps above that")
    return content


def _identity(images: ImageSet) -> checkpoint.Images:
    return {"source": images.source, "count": images.count}


@dataclass
class _Run:
    """The step, folder and log of one run. ``before`` holds the seconds of training in the loaded checkpoint."""

    step: TrainingStep
    out: Path
    images: ImageSet
    seed: int
    name: str  # the name of the run in its checkpoints
    log: LossLog
    truncation: float
    tell: OnEvent
    ranks: Ranks | None = None
    before: float = 0.0
    started: float = 0.0
    saved: int | None = None  # the step of the checkpoint on disk
    full: bool = False  # whether the disk has refused a checkpoint
    kept: dict[str, checkpoint.Tensors] | None = None  # buffers of NVIDIA's networks
    copy: checkpoint.Copy = field(default_factory=checkpoint.Copy)

    def restore(self, path: Path, content: checkpoint.Content) -> None:
        checkpoint.restore(path, content, self.step)
        self.before = content["seconds"]
        self.kept = content.get("kept")
        self.saved = self.step.count if path.resolve() == (self.out / "checkpoint.pt").resolve() else None
        self.log.take_up(content["log"])
        if content["recipe"] != self.step.recipe.to_dict():
            self.tell({"event": "note", "text": "the checkpoint was made with another recipe"})

    def to(self, steps: int, sample_every: int, checkpoint_every: int) -> Summary:
        """Train up to ``steps`` and return the summary."""
        self.started = time.perf_counter()
        with stop_between() as stopped:
            try:
                agreed = self.ranks.agreed(stopped) if self.ranks else stopped
                self._train(steps, sample_every, checkpoint_every, agreed)
            except Diverged as error:
                raise Diverged(f"{error}; {self._kept()}") from None
            except Exception as error:
                problem = self._broken(error)
                if (
                    stopped() and self.saved == self.step.count
                ):  # a signal to stop may reach the workers first
                    raise self._stopped() from error
                if problem is None:
                    raise
                raise UserError(problem) from error
            if self.step.count < steps:
                raise self._stopped()
        return self._summary()

    def _stopped(self) -> KeyboardInterrupt:
        path, step = self.out / "checkpoint.pt", self.step.count
        self.tell({"event": "note", "text": f"stopped after step {step}: go on with --resume {path}"})
        return KeyboardInterrupt()

    def _train(
        self, steps: int, sample_every: int, checkpoint_every: int, stopped: Callable[[], bool]
    ) -> None:
        while self.step.count < steps and not stopped():
            self._one()
            done = self.step.count
            if done % sample_every == 0 and done < steps:
                self._sample()
            if done % checkpoint_every == 0 and done < steps:
                self._save()
        if self.step.count == steps:
            self.log.finish()
            self._sample()
        self._save()

    def _broken(self, error: Exception) -> str | None:
        """Save the state after the last whole step.

        Returns one line on cause and state, or None if the cause is unknown.
        """
        cause = words_of(error) if isinstance(error, UserError | ConfigError) else mishaps.explain(error)
        number = self.step.count
        traceback.clear_frames(error.__traceback__)  # saving needs the memory that the failed step held
        gc.collect()
        if self.step.device == "cuda":
            with suppress(Exception):  # a failed GPU refuses this as well
                torch.cuda.empty_cache()
        try:
            kept = self._rescue()
        except Exception as other:  # report the first error, not this one
            why = str(other) if isinstance(other, UserError | Diverged) else mishaps.told(other)
            kept = f"its state is not saved{'' if cause and why in cause else f' ({why})'}; {self._kept()}"
        if cause is None:
            self.tell({"event": "note", "text": f"training stopped after step {number}: {kept}"})
            return None
        return f"{self.out}: training stopped after step {number}: {cause}; {kept}"

    def _rescue(self) -> str:
        state = self.copy.sound() if self.step.updating else None
        if not self.step.count or (self.step.updating and state is None):
            return self._kept()
        if self.full:  # saving has just failed
            return f"its state is not saved; {self._kept()}"
        step = self.step.count if state is None else state["count"]
        if self.saved is None or step > self.saved:
            with suppress(UserError):  # the disk of the log may be full
                self.log.check()
            self._write_checkpoint(state)
        return f"go on from step {step} with --resume {self.out / 'checkpoint.pt'}"

    def _kept(self) -> str:
        return f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"

    def _one(self) -> None:
        w, index = self.step.workload, self.step.count
        lazy = {"G_pl": index % w.pl_interval == 0, "D_r1": index % w.r1_interval == 0}
        try:
            self.step.step()
        finally:
            if self.step.count > index:  # the step is done, even if prefetching the next batch failed
                phases = tuple(phase for phase in PHASES if lazy.get(phase, True))
                line = self.log.add(Row(self.step.count, phases, self._seconds()), self.step.loss)
        if line is not None:
            self.tell({"event": "log", **line})
        every = self.log.every * math.ceil(
            COPY_EVERY / self.log.every
        )  # a multiple of it ends a line of the log
        if self.step.device == "cpu" or self.step.count % every == 0:
            self.copy.take(self.step, self._seconds())

    def _sample(self) -> None:
        path = self.out / f"samples-{self.step.count:06d}.png"
        try:
            grid.write_samples(self.step, path, seed=self.seed, truncation=self.truncation)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
        self.tell({"event": "sample", "step": self.step.count, "path": str(path)})

    def _save(self) -> None:
        """Write the checkpoint if all losses and weights are finite.

        Raises:
            Diverged: a loss or weight is NaN or infinite.
        """
        self.log.check()
        self._write_checkpoint(None)

    def _write_checkpoint(self, state: checkpoint.State | None) -> None:
        """Write the checkpoint of the current state (None), or of a copy of the state."""
        count = self.step.count if state is None else state["count"]
        unwritten = self.log.unwritten(count)
        if state is None and (bad := self.step.check_finite()) is not None:
            raise Diverged(bad)
        path, seconds = self.out / "checkpoint.pt", self._seconds() if state is None else self.copy.seconds
        try:
            checkpoint.save(
                path, self.step, seed=self.seed, seconds=seconds, images=_identity(self.images), run=self.name,
                unwritten=unwritten, state=state, kept=self.kept,
            )  # fmt: skip
        except UserError:
            self.full = True
            raise
        self.saved = count
        self.tell({"event": "checkpoint", "step": self.saved, "path": str(path)})

    def _seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def _summary(self) -> Summary:
        summary: Summary = {
            "step": self.step.count,
            "images": self.step.count * self.step.workload.batch,
            "seconds": round(self._seconds(), 3),
            "seed": self.seed,
            "recipe": self.step.recipe.to_dict(),
            "losses": {phase: self.log.last[phase] for phase in PHASES} if self.log.last else None,
            "files": {
                "samples": f"samples-{self.step.count:06d}.png",
                "log": self.log.path.name,
                "checkpoint": "checkpoint.pt",
            },
        }
        self.tell({"event": "end", **summary})
        return summary
