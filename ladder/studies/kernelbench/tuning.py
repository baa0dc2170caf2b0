"""The files of `python -m kernels.tuning` and its modules filters, planes and sums: what `ladder validate` accepts."""

from __future__ import annotations

from typing import Annotated, Literal

from ladder.core.records import Amount, Bytes, Count, Identifier, Line, Record, Text, size_between
from ladder.results.loading import Kind

Numbers = Annotated[dict[Identifier, Amount | bool | None], size_between(16)]


class Run(Record, kw_only=True):
    """A shape that a candidate was timed at: its time, and the times of copies of the same bytes."""

    shape: Annotated[list[Count], size_between(8, 1)]
    error: Line | None = None
    share: Amount | None = None
    bytes: Bytes | None = None
    microseconds: Amount | None = None
    copy_microseconds: Amount | None = None
    driver_copy_microseconds: Amount | None = None


class Candidate(Record, kw_only=True):
    """A row of a table: what it is for, what it says (`choice` or `config`; None: two launches), and its times."""

    current: bool
    runs: Annotated[list[Run], size_between(32)]
    key: Annotated[dict[Identifier, Count | Identifier], size_between(16)] = {}
    choice: Annotated[dict[Identifier, Count], size_between(16)] = {}
    config: Numbers | None = None
    all_shapes: bool | None = None
    nhwc: bool | None = None
    noise: bool | None = None
    kernel: Line | None = None
    direction: Literal["forward", "backward"] | None = None
    dtype: Literal["bfloat16", "float32"] | None = None
    share: Amount | None = None
    cache_share: Amount | None = None
    candidates: Count | None = None
    most: Amount | None = None


class Tuning(Record, kw_only=True):
    """A file: all candidates of one table."""

    schema: Literal[1]
    kind: Line
    gpu: Text
    torch: Text
    timed: Annotated[list[Candidate], size_between(10_000, 1)]
    notes: Annotated[list[Line], size_between(16)] = []


NAMES = ("filter tuning", "planes tuning", "sums tuning", "tuning")
KINDS = tuple(Kind(name, Tuning) for name in NAMES)
