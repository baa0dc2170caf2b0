import pytest
import torch

from ladder.training import seeds


def pictures(n, size, seed, blur=0):
    x = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))
    for _ in range(blur):
        x = seeds._blur_images(x)
    return x / x.std()


def test_the_pyramid_adds_up_to_the_image():
    images = pictures(2, 64, 0)
    levels = seeds.build_pyramid(images)
    assert [level.shape[-1] for level in levels] == [64, 32, 16]
    rebuilt = levels[-1]
    for level in reversed(levels[:-1]):
        spread = torch.zeros_like(level)
        spread[:, :, ::2, ::2] = rebuilt
        rebuilt = level + 4 * seeds._blur_images(spread)
    torch.testing.assert_close(rebuilt, images, rtol=1e-4, atol=1e-5)


def test_equal_distributions_are_near_and_others_far_at_the_level_where_they_differ(monkeypatch):
    monkeypatch.setattr(seeds, "PATCHES", 64)
    real = pictures(64, 32, 0, blur=1)
    same = seeds.measure_distances(real, pictures(64, 32, 1, blur=1))
    other = seeds.measure_distances(real, pictures(64, 32, 1, blur=3))
    assert seeds.measure_distances(real, real) == {32: 0.0, 16: 0.0}
    assert other[32] > 2 * same[32]
    collapsed = seeds.measure_distances(real, real[:1].expand_as(real))
    assert collapsed[16] > 3 * same[16]


def test_sets_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        seeds.measure_distances(torch.zeros(2, 3, 16, 16), torch.zeros(3, 3, 16, 16))
