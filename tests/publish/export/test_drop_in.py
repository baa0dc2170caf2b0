"""`ladder export --like nvidia`: files that stand in for NVIDIA's ops, by the definitions of those ops.

The facts of a call are kept for its shape: later calls compute the same bits.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ladder.publish.export import drop_in, package
from tests.publish.export.test_export import check_imports, run_alone
from tests.support import drop_in_cases as cases
from tests.support import nvidia_clone
from tests.support.commands import refused, succeed
from tests.support.drop_in_cases import CASES, ORIGIN, Case, called, compared, defined
from tests.support.repositories import commit_all, git

EXACT = 1e-12
NHWC = torch.channels_last
LAYER = (2, 40, 9, 9)  # more than a program's pixels and channels, so that sums are taken in two steps
PREPARED = ("bias_act", "planes", "rows", "fma", "upfirdn2d")


def is_short(case: Case) -> bool:
    """Return whether `make test` runs a case on fused kernels. Triton's interpreter takes half a second for each."""
    arguments = case.arguments
    return (
        case.op == "fma.fma"
        or (case.op == "bias_act.bias_act" and arguments.get("clamp") == 0.9)
        or (
            case.op == "upfirdn2d.upfirdn2d"
            and arguments["f"] == (1.0, 2.0, 5.0)
            and arguments["flip_filter"]
        )
        or (case.op.startswith("conv2d_resample") and case.shapes[1][2] == 3 and arguments.get("groups") == 1)
    )


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cases.Ops]:
    with cases.drop_ins(tmp_path_factory.mktemp("out")) as modules:
        yield modules


@pytest.fixture(autouse=True)
def quiet(ops: cases.Ops) -> Iterator[None]:
    """Forget which warnings were given. Tests of warnings look for themselves."""
    inside(".shared")._warned.clear()
    with warnings.catch_warnings(), torch.device(cases.DEVICE):
        warnings.simplefilter("ignore")
        yield


def inside(name: str = "") -> ModuleType:
    """Return the package below the drop-in files, or a module of it."""
    return sys.modules[f"{cases.PARENT}.ops.{drop_in.PACKAGE}{name}"]


# ---- right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plain_pytorch_computes_what_the_documents_define(ops: cases.Ops, case: Case) -> None:
    """Values, gradients and gradients of gradients, in float64."""
    errors = compared(case, called(case, ops, "ref"), defined(case))
    assert max(errors.values()) < EXACT, errors


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=() if is_short(each) else pytest.mark.exhaustive) for each in CASES],
    ids=str,
)
def test_the_fused_path_computes_the_same(ops: cases.Ops, case: Case) -> None:
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
        imports = {"custom_ops", "misc", "np", "os", "dnnlib", "traceback", "parse_version", "warnings"}
        imports |= {"contextlib", "conv2d_gradfix", "torch", "upfirdn2d"}
        for name in drop_in.REPLACED:  # what others read of a module
            public = {each for each in vars(getattr(theirs, name)) if not each.startswith("_")}
            assert public - vars(getattr(ops, name)).keys() <= imports
        for name, their_spec in theirs.bias_act.activation_funcs.items():
            spec = ops.bias_act.activation_funcs[name]
            for key in ("def_alpha", "def_gain", "cuda_idx", "ref", "has_2nd_grad"):
                assert getattr(their_spec, key) == getattr(spec, key) == spec[key], (name, key)


