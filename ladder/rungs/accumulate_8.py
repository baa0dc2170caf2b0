"""Run the batch in eight parts, one after the other: an eighth of the activations at a time.

Change. The batch is cut into eight parts, as `accumulate_2` cuts it into two.

Why it should help. Activations shrink with the number of parts. It is for batches that would not fit otherwise.

When it does not. Each part pays its launches, its reads of all weights and its additions to their gradients. Parts must
be multiples of the groups of minibatch standard deviation: a batch of 32 is the least with groups of four.
"""

from ladder.receipts import Receipt, judge_accumulation

title = "eight micro-batches"
change = {"micro_batches": 8}
needs: tuple[str, ...] = ()
rests_on = ("accumulate_2", "accumulate_4")  # it cuts the batch further


def receipt(seen: dict) -> Receipt:
    """Check that D runs eight times as often, each time on a part of the samples."""
    return judge_accumulation(seen, 8)
