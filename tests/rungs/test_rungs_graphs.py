"""The rungs of launches: whole steps, fills, waits, prefetched batches and global flags, beyond the tables."""

import ast
import copy
import dataclasses
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import kernels
from kernels.common import dependent_launch
from ladder.parity import budget
from ladder.parity import check as parity
from ladder.plan import catalog, needs
from ladder.receipts import evidence, watch
from stylegan_lite import ConfigError, Recipe, Workload, make_step
from stylegan_lite.losses import PHASES
from stylegan_lite.step import TrainingStep, fills, preparing
from stylegan_lite.step.data import DataFeed
from stylegan_lite.step.fills import Fills
from stylegan_lite.step.settings import global_flags
from tests.rungs.cases import GRAPHS, NORM, OURS, WHOLE
from tests.support import fake_graphs
from tests.support.fake_graphs import Streams
from tests.support.rung_steps import assert_replayed_alike, gathered, receipt, small
from tests.support.small import LEAST, SMALL

ROOT = Path(__file__).parents[2]
FUSED = NORM | {"fused_act": True}
SIZE = {"resolution": 64, "channel_base": 2048, "channel_max": 64, "batch": 8}
torch.set_num_threads(1)


def climb_top(ladder, norm="demod"):
    able = needs.join_capabilities(dict.fromkeys(needs.OF_MACHINE), {"norm": norm})
    climbed = catalog.plan_climb(catalog.load_ladder(ladder), able)
    return [rung for rung in climbed if rung.recipe is not None][-1].recipe


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("ladder", "norm", "field"),
    [
        ("full", "demod", "graph_fills"), ("dependent_launch", "demod", "dependent_launch"),
        ("dependent_launch", "instance", "dependent_launch"), ("memory", "demod", "checkpointing"),
    ],
)  # fmt: skip
def test_every_phase_computes_the_same_captured(ladder, norm, field):
    """A kernel that reads too early, or a result that is freed too early, shows what a graph's memory held before."""
    top = climb_top(ladder, norm) | {"workers": 1, "micro_batches": 1}
    assert_replayed_alike(SIZE | {"norm": norm}, *(top | {field: on} for on in (False, True)))


# ---- whole_step_graph ------------------------------------------------------------------------------------------------


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
    assert all(map(torch.equal, *(step.G.parameters() for step in found)))


def test_a_replay_hands_back_the_gradients_its_own_graph_holds():
    step = whole()
    step.graphs = {"+".join(kind): types.SimpleNamespace(replay=lambda: None) for kind in WHOLE}
    step.held = {"+".join(kind): {"G_main": {"of": kind}} for kind in WHOLE}
    for kind in WHOLE:
        step.run(kind)
        assert step.gradients["G_main"]["of"] == kind


def test_whole_steps_agree_with_the_reference(references):
    found = parity.check_step(whole(OURS, resolution=8), cache=references)
    assert found["verdict"] == "ok", found["problems"]
    assert set(found["phases"]) == set(PHASES) == set(found["replays"])
    assert {"loss", "gradient", "update", "ema"} <= set(found["phases"]["D_main"])


def use_stale_weights(step):
    """D_main is given images of the generator as it was before this step's update: a cast kept too long."""
    generator, compute = copy.deepcopy(step.G), step._compute
    step.copies[generator] = step.copies[step.G]

    def planted(phase):
        if phase == "G_main":
            generator.load_state_dict(step.G.state_dict())
        fresh = step.pair.called
        step.pair.called = (generator, step.D) if phase == "D_main" else fresh
        update = step._update_ema
        step._update_ema = lambda: None
        compute(phase)
        step.pair.called, step._update_ema = fresh, update
        if phase == "D_main":
            update()

    step._compute = planted


def skip_average(step):
    step._update_ema = lambda: None


def skip_penalty(step):
    compute = step._compute
    step._compute = lambda phase: None if phase == "D_r1" else compute(phase)


def leave_kind_out(step):
    run = step.run
    step.run = lambda kind: run(WHOLE[0] if kind == WHOLE[1] else kind)


