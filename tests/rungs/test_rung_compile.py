"""torch.compile of the main phases: one graph each, the same numbers, and a failure that is never called compiled.

On the CPU the compiler is Dynamo with its graphs run as they are, or by AOTAutograd: Inductor takes a C++ compiler and
minutes. Inductor's own code is for the GPU.
"""

import copy

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from ladder.parity import check as parity
from ladder.plan import catalog, needs
from ladder.receipts import evidence
from ladder.results import record
from stylegan_lite import Recipe, make_step, networks, resample
from stylegan_lite.step import compiled
from tests.rungs.cases import BF16, GRAPHS, OURS
from tests.support import rung_steps
from tests.support.rung_steps import assert_engaged, receipt
from tests.support.small import SMALL

TINY = SMALL | {"resolution": 8, "mapping_layers": 1}  # Dynamo's time goes by layers
DEFAULT = {"compile": "default"}
ONE_EACH = {"G_main": 1, "D_main": 1}
torch.set_num_threads(1)


def as_it_is(graph, inputs, mode):
    return graph


def by_autograd(graph, inputs, mode):
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@pytest.fixture(autouse=True)
def dynamo_alone(request, monkeypatch):
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(compiled, "inductor", as_it_is)


def prepared(recipe, **workload):
    step = make_step(TINY | workload, recipe, device="cpu")
    step.keep_gradients = True
    step.took = step.prepare()
    return step


def gathered(step, trace=None):
    step.keep_gradients = False
    return rung_steps.gathered(step, steps=16, trace=trace)


