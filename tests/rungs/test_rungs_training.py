"""The rungs of updates: copies of weights, fused Adam, a second stream, loss scales and kept sums train alike."""

import copy
import functools
import sys

import pytest
import torch

from kernels.linear.weight_gradients import WeightGradients
from ladder.parity import reference
from ladder.plan import catalog, modes, needs
from ladder.receipts import evidence
from ladder.rungs.grouped_demod import MOST
from stylegan_lite.losses import PHASES
from stylegan_lite.step.scaling import LossScale, describe
from stylegan_lite.step.update import FusedUpdate
from tests.rungs.cases import (
    FUSED_ADAM,
    GRAPHS,
    GROUPED,
    LEAN,
    NORM,
    ODD,
    ONCE,
    STREAMS,
    STREAMS_TINY,
    UPDATE,
)  # fmt: skip
from tests.support.rung_steps import (
    assert_engaged,
    checked,
    every_phase,
    gathered,
    receipt,
    resume_alike,
    small,
    train_alike,
)  # fmt: skip
from tests.support.small import LEAST
from tests.training.test_train import go, images, lines, one_thread, weights  # noqa: F401  (fixtures)

FP64 = {"precision": "fp64"}
TURNED = {"channels_last": True, "set_to_none": True, "conv": "double_backward", "resample": "depthwise"}
TWO = {"streams": "two"}
BELOW = {name: value for name, value in STREAMS.items() if name != "streams"}
torch.set_num_threads(1)


def train(recipe, rounds=2, phases=PHASES, device="cpu", **workload):
    """Every phase, ``rounds`` times: what changes in one must have arrived in the next."""
    step = small(recipe, device, **workload)
    every_phase(step, rounds=rounds, phases=phases)
    return step


# ---- lean_weights, fused_update --------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize(
    ("below", "more", "how"),
    [
        *(({}, ONCE, how) for how in (
            TURNED, {"modconv": "grouped"}, {"resample": "bilinear"}, {"resample": "folded", "set_to_none": True},
        )),
        *((ONCE | FUSED_ADAM, {"fused_update": True}, how) for how in (TURNED, {}, {"modconv": "grouped"})),
    ],
)  # fmt: skip
def test_every_phase_computes_the_same_and_updates_the_same(below, more, how, norm):
    mine, theirs = (train(FP64 | how | below | m, norm=norm, resolution=8) for m in (more, {}))
    train_alike(mine, theirs, updates="fused_update" in more)
    for network in (mine.G, mine.D):
        for entry in mine.copies[network].entries:
            torch.testing.assert_close(entry.copy, entry.weight * entry.gain)


def test_the_demodulation_kernel_s_gradient_arrives_beside_the_convolution_s():
    recipe = TURNED | FP64 | NORM
    train_alike(*(train(recipe | m, 1, ("G_main", "G_pl"), **STREAMS_TINY) for m in (ONCE, {})))


def test_what_is_kept_does_not_change():
    step, plain = small(LEAN | ONCE), small(LEAN)
    for network in ("G", "D", "G_ema"):
        one, other = (getattr(s, network).state_dict() for s in (step, plain))
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in other)
    assert [n for n, _ in step.G.named_parameters()] == [n for n, _ in plain.G.named_parameters()]
    assert not [layer for layer in step.G_ema.modules() if getattr(layer, "compute_copy", None) is not None]
    assert not plain.copies[plain.G].entries


def test_copies_are_scaled_in_bf16_in_the_layout_of_their_convolution():
    step = small(LEAN | ONCE | {"resample": "triton"})
    entries = [e for copies in step.copies.values() for e in copies.entries]
    assert len(entries) == len([p for n in (step.G, step.D) for p in n.parameters() if p.dim() == 4])
    assert all(torch.equal(entry.copy, (entry.weight * entry.gain).bfloat16()) for entry in entries)
    for block in list(step.G.blocks)[1:]:
        turned = block.conv0.compute_copy.transpose(0, 1)
        assert turned.is_contiguous(memory_format=torch.channels_last)


