"""Run work that nothing waits for on a second CUDA stream: weights' gradients, updates, G's moving average.

Change. In a backward pass each activation's gradient waits for the one before it. But no kernel reads the gradient of
a weight: only the optimizer does, at the end. So those of convolutions, demodulation, biases and large fully
connected layers are forked off to a second stream when their operands exist. They are joined before the update.
Captured, they are a parallel branch of the CUDA graph. The moving average of G needs weights of G that D's main phase
does not change, so it runs beside that phase. Autograd would add up a leaf's gradients on the first stream. A
collector of our own takes them instead (`kernels/linear/weight_gradients.py`) and leaves them in `.grad` after the
join. With `fused_update` that stream also updates most weights of a main phase. Backward passes D's deep layers
before the large maps, and all of G before its mapping. Their update begins there. The chain of activations is
captured at a higher priority: if both streams have blocks ready, it goes first. Code: `stylegan_lite/parallel.py`.

Why it should help. At 4x4 to 32x32 the two gradients of a convolution each fill a fraction of a large GPU. Side by
side they take the time of one. Work left over from large layers fills up the small ones that follow in G. A sum of
two contributions, the zeroing of a workspace and a kernel of 2 microseconds are no longer waited for, either.

When it does not. A full GPU has nothing to give: two kernels that each fill all multiprocessors take their time one
after the other, in any order. Blocks are not preempted, so a weight gradient that got in delays the chain. D's large
layers come last in its backward pass, and nothing small follows them. Both operands of each weight gradient must be
kept until the join. That takes memory as if no activation were freed during the backward pass. In an eager step that
waits for its launches there is nothing to run beside.
"""

from ladder.receipts import Receipt, judge

title = "parallel streams"
change = {"streams": "two"}
needs = ("cuda", "kept_weights")
# In an eager step its receipt found kernels at once for 0.1 ms of a step on an H200: the GPU waits for launches.
rests_on = ("cuda_graphs",)

COPIES = 0.75  # share of the convolution weights; a weight that is padded first is left to autograd
COPIES_RESHAPED = 0.25  # if up- and downsampling layers first make other weights of theirs: 26 of 64
AT_ONCE = 0.01  # share of the time that the GPU works; prefetching a batch overlaps by a tenth of that


def receipt(seen: dict) -> Receipt:
    """Check that every phase forks, most convolution weights get their gradient there, and kernels ran at once."""
    found, ms = seen["parallel"], seen["parallel"]["ms"]
    phases = found["phases"]
    copies, of, gradients = (sum(p[key] for p in phases.values()) for key in ("copies", "of", "gradients"))
    share = COPIES_RESHAPED if seen["recipe"]["resample"] in ("subpixel", "folded") else COPIES
    forks = ", ".join(f"{phase} {each['forks']}x" for phase, each in phases.items())
    return judge(
        (
            bool(phases) and all(each["forks"] > 0 for each in phases.values()),
            f"work on the second stream: {forks or 'none'}",
        ),
        (
            of > 0 and copies >= share * of,
            f"convolution weights with gradients from there: {copies} of {of} in {len(phases)} phases",
        ),
        (None, f"contributions to gradients of weights from there: {gradients}"),
        (
            None if ms is None else ms > AT_ONCE * found["busy_ms"],
            "two kernels at once: " + ("not profiled" if ms is None else f"{ms:.3f} ms a step"),
        ),
    )