BUGS = {
    "whole step: D_main sees G's weights from before the update": use_stale_weights,
    "whole step: the moving average is not updated": skip_average,
    "whole step: R1 is skipped": skip_penalty,
    "whole step: another kind of step is run": leave_kind_out,
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_in_a_whole_step_is_found(bug, references, planted_bug):
    step = whole(OURS, resolution=8)
    BUGS[bug](step)
    found = parity.check_step(step, cache=references)
    assert found["verdict"] == "failed: parity"
    planted_bug(bug=bug, planted="phases of a whole step in sequence", problem=found["reason"])


def test_parity_with_a_broken_schedule_says_so_and_compares_what_should_be_run(references, monkeypatch):
    """The sequences of a broken step have no reference."""
    honest = TrainingStep.phases
    monkeypatch.setattr(
        TrainingStep, "phases", lambda self, k, lazy=True: honest(self, k, lazy) if lazy else ("G_main",)
    )
    found = parity.check_step(whole(OURS, resolution=8), cache=references)
    assert found["problems"] == ["a cycle without lazy phases runs D_main 0 times, expected 16"]


# ---- graph_fills -----------------------------------------------------------------------------------------------------


def test_where_fills_or_waits_cannot_be_they_are_refused_in_one_line(monkeypatch):
    for recipe, words in (
        (GRAPHS | {"graph_fills": True}, "cuda_graphs: true needs a CUDA device"),
        (FUSED | {"dependent_launch": True}, "dependent_launch: true needs a CUDA device"),
    ):
        with pytest.raises(ConfigError, match=words):
            small(recipe)
    monkeypatch.setattr(Recipe, "refuse_on", lambda *_: None)
    monkeypatch.setattr(fills, "unavailable", lambda: "needs another torch")
    with pytest.raises(ConfigError, match=r"^recipe: graph_fills needs another torch$"):
        make_step(LEAST, GRAPHS | {"graph_fills": True}, device="cpu")
    for capability, reason in (
        ((8, 6), "needs compute capability 9.0, this GPU has 8.6"),
        ((12, 0), None),
    ):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda c=capability: c)
        assert dependent_launch.unavailable() == reason


def test_results_without_it_are_those_of_a_recipe_that_does_not_know_it():
    assert "graph_fills" not in Recipe.from_dict(GRAPHS).to_dict()
    recipe = Recipe.from_dict(GRAPHS | {"graph_fills": True})
    assert recipe.to_dict()["graph_fills"] is True and Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.fixture
def captured(monkeypatch):
    """Return a step captured as a CPU can, what was done in order, and the step's evidence."""

    def capture(on=True):
        log, step = [], small(None, **LEAST)
        step.prepare()
        step.recipe = dataclasses.replace(step.recipe, graph_fills=on)
        monkeypatch.setattr(fills, "compile_ahead", lambda: log.append("compile"))

        def replace(graph, stream):
            log.append((len(graph.phases), stream))  # the capture is over
            return Fills(3, 2, {"of several rows": 1})

        monkeypatch.setattr(fills, "replace_memsets", replace)
        fake_graphs.capture(step, monkeypatch)
        return step, log

    return capture


def test_each_graph_is_rewritten_after_its_capture_and_again_when_it_is_captured_anew(captured):
    step, log = captured()
    assert log == ["compile", *[(1, None)] * 4]
    assert step.fills.keys() == step.graphs.keys() == set(PHASES)
    preparing.capture_again(step)
    assert log == ["compile", *[(1, None)] * 4] * 2 and step.fills.keys() == step.graphs.keys()
    seen = gathered(step)  # which adds up all graphs
    left = {"of several rows": 4}
    assert seen["fills"] == {"graphs": 4, "found": 12, "replaced": 8, "left": left, "memsets": None}
    assert receipt("graph_fills", seen).engaged


def test_nothing_is_kept_or_rewritten_unless_it_is_asked_for(captured, monkeypatch, refused):
    step, log = captured(on=False)
    assert not log and not step.fills
    refused("graph_fills", gathered(small(None, **LEAST)), "0 of 0", sabotage="its change not applied")
    made = []
    new = lambda *given, **how: made.append((given, how)) or types.SimpleNamespace()  # noqa: E731
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(step, "_compute", lambda phase: None)
    preparing._capture(step)
    assert made == [((), {})] * 4  # a call that any torch knows


