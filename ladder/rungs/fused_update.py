"""Let Adam read gradients where backward left them, and write the weights that the next step computes with.

Change. `weights: once` takes four passes. It casts and scales each convolution weight's gradient to float32 and adds
it to demodulation's in `.grad`. Then it runs Adam, and writes the compute copies from the new weights. The kernel
`kernels.adam` does all of them in one. It takes the BF16 gradient times its gain, adds the float32 one if there is
one, and updates moments and weight. It stores the next copy in its own layout, turned if the convolution is
transposed. It finds the tensors of a whole network in a table of addresses. So a phase's update is three launches:
one counts steps, one updates the plain layouts, one the turned ones. Code: `stylegan_lite/step/update.py`,
`kernels/weights/adam.py`.

Why it should help. PyTorch's fused Adam moves 28 bytes a parameter, and the passes around it another 18 to 30. They
read a gradient in BF16, write and read it again in float32, read a weight again and write its copy. Here it is 30, or
22 with beta1 = 0: the first moment is then the gradient, and not kept. With 49 million parameters in the
article's two networks each pass of 4 bytes takes 0.05 ms at 4 TB/s.

When it does not. The saving is the same at any batch and resolution, so its share fades if these are large. If few
weights belong to convolutions, there is little to join. The order of additions differs from PyTorch's in the last
bits, as `fused` differs from `foreach`.
"""

from ladder.receipts import Receipt, judge, launched

title = "fused update"
change = {"fused_update": True}
needs = ("cuda", "triton")

PHASES = 4
PARTS = {"one": 1, "two": 2}  # of an update: with a second stream most of it may begin beside backward


def receipt(seen: dict) -> Receipt:
    """Check that each phase launches our kernel, PyTorch's Adam never runs, and the copies equal their new weights."""
    calls, copies = seen["adam"]["calls"], seen["copies"]
    ours = {k: seen["kernels"].get(k, {}).get("calls", 0) for k in ("adam_kernel", "adam_steps_kernel")}
    theirs = calls.get("fused", 0) + calls.get("foreach", 0)
    return judge(
        *launched(seen, "adam_steps_kernel", "adam_kernel"),
        (
            all(count == PHASES * PARTS[seen["recipe"]["streams"]] for count in ours.values()),
            f"launches in one run of each phase: {', '.join(f'{k} {n}' for k, n in ours.items())}",
        ),
        (not theirs, f"PyTorch's Adam kernels called {theirs}x"),
        (
            bool(copies["kept"]) and not copies["stale"],
            f"copies: {sum(copies['kept'].values())}, not what their weight has become: {copies['stale']}",
        ),
    )
