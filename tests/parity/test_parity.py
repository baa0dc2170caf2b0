"""Every rung agrees with the reference, and each planted bug does not. `make faults` writes what caught each."""

import copy
import json
import re

import numpy as np
import pytest
import torch

import kernels
from ladder.engine.timed_rung import Rung
from ladder.parity import check as parity
from ladder.plan import catalog
from stylegan_lite import make_step
from tests.support import small
from tests.support.rung_steps import cold
from tests.support.small import LEAST

SMALL = small.SMALL | {"resolution": 8}  # as in other tests of parity: all share references and budgets
LAST = {"channels_last": True, "instance_norm": "var_mean"}
BF16 = LAST | {"precision": "bf16"}
FUSED = {"fused_norm": True, "fused_act": True}


@pytest.fixture
def cache(references):
    torch.set_num_threads(1)
    return references


def prepared(recipe=None, device="cpu", **workload):
    step = make_step(SMALL | workload, recipe or {}, device=device)
    step.keep_gradients = True
    return cold(step)


@pytest.fixture
def plain_kernels(monkeypatch):
    """The fused ops in plain PyTorch: bugs are planted in them, and the interpreter is slow."""
    for name in ("modulate", "demodulate", "bias_act", "instance_norm_act"):
        monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_reference"))


@pytest.fixture
def rounding(monkeypatch):
    """Triton's interpreter cuts FP32 down to BF16 (no GPU does), a bias of 0.4% that parity rightly refuses."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    cut = interpreter._convert_float

    def convert(data, source, target, mode):
        if (source.name, target.name) != ("fp32", "bf16"):
            return cut(data, source, target, mode)
        bits = np.ascontiguousarray(data).view(np.uint32)
        rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        return np.where(np.isnan(data), np.uint16(0x7FC0), rounded)

    monkeypatch.setattr(interpreter, "_convert_float", convert)


# Rungs


@pytest.mark.parametrize(
    ("norm", "first"),
    [("demod", 0), ("instance", -1), pytest.param("instance", 0, marks=pytest.mark.exhaustive)],
    ids=["demod", "instance-top", "instance"],
)
def test_rungs_that_need_no_gpu_agree_with_the_reference(norm, first, cache):
    capabilities = dict.fromkeys(("cuda", "triton", "cuda_graphs"), "no GPU") | {"bf16": None}
    climbed = catalog.plan_climb(catalog.load_ladder("article"), capabilities)
    for rung in [rung for rung in climbed if rung.recipe is not None][first:]:
        found = parity.check_step(prepared(rung.recipe, norm=norm), cache=cache)
        assert found["verdict"] == "ok" and found["reason"] is None, (rung.name, found["problems"])
        assert set(found["phases"]) == {"G_main", "G_pl", "D_main", "D_r1"}
        assert "ema" in found["phases"]["D_main"]
        json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("norm", "recipe"),
    [
        pytest.param("demod", FUSED, marks=pytest.mark.exhaustive),
        pytest.param("demod", BF16 | FUSED, marks=pytest.mark.exhaustive),
        ("instance", BF16 | FUSED),
        ("demod", LAST | {"resample": "triton"}),
    ],
    ids=["fp32", "bf16", "bf16-instance", "resample"],
)
def test_triton_rungs_agree_with_the_reference(norm, recipe, cache, rounding):
    if not kernels.common.tiles.INTERPRETED:
        pytest.skip("a GPU is there: test_every_rung_agrees_on_the_gpu")
    found = parity.check_step(prepared(recipe, **LEAST, norm=norm), cache=cache)
    assert found["verdict"] == "ok", found["problems"]


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_every_rung_agrees_on_the_gpu(norm, cache):
    capabilities = dict.fromkeys(("cuda", "triton", "cuda_graphs", "bf16"))
    for rung in catalog.plan_climb(catalog.load_ladder("full"), capabilities):
        step = prepared(rung.recipe | {"workers": 0, "persistent_workers": False, "prefetch_factor": None},
                        "cuda", norm=norm)  # fmt: skip
        found = parity.check_step(step, cache=cache)
        step.close()
        assert found["verdict"] == "ok", (rung.name, found["problems"])


# Planted bugs


def zeros(monkeypatch):
    monkeypatch.setattr(kernels, "modulate", lambda x, style: x * 0)
    return prepared(BF16 | FUSED)


def no_gain(monkeypatch):
    def forgetful(*args, gain=None, **more):
        return kernels.bias_act_reference(*args, gain=1.0, **more)

    monkeypatch.setattr(kernels, "bias_act", forgetful)
    return prepared(BF16 | FUSED)


def wrong_axis(monkeypatch):
    def demodulate(weight, style, eps=1e-8):
        return kernels.demodulate_reference(weight.transpose(0, 1), style, eps)

    monkeypatch.setattr(kernels, "demodulate", demodulate)
    return prepared(BF16 | FUSED)


class SwampedSum(torch.autograd.Function):
    """Sum over all but dimension 1, each addition rounded to BF16: a term below 1/256 of the sum so far is lost."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        total = torch.zeros(x.shape[1], dtype=torch.bfloat16)
        for row in x.movedim(1, -1).reshape(-1, x.shape[1]).bfloat16():
            total = total + row
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g.view(1, -1, *[1] * (len(ctx.shape) - 2)).expand(ctx.shape)


class AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2))

    @staticmethod
    def backward(ctx, g):
        return g, SwampedSum.apply(g).float()


def lost_mass(monkeypatch):
    def bias_act(x, bias, *, noise=None, strength=None, scale=None, gain=None):
        if scale is not None:
            x = x * scale.to(x.dtype)[:, :, None, None]
        if noise is not None:
            x = x + (noise * strength).to(x.dtype)
        return torch.nn.functional.leaky_relu(AddBias.apply(x, bias), 0.2) * gain

    monkeypatch.setattr(kernels, "bias_act", bias_act)
    return prepared(
        BF16 | FUSED, resolution=16, batch=8
    )  # of 1,024 numbers (16x16, 4) next to nothing is lost


def planted_in(what):
    """A bug planted in a prepared FP32 step by ``what(step)``."""

    def plant(monkeypatch):
        step = prepared(LAST)
        what(step)
        return step

    return plant


def stale(step):
    """Like a graph that was captured with other buffers: it never reads the loaded ones."""
    captured, inner = copy.deepcopy(step.given), step._loss

    def loss(phase):
        current, step.given = step.given, captured
        try:
            return inner(phase)
        finally:
            step.given = current

    step._loss = loss


def stale_noise(step):
    """Latents are read, but every replay gets the noise of the capture."""
    inner, noise = step._loss, [x.normal_().clone() for x in step.inputs["G_main"].noise]

    def loss(phase):
        for buffer, old in zip(step.inputs["G_main"].noise, noise, strict=True):
            buffer.copy_(old)
        return inner(phase)

    step._loss = loss


def same_draws(step):
    """The generator starts anew for every fill."""
    inner = step._fill

    def fill(phase):
        torch.manual_seed(0)
        inner(phase)

    step._fill = fill


def without(phase):
    """The phase's loss is zero; its optimizer still steps."""

    def plant(step):
        inner, network = step._loss, step.G if phase.startswith("G") else step.D
        step._loss = lambda p: sum(w.sum() for w in network.parameters()) * 0 if p == phase else inner(p)

    return plant


def never_run(phase):
    def plant(step):
        inner = step._step

        def one(index, lazy):
            run, step.run_phase = step.run_phase, lambda p: None if p == phase else run(p)
            inner(index, lazy)
            step.run_phase = run

        step._step = one

    return plant


def scaled_gradient(step):
    step.G.requires_grad_(True).blocks[1].conv0.weight.register_hook(lambda g: g * 10)


def no_ema(step):
    step._update_ema = lambda: None


def no_optimizer_step(step):
    step.opt_D.step = lambda: None


def shared_latents(step):
    step.inputs["D_main"] = step.inputs["G_main"]


def kept_gradients(step):
    step.opt_G.zero_grad = lambda set_to_none: None


