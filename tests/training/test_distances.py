"""The distances between sets of images against closed forms, and what they say of images that got worse."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import linalg

from ladder.images import idx
from ladder.training import features
from ladder.training.distances import measure_frechet, measure_kid, measure_precision


def draw(n, width=8, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whiten(x):
    """Return points with mean 0 and covariance 1, up to rounding."""
    x = x - x.mean(0)
    return x @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T)).T)


def test_the_frechet_distance_of_known_gaussians():
    a, scale = whiten(draw(200)), torch.arange(1.0, 9.0, dtype=torch.float64)
    assert measure_frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert measure_frechet(a, a + 3) == pytest.approx(8 * 9)
    assert measure_frechet(a, a * scale) == pytest.approx(float((scale - 1).square().sum()))
    b = draw(200, seed=1) @ draw(8, seed=2)  # correlated
    root = linalg.sqrtm(torch.cov(a.T).numpy() @ torch.cov(b.T).numpy())
    expected = (a.mean(0) - b.mean(0)).square().sum() + (torch.cov(a.T) + torch.cov(b.T)).trace()
    assert measure_frechet(a, b) == pytest.approx(float(expected - 2 * np.trace(root.real)))


def test_the_kernel_distance_is_the_mean_over_distinct_pairs_and_unbiased():
    def kernel(x, y):
        return float((x @ y / 8 + 1) ** 3)

    a, b = draw(5), draw(4, seed=1) + 1
    within = sum(kernel(a[i], a[j]) for i in range(5) for j in range(5) if i != j) / 20
    other = sum(kernel(b[i], b[j]) for i in range(4) for j in range(4) if i != j) / 12
    across = sum(kernel(x, y) for x in a for y in b) / 20
    assert measure_kid(a, b) == pytest.approx(within + other - 2 * across)
    small = [measure_kid(draw(20, seed=k), draw(20, seed=1000 + k)) for k in range(200)]
    assert abs(np.mean(small)) < 4 * np.std(small) / 200**0.5 < 0.1


def test_precision_counts_samples_near_the_data_and_recall_data_near_the_samples():
    real = torch.arange(10.0).unsqueeze(1)
    fake = torch.tensor([[4.5], [4.6], [4.7], [4.8], [100.0]])
    assert measure_precision(real, fake) == pytest.approx(0.8)
    assert measure_precision(real, real) == 1
    assert measure_precision(fake[:4], real) == pytest.approx(
        0.1
    )  # only the fifth is near: they reach 0.3 at most


@pytest.fixture(scope="module")
def splits():
    return features.read_split(idx.SAMPLE, "train"), features.read_split(idx.SAMPLE, "t10k")


def compare(known, images):
    new = features.extract_features(images)
    return measure_frechet(known, new), measure_kid(known, new)


def test_the_committed_classifier_names_the_test_images():
    assert features.measure_accuracy(features.load_classifier("cpu"), idx.SAMPLE) > 0.85


def test_test_images_are_nearest_to_the_training_images_and_the_distance_grows_with_damage(splits):
    (real, _), (test, labels) = splits
    noise = torch.randn(test.shape, generator=torch.Generator().manual_seed(0))
    known = features.extract_features(real)
    floor = compare(known, test)
    damaged = {
        "noise": [test + strength * noise for strength in (0.1, 0.2, 0.4)],
        "blur": [F.avg_pool2d(test, side, 1, side // 2) for side in (3, 5, 7)],
        "classes": [test[labels < most] for most in (8, 5, 2)],
        "repeated": [test[:count].repeat(1000 // count, 1, 1, 1) for count in (100, 20, 5)],
    }
    for name, sets in damaged.items():
        for distances in zip(floor, *(compare(known, each) for each in sets), strict=True):
            assert list(distances) == sorted(distances), (name, distances)
            assert distances[-1] > 5 * abs(distances[0]), (name, distances)


def test_colours_are_averaged_and_a_repeated_channel_changes_nothing(splits):
    images = splits[1][0][:8]
    torch.testing.assert_close(
        features.extract_features(images.expand(-1, 3, -1, -1)), features.extract_features(images)
    )


def test_a_tiny_training_learns_and_its_weights_are_those_that_are_stored():
    network, accuracy = features.train_classifier(idx.SAMPLE, seed=0, epochs=3)
    assert accuracy > 0.3 and accuracy == features.measure_accuracy(network, idx.SAMPLE)
    assert all(torch.equal(value, value.half().float()) for value in network.parameters())
