"""Adam over tables of addresses: torch.optim.Adam's steps, and the copies of weights that it writes on the way."""

import pytest
import torch

import kernels
from kernels.weights.adam import SIDE, AdamPlan, Item, Rates, adam_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RATES = Rates(0.01, 0.0, 0.99, 1e-8)
SHAPES = [(), (1,), (7,), (33, 5), (3, 5, 1, 1), (9, 7, 3, 3), (2100,), (SIDE, SIDE, 3, 3)]
torch.set_num_threads(1)


def made(shape, layout, dtype=torch.float32, copy=None, turned=False, gain=1.0):
    weight = torch.randn(shape, device=DEVICE, dtype=dtype)
    if weight.dim() == 4:
        weight = weight.contiguous(memory_format=layout)
    if turned:
        like = torch.empty_like(weight.transpose(0, 1), dtype=copy, memory_format=layout).transpose(0, 1)
    else:
        like = None if copy is None else torch.empty_like(weight, dtype=copy)
    step = torch.zeros((), device=DEVICE)
    return Item(weight, torch.zeros_like(weight), torch.zeros_like(weight), step, like, gain)


def items(dtype=torch.float32, copy=torch.bfloat16):
    """Sizes that divide nothing, both memory formats, with and without copies, some of them turned."""
    layouts = (torch.channels_last, torch.contiguous_format)
    found = [made(shape, layouts[k % 2], dtype) for k, shape in enumerate(SHAPES)]
    found += [made((9, 7, 3, 3), layout, dtype, copy, gain=0.3) for layout in layouts]
    found += [made((3, 5, 1, 1), torch.channels_last, dtype, copy, gain=0.3)]
    for shape in ((9, 7, 3, 3), (SIDE, 2 * SIDE, 3, 3)):
        found.append(made(shape, torch.channels_last, dtype, copy, turned=True, gain=1.5))
    return found


def gradients(of, step):
    """Own gradient, copy's gradient, both, and now and then none."""
    found = []
    for k, item in enumerate(of):
        own = torch.randn_like(item.weight) if item.copy is None or k % 2 else None
        copys = None if item.copy is None else torch.randn_like(item.weight).to(item.copy.dtype)
        if copys is not None:
            copys = torch.empty_like(item.copy).copy_(copys)
        found.append((None, None) if (k + step) % 5 == 4 else (own, copys))
    return found


def update(plan, pairs, *scale):
    rows, held = plan.addresses(pairs)
    (table,) = plan.gradient_tables()
    plan.launch(table.copy_(torch.tensor(rows)), *scale)
    return held


def cloned(of):
    return [
        Item(*(t.clone() for t in item[:4]), None if item.copy is None else item.copy.clone(), item.gain)
        for item in of
    ]


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_it_takes_the_steps_of_torch_s_adam(beta1):
    torch.manual_seed(0)
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
    torch.manual_seed(4)
    mine, rates = items(), RATES._replace(beta1=0.0)
    for item in mine:
        item.exp_avg.fill_(float("nan"))
    plan = AdamPlan(mine, rates)
    update(plan, gradients(mine, 0))
    for item in mine:
        assert item.exp_avg.isnan().all() and item.weight.isfinite().all()


@pytest.mark.parametrize(("dtype", "copy"), [(torch.float64, torch.float64), (torch.float32, torch.float16)])
def test_it_agrees_with_its_reference_in_other_dtypes(dtype, copy):
    torch.manual_seed(1)
    mine = items(dtype, copy)
    other, plan = cloned(mine), AdamPlan(mine, RATES._replace(beta1=0.5))
    close = {"rtol": 1e-12, "atol": 1e-13} if dtype is torch.float64 else {"rtol": 2e-6, "atol": 2e-7}
    for step in range(3):
        pairs = gradients(mine, step)
        adam_reference(other, pairs, plan.rates)
        update(plan, pairs)
        for a, b in zip(mine, other, strict=True):
            for name in ("weight", "exp_avg", "exp_avg_sq", "step"):
                torch.testing.assert_close(getattr(a, name), getattr(b, name), **close)


def test_gradients_that_lie_elsewise_are_brought_in_line():
    torch.manual_seed(2)
    mine = [made((9, 7, 3, 3), torch.channels_last), made((6,), None)]
    other, plan = cloned(mine), AdamPlan(mine, RATES)
    nchw = torch.randn(9, 7, 3, 3, device=DEVICE)
    unaligned = torch.randn(7, device=DEVICE)[1:]
    assert len(update(plan, [(nchw, None), (unaligned, None)])) == 2
    adam_reference(other, [(nchw, None), (unaligned, None)], RATES)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a.weight, b.weight, rtol=2e-6, atol=2e-7)