@pytest.mark.parametrize(
    ("options", "values"),
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
def test_a_filter_is_set_up_as_documented(ops: cases.Ops, options: dict, values: list) -> None:
    f, expected = ops.upfirdn2d.setup_filter(**options), torch.tensor(values, dtype=torch.float32)
    if options.get("normalize", True):
        expected = expected / expected.sum()
    expected = (expected * options.get("gain", 1) ** (expected.dim() / 2)).cpu()
    torch.testing.assert_close(f, expected)
    assert f.dtype is torch.float32 and f.device.type == "cpu"


def test_fp16_keeps_its_dtype_and_memory_format_under_autocast_too(ops: cases.Ops) -> None:
    x = torch.randn(2, 4, 6, 6).half().contiguous(memory_format=NHWC)
    f, weight = ops.upfirdn2d.setup_filter([1, 3, 3, 1]), torch.randn(4, 4, 3, 3).half()
    for impl in ("ref", "cuda"):
        with torch.autocast(cases.DEVICE, dtype=torch.bfloat16):
            y = ops.bias_act.bias_act(x, torch.ones(4).half(), act="lrelu", impl=impl)
            for each in (y, ops.upfirdn2d.upsample2d(x, f, impl=impl)):
                assert each.dtype is torch.float16 and each.is_contiguous(memory_format=NHWC)
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


# ---- sampling ----------------------------------------------------------------------------------------------------


def test_sampling_has_derivatives_by_the_image_of_any_order(ops: cases.Ops) -> None:
    module = ops.grid_sample_gradfix
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    grid = torch.rand(2, 3, 2, 2, dtype=torch.float64, requires_grad=True) * 2.4 - 1.2
    assert torch.autograd.gradcheck(module.grid_sample, (x, grid)) and not module.enabled
    module.enabled = True
    try:
        assert torch.autograd.gradcheck(module.grid_sample, (x, grid))
        fixed = grid.detach()
        assert torch.autograd.gradgradcheck(lambda x: module.grid_sample(x, fixed).pow(3), (x,))
        plain = torch.nn.functional.grid_sample(x, fixed, align_corners=False)
        torch.testing.assert_close(module.grid_sample(x, fixed), plain)
        with pytest.raises(ValueError, match=r"got \[2, 3, 4, 5\] and \[2, 3\]"):
            module.grid_sample(x, fixed[..., 0, 0])
    finally:
        module.enabled = False


# ---- filters -----------------------------------------------------------------------------------------------------


def test_a_filter_is_read_once_for_each_state_and_never_inside_a_capture(
    ops: cases.Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, read = ops.upfirdn2d, []
    factorize = module._factorize
    monkeypatch.setattr(module, "_factorize", lambda f: read.append("once") or factorize(f))
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


# ---- calls that make no sense ------------------------------------------------------------------------------------


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


# ---- prepared calls ----------------------------------------------------------------------------------------------


def image(*shape: int, dtype: torch.dtype = torch.float32, layout: Any = NHWC) -> Tensor:
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=layout).requires_grad_()


def everything(op: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Return the result, all gradients, the gradients of the first one alone, and their gradients."""
    torch.manual_seed(1)
    y = op(*inputs)
    g = torch.randn_like(y).requires_grad_()
    first = torch.autograd.grad(y, inputs, g, retain_graph=True)
    again = torch.autograd.grad(y, inputs, g, create_graph=True)
    along = [torch.randn_like(each) for each in again]
    second = torch.autograd.grad(again, (*inputs, g), along, retain_graph=True, allow_unused=True)
    alone = torch.autograd.grad(y, inputs[:1], g, create_graph=True)
    third = torch.autograd.grad(alone, (*inputs, g), along[:1], allow_unused=True)
    return [each for each in (y, *first, *again, *second, *alone, *third) if each is not None]


def prepare(
    ops: cases.Ops, name: str
) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return a call of ours, the same one of the op below it, and their inputs."""
    ours, below, bias = ops.bias_act.bias_act, inside().bias_act, torch.randn(40, requires_grad=True)
    if name == "bias_act":
        more = {"gain": 0.7, "clamp": 0.9, "act": "lrelu"}
        inputs = image(*LAYER, dtype=torch.float16), torch.randn(40).half().requires_grad_()
        return lambda x, b: ours(x, b, **more), lambda x, b: below(x, b, **more), inputs
    if name == "planes":  # a sample is one program, so that sums by channel alone have partial sums
        inputs = image(2, 3, 4, 4, layout=torch.contiguous_format), torch.randn(3, requires_grad=True)
        return lambda x, b: ours(x, b, act="relu"), lambda x, b: below(x, b, act="lrelu", slope=0), inputs
    if name == "rows":
        inputs = torch.randn(5, 40, requires_grad=True), bias
        return lambda x, b: ours(x, b, act="lrelu"), lambda x, b: below(x, b, act="lrelu"), inputs
    if name == "fma":
        noise, one = torch.randn(2, 1, 9, 9), torch.ones(())
        return (
            lambda a, b: ops.fma.fma(a, b, noise),
            lambda a, b: below(a, noise=noise, strength=one, scale=b.reshape(b.shape[:2]), act="linear"),
            (image(*LAYER), torch.randn(2, 40, 1, 1, requires_grad=True)),
        )
    f = ops.upfirdn2d.setup_filter([1, 3, 4], device=cases.DEVICE)
    taps, gain, _ = ops.upfirdn2d._factorize(f)
    return (
        lambda x: ops.upfirdn2d.upfirdn2d(x, f, down=2, padding=[2, 1, 0, 1], gain=4),
        lambda x: inside().upfirdn2d(x, taps, down=2, padding=(2, 1, 0, 1), gain=4 * gain),
        (image(1, 3, 6, 5),),
    )


@pytest.mark.parametrize("name", PREPARED)
def test_a_prepared_call_computes_the_bits_of_the_op_below_it(ops: cases.Ops, name: str) -> None:
    """At the first call, and at a later one, in the layout of its tensors."""
    ours, below, inputs = prepare(ops, name)
    expected = everything(below, *inputs)
    for _ in range(2):
        for one, other in zip(everything(ours, *inputs), expected, strict=True):
            assert one.dtype is other.dtype and one.stride() == other.stride() and torch.equal(one, other)


def test_a_convolution_computes_what_pytorch_computes(ops: cases.Ops) -> None:
    x, weight = image(2, 4, 6, 5, dtype=torch.float64), image(4, 3, 3, 2, dtype=torch.float64)
    for sizes in ({"stride": 2, "output_padding": 1}, {"stride": [2, 1], "padding": [1, 0]}):
        for _ in range(2):
            both = [
                everything(
                    lambda x, w, module=module, sizes=sizes: module.conv_transpose2d(x, w, **sizes), x, weight
                )
                for module in (ops.conv2d_gradfix, torch.nn.functional)
            ]
            for one, other in zip(*both, strict=True):
                torch.testing.assert_close(one, other)


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.masks: list[list[bool]] = []  # the gradients that a convolution was asked for

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] += "convolution" in name
        self.masks += [args[-1]] if name == "convolution_backward" else []
        return func(*args, **(kwargs or {}))


def test_only_the_wanted_gradients_are_computed(ops: cases.Ops) -> None:
    conv2d = ops.conv2d_gradfix.conv2d
    x, weight = image(1, 2, 5, 5), image(3, 2, 3, 3)
    y = conv2d(x, weight)
    for inputs, mask in (
        ((x, weight), [True, True, False]),
        ((weight,), [False, True, False]),
        ((x,), [True, False, False]),
    ):
        with _Counted() as counted:
            torch.autograd.grad(y, inputs, torch.ones_like(y), retain_graph=True)
        assert +counted.calls == {"convolution_backward": 1} and counted.masks == [mask]
    with _Counted() as counted:
        conv2d(x.detach(), weight).sum().backward()
    assert counted.masks == [[False, True, False]]
    with torch.no_grad():
        assert conv2d(x, weight).grad_fn is None


def test_networks_that_call_pytorchs_convolutions_are_served_until_undone(ops: cases.Ops) -> None:
    x, weight = image(1, 2, 9, 9), image(3, 2, 3, 3)

    def count() -> int:
        (g,) = torch.autograd.grad(torch.nn.functional.conv2d(x, weight).sum(), x, create_graph=True)
        with torch.autograd.set_multithreading_enabled(False), _Counted() as counted:
            g.square().sum().backward()
        return counted.calls["convolution"]  # one whose kernel is the image

    assert count() == 0
    try:
        ops.conv2d_gradfix.use.undo()
        assert count() > 0
    finally:
        ops.conv2d_gradfix.use = inside().fast_double_backward()


# ---- the export --------------------------------------------------------------------------------------------------

LAYER_ALONE = """
import torch
from torch_utils.ops import bias_act, conv2d_gradfix, conv2d_resample, fma, grid_sample_gradfix, upfirdn2d
conv2d_gradfix.enabled = True
f = upfirdn2d.setup_filter([1, 3, 3, 1])
x, w = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(5, 3, 3, 3, requires_grad=True)
y = conv2d_resample.conv2d_resample(x, w, f, up=2, padding=1, flip_weight=False)
y = bias_act.bias_act(fma.fma(y, torch.ones(2, 5, 1, 1), torch.ones(2, 1, 8, 8)), torch.zeros(5), act="lrelu")
(g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
g.square().sum().backward()
class InfiniteSampler(torch.utils.data.Sampler):
    def __init__(self, dataset):
        super().__init__(dataset)
InfiniteSampler([1])
optimizers = [torch.optim.Adam([w], betas=betas, eps=1e-8) for betas in ([0, 0], [0, 0.99], (0.0, 0.99))]
optimizers[0].param_groups[0]["betas"] = (0, 0.9)  # as R3GAN sets it at each step
for optimizer in optimizers:
    optimizer.step()
print(y.shape[2], bool(w.grad.abs().sum() > 0), bias_act._init(), upfirdn2d._init())
"""


def test_the_files_need_torch_alone_and_are_plain_pytorch_on_a_cpu(tmp_path: Path) -> None:
    """Neither NVIDIA's modules nor this project can be imported; every derivative of a layer is there."""
    drop_in.export(ORIGIN, tmp_path / "out")
    refuse = "kernels,ladder,stylegan_lite,triton,dnnlib"
    output = run_alone(LAYER_ALONE, tmp_path / "out", refuse, "-Werror", CUDA_VISIBLE_DEVICES="")
    assert output.split() == ["8", "True", "False", "False"]


def test_the_files_import_nothing_of_ours_and_overwrite_only_what_they_replace() -> None:
    texts = drop_in.render_files(ORIGIN)
    assert {path for path in texts if path.count("/") < 2} == {
        "__init__.py",
        *(f"ops/{name}.py" for name in drop_in.REPLACED),
    }
    check_imports(texts)
    page = texts[f"ops/{drop_in.PACKAGE}/README.md"]
    assert drop_in.digest_files(texts) in page and "ops.upfirdn2d(" in page
    assert "NVIDIA CORPORATION" not in "".join(texts.values())


@nvidia_clone.needed
def test_the_train_py_of_a_clone_starts(tmp_path: Path) -> None:
    """Of any clone with NVIDIA's layout; what it downloads or shows with has stand-ins."""
    shutil.copytree(nvidia_clone.CLONE, tmp_path / "clone", ignore=shutil.ignore_patterns(".git"))
    drop_in.export(ORIGIN, tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "clone", dirs_exist_ok=True)
    (tmp_path / "stubs").mkdir()
    for name in ("psutil", "requests", "tqdm"):
        (tmp_path / f"stubs/{name}.py").write_text("tqdm = lambda rows, *a, **k: rows\n")
    run = subprocess.run(
        [sys.executable, "train.py", "--help"], cwd=tmp_path / "clone", capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "stubs")},
    )  # fmt: skip
    assert run.returncode == 0 and "--outdir" in run.stdout, run.stderr


