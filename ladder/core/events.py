"""The events that long work tells its caller while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Event = Mapping[str, Any]  # "event" is its kind; the other keys are each kind's own
OnEvent = Callable[[Event], None]
