"""Real images: a folder of prepared files, decoded, flipped and batched as the recipe says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from stylegan_lite.config import ConfigError, Recipe
from stylegan_lite.step import dataworkers
from stylegan_lite.step.gpudecode import UNREADABLE, Decoder, JpegFiles, refusal, shown
from stylegan_lite.step.imagecache import CachedImages, as_batch, counter

SUFFIXES = (".jpg", ".jpeg", ".png")


class ImageFolder(Dataset):
    """A data set with ``dataset[index, flip]`` -> [3, R, R]: uint8 with ``uint8_input``, else float32 in [-1, 1]."""

    def __init__(self, path: str, resolution: int, as_uint8: bool) -> None:
        folder = Path(path)
        try:
            self.files = sorted(str(f) for f in folder.iterdir() if f.suffix.lower() in SUFFIXES)
        except (OSError, ValueError) as error:  # ValueError: a NUL in its name
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"workload: data: no folder of images can be read at {path!r}: {why}") from None
        self.resolution = resolution
        self.as_uint8 = as_uint8
        self.decoded = counter()
        if not self.files:
            raise ConfigError(f"workload: data: no JPEG or PNG files in the image folder {folder.name!r}")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: tuple[int, bool]) -> Tensor:
        index, flip = key
        pixels = self.decode(index)
        return _finish(torch.from_numpy(pixels.transpose(2, 0, 1).copy()), flip, self.as_uint8)

    def decode(self, index: int) -> np.ndarray:
        """Return one file as [R, R, 3] uint8.

        Raises ConfigError for a file that is damaged, missing or of another size, in one line with its name.
        """
        self.decoded += 1
        file = self.files[index]
        try:
            with Image.open(file) as image:
                pixels = np.asarray(image.convert("RGB"))
        except UNREADABLE as error:
            raise refusal(file, error) from None
        if pixels.shape[:2] != (self.resolution, self.resolution):
            h, w = pixels.shape[:2]
            raise ConfigError(
                f"workload: data: {shown(file)} is {w}x{h}, expected {self.resolution}x{self.resolution}"
            )
        return pixels

    def identity(self) -> tuple[str, list[str]]:
        """Return the folder, and each file's name, size and time."""
        lines = []
        for file in self.files:
            try:
                status = Path(file).stat()
            except OSError as error:
                raise refusal(file, error) from None
            lines.append(f"{Path(file).name} {status.st_size} {status.st_mtime_ns}")
        return str(Path(self.files[0]).parent.resolve()), lines

    def tally(self) -> dict[str, int]:
        """Return how often an image was decoded, by this process and its workers."""
        return {"decoded": int(self.decoded)}


class RandomImages(Dataset):
    """A data set of 64 images of noise, or a batch of them, made once in memory. For tests of
    everything but data loading.
    """

    def __init__(self, resolution: int, as_uint8: bool, batch: int = 1) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (max(64, batch), 3, resolution, resolution)
        self.images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        self.as_uint8, self.resolution = as_uint8, resolution

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, bool]) -> Tensor:
        return _finish(self.images[key[0]], key[1], self.as_uint8)

    def decode(self, index: int) -> np.ndarray:
        """Return one image as [R, R, 3] uint8."""
        return self.images[index].permute(1, 2, 0).numpy()

    def identity(self) -> tuple[str, list[str]]:
        """Return a constant: the images are the same everywhere and always."""
        return "random images", []

    def tally(self) -> dict[str, int]:
        """Return no counts: nothing is decoded."""
        return {"decoded": 0}


def _finish(pixels: Tensor, flip: bool, as_uint8: bool) -> Tensor:
    pixels = pixels.flip(2) if flip else pixels
    return pixels if as_uint8 else pixels.float() / 127.5 - 1


