"""Adam over tables of addresses: torch.optim.Adam's steps, and the copies of weights that it writes on the way."""

import pytest
import torch

import kernels
from kernels.weights.adam import SIDE, AdamPlan, Item, Rates, adam_reference
from tests.kernels.opcases import DEVICE

RATES = Rates(0.01, 0.0, 0.99, 1e-8)
SHAPES = [(), (1,), (7,), (33, 5), (3, 5, 1, 1), (9, 7, 3, 3), (2100,), (SIDE, SIDE, 3, 3)]
NHWC, NCHW = torch.channels_last, torch.contiguous_format
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(shape, layout, dtype=torch.float32, copy=None, turned=False, gain=1.0):
    weight = torch.randn(shape, device=DEVICE, dtype=dtype)
    if weight.dim() == 4:
        weight = weight.contiguous(memory_format=layout)
    if turned:
        like = torch.empty_like(weight.transpose(0, 1), dtype=copy, memory_format=layout).transpose(0, 1)
    else:
        like = None if copy is None else torch.zeros_like(weight, dtype=copy)
    step = torch.zeros((), device=DEVICE)
    return Item(weight, torch.zeros_like(weight), torch.zeros_like(weight), step, like, gain)


def items(dtype=torch.float32, copy=torch.bfloat16):
    """Sizes that divide nothing, both memory formats, with and without copies, some of them turned."""
    found = [made(shape, (NHWC, NCHW)[k % 2], dtype) for k, shape in enumerate(SHAPES)]
    found += [made((9, 7, 3, 3), layout, dtype, copy, gain=0.3) for layout in (NHWC, NCHW)]
    found += [made((3, 5, 1, 1), NHWC, dtype, copy, gain=0.3)]
    return found + [
        made(shape, NHWC, dtype, copy, turned=True, gain=1.5)
        for shape in ((9, 7, 3, 3), (SIDE, 2 * SIDE, 3, 3))
    ]


def gradients(of, step):
    """Own gradient, copy's gradient, both, and now and then none."""
    found = []
    for k, item in enumerate(of):
        own = torch.randn_like(item.weight) if item.copy is None or k % 2 else None
        copys = None if item.copy is None else torch.empty_like(item.copy).normal_()
        found.append((None, None) if (k + step) % 5 == 4 else (own, copys))
    return found


def update(plan, pairs, *scale):
    rows, held = plan.addresses(pairs)
    (table,) = plan.gradient_tables()
    plan.launch(table.copy_(torch.tensor(rows)), *scale)
    return held


def cloned(of):
    """Energies are shared: nothing writes them."""
    names = ("weight", "exp_avg", "exp_avg_sq", "step")
    clones = [item._replace(**{name: getattr(item, name).clone() for name in names}) for item in of]
    return [item if item.copy is None else item._replace(copy=item.copy.clone()) for item in clones]


def assert_alike(mine, other, rtol=2e-6, atol=2e-6):
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a.weight, b.weight, rtol=rtol, atol=atol)
        torch.testing.assert_close(a.exp_avg_sq, b.exp_avg_sq, rtol=10 * rtol, atol=atol)
        assert float(a.step) == float(b.step)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_it_takes_the_steps_of_torch_s_adam(beta1):
    mine, rates = items(), RATES._replace(beta1=beta1)
    theirs = [torch.nn.Parameter(item.weight.clone()) for item in mine]
    adam = torch.optim.Adam(theirs, lr=rates.lr, betas=rates[1:3], eps=rates.eps, capturable=DEVICE == "cuda")
    plan = AdamPlan(mine, rates)
    for step in range(4):
        pairs = gradients(mine, step)
        for parameter, item, (own, copys) in zip(theirs, mine, pairs, strict=True):
            parts = [] if own is None else [own]
            parts += [] if copys is None else [copys.float() * item.gain]
            parameter.grad = torch.empty_like(parameter).copy_(sum(parts)) if parts else None
        adam.step()
        update(plan, pairs)
        for parameter, item in zip(theirs, mine, strict=True):
            state = adam.state.get(parameter, {})
            torch.testing.assert_close(item.weight, parameter.detach(), rtol=2e-6, atol=2e-7)
            assert float(item.step) == float(state.get("step", 0))
            for name in state.keys() & ({"exp_avg", "exp_avg_sq"} if beta1 else {"exp_avg_sq"}):
                torch.testing.assert_close(getattr(item, name), state[name], rtol=2e-6, atol=1e-7)
            if item.copy is not None and float(item.step):
                eps = torch.finfo(item.copy.dtype).eps  # the interpreter truncates where a GPU rounds
                torch.testing.assert_close(item.copy.float(), item.weight * item.gain, rtol=eps, atol=0)


def test_a_first_moment_that_no_update_reads_is_neither_read_nor_written():
    mine = items()
    for item in mine:
        item.exp_avg.fill_(float("nan"))
    update(AdamPlan(mine, RATES), gradients(mine, 0))
    assert all(item.exp_avg.isnan().all() and item.weight.isfinite().all() for item in mine)


@pytest.mark.parametrize(("dtype", "copy"), [(torch.float64, torch.float64), (torch.float32, torch.float16)])
def test_it_agrees_with_its_reference_in_other_dtypes(dtype, copy):
    mine = items(dtype, copy)
    other, plan = cloned(mine), AdamPlan(mine, RATES._replace(beta1=0.5))
    close = {"rtol": 1e-12, "atol": 1e-13} if dtype is torch.float64 else {"rtol": 2e-6, "atol": 1e-6}
    for step in range(3):
        pairs = gradients(mine, step)
        adam_reference(other, pairs, plan.rates)
        update(plan, pairs)
        assert_alike(mine, other, **close)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a.exp_avg, b.exp_avg, **close)


