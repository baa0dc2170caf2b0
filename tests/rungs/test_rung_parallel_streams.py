"""The second stream: the same training however late it is, a receipt, and on a GPU the same replays."""

import copy
import sys

import pytest
import torch

from kernels.linear.weight_gradients import WeightGradients
from ladder.base import text
from ladder.plan import catalog
from ladder.receipts import evidence
from stylegan_lite import make_step
from stylegan_lite.step import PHASES
from stylegan_lite.update import FusedUpdate
from tests.rungs.test_rung_lean_weights import assert_same_training, trained
from tests.support.rung_steps import cold
from tests.support.small import SMALL

BELOW = {"weights": "once", "conv": "double_backward", "set_to_none": True, "channels_last": True}
BELOW |= {"resample": "depthwise"}
TWO = {"streams": "two"}
UPDATE = {"fused_adam": True, "ema": "foreach", "fused_update": True}
TINY = {"resolution": 8, "channel_base": 32, "channel_max": 4, "w_dim": 4, "z_dim": 4, "batch": 2}
OTHERS = {
    "plain": {},
    "fused_update": UPDATE,
    "joint_batch": {"joint_batch": True} | UPDATE,
    "gradients kept": {"set_to_none": False},
    "NCHW": {"channels_last": False, "resample": "channels_as_batch"},
    "grouped": {"modconv": "grouped"},
}
torch.set_num_threads(1)


def small(recipe=None, device="cpu", **workload):
    return make_step(SMALL | workload, recipe or {}, device=device)


@pytest.fixture
def late(monkeypatch):
    """A second stream on which nothing runs before the join: whoever looks too early, or overwrites, is found out."""
    honest_take, waiting = WeightGradients.take, []

    def take(self, weights, compute):
        if any(leaf is None for leaf, _ in map(self._leaf, weights)):
            return False
        waiting.append(lambda: honest_take(self, weights, compute))
        return True

    def join(self):
        while waiting:
            waiting.pop(0)()

    monkeypatch.setattr(WeightGradients, "take", take)
    monkeypatch.setattr("kernels.linear.weight_gradients.Branch.join", join)


