"""Noise as StyleGAN adds it: [N or 1, 1, H, W], one value a pixel for all channels, times a learned strength."""

from torch import Tensor

from ..common.arguments import fits


def check_pair(noise: Tensor | None, strength: Tensor | None) -> None:
    """Raise ValueError unless noise and strength are both None, or both given with a strength of one number."""
    if (noise is None) != (strength is None) or (strength is not None and strength.numel() != 1):
        raise ValueError("noise and strength come together, and strength is a scalar tensor")


def check_noise(noise: Tensor | None, strength: Tensor | None, x: Tensor) -> None:
    """Raise ValueError unless noise and strength are both None, or fit the pixels of x [N, C, H, W]."""
    check_pair(noise, strength)
    if noise is not None and not (x.dim() == 4 and noise_fits(noise, len(x), x.shape[2:])):
        raise ValueError(f"noise must be [N or 1, 1, H, W] for x {tuple(x.shape)}, got {tuple(noise.shape)}")


def noise_fits(noise: Tensor, samples: int, size: tuple[int, ...]) -> bool:
    """Return whether noise is for images of this size: one for each sample, or one for all samples."""
    return fits(noise.shape, (samples, 1, *size), (1, 1, *size))


def noise_stride(noise: Tensor | None) -> int:
    """Return the elements between the noise of two samples in contiguous memory: 0 where all samples share it."""
    return 0 if noise is None or noise.shape[0] == 1 else noise.shape[2] * noise.shape[3]
