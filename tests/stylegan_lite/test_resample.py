import pytest
import torch

import kernels
from stylegan_lite import resample

HOWS = ("depthwise", "channels_as_batch", "bilinear", "folded", "subpixel")
if (
    kernels.common.tiles.INTERPRETED
):  # on a GPU tests/kernels/test_kernels_upfirdn2d.py runs the kernel; this file's tensors stay here
    HOWS += ("triton",)
FORMATS = (torch.contiguous_format, torch.channels_last)


def by_definition(x: torch.Tensor, up: int, down: int, pad: tuple[int, int], gain: float) -> torch.Tensor:
    """upfirdn2d, one dimension at a time with explicit zeros: insert, pad, correlate with [1,3,3,1]/8."""
    taps = torch.tensor(resample.TAPS, dtype=x.dtype) / 8 * gain
    for dim in (2, 3):
        x = x.movedim(dim, -1)
        length = x.shape[-1]
        wide = x.new_zeros(*x.shape[:-1], length * up + sum(pad))
        wide[..., pad[0] : pad[0] + length * up : up] = x
        x = sum(taps[k] * wide[..., k : wide.shape[-1] - 3 + k] for k in range(4))[..., ::down]
        x = x.movedim(-1, dim)
    return x


@pytest.fixture
def x(request):
    torch.manual_seed(0)
    return torch.randn(2, 6, 8, 12, dtype=torch.float64)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("how", HOWS)
def test_every_spelling_is_upfirdn2d_up_to_the_border(x, how, memory_format):
    x = x.contiguous(memory_format=memory_format)
    torch.testing.assert_close(resample.upsample2d(x, how), by_definition(x, 2, 1, (2, 1), 2.0))
    torch.testing.assert_close(resample.downsample2d(x, how), by_definition(x, 1, 2, (1, 1), 1.0))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("how", HOWS)
def test_every_spelling_of_a_resampling_convolution_agrees(x, how, memory_format):
    x = x.contiguous(memory_format=memory_format)
    weight = torch.randn(5, 6, 3, 3, dtype=x.dtype)
    transposed = torch.nn.functional.conv_transpose2d(x, weight.transpose(0, 1), stride=2)
    torch.testing.assert_close(resample.conv_up(x, weight, how), by_definition(transposed, 1, 1, (1, 1), 2.0))
    blurred = by_definition(x, 1, 1, (2, 2), 1.0)
    for w in (weight, weight[:, :, 1:2, 1:2]):
        if w.shape[-1] == 3:
            expected = torch.nn.functional.conv2d(blurred, w, stride=2)
        else:
            expected = torch.nn.functional.conv2d(by_definition(x, 1, 2, (1, 1), 1.0), w)
        torch.testing.assert_close(resample.conv_down(x, w, how), expected)


@pytest.mark.parametrize("how", HOWS)
def test_groups_keep_samples_apart(x, how):
    weight = torch.randn(5, 6, 3, 3, dtype=x.dtype)
    a, b = torch.randn(2, 1, 3, 8, 8, dtype=x.dtype)
    both = resample.conv_up(torch.cat([a, b], 1), weight, how, groups=2)
    alone = [resample.conv_up(a, weight[:, :3], how), resample.conv_up(b, weight[:, 3:], how)]
    torch.testing.assert_close(both, torch.cat(alone, 1))


@pytest.mark.skipif("triton" not in HOWS, reason="Triton is not interpreted")
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_triton_is_depthwise_forward_backward_and_twice(dtype, memory_format):
    """Around the convolutions, where the model uses it, gradients and R1's kind of penalty included."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 4, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
    weight = torch.randn(2, 2, 3, 3, dtype=dtype, requires_grad=True)
    for op in (resample.conv_up, resample.conv_down):
        found = []
        for how in ("triton", "depthwise"):
            y = op(x, weight, how)
            grads = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
            found.append((y, *grads, *torch.autograd.grad(grads[0].square().sum(), (x, weight))))
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4 if dtype is torch.float32 else 1e-9, atol=1e-4)


def test_subpixel_hands_convolutions_weights_in_channels_last():
    folded = torch.randn(5, 6, 6, 6)
    assert resample.is_channels_last(resample.blocks_of_up(folded, 1, True))
    assert resample.is_channels_last(resample.blocks_of_down(folded, True))


def test_subpixel_stays_in_channels_last(x):
    x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(5, 6, 3, 3, dtype=x.dtype)
    assert resample.is_channels_last(resample.conv_up(x, weight, "subpixel"))
    assert resample.is_channels_last(resample.pixels_to_blocks(x))
    torch.testing.assert_close(resample.blocks_to_pixels(resample.pixels_to_blocks(x)), x)