@pytest.mark.parametrize("how", OTHERS.values(), ids=OTHERS)
def test_every_phase_computes_the_same_and_updates_the_same(how, late):
    recipe = {"precision": "fp64"} | BELOW | how
    mine, theirs = (trained(recipe | more, **TINY) for more in (TWO, {}))
    assert_same_training(mine, theirs)
    for network in ("G", "D", "G_ema"):
        for a, b in zip(*(getattr(s, network).parameters() for s in (mine, theirs)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    for a, b in zip(mine.G_ema.buffers(), theirs.G_ema.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_kernels_offer_theirs_and_the_sums_are_the_same(late, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.linear.dense"], "LARGE", 1)
    recipe = {"precision": "fp64", "fused_norm": True, "dense": "triton", "rgb": "triton"} | BELOW
    mine, theirs = (trained(recipe | more, 1, **TINY) for more in (TWO, {}))
    assert_same_training(mine, theirs)
    convolutions, dense = len(mine.copies[mine.G].entries), 2 * 2 + 2 * 5  # weights and biases
    rest = 3 + 2  # demodulation of three layers, biases of two toRGB
    assert mine.parallel.collected["G_main"]["gradients"] == convolutions + dense + rest


EARLY = {"precision": "fp64", "joint_batch": True} | BELOW | UPDATE


def in_earnest(recipe):
    """A step whose gradients nobody keeps, after each phase has run twice."""
    step = small(recipe, **TINY)
    torch.manual_seed(3)
    for _ in range(2):
        step.feed.next()
        for phase in PHASES:
            step.run_phase(phase)
    return step


def test_most_weights_are_updated_beside_the_end_of_backward(monkeypatch):
    honest, early = FusedUpdate.step_early, []
    monkeypatch.setattr(FusedUpdate, "step_early", lambda self: (early.append(self), honest(self))[1])
    mine, theirs = (in_earnest(EARLY | more) for more in (TWO, {}))
    assert early == [mine.opt_G, mine.opt_D] * 2  # in main phases
    for network in ("G", "D", "G_ema"):
        for a, b in zip(*(getattr(s, network).parameters() for s in (mine, theirs)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    for optimizer in (mine.opt_G, mine.opt_D):
        first, last = (sum(p.numel() for p in part.parameters) for part in optimizer.parts)
        assert first > last


@pytest.mark.parametrize("why", [{"joint_batch": False}, {"micro_batches": 2}, {"streams": "one"}], ids=str)
def test_an_update_waits_for_all_passes_of_its_phase(why, monkeypatch):
    monkeypatch.setattr(FusedUpdate, "step_early", None)
    step = small(EARLY | TWO | {"joint_batch": True} | why, batch=8, resolution=8)
    assert step._early_update("D_main", step.D, step.opt_D) is None
    step.keep_gradients = True
    assert step._early_update("G_main", step.G, step.opt_G) is None


def test_a_phase_that_raised_updates_nothing_in_the_next(monkeypatch):
    step = in_earnest(EARLY | TWO)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(step, "_loss", lambda *given: (_ for _ in ()).throw(MemoryError))
        step.run_phase("D_main")
    before = [p.detach().clone() for p in step.D.parameters()]
    monkeypatch.setattr(step.opt_D, "step_early", None)
    step.run_phase("G_main")
    assert all(map(torch.equal, before, step.D.parameters()))


def test_a_gradient_that_comes_after_its_update_is_an_error():
    step = in_earnest(EARLY | TWO)
    weight = next(p for p in step.opt_D.parts[0].parameters if p.grad is not None)
    step.opt_D.step_early()
    weight.grad += 1
    with pytest.raises(RuntimeError, match="a gradient came after its update"):
        step.opt_D.step()
    step.opt_D.zero_grad()
    step.opt_D.step()


def test_algorithms_are_chosen_without_company():
    """cuDNN times its algorithms at a convolution's first call, in the first run of each phase."""
    step, seen = small(BELOW | TWO), []
    honest = step._warm_up
    step._warm_up = lambda phase: (seen.append(step.parallel.branch.active), honest(phase))
    step.prepare()
    assert seen == [False] * len(PHASES) and step.parallel.branch.active


# the receipt


def gathered(recipe, sabotage=None, ms=None):
    step = cold(small(recipe, **TINY))
    if sabotage:
        sabotage(step)
    with pytest.MonkeyPatch.context() as patch:
        trace = {} if ms is None else {"parallel_ms": ms, "busy_ms": 10.0}
        patch.setattr(evidence, "trace_steps", lambda step, ran, align: (step.step(), (trace, 16))[1])
        return evidence.gather(step)


def test_it_shows_its_receipt_and_so_do_the_rungs_below():
    seen = gathered(BELOW | TWO | UPDATE, ms=0.7)
    for rung in {*catalog.contained(BELOW | TWO | UPDATE), "parallel_streams"} - {"baseline"}:
        found = catalog.load_rung(rung).receipt(seen)
        assert found.engaged, (rung, found.lines)
        assert all(text.TEXT.fullmatch(line) for line in found.lines), found.lines
    assert not catalog.load_rung("parallel_streams").receipt(gathered(BELOW)).engaged


def test_without_fused_resample_fewer_weights_count():
    """Leave-one-out measures this: up- and downsampling layers then convolve with weights made of theirs."""
    found = catalog.load_rung("parallel_streams").receipt(
        gathered(BELOW | TWO | {"resample": "subpixel"}, ms=0.7)
    )
    assert found.engaged, found.lines


def test_graphs_without_branches_are_not_engaged(refused):
    seen = gathered(BELOW | TWO, ms=0.01)
    refused(
        "parallel_streams",
        seen,
        "two kernels at once",
        sabotage="graphs without branches",
        planted="evidence",
    )


# on a GPU

GRAPHS = {"cuda_graphs": True, "adam": "capturable"} | BELOW


def replayed(step, state, seed):
    """All phases on the same state and numbers; their losses and gradients."""
    step.load_state_dict(copy.deepcopy(state))
    torch.manual_seed(seed)
    for phase in PHASES:
        step._fill(phase)
    if step.together:
        step.replay_together(PHASES)
    else:
        for phase in PHASES:
            step.replay(phase)
    return step.losses(), {p: {k: g.clone() for k, g in step.gradients[p].items()} for p in PHASES}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("whole", [False, True])
def test_fifty_replays_are_those_of_one_stream(whole, precision):
    more = UPDATE | {
        "fused_norm": True,
        "fused_act": True,
        "dense": "triton",
        "rgb": "triton",
        "resample": "triton",
    }
    recipe = GRAPHS | more | {"whole_step_graph": whole, "precision": precision, "joint_batch": True}
    size = {"resolution": 64, "channel_base": 4096, "channel_max": 128, "w_dim": 128, "batch": 8}
    one, two = (small(recipe | streams, "cuda", **size) for streams in ({}, TWO))
    for step in (one, two):
        step.keep_gradients = True
        step.prepare()
        step.feed.next()
    two.real.copy_(one.real)
    tolerance = (
        5e-2  # cuDNN takes TF32 for FP32, and other algorithms for either step; Adam makes more of that
    )
    for seed in range(50):
        state = copy.deepcopy(one.state_dict())
        losses, gradients = replayed(one, state, seed)
        found, mine = replayed(two, state, seed)
        assert found == pytest.approx(losses, rel=tolerance, abs=1e-3)
        for phase in PHASES:
            total = torch.cat([g.flatten() for g in gradients[phase].values()]).norm()
            wrong = torch.cat([(mine[phase][k] - g).flatten() for k, g in gradients[phase].items()]).norm()
            assert mine[phase].keys() == gradients[phase].keys() and wrong <= tolerance * total, (seed, phase)
        again, same = replayed(two, state, seed)
        assert again == pytest.approx(found, rel=1e-3, abs=1e-4)
        for phase in PHASES:
            total = torch.cat([g.flatten() for g in mine[phase].values()]).norm()
            for name, gradient in mine[
                phase
            ].items():  # rounding moves one of a millionth of the others by a fifth
                room = tolerance * gradient.norm() + 1e-3 * total
                assert (same[phase][name] - gradient).norm() <= room, (seed, phase, name)
    for step in (one, two):
        step.close()


@pytest.mark.gpu
def test_it_is_engaged_on_the_gpu():
    size = {"resolution": 64, "channel_base": 4096, "channel_max": 128, "w_dim": 128, "batch": 8}
    step = small(GRAPHS | TWO | UPDATE | {"precision": "bf16"}, "cuda", **size)
    step.prepare()
    found = catalog.load_rung("parallel_streams").receipt(evidence.gather(step))
    step.close()
    assert found.engaged, found.lines
