"""Training: exact resume, the loss log, sample grids, checkpoints that are safe, and stopping at NaN and Ctrl-C."""

import json
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.core.errors import UserError
from ladder.images.prepare import ImageSet
from ladder.training import checkpoint, losslog
from ladder.training.losslog import Diverged
from ladder.training.train import Settings, train_model
from stylegan_lite import losses
from stylegan_lite.losses import PHASES
from stylegan_lite.step import TrainingStep
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"pl_interval": 2, "r1_interval": 4}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> ImageSet:
    """22 images: an epoch of 5 batches and a partial one, so that a few steps cross epochs."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for index in range(22):
        pixels = generator.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:06d}.jpg", quality=90)
    return ImageSet(str(folder), 22, "user-images", [])


def go(images: ImageSet, out: Path, steps: int, *, workload=None, recipe=None, on_event=None, **options):
    options = {"device": "cpu", "log_every": 1, "sample_every": 1000, **options}
    settings = Settings(out, steps=steps, **options)
    return train_model(workload or WORKLOAD, recipe or {}, images, settings, on_event)


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]


def losses_of(out: Path) -> list[tuple]:
    return [tuple(line[key] for key in ("step", "images", *PHASES)) for line in lines(out)]


def weights(out: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.load_checkpoint(out / "checkpoint.pt")["state"]
    return {f"{net}.{name}": value for net in ("G", "D", "G_ema") for name, value in state[net].items()}


def refused(images: ImageSet, out: Path, steps: int, **options) -> str:
    with pytest.raises(UserError) as error:
        go(images, out, steps, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def eleven(images, tmp_path_factory) -> Path:
    """A run of 11 steps, which the tests read and copy but do not change."""
    out = tmp_path_factory.mktemp("eleven")
    torch.set_num_threads(1)
    go(images, out, 11)
    return out


# Resuming


@pytest.mark.parametrize("split", [3, 7])  # inside and behind the first epoch; neither ends a lazy interval
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(images, eleven, tmp_path, split):
    go(images, tmp_path, split, sample_every=2)
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt", seed=99)  # a resumed run keeps its own seed
    assert losses_of(tmp_path) == losses_of(eleven)
    expected = weights(eleven)
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())
    assert (tmp_path / "samples-000011.png").read_bytes() == (eleven / "samples-000011.png").read_bytes()


def test_resume_restores_the_data_order(images, tmp_path, monkeypatch):
    seen = []
    step = TrainingStep.step

    def watch(self, lazy=True):
        step(self, lazy)
        seen.append(self.real.clone())

    monkeypatch.setattr(TrainingStep, "step", watch)
    go(images, tmp_path / "whole", 8)
    whole, seen[:] = list(seen), []
    go(images, tmp_path / "parts", 3)
    go(images, tmp_path / "parts", 8, resume=tmp_path / "parts" / "checkpoint.pt")
    assert len({batch.numpy().tobytes() for batch in whole}) == 8
    assert all(torch.equal(a, b) for a, b in zip(whole, seen, strict=True))


def test_lines_behind_the_checkpoint_are_dropped(images, eleven, tmp_path):
    go(images, tmp_path, 5)
    with open(tmp_path / "losses.jsonl", "a") as stream:
        stream.write('{"step": 6, "G_main": 1.0}\n{"step": 7, "G_m')  # killed while it wrote
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt")
    assert losses_of(tmp_path) == losses_of(eleven)


# The log and the grids


def test_log_holds_every_phase_in_the_steps_it_ran_in(eleven):
    log = lines(eleven)
    assert [line["step"] for line in log] == list(range(1, 12))
    assert [line["images"] for line in log] == [4 * k for k in range(1, 12)]
    assert all(line["G_main"] is not None and line["D_main"] is not None for line in log)
    assert [line["step"] for line in log if line["G_pl"] is not None] == [1, 3, 5, 7, 9, 11]
    assert [line["step"] for line in log if line["D_r1"] is not None] == [1, 5, 9]
    assert sorted(line["seconds"] for line in log) == [line["seconds"] for line in log]


def test_a_line_is_the_mean_of_its_steps(images, eleven, tmp_path):
    go(images, tmp_path, 11, log_every=4)
    each, means = lines(eleven), lines(tmp_path)
    assert [line["step"] for line in means] == [4, 8, 11]
    for line, steps in zip(means, (each[:4], each[4:8], each[8:]), strict=True):
        for phase in PHASES:
            ran = [step[phase] for step in steps if step[phase] is not None]
            assert line[phase] == pytest.approx(sum(ran) / len(ran), rel=1e-12)


# Stopping


@pytest.mark.parametrize(
    ("phase", "at", "word"), [("d_main", 6, "NaN"), ("g_pl", 7, "NaN"), ("d_r1", 5, "infinite")]
)
@pytest.mark.parametrize("log_every", [1, 16])
def test_nan_stops_with_phase_and_step_and_keeps_the_good_checkpoint(
    images, tmp_path, monkeypatch, phase, at, word, log_every
):
    real, now = getattr(losses, phase), [0]
    poison = {"NaN": float("nan"), "infinite": float("inf")}[word]
    monkeypatch.setattr(
        losses, phase, lambda *args, **more: real(*args, **more) * (poison if now[0] == at else 1.0)
    )
    step = TrainingStep.step

    def count(self, lazy=True):
        now[0] = self.count + 1
        step(self, lazy)

    monkeypatch.setattr(TrainingStep, "step", count)
    name = {"d_main": "D_main", "g_pl": "G_pl", "d_r1": "D_r1"}[phase]
    with pytest.raises(
        Diverged, match=f"^step {at}: the loss of {name} is {word}; the checkpoint of step 4 is kept$"
    ):
        go(images, tmp_path, 20, sample_every=4, log_every=log_every)
    kept = checkpoint.load_checkpoint(tmp_path / "checkpoint.pt")
    assert kept["state"]["count"] == 4
    assert all(value.isfinite().all() for value in weights(tmp_path).values())
    if log_every == 1:
        assert lines(tmp_path)[-1]["step"] == at - 1


def test_a_bad_weight_behind_a_good_loss_is_not_saved(images, tmp_path, monkeypatch):
    step = TrainingStep.step

    def spoil(self, lazy=True):
        step(self, lazy)
        if self.count == 6:
            next(self.G.parameters()).data.view(-1)[0] = float("inf")

    monkeypatch.setattr(TrainingStep, "step", spoil)
    with pytest.raises(Diverged, match=r"^G\..* NaN or infinite.*step 6; the checkpoint of step 3 is kept$"):
        go(images, tmp_path, 6, sample_every=3)
    assert checkpoint.load_checkpoint(tmp_path / "checkpoint.pt")["state"]["count"] == 3


def test_ctrl_c_ends_after_the_step_with_a_checkpoint_that_resumes_exactly(images, eleven, tmp_path):
    def interrupt(event):
        if event["event"] == "log" and event["step"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        go(images, tmp_path, 11, on_event=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.load_checkpoint(tmp_path / "checkpoint.pt")["state"]["count"] == 4
    go(images, tmp_path, 11, resume=tmp_path / "checkpoint.pt")
    assert losses_of(tmp_path) == losses_of(eleven)


# Checkpoints


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_checkpoint_runs_no_code(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": checkpoint.FORMAT, "state": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.pt", "plain.pt"):
        assert "cannot be loaded safely" in refused(
            images, tmp_path / "out", 5, resume=tmp_path / name
        ).replace("not a checkpoint that can", "cannot")
    assert not (tmp_path / "exploded").exists()


def test_what_is_no_checkpoint_of_ours_is_refused(images, eleven, tmp_path):
    def refusal(content) -> str:
        path = tmp_path / "c.pt"
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        return refused(images, tmp_path / "out", 20, resume=path)

    good = checkpoint.load_checkpoint(eleven / "checkpoint.pt")
    assert "no such checkpoint" in refused(images, tmp_path / "out", 20, resume=tmp_path / "none.pt")
    assert "not a checkpoint" in refusal(b"text")
    assert "not a checkpoint" in refusal((eleven / "checkpoint.pt").read_bytes()[:5000])
    assert "not a checkpoint of `ladder train`" in refusal({"weights": torch.zeros(3)})
    networks = {name: {"w": torch.zeros(3)} for name in ("G", "D", "G_ema")}
    assert "`ladder convert` makes one" in refusal(networks)
    assert "images is missing" in refusal({key: value for key, value in good.items() if key != "images"})
    assert "does not know its step" in refusal({**good, "state": {**good["state"], "count": None}})
    assert "damaged checkpoint" in refusal({**good, "state": {**good["state"], "G": {}}})


def test_a_checkpoint_of_something_else_is_refused(images, eleven, tmp_path):
    path = eleven / "checkpoint.pt"

    def refusal(steps=20, found=images, **options) -> str:
        return refused(found, tmp_path / "out", steps, resume=path, **options)

    assert "another workload: channel_base is 64 there, 32 here" in refusal(
        workload=WORKLOAD | {"channel_base": 32}
    )
    assert "another workload: lr is 0.002 there, 0.1 here" in refusal(workload=WORKLOAD | {"lr": 0.1})
    fewer = ImageSet(images.path, 21, images.source)
    assert "trained on 22 user-images, here are 21 user-images: give the same --data" in refusal(found=fewer)
    assert "is at step 11 already: give --steps above that" in refusal(steps=11)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(images, eleven):
    before = {path.name: path.read_bytes() for path in eleven.iterdir()}
    message = refused(images, eleven, 2)
    assert "holds a training run: go on with --resume" in message
    assert {path.name: path.read_bytes() for path in eleven.iterdir()} == before


def test_a_failed_save_keeps_the_old_checkpoint(images, tmp_path, monkeypatch):
    save, calls = torch.save, []

    def full(content, file):
        calls.append(file)
        if len(calls) >= 2:  # the last state is tried once more
            file.write(b"half")
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        go(images, tmp_path, 6, sample_every=3)
    assert checkpoint.load_checkpoint(tmp_path / "checkpoint.pt")["state"]["count"] == 3
    assert not list(tmp_path.glob(".*"))


# On a GPU


@pytest.mark.gpu
def test_losses_arrive_late_and_whole_from_a_gpu(tmp_path):
    log = losslog.LossLog(tmp_path / "l.jsonl", PHASES, every=3, batch=4, device="cuda")
    value = torch.zeros(4, device="cuda")
    for number in range(1, 8):
        value.fill_(number)  # in place, as a replayed graph writes
        torch.cuda.set_sync_debug_mode("error")  # raises where the CPU would wait for the device
        try:
            line = log.add(losslog.Row(number, PHASES, 0.0), dict(zip(PHASES, value.unbind(), strict=True)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert (line is None) == (number != 6)  # steps 1 to 3 are read when 4 to 6 are sent
    log.finish()
    written = [json.loads(line)["G_main"] for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert written == [2.0, 5.0, 7.0]


@pytest.mark.gpu
def test_training_with_graphs_resumes_on_a_gpu(images, tmp_path):
    recipe = {"set_to_none": True, "cuda_graphs": True, "adam": "capturable"}
    go(images, tmp_path / "a", 8, recipe=recipe, device="cuda")
    go(images, tmp_path / "b", 3, recipe=recipe, device="cuda")
    go(images, tmp_path / "b", 8, recipe=recipe, device="cuda", resume=tmp_path / "b" / "checkpoint.pt")
    for a, b in zip(losses_of(tmp_path / "a"), losses_of(tmp_path / "b"), strict=True):
        for first, second in zip(a, b, strict=True):
            assert first == second or first == pytest.approx(second, rel=1e-2)
