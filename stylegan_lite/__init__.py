"""A StyleGAN2-style reference model and its training step, with one switch for each optimization.

``make_step(workload, recipe)`` is the whole contract with the measuring code: two plain dicts in, a step out. This
package knows nothing of timing. ``CONTRACT`` changes with the meaning of either dict or of the step's methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stylegan_lite.config import ConfigError, PairWorkload, Recipe, Workload

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep

CONTRACT = 1

__all__ = ["CONTRACT", "ConfigError", "Recipe", "Workload", "make_step"]


def make_step(
    workload: dict[str, Any], recipe: dict[str, Any], *, device: str | None = None, seed: int = 0
) -> TrainingStep:
    """Build networks, optimizers, data loader and static buffers for one recipe.

    Args:
        workload: the training task; the fields of :class:`Workload` as plain data, or of :class:`PairWorkload` for a
            pair of the user's own.
        recipe: the way it runs; the fields of :class:`Recipe` as plain data. Missing fields are the baseline's.
        device: "cuda" or "cpu"; None takes CUDA if torch can use it.
        seed: weights, latents and data order are functions of it.

    Raises:
        ConfigError: an unknown key, a wrong type or an impossible combination; one line.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if type(device) is not str or device not in ("cuda", "cpu"):
        raise ConfigError(f'device must be "cuda" (torch.cuda.set_device picks one) or "cpu", got {device!r}')
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('device: "cuda" needs a GPU that PyTorch can use; "cpu" runs anywhere')
    if type(seed) is not int or abs(seed) >= 2**43:
        raise ConfigError(f"seed must be an integer of less than 44 bits, got {seed!r}")
    how = Recipe.from_dict(recipe)
    if isinstance(workload, dict) and "pair" in workload:
        from stylegan_lite.step import TrainingStep, loading

        how.refuse_layers()
        what = PairWorkload.from_dict(workload)
        return TrainingStep(lambda: loading.make_pair(what)[0], what, how, device=device, seed=seed)
    from stylegan_lite.stylegan2 import StyleGAN2Step

    return StyleGAN2Step(Workload.from_dict(workload), how, device=device, seed=seed)
