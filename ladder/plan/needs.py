"""The needs that a rung may have, of the machine and of the workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ladder.machine import system
from stylegan_lite.config import OF_LAYERS, OF_PAIRS
from stylegan_lite.shares import holds_parts

# Needs of the workload, and the field that meets each: see `possible`.
FIELDS = {
    "demodulation": "norm: demod",
    "instance_norm": "norm: instance",
    "spectral_norm": "spectral_norm: true",
    "kept_weights": "spectral_norm: false",
    "no_clamp": "conv_clamp: null",
}
OF_WORKLOAD = tuple(FIELDS)

# ladder.machine.system.list_capabilities
OF_MACHINE = ("cuda", "triton", "bf16", "cuda_graphs", "nvcc", "nvjpeg", "fp8", "dependent_launch")

# Several processes, which `ladder scale` and torchrun start.
RANKS = "ranks"
ONE_PROCESS = "needs a process for each GPU: ladder scale measures it"

PARTS = (2, 4, 8)  # of a batch, which rungs cut

# Fields of a recipe, and what a user's pair must have for them (`ladder.engine.pair.list_facts`).
OF_PAIR = {
    **dict.fromkeys(OF_LAYERS, "layers"),
    "workers": "loading",
    "compile": "compile",
    **dict.fromkeys(("cached_images", "gpu_decode", "prefetch_stream"), "images"),
    **dict.fromkeys(("cuda_graphs", "whole_step_graph", "graph_fills"), "graphs"),
    "fused_adam": "adam",
    "channels_last": "conv2d",
    "checkpointing": "blocks",
    "micro_batches": "split",
    **{field: field for field in OF_PAIRS},
}
PAIRS = "it is for pairs of your own (--model): StyleGAN2 has other layers, or a rung of its own for it"
LAYERS = "it is about layers of StyleGAN2"

NEEDS = (*OF_MACHINE, *OF_WORKLOAD, RANKS)


def join_capabilities(
    capabilities: dict[str, str | None], workload: Mapping[str, Any]
) -> dict[str, str | None]:
    """Return a machine's capabilities and the workload's: {need: None if it is met, else one line}."""
    norm, clamp, is_normed = workload["norm"], workload.get("conv_clamp"), workload.get("spectral_norm")
    kept = "needs weights that convolutions take as they are kept, not spectral_norm: true"
    return {
        **capabilities,
        "demodulation": None if norm == "demod" else f"needs demodulation, this workload has norm: {norm}",
        "instance_norm": None
        if norm == "instance"
        else f"needs norm: instance, this workload has norm: {norm}",
        "spectral_norm": None if is_normed else "needs a workload with spectral_norm: true",
        "kept_weights": kept if is_normed else None,
        "no_clamp": None
        if clamp is None
        else f"needs activations without a bound, not conv_clamp: {clamp:g}",
        RANKS: ONE_PROCESS,
        **dict.fromkeys(OF_PAIRS, PAIRS),
        **{f"micro_batches: {n}": _check_parts(n, workload) for n in PARTS},
    }


def list_able(
    device: str, workload: Mapping[str, Any], facts: Mapping[str, Any] | None = None
) -> dict[str, str | None]:
    """Return the capabilities of this machine and of a workload, or of the user's pair that `facts` are of."""
    able = system.list_capabilities(device)
    return join_capabilities(able, workload) if facts is None else join_pair(able, facts)


def join_pair(capabilities: dict[str, str | None], facts: Mapping[str, Any]) -> dict[str, str | None]:
    """Return a machine's capabilities and those of a user's pair."""
    known = {key: facts[key] for key in OF_PAIR.values() if key in facts}
    return {
        **capabilities,
        **dict.fromkeys(OF_WORKLOAD, LAYERS),
        "layers": LAYERS,
        RANKS: ONE_PROCESS,
        **known,
    }


def _check_parts(n: int, workload: Mapping[str, Any]) -> str | None:
    batch = workload.get("batch", 0)
    group = min(workload.get("mbstd_group", 1), batch)
    if holds_parts(batch, n, group):
        return None
    return f"needs a batch of {n} parts of mbstd_group ({group}), or a multiple; this workload has batch: {batch}"


def of_change(change: Mapping[str, Any], capabilities: dict[str, str | None]) -> str | None:
    """Return why the workload behind these capabilities cannot be trained with a rung's change, or None."""
    reasons = (capabilities.get(OF_PAIR[field]) for field in change if field in OF_PAIR)
    if why := next((reason for reason in reasons if reason is not None), None):
        return why if why == PAIRS else f"not for this pair: {why}"
    return capabilities.get(f"micro_batches: {change.get('micro_batches', 1)}")
