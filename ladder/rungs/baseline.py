"""Use PyTorch's defaults in FP32: a careful first version of StyleGAN2, before anyone optimizes it.

Baseline. FP32 tensors in NCHW, no autocast, one kernel for each operation, a DataLoader without workers, blocking
copies, Adam's defaults. Each operation is spelled in the plain-PyTorch way that is fastest in this setting. So the
ladder above it cannot win against a straw man. Modulated convolution and resampling have several spellings that
compute the same thing. The baseline's were chosen by timing them all, with R1 and path length at their intervals
(results/archive/spellings). Convolutions are dense, with the style on the input and the demodulation on the output.
Resampling is folded into one 3x3 convolution over 2x2 blocks of pixels. The usual depthwise filter is as fast in the
main phases but five times slower over a cycle. PyTorch differentiates it twice through very slow kernels.

Two defaults are worth knowing. First, cuDNN may use TF32 for FP32 convolutions, but matmuls may not. So "FP32" here
has PyTorch's meaning, and the settings in force are stored with every result. Second, `zero_grad` has set gradients
to None since PyTorch 2.0. This rung asks for `set_to_none=False`, the default before.

Time. A step is thousands of kernels, launched by Python one by one, and the GPU waits for them: on an H100 and an H200
during a quarter of the step. Keep that in mind on the way up: faster kernels gain nothing while the CPU cannot launch
them any sooner.
"""

from ladder.receipts import Receipt, judge, pair_of, share, total
from stylegan_lite.config import OF_PAIRS

title = "FP32 baseline"
change: dict[str, object] = {}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that nothing is on that the recipe leaves off: its gain would be missing from the rungs."""
    recipe, settings = seen["recipe"], seen["settings"]
    full, nchw = (
        share(total(seen["flops"]), "float32"),
        share(total(seen["inputs"]), "nchw", of=("nchw", "nhwc")),
    )
    switches = ("fused_norm", "fused_act", "fused_update", *OF_PAIRS)
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
        checks.append((full == 1 if seen["flops"] else None, f"convolution FLOPs in FP32: {full:.3f}"))
    if not recipe["channels_last"] and total(seen["inputs"]):
        judged = nchw > 0.9 if pair_of(seen)["own"] else None  # a user's code may lay out its images itself
        checks.append((judged, f"convolution inputs in NCHW: {nchw:.2f} of bytes"))
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
