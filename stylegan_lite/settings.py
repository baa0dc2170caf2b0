"""What is in force while a step runs: PyTorch's defaults, read back rather than assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep


def settings(step: TrainingStep) -> dict[str, Any]:
    """Precision flags (through the new API only: mixing it with the old one raises), cuDNN, Adam, threads."""
    cudnn = torch.backends.cudnn
    group = step.opt_G.param_groups[0]
    found = {
        "conv_fp32_precision": getattr(cudnn.conv, "fp32_precision", None)
        if hasattr(cudnn, "conv")
        else None,
        "matmul_fp32_precision": getattr(torch.backends.cuda.matmul, "fp32_precision", None),
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "adam_foreach": group["foreach"],
        "adam_fused": group["fused"],
        "adam_capturable": group["capturable"],
        "ema": "loop",
        "r1_gamma": step.workload.gamma,
        "cpu_threads": torch.get_num_threads(),
    }
    return {
        key: value if isinstance(value, (bool, int, float, str)) else None for key, value in found.items()
    }
