"""PyTorch's defaults in FP32: what a careful first version of StyleGAN2 does before anyone optimizes it.

What it is. FP32 tensors in NCHW, no autocast, one kernel for each operation, a DataLoader without
workers, blocking copies, Adam as it comes. Each operation is spelled in the plain-PyTorch way that is
fastest in this setting, so that the ladder above it cannot win against a straw man. For modulated
convolution and for resampling there are several spellings that compute the same thing; which one the
baseline uses was decided by timing them all, with R1 and path length at their intervals
(results/spellings): dense convolutions with the style on the input and the demodulation on the output,
and resampling folded into one 3x3 convolution over 2x2 blocks of pixels. The usual depthwise filter is
as fast in the main phases and five times slower over a cycle, because PyTorch differentiates it twice
by way of very slow kernels.

Two defaults are worth knowing. cuDNN may use TF32 for FP32 convolutions, matmuls may not: "FP32" here
means what PyTorch means by it, and the settings in force are stored with every result. And `zero_grad`
has set gradients to None since PyTorch 2.0, so this rung asks for `set_to_none=False`, which was the
default before.

Where its time goes. A step at 256x256 and batch 8 is about 3,900 kernels, launched by Python one by one;
on one H200 the GPU waits for them during 8 to 20% of the step, as the host is. Keep that in mind on the way up: a rung
that makes kernels faster gains nothing as long as the CPU cannot launch them any sooner.
"""

from ladder.receipts import Receipt, judge, share, total

title = "FP32 baseline"
change: dict[str, object] = {}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Nothing is on that the recipe leaves off: it would be measured as if it belonged to the rungs."""
    recipe, settings = seen["recipe"], seen["settings"]
    full, nchw = (
        share(total(seen["flops"]), "float32"),
        share(total(seen["inputs"]), "nchw", of=("nchw", "nhwc")),
    )
    switches = ("fused_norm", "fused_act", "fused_update")
    fused = any(recipe.get(name) for name in switches) or "triton" in map(
        recipe.get, ("resample", "rgb", "dense")
    )
    checks = [
        (
            recipe.get("fp32_precision") == "tf32" or settings["matmul_fp32_precision"] != "tf32",
            f"TF32 in matmuls: {settings['matmul_fp32_precision']}",
        ),
        (
            recipe.get("cudnn_benchmark") or not settings["cudnn_benchmark"],
            f"cuDNN autotuning: {settings['cudnn_benchmark']}",
        ),
        (None, f"TF32 in FP32 convolutions, PyTorch's default: {settings['conv_fp32_precision']}"),
    ]
    if recipe["precision"] == "fp32":
        checks.append((full == 1, f"convolution FLOPs in FP32: {full:.3f}"))
    if not recipe["channels_last"]:
        checks.append((nchw > 0.9, f"convolution inputs in NCHW: {nchw:.2f} of bytes"))
    if not recipe["set_to_none"]:
        kept = seen["gradients"]["kept"]
        checks.append((kept > 0, f"gradients kept by zero_grad: {kept}"))
    if not fused:
        checks.append(
            (not seen["kernels"], f"fused kernels launched: {', '.join(seen['kernels']) or 'none'}")
        )
    if not recipe["cuda_graphs"]:
        checks.append((not seen["graphs"]["captured"], f"phases captured: {len(seen['graphs']['captured'])}"))
    return judge(*checks)
