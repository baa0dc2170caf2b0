"""upfirdn2d against its definition and its plain-PyTorch reference, beyond the table of `opcases.py`.

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
from tests.kernels.opcases import BINOMIAL, DEVICE, FORMATS, values_and_grads

module = sys.modules["kernels.upfirdn.upfirdn2d"]
LOPSIDED = (0.3, -1.0, 2.0, 0.5, 0.1)  # nothing about it is symmetric
torch.set_num_threads(1)


@pytest.fixture
def force(monkeypatch):
    """Returns a function that makes one configuration that of every call."""

    def choose(config):
        monkeypatch.setattr(module, "config", lambda *_: config)
        module._cover.cache_clear()

    yield choose
    module._cover.cache_clear()


def image(*shape: int, layout="nchw") -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(DEVICE).contiguous(memory_format=FORMATS[layout]).requires_grad_()


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


def agree(x: Tensor, taps=BINOMIAL, rtol=1e-9, atol=1e-9, **options) -> None:
    ops = (kernels.upfirdn2d, kernels.upfirdn2d_reference)
    found = (values_and_grads(lambda x, f=f: f(x, taps, **options), [x]) for f in ops)
    torch.testing.assert_close(*found, rtol=rtol, atol=atol)


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
    try:
        module._plan(image(*shape), taps, up, down, padding, 1.0, flip)
    except ValueError:
        hypothesis.reject()
    agree(image(*shape, layout=layout), taps, gain=0.7, up=up, down=down, padding=padding, flip=flip)


def test_a_strip_may_have_any_number_of_rows(force):
    """13 rows cover 129 of them in ten strips, 16 in nine with 15 to spare."""
    for rows, cols, up in ((3, 3, 1), (13, 5, 1), (6, 6, 2)):
        force(module.Config(rows, cols, 1, 4, 1, 1))
        agree(image(1, 2, 15, 14, layout="nhwc"), up=up, padding=(2, 1))


def test_a_map_of_medium_size_has_entries_of_its_own(monkeypatch):
    """A GPU's own goes before the general one of the same size, the size before the GPU."""
    general = (True, 1, 1)
    keys = [general, ((9, 0), *general), ("medium", *general), ((8, 0), "medium", *general)]
    monkeypatch.setattr(
        module, "CONFIGS", {key: module.Config(n, 1, 0, 64, 1, 4) for n, key in enumerate(keys)}
    )
    rows = [
        module.config(True, 1, 1, capability, elements).rows
        for elements in (choices.MEDIUM, choices.MEDIUM - 1)
        for capability in ((8, 6), (9, 0), (8, 0))
    ]
    assert rows == [0, 1, 0, 2, 2, 3]


@pytest.mark.parametrize("entry", sorted(module.CONFIGS, key=str), ids=str)
def test_every_configuration_agrees_with_the_reference(entry, force):
    """As it runs for large images: no strip is shortened."""
    nhwc, up, down = entry[-3:]
    force(module.CONFIGS[entry])
    x, options = (
        image(1, 2, 9, 9, layout="nhwc" if nhwc else "nchw").detach(),
        {"up": up, "down": down, "padding": (2, 1)},
    )
    want = kernels.upfirdn2d_reference(x, BINOMIAL, **options)
    torch.testing.assert_close(kernels.upfirdn2d(x, BINOMIAL, **options), want)


@pytest.mark.parametrize("tile", [{"rows": 8, "cols": 1}, {"rows": 3, "cols": 2}], ids=str)
def test_tiles_that_would_take_the_wrong_taps_are_refused(tile, force):
    """Seen with a table's entry of one column where the map doubles: every other pixel was filtered with its
    neighbour's taps."""
    force(module.CONFIGS[True, 2, 1]._replace(**tile))
    x = image(1, 2, 9, 9, layout="nhwc").detach()
    said = "rows and cols must be multiples of up, 2, got {rows} and {cols}".format(**tile)
    with pytest.raises(ValueError, match=said):
        kernels.upfirdn2d(x, BINOMIAL, up=2, padding=(2, 1))
    assert kernels.upfirdn2d(x, BINOMIAL, padding=(2, 1)).shape == x.shape


@pytest.mark.parametrize("layout", FORMATS)
def test_taps_that_floats_cannot_hold_keep_float64s_precision(layout):
    agree(image(1, 1, 4, 4, layout=layout), (0.1, 0.2, 0.7), padding=1, rtol=1e-14, atol=1e-15)


def test_a_transposed_or_sliced_view_is_read_as_it_lies():
    for view in (lambda x: x.mT, lambda x: x[:, 1:].to(memory_format=torch.channels_last)):
        agree(view(image(2, 3, 4, 4)), padding=(2, 1))


def test_bytes_moved_are_those_of_x_and_y():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    assert module.bytes_moved(x, BINOMIAL, up=2, padding=(2, 1)) == 2 * 3 * (16 + 64) * 2
