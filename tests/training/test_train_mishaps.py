"""What ends a training before its time: the last whole step is saved, and one line says why."""

# ruff: noqa: F401, F811 (fixtures of another module)

import os
import signal
from contextlib import contextmanager

import pytest
import torch

from ladder.core import stopping
from ladder.core.errors import UserError
from ladder.training import checkpoint, mishaps
from ladder.training.losslog import Diverged
from stylegan_lite import losses
from stylegan_lite.losses import PHASES
from stylegan_lite.step import TrainingStep
from tests.training.test_train import eleven, go, images, lines, losses_of, one_thread, refused, weights

OOM = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"
)


@contextmanager
def set_to(number: int, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def at(step: int, do):
    """Return a listener that acts when the line of a step is written."""
    return lambda event: do() if event["event"] == "log" and event["step"] == step else None


def same_as_unbroken(out, unbroken) -> bool:
    expected = weights(unbroken)
    return losses_of(out) == losses_of(unbroken) and all(
        torch.equal(value, expected[name]) for name, value in weights(out).items()
    )


# Signals


def nothing(*_) -> None:
    """A handler that lets a signal pass which should have been minded."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_as_ctrl_c_does_however_often_it_comes(images, eleven, tmp_path, number):
    with set_to(number, nothing):
        with pytest.raises(KeyboardInterrupt):
            go(images, tmp_path, 11, on_event=at(4, lambda: [os.kill(os.getpid(), number) for _ in range(3)]))
        assert signal.getsignal(number) is nothing
    assert checkpoint.load_checkpoint(tmp_path / "checkpoint.pt")["state"]["count"] == 4
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt")
    assert same_as_unbroken(tmp_path, eleven)


# Errors of the machine


def break_in(monkeypatch, phase: str, number: int, error: Exception) -> None:
    """Let a phase of one step fail, after those before it have changed their network."""
    real, step, now = getattr(losses, phase), TrainingStep.step, [0]

    def failing(*args, **more):
        if now[0] == number:
            raise error
        return real(*args, **more)

    def count(self, lazy=True):
        now[0] = self.count + 1
        step(self, lazy)

    monkeypatch.setattr(losses, phase, failing)
    monkeypatch.setattr(TrainingStep, "step", count)


@pytest.mark.covering
@pytest.mark.parametrize("log_every", [1, 16])
@pytest.mark.parametrize(
    ("phase", "error", "words"),
    [
        ("g_main", MemoryError(), "the memory of this machine is full"),
        ("d_main", OOM, "the memory of the GPU is full (CUDA out of memory."),
        ("d_r1", RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "the memory of this ma"),
        ("d_main", OSError(24, "Too many open files"), "too many open files"),
    ],
)  # fmt: skip
def test_the_last_whole_step_is_saved_when_memory_is_full(
    images, eleven, tmp_path, monkeypatch, phase, error, words, log_every
):
    with monkeypatch.context() as patch:
        break_in(patch, phase, 5, error)
        said = refused(images, tmp_path, 11, log_every=log_every)
    assert f"training stopped after step 4: {words}" in said
    assert said.endswith(f"go on from step 4 with --resume {tmp_path / 'checkpoint.pt'}")
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt")
    if log_every == 1:
        assert same_as_unbroken(tmp_path, eleven)
    else:
        assert losses_of(tmp_path) == losses_of(eleven)  # lines of steps that had none yet, too


def test_a_state_that_is_not_finite_is_not_saved_when_memory_is_full(images, tmp_path, monkeypatch):
    def spoil(event):
        if event["event"] == "log" and event["step"] == 4:
            next(made[0].G.parameters()).data.view(-1)[0] = float("nan")

    made, prepare = [], TrainingStep.prepare
    monkeypatch.setattr(TrainingStep, "prepare", lambda self: made.append(self) or prepare(self))
    break_in(monkeypatch, "g_main", 5, MemoryError())
    with pytest.raises((UserError, Diverged)):
        go(images, tmp_path, 11, on_event=spoil)
    assert not (tmp_path / "checkpoint.pt").exists()


# The log of a run that was stopped inside an interval


def log(out) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines(out)]


@pytest.mark.covering
@pytest.mark.parametrize(("every", "then"), [(4, 4), (8, 4), (2, 5), (16, 16)])
@pytest.mark.parametrize("stop", ["Ctrl-C", "the end"])
def test_a_line_is_the_mean_of_all_its_steps_whenever_the_run_stopped(
    images, eleven, tmp_path, every, then, stop
):
    """At step 6: R1 ran in steps 1 and 5 alone. ``--log-every`` may change."""
    if stop == "the end":
        go(images, tmp_path, 6, log_every=every)
    else:
        with pytest.raises(KeyboardInterrupt):
            interrupted_after(6, images, tmp_path, log_every=every)
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt", log_every=then)
    found, each = log(tmp_path), log(eleven)
    begins = [0, *(line["step"] for line in found)]
    assert begins[-1] == 11
    for line, first in zip(found, begins, strict=False):
        for phase in PHASES:
            ran = [s[phase] for s in each[first : line["step"]] if s[phase] is not None]
            assert line[phase] == (pytest.approx(sum(ran) / len(ran), rel=1e-12) if ran else None)
    seconds = [line["seconds"] for line in lines(tmp_path)]
    assert seconds == sorted(seconds)


def interrupted_after(number: int, images, out, **options):
    real = TrainingStep.step

    def step(self, lazy=True):
        real(self, lazy)
        if self.count == number:
            os.kill(os.getpid(), signal.SIGINT)

    TrainingStep.step = step
    try:
        go(images, out, 11, **options)
    finally:
        TrainingStep.step = real


# Data workers


def worker_of(step: TrainingStep) -> int:
    return step.feed.loader._iterator._workers[0].pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_data_worker_that_is_ended_costs_no_step(images, eleven, tmp_path, monkeypatch, number):
    real, recipe = TrainingStep.step, {"workers": 1, "persistent_workers": True}

    def step(self, lazy=True):
        real(self, lazy)
        if self.count == 4:
            os.kill(worker_of(self), number)
            os.waitid(os.P_PID, worker_of(self), os.WEXITED | os.WNOWAIT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "step", step)
        said = refused(images, tmp_path, 40, recipe=recipe)
    assert "step 4: a data worker " in said and "ended" in said and "go on from step" in said
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt")
    assert same_as_unbroken(tmp_path, eleven)
