"""The highest recorded rates of a GPU: copies, matmuls and convolutions.

Four sources are joined by maximum:

- earlier facts (`ladder/studies/roofline/ceilings.yaml`);
- earlier results of the same GPU (`results/roofline/`);
- copies from its kernels' tuning (`results/kernels/*-tuning.json`);
- today's measurement.

So the computed floor can only come down. A bad day, a colder algorithm or a throttled card never make a step look
closer to the limit than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder.base import yamlfile
from ladder.base.errors import UserError
from ladder.base.text import slug
from ladder.results import store as results

if TYPE_CHECKING:
    from ladder.studies.roofline.floors import Op

HERE = Path(__file__).resolve().parent
FACTS = HERE / "ceilings.yaml"
TUNINGS = "kernels"  # folder beside that of rooflines
COPY = "copy"
CEILING = {"bf16": "matmul bf16", "fp16": "matmul bf16", "fp32": "matmul tf32"}  # cuDNN may use TF32 for FP32


@dataclass(frozen=True)
class Rate:
    """FLOP/s, or bytes/s for a copy, and its source."""

    value: float
    source: str


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


@dataclass(frozen=True)
class Facts:
    """The committed facts of a GPU: rates by name, and ranges of kinds of convolutions."""

    rates: dict[str, float]
    ranges: list[Range]


@dataclass
class Rates:
    """The rates of one GPU. ``known``: by name, see `floors.Op.key`; ``classes``: ranges of kinds of convolutions."""

    gpu: str
    known: dict[str, Rate] = field(default_factory=dict)
    classes: list[Range] = field(default_factory=list)

    def add(self, found: dict[str, float], source: str) -> None:
        """Join rates from ``source``. Only a higher rate replaces a stored rate."""
        for key, value in found.items():
            if key not in self.known or value > self.known[key].value:
                self.known[key] = Rate(value, source)

    def join(self, other: Rates) -> None:
        """Join another object's rates of the same GPU."""
        for key, rate in other.known.items():
            self.add({key: rate.value}, rate.source)
        self.classes = self.classes or other.classes

    def copy_seconds(self, amount: float) -> float:
        return amount / self._need(COPY).value

    def ceiling(self, dtype: str) -> Rate:
        """Return the matmul rate, which no convolution of this dtype exceeds."""
        return self._need(CEILING[dtype])

    def convolution(self, op: Op, layout: str) -> tuple[float, str]:
        """Return (seconds, source) of one ``floors.Op`` at its best.

        A measured shape has its own rate, never below the low end of the facts that cover it. Another shape gets the
        highest rate of its kind, and takes at least as long as copying its tensors. A convolution from or to RGB
        takes the time of copying its narrow side, however slow cuDNN was.
        """
        if op.narrow:
            return self.copy_seconds(op.bytes), f"bytes; {self._need(COPY).source}"
        group = self._class(op, layout)
        if measured := self.known.get(op.key(layout)):
            low = group.low if group and _covers(group, op) else 0.0
            best = measured if measured.value >= low else Rate(low, "facts, low end")
            return op.flops / best.value, best.source
        alike = [rate for key, rate in self.known.items() if _like(key, op, layout)]
        if group:
            alike.append(Rate(group.high, "facts, high end"))
        best = max(alike or [self.ceiling(op.dtype)], key=lambda rate: rate.value)
        seconds = max(op.flops / best.value, self.copy_seconds(op.bytes))
        return seconds, f"not measured; {best.source}"

    def _class(self, op: Op, layout: str) -> Range | None:
        for group in self.classes:
            if op.kind in group.kinds and (group.dtype, group.layout) == (op.dtype, layout):
                return group
        return None

    def _need(self, key: str) -> Rate:
        if key not in self.known:
            raise UserError(
                f"no rate of {key!r} is recorded for {self.gpu}: run `ladder doctor --roofline` there"
            )
        return self.known[key]


def _covers(group: Range, op: Op) -> bool:
    """Return whether the facts were measured on shapes like this shape."""
    batch, channels = op.image[0], min(op.weight[:2])
    return op.weight[-1] == group.kernel and batch >= group.batch and channels >= group.channels


def _like(key: str, op: Op, layout: str) -> bool:
    """Return whether ``key`` names another shape of the same kind, dtype and layout."""
    return key.startswith(f"{op.kind}, ") and key.endswith(f", {op.dtype} {layout}")


def facts() -> dict[str, Facts]:
    """Return the committed table by name of the GPU. YAML reads 774e12 as text."""
    return {name: _facts(**said) for name, said in yamlfile.read(FACTS).items()}


def _facts(rates: dict[str, str], convolutions: list[dict[str, Any]], **_: str) -> Facts:
    ranges = [Range(**each | {key: float(each[key]) for key in ("low", "high")}) for each in convolutions]
    return Facts({key: float(value) for key, value in rates.items()}, ranges)


def load(gpu: str, folder: Path) -> Rates:
    """Return the recorded rates of a GPU, in any spelling: facts, earlier results and the tunings beside them."""
    name = slug(gpu)
    rates = Rates(name)
    if known := facts().get(name):
        rates.add(known.rates, "facts")
        rates.classes = known.ranges
    for path in sorted(folder.glob(f"{name}-*.json")):
        rates.add(recorded(path, name), path.name)
    for path in sorted((folder.parent / TUNINGS).glob("*-tuning.json")):
        rates.add(copied(path, name), path.name)
    return rates


def known_gpus(folder: Path) -> list[str]:
    """Return the GPUs whose floor can be computed from recorded rates."""
    seen = (_read(path) for path in folder.glob("*.json"))
    names = {result["machine"]["name"] for result in seen if recorded_of(result)}
    return sorted(set(facts()) | names)


def choose(gpu: str, folder: Path) -> Rates:
    """Return the rates of a GPU that a user names: "nvidia-h200", "NVIDIA H200" or "H200"."""
    names, asked = known_gpus(folder), slug(gpu)
    for name in (asked, f"nvidia-{asked}"):
        if name in names:
            return load(name, folder)
    raise UserError(f"--gpu: no rates are recorded of {gpu!r}; there are: {', '.join(names) or 'none'}")


def recorded(path: Path, gpu: str) -> dict[str, float]:
    """Return the rates of an earlier result file, or {} for another GPU or an unreadable file."""
    result = _read(path)
    if not recorded_of(result) or result["machine"]["name"] != gpu:
        return {}
    return recorded_of(result)


def copied(path: Path, gpu: str) -> dict[str, float]:
    """Return the highest rate of a copy in a file of kernels.tuning, or {} for another GPU or another kind of file."""
    from ladder.studies.kernelbench.tuning import KINDS

    result = _read(path)
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


def recorded_of(result: Any) -> dict[str, float]:
    """Return the numbers in a result that can be rates."""
    try:
        if result["kind"] != "roofline" or not isinstance(result["machine"]["name"], str):
            return {}
        return {
            key: float(value)
            for key, value in result["recorded"].items()
            if type(value) in (int, float) and math.isfinite(value) and value > 0
        }
    except (KeyError, TypeError, AttributeError):
        return {}


def _read(path: Path) -> Any:
    try:
        return results.read(path)
    except UserError:
        return None
