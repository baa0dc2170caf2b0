"""joint_batch: one pass of D over fakes and reals gives every image the logit it has alone."""

import pytest
import torch

from ladder.plan import catalog
from stylegan_lite import Recipe, Workload, losses
from stylegan_lite import networks as networks_module
from stylegan_lite.networks import Discriminator, minibatch_std
from stylegan_lite.ops import one_batch
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    every_phase,
    gathered,
    receipt,
    small,
)
from tests.support.small import SMALL

JOINT = {"joint_batch": True}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
BF16 = LAST | {"precision": "bf16"}
FUSED = LAST | {"fused_norm": True, "conv": "double_backward"}
TINY = {"resolution": 8, "channel_max": 8, "batch": 2}  # for kernels in Triton's interpreter
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


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("recipe", [{}, LAST | {"conv": "double_backward"}, FUSED], ids=["", "nhwc", "fused"])
def test_every_phase_computes_the_same_either_way(norm, recipe):
    workload = {"norm": norm} | (TINY if recipe is FUSED else {})
    found = []
    for on in (False, True):
        found.append(every_phase(small({"precision": "fp64", "joint_batch": on} | recipe, **workload)))
    assert_the_same(found[1], found[0])


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("recipe", [JOINT, BF16 | JOINT], ids=["fp32", "bf16"])
def test_all_phases_agree_with_the_reference(norm, recipe, references):
    step = small(recipe, resolution=8, norm=norm)
    found = checked(step, references)
    assert found["verdict"] == "ok", found["problems"]


def test_statistics_taken_over_both_batches_are_found_by_parity(monkeypatch, references, planted_bug):
    honest = minibatch_std
    monkeypatch.setattr(
        networks_module, "minibatch_std", lambda x, group, parts=1, multiple=1: honest(x, group, 1, multiple)
    )
    found = checked(small(JOINT, resolution=8), references)
    assert found["verdict"] == "failed: parity"
    what = "joint batch: minibatch std over fakes and reals"
    planted_bug(bug=what, planted="minibatch_std takes both batches for one", problem=found["reason"])


@pytest.mark.parametrize("recipe", [JOINT, FUSED | BF16 | JOINT], ids=["plain", "fused"])
def test_one_pass_shows_in_the_receipt_and_the_rungs_below_are_seen(recipe):
    seen = seen_of(recipe, **TINY)
    assert receipt("joint_batch", seen).lines[0] == "batches D is given: 2, 4, 2"
    rungs = catalog.contained(recipe)
    assert "joint_batch" in rungs
    assert_engaged(seen, rungs)


def test_joint_batch_sabotaged_by_two_passes(monkeypatch, refused):
    honest = losses.d_main
    monkeypatch.setattr(losses, "d_main", lambda *args, joint=False: honest(*args))
    what = "D is given fakes and reals one after the other"
    refused("joint_batch", seen_of(JOINT), "batches D is given: 4, 4, 4, 4", sabotage=what)


def test_without_the_switch_the_receipt_says_so():
    assert not receipt("joint_batch", seen_of({})).engaged
    assert not receipt("joint_batch", {"passes": {}, "recipe": {"fused_norm": False}}).engaged


def test_joint_batch_sabotaged_by_a_deviation_in_plain_pytorch(refused):
    seen = seen_of(JOINT)
    seen["recipe"]["fused_norm"] = True
    what = "the deviation falls back to plain PyTorch"
    refused("joint_batch", seen, "minibatch_std_kernel launched 0x", sabotage=what, planted="evidence")
