"""Real training with sample grids, a loss log, and a checkpoint that resumes exactly.

The step is the one that the ladder times, with any recipe.
"""

from __future__ import annotations

import gc
import math
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

import stylegan_lite
from ladder.core import locks
from ladder.core.errors import UserError, words_of
from ladder.core.events import Event, OnEvent
from ladder.core.plain import Fields
from ladder.core.stopping import stop_between
from ladder.images.prepare import ImageSet
from ladder.training import checkpoint, grid, losslog, mishaps
from ladder.training.checkpoint import CHECKPOINT, LOG, Content, Origin
from ladder.training.losslog import Diverged, LossLog, Row
from ladder.training.ranks import Ranks
from stylegan_lite.config import ConfigError
from stylegan_lite.losses import PHASES
from stylegan_lite.step import TrainingStep

# Steps on a GPU, about: copying 684 MB of state takes 5 ms on an H100, half of a fast step.
COPY_EVERY = 64


@dataclass(frozen=True)
class Settings:
    """What a training does beside its steps, and where its files go.

    Attributes:
        steps: the last step, also when resuming: 500, then 1000 with ``resume``, equals 1000 at once.
        seed: seed of weights, latents and data order. A resumed run keeps its own.
        resume: a checkpoint. Log lines in ``out`` after its step are removed.
        origin: networks to begin with, in place of random ones; not with ``resume``.
        sample_every, log_every: steps between grids, each with a checkpoint, and between lines of the log. Grid and
            checkpoint are also written at the end.
        truncation: truncation of the sample grids; 1 is none.
    """

    out: Path
    device: str
    steps: int
    seed: int = 0
    resume: Path | None = None
    origin: Origin | None = None
    sample_every: int = 250
    log_every: int = 16
    truncation: float = 1.0


class Summary(TypedDict):
    """The outcome of a training."""

    step: int
    images: int
    seconds: float
    seed: int
    recipe: Fields
    losses: losslog.Line | None  # of the last line of the log
    files: dict[str, str]  # "samples", "log" and "checkpoint": names in the folder


def train_model(
    workload: Fields,
    recipe: Fields,
    images: ImageSet,
    settings: Settings,
    on_event: OnEvent | None = None,
    ranks: Ranks | None = None,
) -> Summary:
    """Train up to the last step, and write samples, loss log and checkpoint to the folder of the settings.

    The files are ``samples-<step>.png``, ``losses.jsonl`` and ``checkpoint.pt``.

    Args:
        workload, recipe: the arguments of ``stylegan_lite.make_step``; ``images`` replaces ``workload["data"]``.
        on_event: gets dicts with "event" ("checked", "start", "note", "log", "sample", "checkpoint", "end") and its
            details. Nothing is refused after "checked".
        ranks: this process's place in a group, if several train together. It is that of the writing process.

    Returns:
        The summary, which is plain data.

    Raises:
        UserError: the folder holds another run, or the checkpoint does not fit; one line.
        Diverged: NaN or infinity, with phase and step; the last good checkpoint is kept.
        KeyboardInterrupt: Ctrl-C, after the current step and a checkpoint. A second Ctrl-C ends at once.
    """
    out, resume, origin = settings.out, settings.resume, settings.origin

    def report(event: Event) -> None:
        with suppress(OSError):  # a closed terminal or pipe must not end a training
            if on_event is not None:
                on_event(event)

    with locks.folder_lock(out):
        if origin is not None:
            origin.refuse_other(workload)
        content = None if resume is None else load_content(workload, images, settings)
        checkpoint.refuse_occupied(out, resume)
        checkpoint.prepare_folder(out, content)
        report({"event": "checked"})
        step = None
        try:
            step = _make_step(workload, recipe, images, settings, content)
            step.prepare()
            run = _Run(step, images, settings, report, content, ranks)
            report({"event": "start", "step": step.count, "steps": settings.steps})
            return run.train()
        except (UserError, ConfigError, Diverged):
            raise
        except Exception as error:  # errors before the first step; `_Run.train` handles later ones
            if (cause := mishaps.explain_mishap(error)) is None:
                raise
            raise UserError(f"{out}: training cannot begin: {cause}") from error
        finally:
            if step is not None:
                step.close()