@pytest.mark.gpu
def test_no_memset_runs_in_a_graph_of_the_top_unless_its_graphs_are_left_as_they_are(monkeypatch, refused):
    step = make_step(SIZE, climb_top("full") | {"workers": 1}, device="cuda")
    step.prepare()
    seen = evidence.gather_evidence(step)
    print(seen["fills"])
    if not seen["fills"]["found"]:
        pytest.skip("on this GPU cuDNN clears nothing by a memset")
    assert receipt("graph_fills", seen).engaged and receipt("whole_step_graph", seen).engaged
    monkeypatch.setattr(fills, "replace_memsets", lambda graph, _: graph.instantiate() or Fills(1, 1, {}))
    preparing.capture_again(step)
    refused(
        "graph_fills",
        evidence.gather_evidence(step),
        "in replayed graphs",
        sabotage="graphs are not rewritten",
    )
    step.close()


# ---- dependent_launch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda path: path.stem)
def test_the_first_thing_that_a_kernel_does_is_to_wait(path):
    for kernel in ast.parse(path.read_text()).body:
        if isinstance(kernel, ast.FunctionDef) and kernel.name.endswith("_kernel"):
            first = kernel.body[ast.get_docstring(kernel) is not None]
            assert kernel.args.args[-1].arg == "DEPENDENT", kernel.name
            assert ast.unparse(first) == "after_previous(DEPENDENT)", kernel.name


@pytest.mark.timeout(300)
def test_the_code_waits_before_it_reads_or_writes_and_has_no_wait_where_it_is_off():
    """By the PTX for sm_90 of two kernels, made in a process without Triton's interpreter."""
    pytest.importorskip("triton")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    found = json.loads(subprocess.check_output([sys.executable, __file__], env=env, text=True))
    memory = re.compile(r"\b(ld|st|atom|red|cp\.async)[.\w]*\.global|cp\.async")
    for name, ptx in found.items():
        code = ptx[ptx.index(".visible .entry") :]
        first = memory.search(code).start()
        if name.endswith("off"):
            assert "griddepcontrol" not in code
        else:
            assert code.index(watch.WAIT) < code.index("griddepcontrol.launch_dependents") < first, name


def test_the_switch_is_on_while_the_step_computes_and_at_no_other_time():
    assert dependent_launch.launching() == {"DEPENDENT": False}
    with global_flags(Recipe.from_dict(FUSED | {"dependent_launch": True})):
        assert dependent_launch.launching() == {"DEPENDENT": True, "launch_pdl": True}
        with pytest.raises(ZeroDivisionError), global_flags(Recipe.from_dict(FUSED)):
            assert dependent_launch.launching()["DEPENDENT"]  # a recipe that does not ask leaves it as it is
            1 / 0  # noqa: B018
    assert not dependent_launch.ON


@pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
def test_launches_the_plain_way_are_counted_as_such(refused):
    seen = gathered(small(FUSED, **LEAST))
    assert seen["kernels"] and not any("dependent" in each for each in seen["kernels"].values())
    refused("dependent_launch", seen, ": 0 of ", sabotage="its change not applied")


# ---- prefetch_stream -------------------------------------------------------------------------------------------------

PREFETCH = Recipe(async_copy=True, uint8_input=True, prefetch_stream=True)


def feed(recipe, device="cpu"):
    return DataFeed(
        Workload(**SMALL | {"batch": 8}), recipe, torch.zeros(8, 3, 16, 16, device=device), seed=5
    )


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
    ahead.load_state_dict(state)
    ahead.next()
    torch.testing.assert_close(ahead.real, plain.real)


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


