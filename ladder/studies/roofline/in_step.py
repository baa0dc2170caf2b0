"""What the trace of a step says of rates: what ran faster there than when measured alone has the higher rate.

A ceiling is measured on its own, each call on inputs that come from memory, in a loop that heats the GPU. In a step the
same kernel may find its inputs in the L2 cache and higher clocks. So each part of a step has a rate from the trace too:
what its floor counts, over the time in which it ran. It is recorded and joined by maximum like any other rate, and
where it is above what the ceilings give, that part of the floor takes the time it took. A floor is never above what was
measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ladder.receipts import kernel_families

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
)  # may be of any kind, so each kind is charged with all of it

Amounts = dict[str, float]  # by part: FLOPs of a step, of other kernels bytes


def key(part: str, amount: float, precision: str, layout: str) -> str:
    """Names a rate in result files: of steps that have this much of this part to do, in this precision."""
    what = "bytes" if part == OTHERS else "FLOPs"
    return f"step of {amount:.0f} {what}, {part}, {precision} {layout}"


def milliseconds(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """What each part took in a traced step, from its rows of families of kernels; at most that, for a kind."""
    took = dict.fromkeys(PARTS, 0.0)
    for row in rows:
        ms, name = row["us"] / 1000, row["family"]
        took[CONVOLUTIONS if kernel_families.is_convolution(name) else OTHERS] += ms
        for kind, own in KINDS.items():
            took[kind] += ms if name == own or name in UNCLEAR else 0.0
    return took


def seen(
    amounts: Amounts, rows: Iterable[dict[str, Any]], precision: str, layout: str, matmul: float
) -> dict[str, float]:
    """Rates of a traced step by `key`.

    None of convolutions above the rate of matmuls: some then ran in kernels whose names are no convolution's.
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
    alone_ms: dict[str, float], amounts: Amounts, precision: str, layout: str, known: dict[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """By which factor each kind and the other kernels take less than ``alone_ms``, and why, where it is below 1.

    ``alone_ms`` is the floor of a step by the ceilings; ``known`` are rates, each with its source.
    """
    factors: dict[str, float] = dict.fromkeys((*KINDS, OTHERS), 1.0)
    why: dict[str, Any] = {}
    for part in PARTS:
        rate = known.get(key(part, amounts[part], precision, layout))
        mine = KINDS if part == CONVOLUTIONS else (part,)
        before = sum(alone_ms[each] * factors[each] for each in mine)
        after = 1000 * amounts[part] / rate.value if rate else before
        if after < before:
            for each in mine:
                factors[each] *= after / before
            why[part] = {"alone_ms": before, "ms": after, "source": rate.source}
    return factors, why


def below(groups: dict[str, dict[str, Any]]) -> list[str]:
    """Groups that took less than their floor: no floor, then. `lower` keeps it from happening."""
    return [name for name, group in groups.items() if group["ms"] < group["floor_ms"] * (1 - 1e-9)]
