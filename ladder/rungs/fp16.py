"""Run the networks in FP16 under autocast, with a loss scale for G and one for D.

Change. Autocast gets `torch.float16` instead of the bfloat16 of `bf16`. FP16 has 11 bits of mantissa to BF16's 8, but
its smallest number is 6e-8 and its largest 65504. Smaller gradients vanish, larger activations and gradients
overflow. So each network's losses are multiplied by its own scale before backward, and its gradients divided by it
before Adam. An update with overflowed gradients is skipped and the scale halved; after 2,000 updates without overflow
it is doubled. The inner gradients of R1 and path length are backward passes, too. They carry the scale and are
divided by it before the penalty. Adam is fused (`fused_adam`): it reads on the GPU whether to skip. With any other
optimizer `torch.amp.GradScaler` asks the GPU and waits for its answer, which a CUDA graph cannot do. Scales, skipped
updates and their counts live on the device. Code: `stylegan_lite/step/scaling.py`.

Why it should help. FP16 has half the bytes of FP32 and the same Tensor Core rate as BF16, also on GPUs from before
2020, which have no BF16. Products are rounded eight times finer than in BF16, so its parity budget is narrower.

When it does not. It is not faster than BF16 if the GPU has that. The arithmetic runs at the same rate, and the search
for overflow reads and writes every gradient once more. Path length's inner gradient is a sum over a whole image and
needs a far smaller scale than G's main loss. They share a scale, so the first updates of path length are skipped
until it is that small, and again whenever it has grown. A network whose activations grow beyond 65504 cannot be
trained like this at any scale.
"""

from ladder.receipts import FULL, Receipt, judge, pair_of, share, total
from ladder.rungs.bf16 import STATISTICS, in_half, list_islands

title = "FP16 mixed precision"
change = {"precision": "fp16", "fused_adam": True, "ema": "foreach"}
needs = ("cuda",)

LEAVES = ("weights", "moments", "moving average")


def receipt(seen: dict) -> Receipt:
    """Check that convolutions compute in FP16, weights and statistics do not, and both loss scales are updated."""
    scales = seen.get("scales", {})
    islands = {name: set(seen["islands"].get(name, {})) for name in list_islands(seen) if name in LEAVES}
    islands |= {name: set(seen["kernels"][name]["dtypes"]) for name in STATISTICS if name in seen["kernels"]}
    sunk = sorted(name for name, found in islands.items() if found - set(FULL))
    halves = share(total(seen["flops"]), "float16")
    return judge(
        in_half(seen, "float16", f"convolution FLOPs in FP16: {halves:.3f}"),
        (set(scales) == {*pair_of(seen)["trained"]}, f"loss scales: {', '.join(scales) or 'none'}"),
        *(
            (each["updates"] > 0, f"{name}: {each['updates']:.0f} updates, {each['skipped']:.0f} skipped")
            for name, each in scales.items()
        ),
        (
            not sunk,
            f"not in full precision: {', '.join(sunk) or 'nothing that must be'} ({len(islands)} seen)",
        ),
    )
