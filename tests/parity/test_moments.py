"""Adam's moments and step counts: what they should move by, that parity looks, and what its caches are made of."""

import dataclasses
import json

import pytest
import torch

from ladder.parity import adam_state, freshness, reference
from ladder.parity import budget as budgets
from ladder.parity import check as parity
from ladder.parity.reference import Exact, draw_inputs
from stylegan_lite.config import Workload
from stylegan_lite.losses import PHASES
from tests.support.rung_steps import cold, small
from tests.support.small import LEAST, SMALL

torch.set_num_threads(1)
OURS = {"conv": "double_backward"}
BF16 = OURS | {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16"}
FUSED = {"set_to_none": True, "weights": "once", "fused_adam": True, "ema": "foreach", "fused_update": True}
KIND = ("G_main", "G_pl", "D_main", "D_r1")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("moments")


def alone(recipe, **workload):
    step = small(recipe, resolution=8, **workload)
    step.keep_gradients = True
    return cold(step)


def whole(recipe, **workload):
    """Through the path of a whole-step graph, as a CPU can."""
    step = small(recipe, resolution=8, **workload)
    step.recipe = dataclasses.replace(step.recipe, whole_step_graph=True)
    step.keep_gradients = True
    return cold(step)


@pytest.mark.parametrize("beta1", [0.0, 0.5])
def test_what_they_should_move_by_is_what_torch_s_adam_does_in_fp64(beta1):
    workload = Workload.from_dict(LEAST | {"beta1": beta1})
    state = reference.shared_state(workload, "cpu", workload.batch, lambda text: None)
    step = (baseline := Exact(workload, "fp64", "cpu", workload.batch)).step
    inputs = draw_inputs(step, 0)
    for kind in [(phase,) for phase in PHASES] + [KIND]:
        reference.adopt_state(step, state)
        before = adam_state.clone_states(step)
        for phase in kind:
            baseline.run(phase, inputs)
        seen = adam_state.measure_moves(step, before)
        for net in {phase[0] for phase in kind}:
            gradients = [
                reference.read_computed(step, phase)["gradient"] for phase in kind if phase[0] == net
            ]
            wanted = adam_state.expect_moves(state, net, gradients, seen[net]["steps"]["steps"])
            assert torch.equal(
                wanted["steps"]["steps"], torch.full_like(wanted["steps"]["steps"], len(gradients))
            )
            assert wanted.keys() == seen[net].keys() == {*adam_state.list_judged(beta1), adam_state.STEPS}
            for moment in adam_state.list_judged(beta1):
                for name, moved in seen[net][moment].items():
                    torch.testing.assert_close(
                        wanted[moment][name].double(), moved, rtol=1e-6, atol=0, msg=f"{kind} {moment} {name}"
                    )


def test_a_gradient_of_zeros_may_be_none_and_no_other_may():
    moment = torch.ones(2)
    state = {
        "betas": {"G": (0.5, 0.5)},
        "opt_G": {k: {"exp_avg": moment, "exp_avg_sq": moment} for k in (0, 1)},
    }
    gradients = [{"used": moment * 2, "unused": moment * 0}] * 2
    for counted, steps, idle in (((2, 2), [2, 2], 0.25), ((0, 0), [2, 0], 1.0), ((9, 1), [2, 1], 0.5)):
        wanted = adam_state.expect_moves(state, "G", gradients, torch.tensor(counted, dtype=torch.float32))
        assert wanted["steps"]["steps"].tolist() == steps
        assert wanted["exp_avg"]["used"].tolist() == [0.75] * 2
        assert wanted["exp_avg_sq"]["used"].tolist() == [2.25] * 2
        assert wanted["exp_avg"]["unused"].tolist() == [idle - 1] * 2
    nan = adam_state.expect_moves(state, "G", gradients, torch.tensor([float("nan")] * 2))
    assert nan["steps"]["steps"].tolist() == [2, 0]


def forgets(step, what):
    """Both optimizers update the weights and lose this part of their new state."""
    for optimizer in (step.opt_G, step.opt_D):

        def update(*args, inner=optimizer.step, state=optimizer.state, **more):
            kept = {p: {n: t.clone() for n, t in each.items() if n in what} for p, each in state.items()}
            inner(*args, **more)
            for p, each in kept.items():
                for name, tensor in each.items():
                    state[p][name].copy_(tensor)

        optimizer.step = update


LOST = {  # what it is called among errors: its names in torch's state, and the bug
    "exp_avg": (("exp_avg",), "Adam loses its new first moments"),
    "exp_avg_sq": (("exp_avg_sq",), "Adam loses its new second moments"),
    "steps": (("step",), "Adam loses its new step counts"),
}


@pytest.mark.covering
@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize("make", [alone, whole])
@pytest.mark.parametrize("recipe", [OURS, BF16], ids=["fp32", "bf16"])
def test_state_that_an_optimizer_loses_is_found(recipe, make, what, references, planted_bug):
    names, bug = LOST[what]
    step = make(recipe, beta1=0.5 if what == "exp_avg" else 0.0)
    forgets(step, names)
    found = parity.check_step(step, cache=references)
    assert found["verdict"] == "failed: parity"
    json.dumps(found, allow_nan=False)
    entries = [found["phases"][phase][what] for phase in ("G_main", "D_main")]
    assert any(entry["nearest_error"] > entry["nearest_budget"] for entry in entries), entries
    # Its later effects in a whole step may be named before it.
    caught = [problem for problem in found["problems"] if f" {what}" in problem] or found["problems"]
    if (make, recipe) == (alone, OURS):
        planted_bug(bug=bug, planted="both optimizers put it back after each update", problem=caught[0])
    elif (make, recipe) == (whole, BF16):
        where = "both optimizers put it back after each update, in BF16"
        planted_bug(bug=f"whole step: {bug}", planted=where, problem=caught[0])


@pytest.mark.covering
@pytest.mark.parametrize("make", [alone, whole])
@pytest.mark.parametrize(
    "recipe", [OURS, BF16, BF16 | {"set_to_none": True}, OURS | FUSED], ids=["fp32", "bf16", "none", "fused"]
)
def test_what_is_right_is_within_its_budget(recipe, make, references):
    found = parity.check_step(make(recipe), cache=references)
    assert found["verdict"] == "ok", found["problems"]
    for phase in ("G_main", "D_main"):
        seen = found["phases"][phase].keys()
        assert {"exp_avg_sq", "steps"} <= seen and "exp_avg" not in seen  # beta1 is 0
        assert (
            found["phases"][phase]["steps"]["error"] == 0 and found["phases"][phase]["steps"]["judged"] == 1
        )


def test_the_budget_of_moments_is_for_gradients_that_are_none_too(references):
    """R1 moves no bias behind the minibatch's deviation, where all is linear in pieces. With zeros for its gradient the
    moments decay exactly; with None, which kernels of ours give, they stay where D_main's rounded gradient put them."""
    workload = Workload.from_dict(SMALL | {"resolution": 8})
    # Every kind, as `parity.check` asks: a budget of other kinds would take the place of the kept one.
    step = small({"precision": "bf16", "set_to_none": True}, resolution=8)
    ref = reference.get_reference(workload, "cpu", references, kinds=freshness.list_kinds(step))
    errors = budgets.get_spread(ref, "bf16", "cpu")["errors"]
    step.keep_gradients, inner = True, step._compute

    def compute(phase):
        inner(phase)
        if phase == "D_r1":  # as if its update had passed these over
            for name, parameter in step.D.named_parameters():
                if name in idle:
                    for moment in ("exp_avg", "exp_avg_sq", "step"):
                        step.opt_D.state[parameter][moment].copy_(before[name][moment])
        elif phase == "D_main":
            before.update(
                {
                    name: {k: torch.clone(t) for k, t in step.opt_D.state[p].items()}
                    for name, p in step.D.named_parameters()
                }
            )

    before, idle, step._compute = {}, ("conv.bias", "hidden.bias", "logit.bias"), compute
    (seen, *_), _ = budgets.measure_errors(step, dataclasses.replace(ref, kinds=[KIND], held={}))
    budget = budgets.derive_budgets(errors, "bf16")
    for name in (*idle, "*bias", "*all"):
        key = f"{reference.label_phase('D_main', KIND)}/exp_avg_sq/{name}"
        assert max(1e-5, seen[key] / 8) < errors[key] and seen[key] <= budget[key], key


def test_the_budget_of_single_phases_is_for_gradients_that_are_none_too(references):
    """Path length gives most biases zeros, whose exact decay hides how the others' second moments are rounded.

    Plain PyTorch where Adam passes them over is the same arithmetic, and must stay within its own budget.
    """
    ref = reference.get_reference(Workload.from_dict(SMALL | {"resolution": 8}), "cpu", references)
    zeros, none = (alone({"precision": "bf16", "set_to_none": none}) for none in (False, True))
    (allowed, *_), _ = budgets.measure_errors(zeros, ref, budget=True)
    (seen, *_), _ = budgets.measure_errors(none, ref)
    further = {key: (error, allowed[key]) for key, error in seen.items() if error > 1.01 * allowed[key]}
    assert not further, further


def test_the_other_network_s_moments_must_not_move(references):
    step = alone(OURS)
    compute = step._compute

    def planted(phase):
        compute(phase)
        if phase == "G_main":
            next(iter(step.opt_D.state.values()))["exp_avg_sq"].mul_(1.01)

    step._compute = planted
    found = parity.check_step(step, cache=references)
    assert any(problem.startswith("G_main untouched of others") for problem in found["problems"])


# The contents of the caches


def counted(monkeypatch):
    """How often a budget was made; none is measured for it."""
    made = []

    def run_spellings(ref, precision, device):
        made.append(precision)
        found = range(len(budgets.list_spellings(ref.workload, precision, device)))
        return {f"spelling {number}": [{"D_main/loss/loss": 0.0}] for number in found}, []

    monkeypatch.setattr(budgets, "run_spellings", run_spellings)
    return made


SMALLEST = Workload.from_dict(LEAST)
KINDS = [("G_main", "D_main")]


def changed(module, path, monkeypatch):
    """The module as if its source were another."""
    (path / "changed.py").write_text("# changed")
    monkeypatch.setattr(module, "__file__", str(path / "changed.py"))


CHANGES = {
    "spellings": lambda patch, path: patch.setattr(
        budgets, "list_spellings", lambda *_: [{"precision": "fp32"}, {"precision": "fp32"}]
    ),
    "budget.py": lambda patch, path: changed(budgets, path, patch),
    "moments.py": lambda patch, path: changed(adam_state, path, patch),
    "cuDNN": lambda patch, path: patch.setattr(torch.backends.cudnn, "version", lambda: 99999),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_budget_is_made_anew_when_what_makes_it_changes(change, cache, tmp_path, monkeypatch):
    ref, made = reference.get_reference(SMALLEST, "cpu", cache), counted(monkeypatch)

    def budget(kinds=()):
        return budgets.get_spread(dataclasses.replace(ref, kinds=list(kinds)), "fp32", "cpu")

    first = budget()
    made.clear()
    assert budget() == first and not made
    CHANGES[change](monkeypatch, tmp_path)
    again = budget()
    assert len(made) == 1 and again["made_of"] != first["made_of"]
    if change == "spellings":
        assert len(again["spellings"]) == 2 < len(first["spellings"])
    assert budget() == again and len(made) == 1
    other = budget(KINDS)
    assert len(made) == 2 and other["made_of"]["kinds"] == [*map(list, KINDS)] and budget(KINDS) == other
    assert len(made) == 2


def test_whole_steps_are_made_anew_for_other_kinds(cache, monkeypatch):
    made, inner = [], reference.compute_all
    monkeypatch.setattr(reference, "compute_all", lambda ref: made.append(ref.kinds) or inner(ref))
    for kinds in (KINDS, KINDS, [*KINDS, KIND], [*KINDS, KIND]):
        reference.get_reference(SMALLEST, "cpu", cache, kinds=kinds).get_exact(0, "cpu")
    assert made == [KINDS, [*KINDS, KIND]]


def test_the_reference_takes_no_more_room_for_adam_s_state(cache):
    ref = reference.get_reference(SMALLEST, "cpu", cache)
    assert not {*adam_state.QUANTITIES} & {
        what for phases in ref.outcomes for found in phases.values() for what in found
    }
    whole = dataclasses.replace(ref, kinds=KINDS).get_exact(0, "cpu")
    assert not {*adam_state.QUANTITIES} & {what for found in whole.values() for what in found}


def test_an_update_may_stray_as_far_as_the_gradients_it_is_made_of():
    """Seen on a GPU: two phases update one noise strength, and their errors cancelled in every plain spelling.

    A rung whose gradients were within budget was refused for an update that is 1.06 times its own.
    """
    kind, tensor = ("G_main", "G_pl", "D_main"), "blocks.5.conv1.noise_strength"
    main, path, other = (reference.label_phase(phase, kind) for phase in kind)
    errors = {
        f"{main}/gradient/{tensor}": 0.0393,
        f"{path}/gradient/{tensor}": 0.02,
        f"{other}/gradient/{tensor}": 0.2,
        f"{main}/update/{tensor}": 0.0084,
        f"{main}/update/*noise_strength": 0.0056,
        f"{main}/update/*all": 0.02,
        "G_pl/gradient/const": 0.3,  # plain PyTorch does not resolve it
        "G_pl/exp_avg_sq/const": 0.01,
    }
    budget = budgets.derive_budgets(errors, "bf16")
    key = f"{main}/update/{tensor}"
    assert budget[key] == budget[f"{main}/gradient/{tensor}"] == 2.5 * 0.0393
    for pool in ("*noise_strength", "*all"):
        assert budget[f"{main}/update/{pool}"] == 2.5 * errors[f"{main}/update/{pool}"]
    assert budget["G_pl/exp_avg_sq/const"] == 2.5 * 0.01
    usual = dict.fromkeys(errors, 0.0)
    assert parity.judge_runs([usual | {key: 0.0223}] * 2, budget, errors) == []
    (missing,) = parity.judge_runs([usual | {key: 1.0}] * 2, budget, errors)
    assert missing.startswith(f"{main} update of {tensor}: error 1,")
    pools = parity.judge_runs(
        [usual | {f"{main}/update/*noise_strength": 1.0, f"{main}/update/*all": 1.0}] * 2, budget, errors
    )
    words = [line.partition(":")[0].removeprefix(f"{main} update of ") for line in pools]
    assert words == ["all noise_strength", "everything"]  # a result's texts have no asterisk
