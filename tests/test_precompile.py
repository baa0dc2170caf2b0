"""Kernels compiled side by side before the first real run, for a GPU that is not there: launches are only counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.small import SMALL

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each part of the other process saw; this one may have Triton's interpreter on."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_first_run_launches_nothing_and_leaves_everything_in_the_cache(found):
    cold = found["cold"]
    assert cold["launched"] == 0 and cold["compiled_here"] == 0
    assert cold["missing"] == cold["compiled"] > 5 and cold["problem"] is None and not cold["whole"]


def test_the_real_run_after_it_compiles_nothing_and_launches_everything(found):
    assert found["after"]["compiled_here"] == 0
    assert found["after"]["launched"] == found["serial"]["launched"] > 5


def test_a_warm_cache_is_a_run_like_any_other(found):
    warm = found["warm"]
    assert warm["whole"] and warm["missing"] == 0 and warm["compiled_here"] == 0
    assert warm["launched"] == found["serial"]["launched"]


def test_a_triton_that_compiles_otherwise_is_left_alone(found):
    seen = found["another triton"]
    assert seen["problem"] == "not known how this Triton compiles" and not seen["whole"]
    assert seen["launched"] == seen["missing"] == 0


FAULTS = [
    ("child dies", "a process that compiled ended early", 1),
    ("no helper", "no process to compile in: FileNotFoundError", 0),
    ("helper raises", "ended early: RuntimeError: planted", 0),
    ("source changed", "the source of double has changed", 1),
]


@pytest.mark.parametrize("fault, words, compiled", FAULTS)
def test_what_is_missing_still_is_compiled_at_its_first_launch(found, fault, words, compiled):
    seen = found[fault]
    assert words in seen["problem"]
    assert (seen["missing"], seen["compiled"], seen["launched"]) == (2, compiled, 0)
    assert (seen["compiled_after"], seen["launched_after"]) == (2 - compiled, 2)


def test_a_kernel_that_does_not_compile_says_so_where_it_is_launched(found):
    seen = found["does not compile"]
    assert "planted_kernel, ahead of time: CompileTimeAssertionFailure" in seen["problem"]
    assert (seen["missing"], seen["compiled"]) == (2, 1)
    assert "CompileTimeAssertionFailure" in seen["raised_after"] and seen["launched_after"] == 0


def test_a_run_that_raises_is_no_error_yet(found):
    seen = found["raises"]
    assert seen["problem"] == "the run without launches: ValueError: planted" and not seen["whole"]
    assert seen["missing"] == seen["compiled"] == 2 and "planted" in seen["raised_after"]


def test_a_kernel_that_no_other_process_can_import_is_compiled_in_the_run(found):
    seen = found["local kernel"]
    assert "no other process can import local.<locals>.inner_kernel" in seen["problem"] and seen["whole"]
    assert (seen["missing"], seen["compiled_here"], seen["launched"], seen["compiled_after"]) == (0, 1, 1, 0)


def test_constants_of_every_kind_are_the_same_in_the_other_process(found):
    """Types, None, tuples of tuples, and kernels given to kernels."""
    seen = found["constants"]
    assert (seen["missing"], seen["compiled"], seen["compiled_after"], seen["launched_after"]) == (2, 2, 0, 2)
    assert seen["problem"] is None


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
    """Of one step, every phase in it, from known inputs."""
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


def test_a_recipe_without_kernels_does_not_look_for_them(monkeypatch):
    from kernels import precompile

    monkeypatch.setattr(precompile, "compile_ahead", None)
    step_of({"fused_adam": False}).prepare()
    with pytest.raises(TypeError):
        step_of(KERNELS).prepare()


def test_ladder_kernels_compiles_all_cases_and_passes_over_those_that_fail(monkeypatch):
    from types import SimpleNamespace

    from kernels import precompile
    from ladder import kernelcompiling
    from ladder.kerneltiming import Cpu

    called = []

    def call_of(case, direction, function, device):
        return lambda: called.append((case.name, direction)) or function()

    def fails():
        raise RuntimeError("planted")

    monkeypatch.setattr(precompile, "compile_ahead", lambda run: run())
    monkeypatch.setattr(kernelcompiling, "call_of", call_of)
    cases = [
        SimpleNamespace(name=name, directions=("forward", "backward"), fused=lambda f=function: f)
        for name, function in (("one", fails), ("two", lambda: None))
    ]
    kernelcompiling.compile_ours(cases, Cpu())
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


# ---- the other process -------------------------------------------------------------------------------------------


class FakeDriver:
    """An H200 without the H200: what is launched is counted."""

    launched = 0

    class utils:
        @staticmethod
        def get_device_properties(device):
            return {"max_shared_mem": 227 * 1024}

        @staticmethod
        def load_binary(name, kernel, shared, device):
            return 1, 1, 0, 0, 1024

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source, metadata):
        def launch(*_, **__):
            FakeDriver.launched += 1

        return launch


def forget():
    """As in a process that has just begun: nothing compiled is in memory."""
    from triton.runtime.jit import JITFunction

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("kernels", "good", "deadly", "edited"):
            for value in vars(module).values():
                if isinstance(value, JITFunction):
                    value.device_caches.clear()


def work(shape=(2, 16, 8, 8)):
    """A layer forward and backward, and an affine: kernels with tuples of tensors and of numbers."""
    import torch

    import kernels

    x = torch.zeros(shape, requires_grad=True)
    kernels.bias_act(x, torch.zeros(16, requires_grad=True)).sum().backward()
    kernels.upfirdn2d(x, (0.25, 0.5, 0.25), padding=1).sum().backward()
    weights = [torch.zeros(o, 16, requires_grad=True) for o in (8, 3)]
    rows = kernels.dense_group(torch.zeros(2, 1, 16), weights, [torch.zeros(len(w)) for w in weights], (0, 0))
    sum(y.sum() for y in rows).backward()


def counted(function):
    """(what it returned or the error it raised, kernels compiled in this process, launches)."""
    import triton

    compiled = []

    def listen(*, src, metadata, metadata_group, times, cache_hit):
        if not cache_hit:
            compiled.append(src.name)

    before, triton.knobs.compilation.listener = FakeDriver.launched, listen
    try:
        result = function()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        triton.knobs.compilation.listener = None
    return result, len(compiled), FakeDriver.launched - before


def ahead(run=work, **options):
    from kernels.precompile import compile_ahead

    forget()
    report, here, launched = counted(lambda: compile_ahead(run, processes=2, **options))
    assert not isinstance(report, str), report
    return vars(report) | {"compiled_here": here, "launched": launched}


def fault(cache: Path, run) -> dict:
    """The report, and what the real run after it did."""
    import triton

    triton.knobs.cache.dir = str(cache)
    seen = ahead(run)
    result, here, launched = counted(run)
    return seen | {
        "raised_after": result if isinstance(result, str) else None,
        "compiled_after": here,
        "launched_after": launched,
    }


PLANTED = """
import os
import triton
import triton.language as tl