def read_tree(folder: Path) -> dict[str, str]:
    """Return the texts of a checkout's files."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def read_commands() -> tuple[str, str, str]:
    """Return the documents' commands: the export, the copy into a clone, and what undoes it."""
    shell = re.findall(r"```sh\n(.+?)```", (cases.ROOT / "docs/adopt.md").read_text(), re.DOTALL)
    at = next(place for place, block in enumerate(shell) if "--like" in block)
    export, copy = shell[at].strip().split("\n")
    return export, copy, shell[at + 1]


def make_clone(folder: Path) -> dict[str, str]:
    """Make a checkout with the lines of NVIDIA's that the documents change, and return its texts."""
    texts = {
        "train.py": "import torch_utils\n",
        "torch_utils/__init__.py": "",
        **{f"torch_utils/ops/{name}.py": f"# {name}\n" for name in (*drop_in.REPLACED, "custom_ops")},
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "init", "-q")
    commit_all(folder, "a clone")
    return texts


def test_the_documents_commands_write_the_files_and_undo_leaves_the_clone_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, copy, undo = read_commands()
    clone = tmp_path / "stylegan3"
    before = make_clone(clone)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert "6 drop-in ops" in succeed(*export.split()[1:]).stdout
    subprocess.run(copy.split(), check=True)
    after = read_tree(clone)
    changed = {path for path, text in before.items() if after[path] != text}
    assert changed == {"torch_utils/__init__.py", *(f"torch_utils/ops/{n}.py" for n in drop_in.REPLACED)}
    assert {path.split("/")[2] for path in after.keys() - before.keys()} == {drop_in.PACKAGE}
    subprocess.run(undo, shell=True, check=True)
    assert read_tree(clone) == before