class EpochSampler(Sampler):
    """A seeded permutation for each epoch, with horizontal flips drawn in the main process: (index, flip) pairs.

    Order and flips are a function of seed and epoch alone, so ``skip`` resumes exactly, with any number of ranks. Each
    rank takes its share of every total batch. All leave out the same rest of the epoch.
    """

    def __init__(
        self, length: int, seed: int, flips: bool, *, rank: int = 0, ranks: int = 1, batch: int = 1
    ) -> None:
        self.length, self.seed, self.flips = length, seed, flips
        self.rank, self.ranks = rank, ranks
        self.used = (
            length if ranks == 1 else length // batch * batch
        )  # images of an epoch; `batch` is the total
        self.epoch = 0
        self.skip = 0

    def __len__(self) -> int:
        return self.used // self.ranks

    def __iter__(self) -> Iterator[tuple[int, bool]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        flips = (torch.rand(self.length, generator=generator) < 0.5).tolist()
        for index, flip in list(zip(order, flips, strict=True))[
            self.skip + self.rank : self.used : self.ranks
        ]:
            yield index, flip and self.flips


class DataFeed:
    """The filler of the static ``real`` buffer [N, 3, R, R]: one batch a step, epoch after epoch.

    A partial batch at an epoch's end is discarded whatever ``drop_last`` says: minibatch standard deviation needs whole
    groups. With ``async_copy`` batches cross the bus on a side stream, one ahead. With ``prefetch_stream`` they are
    also normalized there, into one of two buffers. The computing stream then only copies a buffer into ``real``.
    A rank has the feed of its own samples, and ``real`` holds those.
    """

    def __init__(
        self, workload: Any, recipe: Recipe, real: Tensor, seed: int, *, rank: int = 0, ranks: int = 1
    ) -> None:
        if workload.data is None:
            dataset = RandomImages(workload.resolution, recipe.uint8_input, workload.batch)
        else:
            dataset = ImageFolder(workload.data, workload.resolution, recipe.uint8_input)
        if len(dataset) < workload.batch:
            raise ConfigError(
                f"workload: data: {len(dataset)} images are fewer than one batch of {workload.batch}"
            )
        self.dataset = CachedImages(dataset, recipe.uint8_input) if recipe.cached_images else dataset
        self.decode: Decoder | None = None
        if recipe.gpu_decode:
            self.dataset, self.decode = JpegFiles(dataset), Decoder(real.device, workload.resolution)
        self.real, self.batch, self.recipe = real, workload.batch // ranks, recipe
        self.total = workload.batch
        share = {"rank": rank, "ranks": ranks, "batch": workload.batch}
        self.sampler = EpochSampler(len(dataset), seed, workload.flips, **share)
        self.loader = DataLoader(
            self.dataset,
            self.batch,
            sampler=self.sampler,
            num_workers=recipe.workers,
            pin_memory=recipe.pin_memory,
            persistent_workers=recipe.persistent_workers,
            prefetch_factor=recipe.prefetch_factor,
            drop_last=recipe.drop_last,
            worker_init_fn=dataworkers.begin,
            collate_fn=as_batch if recipe.cached_images or recipe.gpu_decode else None,
            # Without it each epoch draws from the latents' generator.
            generator=torch.Generator().manual_seed(seed),
        )
        self.iterator: Iterator[Tensor] | None = None
        self.consumed = 0  # whole total batches of this epoch already in `real`
        self.epoch = 0
        self.staged: Tensor | None = None
        if recipe.async_copy:
            self.stream = torch.cuda.Stream()
            self.copied = torch.cuda.Event()
        if recipe.prefetch_stream:
            self.buffers = [torch.empty_like(real), torch.empty_like(real)]
            self.read = [torch.cuda.Event(), torch.cuda.Event()]  # the step has copied out of that buffer
            self.turn = 0
            # That memory may still be in use on the other stream.
            self.stream.wait_stream(torch.cuda.current_stream())

    def prepare(self) -> None:
        """Make or find the files that batches are read from. Other recipes have nothing to do."""
        if self.recipe.cached_images:
            self.dataset.prepare()

    @property
    def capacity(self) -> int:
        """Return the batches that workers, pinning and the copy ahead may hold ready."""
        recipe = self.recipe
        return recipe.workers * (recipe.prefetch_factor or (2 if recipe.workers else 0)) + recipe.async_copy

    def next(self) -> None:
        """Put the next batch into ``real``."""
        if self.recipe.async_copy:
            self._next_async()
        else:
            batch = self._fetch()
            self._write(self.decode(batch) if self.decode else batch, self.real)
        self.consumed += 1
        if self.consumed == self.sampler.length // self.total:
            self.consumed, self.epoch = 0, self.epoch + 1

    def _next_async(self) -> None:
        if self.staged is None:
            self._stage()
        compute = torch.cuda.current_stream()
        compute.wait_event(self.copied)
        if self.recipe.prefetch_stream:  # The step calls `prefetch` once its work is launched.
            self.real.copy_(self.staged)
            self.read[self.turn].record(compute)
            self.staged = None
            return
        self.staged.record_stream(compute)
        self._write(self.staged, self.real)
        self._stage()

    def prefetch(self) -> None:
        """Start on the next batch beside the step that has just been launched. Other recipes have nothing to do."""
        if self.recipe.prefetch_stream and self.staged is None:
            self._stage()

    def _stage(self) -> None:
        batch = self._fetch()
        with torch.cuda.stream(self.stream):
            if self.decode:
                self.staged = self.decode(batch)
            else:
                self.staged = batch.to(self.real.device, non_blocking=True)
            # The bytes live and die on this stream, the two buffers are kept.
            if self.recipe.prefetch_stream:
                self.turn = 1 - self.turn
                self.stream.wait_event(self.read[self.turn])
                self._write(self.staged, self.buffers[self.turn])
                self.staged = self.buffers[self.turn]
            self.copied.record()

    @staticmethod
    def _write(batch: Tensor, to: Tensor) -> None:
        if batch.dtype == torch.uint8:
            batch = batch.to(to.device)
            to.copy_(batch).div_(127.5).sub_(1)
        else:
            to.copy_(batch)

    def _fetch(self) -> Tensor:
        while True:
            if self.iterator is None:
                self.iterator = dataworkers.started(self.loader)
            try:
                batch = next(self.iterator, None)
            except ConfigError as error:
                # A worker's error has its traceback as text, which ends with the line.
                raise ConfigError(str(error).strip().rpartition("ConfigError: ")[2]) from None
            if batch is None:
                self.iterator = None
                self.sampler.epoch += 1
                self.sampler.skip = 0
            elif len(batch) == self.batch:
                return batch

    def state_dict(self) -> dict[str, int]:
        """Return the position in the data: whole epochs, then images of the current epoch, of all ranks."""
        return {"epoch": self.epoch, "images": self.consumed * self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue behind the images that ``state`` has seen. Older states count batches."""
        self.close()
        self.epoch = state["epoch"]
        self.consumed = state["consumed"] if "consumed" in state else state["images"] // self.total
        self.sampler.epoch, self.sampler.skip = self.epoch, self.consumed * self.total

    def close(self) -> None:
        """End the workers."""
        self.iterator = None
        self.staged = None
        if getattr(self.loader, "_iterator", None) is not None:
            self.loader._iterator._shutdown_workers()
            self.loader._iterator = None


class _Numbered(Dataset):
    """A pair's own batches by number."""

    def __init__(self, pair: Any) -> None:
        self.batch = pair.batch

    def __len__(self) -> int:
        return 2**40

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self.batch(number)


class OwnBatches:
    """The filler of the buffers of a pair's own batches: ``pair.batch(number)`` a step, or of nothing.

    With ``workers`` other processes make them. With ``async_copy`` they cross the bus on a side stream, one ahead. A
    rank takes its samples of every batch.
    """

    def __init__(
        self, pair: Any, recipe: Recipe, data: dict[str, Tensor], seed: int, *, rank: int = 0, ranks: int = 1
    ) -> None:
        self.pair, self.recipe, self.data = pair, recipe, data
        self.rank, self.ranks = rank, ranks
        self.first, self.number = seed * 1_000_003, 0
        self.loader: DataLoader | None = None
        self.iterator: Iterator[dict[str, Tensor]] | None = None
        self.fetched = 0  # batches taken from the pair, or from its workers
        self.staged: dict[str, Tensor] | None = None
        self.ahead = bool(data) and recipe.async_copy
        if self.ahead:
            self.stream = torch.cuda.Stream()
            self.copied = torch.cuda.Event()

    def prepare(self) -> None:
        """Do nothing: there is no cache."""

    @property
    def capacity(self) -> int:
        """Return the batches that workers and the copy ahead may hold ready."""
        recipe = self.recipe
        held = recipe.workers * (recipe.prefetch_factor or (2 if recipe.workers else 0)) + self.ahead
        return held if self.data else 0

    def next(self) -> None:
        """Put the next batch into its buffers."""
        if not self.ahead:
            self.load(self._fetch())
        else:
            if self.staged is None:
                self._stage()
            assert self.staged is not None
            compute = torch.cuda.current_stream()
            compute.wait_event(self.copied)
            for name, buffer in self.data.items():
                self.staged[name].record_stream(compute)
                buffer.copy_(self.staged[name])
            self._stage()
        self.number += 1

    def _stage(self) -> None:
        batch = self._fetch()
        with torch.cuda.stream(self.stream):
            self.staged = {
                name: self._share(batch[name]).to(buffer.device, non_blocking=True)
                for name, buffer in self.data.items()
            }
            self.copied.record()

    def load(self, batch: dict[str, Tensor]) -> None:
        """Copy a whole batch in."""
        for name, buffer in self.data.items():
            buffer.copy_(self._share(batch[name]))

    def _share(self, value: Tensor) -> Tensor:
        return value[self.rank :: self.ranks] if self.ranks > 1 else value

    def _fetch(self) -> dict[str, Tensor]:
        if not self.data:
            return {}
        number = self.first + self.fetched
        self.fetched += 1
        if not self.recipe.workers:
            return self.pair.batch(number)
        if self.iterator is None:
            recipe = self.recipe
            self.loader = DataLoader(
                _Numbered(self.pair),
                batch_size=None,
                sampler=itertools.count(number),  # type: ignore[arg-type]
                num_workers=recipe.workers,
                pin_memory=recipe.pin_memory,
                persistent_workers=recipe.persistent_workers,
                prefetch_factor=recipe.prefetch_factor,
                worker_init_fn=dataworkers.begin,
                generator=torch.Generator().manual_seed(0),
            )
            self.iterator = dataworkers.started(self.loader)
        return next(self.iterator)

    def prefetch(self) -> None:
        """Do nothing: a batch ahead is fetched with the one before it."""

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches so far."""
        return {"batches": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue behind the batches that ``state`` has seen."""
        self.close()
        self.number = self.fetched = state["batches"]

    def close(self) -> None:
        """End the workers."""
        self.iterator = self.staged = None
        if self.loader is not None and getattr(self.loader, "_iterator", None) is not None:
            self.loader._iterator._shutdown_workers()
        self.loader = None


def make_feed(
    workload: Any,
    recipe: Recipe,
    real: Tensor | None,
    seed: int,
    pair: Any,
    data: dict[str, Tensor],
    **ranks: int,
) -> Any:
    """Return what fills the buffers of images, or of a pair's own batches."""
    if real is not None:
        return DataFeed(workload, recipe, real, seed, **ranks)
    return OwnBatches(pair, recipe, data, seed, **ranks)
