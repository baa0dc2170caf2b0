"""The events that long work tells its caller while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]  # "event" is its kind; the other keys are each kind's own
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class CaseEvent:
    """The work on a case at this moment, or its measured rows."""

    case: str
    done: int
    total: int
    doing: str = ""
    rows: Sequence[Any] = ()
