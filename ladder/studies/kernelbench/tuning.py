"""The files of `python -m kernels.tuning` and its modules filters, planes and sums: what `ladder validate` accepts."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from ladder.core.records import Amount, Bytes, Count, Identifier, Line, Record, Text, locate_problem, size
from ladder.results.check import Kind

R = TypeVar("R")
Layout = Literal["channels_last", "NCHW", "nchw", "nhwc"]
Shape = Annotated[list[Count], size(8, 1)]


class Run(Record, kw_only=True):
    """A shape that a candidate was timed at: its time, and the times of copies of the same bytes."""

    shape: Shape
    error: Line | None = None
    share: Amount | None = None
    bytes: Bytes | None = None
    microseconds: Amount | None = None
    copy_microseconds: Amount | None = None
    driver_copy_microseconds: Amount | None = None


Runs = Annotated[list[Run], size(32)]


class Key(Record):
    """What a row of `kernels.choices` is for."""

    op: Identifier
    direction: Identifier
    itemsize: Count
    layout: Layout
    architecture: Count
    size: Literal["small", "medium", "large"]


class Tile(Record):
    """What a row of `kernels.choices` says."""

    tile: Count
    columns: Count
    warps: Count
    per_sm: Count
    stages: Count


class Tuned(Record):
    """A tile of an op."""

    key: Key
    choice: Tile
    current: bool
    all_shapes: bool
    share: Amount
    runs: Runs


class Filtered(Record):
    """A configuration of a filter's kernel."""

    kernel: Line
    nhwc: bool
    config: Annotated[dict[Identifier, Amount | None], size(16)]
    current: bool
    runs: Runs


class Walk(Record):
    """How a kernel walks over planes."""

    per_sm: Amount
    hints: bool
    back: bool
    block: Count
    warps: Count
    stages: Count
    again: Count


class Planes(Record):
    """A configuration of the norm over planes; None: two launches."""

    direction: Literal["forward", "backward"]
    dtype: Literal["bfloat16", "float32"]
    noise: bool
    cache_share: Amount
    config: Walk | None
    current: bool
    candidates: Count
    runs: Runs


class Block(Record):
    """A block of a split sum."""

    rows: Count
    columns: Count
    warps: Count


class Summed(Record):
    """A configuration of a split sum, up to a number of elements."""

    most: Amount | None
    config: Block
    current: bool
    runs: Runs


class Tuning(Record, Generic[R], kw_only=True):
    """A file: all candidates of one table."""

    schema: Literal[1]
    kind: Line
    gpu: Text
    torch: Text
    timed: Annotated[list[R], size(10_000, 1)]
    notes: Annotated[list[Line], size(16)] = []


def _as_kind(name: str, row: Any) -> Kind:
    return Kind(name, lambda data: locate_problem(Tuning[row], data), hardware=False)


KINDS = (
    _as_kind("filter tuning", Filtered),
    _as_kind("planes tuning", Planes),
    _as_kind("sums tuning", Summed),
    _as_kind("tuning", Tuned),
)
