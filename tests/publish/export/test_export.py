"""`ladder export`: packages that work without this project, beside each other, and are written whole or not at all."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import kernels
from kernels import test_ops as check
from ladder.core.errors import UserError
from ladder.publish.export import package
from tests.support.commands import refused, succeed

ROOT = Path(__file__).resolve().parents[3]
ORIGIN = package.Origin(version="1.2.3", commit="0" * 40)
OPS = sorted(package.list_ops())
NAMESPACES = ("kernels", "exported_all", "outer_inner_exported_two")
# An interpreter without this project: its packages, and those that are named, cannot be imported.
ALONE = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ImportError(f"{name} is refused")
sys.meta_path.insert(0, Refusing())
sys.path.insert(0, sys.argv[1])
"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, ModuleType]]:
    """All ops under one name, and two ops within another package, imported into this process."""
    folder = tmp_path_factory.mktemp("exports")
    package.export(ORIGIN, folder / "a", package.choose_ops(["all"]), "exported_all")
    two = package.choose_ops(["bias_act", "upfirdn2d"])
    package.export(ORIGIN, folder / "outer" / "inner", two, "exported_two")
    before = [*sys.path]
    sys.path[:0] = [str(folder / "a"), str(folder)]
    yield importlib.import_module("exported_all"), importlib.import_module("outer.inner.exported_two")
    sys.path[:] = before


def run_alone(code: str, folder: Path, refuse: str, *options: str, **environment: str) -> str:
    """Run code in a fresh isolated interpreter with `folder` on its path, and return its output."""
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | environment
    run = subprocess.run(
        [sys.executable, "-I", "-B", *options, "-c", ALONE + code, str(folder), refuse],
        env=variables, cwd=folder.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def check_imports(texts: dict[str, str]) -> None:
    """Assert that files import nothing of this project and name no place of this machine."""
    for path, text in texts.items():
        assert str(ROOT) not in text and not re.search(r"(?<![\w.:])/(?:home|root|tmp|Users|mnt)/", text), (
            path
        )
        imports = re.findall(r"^\s*(?:from|import) (?:kernels|ladder|stylegan_lite)\b.*", text, re.MULTILINE)
        assert not (path.endswith(".py") and imports), path


# ---- alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", ["", ",triton"])
def test_a_package_needs_nothing_of_this_project_and_writes_nothing(tmp_path: Path, lacks: str) -> None:
    """On a CPU every op is plain PyTorch, differentiable twice, with Triton and without."""
    names = ["all"] if lacks else ["bias_act", "conv2d", "power_iteration"]
    written = package.export(ORIGIN, tmp_path / "out", package.choose_ops(names), "mine")
    code = (
        "import mine, mine.test_ops, torch\n"
        "mine.test_ops.check(mine.OPS, 'cpu')\n"
        "mine.test_ops.check_double_backward('cpu')\n"
        "x = torch.ones(2, 3, requires_grad=True)\n"
        "print(mine.__version__, mine.__commit__[:3], len(mine.SOURCE_DIGEST), len(mine.OPS),"
        " 'BiasAct' in str(mine.bias_act(x).grad_fn))"
    )
    (home := tmp_path / "home").mkdir()
    refuse = "kernels,ladder,stylegan_lite" + lacks
    output = run_alone(code, tmp_path / "out", refuse, HOME=str(home), CUDA_VISIBLE_DEVICES="")
    assert output == f"1.2.3 000 64 {len(OPS) if lacks else 3} False"
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()) == sorted(written)
    assert not any(home.iterdir())


def test_a_package_imports_nothing_of_ours_and_names_no_place() -> None:
    texts = package.render_package(ORIGIN, package.choose_ops(["all"]))
    check_imports(texts)
    for path in {*texts} - {"__init__.py"}:
        assert texts[path] == (ROOT / "kernels" / path).read_text(), path  # as it stands
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text()


# ---- right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_the_fused_path_agrees_with_plain_pytorch(exports: tuple[ModuleType, ModuleType], name: str) -> None:
    """Triton's interpreter runs the exported kernels where there is no GPU."""
    tests = importlib.import_module(f"{exports[0].__name__}.test_ops")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = torch.channels_last
    tests.compare(name, exports[0].OPS[name], device, torch.float64, layout, check.TOLERANCE[torch.float64])


