"""Each mistake is in force in a patched step and its proof goes red without the patch; most change no number."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ladder.core import text
from ladder.core.errors import UserError
from ladder.engine import inspection
from ladder.engine.pool import WorkerFailure
from ladder.plan import beside, catalog, modes, needs
from ladder.plan.variants import Variant
from ladder.studies import mistakes
from stylegan_lite import make_step, ops
from stylegan_lite.config import Recipe, Workload
from tests.support.small import LITTLE

ALL = dict.fromkeys(needs.NEEDS)
NO_GPU = dict.fromkeys(needs.NEEDS, "needs a CUDA GPU") | {"bf16": None}
CLEAN = {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16", "set_to_none": True}
STUDY = beside.load_beside("mistakes")
BY_NAME = STUDY.entries
ON_CPU = ("set_to_none", "precision")  # changes that a CPU can run
CROSSES = {"blocking_copies": "no batch crosses a bus on a CPU"}
SAME = [
    n
    for n, m in BY_NAME.items()
    if m.exempt is None and n not in ("latents_in_loop", *CROSSES, "too_few_workers")
]


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a CPU synchronize, and compile without a compiler. Dynamo's limits are put back."""
    import torch._dynamo.config
    import torch._inductor.config

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    monkeypatch.setattr(mistakes, "COMPILER", "eager")
    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    limits = {name: getattr(dynamo, name) for name in ("recompile_limit", "accumulated_recompile_limit")}
    with dynamo.patch(limits), inductor.patch(force_disable_caches=inductor.force_disable_caches):
        yield
    if dist.is_initialized():  # by a mistake with DistributedDataParallel
        dist.destroy_process_group()


