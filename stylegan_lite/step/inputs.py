"""Static input buffers: every number that a phase consumes, allocated once and refilled in place.

One flat buffer of normals is filled by one kernel and sliced into a phase's inputs, and so are uniform numbers. The
buffers are filled on the device for timing, and loaded for parity checks. A captured graph sees both through the same
addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from stylegan_lite.step.pair import Declared, Input

_ALIGN = 64  # elements; keeps every slice on a 256-byte boundary
Value: TypeAlias = "Tensor | list[Tensor]"


class Values:
    """The tensors of one phase, or of a part of its batch, by attribute and by item.

    Attributes:
        batch: samples of the batch, or of the part.
    """

    def __init__(self, batch: int, tensors: Mapping[str, Value]) -> None:
        self.batch = batch
        for name, value in tensors.items():
            setattr(self, name, value)

    if TYPE_CHECKING:  # the names that a pair declares

        def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class PhaseInputs(Values):
    """The inputs of one phase. Every declared name is an attribute.

    Attributes:
        declared: the inputs as the pair declares them, of the total batch.
        normal: the flat buffer behind all normal numbers.
        whole: the inputs of the total batch, if several ranks share it; this rank takes its samples of them.
    """

    def __init__(
        self,
        declared: Declared,
        *,
        device: str,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
        rank: int = 0,
        ranks: int = 1,
        data: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.whole: PhaseInputs | None = None
        self.declared = declared
        how = {"device": device, "dtype": dtype, "memory_format": memory_format}
        if ranks > 1:
            self.whole = PhaseInputs(declared, **how, data=data)
        here = {name: _each(each, lambda one: _share(one, ranks)) for name, each in declared.items()}
        drawn = {source: [each for each in _flat(here) if each.source == source] for source in DRAWN}
        starts, total = _places(drawn["normal"], _ALIGN)
        self.normal = torch.zeros(total, device=device, dtype=dtype)
        self._uniform = torch.zeros(
            sum(math.prod(each.shape) for each in drawn["uniform"]), device=device, dtype=dtype
        )
        self._labels: list[tuple[Tensor, int]] = []
        self._how = (starts, _places(drawn["uniform"], 1)[0], memory_format)
        views = iter([*self._carve(self.normal, self._uniform, here)])
        tensors: dict[str, Value] = {}
        for name, each in here.items():
            made = [self._allocate(one, name, views, data, device, dtype) for one in _flat({name: each})]
            tensors[name] = made[0] if isinstance(each, Input) else made
        batch = max((each.batch for each in _flat(here)), default=0)
        super().__init__(batch, tensors)
        if self.whole is not None:
            self.share = slice(rank, None, ranks)  # of the samples
            self.index = self._find_places(here, rank, ranks)

    def _allocate(
        self, one: Input, name: str, views: Any, data: Any, device: str, dtype: torch.dtype
    ) -> Tensor:
        if one.source in ("normal", "uniform"):
            return next(views)
        if one.source in ("images", "batch"):
            return data[one.source if one.source == "images" else name]
        if one.source == "index":
            return torch.arange(math.prod(one.shape), device=device).view(one.shape)
        labels = torch.zeros(one.shape, device=device, dtype=torch.int64)
        self._labels.append((labels, one.classes))
        return labels

    def _carve(self, normal: Tensor, uniform: Tensor, here: Declared) -> list[Tensor]:
        """Return the drawn inputs as views of flat buffers, in the order of their declaration."""
        starts = {"normal": iter(self._how[0]), "uniform": iter(self._how[1])}
        flats = {"normal": normal, "uniform": uniform}
        return [
            _view(flats[each.source], next(starts[each.source]), each.shape, self._how[2])
            for each in _flat(here)
            if each.source in starts
        ]

    def _find_places(self, here: Declared, rank: int, ranks: int) -> Tensor:
        """Return where in the total batch's flat buffer each number of this rank's buffer is, int64."""
        assert self.whole is not None
        index = torch.zeros_like(self.normal, dtype=torch.int64)
        nothing = torch.zeros_like(self._uniform)
        mine = self._carve(index, nothing, here)
        counted = torch.arange(self.whole.normal.numel(), device=index.device)
        theirs = self.whole._carve(counted, self.whole._uniform, self.declared)
        wanted = [each for each in _flat(self.declared) if each.source in ("normal", "uniform")]
        for one, own, all_of_them in zip(wanted, mine, theirs, strict=True):
            if one.source == "normal":
                own.copy_(take_samples(all_of_them, one.times, slice(rank, None, ranks)))
        return index

    @property
    def is_drawn(self) -> bool:
        """Return whether any of it is drawn anew."""
        return bool(self.normal.numel() or self._uniform.numel() or self._labels)

    def fill(self) -> None:
        """Draw everything anew from the device's default generator. Asynchronous, a kernel for each kind of numbers.

        A rank draws the numbers of the total batch and takes its own, so all ranks' generators stay equal.
        """
        if self.whole is not None:
            self.whole.fill()
            self.load_share(self.whole)
            return
        if self.normal.numel():
            self.normal.normal_()
        if self._uniform.numel():
            self._uniform.uniform_()
        for labels, classes in self._labels:
            labels.random_(0, classes)

    def load_share(self, whole: PhaseInputs) -> None:
        """Take this rank's samples of the total batch's inputs."""
        torch.index_select(whole.normal, 0, self.index, out=self.normal)
        for name, each in self.declared.items():
            parts = zip(
                _flat({name: each}), _flat_tensors(self[name]), _flat_tensors(whole[name]), strict=True
            )
            for one, mine, theirs in parts:
                if one.source in ("uniform", "labels"):
                    mine.copy_(take_samples(theirs, one.times, self.share))

    def list_tensors(self) -> list[Tensor]:
        """Return all tensors of the inputs, with those that the total batch is drawn into."""
        mine = [x for name in self.declared for x in _flat_tensors(self[name])]
        return mine + (self.whole.list_tensors() if self.whole is not None else [])

    def load(self, tensors: Mapping[str, Value]) -> None:
        """Copy given numbers in, each into its view (layouts differ between recipes)."""
        for name, value in tensors.items():
            for mine, theirs in zip(_flat_tensors(self[name]), _flat_tensors(value), strict=True):
                mine.copy_(theirs)

    def take(self, k: int, n: int) -> Values:
        """Return part k of n of the batch, as copies with the layouts of the whole; everything for n = 1."""
        if n == 1:
            return self
        parts: dict[str, Value] = {}
        for name, each in self.declared.items():
            if isinstance(each, Input):
                parts[name] = take_part(self[name], each.times, k, n)
            else:
                pairs = zip(self[name], each, strict=True)
                parts[name] = [take_part(tensor, one.times, k, n) for tensor, one in pairs]
        return Values(self.batch // n, parts)


DRAWN = ("normal", "uniform")


def take_samples(x: Tensor, times: int, which: slice | Tensor) -> Tensor:
    """Return these samples of a tensor whose batch comes ``times`` along the first dimension; all of it for 0."""
    if times == 0:
        return x
    return x[which] if times == 1 else x.unflatten(0, (times, -1))[:, which].flatten(0, 1)


def take_part(x: Tensor, times: int, k: int, n: int) -> Tensor:
    """Return part k of n of a batch, packed as the batch is."""
    return (
        x
        if n == 1 or times == 0
        else take_samples(x, times, slice(k, None, n)).clone(memory_format=_format(x))
    )


def _format(x: Tensor) -> torch.memory_format:
    wide = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if wide else torch.contiguous_format


def _each(declared: Input | Sequence[Input], change: Callable[[Input], Any]) -> Any:
    return change(declared) if isinstance(declared, Input) else [change(one) for one in declared]


def _flat(declared: Declared) -> list[Input]:
    return [one for each in declared.values() for one in ([each] if isinstance(each, Input) else each)]


def _flat_tensors(value: Value) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [*value]


def _share(one: Input, ranks: int) -> Input:
    if ranks == 1 or one.times == 0:
        return one
    return Input((one.shape[0] // ranks, *one.shape[1:]), one.source, one.times, one.classes, one.dtype)


def _places(inputs: list[Input], align: int) -> tuple[list[int], int]:
    """Return where each begins in their flat buffer, and the buffer's length."""
    starts, total = [], 0
    for each in inputs:
        starts.append(total)
        total += -(-math.prod(each.shape) // align) * align
    return starts, total


def _view(flat: Tensor, start: int, shape: tuple[int, ...], memory_format: torch.memory_format) -> Tensor:
    """Return a part of a flat buffer in a shape. Images of several channels lie as the recipe has them."""
    view = flat[start : start + math.prod(shape)].view(shape)
    if len(shape) == 4 and shape[1] > 1 and memory_format is torch.channels_last:
        n, c, h, w = shape
        view = view.view(n, h, w, c).permute(0, 3, 1, 2)
    return view
