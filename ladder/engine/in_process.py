"""Steps in this process, for a look or a trace: no worker, no protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def prepared(
    fields: dict[str, Any], recipe: dict[str, Any], device: str
) -> Iterator[tuple[Any, dict[str, float]]]:
    """Yield a prepared step and the seconds of its preparation: ``with prepared(...) as (step, seconds)``."""
    from stylegan_lite import make_step

    step = make_step(fields | {"data": None}, recipe, device=device)
    try:
        yield step, {name: round(value, 3) for name, value in step.prepare().items()}
    finally:
        step.close()
