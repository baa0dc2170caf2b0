"""Distances between two sets of images, in the features of a network: how far are samples from the data?

Features are [N, F]; all results are floats. The sliced Wasserstein distance, which needs no features, is
`ladder.training.seeds.measure_distances`.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 3


def measure_frechet(a: Tensor, b: Tensor) -> float:
    """Return the squared Fréchet distance of the Gaussians fitted to two sets (Heusel et al. 2017, arXiv:1706.08500).

    |mean difference|^2 + trace(A + B - 2 (A B)^(1/2)) of the covariances A and B. It is biased: two sets of N from one
    distribution are about 1/N apart, so only sets of one size are compared.
    """
    a, b = a.double(), b.double()
    first, second = torch.cov(a.T), torch.cov(b.T)
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()
    mean = (a.mean(0) - b.mean(0)).square().sum()
    return float((mean + first.trace() + second.trace() - 2 * shared).clamp_min(0))


def measure_kid(a: Tensor, b: Tensor) -> float:
    """Return the unbiased squared maximum mean discrepancy of the kernel (x y / F + 1)^3; below 0 by chance.

    Source: Binkowski et al. 2018 (arXiv:1801.01401), the kernel Inception distance.
    """
    a, b = a.double(), b.double()

    def compare(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.T / x.shape[1] + 1) ** 3

    def average_pairs(x: Tensor) -> Tensor:
        kernel = compare(x, x)
        return (kernel.sum() - kernel.trace()) / (len(x) * (len(x) - 1))

    return float(average_pairs(a) + average_pairs(b) - 2 * compare(a, b).mean())


def measure_precision(real: Tensor, fake: Tensor) -> float:
    """Return the fraction of ``fake`` within reach of ``real``. With the arguments exchanged, that is the recall.

    A sample is within reach if it is nearer to a real one than that one's third neighbour among the real ones
    (Kynkäänniemi et al. 2019, arXiv:1904.06991).
    """
    real, fake = real.double(), fake.double()
    radius = (
        torch.cdist(real, real).kthvalue(NEIGHBOURS + 1, dim=1).values
    )  # the nearest is the sample itself
    return float((torch.cdist(fake, real) <= radius).any(1).double().mean())
