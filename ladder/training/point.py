"""A point on the curve of a training, as files hold it. This module imports no torch."""

from __future__ import annotations

from typing import Annotated

from ladder.core import records as r

Size = Annotated[str, r.text_matching(r"\d{1,5}", "a size")]


class Point(r.Record, kw_only=True):
    """What a training's samples are like after so many steps, and the seconds that these took without measuring.

    `levels` are the sliced Wasserstein distances by resolution, times 1000. The others are those of
    `ladder.training.distances`; None for images of another size than the classifier's.
    """

    step: r.Count = 0
    seconds: r.Seconds = 0.0
    levels: Annotated[dict[Size, r.Amount], r.size_between(16, 1)]
    frechet: r.Amount | None = None
    kid: r.Real | None = None
    precision: r.Share | None = None
    recall: r.Share | None = None

    @property
    def swd(self) -> float:
        """Return the mean of the levels."""
        return sum(self.levels.values()) / len(self.levels)
