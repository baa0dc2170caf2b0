"""Weight gradients beside the backward pass: computed on a second CUDA stream, handed over at its end.

No kernel of a backward pass reads the gradient of a weight or of a bias. Only the optimizer does. So it need not delay
the gradients of activations, which wait for one another. But autograd orders its work by the stream of a node's forward
pass, and adds up a leaf's contributions there. It knows nothing of a stream inside a node. Therefore a
`WeightGradients` takes these gradients in autograd's place. An op's backward offers them with `defer`. If `defer`
returns True, the op returns None for them. They are added up on the second stream, and reach `.grad` once the streams
have been joined, or when `deliver` is called there.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from ..common.tiles import alike


class Branch:
    """A second CUDA stream that leaves the current one and joins it again, also inside a capture.

    On a CPU, and while `active` is False, work runs in line. PyTorch hands out streams from a small pool for each
    priority. A stream with a priority of its own is shared with no other part of a program. So memory that is freed
    while another stream still reads it is taken by the next branch only, which starts behind that reader.

    Attributes:
        forks: how often work was put beside the current stream.
    """

    def __init__(self, device: str | torch.device, priority: int = 0) -> None:
        on_gpu = torch.device(device).type == "cuda"
        self.stream = torch.cuda.Stream(device, priority=priority) if on_gpu else None
        self.active = True
        self.forks = 0
        self._open = False

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """Put the launches inside of the context beside later launches. They run after all earlier launches.

        Tensors that they read or write must be kept alive, and unchanged, until `join`. Freed memory goes back to the
        stream that allocated it, and its next kernel may write to it at once.
        """
        if not self.active:
            yield
            return
        self.forks += 1
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        self._open = True
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Make later launches run after everything in the branch."""
        if self._open:
            torch.cuda.current_stream().wait_stream(self.stream)
            self._open = False


class WeightGradients:
    """A collector of the gradients of these leaves, found in a branch while one backward pass runs.

    A leaf is known by its address and strides. So an op finds it also where it was given a transposed view.

    Attributes:
        counts: of the last pass: address of a leaf -> contributions to its gradient.
    """

    def __init__(self, leaves: Iterable[Tensor], branch: Branch) -> None:
        self.leaves, self.branch = [leaf for leaf in leaves if leaf.numel()], branch
        self._at: dict[int, Tensor] = {}
        self._found: dict[int, Tensor] = {}
        self.counts: Counter[int] = Counter()
        self._delivered: set[int] = set()  # leaves whose gradients were asked for before the end
        self._held: list[Callable] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the gradients of one backward pass run inside of the context. Afterwards they are in `.grad`, as
        autograd's are.
        """
        self._at = {leaf.data_ptr(): leaf for leaf in self.leaves if leaf.requires_grad}
        self._found, self.counts, self._delivered = {}, Counter(), set()
        _collectors.append(self)
        try:
            yield
            self.branch.join()
            self.deliver()
        finally:
            self.branch.join()
            _collectors.remove(self)
            self._found = {}
            self._held.clear()  # Only now may the tensors that they read be used for something else.

    def take(self, weights: Sequence[Tensor], compute: Callable[[], Sequence[Tensor]]) -> bool:
        """Take the gradients; see `defer`."""
        leaves = [self._leaf(weight) for weight in weights]
        if any(leaf is None for leaf, _ in leaves):
            return False
        self._held.append(compute)
        with self.branch.fork():
            begun: dict[int, Tensor] = {}
            for (leaf, turned), gradient in zip(leaves, compute(), strict=True):
                at, gradient = leaf.data_ptr(), gradient.transpose(0, 1) if turned else gradient
                if at in self._delivered:
                    raise RuntimeError("weight gradients: one came after its sum was delivered")
                self.counts[at] += 1
                if at not in self._found:
                    self._found[at] = gradient
                elif at not in begun:
                    begun[at] = gradient
                else:  # the same leaf twice in one call
                    begun[at] = begun[at] + gradient
            if begun:
                torch._foreach_add_([self._found[at] for at in begun], list(begun.values()))
        return True

    def _leaf(self, weight: Tensor) -> tuple[Tensor | None, bool]:
        """Return the leaf that `weight` is, and whether it is its transpose."""
        leaf = self._at.get(weight.data_ptr())
        if leaf is not None and leaf.dtype is weight.dtype:
            if alike(weight, leaf):
                return leaf, False
            if leaf.dim() > 1 and alike(weight, leaf.transpose(0, 1)):
                return leaf, True
        return None, False

    @torch.no_grad()
    def deliver(self) -> None:
        """Put the gradients found so far into `.grad`. Call it at the end, or in the branch once they are all there."""
        begun = []
        for at, gradient in self._found.items():
            leaf = self._at[at]
            if leaf.grad is None:
                leaf.grad = gradient
            else:  # kept from the last step and zeroed, or begun by a use that autograd has seen
                begun.append((leaf.grad, gradient))
        if begun:
            torch._foreach_add_(*map(list, zip(*begun, strict=True)))
        self._delivered |= self._found.keys()
        self._found = {}


_collectors: list[WeightGradients] = []  # all threads see it, because autograd has a thread for each GPU


def defer(weights: Sequence[Tensor], compute: Callable[[], Sequence[Tensor]]) -> bool:
    """Offer the gradients of `weights`, which `compute` returns, to the running collector. Call it in `backward`.

    Returns whether they were taken. If so, return None for them in `backward`. They are refused in three cases. No
    collector is running. A weight is no collected leaf (but made of one, by a cast or padding). Or the gradient will be
    differentiated itself.

    compute: launches all it needs, on tensors that exist. It is kept until the pass is over, and the tensors with it.
    """
    if not _collectors or torch.is_grad_enabled():
        return False
    return _collectors[-1].take(weights, compute)