@pytest.fixture(scope="module")
def once():
    """A compiled step that tests only look at, or put back as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "inductor", as_it_is)
        return prepared(DEFAULT)


# ---- the recipe ------------------------------------------------------------------------------------------------------


def test_inside_our_graphs_no_mode_brings_its_own():
    modes = {"default": "default", "autotune": "autotune", "max-autotune": "max-autotune-no-cudagraphs"}
    for mode, inside in modes.items():
        recipe = Recipe.from_dict(GRAPHS | {"set_to_none": True, "compile": mode})
        assert compiled.mode_of(recipe) == inside and not compiled.brings_graphs(recipe)
        assert not compiled.options_of(inside).get("triton.cudagraphs")
    for mode in ("max-autotune", "reduce-overhead"):
        recipe = Recipe.from_dict({"set_to_none": True, "compile": mode})
        assert compiled.mode_of(recipe) == mode and compiled.brings_graphs(recipe)
        assert torch._inductor.list_mode_options(mode)["triton.cudagraphs"]
    whole, ours = compiled.options_of("max-autotune-no-cudagraphs"), dict(compiled.options_of("autotune"))
    assert ours.pop("max_autotune_gemm_backends") == "ATEN"  # no templates for matmuls
    assert ours | {"coordinate_descent_tuning": True} == whole


@pytest.mark.parametrize(
    "name", ["compile", "compile_autotune", "compile_default", "compile_reduce_overhead"]
)
def test_a_ladder_of_an_alternative_contains_its_rungs_and_no_kernel_of_ours(name):
    ladder = catalog.load_ladder(name)
    planned = catalog.plan_climb(ladder, dict.fromkeys(needs.NEEDS))
    top = planned[len(ladder.rungs) - 1].recipe  # a rival comes after
    assert set(catalog.list_contained(top)) == {rung.name for rung in ladder.rungs}
    assert not any(top.get(field) for field in ("fused_act", "fused_norm")) and top["resample"] == "shifts"


# ---- the step --------------------------------------------------------------------------------------------------------


def test_each_main_phase_is_one_graph_compiled_once_and_the_lazy_phases_are_not(once):
    found = once.compiled
    assert found.failed is None and found.own_graphs is False
    assert dict(found.graphs) == ONE_EACH and not found.breaks
    before = dict(found.runs)
    once.cycle()
    ran = {phase: runs - before.get(phase, 0) for phase, runs in found.runs.items()}
    assert ran == {"G_main": 16, "D_main": 16} and sum(found.late.values()) == 0


def test_compiling_is_part_of_preparing_and_is_reported(once):
    assert once.took["compile_s"] > once.took["warmup_s"] > 0
    seen = {"samples_s": [0.1], "event_s": None, "main_s": None, "lead_in_cycles": 1, "settled": None}
    kept = record.new_round(0, once.took | {"prepare_s": 1.0}, seen)
    assert kept["compile_s"] == once.took["compile_s"] == record.read_round(kept).compile_s


def test_preparing_leaves_weights_and_random_state_as_they_were():
    fresh = make_step(TINY, DEFAULT, device="cpu")
    before = copy.deepcopy(fresh.state_dict())
    fresh.compiled.functions = dict.fromkeys(
        fresh.compiled.functions, None
    )  # as if compiled: a mistake would show
    fresh.compiled.prepare = lambda run: fresh.compiled.functions.clear()
    fresh.prepare()
    after = fresh.state_dict()
    assert torch.equal(before["rng"], after["rng"])
    assert all(torch.equal(before["G"][name], after["G"][name]) for name in before["G"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "recipe",
    [
        BF16 | DEFAULT | OURS,
        pytest.param(DEFAULT, marks=pytest.mark.exhaustive),
        pytest.param(BF16 | DEFAULT | {"resample": "shifts"}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_compiled_phases_agree_with_the_reference(recipe, references, monkeypatch):
    monkeypatch.setattr(compiled, "inductor", by_autograd)
    step = prepared(recipe, mapping_layers=2)  # of which there is a reference
    assert step.compiled.failed is None and dict(step.compiled.graphs) == ONE_EACH
    found = parity.check_step(step, cache=references)
    assert found["verdict"] == "ok", found["problems"]
    assert sum(step.compiled.late.values()) == 0 and step.compiled.runs["G_main"] > 1


@pytest.mark.parametrize(
    ("padding", "stride", "up"), [(1, 1, False), (2, 1, False), (1, 2, False), (1, 2, True)]
)
def test_the_filter_as_shifted_slices_is_the_filter(padding, stride, up):
    x = torch.randn(2, 3, 7, 10, dtype=torch.float64).to(memory_format=torch.channels_last)
    want = resample._filter(x, "depthwise", 4.0, padding=padding, stride=stride, up=up)
    torch.testing.assert_close(resample._shifted(x, 4.0, padding, stride, up), want)
    assert resample._shifted(x.bfloat16(), 4.0, padding, stride, up).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_compiled_graph_makes_its_filter_on_the_device(dtype, monkeypatch):
    want = resample.fir(torch.device("cpu"), dtype, 4.0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(resample.fir(torch.device("cpu"), dtype, 4.0), want)


# ---- failures and receipts -------------------------------------------------------------------------------------------


def broken(graph, inputs, mode):
    raise RuntimeError("no C++ compiler\nhere is how to get one")


def breaking(graph, inputs, mode):
    """Fails in the backward pass only, which Inductor compiles when it first runs."""
    backend = aot_autograd(
        fw_compiler=lambda gm, _: gm.forward, bw_compiler=lambda gm, _: broken(gm, _, mode)
    )
    return backend(graph, inputs)


@pytest.mark.parametrize("compiler", [broken, pytest.param(breaking, marks=pytest.mark.exhaustive)])
def test_what_cannot_be_compiled_runs_as_it_is_and_says_so(compiler, monkeypatch, refused):
    monkeypatch.setattr(compiled, "inductor", compiler)
    step, plain = prepared(DEFAULT), prepared({})
    assert step.compiled.failed == "RuntimeError: no C++ compiler" and not step.compiled.functions
    for each in (plain, step):
        torch.manual_seed(1)
        each.cycle()
    assert step.losses() == plain.losses()
    what = f"the compiler fails ({compiler.__name__})"
    refused("compile", gathered(step), "no C++ compiler", sabotage=what)


def test_out_of_memory_is_not_taken_for_a_compiler_s_failure(monkeypatch):
    def full(graph, inputs, mode):
        return lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))

    monkeypatch.setattr(compiled, "inductor", full)
    with pytest.raises(torch.OutOfMemoryError):
        prepared(DEFAULT)


def test_compile_shows_its_receipt_and_what_only_a_gpu_shows_is_refused(once, refused):
    assert receipt("compile", gathered(once)).engaged  # where the profiler may not be used
    seen = gathered(once, {"inductor_kernels": 210.0})
    found = receipt("compile", seen)
    assert found.engaged and {"graph breaks: 0", "kernels by the compiler: 210 a step"} <= {*found.lines}
    assert seen["graphs"]["operators_eager"] > 500  # the watch saw the modules, not the compiled graph

    def change(**fields):
        return seen | {"compile": seen["compile"] | fields}

    assert receipt("shifted_resample", change(filters=0)).engaged
    for mode in ("autotune", "max_autotune", "reduce_overhead"):
        assert receipt(f"compile_{mode}", change(mode=mode.replace("_", "-"))).engaged
        refused(f"compile_{mode}", seen, "mode", sabotage="another mode than the rung's", planted="evidence")
    for bad, rung, words, what in (
        ({"kernels": 0.0}, "compile", "0 a step", "the timed step runs no generated kernel"),
        ({"mode": "max-autotune"}, "compile", "mode", "another mode than the rung's"),
        ({"filters": 16}, "shifted_resample", "with the filter", "compiled graphs convolve with the filter"),
    ):
        refused(rung, change(**bad), words, sabotage=what, planted="evidence")
    inside = change(mode="max-autotune") | {"recipe": seen["recipe"] | {"cuda_graphs": True}}
    what = "graphs of its own inside ours"
    refused("compile_max_autotune", inside, "max-autotune", sabotage=what, planted="evidence")


def test_compile_sabotaged_in_a_step(once, refused):
    functions, once.compiled.functions = once.compiled.functions, {}
    once.compiled.settle()
    refused("compile", gathered(once), "ran compiled: none", sabotage="the step runs its plain losses")
    once.compiled.functions = {"D_main": functions["D_main"]}
    once.compiled.settle()
    refused("compile", gathered(once), "ran compiled: D_main", sabotage="only D_main runs compiled")
    once.compiled.functions = functions
    refused("compile", gathered(prepared({})), "nothing was given", sabotage="nothing is compiled")


def test_compile_sabotaged_by_what_the_compiler_cannot_see_through(monkeypatch, refused):
    # The first layer of both phases: Dynamo goes on behind it, and has no long way to trace twice.
    monkeypatch.setattr(networks.Mapping, "forward", torch._dynamo.disable(networks.Mapping.forward))
    step = prepared(DEFAULT)
    assert step.compiled.failed is None
    refused("compile", gathered(step), "graph breaks: ", sabotage="a layer that Dynamo may not enter")


def test_compile_sabotaged_by_shapes_that_change(once, refused):
    """In a second step, which does not share what was compiled for the first."""
    other = prepared(DEFAULT, batch=8)
    once.cycle()
    assert dict(other.compiled.graphs) == dict(once.compiled.graphs) == ONE_EACH
    other.given["D_main"].real = torch.zeros(4, 3, 8, 8)
    other.run_phase("D_main")
    refused("compile", gathered(other), "compiled after warm-up: ", sabotage="a batch of another size")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("graphs", [GRAPHS, {}])
@pytest.mark.parametrize("changed", [{}, {"resample": "shifts"}, {"compile": "reduce-overhead"}], ids=str)
def test_inductor_s_phases_agree_are_captured_and_show_their_receipts(graphs, changed, references):
    if graphs and "compile" in changed:
        pytest.skip("reduce-overhead brings graphs of its own")
    step = make_step(SMALL, BF16 | DEFAULT | {"set_to_none": True} | OURS | graphs | changed, device="cuda")
    step.keep_gradients = True
    step.prepare()
    assert step.compiled.failed is None, step.compiled.failed
    found = parity.check_step(step, cache=references)
    assert found["verdict"] == "ok", found["problems"]
    step.keep_gradients = False
    seen = evidence.gather_evidence(step)
    step.close()
    assert seen["compile"]["kernels"] is None or seen["compile"]["kernels"] > 0
    assert_engaged(seen, catalog.list_contained(step.recipe.to_dict()))
