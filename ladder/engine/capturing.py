"""Seconds of capturing CUDA graphs, by a clock outside the code that captures them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def time_captures(torch: Any) -> Iterator[list[float]]:
    """Yield a list that gets the seconds of each capture of a CUDA graph inside the block.

    They are timed where torch's own calls begin and end a capture. With `torch` None the list stays empty.
    """
    took: list[float] = []
    cuda = getattr(torch, "cuda", None)
    if cuda is None:
        yield took
        return
    begun: list[float] = []  # `torch.cuda.graph` makes the graph's own calls inside its own

    def begins(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            begun.append(time.perf_counter())
            return call(*args, **how)

        return timed

    def ends(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            found = call(*args, **how)
            begin = begun.pop()
            if not begun:
                took.append(time.perf_counter() - begin)
            return found

        return timed

    with contextlib.ExitStack() as stack:
        for kind, begin, end in (
            (cuda.graph, "__enter__", "__exit__"),
            (cuda.CUDAGraph, "capture_begin", "capture_end"),
        ):
            for name, timer in ((begin, begins), (end, ends)):
                stack.callback(setattr, kind, name, getattr(kind, name))
                setattr(kind, name, timer(getattr(kind, name)))
        yield took
