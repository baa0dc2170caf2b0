"""`ladder export --like nvidia`: files that stand in for NVIDIA's ops, by the definitions of those ops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ladder.core.errors import UserError
from ladder.publish.export import drop_in
from tests.support import drop_in_cases as cases
from tests.support import nvidia_clone
from tests.support.commands import refused, succeed
from tests.support.drop_in_cases import CASES, ORIGIN, Case, called, compared, defined

EXACT = 1e-12
# The ways through the files that end in a fused kernel. Triton's interpreter takes half a second for each.
FUSED = [
    case
    for case in CASES
    if (case.op == "bias_act.bias_act" and case.arguments.get("clamp") == 0.9)
    or (case.op == "upfirdn2d.upfirdn2d" and case.arguments["f"] == (1.0, 2.0, 5.0) and case.arguments["flip_filter"])
    or (case.op == "conv2d_resample.conv2d_resample" and case.shapes[1][2] == 3 and case.arguments.get("groups") == 1)
    or case.op == "fma.fma"
]  # fmt: skip


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cases.Ops]:
    with cases.drop_ins(tmp_path_factory.mktemp("out")) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet(ops: cases.Ops) -> Iterator[None]:
    """Forget what was said. Tests of warnings look for themselves."""
    sys.modules[f"{cases.PARENT}.ops.{drop_in.PACKAGE}.prepared"]._warned.clear()
    with warnings.catch_warnings(), torch.device(cases.DEVICE):
        warnings.simplefilter("ignore")
        yield


# ---- right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plain_pytorch_computes_what_the_documents_define(ops: cases.Ops, case: Case) -> None:
    """Values, gradients and gradients of gradients, in float64."""
    errors = compared(case, called(case, ops, "ref"), defined(case))
    assert max(errors.values()) < EXACT, errors


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_the_fused_path_computes_the_same(ops: cases.Ops, case: Case) -> None:
    errors = compared(case, called(case, ops, "cuda"), defined(case))
    assert max(errors.values()) < EXACT, errors


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [case for case in CASES if case not in FUSED], ids=str)
def test_every_call_computes_the_same_where_fused_ops_can_run(ops: cases.Ops, case: Case) -> None:
    errors = compared(case, called(case, ops, "cuda"), defined(case))
    assert max(errors.values()) < EXACT, errors


@nvidia_clone.needed
def test_the_files_compute_what_nvidias_own_reference_computes(ops: cases.Ops) -> None:
    with nvidia_clone.imported():
        theirs = cases.modules("torch_utils")
        for case in CASES:
            for impl in ("ref", "cuda"):
                errors = compared(case, called(case, ops, impl), called(case, theirs, "ref"))
                assert max(errors.values()) < EXACT, (case, impl, errors)
        for name in cases.drop_in.REPLACED:  # what others read of a module
            public = {each for each in vars(getattr(theirs, name)) if not each.startswith("_")}
            lacks = (
                public
                - vars(getattr(ops, name)).keys()
                - {"custom_ops", "misc", "np", "os", "dnnlib", "traceback"}
            )
            assert lacks <= {
                "parse_version",
                "warnings",
                "contextlib",
                "conv2d_gradfix",
                "torch",
                "upfirdn2d",
            }, lacks
        for name, theirs_spec in theirs.bias_act.activation_funcs.items():
            ours_spec = ops.bias_act.activation_funcs[name]
            for key in ("def_alpha", "def_gain", "cuda_idx", "ref", "has_2nd_grad"):
                assert getattr(theirs_spec, key) == getattr(ours_spec, key) == ours_spec[key], (name, key)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"f": [1, 3, 3, 1]}, [[1, 3, 3, 1], [3, 9, 9, 3], [3, 9, 9, 3], [1, 3, 3, 1]]),
        ({"f": [1, 3], "normalize": False, "flip_filter": True}, [[9, 3], [3, 1]]),
        ({"f": [1, 3], "separable": True, "gain": 4}, [1, 3]),
        ({"f": [[1, 2], [3, 4]], "gain": 2.5}, [[1, 2], [3, 4]]),
        ({"f": [1] * 8}, [1] * 8),
        ({"f": None}, [[1]]),
        ({"f": 5, "normalize": False}, [[25]]),
    ],
)
def test_a_filter_is_set_up_as_documented(ops: cases.Ops, given: dict, wanted: list) -> None:
    made, shape = ops.upfirdn2d.setup_filter(**given), torch.tensor(wanted, dtype=torch.float32)
    if given.get("normalize", True):
        shape = shape / shape.sum()
    torch.testing.assert_close(made, (shape * given.get("gain", 1) ** (shape.dim() / 2)).cpu())
    assert made.dtype is torch.float32 and made.device.type == "cpu"


def test_fp16_keeps_its_dtype_and_memory_format_under_autocast_too(ops: cases.Ops) -> None:
    x = torch.randn(2, 4, 6, 6).half().contiguous(memory_format=torch.channels_last)
    f, weight = ops.upfirdn2d.setup_filter([1, 3, 3, 1]), torch.randn(4, 4, 3, 3).half()
    for impl in ("ref", "cuda"):
        with torch.autocast(cases.DEVICE, dtype=torch.bfloat16):
            for y in (
                ops.bias_act.bias_act(x, torch.ones(4).half(), act="lrelu", impl=impl),
                ops.upfirdn2d.upsample2d(x, f, impl=impl),
            ):
                assert y.dtype is torch.float16 and y.is_contiguous(memory_format=torch.channels_last)
    assert ops.conv2d_resample.conv2d_resample(x, weight, f, down=2, padding=1).dtype is torch.float16


# ---- convolutions ------------------------------------------------------------------------------------------------


def test_weight_gradients_are_left_out_while_the_backward_pass_runs_inside(ops: cases.Ops) -> None:
    gradfix = ops.conv2d_gradfix
    for dilation in (1, 2):
        shapes = ((1, 2, 6, 6), (3, 2, 2, 2))
        x, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
        y = gradfix.conv2d(x, weight, dilation=dilation)
        with gradfix.no_weight_gradients():
            assert gradfix.weight_gradients_disabled
            (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            y.sum().backward(retain_graph=True)
            with gradfix.no_weight_gradients(False):
                assert gradfix.weight_gradients_disabled
        assert not gradfix.weight_gradients_disabled and weight.grad is None and x.grad is not None
        first.square().sum().backward()
        plain = weight.detach().clone().requires_grad_()
        y = torch.nn.functional.conv2d(x, plain, dilation=dilation)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        first.square().sum().backward()
        torch.testing.assert_close(weight.grad, plain.grad)
    with pytest.raises(ZeroDivisionError), gradfix.no_weight_gradients():
        raise ZeroDivisionError
    assert not gradfix.weight_gradients_disabled


# ---- filters -----------------------------------------------------------------------------------------------------


def test_a_filter_is_read_once_for_each_state_and_never_inside_a_capture(
    ops: cases.Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, read = ops.upfirdn2d, []
    factorize = module._factorize
    monkeypatch.setattr(module, "_factorize", lambda values: read.append(values) or factorize(values))
    x, f = torch.randn(1, 2, 4, 4, dtype=torch.float64), module.setup_filter([1, 3, 3, 1])
    before = len(module._known)
    for _ in range(3):
        module.upfirdn2d(x, f, padding=2)
    assert len(read) == 1 and len(module._known) == before + 1
    f.mul_(2)
    doubled = module.upfirdn2d(x, f, padding=2)
    assert len(read) == 2
    torch.testing.assert_close(doubled, module.upfirdn2d(x, f, padding=2, impl="ref"))
    monkeypatch.setattr(module, "is_capturing", lambda: True)
    module.upfirdn2d(x, f, padding=2)  # known
    other = f.clone()
    with pytest.warns(UserWarning, match="a filter that is seen first inside the capture of a CUDA graph"):
        seen = module.upfirdn2d(x, other, padding=2)
    assert len(read) == 2
    torch.testing.assert_close(seen, doubled)
    monkeypatch.undo()
    del f
    assert len(module._known) == before
    with torch.inference_mode():
        f = module.setup_filter([1, 3, 3, 1])
        module.upfirdn2d(x, f)
    assert len(module._known) == before


@pytest.mark.gpu
def test_a_layer_is_captured_once_its_filter_is_known(ops: cases.Ops) -> None:
    """A graph replays what eager code computes, in FP16 and channels_last, with a filter on the GPU."""
    f = ops.upfirdn2d.setup_filter([1, 3, 3, 1], device="cuda")
    x = torch.randn(2, 8, 16, 16).half().contiguous(memory_format=torch.channels_last)
    w, b, scale = torch.randn(8, 8, 3, 3).half(), torch.randn(8).half(), torch.randn(2, 8, 1, 1).half()
    noise = torch.randn(2, 1, 32, 32).half()

    def layer() -> torch.Tensor:
        y = ops.conv2d_resample.conv2d_resample(x, w, f, up=2, padding=1, flip_weight=False)
        return ops.bias_act.bias_act(ops.fma.fma(y, scale, noise), b, act="lrelu", clamp=256)

    eager = layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    captured.zero_()
    graph.replay()
    torch.testing.assert_close(captured, eager)
    wide = ops.conv2d_resample.conv2d_resample(x.double(), w.double(), f, up=2, padding=1, flip_weight=False)
    plain = ops.bias_act.bias_act(wide * scale + noise, b.double(), act="lrelu", clamp=256, impl="ref")
    torch.testing.assert_close(eager.double(), plain, rtol=2e-2, atol=2e-2 * float(plain.std()))
    other = f.clone()
    with pytest.warns(UserWarning, match="inside the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        ops.upfirdn2d.upfirdn2d(x, other)


# ---- said --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ops, x: ops.bias_act.bias_act(x, impl="fast"), 'impl must be "ref" or "cuda"'),
        (lambda ops, x: ops.bias_act.bias_act(x, act="gelu"), "act must be one of linear, relu"),
        (lambda ops, x: ops.bias_act.bias_act(x, clamp=-1), "clamp must be None or at least 0"),
        (lambda ops, x: ops.bias_act.bias_act(x, torch.ones(3)), "does not fit dimension 1"),
        (lambda ops, x: ops.upfirdn2d.upfirdn2d(x, None, impl="x"), 'impl must be "ref" or "cuda"'),
        (lambda ops, x: ops.upfirdn2d.upfirdn2d(x, torch.ones(2).double()), "f must be a float32 tensor"),
        (lambda ops, x: ops.upfirdn2d.upfirdn2d(x, torch.ones(5)), "does not fit into 4x4"),
        (lambda ops, x: ops.upfirdn2d.upfirdn2d(x, None, up=0), "a factor is a whole number"),
        (lambda ops, x: ops.upfirdn2d.upfirdn2d(x, None, padding=(1, 2, 3)), "padding is 1, 2 or 4"),
        (lambda ops, x: ops.upfirdn2d.setup_filter([[1, 2]], separable=True), "is not separable"),
        (lambda ops, x: ops.conv2d_resample.conv2d_resample(x, x.double()), "need four dimensions and one"),
        (lambda ops, x: ops.conv2d_resample.conv2d_resample(x, x, up=1.5), "up must be a whole number"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_in_one_line(ops: cases.Ops, call: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        call(ops, torch.ones(1, 2, 4, 4))


# ---- the export --------------------------------------------------------------------------------------------------


def test_the_files_need_torch_alone_and_are_plain_pytorch_on_a_cpu(tmp_path: Path) -> None:
    """Neither NVIDIA's modules nor this project can be imported; every derivative of a layer is there."""
    drop_in.export(ORIGIN, tmp_path / "out")
    code = """
import sys, warnings
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kernels", "ladder", "stylegan_lite", "triton", "dnnlib"):
            raise ImportError(f"{name} is refused")
sys.meta_path.insert(0, Refusing())
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("error")
import torch
from torch_utils.ops import bias_act, conv2d_gradfix, conv2d_resample, fma, upfirdn2d
conv2d_gradfix.enabled = True
f = upfirdn2d.setup_filter([1, 3, 3, 1])
x, w = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(5, 3, 3, 3, requires_grad=True)
y = conv2d_resample.conv2d_resample(x, w, f, up=2, padding=1, flip_weight=False)
y = bias_act.bias_act(fma.fma(y, torch.ones(2, 5, 1, 1), torch.ones(2, 1, 8, 8)), torch.zeros(5), act="lrelu")
(g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
g.square().sum().backward()
print(y.shape[2], bool(w.grad.abs().sum() > 0), bias_act._init(), upfirdn2d._init())
"""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-I", "-B", "-c", code, str(tmp_path / "out")],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["8", "True", "False", "False"]


