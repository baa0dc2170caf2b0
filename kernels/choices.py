"""The table of tile sizes: how each kernel covers an activation.

The rows were measured with `python -m kernels.tuning`. Six facts choose a row: op, direction, element size, memory
format, the GPU's architecture and the size of the activation. So the same call always runs the same kernel with the
same order of sums. A timed run never tunes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Choice(NamedTuple):
    """The amount that a program holds at a time, and the number of programs."""

    tile: int  # elements; 16 bytes for each thread is the least that uses the memory bus well
    columns: int  # channels of a tile, at most (channels_last memory); the rest of the tile is pixels
    warps: int
    per_sm: int = 0  # programs for each SM, which walk over the tiles; 0: one program for each tile
    stages: int = 1  # tiles on their way from memory at once; more than one goes through shared memory


class Key(NamedTuple):
    """The facts that a choice depends on. In the table None stands for any value."""

    op: str
    direction: str  # forward, backward, double_backward
    itemsize: int | None = None  # of x, in bytes
    layout: str | None = None  # nhwc, nchw
    architecture: int | None = None  # compute capability: 90 for H100 and H200
    size: str | None = None  # small, medium, large


SMALL = 1 << 20  # elements; up to here a launch costs as much as the work, so sums are finished in one launch
MEDIUM = 1 << 26  # elements; below it an H200 needs 50 us. Without a "medium" row the "large" row counts.
# scaled_bias_act: with noise, scale and three sums.
OPS = ("bias_act", "scaled_bias_act", "modulate", "instance_norm_act")
DIRECTIONS = ("forward", "backward", "double_backward")
# The end of a key: 16-bit channels_last activations, as the ladder's top has them.
H200 = (2, "nhwc", 90, "large")
H200_MEDIUM = (*H200[:3], "medium")

# The matching row that names the most facts counts; among equals, the last row.
TABLE: dict[Key, Choice] = {
    # Reads and writes only: a program for each tile, two 16-byte loads for each thread, 12 or more resident programs.
    Key("bias_act", "forward"): Choice(2048, 512, 4),
    Key("scaled_bias_act", "forward"): Choice(2048, 512, 4),
    Key("modulate", "forward"): Choice(2048, 512, 4),
    Key("instance_norm_act", "forward"): Choice(2048, 512, 4, 8),
    # With sums: one wave of programs that walk. A thread keeps a sum for each element that it holds of a tile. So
    # registers bound the number of resident programs (bias_act 12, modulate 10, scaled_bias_act 4), and they make one
    # wave. Few resident programs fetch tiles ahead, to keep the memory bus full.
    Key("bias_act", "backward"): Choice(2048, 512, 4, 12),
    Key("scaled_bias_act", "backward"): Choice(2048, 512, 4, 4, 3),
    Key("modulate", "backward"): Choice(2048, 512, 4, 10),
    Key("instance_norm_act", "backward"): Choice(2048, 512, 4, 4, 2),
    Key("bias_act", "double_backward"): Choice(2048, 512, 4, 12),
    Key("scaled_bias_act", "double_backward"): Choice(2048, 512, 4, 5, 2),
    Key("modulate", "double_backward"): Choice(2048, 512, 4, 8, 2),
    Key("instance_norm_act", "double_backward"): Choice(1024, 512, 4, 4, 2),
    # float32: as many bytes for each thread, and no more registers.
    Key("bias_act", "forward", 4): Choice(1024, 256, 4),
    Key("scaled_bias_act", "forward", 4): Choice(1024, 256, 4),
    Key("modulate", "forward", 4): Choice(1024, 256, 4),
    # Small maps: narrow columns. One program then sees all pixels of a sample, and no second launch is needed.
    **{Key(op, d, size="small"): Choice(2048, 32, 4, 1) for op in OPS for d in DIRECTIONS[1:]},
    Key("instance_norm_act", "forward", size="small"): Choice(2048, 32, 4, 1),
    # Measured on one H200 at large maps, where the rows above lost more than 1% (geometric mean over four shapes):
    # results/kernels/nvidia-h200-tuning.json. Each percentage is the share of a copy's speed; "before" is the share
    # with the rows above.
    Key("scaled_bias_act", "forward", *H200): Choice(8192, 512, 8),  # 98.4%, before 95.8%
    Key("instance_norm_act", "forward", *H200): Choice(2048, 512, 4, 4, 3),  # 52.2%, before 47.3%
    Key("bias_act", "backward", *H200): Choice(4096, 512, 8, 2),  # 93.2%, before 83.0%
    Key("modulate", "backward", *H200): Choice(4096, 512, 8, 4),  # 91.5%, before 87.3%
    Key("instance_norm_act", "backward", *H200): Choice(2048, 512, 4, 4, 3),  # 55.0%, before 49.1%
    Key("bias_act", "double_backward", *H200): Choice(1024, 512, 4, 8),  # 99.3%, before 97.2%
    Key("scaled_bias_act", "double_backward", *H200): Choice(2048, 512, 4, 12, 3),  # 92.6%, before 84.3%
    Key("modulate", "double_backward", *H200): Choice(2048, 512, 4, 12, 3),  # 92.2%, before 88.7%
    Key("instance_norm_act", "double_backward", *H200): Choice(2048, 512, 4, 4, 3),  # 53.9%, before 39.7%
    # The same at medium maps, where a smaller number of rows of sums matters more:
    # results/kernels/nvidia-h200-tuning-medium-backward.json.
    Key("bias_act", "backward", *H200_MEDIUM): Choice(4096, 64, 4, 4),  # 84.4%, before 75.2%
    Key("modulate", "backward", *H200_MEDIUM): Choice(4096, 64, 4, 4),  # 82.6%, before 75.1%
}

_chosen: dict[Key, Choice] = {}
_noted: dict[tuple[str, str], str] = {}
_forced: list[Choice] = []


def size_of(elements: int) -> str:
    """Return the size class of this many elements: small, medium or large."""
    return "small" if elements <= SMALL else "medium" if elements < MEDIUM else "large"


def row(wanted: Key) -> Key:
    """Return the row of the table that decides."""
    sizes = [wanted] if wanted.size != "medium" else [wanted, wanted._replace(size="large")]
    rows = [
        key
        for key in TABLE
        if any(all(k in (None, w) for k, w in zip(key, each, strict=True)) for each in sizes)
    ]
    return max(reversed(rows), key=lambda key: (sum(k is not None for k in key), key.size == wanted.size))


def choose(op: str, direction: str, itemsize: int, layout: str, architecture: int, size: str) -> Choice:
    """Return the table's choice for a call, and remember it for `chosen`."""
    if _forced:
        return _forced[-1]
    wanted = Key(op, direction, itemsize, layout, architecture, size)
    return _chosen.setdefault(wanted, TABLE[row(wanted)])


