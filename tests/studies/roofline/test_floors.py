"""The floor of a workload: FLOPs and bytes that can be worked out by hand, and the ones that PyTorch counts."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from ladder.studies.roofline import floors
from ladder.studies.roofline.floors import Count, Op, OrdinaryConvolutions
from stylegan_lite import resample
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from tests.support.small import SMALL


@pytest.fixture(scope="module")
def counted():
    """Floors of the small workload by precision."""
    workload = Workload.from_dict(SMALL)
    return {precision: floors.count(workload, precision) for precision in ("fp32", "bf16")}


def penalized(x, weights, down):
    """A loss and the gradient penalty of two convolutions around an activation."""
    y = F.conv2d(x, weights[0], padding=1)
    y = F.conv_transpose2d(torch.tanh(y), weights[1], stride=2)
    y = F.conv2d(y, down, stride=2, groups=y.shape[1])
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return gradient.square().sum()


def tensors():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 6, 6, dtype=torch.float64, requires_grad=True)
    shapes = [(7, 5, 3, 3), (7, 6, 3, 3)]
    weights = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    return x, weights, torch.randn(6, 1, 4, 4, dtype=torch.float64)


def test_ordinary_convolutions_compute_what_pytorch_computes():
    x, weights, down = tensors()
    expected = torch.autograd.grad(penalized(x, weights, down), weights)
    with OrdinaryConvolutions():
        found = torch.autograd.grad(penalized(x, weights, down), weights)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_flops_are_those_of_pytorchs_counter():
    x, weights, _ = tensors()
    with FlopCounterMode(display=False) as theirs, OrdinaryConvolutions(), Count() as ours:
        y = F.conv2d(x, weights[0], padding=1, stride=2)
        y = F.conv_transpose2d(y, weights[1], stride=2)
        (y.flatten(1) @ torch.ones(y[0].numel(), 3, dtype=y.dtype)).square().sum().backward()
    assert ours.flops + ours.matmul_flops == theirs.get_total_flops()
    assert ours.matmul_flops > 0 and {op.kind for op in ours.ops} == set(floors.KINDS)


def test_a_transposed_convolution_is_the_input_gradient_of_its_mirror_image():
    x, weights, _ = tensors()
    with OrdinaryConvolutions(), Count() as seen:
        F.conv_transpose2d(x.repeat(1, 2, 1, 1)[:, :7], weights[1], stride=2)
    (op,) = seen.ops
    assert op == Op("input gradient", (2, 6, 13, 13), (7, 6, 3, 3), 2, 0, "fp64")
    assert op.result == (2, 7, 6, 6) and op.flops == 2 * (2 * 6 * 6) * 7 * 6 * 9


def test_images_between_convolutions_are_read_once_and_written_once():
    """Two convolutions with a pass between them: its input is read, its output is written, and so are the ends."""
    first, second = torch.randn(8, 5, 3, 3), torch.randn(6, 8, 3, 3)
    x = torch.randn(2, 5, 4, 4)
    with OrdinaryConvolutions(), Count() as seen:
        y = F.conv2d(x, first, padding=1)
        F.conv2d(torch.relu(y), second, padding=1)
    assert seen.image_bytes() == 4 * 2 * 16 * (5 + 8 + 8 + 6)
    with OrdinaryConvolutions(), Count() as seen:
        F.conv2d(F.conv2d(x, first, padding=1), second, padding=1)  # no pass between them
    assert seen.image_bytes() == 4 * 2 * 16 * (5 + 6)


def test_a_convolution_from_or_to_rgb_can_be_part_of_the_pass_beside_it():
    with OrdinaryConvolutions(), Count() as seen:
        F.conv2d(torch.randn(2, 3, 4, 4), torch.randn(8, 3, 1, 1))
    assert seen.image_bytes() == 0 and seen.flops > 0


def test_a_penalty_costs_every_layer_two_of_each_kind(counted):
    """Forward and backward, then both differentiated: gradients of weights in the first pass would be wasted."""
    top = {op.kind: n for op, n in counted["bf16"]["D_r1"].ops.items() if op.weight == (8, 8, 3, 3)}
    assert top == dict.fromkeys(floors.KINDS, 2)


def test_resampling_costs_no_flops_and_its_convolution_runs_at_the_low_resolution(counted):
    ups = [op for op in counted["bf16"]["G_main"].ops if op.stride == 2 and op.kind == "input gradient"]
    up = next(op for op in ups if op.weight[:2] == (16, 8) and op.image[2] == 17)
    assert up.result == (4, 16, 8, 8) and up.flops == 2 * 4 * 64 * 16 * 8 * 9


def test_the_discriminators_step_runs_it_once_on_fakes_and_reals(counted):
    weight = (8, 8, 3, 3)
    ops = {op.kind: (n, op.image) for op, n in counted["fp32"]["D_main"].ops.items() if op.weight == weight}
    image = (8, 8, 16, 16)
    assert ops["weight gradient"] == (1, image) and ops["input gradient"] == (1, image)


def test_path_length_runs_on_the_smaller_batch(counted):
    assert {op.image[0] for op in counted["bf16"]["G_pl"].ops} == {2}


def test_bf16_halves_the_images_and_of_the_optimizer_only_the_gradients_of_the_copies(counted):
    for phase in floors.PHASES:
        wide, narrow = counted["fp32"][phase].bytes, counted["bf16"][phase].bytes
        assert narrow["images"] * 2 == wide["images"] > 0
        assert wide["BF16 weights"] == 0 < narrow["BF16 weights"]
        assert (
            narrow["optimizer"] == wide["optimizer"] - narrow["BF16 weights"]
        )  # 2 bytes of each such weight
        assert {op.dtype for op in counted["bf16"][phase].ops} == {"bf16"}
        assert counted["fp32"][phase].flops == counted["bf16"][phase].flops


def test_adam_moves_five_numbers_a_weight_and_the_average_three(counted):
    workload, moved = Workload.from_dict(SMALL), {key: floor.bytes for key, floor in counted["fp32"].items()}
    networks = (Generator(workload, Recipe()), Discriminator(workload, Recipe()))
    sizes = [sum(p.numel() for p in network.parameters()) for network in networks]
    assert moved["G_main"]["optimizer"] == moved["G_pl"]["optimizer"] == 20 * sizes[0]
    assert moved["D_main"]["optimizer"] == 20 * sizes[1]
    assert moved["D_main"]["moving average"] == 12 * sizes[0] and moved["G_main"]["moving average"] == 0


def test_a_first_moment_moves_only_with_momentum(counted):
    found = floors.count(Workload.from_dict(SMALL | {"beta1": 0.5}))
    for phase in floors.PHASES:
        assert found[phase].bytes["optimizer"] == counted["fp32"][phase].bytes["optimizer"] * 28 // 20


def test_instance_normalization_is_counted_too():
    found = floors.count(Workload.from_dict(SMALL | {"norm": "instance", "resolution": 8}), "bf16")
    assert all(floor.flops > 0 for floor in found.values())


def test_counting_leaves_nothing_fake_behind(counted):
    x = resample.upsample2d(torch.ones(1, 2, 4, 4), "depthwise")
    assert type(x) is torch.Tensor and float(x[0, 0, 4, 4]) == 1.0
