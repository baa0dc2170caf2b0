"""Compute demodulation coefficients of all layers together: a handful of launches instead of several a layer.

Change. A layer's coefficients, rsqrt(sum (w s)^2 + eps), depend on its weight and its style, and styles depend on w
alone. So nothing has to wait for the convolution before, and all are made before the first convolution. One kernel
sums each weight's squares over the 3x3 taps, one makes the coefficients. Backward, one kernel has all gradients of
styles and of those sums, and one goes from the sums to the weights. Path length's second derivatives, before matrix
products and elementwise kernels, are two launches. A weight that is used twice, as in path length, adds up its
gradients in the sums. They are a ninth of its size, and the weight is read once. With `weights: once` the sums are
kept beside the compute copies and made when weights change. The rung `fused_update` takes the sums' gradients as they
are, so that demodulation never writes a gradient as large as the weight. Code: `kernels/weights/demodulate_group.py`.

Why it should help. A layer of 512 x 512 x 3 x 3 is 9 MB: 2 microseconds of memory, but one kernel of few programs
takes longer. Thirteen layers side by side fill the GPU. Each phase launches four to nine kernels instead of 39, or in
path length of some 400.

When it does not. If weights are large or batches long, a layer fills the GPU by itself, and only launches are saved.
Without demodulation (`norm: instance`) there is nothing to group: the rung is n/a. The coefficients of the last layer
are held from the start of the pass on, which is some kilobytes.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "grouped demodulation"
change = {"demodulation": "grouped"}
needs = ("cuda", "triton", "demodulation")

# Launches in one run of each of the four phases: D_main has no gradient, D_r1 no generator, path length both twice.
MOST = {
    "weight_energies_kernel": 3,
    "weight_energies_grad_kernel": 2,
    "demodulate_group_kernel": 3,
    "demodulate_group_rows_kernel": 1,
    "demodulate_group_grad_kernel": 4,
}
TO_WEIGHTS = "weight_energies_grad_kernel"
SINGLE = ("demodulate_kernel", "demodulate_dweight_kernel", "demodulate_dstyle_kernel")


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched a few times for all layers, and that no layer makes its own coefficients."""
    counts = {name: seen["kernels"].get(name, {}).get("calls", 0) for name in MOST}
    recipe, sums = seen["recipe"], seen["energies"]
    inside = recipe["fused_update"]  # which takes the gradients of the sums as they are
    parts = recipe.get("micro_batches", 1)
    most = {
        name: each * parts + (parts if parts > 1 else 0) for name, each in MOST.items()
    }  # path length runs once more
    alone = sum(seen["kernels"].get(name, {}).get("calls", 0) for name in SINGLE)
    return judge(
        *launched(seen, *(name for name in MOST if not (inside and name == TO_WEIGHTS))),
        (
            all(counts[name] <= most[name] for name in MOST),
            f"launches in one run of each phase: {sum(counts.values())}, at most {sum(most.values())}",
        ),
        (not alone, f"launches for one layer alone: {alone}"),
        gone(seen, "demodulation", "normalize"),
        (
            recipe["weights"] == "per_use" or bool(sums["kept"] and not sums["stale"]),
            f"sums over taps that are kept: {sums['kept']}, not what their weight has become: {sums['stale']}",
        ),
    )