if DEADLY and os.environ["CUDA_VISIBLE_DEVICES"] == "":
    os._exit(9)

@triton.jit
def double(x):
    return x + x

@triton.jit
def planted_kernel(x, more, BLOCK: tl.constexpr, WIDE: tl.constexpr, KINDS: tl.constexpr, F: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.static_assert(BLOCK != 64)
    tl.store(x + at, F(tl.load(x + at).to(WIDE)) + KINDS[1][0])

def local():
    @triton.jit
    def inner_kernel(x):
        tl.store(x, 1.0)
    return inner_kernel
"""


def planted(folder: Path, name: str, deadly: bool = False):
    """A module of kernels that the helper can import, or dies of importing."""
    import importlib

    (folder / f"{name}.py").write_text(PLANTED.replace("DEADLY", str(deadly)))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def launching(module, block: int = 32):
    """A run of the planted kernel and of one from `kernels`."""
    import torch
    import triton.language as tl

    import kernels

    def run():
        module.planted_kernel[(1,)](
            torch.zeros(64), None, BLOCK=block, WIDE=tl.float32, KINDS=((1, 2), (3,)), F=module.double
        )
        kernels.bias_act(torch.zeros(2, 16, 8, 8), torch.zeros(16))

    return run


def main(folder: Path) -> None:
    import triton

    from kernels import compiling

    triton.runtime.driver.set_active(FakeDriver())
    for name, module in list(sys.modules.items()):
        if name.startswith("kernels.") and hasattr(module, "check_device"):
            module.check_device = lambda x: None
    found = {}
    triton.knobs.cache.dir = str(folder / "serial")
    _, _, launched = counted(work)
    found["serial"] = {"launched": launched}
    triton.knobs.cache.dir = str(folder / "cold")
    found["cold"] = ahead()
    _, here, after = counted(work)
    found["after"] = {"compiled_here": here, "launched": after}
    found["warm"] = ahead()

    found |= faults(folder, compiling)
    print(json.dumps(found))


def faults(folder: Path, compiling) -> dict:
    """Everything that can go wrong, each with a cache of its own."""
    import torch

    sys.path.insert(0, str(folder))
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # which tells the helper from this process
    good, deadly, edited = planted(folder, "good"), planted(folder, "deadly", True), planted(folder, "edited")
    found = {"constants": fault(folder / "constants", launching(good))}
    found["does not compile"] = fault(folder / "broken", launching(good, 64))
    found["child dies"] = fault(folder / "deadly", launching(deadly))
    path = folder / "edited.py"
    path.write_text(path.read_text().replace("x + x", "x * 2"))
    found["source changed"] = fault(folder / "edited", launching(edited))
    kept, compiling.HELPER = compiling.HELPER, "raise RuntimeError('planted')"
    found["helper raises"] = fault(folder / "raises", launching(good))
    compiling.HELPER, sys.executable = kept, "/nowhere/python"
    found["no helper"] = fault(folder / "nowhere", launching(good))
    sys.executable = kept_executable

    def raises():
        launching(good)()
        raise ValueError("planted")

    found["raises"] = fault(folder / "raised", raises)
    JITFunction = sys.modules["triton"].runtime.JITFunction
    kept, JITFunction._do_compile = JITFunction._do_compile, lambda self, key: None
    found["another triton"] = ahead(raises)
    JITFunction._do_compile = kept
    local = good.local()
    found["local kernel"] = fault(folder / "local", lambda: local[(1,)](torch.zeros(64)))
    return found


kept_executable = sys.executable

if __name__ == "__main__":
    main(Path(os.environ["TRITON_CACHE_DIR"]))
