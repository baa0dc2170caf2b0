"""The Triton kernels that a call launches, with their grid, tiles and warps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ladder.base.errors import one_line
from ladder.studies.kernelbench.schema import Launch


@contextlib.contextmanager
def recorded_launches(launches: list[Launch]) -> Iterator[None]:
    """Append every distinct launch inside, also from autograd's threads.

    A future version of Triton may rename its launcher. Then nothing is recorded, and calls are not disturbed.
    """

    def watching(run: Any) -> Any:
        def watched(self: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                seen = describe_launch(self, args, grid, kwargs)
                if seen not in launches:
                    launches.append(seen)
            return run(self, *args, grid=grid, **kwargs)

        return watched

    with watched_launches(watching):
        yield


@contextlib.contextmanager
def watched_launches(watching: Callable[[Any], Any]) -> Iterator[None]:
    """Make Triton launch by ``watching(run)`` in place of its own ``run``."""
    with contextlib.ExitStack() as stack:
        for kind in _launchers():
            original = kind.run
            stack.callback(setattr, kind, "run", original)
            kind.run = watching(original)
        yield


def _launchers() -> list[Any]:
    kinds = []
    with contextlib.suppress(ImportError, AttributeError):
        from triton.runtime.jit import JITFunction

        kinds.append(JITFunction)
    with contextlib.suppress(ImportError, AttributeError):
        from triton.runtime.interpreter import InterpretedFunction

        kinds.append(InterpretedFunction)
    return [kind for kind in kinds if "run" in vars(kind)]


def describe_launch(kernel: Any, args: tuple[Any, ...], grid: Any, kwargs: Mapping[str, Any]) -> Launch:
    """Return the whole numbers that Triton compiled in: tile sizes, steps, warps, stages."""
    if callable(grid):
        grid = grid({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
    chosen = {k: v for k, v in kwargs.items() if type(v) is int and k != "warmup"}
    return Launch(
        kernel=kernel.__name__,
        grid=[int(n) for n in grid],
        choices=one_line(" ".join(f"{key}={value}" for key, value in sorted(chosen.items()))),
    )
