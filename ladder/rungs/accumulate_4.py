"""Run the batch in four parts, one after the other: a quarter of the activations at a time.

Change. The batch is cut into four parts, as `accumulate_2` cuts it into two.

Why it should help. Activations shrink with the number of parts. It is for batches that would not fit otherwise.

When it does not. Each part pays its launches, its reads of all weights and its additions to their gradients. Parts must
be multiples of the groups of minibatch standard deviation: a batch of 16 is the least with groups of four.
"""

from ladder.receipts import Receipt, judge_accumulation

title = "four micro-batches"
change = {"micro_batches": 4}
needs: tuple[str, ...] = ()
rests_on = ("accumulate_2",)  # it cuts the batch further


def receipt(seen: dict) -> Receipt:
    """Check that D runs four times as often, each time on a part of the samples."""
    return judge_accumulation(seen, 4)