def made(name: str | None, recipe: dict[str, Any] | None = None, precision: str = "bf16") -> Any:
    """A prepared step with one mistake, or the clean one."""
    change = {} if name is None else {k: v for k, v in BY_NAME[name].change.items() if k in ON_CPU}
    clean = CLEAN | {"precision": precision}
    step = make_step(LITTLE, clean | (change if recipe is None else recipe), device="cpu")
    if name is not None:
        mistakes.apply(step, name)
    step.prepare()
    return step


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in CROSSES])
def test_a_mistake_is_in_force_and_its_proof_is_red_without_it(
    name: str, cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = mistakes.examine(made(name), name)["receipts"][name]
    assert there["engaged"], there
    assert all(text.TEXT.fullmatch(line) for line in there["lines"])
    monkeypatch.setitem(
        mistakes.PATCHES, name, None
    )  # the patch is gone, and with it the change of the recipe
    gone = made(name, {"workers": 1} if name == "too_few_workers" else {})
    red = mistakes.examine(gone, name)["receipts"][name]
    gone.close()
    assert not red["engaged"] and any(line.startswith("not engaged: ") for line in red["lines"])


@pytest.mark.parametrize("name", SAME)
def test_a_mistake_without_exemption_changes_no_number(name: str, cpu: None) -> None:
    """In FP32, as activations that an own function leaves in FP32 are rounded less than those of BF16."""
    found = []
    for step in (made(None, precision="fp32"), made(name, precision="fp32")):
        torch.manual_seed(7)
        for _ in range(2):
            step.step()
        found.append((step.losses(), copy.deepcopy([*step.G.parameters(), *step.D.parameters()])))
    (clean, weights), (losses, others) = found
    assert losses == pytest.approx(clean, rel=0.02)
    assert all(torch.allclose(a, b, rtol=0.02, atol=0.005) for a, b in zip(weights, others, strict=True))


def test_the_own_activation_is_the_models_and_differentiable_twice() -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    expected = ops.bias_act(x, bias, Recipe(), gain=1.0)
    assert torch.equal(mistakes.OwnActivation.apply(x, bias), expected)
    assert torch.autograd.gradcheck(mistakes.OwnActivation.apply, (x, bias))
    assert torch.autograd.gradgradcheck(mistakes.OwnActivation.apply, (x, bias))


def test_latents_of_the_loop_are_drawn_anew_and_parity_may_load_its_own() -> None:
    step = made("latents_in_loop")
    inputs = step.inputs["G_main"]
    step._fill("G_main")
    before = inputs.z
    step._fill("G_main")
    assert inputs.z is not before and not torch.equal(inputs.z, before)
    inputs.z.zero_()
    inputs.fill = lambda: None  # as parity does
    step._fill("G_main")
    assert not inputs.z.any() and not hasattr(inputs, "image_noise")


def test_the_graph_of_g_is_held_until_the_next_images() -> None:
    kept = made("g_graph_kept")
    kept.feed.next()
    kept.run_phase("D_main")
    clean = made(None)
    clean.feed.next()
    clean.run_phase("D_main")
    cells = [cell.cell_contents for cell in kept._loss.__closure__ if callable(cell.cell_contents)]
    held = [c.cell_contents for f in cells for c in f.__closure__ or () if isinstance(c.cell_contents, list)]
    assert any(x and x[0].grad_fn is not None for x in held)


@pytest.mark.parametrize("updates", [2, 5])
def test_more_updates_of_d_leave_one_of_g_and_of_the_average(updates: int) -> None:
    step = made(f"n_critic_{updates}")
    step.step(lazy=False)
    (count,) = {int(s["step"]) for s in step.opt_D.state.values()}
    assert count == updates and {int(s["step"]) for s in step.opt_G.state.values()} == {1}
    assert step.feed.consumed == updates


def test_a_new_shape_comes_once_a_cycle(cpu: None) -> None:
    from torch._dynamo.utils import counters

    step, made_ = made("compile_shapes"), []
    step.run_phase = lambda phase: None
    for _ in range(3):
        before = counters["stats"]["unique_graphs"]
        step.cycle()
        made_.append(counters["stats"]["unique_graphs"] - before)
    assert made_ == [1, 1, 1]


def crossing(**how: Any) -> dict[str, Any]:
    usual = {"to": "cuda", "bytes": 1, "dtype": "uint8"}
    return usual | dict.fromkeys(("pinned", "non_blocking", "side_stream"), False) | how


@pytest.mark.parametrize(
    ("crossings", "engaged"),
    [
        ([crossing(), crossing()], True),
        ([crossing(), crossing(pinned=True, non_blocking=True, side_stream=True)], False),
        ([crossing(side_stream=True)], False),
        ([crossing(to="cpu")], False),
        ([], False),
    ],
)
def test_a_copy_blocks_if_it_comes_from_ordinary_memory(crossings: list[Any], engaged: bool) -> None:
    assert mistakes.judge_copies(crossings).engaged is engaged


def test_a_mistake_that_is_not_in_force_is_never_timed() -> None:
    class Worker:
        def __init__(self, engaged: bool) -> None:
            self.engaged, self.asked = engaged, []

        def call(self, do: str, **fields: Any) -> dict[str, Any]:
            self.asked.append(do)
            receipt = {"engaged": self.engaged, "lines": [] if self.engaged else ["not engaged: calls: 0"]}
            parity = {"verdict": "ok", "reason": None}
            return parity if do == "parity" else {"receipts": {"x": receipt}, "inspection": {}}

    def inspected(worker: Worker, exempt: str | None) -> dict[str, Any]:
        variant = Variant("mistakes", "why", exempt)
        return inspection.inspect_worker(worker, lambda phase: None, variant=variant, name="x")  # type: ignore[arg-type]

    judged, free = Worker(True), Worker(True)
    assert inspected(judged, None)["parity"]["verdict"] == "ok" and judged.asked == ["parity", "examine"]
    assert inspected(free, "another training")["parity"] is None and free.asked == ["examine"]
    with pytest.raises(WorkerFailure, match="x: calls: 0"):
        inspected(Worker(False), None)


# The plan


def planned(capabilities: dict[str, str | None], only: list[str] | None = None) -> dict[str, catalog.Planned]:
    found = modes.plan_run("mistakes", catalog.load_ladder("full"), capabilities, only)
    return {each.name: each for each in found}


def test_the_clean_step_is_data_loading_without_graphs() -> None:
    found = planned(ALL)
    assert list(found) == STUDY.names
    recipe = found["clean"].recipe or {}
    assert recipe["async_copy"] and recipe["fused_norm"] and recipe["precision"] == "bf16"
    assert not {"cuda_graphs", "adam", "fused_act"} & recipe.keys() and found["clean"].variant is None
    for name, mistake in BY_NAME.items():
        Recipe.from_dict(found[name].recipe or {})
        assert found[name].recipe == {**recipe, **mistake.change}
    assert found["n_critic_5"].variant == Variant(
        "mistakes", BY_NAME["n_critic_5"].why, BY_NAME["n_critic_5"].exempt, updates=5
    )


def test_a_cpu_lacks_what_needs_a_gpu_and_others_may_be_picked() -> None:
    found = planned(NO_GPU)
    assert found["clean"].recipe == CLEAN
    assert [name for name, each in found.items() if each.skipped] == [
        name for name, mistake in BY_NAME.items() if mistake.needs
    ]
    assert list(planned(NO_GPU, ["n_critic_2"])) == ["clean", "n_critic_2"]
    with pytest.raises(UserError, match="items not in the mistakes; it has, nearest first: item_each_step"):
        planned(NO_GPU, ["items"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_mistake_is_in_force_on_a_gpu_and_the_clean_step_is_clean(name: str) -> None:
    there = needs.join_capabilities(dict.fromkeys(needs.OF_MACHINE), Workload.from_dict(LITTLE).to_dict())
    found = {each.name: each for each in modes.plan_run("mistakes", catalog.load_ladder("article"), there)}
    if name != "compile_shapes":  # its limits are those of the process
        clean = make_step(LITTLE, found["clean"].recipe or {}, device="cuda")
        clean.prepare()
        assert not mistakes.examine(clean, name)["receipts"][name]["engaged"]
        clean.close()
    step = make_step(LITTLE, found[name].recipe or {}, device="cuda")
    mistakes.apply(step, name)
    step.prepare()
    step.cycle()
    receipt = mistakes.examine(step, name)["receipts"][name]
    step.close()
    assert receipt["engaged"], receipt
