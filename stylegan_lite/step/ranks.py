"""The ranks of a step: how gradients, losses and statistics of several processes become those of the total batch.

`torch.distributed` does the work, over the process group that the caller has made: NCCL on GPUs, gloo on the CPU. Three
ways are fields of the recipe. `reduce: flat` is one all-reduce of all that the optimizer reads, after the second stream
has joined and before the loss scale looks for infinity. Captured in a graph it is replayed with the step. `ddp` is
DistributedDataParallel, which reduces while the backward pass runs. `data_parallel` is nn.DataParallel, in one process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stylegan_lite import shares
from stylegan_lite.config import ConfigError, Recipe


class Ranks:
    """This process among the ranks of a step. Alone, everything here is left as it is.

    Attributes:
        rank, size: this process's number, and how many there are.
        bytes: phase -> bytes that its last run has all-reduced, of gradients.
        entered: all-reduces and replays that this process has begun. The slowest rank has the fewest.
        notice: called with `entered` when that has grown.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.size, self.rank = shares.processes(recipe), 0
        self.way, self.local = recipe.reduce, recipe.rank_statistics == "local"
        self.dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        self.bytes: dict[str, int] = {}
        self.entered = 0
        self.notice: Callable[[int], None] = lambda entered: None
        self.flat: dict[str, Tensor] = {}  # by network, as large as its largest phase
        self.views: dict[str, tuple[Tensor, list[Any], list[Tensor]]] = {}  # by phase: parts of a flat buffer
        self.wrapped: dict[str, Any] = {}  # by phase, with `reduce: ddp`
        if self.size == 1:
            return
        here = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if here != self.size:
            raise ConfigError(
                f"recipe: ranks: {self.size} needs a process group of {self.size}, this one has {here}; start with "
                f"torchrun --nproc-per-node {self.size}, or measure with ladder scale"
            )
        self.rank = dist.get_rank()

    def enter(self) -> None:
        """Count an all-reduce, or a replayed graph that may hold some, before it begins."""
        self.entered += 1
        self.notice(self.entered)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over the ranks of each rank's mean. With rank-local statistics it stays the rank's own."""
        if self.size == 1 or self.local:
            return value
        value = value.detach().clone()
        self._average(value)
        return value

    def any(self, answer: bool, device: str) -> bool:
        """Return whether any rank's answer is true. Waits for all of them."""
        if self.size == 1:
            return answer
        found = torch.tensor(float(answer), device=device)
        self._average(found)
        return bool(found)

    def loss(self, phase: str, network: nn.Module, loss: Callable[[str], Tensor]) -> Tensor:
        """Return the loss of a phase. With `reduce: ddp` it is computed inside DistributedDataParallel."""
        if self.way != "ddp" or self.size == 1:
            return loss(phase)
        if phase not in self.wrapped:  # a wrapper for each phase, as phases reach different parameters
            self.wrapped[phase], self.bytes[phase] = _wrapped(_Loss(network, loss), phase)
        self.enter()
        return self.wrapped[phase](phase)

    @torch.no_grad()
    def reduce(self, phase: str, network: str, gradients: Callable[[], list[Tensor]], loss: Tensor) -> None:
        """Make gradients and loss the means over the ranks, in place. Gradients are added up in float32.

        A gradient in BF16 or FP16 gets the mean rounded to its dtype: one rounding, as the optimizer would read it.
        """
        if self.size == 1:
            return
        if self.way == "ddp":
            self._average(loss)
            return
        parts = gradients()
        total = sum(part.numel() for part in parts) + 1
        flat = self._buffer(network, total, loss.device)
        views = self._parts(phase, flat, parts)
        _copy([*views, flat[total - 1]], [*parts, loss])
        self._average(flat[:total])
        _copy([*parts, loss], [*views, flat[total - 1]])
        self.bytes[phase] = flat[:total].nbytes

    def agree_on(self, found_inf: Tensor) -> None:
        """Make an overflow of any rank one of all ranks, so that all skip the update."""
        if self.size > 1:
            self.enter()
            dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)

    def _average(self, value: Tensor) -> None:
        """Make a tensor the mean over the ranks, in place. NCCL divides on its way, which saves a pass; gloo cannot."""
        self.enter()
        if value.is_cuda:
            dist.all_reduce(value, op=dist.ReduceOp.AVG)
        else:
            dist.all_reduce(value)
            value.div_(self.size)

    def _buffer(self, network: str, size: int, device: torch.device) -> Tensor:
        """Return a buffer that keeps its address once all phases have run: graphs are captured after that."""
        held = self.flat.get(network)
        if held is None or held.numel() < size:
            self.flat[network] = held = torch.empty(size, dtype=self.dtype, device=device)
        return held

    def _parts(self, phase: str, flat: Tensor, like: list[Tensor]) -> list[Tensor]:
        """Return the buffer's parts for these gradients. They are made anew where a shape or the buffer is another."""
        layouts = [(part.shape, part.stride()) for part in like]
        known = self.views.get(phase)
        if known is None or known[0] is not flat or known[1] != layouts:
            self.views[phase] = known = (flat, layouts, _views(flat, like))
        return known[2]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Run ``copy_`` for each pair, all of one pair of dtypes together: mixed ones would be copied one by one."""
    alike: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        to, of = alike.setdefault((target.dtype, source.dtype), ([], []))
        to.append(target)
        of.append(source)
    for to, of in alike.values():
        torch._foreach_copy_(to, of)


def _views(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return parts of a flat buffer, each with the strides of its tensor, so that a copy is one pass over memory."""
    found, at = [], 0
    for part in like:
        piece = flat[at : at + part.numel()]
        dense = torch.empty_like(part, device="meta").stride() == part.stride()
        strided = (part.shape, part.stride(), piece.storage_offset())
        found.append(piece.as_strided(*strided) if dense else piece.view(part.shape))
        at += part.numel()
    return found


