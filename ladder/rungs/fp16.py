"""Run the networks in FP16 under autocast, with a loss scale for G and one for D.

What changes. `torch.autocast(dtype=torch.float16)`, where `bf16` says bfloat16. FP16 has 11 bits of mantissa to BF16's
8, but its smallest number is 6e-8 and its largest 65504: gradients vanish below the one, activations and gradients
overflow above the other. So each network's losses are multiplied by a scale of its own before backward, and its
gradients divided by it before Adam; an update whose gradients overflowed is skipped and the scale halved, and after
2,000 updates without one it is doubled. The inner gradients of R1 and path length are backward passes, too: they carry
the scale and are divided by it before a penalty is made of them. Adam is fused (`fused_adam`): it reads on the GPU
whether to skip, where `torch.amp.GradScaler` with any other optimizer asks the GPU and waits for its answer, which a
CUDA graph cannot do. Scales, skipped updates and their counts live on the device.

Why it should help. Half the bytes of FP32 and the same Tensor Core rate as BF16, on GPUs from before 2020 too, which
have no BF16. Products are rounded eight times finer than in BF16, so its parity budget is narrower.

When it does not. Where there is BF16 it is not faster: the arithmetic runs at the same rate, and looking for overflow
reads and writes every gradient once more. Path length's inner gradient is the sum over a whole image and needs a far
smaller scale than G's main loss; as they share a scale, the first updates of path length are skipped until it has come
down to that, and whenever it has grown. A network whose activations grow beyond 65504 cannot be trained like this at
any scale.
"""

from ladder.receipts import FULL, Receipt, judge, share, total
from ladder.rungs.bf16 import STATISTICS

title = "FP16 mixed precision"
change = {"precision": "fp16", "fused_adam": True, "ema": "foreach"}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """Convolutions compute in FP16, weights and statistics do not; both scales are on the device and are updated."""
    scales = seen.get("scales", {})
    islands = {name: set(seen["islands"].get(name, {})) for name in ("weights", "moments", "moving average")}
    islands |= {name: set(seen["kernels"][name]["dtypes"]) for name in STATISTICS if name in seen["kernels"]}
    sunk = sorted(name for name, found in islands.items() if found - set(FULL))
    in_half = share(total(seen["flops"]), "float16")
    return judge(
        (in_half > 0.99, f"convolution FLOPs in FP16: {in_half:.3f}"),
        (set(scales) == {"G", "D"}, f"loss scales: {', '.join(scales) or 'none'}"),
        *(
            (each["updates"] > 0, f"{name}: {each['updates']:.0f} updates, {each['skipped']:.0f} skipped")
            for name, each in scales.items()
        ),
        (
            not sunk,
            f"not in full precision: {', '.join(sunk) or 'nothing that must be'} ({len(islands)} seen)",
        ),
    )