def test_gradients_go_to_the_copies_of_networks_that_learn():
    step = train(LEAN | ONCE, rounds=1)
    for entry in step.copies[step.G].entries + step.copies[step.D].entries:
        entry.copy.grad = None
    step.run_phase("G_main")
    assert all(e.copy.grad is None and not e.copy.requires_grad for e in step.copies[step.D].entries)
    assert all(e.copy.grad is not None for e in step.copies[step.G].entries)
    step = train(LEAN | UPDATE, rounds=1, **LEAST)  # a weight's own is made for inspection only
    entries = {e.name: e for e in step.copies[step.D].entries}
    assert entries and all(e.weight.grad is None for e in entries.values())
    assert entries.keys() <= step.gradients["D_main"].keys()


def load_networks(step, state):
    for name in ("G", "D", "G_ema"):
        getattr(step, name).load_state_dict(state[name])


@pytest.mark.parametrize(
    "load", [lambda s, state: s.load_state_dict(state), load_networks, reference.adopt_state]
)
def test_weights_that_are_loaded_are_the_ones_that_are_used(load):
    donor, step = train(LEAN | ONCE), small(LEAN | ONCE)
    step.prepare()
    load(step, copy.deepcopy(donor.state_dict()))
    assert evidence.compute_copies(step) == {"kept": {"bfloat16": 16}, "stale": 0}


@pytest.mark.parametrize(
    ("recipe", "other", "workload"),
    [
        (LEAN | ONCE, LEAN | ONCE, {}),
        ({"set_to_none": True} | UPDATE, {"set_to_none": True} | UPDATE, LEAST),
        ({"set_to_none": True} | UPDATE, {"set_to_none": True} | ONCE | FUSED_ADAM, LEAST),
        (FUSED_ADAM, FUSED_ADAM, {}),
        (FUSED_ADAM, {}, {}),
        ({"set_to_none": True} | UPDATE | GROUPED, {"set_to_none": True} | UPDATE | GROUPED, LEAST | ODD),
        ({"set_to_none": True} | UPDATE | GROUPED, {"set_to_none": True} | UPDATE, LEAST | ODD),
    ],
)
def test_a_run_is_resumed(recipe, other, workload):
    resume_alike(recipe, other, **workload)


def test_a_replaced_state_is_the_one_that_is_updated():
    """An optimizer's own ``load_state_dict`` makes new tensors: the table of addresses must follow."""
    donor, step = train(UPDATE, **LEAST), small(UPDATE, **LEAST)
    step.feed.next()
    step.run_phase("D_main")
    reference.adopt_state(step, copy.deepcopy(donor.state_dict()))
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


def test_each_capture_reads_its_own_gradients():
    """Two captures whose gradients lie elsewhere, replayed in turn, with an eager update in between."""
    step = train(UPDATE | {"set_to_none": True}, rounds=1, resolution=8)
    optimizer, bias, graphs = step.opt_D, step.D.from_rgb.bias, []
    parameters = optimizer.param_groups[0]["params"]
    gradients = [[torch.full_like(p, sign) for p in parameters] for sign in (1.0, -1.0)]
    for e in step.copies[step.D].entries:
        e.copy.grad = None
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