def follow_training(
    workload: Fields, recipe: Fields, images: ImageSet, settings: Settings, ranks: Ranks
) -> None:
    """Train as a rank that writes nothing, step by step with the one that calls `train`.

    Raises:
        KeyboardInterrupt: a signal stopped one of the ranks.
    """
    content = None if settings.resume is None else load_content(workload, images, settings)
    step = _make_step(workload, recipe, images, settings, content)
    try:
        step.prepare()
        if content is not None:
            checkpoint.restore_step(settings.resume, content, step)
        with stop_between() as stopped:
            any_stopped = ranks.share_stop(stopped)
            # Like `_Run.train`: ask before each step whether to stop, and not after the last.
            while step.count < settings.steps and not any_stopped():
                step.step()
            if step.count < settings.steps:
                raise KeyboardInterrupt
    finally:
        step.close()


def load_content(workload: Fields, images: ImageSet, settings: Settings) -> Content:
    """Return the checkpoint to resume from. Raises UserError if it is of another training, or has all its steps."""
    resume = settings.resume
    content = checkpoint.load_checkpoint(resume)
    checkpoint.refuse_converted(resume, content)
    full = stylegan_lite.Workload.from_dict({**workload, "data": None}).to_dict()
    checkpoint.refuse_other(resume, content, full, _identify_images(images), settings.device)
    if content["state"]["count"] >= settings.steps:
        raise UserError(f"{resume}: is at step {content['state']['count']} already: give --steps above that")
    return content


def _make_step(
    workload: Fields, recipe: Fields, images: ImageSet, settings: Settings, content: Content | None
) -> TrainingStep:
    seed = settings.seed if content is None else content["seed"]
    workload = {**workload, "data": images.path}
    return stylegan_lite.make_step(workload, recipe, device=settings.device, seed=seed)


def _identify_images(images: ImageSet) -> checkpoint.Images:
    return {"source": images.source, "count": images.count}


