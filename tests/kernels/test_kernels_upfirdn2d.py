"""upfirdn2d against its definition and its plain-PyTorch reference: every mode, filter, padding, dtype and layout.

Without a GPU the Triton kernel runs in Triton's interpreter, so shapes are tiny and launches few.
"""

import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

import kernels
from kernels import choices

module = sys.modules["kernels.upfirdn.upfirdn2d"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
BINOMIAL = (0.125, 0.375, 0.375, 0.125)
LOPSIDED = (0.3, -1.0, 2.0, 0.5, 0.1)  # nothing about it is symmetric
every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


def image(*shape: int, layout="nchw", dtype=torch.float64, seed=0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(DEVICE, dtype).contiguous(memory_format=FORMATS[layout]).requires_grad_()


def by_definition(x: Tensor, taps, *, up=1, down=1, padding=(0, 0, 0, 0), gain=1.0, flip=False) -> Tensor:
    """One pixel and one tap after the other: y[o] = gain * sum of f[k] * upsampled[o * down + k - before]."""
    taps = list(taps) if flip else list(taps)[::-1]
    left, right, top, bottom = padding

    def along(x: Tensor, before: int, after: int) -> Tensor:
        size = (x.shape[-1] * up + before + after - len(taps)) // down + 1
        y = x.new_zeros(*x.shape[:-1], size)
        for o in range(size):
            for k, tap in enumerate(taps):
                i, rest = divmod(o * down + k - before, up)
                if rest == 0 and 0 <= i < x.shape[-1]:
                    y[..., o] += tap * x[..., i]
        return y

    return along(along(x, left, right).mT, top, bottom).mT * gain


def values_and_grads(function, x: Tensor) -> list[Tensor]:
    """y, dx along a fixed g, and the gradient by g of the squares of dx."""
    y = function(x)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    g = g.to(y.device, y.dtype).requires_grad_()
    (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
    (dg,) = torch.autograd.grad(dx.to(torch.promote_types(dx.dtype, torch.float32)).square().sum(), g)
    return [t.detach() for t in (y, dx, dg)]


def both(x: Tensor, taps=BINOMIAL, **options) -> list[tuple[Tensor, Tensor]]:
    """(kernel's, reference's) of everything in `values_and_grads`."""
    found = (
        values_and_grads(lambda x, f=f: f(x, taps, **options), x)
        for f in (kernels.upfirdn2d, kernels.upfirdn2d_reference)
    )
    return list(zip(*found, strict=True))


def agree(pairs: list[tuple[Tensor, Tensor]], **tolerance) -> None:
    for got, want in pairs:
        torch.testing.assert_close(got, want, **tolerance)


@pytest.mark.parametrize("up", [1, 2])
@pytest.mark.parametrize("down", [1, 2])
@pytest.mark.parametrize("padding", [(2, 1, 0, 3), (-1, 4, 3, -2)], ids=str)
@pytest.mark.parametrize("flip", [False, True])
def test_the_reference_is_upfirdn2d(up, down, padding, flip):
    x = image(2, 3, 5, 7).detach()
    options = {"up": up, "down": down, "padding": padding, "gain": 1.7, "flip": flip}
    want = by_definition(x, LOPSIDED, **options)
    torch.testing.assert_close(kernels.upfirdn2d_reference(x, LOPSIDED, **options), want)


@hypothesis.settings(  # no shrinking: in the interpreter it takes minutes, and the shapes are small as they are
    max_examples=16, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate]
)
@hypothesis.given(
    shape=st.tuples(*(st.integers(1, n) for n in (2, 6, 7, 9))),
    layout=st.sampled_from(sorted(FORMATS)),
    up=st.integers(1, 2),
    down=st.integers(1, 2),
    taps=st.lists(st.floats(-2, 2), min_size=1, max_size=8),
    padding=st.tuples(*[st.integers(-2, 5)] * 4),
    flip=st.booleans(),
)
def test_any_call_agrees_with_the_reference(shape, layout, up, down, taps, padding, flip):
    x = image(*shape, layout=layout)
    options = {"up": up, "down": down, "padding": padding, "flip": flip}
    try:
        module._plan(x, taps, up, down, padding, 1.0, flip)
    except ValueError:
        hypothesis.reject()
    agree(both(x, taps, gain=0.7, **options), rtol=1e-9, atol=1e-9)


def test_a_strip_may_have_any_number_of_rows(monkeypatch):
    """13 rows cover 129 of them in ten strips, 16 in nine with 15 to spare."""
    for rows, cols, up in ((3, 3, 1), (13, 5, 1), (6, 6, 2)):
        odd = module.Config(rows, cols, 1, 4, 1, 1)
        monkeypatch.setattr(module, "config", lambda *_, odd=odd: odd)
        module._cover.cache_clear()
        agree(both(image(1, 2, 15, 14, layout="nhwc"), up=up, padding=(2, 1)), rtol=1e-10, atol=1e-10)
    module._cover.cache_clear()


def test_a_map_of_medium_size_has_entries_of_its_own(monkeypatch):
    """A GPU's own goes before the general one of the same size, the size before the GPU."""
    table = {key: module.Config(n, 1, 0, 64, 1, 4) for n, key in enumerate(
        [(True, 1, 1), ((9, 0), True, 1, 1), ("medium", True, 1, 1), ((8, 0), "medium", True, 1, 1)]
    )}  # fmt: skip
    monkeypatch.setattr(module, "CONFIGS", table)
    rows = [
        module.config(True, 1, 1, capability, elements).rows
        for elements in (choices.MEDIUM, choices.MEDIUM - 1)
        for capability in ((8, 6), (9, 0), (8, 0))
    ]
    assert rows == [0, 1, 0, 2, 2, 3]


@pytest.mark.parametrize("entry", sorted(module.CONFIGS, key=str), ids=str)
def test_every_configuration_agrees_with_the_reference(entry, monkeypatch):
    """As it runs for large images: no strip is shortened."""
    nhwc, up, down = entry[-3:]
    monkeypatch.setattr(module, "config", lambda *_: module.CONFIGS[entry])
    module._cover.cache_clear()
    x = image(1, 2, 9, 9, layout="nhwc" if nhwc else "nchw").detach()
    options = {"up": up, "down": down, "padding": (2, 1)}
    want = kernels.upfirdn2d_reference(x, BINOMIAL, **options)
    torch.testing.assert_close(kernels.upfirdn2d(x, BINOMIAL, **options), want)
    module._cover.cache_clear()


def test_tiles_that_would_take_the_wrong_taps_are_refused(monkeypatch):
    """Seen with a table's entry of one column where the map doubles: every other pixel was filtered with its
    neighbour's taps."""
    x = image(1, 2, 9, 9, layout="nhwc").detach()
    for tile in ({"rows": 8, "cols": 1}, {"rows": 3, "cols": 2}):
        odd = module.CONFIGS[True, 2, 1]._replace(**tile)
        monkeypatch.setattr(module, "config", lambda *_, odd=odd: odd)
        module._cover.cache_clear()
        said = f"rows and cols must be multiples of up, 2, got {odd.rows} and {odd.cols}"
        with pytest.raises(ValueError, match=said):
            kernels.upfirdn2d(x, BINOMIAL, up=2, padding=(2, 1))
    assert kernels.upfirdn2d(x, BINOMIAL, padding=(2, 1)).shape == x.shape
    module._cover.cache_clear()


@every_format
def test_taps_that_floats_cannot_hold_keep_float64s_precision(layout):
    agree(both(image(1, 1, 4, 4, layout=layout), (0.1, 0.2, 0.7), padding=1), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.repeat_interleave(2, -1)[..., ::2],
        lambda x: x[:1, :1].expand_as(x),
        lambda x: x.mT,
        lambda x: x[:, 1:].to(memory_format=torch.channels_last),
    ],
    ids=["strided", "expanded", "transposed", "sliced"],
)
def test_any_strides(view):
    base = image(2, 3, 4, 4)
    agree(both(view(base), padding=(2, 1)))


def test_bytes_moved_are_those_of_x_and_y():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    assert module.bytes_moved(x, BINOMIAL, up=2, padding=(2, 1)) == 2 * 3 * (16 + 64) * 2


@pytest.mark.gpu
@every_format
def test_offsets_beyond_2_to_the_31_elements(layout):
    """The last sample of a tensor of 2.2e9 elements, alone and in its place."""
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB")
    x = torch.empty(33, 64, 1024, 1024, dtype=torch.bfloat16, device="cuda", memory_format=FORMATS[layout])
    x[:-1].zero_()
    x[-1].normal_()
    y = kernels.upfirdn2d(x, BINOMIAL, padding=(2, 1))
    alone = kernels.upfirdn2d(x[-1:].clone(memory_format=FORMATS[layout]), BINOMIAL, padding=(2, 1))
    assert torch.equal(y[-1:], alone)
    assert not y[-2].any()