def test_fused_adam_and_foreach_average_take_the_same_steps():
    steps = []
    for recipe in ({}, FUSED_ADAM):
        steps.append(small(recipe, ema_images=8))
        torch.manual_seed(1)
        for _ in range(5):
            steps[-1].step()
    fused = steps[1]
    for network in ("G", "D", "G_ema"):
        for a, b in zip(*(getattr(step, network).parameters() for step in steps), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert torch.equal(fused.G_ema.mapping.w_avg, fused.G.mapping.w_avg)
    settings = fused.settings()
    assert settings["adam_fused"] is True and settings["ema"] == "foreach"


# ---- grouped_demod ---------------------------------------------------------------------------------------------------


def test_a_workload_without_demodulation_goes_on_without_it():
    ladder, everything = catalog.load_ladder("full"), dict.fromkeys(needs.NEEDS)
    for name, skipped in (("article", False), ("adain-256", True)):
        there = needs.join_capabilities(everything, catalog.load_workload(name)[1])
        planned = {rung.name: rung for rung in modes.plan_run(modes.CUMULATIVE, ladder, there)}
        assert ("norm: instance" in (planned["grouped_demod"].skipped or "")) == skipped
        assert ("demodulation" in planned["cached_uint8"].recipe) != skipped
        assert planned["cached_uint8"].recipe["fused_residual"] is True
    step = small(FP64 | GROUPED, norm="instance", **ODD)
    step.prepare()
    step.step()
    assert step.check_finite() is None


def test_it_is_a_handful_of_launches_however_many_layers_there_are():
    calls = [gathered(small(GROUPED, **ODD | {"resolution": r}), steps=1)["kernels"] for r in (8, 16)]
    assert all(calls[0][name]["calls"] == calls[1][name]["calls"] for name in MOST)


def test_the_update_takes_the_gradients_of_kept_sums_as_they_are():
    recipe = UPDATE | GROUPED
    seen = gathered(small(recipe, **ODD | LEAST), steps=1)
    assert_engaged(seen, {*catalog.list_contained(recipe), "grouped_demod"} - {"baseline"})
    assert "weight_energies_grad_kernel" not in seen["kernels"]
    assert seen["kernels"]["weight_energies_kernel"]["calls"] == 2  # after each update of G, and nowhere else


# ---- parallel_streams ------------------------------------------------------------------------------------------------

OTHERS = {
    "plain": {},
    "fused_update": UPDATE,
    "joint_batch": {"joint_batch": True} | UPDATE,
    "gradients kept": {"set_to_none": False},
    "NCHW": {"channels_last": False, "resample": "channels_as_batch"},
    "grouped": {"modconv": "grouped"},
}
EARLY = FP64 | {"joint_batch": True} | BELOW | UPDATE


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
def test_two_streams_compute_the_same_and_update_the_same(how, late):
    train_alike(*(train(FP64 | BELOW | how | m, **STREAMS_TINY) for m in (TWO, {})), updates=True)


def test_kernels_offer_theirs_and_the_sums_are_the_same(late, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.linear.dense"], "LARGE", 1)
    recipe = FP64 | NORM | {"dense": "triton", "rgb": "triton"} | BELOW
    mine, theirs = (train(recipe | m, 1, **STREAMS_TINY) for m in (TWO, {}))
    train_alike(mine, theirs)
    convolutions, dense = len(mine.copies[mine.G].entries), 2 * 2 + 2 * 5  # weights and biases
    rest = 3 + 2  # demodulation of three layers, biases of two toRGB
    assert mine.parallel.collected["G_main"]["gradients"] == convolutions + dense + rest


def run_unwatched(recipe):
    """A step whose gradients nobody keeps, after each phase has run twice."""
    step = small(recipe, **STREAMS_TINY)
    torch.manual_seed(3)
    for _ in range(2):
        step.feed.next()
        for phase in PHASES:
            step.run_phase(phase)
    return step


def test_most_weights_are_updated_beside_the_end_of_backward(monkeypatch):
    honest, early = FusedUpdate.step_early, []
    monkeypatch.setattr(FusedUpdate, "step_early", lambda self: (early.append(self), honest(self))[1])
    mine, theirs = (run_unwatched(EARLY | more) for more in (TWO, {}))
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
    step = run_unwatched(EARLY | TWO)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(step, "_loss", lambda *given: (_ for _ in ()).throw(MemoryError))
        step.run_phase("D_main")
    before = [p.detach().clone() for p in step.D.parameters()]
    monkeypatch.setattr(step.opt_D, "step_early", None)
    step.run_phase("G_main")
    assert all(map(torch.equal, before, step.D.parameters()))


def test_a_gradient_that_comes_after_its_update_is_an_error():
    step = run_unwatched(EARLY | TWO)
    weight = next(p for p in step.opt_D.parts[0].parameters if p.grad is not None)
    step.opt_D.step_early()
    weight.grad += 1
    with pytest.raises(RuntimeError, match="a gradient came after its update"):
        step.opt_D.step()
    step.opt_D.zero_grad()
    step.opt_D.step()


def test_algorithms_are_chosen_without_company():
    """cuDNN times its algorithms at a convolution's first call, in the first run of each phase."""
    step, active = small(BELOW | TWO), []
    honest = step._warm_up
    step._warm_up = lambda phase: (active.append(step.parallel.branch.active), honest(phase))
    step.prepare()
    assert active == [False] * len(PHASES) and step.parallel.branch.active


@pytest.mark.parametrize("recipe", [BELOW | TWO | UPDATE, BELOW | TWO | {"resample": "subpixel"}])
def test_two_streams_show_their_receipt_and_so_do_the_rungs_below(recipe, refused):
    """Without fused_resample fewer weights count, as up- and downsampling layers make theirs: leave-one-out."""
    trace = {"parallel_ms": 0.7, "busy_ms": 10.0}
    seen = gathered(small(recipe, **STREAMS_TINY), steps=1, trace=trace)
    assert_engaged(seen, {*catalog.list_contained(seen["recipe"]), "parallel_streams"} - {"baseline"})
    seen["parallel"]["ms"] = 0.01
    refused(
        "parallel_streams",
        seen,
        "two kernels at once",
        sabotage="graphs without branches",
        planted="evidence",
    )


STREAM_GRAPHS = GRAPHS | BELOW
WIDE = {"resolution": 64, "channel_base": 4096, "channel_max": 128, "w_dim": 128, "batch": 8}


def replay_all(step, state, seed):
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
@pytest.mark.parametrize("is_whole", [False, True])
def test_fifty_replays_are_those_of_one_stream(is_whole, precision):
    ours = UPDATE | NORM | {"fused_act": True, "dense": "triton", "rgb": "triton", "resample": "triton"}
    recipe = (
        STREAM_GRAPHS | ours | {"whole_step_graph": is_whole, "precision": precision, "joint_batch": True}
    )
    one, two = (small(recipe | streams, "cuda", **WIDE) for streams in ({}, TWO))
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
        losses, gradients = replay_all(one, state, seed)
        found, mine = replay_all(two, state, seed)
        again, same = replay_all(two, state, seed)
        assert found == pytest.approx(losses, rel=tolerance, abs=1e-3)
        assert again == pytest.approx(found, rel=2e-2, abs=1e-3)  # cuDNN's FP32 gradients may add atomically
        for phase in PHASES:
            total = torch.cat([g.flatten() for g in gradients[phase].values()]).norm()
            wrong = torch.cat([(mine[phase][k] - g).flatten() for k, g in gradients[phase].items()]).norm()
            assert mine[phase].keys() == gradients[phase].keys() and wrong <= tolerance * total, (seed, phase)
            for name, gradient in mine[
                phase
            ].items():  # rounding moves one of a millionth of the others by a fifth
                room = tolerance * gradient.norm() + 1e-3 * total
                assert (same[phase][name] - gradient).norm() <= room, (seed, phase, name)
    for step in (one, two):
        step.close()


@pytest.mark.gpu
def test_two_streams_are_engaged_on_the_gpu():
    step = small(STREAM_GRAPHS | TWO | UPDATE | {"precision": "bf16"}, "cuda", **WIDE)
    step.prepare()
    assert_engaged(evidence.gather_evidence(step), ["parallel_streams"])
    step.close()


# ---- fp16 ------------------------------------------------------------------------------------------------------------

FP16 = {"precision": "fp16"} | FUSED_ADAM
FP16_GRAPHS = FP16 | GRAPHS | {"set_to_none": True}
OVERFLOWING = {"loss_scale": 2.0**24}


def test_fp16_shows_its_receipt_and_is_what_its_recipe_says():
    assert catalog.load_rung("fp16").change == FP16
    seen = gathered(small(FP16))
    assert_engaged(seen, ["fp16"])
    assert seen["scales"]["G"]["updates"] >= 2 and seen["scales"]["D"]["updates"] >= 2


def test_training_logs_its_scales_and_goes_on_with_them(images, tmp_path):  # noqa: F811
    recipe = FP16 | OVERFLOWING | {"loss_scale_interval": 3}
    go(images, tmp_path / "whole", 8, recipe=recipe)
    go(images, tmp_path / "parts", 5, recipe=recipe)
    go(images, tmp_path / "parts", 8, recipe=recipe, resume=tmp_path / "parts" / "checkpoint.pt")
    logs = [[{**line, "seconds": 0} for line in lines(tmp_path / each)] for each in ("whole", "parts")]
    assert logs[0] == logs[1]
    whole = logs[0]
    assert (
        whole[0]["skipped_G"] == 2 and whole[-1]["skipped_G"] > 2
    )  # a step is one update, or two with path length
    assert {line["loss_scale_D"] for line in whole} > {whole[-1]["loss_scale_D"]}
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "parts")[name]), name
    go(images, tmp_path / "other", 2)
    assert "loss_scale_G" not in lines(tmp_path / "other")[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "more", [{}, UPDATE, UPDATE | {"whole_step_graph": True}], ids=["torch", "ours", "whole"]
)
def test_graphs_skip_and_scale_as_an_eager_step_does(more):
    scaled = OVERFLOWING | {"loss_scale_interval": 5}
    eager = small(FP16 | {"set_to_none": True} | scaled, "cuda")
    graphs = small(FP16_GRAPHS | more | scaled, "cuda")
    for step in (eager, graphs):
        step.prepare()
        assert describe(step.scales)["G"] == {"scale": 2.0**24, "skipped": 0, "updates": 0}
        for _ in range(24):
            step.step()
    mine, theirs = describe(graphs.scales), describe(eager.scales)
    for name in (
        "G",
        "D",
    ):  # where an update overflows by a hair, two ways to round may differ by one halving
        assert mine[name]["updates"] == theirs[name]["updates"]
        assert abs(mine[name]["skipped"] - theirs[name]["skipped"]) <= 2
        assert 0 < mine[name]["skipped"] < mine[name]["updates"]
    assert graphs.check_finite() is None and eager.check_finite() is None


