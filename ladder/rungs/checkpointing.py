"""Keep the results of convolutions, and recompute the fused passes between them in backward (checkpointing).

Change. Two convolutions have one fused kernel between them: a filter, an activation, a style. The kernel keeps its
input for its gradient. The next convolution keeps the kernel's result for the gradient of its weight. In the main
phases only the input stays. The kernel runs once more when a gradient needs its result, and the result is freed after
its last use. So no 3x3 convolution runs twice, and the numbers are equal bit by bit. The lazy phases stay as they are:
their graphs are differentiated twice. Without `fused_modulation`, and with instance norm, each block runs once more as
a whole, by `torch.utils.checkpoint`. Code: `stylegan_lite/step/recompute.py`.

Why it should help. It saves memory, not time. These results are about half of what autograd keeps. Whole blocks cost
28% of the step on an H100, most of it convolutions (docs/log.md). The passes alone cost 6.5%. One result is in memory
at a time, where a block that runs again holds all of its maps at once.

When it does not. R1 and path length keep their graphs, so the peak of a whole cycle may be theirs: with whole blocks it
fell by 7%. Two streams hold what weight gradients read until backward ends, so the recipe refuses both together.
`accumulate_2` costs 11% of the step and frees three times as much.
"""

from ladder.receipts import Receipt, judge, pair_of, taken

title = "activation checkpointing"
change = {"checkpointing": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check what backward runs once more: passes where the recipe fuses them, blocks elsewhere."""
    if not (pair := pair_of(seen))["own"]:
        return judge((pair["recomputed"] > 0, f"blocks run once more: {pair['recomputed']}x"))
    blocks = {name: len(seen["passes"].get(name, [])) for name in ("SynthesisBlock", "DiscriminatorBlock")}
    fused = seen["recipe"].get("fused_modulation") and seen["norm"] == "demod"
    if fused and not any(blocks.values()):  # Older commits run blocks again there, too.
        return passes(seen)
    return whole(seen, blocks)


def passes(seen: dict) -> Receipt:
    """Check that the main phases run each pass between two convolutions once more, and no other phase does."""
    parts = seen["recipe"].get("micro_batches", 1)
    learning = {"Generator": parts, "Discriminator": parts * (1 if seen["recipe"]["joint_batch"] else 2)}
    checks: list[tuple[bool | None, str]] = []
    for op, network in OPS.items():
        kernel = seen["kernels"].get(f"{op}_kernel", {})
        again, forward = kernel.get("backward", 0), len(seen["passes"].get(network, []))
        first = kernel.get("calls", 0) - again
        # A forward pass of the network launches as many as any other of its forward passes.
        found = again > 0 and again * forward == first * learning[network]
        instead = taken(seen, op)
        checks.append((found or bool(instead), f"{op} in backward: {again}x, in forward {first}x{instead}"))
    return judge(*checks)


# The passes whose kernels no gradient of a lazy phase launches, and the network that has them.
OPS = {
    "act_filter": "Discriminator",
    "filter_act_modulate": "Generator",
    "bias_act_modulate": "Generator",
}


def whole(seen: dict, again: dict[str, int]) -> Receipt:
    """Check that each block of each main phase runs once more, and no block of a lazy phase."""
    parts, recipe = seen["recipe"].get("micro_batches", 1), seen["recipe"]
    blocks = again["SynthesisBlock"] // parts
    passes = 2 if recipe["joint_batch"] else 3  # of D, in the main phases of both networks
    found = blocks > 0 and again == {
        "SynthesisBlock": parts * blocks,
        "DiscriminatorBlock": passes * parts * (blocks - 1),  # D has none at 4x4
    }
    said = ", ".join(f"{name} {count}x" for name, count in again.items())
    return judge((found, f"blocks run once more: {said}"))
