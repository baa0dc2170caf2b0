"""The colours of every chart, for light and for dark ground.

Blue and orange are Okabe and Ito's colour-blind safe ones, lightened for the dark. Text keeps a contrast of 4.5:1 with
its ground (WCAG AA), a bar or a line 3:1. `tests/publish/report/test_report_page.py` counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """Colours by what they say."""

    busy: str  # the GPU works; our own numbers
    idle: str  # the GPU waits for the CPU
    article: str
    bad: str
    ink: str
    muted: str
    grid: str
    gap: str  # behind a rung without a number
    ground: str


LIGHT = Theme(
    busy="#0072B2", idle="#A6CEE3", article="#B34E00", bad="#A32020",
    ink="#1B1F24", muted="#59636E", grid="#E4E7EB", gap="#F3F4F6", ground="#FFFFFF",
)  # fmt: skip
DARK = Theme(
    busy="#56B4E9", idle="#1F5C80", article="#F0A35E", bad="#FF8B80",
    ink="#E6EAEF", muted="#9BA7B4", grid="#2B323A", gap="#1C2229", ground="#12161B",
)  # fmt: skip
