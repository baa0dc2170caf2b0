"""What the watcher sees is what happened: FLOPs against PyTorch's own counter, layouts, passes, launches."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import kernels
from ladder.receipts.watch import Watch, count_launches, is_modulation, name_layout


def images(*shape: int, nhwc: bool = False, **options) -> torch.Tensor:
    x = torch.randn(*shape, **options)
    return x.contiguous(memory_format=torch.channels_last).detach() if nhwc else x


@pytest.mark.parametrize(
    "conv",
    [
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: F.conv2d(x, w, stride=2),
        lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1), stride=2),
    ],
    ids=["plain", "strided", "transposed"],
)
def test_flops_are_those_pytorch_counts_and_backward_is_told_apart(conv):
    x, w = images(2, 4, 8, 8).requires_grad_(), images(6, 4, 3, 3).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        conv(x, w).sum().backward()
    watch = Watch()
    with watch:
        conv(x, w).sum().backward()
    assert set(watch.flops) == {"forward", "backward"}
    assert sum(sum(stage.values()) for stage in watch.flops.values()) == counter.get_total_flops()


def test_groups_divide_the_flops_of_every_pass():
    """PyTorch's counter takes a grouped weight's gradient for a dense one."""
    x, w = images(2, 4, 8, 8).requires_grad_(), images(6, 2, 3, 3).requires_grad_()
    watch = Watch()
    with watch:
        F.conv2d(x, w, groups=2).sum().backward()
    multiply_adds = 2 * 6 * 6 * 6 * 2 * 9  # samples, output channels, output pixels, inputs a group, taps
    assert watch.flops["forward"]["float32"] == 2 * multiply_adds
    assert watch.flops["backward"]["float32"] == 4 * multiply_adds


def test_the_pass_that_differentiates_a_gradient_is_seen_and_named():
    x, w = images(2, 4, 8, 8).requires_grad_(), images(6, 4, 3, 3).requires_grad_()
    watch = Watch()
    with watch:
        (g,) = torch.autograd.grad(F.conv2d(x, w).square().sum(), x, create_graph=True)
        assert set(watch.flops) == {"forward", "backward"}
        g.square().sum().backward()
    assert watch.flops["double backward"]["float32"] > 0
    watch.start(0.25)
    before = dict(watch.flops["forward"])
    with watch:
        F.conv2d(x, w).sum().backward()  # a new phase starts with an ordinary backward pass
    assert watch.flops["forward"]["float32"] - before["float32"] == before["float32"] / 4


def test_layouts_and_the_copies_between_them():
    assert name_layout(images(2, 4, 8, 8)) == "nchw"
    assert name_layout(images(2, 4, 8, 8, nhwc=True)) == "nhwc"
    assert name_layout(images(2, 1, 8, 8)) == "either" == name_layout(images(2, 4, 1, 1))
    assert name_layout(images(2, 4, 8, 8)[:, :, ::2]) == "other"
    watch, x = Watch(), images(2, 4, 8, 8, nhwc=True)
    with watch:
        x.clone()  # keeps its layout
        assert watch.relayouts == 0
        x.contiguous()
        torch.empty(2, 4, 8, 8).copy_(x)
        x.reshape(8, 1, 8, 8)
    assert watch.relayouts == 3 and watch.relayout_bytes == 3 * x.nbytes


def test_convolutions_tell_the_layout_of_images_and_weights():
    x, w = images(2, 4, 8, 8, nhwc=True).requires_grad_(), images(6, 4, 3, 3)
    watch = Watch()
    watch.start(0.5)
    with watch:
        F.conv2d(x, w).square().sum().backward()
    assert watch.inputs["forward"] == {"nhwc": x.nbytes / 2} and watch.weights["forward"] == {
        "nchw": w.nbytes / 2
    }
    assert set(watch.inputs["backward"]) == {"nhwc"} and set(watch.weights["backward"]) == {"nchw"}


def test_copies_between_devices_say_how_they_went():
    watch, batch = Watch(), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with watch:
        batch.to("meta", non_blocking=True)
        torch.empty(2, 3, 8, 8, device="meta").copy_(batch.float())
        batch.float()
    assert [(c["bytes"], c["dtype"], c["non_blocking"]) for c in watch.crossings] == [
        (384, "uint8", True),
        (1536, "float32", False),
    ]


def test_gradients_filled_and_added_to_are_counted():
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for set_to_none, filled, accumulated in ((True, 0, 0), (False, 1, 1)):
        weight.square().sum().backward()
        watch = Watch()
        with watch:
            optimizer.zero_grad(set_to_none=set_to_none)
            weight.square().sum().backward()
        assert (watch.fills, watch.accumulated) == (filled, accumulated)


def test_what_counts_as_modulation():
    x, style = images(2, 4, 8, 8), images(2, 4, 1, 1)
    assert is_modulation((x, style)) and is_modulation((style, x))
    assert is_modulation((images(1, 6, 4, 3, 3), images(2, 1, 4, 1, 1)))  # per-sample weights
    assert (
        not is_modulation((x, x))
        and not is_modulation((x, 2.0))
        and not is_modulation((x, images(1, 4, 1, 1)))
    )
    assert not is_modulation((x, images(2, 1, 8, 8)))  # noise


@pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
def test_launches_are_counted_and_an_entry_point_that_falls_back_is_not():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, style = images(2, 4, 4, 4, device=device).requires_grad_(), images(2, 4, device=device)
    with count_launches() as seen:
        kernels.modulate_reference(x, style)
        assert seen == {}
        kernels.modulate(x, style).sum().backward()
    assert {name: entry["calls"] for name, entry in seen.items()} == {
        "modulate_kernel": 1,
        "modulate_grad_kernel": 1,
    }
    assert seen["modulate_kernel"]["dtypes"] == ["float32"]
    kernels.modulate(x, style)
    assert seen["modulate_kernel"]["calls"] == 1  # nobody counts afterwards
