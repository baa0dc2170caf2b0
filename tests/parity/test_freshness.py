"""A cycle draws, fetches and runs what it should, when it should; images on the path are those whose turn it is."""

import contextlib
import dataclasses
import re
import sys
import types
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ladder.core import text
from ladder.parity import freshness, reference
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import TrainingStep, imagecache
from stylegan_lite.step.data import DataFeed, EpochSampler
from tests.support.fake_graphs import Streams
from tests.support.rung_steps import gathered, receipt, small
from tests.support.small import SMALL

torch.set_num_threads(1)
CACHED = {"cached_images": True, "uint8_input": True}
WHOLE = [("G_main", "D_main"), ("G_main", "G_pl", "D_main"), ("G_main", "G_pl", "D_main", "D_r1")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven images: an epoch of two batches of four ends twice on the way, and leaves three over."""
    place, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in range(11):
        image = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(image).save(place / f"{name:02}.jpg")
    return place


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagecache, "CACHE", tmp_path / "bytes")


def made(whole: bool, recipe: dict | None = None, **workload) -> TrainingStep:
    """A step that has not been prepared: nothing of it is computed here."""
    step = small(recipe, **workload)
    step.recipe = dataclasses.replace(step.recipe, whole_step_graph=whole)
    return step


both = pytest.mark.parametrize("whole", [False, True], ids=["alone", "whole"])


# The order of a cycle


@both
@pytest.mark.parametrize(
    "intervals", [{}, {"pl_interval": 1, "r1_interval": 2}, {"pl_interval": 16}], ids=str
)
def test_a_cycle_as_it_should_be_has_no_problems(whole: bool, intervals: dict) -> None:
    step = made(whole, **intervals)
    before = dict(vars(step)), dict(vars(step.feed))
    assert freshness.check_schedule(step) == [] and step.count == 0
    assert (dict(vars(step)), dict(vars(step.feed))) == before
    assert not any("fill" in vars(inputs) for inputs in step.inputs.values())
    if whole:
        assert step.together == freshness.list_kinds(step)


def test_kinds_of_steps_follow_from_the_intervals() -> None:
    assert freshness.list_kinds(small()) == sorted(WHOLE)
    assert [freshness.list_phases(small(), k) for k in (0, 1, 4)] == [WHOLE[2], WHOLE[0], WHOLE[1]]


def without_draws(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainingStep, "run_phase", lambda self, phase: self.replay(phase))
    patch.setattr(TrainingStep, "run", lambda self, due: _run_without_draws(self, due))


def _run_without_draws(step: TrainingStep, due: tuple[str, ...]) -> None:
    if step.recipe.whole_step_graph:
        step.replay_together(due)
    else:
        for phase in due:
            step.run_phase(phase)


def draws_late(patch: pytest.MonkeyPatch) -> None:
    def run_phase(self, phase):
        self.replay(phase)
        self._fill(phase)

    def run(self, due):
        if self.recipe.whole_step_graph:
            self.replay_together(due)
        for phase in due:
            self._fill(phase) if self.recipe.whole_step_graph else self.run_phase(phase)

    patch.setattr(TrainingStep, "run_phase", run_phase)
    patch.setattr(TrainingStep, "run", run)


def without_images(patch: pytest.MonkeyPatch, late: bool = False) -> None:
    def step(self, index, lazy):
        self.run(self.phases(index, lazy))
        if late:
            self.feed.next()
        self.feed.prefetch()
        self.count += 1

    patch.setattr(TrainingStep, "_step", step)


def images_late(patch: pytest.MonkeyPatch) -> None:
    without_images(patch, late=True)


def phases_are(choose):
    honest = TrainingStep.phases

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(TrainingStep, "phases", lambda self, k, lazy=True: choose(honest, self, k, lazy))

    return plant


def bunched(honest, step, index, lazy):
    path = ("G_pl",) if lazy and index < 4 else ()
    return ("G_main", *path, "D_main", *(("D_r1",) if lazy and index == 0 else ()))


PLANTS = {
    "no numbers are drawn": (without_draws, "draws numbers for G_main 0 times, expected 16"),
    "numbers are drawn when a phase has run": (draws_late, "step 1 of a cycle: .* where numbers for G_main"),
    "no images are fetched": (without_images, "asks for the next batch 0 times, expected 16"),
    "images are fetched when the step has run": (
        images_late,
        "step 1 of a cycle: .* where the next batch is due",
    ),
    "phases in reverse order": (
        phases_are(lambda honest, *asked: tuple(reversed(honest(*asked)))),
        "step 1 of a cycle: .* is due",
    ),
    "all of G_pl in the first four steps": (phases_are(bunched), "step 2 of a cycle: .* is due"),
    "a cycle without lazy phases has them": (
        phases_are(lambda honest, step, index, lazy: honest(step, index, True)),
        "a cycle without lazy phases runs G_pl 4 times, expected 0",
    ),
    "a cycle without lazy phases leaves out D_main": (
        phases_are(lambda honest, step, k, lazy: honest(step, k, lazy) if lazy else ("G_main",)),
        "a cycle without lazy phases runs D_main 0 times, expected 16",
    ),
}


@both
@pytest.mark.parametrize("plant", PLANTS)
def test_a_cycle_that_goes_otherwise_is_found(
    plant: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug, said = PLANTS[plant]
    bug(monkeypatch)
    problems = freshness.check_schedule(made(whole))
    assert problems and re.search(said, problems[0]), problems
    assert all(text.TEXT.fullmatch(line) for line in problems)


def test_what_was_planted_in_a_step_is_still_there_afterwards() -> None:
    """A fault that went away before parity measures would never be found."""
    step = made(True)
    step.replay = step.replay_together = step.feed.next = step.inputs["G_pl"].fill = planted = lambda *_: None
    with pytest.raises(ZeroDivisionError), freshness.record_calls(step, []):
        raise ZeroDivisionError
    assert freshness.check_schedule(step) == []
    assert step.replay is step.replay_together is step.feed.next is step.inputs["G_pl"].fill is planted
    with reference.inputs_are_ours(step):
        assert step.inputs["G_pl"].fill is not planted
    assert step.inputs["G_pl"].fill is planted and "fill" not in vars(step.inputs["G_main"])


def test_a_captured_step_has_a_graph_of_each_kind() -> None:
    step = made(True)
    step.graphs = {"+".join(kind): None for kind in WHOLE[:2]}
    assert freshness.check_schedule(step) == ["no graph of G_main+G_pl+D_main+D_r1: it runs eagerly"]


# Images


LOADERS = {
    "plain": {},
    "bytes": {"uint8_input": True},
    "workers": {"workers": 2, "persistent_workers": True, "uint8_input": True},
    "cached": {"cached_images": True},
    "cached, workers": CACHED | {"workers": 2, "persistent_workers": True},
    "copied ahead": {"async_copy": True, "uint8_input": True},
    "prefetch stream": CACHED | {"async_copy": True, "prefetch_stream": True},
    "prefetch stream, workers": CACHED
    | {"async_copy": True, "prefetch_stream": True, "workers": 1, "drop_last": True},
    "decoded on the GPU": {"gpu_decode": True, "uint8_input": True},
}


@contextlib.contextmanager
def feeding(recipe: dict, patch: pytest.MonkeyPatch, data: Path | None, **more):
    """What there is of a step: its loader, with streams and nvJPEG as a CPU can have them."""
    Streams(patch)
    patch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    io = types.SimpleNamespace(decode_jpeg=_decode, ImageReadMode=types.SimpleNamespace(RGB="RGB"))
    patch.setitem(sys.modules, "torchvision", types.SimpleNamespace(io=io))
    patch.setitem(sys.modules, "torchvision.io", io)
    workload = Workload.from_dict(SMALL | {"data": None if data is None else str(data)} | more)
    found, real = Recipe(**recipe), torch.zeros(4, 3, 16, 16)
    feed = DataFeed(workload, found, real, seed=5)
    feed.prepare()
    try:
        yield types.SimpleNamespace(workload=workload, recipe=found, real=real, feed=feed, seed=5)
    finally:
        feed.close()


def _decode(files, mode, device):
    images = [np.asarray(Image.open(BytesIO(f.numpy().tobytes())).convert(mode)) for f in files]
    return [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images]


@pytest.mark.covering
@pytest.mark.parametrize("flips", [True, False])
@pytest.mark.parametrize("files", [True, False], ids=["files", "random"])
@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader_gives_the_images_whose_turn_it_is(
    loader: str, files: bool, flips: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with feeding(LOADERS[loader], monkeypatch, folder if files else None, flips=flips) as step:
        for _ in range(1 + files):  # the second time from where the first one ended
            assert freshness.check_images(step) == []
            step.feed.next()
            getattr(step.feed, "prefetch", lambda: None)()


def each_twice(step):
    honest = type(step.feed.dataset)

    class Twice(honest):
        def __getitems__(self, keys):
            return super().__getitems__([keys[k & ~1] for k in range(len(keys))])

    step.feed.dataset.__class__ = Twice


def stale(choose):
    """Batches are made of those before: `choose` gets all so far."""

    def plant(step):
        batches, write = [], step.feed._write

        def stale_write(batch, to):
            batches.append(batch.clone())
            write(choose(batches), to)

        step.feed._write = stale_write

    return plant


one_is_new = stale(lambda batches: torch.cat([batches[-1][:1], batches[0][1:]]))
two_in_turn = stale(lambda batches: batches[(len(batches) - 1) % 2])


def to_the_left(step):
    step.feed._write = lambda batch, to: to.copy_(batch).div_(255).sub_(1)


def a_step_too_dark(step):
    write = step.feed._write
    step.feed._write = lambda batch, to: write(batch.clamp(1) - 1, to)


def without_flips(step):
    step.feed.sampler.flips = False


def next_one_too_early(step):
    """The side stream writes where the step still reads."""
    prefetch = step.feed.prefetch

    def early():
        prefetch()
        step.real.copy_(step.feed.staged)

    step.feed.prefetch = early


IMAGE_FAULTS = [
    *((loader, plant, False) for loader in ("cached, workers", "prefetch stream")
      for plant in (each_twice, one_is_new, two_in_turn, to_the_left, a_step_too_dark, without_flips)),
    ("prefetch stream", next_one_too_early, False),
    ("decoded on the GPU", one_is_new, True),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize(("loader", "plant", "files"), IMAGE_FAULTS)
def test_other_images_are_found(plant, loader, files, folder, monkeypatch) -> None:
    with feeding(LOADERS[loader], monkeypatch, folder if files else None) as step:
        plant(step)
        (problem,) = freshness.check_images(step)
        assert re.fullmatch(r"image \d of batch [1-6] is not the one that was drawn: off by \S+", problem)
        assert text.TEXT.fullmatch(problem)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda self: iter([(k // 2, False) for k in range(self.length)]), "does not visit each image once"),
        (lambda self: iter([(k, False) for k in range(self.length)]), "in the same order"),
    ],
)
def test_an_order_that_is_none_is_found(order, said, folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochSampler, "__iter__", order)
    with feeding({}, monkeypatch, folder) as step:
        assert said in freshness.check_images(step)[0]


# The receipt of a cycle's images


def test_a_cycle_that_asks_for_no_images_is_no_cached_loader(
    monkeypatch: pytest.MonkeyPatch, refused
) -> None:
    assert receipt("cached_uint8", gathered(small(CACHED), steps=4)).engaged
    without_images(monkeypatch)
    seen = gathered(small(CACHED), steps=4)
    assert seen["data"]["mapped"] == seen["data"]["fetched"] == 0
    refused(
        "cached_uint8", seen, "images read from the memory map: 0", sabotage="a cycle never asks for images"
    )


def test_a_cycle_that_asks_twice_is_none_either() -> None:
    def twice(step):
        step.feed.next = lambda ask=step.feed.next: (step.feed._fetch(), ask())

    found = receipt("cached_uint8", gathered(small(CACHED), twice, steps=4))
    assert found.reason == "not engaged: batches that a step asks for: 2"
