"""Training for real: sample grids, a loss log, and a checkpoint that resumes exactly.

The step is the very one that the ladder times, with any recipe.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import stylegan_lite
from ladder import checkpoint, grid
from ladder.errors import UserError, one_line
from ladder.images import ImageSet
from ladder.losslog import Diverged, LossLog, Row, trim
from stylegan_lite.step import PHASES, TrainingStep

__all__ = ["Diverged", "train"]

OnEvent = Callable[[dict[str, Any]], None]


def train(
    workload: dict[str, Any],
    recipe: dict[str, Any],
    images: ImageSet,
    *,
    steps: int,
    out: Path,
    device: str,
    seed: int = 0,
    resume: Path | None = None,
    sample_every: int = 250,
    log_every: int = 16,
    checkpoint_every: int | None = None,
    truncation: float = 1.0,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Train up to step ``steps`` and write ``samples-<step>.png``, ``losses.jsonl`` and ``checkpoint.pt`` to ``out``.

    Args:
        workload, recipe: as for ``stylegan_lite.make_step``; ``workload["data"]`` is taken from ``images``.
        steps: the step to end at, also when resuming: 500, then 1000 with ``resume``, equals 1000 at once.
        seed: weights, latents and data order. A resumed run keeps its own.
        resume: a checkpoint. Lines of the log in ``out`` behind its step are dropped.
        sample_every, log_every, checkpoint_every: in steps; grids and checkpoint also come at the end. By default a
            checkpoint goes with every grid.
        truncation: of the sample grids; 1 is none.
        on_event: gets dicts: "event" ("start", "note", "log", "sample", "checkpoint", "end") and what belongs to it.

    Returns:
        plain data: step, images, seconds, losses (the last line of the log), and the names of the files in ``out``.

    Raises:
        UserError: ``out`` holds another run, or the checkpoint does not fit; one line.
        Diverged: NaN or infinity, with phase and step; the last good checkpoint is kept.
        KeyboardInterrupt: Ctrl-C, after the step in progress and a checkpoint. A second one ends at once.
    """
    out = Path(out)
    tell = on_event or (lambda event: None)
    content = _open(out, resume, workload, images, device, steps)
    seed = seed if content is None else content["seed"]
    step = stylegan_lite.make_step({**workload, "data": images.path}, recipe, device=device, seed=seed)
    try:
        step.prepare()
        log = LossLog(
            out / "losses.jsonl",
            PHASES,
            every=log_every,
            batch=step.workload.batch,
            device=device,
            also=_scales(step),
        )
        run = _Run(step, out, images, seed, log, truncation, tell)
        if content is not None:
            run.restore(resume, content)
        tell({"event": "start", "step": step.count, "steps": steps})
        return run.to(steps, sample_every, checkpoint_every or sample_every)
    except OSError as error:
        raise UserError(f"{out}: training stopped: {one_line(str(error))}") from error
    finally:
        step.close()


def _scales(step: TrainingStep) -> dict[str, torch.Tensor]:
    """FP16's loss scales, and how many updates they have skipped so far; nothing in other precisions."""
    of = {"loss_scale": "scale", "skipped": "skipped"}
    scales = step.scales.items()
    return {f"{key}_{name}": getattr(scale, value) for key, value in of.items() for name, scale in scales}