def test_a_wrong_op_fails_the_check(exports: tuple[ModuleType, ModuleType]) -> None:
    tests = importlib.import_module(f"{exports[0].__name__}.test_ops")
    reference = exports[0].modulate_reference

    class Wrong(torch.autograd.Function):
        """The product, whose gradient by the style has the wrong sign."""

        @staticmethod
        def forward(ctx, x, style):
            ctx.save_for_backward(x, style)
            return reference(x, style)

        @staticmethod
        def backward(ctx, g):
            x, style = ctx.saved_tensors
            return reference(g, style), -(g * x).sum((2, 3))

    with pytest.raises(AssertionError, match="modulate, backward"):
        tests.check({"modulate": (Wrong.apply, reference)}, "cpu")
    with pytest.raises(AssertionError, match="modulate, forward"):
        tests.check({"modulate": (lambda x, style: 2 * reference(x, style), reference)}, "cpu")


def test_two_packages_and_this_project_live_in_one_process(exports: tuple[ModuleType, ModuleType]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, bias = torch.randn(2, 3, 4, 4, device=device, requires_grad=True), torch.randn(3, device=device)
    results = [module.bias_act(x, bias) for module in (kernels, *exports)]
    kinds = {type(y.grad_fn) for y in results}
    assert len(kinds) == 3 and all("BiasAct" in kind.__name__ for kind in kinds)
    for namespace in NAMESPACES:
        results.append(
            getattr(torch.ops, namespace).bias_act(x, bias, None, None, None, 0.2, 2**0.5, None, x.dtype)
        )
    for y in results[1:]:
        assert torch.equal(y, results[0])


def test_two_packages_share_one_replacement_of_pytorchs_formula(
    exports: tuple[ModuleType, ModuleType],
) -> None:
    """Whichever is undone first, the other one's use goes on."""
    operator = "aten/_convolution_double_backward/AutogradCPU"
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        uses = [module.fast_double_backward() for module in (kernels, *exports)]
        for number in order:
            assert operator in torch.library._impls
            uses[number].undo()
        assert operator not in torch.library._impls


def test_a_module_that_holds_an_op_is_pickled_and_copied(exports: tuple[ModuleType, ModuleType]) -> None:
    """`torch.save(module)`, and a module given to a process that is spawned; also of an op with two names."""
    for name, (op, _) in exports[0].OPS.items():
        assert pickle.loads(pickle.dumps(op)) is op and copy.deepcopy(op) is op, name
    assert pickle.loads(pickle.dumps(exports[1].bias_act)) is exports[1].bias_act


@pytest.mark.slow
def test_the_compiler_sees_each_packages_own_operators(exports: tuple[ModuleType, ModuleType]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in ((2, 3, 8, 8), (3,))]
    operators: list[str] = []

    def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> object:
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    for module, namespace in zip((kernels, *exports), NAMESPACES, strict=True):

        def block(x: torch.Tensor, bias: torch.Tensor, module: ModuleType = module) -> torch.Tensor:
            return module.upfirdn2d(module.bias_act(x, bias), (1.0, 3.0, 3.0, 1.0), down=2, padding=1)

        torch._dynamo.reset()
        results = [torch.compile(block, backend=backend, fullgraph=True)(*inputs), block(*inputs)]
        assert {f"{namespace}.bias_act", f"{namespace}.upfirdn2d"} <= {*operators}
        both = [[y, *torch.autograd.grad(y.square().sum(), inputs)] for y in results]
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other)


# ---- the sources -------------------------------------------------------------------------------------------------


