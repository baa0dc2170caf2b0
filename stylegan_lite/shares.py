"""The rules between the fields of a recipe and a workload, and the samples of a batch that belong to a rank.

`workload.batch` is always the total. Rank r of n takes the samples whose number leaves r when divided by n. Minibatch
standard deviation has strided groups: sample k is in group k mod (batch / group). So a rank holds whole groups wherever
its batch is a multiple of the group. Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stylegan_lite.config import Recipe, Workload

AUTOGRAD = ("ddp", "data_parallel")  # ways that see only the gradients that autograd accumulates


def processes(recipe: Recipe) -> int:
    """Return how many processes train together. `nn.DataParallel` is one process with several GPUs."""
    return 1 if recipe.reduce == "data_parallel" else recipe.ranks


def problem(recipe: Recipe) -> str | None:
    """Return one line if the recipe's fields about ranks contradict others, else None."""
    if recipe.ranks < 1:
        return f"ranks must be at least 1, got {recipe.ranks}"
    if recipe.ranks > 1 and recipe.reduce == "none":
        return (
            f"ranks: {recipe.ranks} needs reduce: flat, ddp or data_parallel (how their gradients become one)"
        )
    if recipe.reduce != "none" and recipe.compile != "off":
        return (
            f"reduce: {recipe.reduce} needs compile: off (a compiled loss cannot hold the means over ranks)"
        )
    if why := _memory_problem(recipe):
        return why
    if recipe.reduce not in AUTOGRAD:
        return None
    around = {
        "fused_update: true": recipe.fused_update,
        "streams: two": recipe.streams == "two",
        "weights: once": recipe.weights == "once",
    }
    if found := next((field for field, on in around.items() if on), None):
        return f"reduce: {recipe.reduce} cannot see gradients of {found}, outside autograd; take reduce: flat"
    if recipe.cuda_graphs:
        return f"reduce: {recipe.reduce} needs cuda_graphs: false; captured in a graph is reduce: flat"
    if recipe.reduce == "data_parallel" and recipe.joint_batch:
        return "reduce: data_parallel needs joint_batch: false (it would give fakes to one GPU and reals to another)"
    return None


def _memory_problem(recipe: Recipe) -> str | None:
    """Return one line if micro-batches or checkpointing contradict other fields, else None."""
    if recipe.micro_batches < 1:
        return f"micro_batches must be at least 1, got {recipe.micro_batches}"
    if recipe.micro_batches > 1 and recipe.reduce in AUTOGRAD:
        return f"micro_batches needs reduce: flat (reduce: {recipe.reduce} would reduce after each part)"
    for field, on in (("micro_batches", recipe.micro_batches > 1), ("checkpointing", recipe.checkpointing)):
        if on and recipe.compile != "off":
            return (
                f"{field} needs compile: off (a compiled loss is of the whole batch, and keeps what it likes)"
            )
    if recipe.checkpointing and recipe.streams == "two":
        return "checkpointing needs streams: one (the second stream holds what is run once more until backward ends)"
    return None


def _model_problem(recipe: Recipe, workload: Workload) -> str | None:
    """Return one line if the recipe cannot run the layers that the workload has, else None."""
    for key in ("fused_filter", "fused_residual"):  # whose passes go on behind the activation
        if getattr(recipe, key) and workload.conv_clamp is not None:
            clamp = f"{workload.conv_clamp:g}"
            return f"{key} must be false: its pass cannot clamp, and this workload has conv_clamp: {clamp}"
    if workload.spectral_norm and recipe.streams == "two":
        return (
            "streams: two needs weights that convolutions take as they are kept, and this workload has "
            "spectral_norm: true"
        )
    joins = {"fused_filter": True, "demodulation": "grouped", "streams": "two"}
    found = [key for key, value in joins.items() if getattr(recipe, key) == value]
    if found and (workload.convolution != "full" or workload.block_layers == 1):
        return f"{found[0]} needs a workload with convolution: full and block_layers: 2 (what it joins)"
    return None


def holds_parts(batch: int, parts: int, group: int) -> bool:
    """Return whether equal parts of a batch have whole groups of minibatch standard deviation."""
    return batch % max(1, parts * group) == 0


def problem_with(recipe: Recipe, workload: Workload) -> str | None:
    """Return one line if the ranks cannot share the workload's batch, else None."""
    if why := _model_problem(recipe, workload):
        return why
    ranks, batch = recipe.ranks, workload.batch
    if batch % ranks:
        return f"batch {batch} is the total and must be a multiple of ranks ({ranks})"
    paths = max(1, batch // workload.pl_batch_shrink)
    if paths % ranks:
        return f"path length takes {paths} samples (batch // pl_batch_shrink), no multiple of ranks ({ranks})"
    if recipe.checkpointing and workload.spectral_norm and recipe.spectral_norm == "triton":
        return "checkpointing needs spectral_norm: plain (the fused weights live for one forward pass)"
    group = min(workload.mbstd_group, batch)
    if recipe.micro_batches > 1 and not holds_parts(batch // ranks, recipe.micro_batches, group):
        return (
            f"micro_batches: {recipe.micro_batches} cuts groups of minibatch standard deviation: {batch // ranks} "
            f"samples must be a multiple of {recipe.micro_batches} parts of mbstd_group ({group})"
        )
    if (batch // ranks) % group == 0:
        return None
    if recipe.rank_statistics == "total":
        return (
            f"ranks: {ranks} cuts groups of minibatch standard deviation: a rank's batch ({batch // ranks}) is no "
            f"multiple of mbstd_group ({group}); rank_statistics: local takes smaller groups, outside parity"
        )
    if (batch // ranks) % min(group, batch // ranks):
        return f"a rank's batch ({batch // ranks}) must be a multiple of mbstd_group ({group}) or below it"
    return None