def test_what_does_not_belong_together_is_refused_in_one_line():
    good, other = made((4, 3, 3, 3), torch.channels_last), made((4, 3, 3, 3), torch.contiguous_format)
    bad = [
        (good._replace(exp_avg=other.exp_avg), "lie alike"),
        (good._replace(weight=good.weight.half()), "float32"),
        (good._replace(step=torch.zeros((), dtype=torch.float64)), "step count"),
        (good._replace(copy=torch.zeros(4, 3, 1, 1)), "copy"),
        (good._replace(copy=other.weight.bfloat16()), "turned"),
    ]
    for item, words in bad:
        with pytest.raises(ValueError, match=words) as refusal:
            AdamPlan([good, item], RATES)
        assert "\n" not in str(refusal.value) and "parameter 1" in str(refusal.value)
    kinds = [made((4, 3, 3, 3), torch.channels_last, copy=dtype) for dtype in (torch.bfloat16, torch.float16)]
    with pytest.raises(ValueError, match="one dtype"):
        AdamPlan(kinds, RATES)


def test_bytes_moved_counts_each_tensor_once():
    mine = [made((8,), None), made((8, 8, 1, 1), torch.channels_last, copy=torch.bfloat16)]
    pairs = [(mine[0].weight, None), (None, mine[1].copy)]
    assert kernels.weights.adam.bytes_moved(mine, pairs) == 5 * 32 + 4 * 256 + 2 * 128
    assert kernels.weights.adam.bytes_moved(mine, pairs, momentum=True) == 7 * 32 + 6 * 256 + 2 * 128
    assert kernels.weights.adam.bytes_moved(mine, [(None, None)] * 2) == 0


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_gradient_of_the_squares_summed_over_taps_is_taken_as_it_is(layout, turned):
    """It acts as 2 * weight * gradient added to the weight's own gradient. A missing gradient does nothing."""
    torch.manual_seed(3)
    mine = [
        made(shape, layout, copy=torch.bfloat16, turned=turned) for shape in ((9, 7, 3, 3), (SIDE, 8, 3, 3))
    ]
    mine = [item._replace(energy=torch.zeros(item.weight.shape[:2], device=DEVICE)) for item in mine]
    mine += [made((9, 7, 3, 3), layout, copy=torch.bfloat16), made((5,), layout)]
    other, plan = cloned(mine), AdamPlan(mine, RATES)
    for step in range(4):
        energys = [None if i.energy is None else torch.randn_like(i.energy) for i in mine]
        copys = [None if i.copy is None else torch.empty_like(i.copy).normal_() for i in mine]
        if step == 2:
            energys[0], copys[1] = None, None
        pairs = list(zip([None, None, None, torch.ones(5, device=DEVICE)], copys, energys, strict=True))
        update(plan, pairs)
        adam_reference(other, pairs, RATES)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a.weight, b.weight, rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(a.exp_avg_sq, b.exp_avg_sq, rtol=2e-5, atol=1e-7)
    for bad in (torch.zeros(9, 6), torch.zeros(9, 7).half()):
        with pytest.raises(ValueError, match="an energy"):
            AdamPlan([mine[0]._replace(energy=bad.to(DEVICE))], RATES)


# ---- with a loss scale: gradients are divided as they are read -------------------------------------------------------


def with_energies(copy):
    """Flat, in squares of channels, turned and not, with an energy that has a gradient of its own."""
    mine = items(copy=copy)
    more = [made((SIDE, 8, 3, 3), torch.channels_last, copy=copy, turned=t) for t in (False, True)]
    return mine, [i._replace(energy=torch.zeros(i.weight.shape[:2], device=DEVICE)) for i in more]


def everything(of):
    return [t.clone() for i in of for t in (*i[:4], *([] if i.copy is None else [i.copy]))]


@pytest.mark.parametrize("copy", [torch.float16, torch.bfloat16])
def test_gradients_are_divided_by_the_scale_and_an_overflow_moves_nothing(copy):
    torch.manual_seed(4)
    plain, squared = with_energies(copy)
    mine = plain + squared
    for item in mine:
        if item.copy is not None:  # those without a gradient are never written
            item.copy.zero_()
    other, plan = cloned(mine), AdamPlan(mine, RATES._replace(beta1=0.5))
    other[len(plain) :] = [
        o._replace(energy=i.energy) for o, i in zip(other[len(plain) :], squared, strict=True)
    ]
    inverse, found_inf = torch.tensor(2.0**-4, device=DEVICE), torch.zeros((), device=DEVICE)
    for step in range(3):
        pairs = [(*pair, None) for pair in gradients(plain, step)]
        pairs += [(None, torch.empty_like(i.copy).normal_(), torch.randn_like(i.energy)) for i in squared]
        adam_reference(other, pairs, plan.rates, inverse, found_inf)
        update(plan, pairs, inverse, found_inf)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a.weight, b.weight, rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(a.exp_avg_sq, b.exp_avg_sq, rtol=2e-5, atol=1e-7)
            assert float(a.step) == float(b.step)
        before = everything(mine)
        pairs = [tuple(None if g is None else torch.full_like(g, torch.inf) for g in pair) for pair in pairs]
        update(plan, pairs, inverse, torch.ones_like(found_inf))
        adam_reference(other, pairs, plan.rates, inverse, torch.ones(()))
        assert all(torch.equal(a, b) for a, b in zip(before, everything(mine), strict=True))
