"""The rates from a step's trace: a part that ran faster there than alone gets the higher rate.

A ceiling is measured alone, on inputs that come from memory, in a loop that heats the GPU. In a step the same kernel
may find its inputs in the L2 cache and higher clocks. So each part of a step also has a rate from the trace: the work
in its floor over the time in which it ran. The rate is recorded and joined by maximum like any other. If it is above
the ceilings' rate, that part of the floor takes the traced time. So a floor is never above the measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ladder.base.records import needed, record
from ladder.receipts import kernel_families
from ladder.results import values as v
from ladder.results.schema import LINE, REAL

if TYPE_CHECKING:
    from ladder.studies.roofline.rates import Rate

KINDS = {
    "forward": kernel_families.FORWARD,
    "input gradient": kernel_families.DGRAD,
    "weight gradient": kernel_families.WGRAD,
}
CONVOLUTIONS, OTHERS, IDLE = "convolutions", "other kernels", "nothing runs"
PARTS = (*KINDS, CONVOLUTIONS, OTHERS)
UNCLEAR = (
    kernel_families.UNTOLD,
    kernel_families.SGEMM,
)  # of unknown kind, so their whole time is charged to each kind

Amounts = dict[str, float]  # by part: FLOPs a step, or bytes for other kernels


@record
class Kernels:
    """A family of kernels of a traced step: microseconds and kernels a step, and its heaviest kernel."""

    family: str = needed(LINE)
    us: float = needed(v.AMOUNT)
    kernels: float = needed(v.AMOUNT)
    heaviest: str = needed(LINE)


@record
class Group:
    """A part of a step: its time, its floor, and its part of the distance between both."""

    ms: float = needed(v.AMOUNT)
    floor_ms: float = needed(v.AMOUNT)
    of_distance: float | None = needed(REAL)


@record
class Lowered:
    """A part of the floor that a traced step has lowered, with its time by the ceilings alone."""

    alone_ms: float = needed(v.AMOUNT)
    ms: float = needed(v.AMOUNT)
    source: str = needed(LINE)


def key(part: str, amount: float, precision: str, layout: str) -> str:
    """Return the name of a rate in result files: the part, its work in a step, the precision and the layout."""
    what = "bytes" if part == OTHERS else "FLOPs"
    return f"step of {amount:.0f} {what}, {part}, {precision} {layout}"


def milliseconds(rows: Iterable[Kernels]) -> dict[str, float]:
    """Return each part's time in a traced step, from its rows of kernel families. A kind's time is an upper limit."""
    took = dict.fromkeys(PARTS, 0.0)
    for row in rows:
        ms, name = row.us / 1000, row.family
        took[CONVOLUTIONS if kernel_families.is_convolution(name) else OTHERS] += ms
        for kind, own in KINDS.items():
            took[kind] += ms if name == own or name in UNCLEAR else 0.0
    return took


def seen(
    amounts: Amounts, rows: Iterable[Kernels], precision: str, layout: str, matmul: float
) -> dict[str, float]:
    """Return the rates of a traced step by `key`.

    A convolution's rate above the matmul rate is left out: some of its kernels then had names of other kernels.
    """
    took = milliseconds(rows)
    found = {}
    for part, amount in amounts.items():
        if amount and took[part]:
            rate = 1000 * amount / took[part]
            if part == OTHERS or rate <= matmul:
                found[key(part, amount, precision, layout)] = rate
    return found


def lower(
    alone_ms: dict[str, float], amounts: Amounts, precision: str, layout: str, known: Mapping[str, Rate]
) -> tuple[dict[str, float], dict[str, Lowered]]:
    """Return by which factors each kind and the other kernels beat ``alone_ms``, and the reasons for factors below 1.

    ``alone_ms`` is the floor of a step by the ceilings. ``known`` are rates, each with its source.
    """
    factors: dict[str, float] = dict.fromkeys((*KINDS, OTHERS), 1.0)
    why: dict[str, Lowered] = {}
    for part in PARTS:
        rate = known.get(key(part, amounts[part], precision, layout))
        mine = KINDS if part == CONVOLUTIONS else (part,)
        before = sum(alone_ms[each] * factors[each] for each in mine)
        after = 1000 * amounts[part] / rate.value if rate else before
        if after < before:
            for each in mine:
                factors[each] *= after / before
            why[part] = Lowered(alone_ms=before, ms=after, source=rate.source)
    return factors, why


def below(groups: Mapping[str, Group]) -> list[str]:
    """Return the groups that took less than their floor, which `lower` should prevent."""
    return [name for name, group in groups.items() if group.ms < group.floor_ms * (1 - 1e-9)]