@contextmanager
def forced(choice: Choice) -> Iterator[None]:
    """Give every call this choice while entered, for tuning. Call `tiles.tiling.cache_clear` before and after."""
    _forced.append(choice)
    try:
        yield
    finally:
        _forced.pop()


def note(op: str, case: str, entry: NamedTuple) -> None:
    """Remember for `used` a decision of another op's table: the case that a call is, and the entry."""
    said = (f"{name} {value}" for name, value in entry._asdict().items() if value is not None)
    _noted[op, case] = ", ".join(said)


def used() -> list[dict]:
    """Return the decisions of this process so far.

    First come rows of the table, by the parts of a call that they name, each with its choice. Then come the noted
    decisions, as "op", "case" and "entry".
    """
    rows = {row(key): choice for key, choice in _chosen.items()}
    own = [
        {name: value for name, value in key._asdict().items() if value is not None} | choice._asdict()
        for key, choice in sorted(rows.items(), key=lambda each: [str(value) for value in each[0]])
    ]
    return own + [{"op": op, "case": case, "entry": said} for (op, case), said in sorted(_noted.items())]


def chosen() -> list[dict]:
    """Return the choices that this process has used so far, as plain data to be stored with results."""
    return [key._asdict() | choice._asdict() for key, choice in sorted(_chosen.items())]
