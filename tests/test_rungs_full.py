"""The rungs beyond the article's: the same numbers as before, a receipt that is earned, and switches put back."""

import contextlib
import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

import kernels
from ladder import catalog, evidence, parity, results, spread
from stylegan_lite import ConfigError, Recipe, Workload, make_step
from stylegan_lite.data import DataFeed
from stylegan_lite.settings import global_flags
from stylegan_lite.step import PHASES
from tests.small import SMALL

OURS = {"conv": "double_backward"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
BF16 = LAST | {"precision": "bf16"}
FUSED_ADAM = {"fused_adam": True, "ema": "foreach"}
torch.set_num_threads(1)


def small(recipe=None, device="cpu", **workload):
    return make_step(SMALL | workload, recipe or {}, device=device)


def receipt(rung, seen):
    found = catalog.load_rung(rung).receipt(seen)
    assert all(results.TEXT.fullmatch(line) for line in found.lines), found.lines
    return found


def gathered(recipe, sabotage=None, **workload):
    step = small(recipe, **workload)
    step.prepare()
    if sabotage:
        sabotage(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "traced_cycle", lambda step: ({}, 0.5))
        return evidence.gather(step)


def test_the_full_ladder_is_the_article_s_and_more():
    article, full = (catalog.load_ladder(name) for name in ("article", "full"))
    assert full.rungs[: len(article.rungs)] == article.rungs
    planned = catalog.climb(full, dict.fromkeys(catalog.NEEDS))
    top = planned[-1].recipe
    assert set(catalog.contained(top)) == {rung.name for rung in full.rungs}  # none undoes another
    planned = catalog.climb(catalog.load_ladder("tf32"), dict.fromkeys(catalog.NEEDS))
    assert [rung.name for rung in planned][:2] == ["baseline", "tf32"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prefetch_stream": True}, ["prefetch_stream", "async_copy"]),
        ({"conv": "cudnn"}, ["conv", "aten, double_backward"]),
        ({"ema": "fused"}, ["ema", "loop, foreach"]),
        ({"fp32_precision": "bf16"}, ["fp32_precision", "ieee"]),
    ],
)
def test_an_impossible_recipe_is_refused_in_one_line(values, words):
    with pytest.raises(ConfigError) as refusal:
        Recipe.from_dict(values)
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("values", [{"cudnn_benchmark": True}, {"fp32_precision": "tf32"}])
def test_switches_of_cuda_s_libraries_are_refused_on_the_cpu(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        small(values)


# conv_double_backward


@pytest.mark.parametrize("resample", ["depthwise", "channels_as_batch", "bilinear", "folded", "subpixel"])
@pytest.mark.parametrize("how", [{"modconv": "grouped"}, LAST, {"norm": "instance"}], ids=str)
def test_every_phase_computes_the_same_with_either_convolution(resample, how):
    how = dict(how)
    workload = {"norm": how.pop("norm", "demod"), "resolution": 8}
    found = []
    for conv in ("aten", "double_backward"):
        step = small({"precision": "fp64", "resample": resample, "conv": conv} | how, **workload)
        step.keep_gradients = True
        torch.manual_seed(3)
        step.feed.next()
        for phase in PHASES:
            step.run_phase(phase)
        found.append((step.losses(), step.gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    for phase in PHASES:
        for name, gradient in found[0][1][phase].items():
            torch.testing.assert_close(found[1][1][phase][name], gradient, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("below", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_r1_and_path_length_call_no_convolution_with_an_image_for_a_kernel(norm, below):
    seen = gathered(below | OURS, norm=norm)
    assert receipt("conv_double_backward", seen).engaged
    plain = receipt("conv_double_backward", gathered(below, norm=norm))
    assert not plain.engaged and "largest kernel in the double backward: 16" in plain.reason
    rungs = catalog.contained(below | OURS)  # and the rungs below see what they saw
    assert {name: receipt(name, seen).engaged for name in rungs} == dict.fromkeys(rungs, True)


def test_conv_double_backward_sabotaged_by_pytorch_s_convolution(monkeypatch, refused):
    monkeypatch.setattr(kernels, "conv2d", F.conv2d)
    seen, what = gathered(OURS), "conv2d is PyTorch's own"
    refused("conv_double_backward", seen, "largest kernel in the double backward: 16", sabotage=what)


def test_conv_double_backward_sabotaged_in_one_kind_of_layer_only(monkeypatch, refused):
    honest = kernels.conv2d
    monkeypatch.setattr(
        kernels, "conv2d", lambda x, w, **how: (F.conv2d if w.shape[-1] == 1 else honest)(x, w, **how)
    )
    what = "conv2d is PyTorch's own for 1x1 convolutions"
    refused("conv_double_backward", gathered(OURS), "largest kernel", sabotage=what)


def test_conv_double_backward_that_nothing_differentiates_twice_is_not_engaged(refused):
    seen = gathered(OURS)
    del seen["convolutions"]["double backward"]
    what = "nothing is differentiated twice"
    refused("conv_double_backward", seen, "double backward: 0", sabotage=what, planted="evidence")


@pytest.mark.parametrize("recipe", [OURS, BF16 | OURS, FUSED_ADAM, BF16 | OURS | FUSED_ADAM], ids=str)
def test_rungs_agree_with_the_reference(recipe, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "parity-full"
    step = small(recipe, channel_base=256)
    step.keep_gradients = True
    step.prepare()
    found = parity.check(step, cache=cache)
    assert found["verdict"] == "ok", found["problems"]


# fused_adam


def test_fused_adam_and_foreach_average_take_the_same_steps():
    found = []
    for recipe in ({}, FUSED_ADAM):
        step = small(recipe, ema_images=8)
        torch.manual_seed(1)
        for _ in range(5):
            step.step()
        found.append(step)
    plain, fused = found
    for network in ("G", "D", "G_ema"):
        pairs = zip(getattr(plain, network).parameters(), getattr(fused, network).parameters(), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert torch.equal(fused.G_ema.mapping.w_avg, fused.G.mapping.w_avg)
    settings = fused.settings()
    assert settings["adam_fused"] is True and settings["ema"] == "foreach"


@pytest.mark.parametrize("other", [FUSED_ADAM, {}], ids=["fused", "default"])
def test_a_run_of_fused_adam_is_resumed(other):
    step = small(FUSED_ADAM)
    step.prepare()
    for _ in range(5):
        step.step()
    state = copy.deepcopy(step.state_dict())
    assert all(torch.is_tensor(s["step"]) and float(s["step"]) > 0 for s in state["opt_G"].values())
    for _ in range(3):
        step.step()
    resumed = make_step(SMALL, other, device="cpu", seed=99)
    resumed.feed.sampler.seed = step.feed.sampler.seed
    resumed.load_state_dict(state)
    for _ in range(3):
        resumed.step()
    exact = {"rel": 0, "abs": 0} if other else {"rel": 1e-2}
    for phase in ("G_main", "D_main"):
        assert resumed.losses()[phase] == pytest.approx(step.losses()[phase], **exact)
    for a, b in zip(step.opt_G.state.values(), resumed.opt_G.state.values(), strict=True):
        assert float(a["step"]) == float(b["step"])


def test_fused_adam_shows_its_receipt():
    found = receipt("fused_adam", gathered(FUSED_ADAM))
    assert found.engaged, found.lines
    assert not receipt("fused_adam", gathered({})).engaged


def test_fused_adam_sabotaged(refused):
    def unfused(step):
        for optimizer in (step.opt_G, step.opt_D):
            optimizer.param_groups[0].update(fused=None, foreach=True)

    def half(step):
        step.opt_D.param_groups[0].update(fused=None, foreach=True)

    def loop(step):
        step.recipe = dataclasses.replace(step.recipe, ema="loop")

    for plant, said, what in (
        (unfused, "Adam fused", "Adam is foreach"),
        (half, "called 2x in one run", "the discriminator's Adam is foreach"),
        (loop, "0x", "the moving average is a loop"),
    ):
        refused("fused_adam", gathered(FUSED_ADAM, plant), said, sabotage=what)


# cudnn_benchmark, tf32: global flags


def flags():
    return (
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cuda.matmul.fp32_precision,
    )


def test_global_flags_hold_inside_and_are_put_back_whatever_happens():
    before = flags()
    with global_flags(Recipe(cudnn_benchmark=True, fp32_precision="ieee")):
        assert flags() == (True, "ieee", "ieee")
    assert flags() == before
    with pytest.raises(RuntimeError), global_flags(Recipe(cudnn_benchmark=True, fp32_precision="tf32")):
        assert flags() == (True, "tf32", "tf32")
        raise RuntimeError
    assert flags() == before
    with global_flags(Recipe()):  # says nothing, changes nothing: parity sets cuDNN's flags itself
        assert flags() == before


def test_phases_run_under_the_recipe_s_flags_and_no_other_step_does():
    step, other = small(), small()
    step.recipe = dataclasses.replace(step.recipe, cudnn_benchmark=True, fp32_precision="tf32")
    seen = []
    for each in (step, other):
        each.D.register_forward_pre_hook(lambda module, args: seen.append(flags()))
        each.prepare()
    before = flags()
    assert set(seen[: len(seen) // 2]) == {(True, "tf32", "tf32")} and set(seen[len(seen) // 2 :]) == {before}
    assert step.settings()["cudnn_benchmark"] is True and other.settings()["cudnn_benchmark"] is False
    assert flags() == before


@pytest.fixture(scope="module")
def seen():
    return gathered({})


@pytest.mark.parametrize(
    ("rung", "good", "bad"),
    [
        ("cudnn_benchmark", {"cudnn_benchmark": True}, {"cudnn_benchmark": False}),
        ("cudnn_benchmark", {"cudnn_benchmark": True}, {"cudnn_benchmark": None}),
        ("cudnn_benchmark", {"cudnn_benchmark": True}, {"cudnn_deterministic": True}),
        ("tf32", {"matmul_fp32_precision": "tf32", "conv_fp32_precision": "tf32"}, {"matmul_fp32_precision": "none"}),
        ("tf32", {"matmul_fp32_precision": "tf32", "conv_fp32_precision": "tf32"}, {"conv_fp32_precision": "ieee"}),
    ],
)  # fmt: skip
def test_flags_show_in_the_receipt(seen, rung, good, bad, refused):
    assert receipt(rung, seen | {"settings": seen["settings"] | good}).engaged
    ((flag, value),) = bad.items()
    bad = seen | {"settings": seen["settings"] | good | bad}
    refused(rung, bad, str(value), sabotage=f"{flag} is {value}", planted="evidence")


def test_the_baseline_blames_a_flag_only_on_a_recipe_that_did_not_ask_for_it(seen):
    on = {"cudnn_benchmark": True, "matmul_fp32_precision": "tf32"}
    asked = seen["recipe"] | {"cudnn_benchmark": True, "fp32_precision": "tf32"}
    assert not receipt("baseline", seen | {"settings": seen["settings"] | on}).engaged
    assert receipt("baseline", seen | {"settings": seen["settings"] | on, "recipe": asked}).engaged


def test_tf32_is_judged_by_the_spread_of_tf32():
    assert spread.precision_of(Recipe(fp32_precision="tf32")) == "tf32"
    assert spread.precision_of(Recipe(fp32_precision="tf32", precision="bf16")) == "bf16"
    assert spread.precision_of(Recipe(fp32_precision="ieee")) == "fp32"
    for recipe in spread.spellings(Workload(**SMALL), "tf32", "cpu"):
        assert Recipe(**recipe).fp32_precision == "tf32" and Recipe(**recipe).precision == "fp32"
    assert spread.budgets({"G_main/loss/loss": 0.0}, "tf32")["G_main/loss/loss"] > 1e-4


# prefetch_stream


class Streams:
    """CUDA's streams and events on a CPU: everything happens at once, and it is noted who waited for what."""

    def __init__(self, monkeypatch):
        self.log, self.on, log = [], "compute", self

        class Event:
            def record(self, stream=None):
                log.log.append(("record", id(self), log.on if stream is None else stream.name))

        class Stream:
            def __init__(self, name="side"):
                self.name = name

            def wait_event(self, event):
                log.log.append(("wait", id(event), self.name))

            def wait_stream(self, other):
                log.log.append(("wait", other.name, self.name))

        @contextlib.contextmanager
        def stream(chosen):
            before, self.on = self.on, chosen.name
            yield
            self.on = before

        for name, fake in (("Event", Event), ("Stream", Stream), ("stream", stream)):
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(self.on))


PREFETCH = Recipe(async_copy=True, uint8_input=True, prefetch_stream=True)


def feed(recipe, real=None):
    workload = Workload(**SMALL | {"batch": 8})
    real = torch.zeros(8, 3, 16, 16) if real is None else real
    return DataFeed(workload, recipe, real, seed=5)


def test_prefetched_batches_are_the_loader_s_in_its_order_over_epochs(monkeypatch):
    Streams(monkeypatch)
    plain, ahead = feed(Recipe()), feed(PREFETCH)
    for step in range(20):  # 8 batches an epoch
        plain.next()
        ahead.next()
        torch.testing.assert_close(ahead.real, plain.real)
        if step != 7:  # whoever runs no whole step never calls it
            ahead.prefetch()
            ahead.prefetch()  # twice is once
        torch.testing.assert_close(ahead.real, plain.real)  # the batch in use is left alone
        assert ahead.state_dict() == plain.state_dict()
    state = ahead.state_dict()
    plain.next()
    want = plain.real.clone()
    ahead.load_state_dict(state)
    ahead.next()
    torch.testing.assert_close(ahead.real, want)


def test_a_buffer_is_filled_after_it_was_read_and_read_after_it_was_filled(monkeypatch):
    streams = Streams(monkeypatch)
    ahead = feed(PREFETCH)
    read, copied = [id(e) for e in ahead.read], id(ahead.copied)
    assert streams.log == [("wait", "compute", "side")]
    for step in range(6):
        streams.log.clear()
        ahead.next()
        turn = ahead.turn
        staged = [] if step else [("wait", read[turn], "side"), ("record", copied, "side")]
        assert streams.log == [*staged, ("wait", copied, "compute"), ("record", read[turn], "compute")]
        streams.log.clear()
        ahead.prefetch()
        assert ahead.turn == 1 - turn and ahead.staged is ahead.buffers[ahead.turn]
        assert streams.log == [("wait", read[ahead.turn], "side"), ("record", copied, "side")]


def test_a_step_prefetches_once_its_phases_are_launched(monkeypatch):
    step, ran = small(), []
    monkeypatch.setattr(step, "run_phase", ran.append)
    monkeypatch.setattr(step.feed, "next", lambda: ran.append("next"))
    monkeypatch.setattr(step.feed, "prefetch", lambda: ran.append("prefetch"))
    step.step()
    assert ran == ["next", "G_main", "G_pl", "D_main", "D_r1", "prefetch"]


def test_prefetch_stream_shows_in_its_receipt(seen, refused):
    batch = {"to": "cuda", "non_blocking": True, "side_stream": True}
    data = seen["data"] | {"crossings": [batch], "operators": 1, "overlap": 0.9, "waiting_ms": 0.1}
    assert receipt("prefetch_stream", seen | {"data": data}).engaged
    for bad, what in (
        ({"operators": 4}, "the step normalizes the batch"),
        ({"crossings": []}, "no batch is copied"),
        ({"crossings": [batch | {"side_stream": False}]}, "batches are copied on the step's stream"),
    ):
        refused("prefetch_stream", seen | {"data": data | bad}, sabotage=what, planted="evidence")


# whole_step_graph

WHOLE = [("G_main", "D_main"), ("G_main", "G_pl", "D_main"), ("G_main", "G_pl", "D_main", "D_r1")]


def whole(recipe=None, **workload):
    """A step that runs whole as a CPU can: through the path of a whole-step graph, which finds no graph to replay."""
    step = small(recipe, **workload)
    step.recipe = dataclasses.replace(step.recipe, whole_step_graph=True)
    step.keep_gradients = True
    step.prepare()
    return step


def test_a_cycle_has_three_kinds_of_steps_and_one_launch_for_each_step():
    step, ran, filled = whole(), [], []
    assert sorted(step.together) == sorted(WHOLE) and small().together == []
    step.graphs = {"+".join(kind): None for kind in WHOLE}
    step._fill, step.replay_together = filled.append, ran.append
    step.cycle()
    assert ran == [WHOLE[2], *([WHOLE[0]] * 3 + [WHOLE[1]]) * 3, *[WHOLE[0]] * 3]
    assert filled == [phase for kind in ran for phase in kind]
    ran.clear()
    step.cycle(lazy=False)
    assert ran == [WHOLE[0]] * 16


def test_a_whole_step_computes_what_its_phases_compute_in_order():
    found = []
    for step in (small(), whole()):
        torch.manual_seed(2)
        step.feed.next()
        for phase in step.inputs:
            step._fill(phase)
        step.replay_together(WHOLE[2])
        found.append(step)
    assert found[0].losses() == found[1].losses()
    for a, b in zip(found[0].G.parameters(), found[1].G.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_replay_hands_back_the_gradients_its_own_graph_holds():
    class Graph:
        def replay(self):
            pass

    step = whole()
    step.graphs = {"+".join(kind): Graph() for kind in WHOLE}
    step.held = {"+".join(kind): {"G_main": {"of": kind}} for kind in WHOLE}
    for kind in WHOLE:
        step.run(kind)
        assert step.gradients["G_main"]["of"] == kind


@pytest.fixture(scope="module")
def parity_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("together")


def test_whole_steps_agree_with_the_reference(parity_cache):
    found = parity.check(whole(OURS), cache=parity_cache)
    assert found["verdict"] == "ok", found["problems"]
    assert set(found["phases"]) == set(PHASES) == set(found["replays"])
    assert {"loss", "gradient", "update", "ema"} <= set(found["phases"]["D_main"])


def stale_weights(step):
    """D_main is given images of the generator as it was before this step's update: a cast kept too long."""
    generator, compute = copy.deepcopy(step.G), step._compute
    step.copies[generator] = step.copies[step.G]

    def planted(phase):
        if phase == "G_main":
            generator.load_state_dict(step.G.state_dict())
        fresh, step.G = step.G, generator if phase == "D_main" else step.G
        update = step._update_ema
        step._update_ema = lambda: None
        compute(phase)
        step.G, step._update_ema = fresh, update
        if phase == "D_main":
            update()

    step._compute = planted


def no_average(step):
    step._update_ema = lambda: None


def no_penalty(step):
    compute = step._compute
    step._compute = lambda phase: None if phase == "D_r1" else compute(phase)


def kind_left_out(step):
    run = step.run
    step.run = lambda kind: run(WHOLE[0] if kind == WHOLE[1] else kind)


BUGS = {
    "whole step: D_main sees G's weights from before the update": stale_weights,
    "whole step: the moving average is not updated": no_average,
    "whole step: R1 is skipped": no_penalty,
    "whole step: another kind of step is run": kind_left_out,
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_in_a_whole_step_is_found(bug, parity_cache, planted_bug):
    step = whole(OURS)
    BUGS[bug](step)
    found = parity.check(step, cache=parity_cache)
    assert found["verdict"] == "failed: parity"
    planted_bug(bug=bug, planted="phases of a whole step in sequence", problem=found["reason"])


def test_a_whole_step_graph_shows_in_its_receipt_and_is_cuda_graphs_too(seen, refused):
    found = seen["graphs"] | {
        "captured": ["+".join(kind) for kind in WHOLE],
        "replays": 1.0,
        "together": True,
    }
    found |= {"operators": 9, "launches": 12.0, "kernels": 2000.0}
    good = seen | {"graphs": found, "adam": seen["adam"] | {"capturable": True, "steps_on": ["cuda"]}}
    assert receipt("whole_step_graph", good).engaged and receipt("cuda_graphs", good).engaged
    for bad, what in (
        ({"captured": [*PHASES]}, "every phase has its graph"),
        ({"captured": []}, "nothing is captured"),
        ({"replays": 2.31}, "every phase is replayed"),
    ):
        refused("whole_step_graph", good | {"graphs": found | bad}, sabotage=what, planted="evidence")
    assert not receipt("cuda_graphs", good | {"graphs": found | {"captured": ["G_main+D_main"]}}).engaged
    assert not receipt("cuda_graphs", good | {"graphs": found | {"together": False}}).engaged


def test_a_whole_step_is_counted_as_it_is_timed():
    class Graph:
        def replay(self):
            pass

    step = whole()
    step.graphs = {"+".join(kind): Graph() for kind in WHOLE}
    step.held = {name: {} for name in step.graphs}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "traced_cycle", lambda step: ({}, 0.5))
        found = evidence.gather(step)
    assert found["graphs"]["operators"] == 6 and found["graphs"]["operators_eager"] > 500
    assert found["graphs"]["together"] is True and found["graphs"]["captured"] == sorted(step.graphs)


def test_a_whole_step_graph_needs_graphs():
    with pytest.raises(ConfigError, match="whole_step_graph needs cuda_graphs"):
        Recipe.from_dict({"whole_step_graph": True})


@pytest.mark.gpu
@pytest.mark.parametrize("set_to_none", [True, False])
def test_whole_step_graphs_compute_what_the_phases_graphs_compute(set_to_none):
    graphs = {"cuda_graphs": True, "adam": "capturable", "set_to_none": set_to_none} | OURS
    alone, together = (small(graphs | {"whole_step_graph": on}, "cuda") for on in (False, True))
    for step in (alone, together):
        step.prepare()
    assert sorted(together.graphs) == sorted("+".join(kind) for kind in WHOLE)
    for kind in (*WHOLE, WHOLE[0], WHOLE[2]):  # graphs that share a pool, back and forth
        for step in (alone, together):
            step.feed.next()
            torch.manual_seed(len(kind))
            for phase in kind:
                step._fill(phase)
        for phase in kind:
            alone.replay(phase)
        together.replay_together(kind)
        assert together.losses() == pytest.approx(alone.losses(), rel=2e-2, abs=1e-3)
    together.cycle()
    assert together.check_finite() is None


@pytest.mark.gpu
def test_prefetched_batches_on_the_gpu_are_the_loader_s_while_the_gpu_is_busy():
    loading = {"workers": 1, "pin_memory": True, "async_copy": True, "uint8_input": True, "drop_last": True}
    plain, ahead = (
        feed(Recipe(**loading, prefetch_stream=on), torch.zeros(8, 3, 16, 16, device="cuda"))
        for on in (False, True)
    )
    for _ in range(40):
        torch.cuda._sleep(2_000_000)  # the buffers' readers are late
        for each in (plain, ahead):
            each.next()
        torch.testing.assert_close(ahead.real, plain.real)
        ahead.prefetch()
    for each in (plain, ahead):
        each.close()


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu(norm, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "parity-full"
    for rung in catalog.climb(catalog.load_ladder("full"), dict.fromkeys(catalog.NEEDS))[8:]:
        step = small(rung.recipe | {"workers": 1}, "cuda", norm=norm)
        step.keep_gradients = True
        step.prepare()
        found = parity.check(step, cache=cache)
        step.keep_gradients = False
        issued = catalog.load_rung(rung.name).receipt(evidence.gather(step))
        step.close()
        assert found["verdict"] == "ok", (rung.name, found["problems"])
        assert issued.engaged, (rung.name, issued.lines)
