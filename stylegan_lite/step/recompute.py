"""Activation checkpointing: the parts of a main phase's forward pass that backward runs once more.

With fused kernels these are the passes over memory between two convolutions. A filter, an activation and a style are
one kernel there. The next convolution keeps its result. The kernel keeps its input, the result of the convolution
before. Only the latter stays. The pass runs again once a gradient asks for its result: such results hold much memory
and take little time (Korthikanti et al. 2022, arXiv:2205.05198, section 5). No 3x3 convolution runs twice.

Without `fused_modulation`, and with instance norm, whole blocks run again, as `torch.utils.checkpoint` does it (Chen
et al. 2016, arXiv:1604.06174).

A pass runs again with the very tensors and the kernel of its first run, so its results are equal bit by bit. Random
numbers lie in buffers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

Kind = Literal["", "passes", "blocks"]


def through(block: torch.nn.Module, kind: Kind, *inputs: Any) -> Any:
    """Run a block. With ``kind: blocks`` backward runs it once more, in place of keeping its activations."""
    if kind != "blocks" or not torch.is_grad_enabled():
        return block(*inputs)
    return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)


def recomputed(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return run(*args, **kwargs): one Tensor, or a tuple. Inside `passes` backward runs it again for its results.

    The arguments are kept. So this saves memory only if backward needs them anyway.
    """
    hooks = _active()
    return run(*args, **kwargs) if hooks is None else hooks.run(lambda: run(*args, **kwargs))


def spent(x: Tensor) -> None:
    """Free the memory of a `recomputed` result that no later part of the forward pass reads.

    The frames of callers name it for longer, and a block's largest maps would be alive at once.
    """
    hooks = _active()
    if hooks is not None and x.untyped_storage()._cdata in hooks.results:
        x.untyped_storage().resize_(0)


def passes(kind: Kind) -> contextlib.AbstractContextManager[None]:
    """With ``kind: passes``, keep no results of `recomputed` calls in here."""
    return _keeping_none() if kind == "passes" and torch.is_grad_enabled() else contextlib.nullcontext()


@contextlib.contextmanager
def _keeping_none() -> Iterator[None]:
    hooks, before = _Hooks(), _active()
    _thread.hooks = hooks
    try:
        with torch.autograd.graph.saved_tensors_hooks(hooks.pack, _Kept.get):
            yield
    finally:
        _thread.hooks = before
        hooks.results.clear()  # Passes whose results nothing keeps hold their arguments no longer.


_thread = threading.local()  # `nn.DataParallel` runs each replica in a thread of its own


def _active() -> _Hooks | None:
    return None if torch.compiler.is_compiling() else getattr(_thread, "hooks", None)


class _Pass:
    """A call that can run again. Each result lives from the first use of any in backward to its own last."""

    def __init__(self, run: Callable[[], Any], device: str) -> None:
        enabled = torch.is_autocast_enabled(device)
        self.how = {"device_type": device, "dtype": torch.get_autocast_dtype(device), "enabled": enabled}
        self.run = run
        self.uses: dict[int, int] = {}  # by result: the gradients that will still ask for it
        self.results: dict[int, Tensor] = {}

    def result(self, k: int) -> Tensor:
        if k not in self.results:
            with torch.no_grad(), torch.autocast(**self.how):
                found = _tuple(self.run())
            self.results |= {j: found[j] for j, uses in self.uses.items() if uses}
        self.uses[k] -= 1
        return self.results[k] if self.uses[k] else self.results.pop(k)


class _Kept:
    """A tensor that autograd keeps: itself, or the number of a pass's result and the part of it that it views."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self.source: tuple[_Pass, int] | None = None
        self.view = tensor.size(), tensor.stride(), tensor.storage_offset()

    def replace(self, each: _Pass, k: int) -> None:
        each.uses[k] = each.uses.get(k, 0) + 1
        self.tensor, self.source = None, (each, k)

    def get(self) -> Tensor:
        if self.source is None:
            assert self.tensor is not None
            return self.tensor
        each, k = self.source
        return each.result(k).as_strided(*self.view)


class _Hooks:
    """The hooks of one forward pass: which storages are results of passes, and what a running pass keeps itself."""

    def __init__(self) -> None:
        # A weak reference keeps the number of a storage from being used again, not its memory.
        self.results: dict[int, tuple[StorageWeakRef, _Pass, int]] = {}
        self.own: list[_Kept] | None = None

    def run(self, run: Callable[[], Any]) -> Any:
        self.own = own = []
        try:
            found = run()
        finally:
            self.own = None
        results = _tuple(found)
        each = _Pass(run, results[0].device.type)
        for k, result in enumerate(results):
            storage = result.untyped_storage()
            self.results[storage._cdata] = StorageWeakRef(storage), each, k
        for kept in own:  # An op may keep its own result.
            self._settle(kept)
        return found

    def pack(self, x: Tensor) -> _Kept:
        kept = _Kept(x)
        if self.own is None:
            self._settle(kept)
        else:
            self.own.append(kept)
        return kept

    def _settle(self, kept: _Kept) -> None:
        assert kept.tensor is not None
        if found := self.results.get(kept.tensor.untyped_storage()._cdata):
            kept.replace(*found[1:])


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


class Blocks:
    """The blocks of a pair's networks, which backward runs once more while this is ``on``.

    Running statistics of its batch norms move once. A block draws no random numbers, as a loss does not.
    """

    def __init__(self, pair: Any, around: Callable[[], contextlib.AbstractContextManager]) -> None:
        """around: the context in which a block runs again."""
        self.on, self.runs, self.around = False, 0, around  # runs: of blocks in backward
        for name in dict.fromkeys(phase.network for phase in pair.phases):
            for block in getattr(pair, "blocks", lambda network: [])(name):
                self._wrap(block)

    def _wrap(self, block: torch.nn.Module) -> None:
        inner = block.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not (self.on and torch.is_grad_enabled()):
                return inner(*args, **kwargs)
            return checkpoint(
                inner, *args, use_reentrant=False, preserve_rng_state=False,
                context_fn=lambda: (contextlib.nullcontext(), self._again(block)), **kwargs,
            )  # fmt: skip

        block.forward = forward  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _again(self, block: torch.nn.Module) -> Iterator[None]:
        """Count a run in backward, which leaves the block's running statistics alone."""
        self.runs += 1
        norms = [each for each in block.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
        before = [(each, each.momentum, each.num_batches_tracked) for each in norms]
        for each in norms:
            each.momentum = 0.0
            if each.num_batches_tracked is not None:
                each.num_batches_tracked = each.num_batches_tracked.clone()
        try:
            with self.around():
                yield
        finally:
            for each, momentum, count in before:
                each.momentum, each.num_batches_tracked = momentum, count
