"""The receipt that the rungs of gradient accumulation share."""

from __future__ import annotations

from ladder.receipts.receipt import Receipt, judge
from ladder.receipts.seen import Evidence


def in_parts(seen: Evidence, parts: int) -> Receipt:
    """Check that every phase of D has so many parts of one size. With joint batches D_main has parts of both kinds."""
    batches = seen["passes"].get("Discriminator", [])
    one = min(batches, default=0)
    joint = [2 * one] if seen["recipe"]["joint_batch"] else [one, one]
    said = f"batches D is given: {', '.join(map(str, batches)) or 'none'}"
    return judge((one > 0 and sorted(batches) == sorted([one, one, *joint] * parts), said))
