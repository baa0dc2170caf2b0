"""Run work that nothing waits for on a second CUDA stream: weights' gradients, updates, G's moving average.

Change. A backward pass is a chain: each activation's gradient waits for the one before it. Gradients of weights are
outside of the chain, because only the optimizer reads them, at the end. Those of convolutions, demodulation, biases
and large fully connected layers go to a second stream as soon as their operands exist. Before the update the first
stream waits for the second. In a CUDA graph the second is a parallel branch. Autograd would add up the gradients of a
weight on the first stream. A collector of our own does so on the second and fills `.grad` at the end
(`kernels/linear/weight_gradients.py`).

Two more kinds of work go there. The moving average of G runs beside D's main phase, which does not change G. With
`fused_update` most weights of a main phase are updated there, too. D's deep layers are updated while the chain
still passes the large maps. All of G but its mapping is updated while the chain passes the mapping. The chain is
captured at a higher priority: if both streams have blocks ready, it goes first. Code: `stylegan_lite/step/parallel.py`.

Why it should help. At 4x4 to 32x32 the two gradients of a convolution each fill a fraction of a large GPU. Side by side
they take the time of one. In G, small layers follow the large ones in backward, so what is left of the large ones fills
the GPU beside them. The chain does not wait for sums of two gradients or for zeroed workspaces, either.

When it does not. A full GPU has nothing to give: two kernels that each fill all multiprocessors take their time one
after the other, in any order. Blocks are not preempted, so a weight gradient that has started delays the chain. D's
large layers come last in its backward pass, and nothing small follows them. Both operands of each weight gradient are
kept until the streams meet. That takes memory as if no activation were freed during the backward pass. An eager step
waits for its launches, so nothing is there to run beside.
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