@pytest.mark.gpu
def test_prefetched_batches_on_the_gpu_are_the_loader_s_while_the_gpu_is_busy():
    loading = {"workers": 1, "pin_memory": True, "async_copy": True, "uint8_input": True, "drop_last": True}
    plain, ahead = (feed(Recipe(**loading, prefetch_stream=on), "cuda") for on in (False, True))
    for _ in range(40):
        torch.cuda._sleep(2_000_000)  # the buffers' readers are late
        for each in (plain, ahead):
            each.next()
        torch.testing.assert_close(ahead.real, plain.real)
        ahead.prefetch()
    for each in (plain, ahead):
        each.close()


# ---- cudnn_benchmark, tf32 -------------------------------------------------------------------------------------------


def read_flags():
    backends = torch.backends
    precisions = (backends.cudnn.conv.fp32_precision, backends.cuda.matmul.fp32_precision)
    return (backends.cudnn.benchmark, *precisions)


def test_global_flags_hold_inside_and_are_put_back_whatever_happens():
    before = read_flags()
    with global_flags(Recipe(cudnn_benchmark=True, fp32_precision="ieee")):
        assert read_flags() == (True, "ieee", "ieee")
    assert read_flags() == before
    with pytest.raises(RuntimeError), global_flags(Recipe(cudnn_benchmark=True, fp32_precision="tf32")):
        assert read_flags() == (True, "tf32", "tf32")
        raise RuntimeError
    assert read_flags() == before
    with global_flags(Recipe()):  # says nothing, changes nothing: parity sets cuDNN's flags itself
        assert read_flags() == before


def test_phases_run_under_the_recipe_s_flags_and_no_other_step_does():
    step, other = small(), small()
    step.recipe = dataclasses.replace(step.recipe, cudnn_benchmark=True, fp32_precision="tf32")
    before = read_flags()
    for each, expected in ((step, (True, "tf32", "tf32")), (other, before)):
        flags = set()
        each.D.register_forward_pre_hook(lambda module, args, flags=flags: flags.add(read_flags()))
        each.prepare()
        assert flags == {expected} and each.settings()["cudnn_benchmark"] is expected[0]
    assert read_flags() == before


def test_tf32_is_judged_by_the_spread_of_tf32():
    assert budget.precision_of(Recipe(fp32_precision="tf32")) == "tf32"
    assert budget.precision_of(Recipe(fp32_precision="tf32", precision="bf16")) == "bf16"
    assert budget.precision_of(Recipe(fp32_precision="ieee")) == "fp32"
    for recipe in budget.list_spellings(Workload(**SMALL), "tf32", "cpu"):
        assert Recipe(**recipe).fp32_precision == "tf32" and Recipe(**recipe).precision == "fp32"
    assert budget.derive_budgets({"G_main/loss/loss": 0.0}, "tf32")["G_main/loss/loss"] > 1e-4


# ---- the other process -----------------------------------------------------------------------------------------------


def print_code():
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels.common.sums import sum_partials_kernel
    from kernels.pointwise.modulate import modulate_grad_kernel

    each = dict.fromkeys
    modulate = each(("g", "x", "dx"), "*bf16") | each(("style", "dstyle"), "*fp32")
    modulate |= each(("C", "P", "stride_p", "tiles", "programs"), "i32")
    ahead = {"stride_c": 1, "ACC": tl.float32, "WALK": True, "WHOLE": True, "STAGES": 3}  # by cp.async
    counts = each(("C", "sample_rows", "channel_rows", "program_rows", "sample_jobs", "channel_jobs"), "i32")
    absent = each(("by_channel", "channel_sums", "by_program", "program_sum"))
    found = {}
    for kernel, types_, constants in (
        (modulate_grad_kernel, modulate, ahead | {"BLOCK_P": 16, "BLOCK_C": 64}),
        (sum_partials_kernel, each(("by_sample", "sample_sums"), "*fp32") | counts,
            absent | {"BLOCK_R": 64, "BLOCK_C": 32}),
    ):  # fmt: skip
        for on in (False, True):
            signature = {name: types_.get(name, "constexpr") for name in kernel.arg_names}
            fixed = constants | {"DEPENDENT": on}
            values = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
            source = ASTSource(kernel, signature, values)
            ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
            found[f"{kernel.__name__} {'on' if on else 'off'}"] = ptx
    print(json.dumps(found))


if __name__ == "__main__":
    print_code()
