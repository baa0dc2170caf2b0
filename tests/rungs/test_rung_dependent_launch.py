"""dependent_launch: no kernel touches memory before it has waited, the switch reaches every launch, and its receipt."""

import ast
import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kernels
from kernels.common import dependent_launch
from ladder.plan import catalog, needs
from ladder.receipts import watch
from stylegan_lite import ConfigError, Recipe
from stylegan_lite.settings import global_flags
from tests.support.rung_steps import assert_replayed_alike, gathered, receipt, small
from tests.support.small import LEAST

ROOT = Path(__file__).parents[2]
FUSED = {"fused_norm": True, "fused_act": True}


def kernels_of(path):
    """Functions of a file that are launched: Triton's, by the names that all of them have."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
            yield node


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda path: path.stem)
def test_the_first_thing_that_a_kernel_does_is_to_wait(path):
    for kernel in kernels_of(path):
        said = ast.get_docstring(kernel) is not None
        assert kernel.args.args[-1].arg == "DEPENDENT", kernel.name
        assert ast.unparse(kernel.body[said]) == "after_previous(DEPENDENT)", kernel.name


def compiled() -> dict[str, str]:
    """PTX for sm_90 of two kernels with and without the wait, in a process without Triton's interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    return json.loads(subprocess.check_output([sys.executable, __file__], env=env, text=True))


@pytest.mark.timeout(300)
def test_the_code_waits_before_it_reads_or_writes_and_has_no_wait_where_it_is_off():
    pytest.importorskip("triton")
    memory = re.compile(r"\b(ld|st|atom|red|cp\.async)[.\w]*\.global|\bld\.global|\bst\.global|cp\.async")
    for name, ptx in compiled().items():
        code = ptx[ptx.index(".visible .entry") :]
        if name.endswith("off"):
            assert "griddepcontrol" not in code and memory.search(code)
        else:
            first = memory.search(code).start()
            assert code.index(watch.WAIT) < code.index("griddepcontrol.launch_dependents") < first, name


def test_the_switch_is_on_while_the_step_computes_and_at_no_other_time():
    assert dependent_launch.launching() == {"DEPENDENT": False}
    with global_flags(Recipe.from_dict(FUSED | {"dependent_launch": True})):
        assert dependent_launch.launching() == {"DEPENDENT": True, "launch_pdl": True}
        with pytest.raises(ZeroDivisionError), global_flags(Recipe.from_dict(FUSED)):
            assert dependent_launch.launching()["DEPENDENT"]  # a recipe that does not ask leaves it as it is
            1 / 0  # noqa: B018
    assert not dependent_launch.ON


def test_where_it_cannot_be_it_is_refused_in_one_line(monkeypatch):
    with pytest.raises(ConfigError, match="dependent_launch: true needs a CUDA device"):
        small(FUSED | {"dependent_launch": True})
    with pytest.raises(ConfigError, match="dependent_launch needs kernels of ours"):
        Recipe.from_dict({"dependent_launch": True})
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 6))
    assert dependent_launch.unavailable() == "needs compute capability 9.0, this GPU has 8.6"
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (12, 0))
    assert dependent_launch.unavailable() is None


SEEN = {
    "bias_act_kernel": {"calls": 5, "dtypes": ["bf16"], "tensors": ["x"], "dependent": 5},
    "dense_kernel": {"calls": 2, "dtypes": [], "tensors": [], "dependent": 2},
    "instance_norm_act_forward": {"calls": 3, "dtypes": [], "tensors": [], "cpp": True},
}


def test_the_receipt_asks_every_launch_of_ours(refused):
    assert receipt("dependent_launch", {"kernels": SEEN}).engaged  # CUDA C++ is no launch of Triton's
    for name, change in (("dense_kernel", {"dependent": 1}), ("bias_act_kernel", {"dependent": 0})):
        seen = copy.deepcopy(SEEN)
        seen[name] |= change
        sabotage = f"launches of {name} that carry no attribute"
        refused("dependent_launch", {"kernels": seen}, "of 7", sabotage=sabotage, planted="evidence")
    assert not receipt("dependent_launch", {"kernels": {}}).engaged


@pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
def test_launches_the_plain_way_are_counted_as_such(refused):
    seen = gathered(small(FUSED, **LEAST))
    assert seen["kernels"] and not any("dependent" in each for each in seen["kernels"].values())
    refused("dependent_launch", seen, ": 0 of ", sabotage="its change not applied")


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_every_phase_computes_the_same_captured(norm):
    """A kernel that reads before the one in front has written reads what a graph's memory held before."""
    able = needs.possible(dict.fromkeys(needs.OF_MACHINE), {"norm": norm})
    climbed = catalog.climb(catalog.load_ladder("dependent_launch"), able)
    top = [rung for rung in climbed if rung.recipe is not None][-1].recipe
    size = {"resolution": 64, "channel_base": 2048, "channel_max": 64, "batch": 8, "norm": norm}
    assert_replayed_alike(size, *(top | {"dependent_launch": on} for on in (False, True)))


def test_it_stands_on_the_whole_of_full():
    ladder = catalog.load_ladder("dependent_launch")
    assert ladder.rungs[-1].name == "dependent_launch"
    top = catalog.climb(ladder, dict.fromkeys(needs.NEEDS))[-1].recipe
    assert set(catalog.contained(top)) == {rung.name for rung in ladder.rungs}  # none undoes another


if __name__ == "__main__":
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels.common.sums import sum_partials_kernel
    from kernels.pointwise.modulate import modulate_grad_kernel

    def ptx_of(kernel, types, constants):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature, values)
        return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

    each = dict.fromkeys
    tiles = each(("C", "P", "stride_p", "tiles", "programs"), "i32")
    fetched = {
        "stride_c": 1,
        "ACC": tl.float32,
        "WALK": True,
        "WHOLE": True,
        "STAGES": 3,
    }  # ahead, by cp.async
    counts = each(("C", "sample_rows", "channel_rows", "program_rows", "sample_jobs", "channel_jobs"), "i32")
    cases = {
        "modulate_grad": (
            modulate_grad_kernel,
            each(("g", "x", "dx"), "*bf16") | each(("style", "dstyle"), "*fp32") | tiles,
            fetched | {"BLOCK_P": 16, "BLOCK_C": 64},
        ),
        "sum_partials": (
            sum_partials_kernel,
            each(("by_sample", "sample_sums"), "*fp32") | counts,
            each(("by_channel", "channel_sums", "by_program", "program_sum"))
            | {"BLOCK_R": 64, "BLOCK_C": 32},
        ),
    }
    found = {
        f"{name} {'on' if on else 'off'}": ptx_of(kernel, types, constants | {"DEPENDENT": on})
        for name, (kernel, types, constants) in cases.items()
        for on in (False, True)
    }
    print(json.dumps(found))