def test_the_digest_follows_the_sources_of_the_exported_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(package, "KERNELS", tmp_path / "kernels")

    def digest(name: str) -> str:
        text = package.render_package(ORIGIN, package.choose_ops([name]))["__init__.py"]
        return re.findall(r'SOURCE_DIGEST = "(\w+)"', text)[0]

    before = [digest("bias_act"), digest("conv2d")]
    assert before == [digest("bias_act"), digest("conv2d")] and before[0] != before[1]
    with (tmp_path / "kernels/pointwise/bias_act.py").open("a") as source:
        source.write("# one more line\n")
    assert digest("bias_act") != before[0] and digest("conv2d") == before[1]


# ---- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "name", "says"),
    [
        ("conv2", "mine", "no op 'conv2'; did you mean 'conv2d'?"),
        ("conv2d,zzz", "mine", "no op 'zzz'; `ladder export --list`"),
        (",", "mine", "names no op"),
        ("conv2d", "1x", "no name that Python can import"),
        ("conv2d", "a.b", "no name that Python can import"),
        ("conv2d", "ops\u00e4", "no name that Python can import"),
        ("conv2d", "class", "no name that Python can import"),
        ("conv2d", "__init__", "no name that Python can import"),
        ("conv2d", "json", "another module"),
        ("conv2d", "yaml", "another module"),
        ("conv2d", "kernels", "another module"),
        ("conv2d", "aten", "another module"),
        ("all,zzz", "mine", "no op 'zzz'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, ops: str, name: str, says: str) -> None:
    assert says in refused("export", tmp_path / "out", "--ops", ops, "--package", name)
    assert not any(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_refused_and_an_empty_one_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--ops", "conv2d", "--package", "mine")
    (tmp_path / "file").write_text("mine")
    assert "is not empty" in refused("export", tmp_path, *options)
    assert "Not a directory" in refused("export", tmp_path / "file", *options)
    assert "needs DIR" in refused("export", tmp_path / "out", "--ops", "conv2d")
    assert "leave out everything else" in refused("export", tmp_path / "out", "--list")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "mine").mkdir()  # of the package's own name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "mine/mine: 1 op in" in succeed("export", "mine", *options).stdout
    assert (tmp_path / "mine/mine/__init__.py").is_file()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if not is_new:
        (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(UserError, match="No space left on device"):
        package.export(ORIGIN, tmp_path / "out", package.choose_ops(["conv2d"]), "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ([] if is_new else ["out"])


# ---- what it says ------------------------------------------------------------------------------------------------


def test_the_page_of_a_package_has_an_example_of_each_op_that_runs(tmp_path: Path) -> None:
    """On the fused kernels themselves, in Triton's interpreter."""
    package.export(ORIGIN, tmp_path / "out", package.choose_ops(["all"]), "mine")
    page = (tmp_path / "out" / "mine" / "README.md").read_text()
    examples = "\n".join(re.findall(r"```python\n(.+?)```", page, re.DOTALL))
    assert {*re.findall(r"ops\.(\w+)\(", examples)} == {*OPS, "fast_double_backward"}
    code = examples.replace("import kernels as ops", "import mine as ops")
    code += "import mine.dispatch; print(mine.dispatch.can_run_fused(x.cpu()))"
    output = run_alone(code, tmp_path / "out", "kernels,ladder,stylegan_lite", TRITON_INTERPRET="1")
    assert output == "True"


def test_the_page_for_adopters_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "adopt.md").read_text()
    shell, code = (re.findall(rf"```{kind}\n(.+?)```", page, re.DOTALL) for kind in ("sh", "python"))
    export, _, tested = shell[0].splitlines()
    monkeypatch.chdir(tmp_path)
    succeed(*export.split()[1:])
    assert tested == "python -m fastops.test_ops" and (tmp_path / "out/fastops/test_ops.py").is_file()
    for block in code:
        run_alone(block, tmp_path / "out", "kernels,ladder,stylegan_lite")
