"""Run the batch in two parts, one after the other, and add up their gradients (gradient accumulation).

Change. Each phase takes half of its samples through forward and backward, then the other half, then the optimizer.
Part k of n has the samples whose number leaves k when divided by n, so groups of minibatch standard deviation stay
whole. The averages over the batch are those of the whole: the mean of w waits for the last part. Path length needs
the mean length of all samples before its loss. So all parts run once for their lengths and once more for the loss.
Code: `stylegan_lite/step/micro.py`.

Why it should help. It is for memory. The activations of one part at a time make the peak, so a card trains with a batch
that does not fit. The update is that of the whole batch, and its cost is paid once.

When it does not. Small parts fill a GPU less, and each weight is read and its gradient added once a part. Path length
pays a forward and a backward pass more. Weights, optimizer and the graphs' pools stay as large as they are.
"""

from ladder.receipts import Receipt, judge_accumulation

title = "two micro-batches"
change = {"micro_batches": 2}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that D runs twice as often, each time on half of the samples."""
    return judge_accumulation(seen, 2)
