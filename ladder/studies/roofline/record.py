"""The records of `ladder doctor --roofline`: its options, what its file holds, and what follows from that.

Rates are in FLOP/s, or bytes/s for copies. Times are in ms of a step unless a field says otherwise.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from ladder.core.options import option
from ladder.core.records import (
    Amount,
    Bytes,
    Commit,
    Count,
    Fields,
    Line,
    Ms,
    Name,
    Record,
    Seconds,
    between,
    matching,
    size,
)
from ladder.receipts import kernel_families
from ladder.results.file import Phase
from ladder.studies import frame
from ladder.studies.frame import RungCase, StudyFile

KINDS = {
    "forward": kernel_families.FORWARD,
    "input gradient": kernel_families.DGRAD,
    "weight gradient": kernel_families.WGRAD,
}
CONVOLUTIONS, OTHERS, IDLE = "convolutions", "other kernels", "nothing runs"
PARTS = (*KINDS, CONVOLUTIONS, OTHERS)  # of a step, which a trace can tell apart
COPY = "copy"
CEILINGS = (COPY, "matmul bf16", "matmul tf32", "matmul fp32")
CEILING = {"bf16": "matmul bf16", "fp16": "matmul bf16", "fp32": "matmul tf32"}  # cuDNN may use TF32 for FP32
NARROW = 4  # most channels at which a convolution can merge with the pass beside it: from and to RGB
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}

_SHAPE = r"[1-9]\d{0,5}x[1-9]\d{0,5}x[1-9]\d{0,5}x[1-9]\d{0,5}"
CONVOLUTION = (
    rf"({'|'.join(KINDS)}), ({_SHAPE}) \* ({_SHAPE}), stride ([1-9]), padding (\d\d?), (bf16|fp16|fp32|fp64)"
    r" (channels_last|nchw)"
)
ConvolutionName = Annotated[str, matching(CONVOLUTION, "a convolution")]
RateName = Annotated[str, matching(r"[A-Za-z0-9 ,.*_x-]{1,120}", "the name of a rate")]
Speed = Annotated[float, between(1e3, 1e18)]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """A convolution as cuDNN computes it. A transposed convolution is the input gradient of its mirror image.

    ``image`` [N, I, H, W] is the side that ``weight`` [O, I, k, k] slides over.
    """

    kind: str
    image: Shape
    weight: Shape
    stride: int
    padding: int
    dtype: str

    @property
    def result(self) -> Shape:
        """Return the shape of the other side, [N, O, H', W']."""
        n, _, h, w = self.image
        o, _, k, l = self.weight
        s, p = self.stride, self.padding
        return n, o, (h + 2 * p - k) // s + 1, (w + 2 * p - l) // s + 1

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.result) * math.prod(self.weight[1:])

    @property
    def is_narrow(self) -> bool:
        """Return whether the convolution can merge with the pass beside it: from or to RGB."""
        return min(self.weight[:2]) <= NARROW

    @property
    def is_pointwise(self) -> bool:
        return self.weight[-1] == 1

    @property
    def bytes(self) -> int:
        """Return the bytes of the three tensors. A narrow convolution omits its wide side: another pass moves it."""
        sides = math.prod(self.image), math.prod(self.result)
        return SIZES[self.dtype] * (math.prod(self.weight) + (min(sides) if self.is_narrow else sum(sides)))

    def key(self, layout: str) -> str:
        """Return the name of its rate in result files. Equal texts mean equal measurements."""
        shapes = " * ".join("x".join(map(str, shape)) for shape in (self.image, self.weight))
        return f"{self.kind}, {shapes}, stride {self.stride}, padding {self.padding}, {self.dtype} {layout}"


def parse_op(name: str) -> Op:
    """Return the convolution of a name, as `Op.key` writes it."""
    match = re.fullmatch(CONVOLUTION, name)
    assert match is not None, name
    kind, image, weight, stride, padding, dtype, _ = match.groups()
    sides = tuple(map(int, image.split("x"))), tuple(map(int, weight.split("x")))
    return Op(kind, sides[0], sides[1], int(stride), int(padding), dtype)


class Options(frame.Options):
    """The options of `ladder doctor --roofline`."""

    rung: Annotated[Name | None, option("This rung, with all below it.")] = None
    ladder: Annotated[str, option("The ladder of the rung.", metavar="NAME|FILE")] = "full"


# --- what is observed -------------------------------------------------------------------------------------------------


class Work(Record):
    """The necessary work of one run of a phase (`floors`): how often each convolution runs, and what else there is.

    `bytes` are those that other kernels than matmuls move, by purpose.
    """

    convolutions: Annotated[dict[ConvolutionName, Count], size(10_000)]
    matmul_flops: Amount
    matmul_bytes: Bytes
    bytes: Annotated[dict[Line, Bytes], size(32)]


class Rate(Record):
    """FLOP/s, or bytes/s for a copy, and who recorded it."""

    value: Speed
    source: Line


class Today(Record):
    """The rates of a measurement by name, and the reasons for those that it lacks."""

    rates: Annotated[dict[RateName, Speed], size(10_000)]
    skipped: Annotated[dict[RateName, Line], size(10_000)]
    seconds: Seconds


class Kernels(Record):
    """A family of kernels of a traced step: microseconds and kernels a step, and its heaviest kernel."""

    family: Line
    us: Amount
    kernels: Amount
    heaviest: Line


class Timed(Record, kw_only=True):
    """A timed and traced step. A whole-step graph has phases of a second step; one old file has none.

    Times are medians: of each phase alone, of a step between events, and by the wall clock. In `busy_ms` of a traced
    step any kernel ran.
    """

    phases_ms: Annotated[dict[Phase, Ms], size(4)]
    step_ms: Ms
    wall_ms: Ms
    busy_ms: Ms
    families: Annotated[list[Kernels], size(1000, 1)]
    settings: Fields


class Observed(frame.Observation, kw_only=True):
    """The step of a rung, the rates of the day, and the higher ones that were on record then.

    `floors_commit` counted the work if another commit measured (`--again`).
    """

    work: Annotated[dict[Phase, Work], size(4, 4)] | None = None
    step: Timed | None = None
    today: Today | None = None
    recorded: Annotated[dict[RateName, Rate], size(10_000)] = {}
    floors_commit: Commit | None = None


File = StudyFile[Options, RungCase, Observed]


# --- what is derived --------------------------------------------------------------------------------------------------


class Convolution(Record):
    """A shape of the workload: its FLOPs a step, and the rate of its floor."""

    name: str
    flops: float
    rate: float
    source: str


class Lowered(Record):
    """A part of the floor that a traced step has lowered, with its time by the ceilings alone."""

    alone_ms: float
    ms: float
    source: str


class Group(Record):
    """A part of a step: its time, its floor, and its part of the distance between both."""

    ms: float
    floor_ms: float
    of_distance: float | None


class Family(Kernels):
    """A family of kernels, with its parts of the step and of the distance."""

    group: str = ""
    of_step: float = 0.0
    of_distance: float | None = None


class Measured(Timed, kw_only=True):
    """The timed and traced step beside its floor."""

    times_light: float
    distance_ms: float
    families: list[Family]  # type: ignore[assignment]
    groups: dict[str, Group]


class Roofline(Record, kw_only=True):
    """What `ladder report --json` prints beside the header; without a measured step the floor alone.

    A phase, and the amortized `step`, have FLOPs, bytes and ms by name; `light_ms` is the floor. `recorded` are rates
    for later floors.
    """

    ladder: str | None
    rung: str
    recipe: Fields
    layout: str
    gpu: str
    ceilings: dict[str, Rate] = {}
    phases: dict[str, dict[str, float]] = {}
    step: dict[str, float] = {}
    in_step: dict[str, Lowered] = {}
    convolutions: list[Convolution] = []
    measured: Measured | None = None
    today: Today | None = None
    recorded: dict[str, float] | None = None
    floors_commit: str | None = None