def test_pages_agree_about_the_versions_that_are_needed() -> None:
    """The newest that any page names is that of Triton's release."""
    oldest = [".".join(map(str, each)) for each in (package.PYTORCH, package.PYTORCH_FUSED)]
    page = drop_in.render_files(ORIGIN)[f"ops/{drop_in.PACKAGE}/README.md"]
    for text in (
        page,
        (cases.ROOT / "docs/adopt.md").read_text(),
        (cases.ROOT / "kernels/README.md").read_text(),
    ):
        versions = set(re.findall(r"PyTorch (2\.\d+)", text))
        assert oldest[-1] in versions and versions <= {*oldest, "2.8"}
        assert set(re.findall(r"Triton (\d\.\d+)", text)) == {".".join(map(str, package.TRITON))}


def test_the_command_refuses_more_options(tmp_path: Path) -> None:
    (tmp_path / "work" / "a").mkdir(parents=True)
    assert "is not empty" in refused("export", tmp_path / "work", "--like", "nvidia")
    assert "needs DIR and nothing else" in refused("export", "--like", "nvidia")
    assert "needs DIR and nothing else" in refused(
        "export", tmp_path / "new", "--like", "nvidia", "--ops", "all"
    )
    assert "leave out everything else" in refused("export", "--list", "--like", "nvidia")
    assert not (tmp_path / "new").exists()
