"""Run the networks in BF16 under autocast; keep weights, losses, penalties and statistics in FP32.

Change. Generator and discriminator run under `torch.autocast(dtype=torch.bfloat16)`. Parameters, Adam's moments and
the moving average stay FP32. The R1 and path-length penalties are squared, summed and scaled in FP32, from the input
gradient on. So are the minibatch standard deviation and the demodulation coefficients: sums of many squares suffer
most from eight bits of mantissa. Code: `stylegan_lite/step/phases.py`.

Why it should help. Every activation takes half the bytes. Tensor Cores run at twice the rate of TF32, which cuDNN may
use for FP32 convolutions. BF16 has the exponent range of FP32, so unlike FP16 it needs no loss scaling. No step is
skipped, and nothing must be synchronized to find out.

When it does not. Autocast casts weights in every forward pass, and each cast is a kernel to launch, as the launches
below show. At batch 8 on an H100 and an H200 the GPU's work shrank by a fifth, and the step did not. The GPU waited
for the CPU half of the time, so the gain arrives with `cuda_graphs`, under another rung's name. PyTorch's double
backward of a convolution is slower in BF16 too: R1 took 185 ms against 117 (results/archive/spellings). CPUs without
BF16 instructions emulate it, slowly.
"""

from ladder.receipts import FULL, Evidence, Receipt, judge, pair_of, share, total

title = "BF16 mixed precision"
change = {"precision": "bf16"}
needs = ("bf16",)


ISLANDS = (
    "mapping and affines",
    "losses and penalties",
    "minibatch std",
    "weights",
    "moments",
    "moving average",
)
DENSE = "dense_kernel"  # mapping and affines, if they are a kernel
# Fused kernels that hold nothing but statistics.
STATISTICS = ("demodulate_kernel", "demodulate_group_kernel", "join_moments_kernel")


def receipt(seen: dict) -> Receipt:
    """Check that convolutions compute in BF16; mapping, affines, losses, penalties, statistics and weights do not."""
    stages = ", ".join(f"{stage} {share(flops, 'bfloat16'):.3f}" for stage, flops in seen["flops"].items())
    islands = {name: seen["islands"].get(name, {}) for name in list_islands(seen)}
    if pair_of(seen)["own"]:  # what another pair computes inside of its networks is as autocast has it
        islands |= {k: v for k, v in seen["islands"].items() if k == "statistics"}
    islands |= {k: dict.fromkeys(seen["kernels"][k]["dtypes"]) for k in STATISTICS if k in seen["kernels"]}
    if DENSE in seen["kernels"]:
        islands["mapping and affines"] = islands["mapping and affines"] | dict.fromkeys(
            seen["kernels"][DENSE]["dtypes"]
        )
    if (
        "minibatch_std_kernel" in seen["kernels"]
    ):  # reads and writes BF16, computes in FP32, as its tests show
        islands["minibatch std"] = dict.fromkeys(FULL[:1])
    sunk = {name: ", ".join(sorted(set(found) - set(FULL))) for name, found in islands.items()}
    return judge(
        in_half(seen, "bfloat16", f"convolution FLOPs in BF16: {stages or 'none'}"),
        *((False, f"{name} in {dtypes}") for name, dtypes in sunk.items() if dtypes),
        *((False, f"{name}: not seen at all") for name, found in islands.items() if not found),
        (None, f"in full precision: {sum(not x for x in sunk.values())} of {len(sunk)} islands"),
    )


def list_islands(seen: Evidence) -> list[str]:
    """Return what must be in full precision: of another pair than StyleGAN2, what it has."""
    pair = pair_of(seen)
    if pair["own"]:
        return [*ISLANDS]
    there = {
        "losses and penalties": "losses and penalties" in seen["islands"],
        "weights": True,
        "moments": pair["adam"],
        "moving average": bool(pair["averages"]),
    }
    return [name for name in there if there[name]]


def in_half(seen: Evidence, dtype: str, line: str) -> tuple[bool, str]:
    """Return a check that convolutions compute in a half precision; of a pair without any, its matrix products."""
    if seen["flops"] or pair_of(seen)["own"]:
        return share(total(seen["flops"]), dtype) > 0.99, line
    products = share(seen["products"], dtype)
    return products > 0.5, f"no convolutions; FLOPs of matrix products in {dtype}: {products:.3f}"
