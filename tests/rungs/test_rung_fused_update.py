"""Adam that writes the next step's weights: the same training, states that PyTorch's Adam can go on from, a receipt."""

import copy
import functools

import pytest
import torch

from ladder.parity import reference
from tests.rungs.test_rung_lean_weights import BF16, TURNED, assert_same_training, trained
from tests.support.rung_steps import cold, small
from tests.support.small import LEAST

BELOW = {"weights": "once", "fused_adam": True, "ema": "foreach"}
FUSED = BELOW | {"fused_update": True}
torch.set_num_threads(1)


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("how", [TURNED, {}, {"modconv": "grouped"}], ids=["turned", "kept", "grouped"])
def test_every_phase_computes_the_same_and_updates_the_same(how, norm):
    recipe = {"precision": "fp64"} | how
    mine, theirs = (trained(recipe | more, norm=norm, resolution=8) for more in (FUSED, BELOW))
    assert_same_training(mine, theirs)
    for network in ("G", "D", "G_ema"):
        for a, b in zip(*(getattr(s, network).parameters() for s in (mine, theirs)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    for network in (mine.G, mine.D):
        for entry in mine.copies[network].entries:
            torch.testing.assert_close(entry.copy, entry.weight * entry.gain)


def test_a_weight_s_own_gradient_is_made_for_inspection_only():
    step = trained(BF16 | FUSED, rounds=1, **LEAST)
    entries = {e.name: e for e in step.copies[step.D].entries}
    assert entries and all(e.weight.grad is None for e in entries.values())
    assert entries.keys() <= step.gradients["D_main"].keys()


@pytest.mark.parametrize("other", [FUSED, BELOW], ids=["itself", "PyTorch's"])
def test_a_run_is_resumed(other):
    recipe = {"set_to_none": True}
    step = cold(small(recipe | FUSED, **LEAST))
    step.step()
    state = copy.deepcopy(step.state_dict())
    for _ in range(2):
        step.step()
    resumed = small(recipe | other, **LEAST)
    resumed.load_state_dict(state)
    for _ in range(2):
        resumed.step()
    close = {"rel": 0, "abs": 0} if other is FUSED else {"rel": 1e-2}
    for phase in ("G_main", "D_main"):
        assert resumed.losses()[phase] == pytest.approx(step.losses()[phase], **close)
    for a, b in zip(step.opt_G.state.values(), resumed.opt_G.state.values(), strict=False):
        assert float(a["step"]) == float(b["step"])


def test_a_replaced_state_is_the_one_that_is_updated():
    """An optimizer's own ``load_state_dict`` makes new tensors: the table of addresses must follow."""
    donor, step = trained(FUSED, **LEAST), small(FUSED, **LEAST)
    step.feed.next()
    step.run_phase("D_main")
    reference.adopt(step, copy.deepcopy(donor.state_dict()))
    before = [s["step"].clone() for s in step.opt_D.state.values()]
    step.run_phase("D_main")
    assert [float(s["step"]) for s in step.opt_D.state.values()] == [float(b) + 1 for b in before]
    assert step.settings()["adam_fused"] is True


class Captured:
    """A capture on a CPU: what is launched is noted, with the table it will read, and runs at each replay."""

    def __init__(self, monkeypatch, optimizer):
        self.launches, self.optimizer, self.patch = [], optimizer, monkeypatch

    def __enter__(self):
        for part in self.optimizer.parts:
            honest = functools.partial(type(part.plan).launch, part.plan)
            keep = functools.partial(lambda launch, table: self.launches.append((launch, table)), honest)
            self.patch.setattr(part.plan, "launch", keep, raising=False)
            self.patch.setattr(part.plan, "gradient_tables", None, raising=False)  # none is made inside
            self.patch.setattr(type(part), "_on_gpu", staticmethod(lambda p: True))
        self.patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        return self

    def __exit__(self, *error):
        self.patch.undo()
        self.optimizer.settle()

    def replay(self):
        for launch, table in self.launches:
            launch(table)


def test_each_capture_reads_its_own_gradients(monkeypatch):
    """Two captures whose gradients lie elsewhere, replayed in turn, with an eager update in between."""
    step = trained(BELOW | {"fused_update": True, "set_to_none": True}, rounds=1, resolution=8)
    optimizer, bias = step.opt_D, step.D.from_rgb.bias
    parameters = optimizer.param_groups[0]["params"]
    gradients = [[torch.full_like(p, sign) for p in parameters] for sign in (1.0, -1.0)]
    for e in step.copies[step.D].entries:
        e.copy.grad = None
    graphs = []
    for each in gradients:
        for p, g in zip(parameters, each, strict=True):
            p.grad = g
        with pytest.MonkeyPatch.context() as patch, Captured(patch, optimizer) as graph:
            before = bias.detach().clone()
            optimizer.step()
        assert torch.equal(bias, before), "a capture runs nothing"
        graphs.append(graph)
    optimizer.zero_grad()
    for sign, graph in ((-1, graphs[0]), (1, graphs[1]), (-1, graphs[0])):
        before = bias.detach().clone()
        graph.replay()
        assert ((bias - before).sign() == sign).all()
        for p in parameters:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()


# the receipt