BUGS = {  # the bug: what plants it, what finds it, and where it is planted
    "a kernel returns zeros": (
        zeros, "G_main (gradient|loss|update)|replays", "kernels.modulate of the fused BF16 step"),
    "a gain is forgotten": (no_gain, "gradient|loss|update", "kernels.bias_act of the fused BF16 step"),
    "demodulation over the wrong axis": (
        wrong_axis, "gradient|loss|update", "kernels.demodulate of the fused BF16 step"),
    "a bias gradient loses mass in BF16": (
        lost_mass, r"(gradient|update) of .*bias",
        "backward of kernels.bias_act, fused BF16 step of batch 8 at 16x16"),
    "stale inputs in a graph": (
        planted_in(stale), "two replays",
        "the loss reads copies of the input buffers, as a stale graph would"),
    "the same noise in every replay (buffers)": (
        planted_in(stale_noise), "noise_strength",
        "the noise buffers of G_main are put back before its loss"),
    "the same noise in every replay (draws)": (
        planted_in(same_draws), "numbers of the one before", "the generator starts anew for every fill"),
    "R1 is skipped (its loss)": (
        planted_in(without("D_r1")), "D_r1 (loss|gradient|update)", "the loss of D_r1 is zero"),
    "R1 is skipped (never run)": (
        planted_in(never_run("D_r1")), "D_r1 0 times, expected 1", "the cycle leaves out D_r1"),
    "path length is skipped (its loss)": (
        planted_in(without("G_pl")), "G_pl (loss|gradient|update)", "the loss of G_pl is zero"),
    "path length is skipped (never run)": (
        planted_in(never_run("G_pl")), "G_pl 0 times, expected 4", "the cycle leaves out G_pl"),
    "a gradient is scaled by 10": (
        planted_in(scaled_gradient), "gradient of blocks.1.conv0.weight: error 9",
        "a hook on one weight of the generator"),
    "the moving average is not updated": (
        planted_in(no_ema), "D_main ema", "the step's update of the average does nothing"),
    "an optimizer step is skipped": (
        planted_in(no_optimizer_step), "D_(main|r1) update", "the discriminator's optimizer does nothing"),
    "phases share their latents": (
        planted_in(shared_latents), "G_main and D_main: .* share",
        "D_main is given the input buffers of G_main"),
    "gradients are not zeroed": (
        planted_in(kept_gradients), "G_(main|pl) gradient",
        "zero_grad of the generator's optimizer does nothing"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, cache, monkeypatch, plain_kernels, planted_bug):
    plant, measure, where = BUGS[bug]
    found = parity.check_step(plant(monkeypatch), cache=cache)
    assert found["verdict"] == "failed: parity", bug
    caught = [line for line in found["problems"] if re.search(measure, line)]
    assert caught, found["problems"]
    json.dumps(found, allow_nan=False)
    planted_bug(bug=bug, planted=where, problem=caught[0])


def test_the_same_kernels_without_a_bug_pass(cache, plain_kernels):
    found = parity.check_step(prepared(BF16 | FUSED), cache=cache)
    assert found["verdict"] == "ok", found["problems"]


# The command


def test_the_worker_answers_with_plain_data_and_says_what_it_does(tmp_path, monkeypatch):
    import stylegan_lite
    from ladder.parity import reference

    monkeypatch.setattr(reference, "CACHE", tmp_path / "fresh")
    said = []
    rung = Rung(None, type("Channel", (), {"send": lambda self, message: said.append(message)})())
    rung.package = stylegan_lite
    rung.do_build(LEAST, {"set_to_none": True}, "cpu", 0, keep_gradients=True)
    rung.do_prepare()
    found = json.loads(json.dumps(rung.do_parity(), allow_nan=False))
    assert found["verdict"] == "ok" and found["reference"]["steps"] >= 32
    assert found["budget"]["factor"] == 2.5 and len(found["budget"]["spellings"]) >= 4
    assert {"progress": "shared state, step 32 of 32"} in said  # the watchdog is kept informed
    assert not rung.step.keep_gradients
    rung.do_visit(cycles=1, settle_s=0, settle_cycles=0, main=False)  # and the step goes on
    with pytest.raises(ValueError, match="keep_gradients"):
        rung.do_parity()
