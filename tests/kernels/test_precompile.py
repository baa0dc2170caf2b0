"""Kernels compiled side by side before the first real run, for a GPU that is not there: launches are only counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support import precompiling
from tests.support.precompiling import counted, forget
from tests.support.programs import end_with_parent
from tests.support.small import SMALL

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the findings of each part of the other process. This process may have the interpreter on."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, precompiling.__file__]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=280, check=False, preexec_fn=end_with_parent
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


# What each part of the other process says, where it does not depend on how many kernels a run has.
PARTS = [
    ("cold", {"launched": 0, "compiled_here": 0, "problem": None, "whole": False}),
    ("after", {"compiled_here": 0}),
    ("warm", {"whole": True, "missing": 0, "compiled_here": 0}),
    ("child dies", {"problem": "a process that compiled ended early", "missing": 2, "compiled": 1, "launched": 0,
        "compiled_after": 1, "launched_after": 2}),
    ("source changed", {"problem": "the source of double has changed", "missing": 2, "compiled": 1, "launched": 0,
        "compiled_after": 1, "launched_after": 2}),
    ("does not compile", {"problem": "planted_kernel, ahead of time: CompileTimeAssertionFailure", "missing": 2,
        "compiled": 1, "raised_after": "CompileTimeAssertionFailure", "launched_after": 0}),
    # Constants of every kind are the same in the other process: types, None, tuples of tuples, kernels.
    ("raises", {"problem": "the run without launches: ValueError: planted", "whole": False, "missing": 2,
        "compiled": 2, "raised_after": "planted", "compiled_after": 0, "launched_after": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("part", "expected"), PARTS, ids=[part for part, _ in PARTS])
def test_what_is_missing_is_compiled_once_and_what_fails_is_left_to_its_first_launch(part, expected, found):
    for name, value in expected.items():
        said = found[part][name]
        assert value in said if isinstance(value, str) else said == value, (name, said)


def test_a_run_ahead_leaves_everything_in_the_cache_and_the_real_one_launches_everything(found):
    serial = found["serial"]["launched"]
    assert found["after"]["launched"] == found["warm"]["launched"] == serial > 5
    assert found["cold"]["missing"] == found["cold"]["compiled"] >= 6


def test_a_kernel_is_found_again_whatever_was_launched_before(found):
    """Triton's key of a kernel holds a constexpr that a function it calls takes from its module only if that function
    had a key before: with any such constexpr, what one process compiles another does not find."""
    assert found["keys that depend on order"] == []


def test_two_programs_with_one_empty_cache_compile_each_kernel_once(found):
    seen = found["together"]
    assert all(each["missing"] == each["compiled"] and each["problem"] is None for each in seen)
    own = sum(each["missing"] - each["elsewhere"] for each in seen)
    assert own == max(each["missing"] for each in seen) >= 2


# ---- a training step ---------------------------------------------------------------------------------------------

KERNELS = {"fused_adam": True}  # counts as one that may have kernels, and needs no interpreter
EAGER = {"fused_norm": True, "fused_act": True, "resample": "triton"}
CAPTURED = EAGER | {
    "dense": "triton",
    "channels_last": True,
    "precision": "bf16",
    "fused_residual": True,
    "fused_filter": True,
    "rgb": "triton",
    "weights": "once",
    "set_to_none": True,
    "cuda_graphs": True,
    "adam": "capturable",
    "fused_adam": True,
    "fused_update": True,
}


def step_of(recipe, device="cpu"):
    from stylegan_lite import make_step

    return make_step(SMALL, recipe, device=device, seed=0)


def losses_after(step):
    """Return the losses of one step with every phase, from known inputs."""
    import torch

    torch.manual_seed(3)
    step.step()
    return step.losses()


def test_what_a_run_without_launches_leaves_behind_is_gone(monkeypatch):
    """As if every kernel had been left out: all that a phase writes is not a number."""
    import torch

    from kernels import precompile

    plain, ahead = step_of(KERNELS), step_of(KERNELS)
    plain.prepare()
    expected = plain.losses()

    def compile_ahead(run):
        run()
        networks = [ahead.G, ahead.D, ahead.G_ema]
        written = [t for network in networks for t in network.state_dict().values()]
        states = [
            t for opt in (ahead.opt_G, ahead.opt_D) for each in opt.state.values() for t in each.values()
        ]
        for t in [*written, *states, ahead.pl_mean, *ahead.loss.values()]:
            t.fill_(torch.nan)
        return precompile.Report(missing=3, compiled=2)

    monkeypatch.setattr(precompile, "compile_ahead", compile_ahead)
    took = ahead.prepare()
    assert ahead.losses().keys() == expected.keys() and ahead.check_finite() is None
    assert (took["kernels_missing"], took["kernels_compiled"]) == (3, 2) and took["compile_kernels_s"] > 0
    assert losses_after(ahead) == losses_after(plain)


def test_a_run_in_which_nothing_was_missing_is_the_first_of_the_warm_up(monkeypatch):
    from kernels import precompile

    def compile_ahead(run):
        run()
        return precompile.Report(whole=True)

    monkeypatch.setattr(precompile, "compile_ahead", compile_ahead)
    step, ran = step_of(KERNELS), []
    monkeypatch.setattr(step, "_compute", ran.append)
    assert "compile_kernels_s" not in step.prepare()
    assert sorted(ran) == sorted(["G_main", "G_pl", "D_main", "D_r1"])


def test_kernels_are_compiled_before_torch_compile_launches_them(monkeypatch):
    """All phases, as they are without it: their kernels would be compiled one by one at their first launch."""
    from kernels import precompile
    from stylegan_lite.step import compiled

    seen = []

    def compile_ahead(run):
        run()
        seen.append("ahead")
        return precompile.Report(missing=1, compiled=1)

    monkeypatch.setattr(precompile, "compile_ahead", compile_ahead)
    monkeypatch.setattr(
        compiled.Compiled, "loss", lambda self, phase: seen.append(phase) or self.step_loss(phase)
    )
    step = step_of(KERNELS | {"compile": "default"})
    monkeypatch.setattr(compiled.Compiled, "step_loss", lambda self, phase: step._loss(phase), raising=False)
    ran, inner = [], step._compute
    monkeypatch.setattr(step, "_compute", lambda phase: (ran.append((phase, bool(seen))), inner(phase)))
    step.prepare()
    assert sorted(phase for phase, later in ran if not later) == ["D_main", "D_r1", "G_main", "G_pl"]
    assert seen[0] == "ahead" and set(seen[1:]) == {"G_main", "D_main"}


def test_a_recipe_without_kernels_does_not_look_for_them(monkeypatch):
    from kernels import precompile

    monkeypatch.setattr(precompile, "compile_ahead", None)
    step_of({"fused_adam": False}).prepare()
    with pytest.raises(TypeError):
        step_of(KERNELS).prepare()


def test_ladder_kernels_compiles_all_cases_and_passes_over_those_that_fail(monkeypatch):
    from types import SimpleNamespace

    from kernels import precompile
    from ladder.studies.kernelbench import bench as kernelbench
    from ladder.studies.kernelbench.timing import Cpu

    called = []

    def call_of(case, direction, function, device):
        return lambda: called.append((case.name, direction)) or function()

    def fails():
        raise RuntimeError("planted")

    monkeypatch.setattr(precompile, "compile_ahead", lambda run: run())
    monkeypatch.setattr(kernelbench, "call_of", call_of)
    cases = [
        SimpleNamespace(name=name, directions=("forward", "backward"), fused=lambda f=function: f)
        for name, function in (("one", fails), ("two", lambda: None))
    ]
    kernelbench.compile_ours(cases, Cpu())
    assert called == [(name, d) for name in ("one", "two") for d in ("forward", "backward")]


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [EAGER, CAPTURED], ids=["eager", "captured"])
def test_with_an_empty_cache_the_warm_up_compiles_nothing_and_the_numbers_are_the_same(
    recipe, tmp_path, monkeypatch
):
    import torch

    from kernels import precompile

    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    seen, empty = {}, {"ahead": "a", "warm": "a", "serial": "b"}
    for how, cache in empty.items():
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / cache))
        forget()
        if how == "serial":
            monkeypatch.setattr(precompile, "compile_ahead", lambda run: precompile.Report())
        step = step_of(recipe, "cuda")
        took, compiled, _ = counted(step.prepare)
        seen[how] = took, compiled, losses_after(step)
        step.close()
    (took, compiled, ahead), (again, nothing, warm), (_, all_of_them, serial) = seen.values()
    assert took["kernels_missing"] == took["kernels_compiled"] >= all_of_them > 10
    assert compiled == nothing == 0 and "kernels_missing" not in again
    assert ahead == warm == serial