def test_gradients_that_lie_elsewise_are_brought_in_line():
    mine = [made((9, 7, 3, 3), NHWC), made((6,), None)]
    other, plan = cloned(mine), AdamPlan(mine, RATES)
    nchw, unaligned = torch.randn(9, 7, 3, 3, device=DEVICE), torch.randn(7, device=DEVICE)[1:]
    assert len(update(plan, [(nchw, None), (unaligned, None)])) == 2
    adam_reference(other, [(nchw, None), (unaligned, None)], RATES)
    assert_alike(mine, other)


def test_what_does_not_belong_together_is_refused_in_one_line():
    good, other = made((4, 3, 3, 3), NHWC), made((4, 3, 3, 3), NCHW)
    for item, words in (
        (good._replace(exp_avg=other.exp_avg), "lie alike"),
        (good._replace(weight=good.weight.half()), "float32"),
        (good._replace(step=torch.zeros((), dtype=torch.float64)), "step count"),
        (good._replace(copy=torch.zeros(4, 3, 1, 1)), "copy"),
        (good._replace(copy=other.weight.bfloat16()), "turned"),
        (good._replace(energy=torch.zeros(4, 2, device=DEVICE)), "an energy"),
        (good._replace(energy=torch.zeros(4, 3, device=DEVICE).half()), "an energy"),
    ):
        with pytest.raises(ValueError, match=words) as refusal:
            AdamPlan([good, item], RATES)
        assert "\n" not in str(refusal.value) and "parameter 1" in str(refusal.value)
    with pytest.raises(ValueError, match="one dtype"):
        AdamPlan([made((4, 3, 3, 3), NHWC, copy=dtype) for dtype in (torch.bfloat16, torch.float16)], RATES)


def test_bytes_moved_counts_each_tensor_once():
    mine, count = (
        [made((8,), None), made((8, 8, 1, 1), NHWC, copy=torch.bfloat16)],
        kernels.weights.adam.bytes_moved,
    )
    pairs = [(mine[0].weight, None), (None, mine[1].copy)]
    assert count(mine, pairs) == 5 * 32 + 4 * 256 + 2 * 128
    assert count(mine, pairs, momentum=True) == 7 * 32 + 6 * 256 + 2 * 128
    assert count(mine, [(None, None)] * 2) == 0


def with_energies(shapes, layout=NHWC, turned=(False, True), copy=torch.bfloat16):
    mine = [made(shape, layout, copy=copy, turned=t) for shape in shapes for t in turned]
    return [item._replace(energy=torch.zeros(item.weight.shape[:2], device=DEVICE)) for item in mine]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("layout", [NHWC, NCHW])
def test_a_gradient_of_the_squares_summed_over_taps_is_taken_as_it_is(layout, turned):
    """It acts as 2 * weight * gradient added to the weight's own gradient. A missing gradient does nothing."""
    mine = with_energies(((9, 7, 3, 3), (SIDE, 8, 3, 3)), layout, (turned,))
    mine += [made((9, 7, 3, 3), layout, copy=torch.bfloat16), made((5,), layout)]
    other, plan = cloned(mine), AdamPlan(mine, RATES)
    for step in range(4):
        energies = [None if i.energy is None else torch.randn_like(i.energy) for i in mine]
        copys = [None if i.copy is None else torch.empty_like(i.copy).normal_() for i in mine]
        if step == 2:
            energies[0], copys[1] = None, None
        pairs = list(zip([None, None, None, torch.ones(5, device=DEVICE)], copys, energies, strict=True))
        update(plan, pairs)
        adam_reference(other, pairs, RATES)
        assert_alike(mine, other)


@pytest.mark.parametrize("copy", [torch.float16, torch.bfloat16])
def test_gradients_are_divided_by_the_scale_and_an_overflow_moves_nothing(copy):
    """Flat, in squares of channels, turned and not, with an energy that has a gradient of its own."""
    plain, squared = items(copy=copy), with_energies(((SIDE, 8, 3, 3),), copy=copy)
    mine = plain + squared
    other, plan = cloned(mine), AdamPlan(mine, RATES._replace(beta1=0.5))
    inverse, found_inf = torch.tensor(2.0**-4, device=DEVICE), torch.zeros((), device=DEVICE)
    for step in range(3):
        pairs = [(*pair, None) for pair in gradients(plain, step)]
        pairs += [(None, torch.empty_like(i.copy).normal_(), torch.randn_like(i.energy)) for i in squared]
        adam_reference(other, pairs, plan.rates, inverse, found_inf)
        update(plan, pairs, inverse, found_inf)
        assert_alike(mine, other)
        before = cloned(mine)
        pairs = [tuple(None if g is None else torch.full_like(g, torch.inf) for g in pair) for pair in pairs]
        update(plan, pairs, inverse, torch.ones_like(found_inf))
        adam_reference(other, pairs, plan.rates, inverse, torch.ones(()))
        for a, b in zip(mine, before, strict=True):
            assert all(torch.equal(s, t) for s, t in zip(a[:5], b[:5], strict=True) if s is not None)