class _Loss(nn.Module):
    """The loss of one phase as a module, whose forward pass DistributedDataParallel wraps."""

    def __init__(self, network: nn.Module, loss: Callable[[str], Tensor]) -> None:
        super().__init__()
        self.network, self.compute = network, loss

    def forward(self, phase: str) -> Tensor:
        return self.compute(phase)


def _wrapped(module: _Loss, phase: str) -> tuple[nn.Module, int]:
    """Wrap the loss of a phase, which is computed once more to see which parameters get a gradient.

    Returns the wrapped loss, and the bytes of the gradients that it reduces.

    A lazy phase leaves some out (a bias of toRGB has no influence on path length). DDP would wait for them for ever, or
    with its search for unused parameters give zeros to some. Left out of its buckets they have none, as without DDP.
    Buffers are not broadcast: they are functions of weights and of statistics that are equal on all ranks.
    """
    named = dict(module.named_parameters())
    found = torch.autograd.grad(module(phase), [*named.values()], allow_unused=True)
    without = [name for name, gradient in zip(named, found, strict=True) if gradient is None]
    ddp = nn.parallel.DistributedDataParallel
    ddp._set_params_and_buffers_to_ignore_for_model(module, without)
    new = "forward_sync_buffers" in inspect.signature(ddp.__init__).parameters  # torch 2.13
    quiet = {"forward_sync_buffers" if new else "broadcast_buffers": False}
    reduced = sum(p.nbytes for name, p in named.items() if name not in without)
    return ddp(module, **quiet), reduced


class _Cast(nn.Module):
    """A network under the recipe's autocast, in whatever thread it runs.

    The threads of nn.DataParallel switch autocast on, but with PyTorch's default dtype: a GPU would compute in FP16.
    """

    def __init__(self, network: nn.Module, amp: Callable[[], AbstractContextManager]) -> None:
        super().__init__()
        self.network, self.amp = network, amp

    def forward(self, *inputs: Any) -> Tensor:
        with self.amp():
            return self.network(*inputs)


class Replicated:
    """A network that nn.DataParallel runs on several GPUs. Its attributes are the network's own.

    Each GPU gets the samples that a rank would get, so that groups of minibatch standard deviation stay whole.
    """

    def __init__(
        self, network: nn.Module, gpus: int, regroup: bool, amp: Callable[[], AbstractContextManager]
    ) -> None:
        devices = list(range(gpus)) if torch.cuda.is_available() else None
        self._network, self._parallel = network, nn.DataParallel(_Cast(network, amp), devices)
        self._parts = gpus if regroup and devices else 1

    def __call__(self, x: Tensor, *rest: Any) -> Tensor:
        if self._parts > 1:
            x = torch.cat([x[k :: self._parts] for k in range(self._parts)])  # keeps channels_last
        return self._parallel(x, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)