def _open(
    out: Path,
    resume: Path | None,
    workload: dict[str, Any],
    images: ImageSet,
    device: str,
    steps: int,
) -> dict[str, Any] | None:
    """Make ``out`` and read the checkpoint to go on from, before anything costly is built."""
    content = None
    if resume is not None:
        content = checkpoint.load(resume)
        full = stylegan_lite.Workload.from_dict({**workload, "data": None}).to_dict()
        checkpoint.refuse_other(resume, content, full, _identity(images), device)
        done = content["state"].get("count")
        if not isinstance(done, int):
            raise UserError(f"{resume}: damaged checkpoint: it does not know its step")
        if done >= steps:
            raise UserError(f"{resume}: is at step {done} already: give --steps above that")
    elif (out / "checkpoint.pt").exists() or (out / "losses.jsonl").exists():
        raise UserError(
            f"{out}: holds a training run: go on with --resume {out / 'checkpoint.pt'} or give another --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if content is not None:
            trim(out / "losses.jsonl", content["state"]["count"])
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    return content


def _identity(images: ImageSet) -> dict[str, Any]:
    return {"source": images.source, "count": images.count}


@dataclass
class _Run:
    """One run's step, folder and log; ``before`` are the seconds of training that a checkpoint brought along."""

    step: TrainingStep
    out: Path
    images: ImageSet
    seed: int
    log: LossLog
    truncation: float
    tell: OnEvent
    before: float = 0.0
    started: float = 0.0
    saved: int | None = None  # step of the checkpoint on disk

    def restore(self, path: Path, content: dict[str, Any]) -> None:
        checkpoint.restore(path, content, self.step)
        self.before = content["seconds"]
        self.saved = self.step.count
        if content["recipe"] != self.step.recipe.to_dict():
            self.tell({"event": "note", "text": "the checkpoint was made with another recipe"})

    def to(self, steps: int, sample_every: int, checkpoint_every: int) -> dict[str, Any]:
        """Step up to ``steps``; returns the summary."""
        self.started = time.perf_counter()
        try:
            with _interrupt_between_steps() as interrupted:
                while self.step.count < steps and not interrupted.is_set():
                    self._one()
                    done = self.step.count
                    if done % sample_every == 0 and done < steps:
                        self._sample()
                    if done % checkpoint_every == 0 and done < steps:
                        self._save()
                stopped = self.step.count < steps
                if not stopped:
                    self.log.finish()
                    self._sample()
                self._save()
        except Diverged as error:
            kept = (
                f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"
            )
            raise Diverged(f"{error}; {kept}") from None
        if stopped:
            raise KeyboardInterrupt
        return self._summary()

    def _one(self) -> None:
        w, index = self.step.workload, self.step.count
        lazy = {"G_pl": index % w.pl_interval == 0, "D_r1": index % w.r1_interval == 0}
        self.step.step()
        phases = tuple(phase for phase in PHASES if lazy.get(phase, True))
        line = self.log.add(Row(self.step.count, phases, self._seconds()), self.step.loss)
        if line is not None:
            self.tell({"event": "log", **line})

    def _sample(self) -> None:
        path = self.out / f"samples-{self.step.count:06d}.png"
        grid.write_samples(self.step, path, seed=self.seed, truncation=self.truncation)
        self.tell({"event": "sample", "step": self.step.count, "path": str(path)})

    def _save(self) -> None:
        """Write the checkpoint, but only of a state whose losses and weights are all finite."""
        self.log.check()
        bad = self.step.check_finite()
        if bad is not None:
            raise Diverged(bad)
        path, seconds = self.out / "checkpoint.pt", self._seconds()
        try:
            checkpoint.save(path, self.step, seed=self.seed, seconds=seconds, images=_identity(self.images))
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise UserError(f"{path}: cannot be written: {one_line(str(error))}") from error
        self.saved = self.step.count
        self.tell({"event": "checkpoint", "step": self.saved, "path": str(path)})

    def _seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def _summary(self) -> dict[str, Any]:
        summary = {
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


@contextmanager
def _interrupt_between_steps() -> Iterator[threading.Event]:
    """Let Ctrl-C set an event instead of breaking into a step, whose half-done update no checkpoint could hold."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(signum: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    except KeyboardInterrupt:
        raise
    except Exception as error:
        if interrupted.is_set() and not isinstance(error, (UserError, Diverged)):
            raise KeyboardInterrupt from error  # data workers end at Ctrl-C too, and the step in progress misses them
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
