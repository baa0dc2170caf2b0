"""Convolution weights as convolutions read them: scaled, cast and laid out once, when they change.

With equalized learning rate a layer multiplies its weight by a constant at each use, and autocast casts the product.
The gradient takes the way back. That is four kernels and more for each use of each weight, 2 to 3 microseconds each in
a graph. A compute copy is that product, kept: a leaf that every use reads. It is written after the optimizer's step,
for all weights at once. Its gradient becomes the parameter's in a few launches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Entry(NamedTuple):
    """One weight: its name in the network, the parameter, its copy and the gain between them.

    With ``demodulation: grouped`` also its energy, a leaf like the copy. Demodulation reads nothing else of a weight.
    """

    name: str
    weight: nn.Parameter
    copy: Tensor
    gain: float
    energy: Tensor | None = None

    @property
    def leaves(self) -> list[Tensor]:
        """Return the leaves that gradients arrive at."""
        return [self.copy] if self.energy is None else [self.copy, self.energy]


class ComputeWeights:
    """The compute copies of a network. Without any, nothing here does anything.

    Addresses never change, so captured graphs may read and write them. Code that changes parameters calls ``refresh``.
    ``load_state_dict`` of the network does it by itself.
    """

    def __init__(self, network: nn.Module, entries: list[Entry]) -> None:
        self.entries = entries
        if not entries:
            return
        network.register_load_state_dict_post_hook(lambda module, keys: self.refresh())
        self.refresh()
        self.requires_grad_(True)

    def requires_grad_(self, needed: bool) -> None:
        """Freeze or unfreeze the copies with the network's parameters: a frozen network's weight gradients are not
        computed.
        """
        for leaf in self._leaves():
            leaf.requires_grad_(needed)

    def zero_grad(self, set_to_none: bool) -> None:
        """Do the work of the optimizer's ``zero_grad`` for the copies, which the optimizer does not know."""
        if set_to_none:
            for leaf in self._leaves():
                leaf.grad = None
            return
        kept = [leaf.grad for leaf in self._leaves() if leaf.grad is not None]
        if kept:
            torch._foreach_zero_(kept)

    @torch.no_grad()
    def refresh(self) -> None:
        """Write every copy from its parameter, in a few launches."""
        scaled = {e: e.weight for e in self.entries}
        gained = [e for e in self.entries if e.gain != 1]
        if gained:
            products = torch._foreach_mul([e.weight for e in gained], [e.gain for e in gained])
            scaled |= dict(zip(gained, products, strict=True))
        _copy([e.copy for e in self.entries], list(scaled.values()))
        self.refresh_energies()

    @torch.no_grad()
    def refresh_energies(self) -> None:
        """Write every energy from its parameter, in one launch."""
        kept = [(e.weight, e.energy) for e in self.entries if e.energy is not None]
        if kept:
            from kernels.weights.demodulate_group import refresh_energies

            refresh_energies(*map(list, zip(*kept, strict=True)))

    @torch.no_grad()
    def hand_over(self) -> None:
        """Add each copy's gradient to its parameter's, after backward. Demodulation may have begun the latter."""
        found = self._gradients()
        begun = [(e.weight.grad, g) for e, g in found.items() if e.weight.grad is not None]
        for entry, gradient in found.items():
            if entry.weight.grad is None:
                entry.weight.grad = gradient
        if begun:
            torch._foreach_add_(*map(list, zip(*begun, strict=True)))

    @torch.no_grad()
    def totals(self) -> dict[str, Tensor]:
        """Return the gradients that ``hand_over`` would leave, by parameter. Nothing is changed."""
        found = self._gradients()
        for entry, gradient in found.items():
            if entry.weight.grad is not None:
                gradient += entry.weight.grad
        return {entry.name: gradient for entry, gradient in found.items()}

    def _leaves(self) -> list[Tensor]:
        return [leaf for entry in self.entries for leaf in entry.leaves]

    def _gradients(self) -> dict[Entry, Tensor]:
        """Return the leaves' gradients as gradients of the parameters: new tensors of their dtype and strides."""
        entries = [e for e in self.entries if e.copy.grad is not None]
        found = [torch.empty_like(e.weight) for e in entries]
        _copy(found, [e.copy.grad for e in entries])
        gained = [(g, e.gain) for g, e in zip(found, entries, strict=True) if e.gain != 1]
        if gained:
            torch._foreach_mul_(*map(list, zip(*gained, strict=True)))
        found = dict(zip(entries, found, strict=True))
        self._add_energies(found)
        return found

    def _add_energies(self, found: dict[Entry, Tensor]) -> None:
        """Add the gradients that arrived at energies: 2 * weight * gradient, in one launch."""
        entries = [e for e in self.entries if e.energy is not None and e.energy.grad is not None]
        if not entries:
            return
        from kernels.weights.demodulate_group import energies_backward

        shares = energies_backward([e.energy.grad for e in entries], [e.weight for e in entries])
        for entry, share in zip(entries, shares, strict=True):
            found[entry] = share if entry not in found else found[entry].add_(share)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Run ``copy_`` for each pair: those that lie alike in memory together, the others (transposed ones) one by one.

    PyTorch's multi-tensor copy casts on the way. One pair with different strides would make it copy all pairs one by
    one.
    """
    alike = []
    for target, source in zip(targets, sources, strict=True):
        source = _strided_as(source, target)
        if source.stride() == target.stride():
            alike.append((target, source))
        else:
            target.copy_(source)
    if alike:
        torch._foreach_copy_(*map(list, zip(*alike, strict=True)))


def _strided_as(x: Tensor, like: Tensor) -> Tensor:
    """Return ``x`` with the strides of ``like`` where only those of dimensions of size 1 differ. They mean nothing."""
    pairs = zip(x.shape, x.stride(), like.stride(), strict=True)
    if x.stride() != like.stride() and all(size == 1 or a == b for size, a, b in pairs):
        return x.as_strided(like.shape, like.stride(), x.storage_offset())
    return x
