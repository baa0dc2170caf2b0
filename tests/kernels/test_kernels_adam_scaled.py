"""Adam's kernels with a loss scale: gradients divided as they are read, and nothing touched where one overflowed."""

import pytest
import torch

from kernels.weights.adam import AdamPlan, adam_reference
from tests.kernels.test_kernels_adam import DEVICE, RATES, SIDE, cloned, gradients, items, made

torch.set_num_threads(1)


def with_energies(copy):
    """Flat, in squares of channels, turned and not, with an energy that has a gradient of its own."""
    mine = items(copy=copy)
    more = [made((SIDE, 8, 3, 3), torch.channels_last, copy=copy, turned=t) for t in (False, True)]
    return mine, [i._replace(energy=torch.zeros(i.weight.shape[:2], device=DEVICE)) for i in more]


def everything(of):
    return [t.clone() for i in of for t in (*i[:4], *([] if i.copy is None else [i.copy]))]


def launch(plan, pairs, *scale):
    rows, held = plan.addresses(pairs)
    (table,) = plan.gradient_tables()
    plan.launch(table.copy_(torch.tensor(rows)), *scale)
    del held


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
        launch(plan, pairs, inverse, found_inf)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a.weight, b.weight, rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(a.exp_avg_sq, b.exp_avg_sq, rtol=2e-5, atol=1e-7)
            assert float(a.step) == float(b.step)
        before = everything(mine)
        pairs = [tuple(None if g is None else torch.full_like(g, torch.inf) for g in pair) for pair in pairs]
        launch(plan, pairs, inverse, torch.ones_like(found_inf))
        adam_reference(other, pairs, plan.rates, inverse, torch.ones(()))
        assert all(torch.equal(a, b) for a, b in zip(before, everything(mine), strict=True))
