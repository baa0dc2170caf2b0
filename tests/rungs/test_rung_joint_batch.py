"""joint_batch: one pass of D over fakes and reals gives every image the logit it has alone."""

import pytest
import torch

from stylegan_lite import Recipe, Workload
from stylegan_lite.networks import Discriminator, minibatch_std
from stylegan_lite.ops import one_batch
from tests.rungs.cases import JOINT
from tests.support.rung_steps import gathered, receipt, small
from tests.support.small import SMALL

torch.set_num_threads(1)


def seen_of(recipe, **workload):
    return gathered(small(recipe, **workload))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_statistics_of_two_batches_never_mix(layout):
    a, b = (torch.randn(8, 3, 4, 4, dtype=torch.float64) * scale for scale in (1, 5))
    a, b = (x.contiguous(memory_format=layout) for x in (a, b))
    both = minibatch_std(torch.cat([a, b]), 4, parts=2)
    torch.testing.assert_close(both, torch.cat([minibatch_std(a, 4), minibatch_std(b, 4)]))
    assert both.is_contiguous(memory_format=layout)


def test_channels_of_zeros_fill_up_to_a_multiple():
    x = torch.randn(4, 6, 4, 4)
    padded = minibatch_std(x, 4, multiple=8)
    assert (
        torch.equal(padded[:, :7], minibatch_std(x, 4)) and padded.shape[1] == 8 and not padded[:, 7:].any()
    )
    assert minibatch_std(x[:, :3], 4, multiple=4).shape[1] == 4  # nothing to fill


@pytest.mark.covering
@pytest.mark.parametrize("batch", [4, 8, 1])
@pytest.mark.parametrize("last", [False, True])
def test_every_image_keeps_its_logit_and_every_weight_its_gradient(batch, last):
    """Two groups in a batch, one group, and a batch smaller than a group."""
    workload = Workload(**SMALL | {"batch": batch})
    generator = torch.Generator().manual_seed(2)
    fake, real = (torch.randn(batch, 3, 16, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    found = []
    for on in (False, True):
        torch.manual_seed(1)
        D = Discriminator(workload, Recipe(joint_batch=on)).double()
        if last:
            D.to(memory_format=torch.channels_last)
            fake, real = (x.contiguous(memory_format=torch.channels_last) for x in (fake, real))
        logits = D(one_batch(fake, real * 3), parts=2) if on else torch.cat([D(fake), D(real * 3)])
        logits.sin().sum().backward()
        found.append([logits.detach(), *(p.grad for p in D.parameters())])
        assert D.conv.weight.shape == (16, 17, 3, 3)
    for one, two in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(one, two)


def test_batches_of_different_sizes_are_refused_in_one_line():
    D = Discriminator(Workload(**SMALL), Recipe())
    with pytest.raises(ValueError, match="5 images are not 2 batches of one size"):
        D(torch.zeros(5, 3, 16, 16), parts=2)


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=str)
def test_images_are_laid_together_as_a_convolution_reads_them(precision):
    fake = torch.randn(2, 3, 4, 4)
    real = torch.randn(3, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
        both = one_batch(fake, real)
    assert torch.equal(both, torch.cat([fake, real]).to(precision or torch.float32))
    assert both.is_contiguous(memory_format=torch.channels_last)
    assert one_batch(real.double(), fake.double()).is_contiguous()


def test_without_the_switch_the_receipt_says_so():
    assert not receipt("joint_batch", seen_of({})).engaged
    assert not receipt("joint_batch", {"passes": {}, "recipe": {"fused_norm": False}}).engaged


def test_joint_batch_sabotaged_by_a_deviation_in_plain_pytorch(refused):
    seen = seen_of(JOINT)
    seen["recipe"]["fused_norm"] = True
    what = "the deviation falls back to plain PyTorch"
    refused("joint_batch", seen, "minibatch_std_kernel launched 0x", sabotage=what, planted="evidence")