@pytest.mark.gpu
@pytest.mark.parametrize("more", [{}, UPDATE], ids=["torch", "ours"])
def test_a_replay_whose_gradients_overflow_moves_nothing(more):
    step = small(FP16_GRAPHS | more | {"loss_scale": 1024.0}, "cuda")
    step.prepare()
    for _ in range(4):
        step.step()

    def read():
        counts = [s["step"] for o in (step.opt_G, step.opt_D) for s in o.state.values()]
        return [t.detach().clone() for t in (*step.G.parameters(), *step.D.parameters(), *counts)]

    before = read()
    for scale in step.scales.values():
        scale.scale.fill_(2.0**60)
    for phase in PHASES:
        step.run_phase(phase)
    assert all(float(scale.scale) == 2.0**58 for scale in step.scales.values())
    assert all(map(torch.equal, before, read()))


@pytest.mark.gpu
def test_the_top_of_the_full_ladder_takes_fp16(references):
    top = catalog.plan_climb(catalog.load_ladder("full"), dict.fromkeys(needs.NEEDS))[-1].recipe
    step = small(top | FP16 | {"workers": 1}, "cuda")
    found = checked(step, references)
    step.keep_gradients = False
    issued = receipt("fp16", evidence.gather_evidence(step))
    step.close()
    assert found["verdict"] == "ok", found["problems"]
    assert issued.engaged, issued.lines


def test_scales_of_a_checkpoint_are_put_in_place():
    scale = LossScale("cpu", 4.0, 10)
    address = scale.scale.data_ptr()
    scale.load_state_dict({**scale.state_dict(), "scale": torch.tensor(2.0), "skipped": torch.tensor(3)})
    assert scale.scale.data_ptr() == address and float(scale.scale) == 2 and int(scale.skipped) == 3
