"""The highest recorded rates of a GPU: copies, matmuls and convolutions.

Four sources are joined by maximum: earlier facts (`ceilings.yaml`), earlier results of the same GPU
(`results/roofline/`), copies from its kernels' tuning (`results/kernels/*-tuning.json`), and today's measurement. So
the floor can only come down. A bad day, a colder algorithm or a throttled card never make a step look closer to the
limit than it is.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.base import yamlfile
from ladder.base.errors import UserError
from ladder.base.text import slug
from ladder.results import store as results
from ladder.studies.roofline.record import CEILING, COPY, Op, Rate

FACTS = Path(__file__).resolve().parent / "ceilings.yaml"


@dataclass(frozen=True)
class Range:
    """Facts of kinds of convolutions: FLOP/s between ``low`` and ``high``, depending on the shape.

    ``low`` holds for this kernel from this batch and these channels up.
    """

    kinds: list[str]
    dtype: str
    layout: str
    kernel: int
    batch: int
    channels: int
    low: float
    high: float

    def is_for(self, op: Op) -> bool:
        """Return whether the facts were measured on shapes like this shape."""
        batch, channels = op.image[0], min(op.weight[:2])
        return op.weight[-1] == self.kernel and batch >= self.batch and channels >= self.channels


@dataclass
class Rates:
    """The rates of one GPU. ``known``: by name, see `Op.key`; ``ranges`` of kinds of convolutions."""

    gpu: str
    known: dict[str, Rate] = field(default_factory=dict)
    ranges: list[Range] = field(default_factory=list)

    def add(self, rates: Mapping[str, float], source: str) -> None:
        """Join rates from ``source``. Only a higher rate replaces a stored rate."""
        self.join({key: Rate(value, source) for key, value in rates.items()})

    def join(self, rates: Mapping[str, Rate]) -> None:
        for key, rate in rates.items():
            if key not in self.known or rate.value > self.known[key].value:
                self.known[key] = rate

    def add_facts(self) -> None:
        """Join the committed facts of this GPU, if there are any."""
        if facts := read_facts().get(self.gpu):
            self.add({key: float(value) for key, value in facts["rates"].items()}, "facts")
            self.ranges = [
                Range(**each | {key: float(each[key]) for key in ("low", "high")})
                for each in facts["convolutions"]
            ]

    def copy_seconds(self, amount: float) -> float:
        return amount / self._need(COPY).value

    def ceiling(self, dtype: str) -> Rate:
        """Return the matmul rate, which no convolution of this dtype exceeds."""
        return self._need(CEILING.get(dtype, dtype))

    def convolution(self, op: Op, layout: str) -> tuple[float, str]:
        """Return (seconds, source) of one convolution at its best.

        A measured shape has its own rate, never below the low end of the facts that cover it. Another shape gets the
        highest rate of its kind, and takes at least as long as copying its tensors. A convolution from or to RGB
        takes the time of copying its narrow side, however slow cuDNN was.
        """
        if op.is_narrow:
            return self.copy_seconds(op.bytes), f"bytes; {self._need(COPY).source}"
        facts = next(
            (
                each
                for each in self.ranges
                if op.kind in each.kinds and (each.dtype, each.layout) == (op.dtype, layout)
            ),
            None,
        )
        if measured := self.known.get(op.key(layout)):
            low = facts.low if facts and facts.is_for(op) else 0.0
            best = measured if measured.value >= low else Rate(low, "facts, low end")
            return op.flops / best.value, best.source
        beginning, end = f"{op.kind}, ", f", {op.dtype} {layout}"
        alike = [rate for key, rate in self.known.items() if key.startswith(beginning) and key.endswith(end)]
        if facts:
            alike.append(Rate(facts.high, "facts, high end"))
        best = max(alike or [self.ceiling(op.dtype)], key=lambda rate: rate.value)
        seconds = max(op.flops / best.value, self.copy_seconds(op.bytes))
        return seconds, f"not measured; {best.source}"

    def _need(self, key: str) -> Rate:
        if key not in self.known:
            raise UserError(
                f"no rate of {key!r} is recorded for {self.gpu}: run `ladder doctor --roofline` there"
            )
        return self.known[key]


@functools.cache
def read_facts() -> dict[str, Any]:
    """Return the committed facts by name of the GPU. YAML reads 774e12 as text."""
    return yamlfile.read(FACTS)


def read_copies(path: Path, gpu: str) -> dict[str, float]:
    """Return the highest rate of a copy in a file of kernels.tuning, or {} for another GPU or another kind of file."""
    from ladder.studies.kernelbench.tuning import KINDS

    try:
        result = results.read(path)
    except UserError:
        return {}
    kind = result.get("kind") if isinstance(result, dict) else None
    rule = next((each.rule for each in KINDS if each.name == kind), None)
    if rule is None or rule(result) or slug(result["gpu"]) != gpu:
        return {}
    times = [
        (run["bytes"], run[key])
        for row in result["timed"]
        for run in row["runs"]
        for key in ("copy_microseconds", "driver_copy_microseconds")
        if run.get("bytes") and run.get(key)
    ]
    return {COPY: max(moved / us * 1e6 for moved, us in times)} if times else {}