class _Run:
    """The step, folder and log of one run."""

    def __init__(
        self,
        step: TrainingStep,
        images: ImageSet,
        settings: Settings,
        report: OnEvent,
        content: Content | None,
        ranks: Ranks | None,
    ) -> None:
        self.step, self.images, self.settings, self.report, self.ranks = step, images, settings, report, ranks
        self.path = settings.out / CHECKPOINT
        scales = step.scales.items()  # of FP16
        also = {f"loss_scale_{name}": scale.scale for name, scale in scales}
        also |= {f"skipped_{name}": scale.skipped for name, scale in scales}
        self.log = LossLog(
            settings.out / LOG, PHASES, every=settings.log_every, batch=step.workload.batch, device=settings.device,
            also=also,
        )  # fmt: skip
        self.seed, self.before, self.started = (
            settings.seed,
            0.0,
            0.0,
        )  # seconds of training in the checkpoint; begin
        self.saved: int | None = None  # the step of the checkpoint on disk
        self.is_disk_full = False  # whether a checkpoint could not be written
        self.kept: dict[str, checkpoint.Tensors] | None = None  # buffers of NVIDIA's networks
        self.copy = checkpoint.Copy()
        if content is not None:
            path = settings.resume
            checkpoint.restore_step(path, content, step)
            self.seed, self.before, self.kept = content["seed"], content["seconds"], content.get("kept")
            self.saved = step.count if path.resolve() == self.path.resolve() else None
            self.log.take_up(content["log"])
            if content["recipe"] != step.recipe.to_dict():
                self._note("the checkpoint was made with another recipe")
        if (origin := settings.origin) is not None:
            origin.load_into(step)
            self.kept = origin.content.get("kept")
            self._note(f"networks of {origin.path}; step, optimizers and mean path length start fresh")

    def train(self) -> Summary:
        """Train up to the last step and return the summary."""
        self.started, steps = time.perf_counter(), self.settings.steps
        with stop_between() as stopped:
            any_stopped = self.ranks.share_stop(stopped) if self.ranks else stopped
            try:
                while self.step.count < steps and not any_stopped():
                    self._train_step()
                    if self.step.count % self.settings.sample_every == 0 and self.step.count < steps:
                        self._sample()
                        self._save()
                if self.step.count == steps:
                    self.log.finish()
                    self._sample()
                self._save()
            except Diverged as error:
                raise Diverged(f"{error}; {self._name_checkpoint()}") from None
            except Exception as error:
                problem = self._save_after(error)
                if stopped() and self.saved == self.step.count:  # a signal may reach the workers first
                    raise self._stop() from error
                if problem is None:
                    raise
                raise UserError(problem) from error
            if self.step.count < steps:
                raise self._stop()
        summary: Summary = {
            "step": self.step.count,
            "images": self.step.count * self.step.workload.batch,
            "seconds": round(self._count_seconds(), 3),
            "seed": self.seed,
            "recipe": self.step.recipe.to_dict(),
            "losses": {phase: self.log.last[phase] for phase in PHASES} if self.log.last else None,
            "files": {"samples": f"samples-{self.step.count:06d}.png", "log": LOG, "checkpoint": CHECKPOINT},
        }
        self.report({"event": "end", **summary})
        return summary

    def _stop(self) -> KeyboardInterrupt:
        self._note(f"stopped after step {self.step.count}: go on with --resume {self.path}")
        return KeyboardInterrupt()

    def _train_step(self) -> None:
        w, index = self.step.workload, self.step.count
        lazy = {"G_pl": index % w.pl_interval == 0, "D_r1": index % w.r1_interval == 0}
        try:
            self.step.step()
        finally:
            if self.step.count > index:  # the step is done, even if prefetching the next batch failed
                phases = tuple(phase for phase in PHASES if lazy.get(phase, True))
                line = self.log.add(Row(self.step.count, phases, self._count_seconds()), self.step.loss)
        if line is not None:
            self.report({"event": "log", **line})
        every = self.log.every * math.ceil(COPY_EVERY / self.log.every)  # ends a line of the log
        if self.step.device == "cpu" or self.step.count % every == 0:
            self.copy.take(self.step, self._count_seconds())

    def _save_after(self, error: Exception) -> str | None:
        """Save the state after the last whole step.

        Returns one line on cause and state, or None if the cause is unknown.
        """
        cause = (
            words_of(error) if isinstance(error, UserError | ConfigError) else mishaps.explain_mishap(error)
        )
        number = self.step.count
        traceback.clear_frames(error.__traceback__)  # saving needs the memory that the failed step held
        gc.collect()
        if self.step.device == "cuda":
            with suppress(Exception):  # a failed GPU refuses this as well
                torch.cuda.empty_cache()
        try:
            state = self._rescue()
        except Exception as other:  # report the first error, not this one
            why = str(other) if isinstance(other, UserError | Diverged) else mishaps.describe_error(other)
            reason = "" if cause and why in cause else f" ({why})"
            state = f"its state is not saved{reason}; {self._name_checkpoint()}"
        if cause is None:
            self._note(f"training stopped after step {number}: {state}")
            return None
        return f"{self.settings.out}: training stopped after step {number}: {cause}; {state}"

    def _rescue(self) -> str:
        state = self.copy.get_finite() if self.step.updating else None
        if not self.step.count or (self.step.updating and state is None):
            return self._name_checkpoint()
        if self.is_disk_full:  # saving has just failed
            return f"its state is not saved; {self._name_checkpoint()}"
        step = self.step.count if state is None else state["count"]
        if self.saved is None or step > self.saved:
            with suppress(UserError):  # the disk of the log may be full
                self.log.check()
            self._write_checkpoint(state)
        return f"go on from step {step} with --resume {self.path}"

    def _name_checkpoint(self) -> str:
        return f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"

    def _sample(self) -> None:
        path = self.settings.out / f"samples-{self.step.count:06d}.png"
        try:
            grid.write_samples(self.step, path, seed=self.seed, truncation=self.settings.truncation)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
        self.report({"event": "sample", "step": self.step.count, "path": str(path)})

    def _save(self) -> None:
        """Write the checkpoint. Raises Diverged if a loss or weight is NaN or infinite."""
        self.log.check()
        self._write_checkpoint(None)

    def _write_checkpoint(self, state: checkpoint.State | None) -> None:
        """Write the checkpoint of the current state (None), or of a copy of the state."""
        count = self.step.count if state is None else state["count"]
        unwritten = self.log.list_unwritten(count)
        if state is None and (problem := self.step.check_finite()) is not None:
            raise Diverged(problem)
        seconds = self._count_seconds() if state is None else self.copy.seconds
        content = checkpoint.make_content(
            self.step, seed=self.seed, seconds=seconds, images=_identify_images(self.images), state=state
        )  # fmt: skip
        content["log"] = unwritten
        if self.kept:
            content["kept"] = self.kept
        try:
            checkpoint.write_checkpoint(self.path, content)
        except UserError:
            self.is_disk_full = True
            raise
        self.saved = count
        self.report({"event": "checkpoint", "step": count, "path": str(self.path)})

    def _count_seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def _note(self, text: str) -> None:
        self.report({"event": "note", "text": text})