def test_the_files_import_nothing_of_ours_and_overwrite_only_what_they_replace() -> None:
    texts = drop_in.render_files(ORIGIN)
    assert {path for path in texts if path.count("/") == 1} == {f"ops/{name}.py" for name in drop_in.REPLACED}
    for path, text in texts.items():
        found = re.findall(r"^\s*(?:from|import) (?:kernels|ladder|stylegan_lite)\b.*", text, re.MULTILINE)
        assert not (path.endswith(".py") and found), (path, found)
        assert str(cases.ROOT) not in text, path
    page = texts[f"ops/{drop_in.PACKAGE}/README.md"]
    assert drop_in.digest_sources() in page and "ops.upfirdn2d(" in page
    assert "NVIDIA CORPORATION" not in "".join(texts.values())


def test_the_command_writes_the_files_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = re.findall(r"```sh\n(.+?)```", (cases.ROOT / "docs/adopt.md").read_text(), re.DOTALL)
    export, copy = next(block.splitlines() for block in shell if "--like" in block)
    (tmp_path / "stylegan3/torch_utils/ops").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    succeed(*export.split()[1:])
    subprocess.run(copy.split(), check=True)
    assert (tmp_path / "stylegan3/torch_utils/ops/fma.py").is_file()
    said = succeed("export", tmp_path / "out", "--like", "nvidia").stdout
    assert "5 drop-in files" in said and (tmp_path / "out/torch_utils/ops/fma.py").is_file()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["torch_utils"]
    assert "is not empty" in refused("export", tmp_path / "out", "--like", "nvidia")
    assert "needs DIR and nothing else" in refused("export", "--like", "nvidia")
    asked = ("export", tmp_path / "new", "--like", "nvidia")
    assert "needs DIR and nothing else" in refused(*asked, "--ops", "conv2d", "--package", "mine")
    assert "leave out everything else" in refused("export", "--list", "--like", "nvidia")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(UserError, match="No space left on device"):
        drop_in.export(ORIGIN, tmp_path / "new")
    assert not (tmp_path / "new").exists()
