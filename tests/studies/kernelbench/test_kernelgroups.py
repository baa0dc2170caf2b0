"""Entries of groups of layers, of what else is public, and of CUDA C++: right in every direction, in real shapes."""

import inspect
import shutil
from types import SimpleNamespace

import msgspec
import pytest
import torch

import kernels
import kernels.cuda
from ladder.base.errors import Missing
from ladder.studies.kernelbench import record, study
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.kernelbench.cases.groups import GROUPS, LAYERS, PAIRS
from ladder.studies.kernelbench.cases.registry import Case
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from tests.support import cuda_on_cpu, made_up_kernels
from tests.support.kernel_checks import assert_agrees
from tests.support.small import SMALL

torch.set_num_threads(1)


def small(op):
    """A case of the op that the interpreter runs in a moment."""
    sizes = {"N": 2, "C": 3, "H": 5, "W": 6, "O": 3, "I": 5, "K": 45}
    entry = GROUPS[op]
    letters = {letter for shape in entry.inputs.values() for letter in shape}
    return Case(op, tuple((k, n) for k, n in sizes.items() if k in letters), "fp32", entry.settings[-1][1])


@pytest.mark.parametrize("op", GROUPS)
def test_the_op_agrees_with_plain_pytorch_in_every_direction(op, monkeypatch):
    if GROUPS[op].needs:  # Triton runs in its place: what is seen is that it is called as it wants to be
        monkeypatch.setattr(kernelcases, "build_cuda", lambda: None)
    case = small(op)
    assert_agrees(case, case.directions)


@pytest.mark.parametrize("op", GROUPS)
def test_a_name_says_all_of_the_sizes(op):
    case, found = small(op), kernelcases.named(small(op).name)
    assert (found.op, dict(found.sizes), found.layout) == (op, dict(case.sizes), case.layout)


@pytest.mark.parametrize("op", PAIRS)
def test_one_of_a_pair_is_timed_at_the_highest_resolution_against_plain_pytorch(op, monkeypatch):
    (case,) = kernelcases.cases({"small": Workload.from_dict(SMALL)}, ops=[op], quick=True)
    assert case.directions == ("forward",) and case.shape[-1] == SMALL["resolution"]
    if shutil.which("g++") is None or torch.cuda.is_available():
        pytest.skip("needs g++, and a machine without a GPU")
    monkeypatch.setattr(kernelcases, "build_cuda", lambda: None)
    with cuda_on_cpu.emulated(monkeypatch):
        assert_agrees(case, case.directions)


def test_cuda_c_that_is_not_there_is_no_triton(monkeypatch):
    case = small("cuda instance_norm_act")
    if kernels.cuda.available():
        with pytest.raises(Missing):
            case.fused()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AttributeError, match="no cuda"):  # a commit from before: n/a
        case.fused()


@pytest.mark.parametrize(
    ("op", "forward", "backward"),
    [
        ("demodulate_group", 4 * (15 + 10) + 4 * 6, 2 * 4 * (15 + 10) + 2 * 4 * 6),
        ("demodulate_group_fork", 4 * (15 + 10) + 4 * 6, 2 * 4 * (15 + 10) + 2 * 4 * 6 + 4 * 10),
        ("weight_energies", 4 * (135 + 15), 4 * (2 * 135 + 15)),
        ("dense_group", 2 * 20 + 4 * 15 + 4 * 6, 2 * (2 * 20 + 4 * 15) + 4 * 6),
        ("power_iteration", 4 * (135 + 2 * 3 + 2 * 45), None),
        ("conv_transpose2d", 180 + 81 + 2 * 3 * 11 * 13, 2 * (180 + 81) + 2 * 3 * 11 * 13),
        ("bias_act_skip", 2 * 180 + 300 + 15, 3 * 180 + 2 * (300 + 15)),
        ("cuda instance_norm_act", 2 * 180 + 60, 3 * 180 + 60),
    ],
)
def test_bytes_are_those_of_what_is_read_and_written(op, forward, backward):
    case = small(op)
    tensors = case.tensors("cpu")
    assert case.bytes(tensors, "forward") == 4 * forward
    assert backward is None or case.bytes(tensors, "backward") == 4 * backward


def test_sizes_are_those_of_layers_that_the_networks_give_to_a_group(monkeypatch):
    """A network's groups hold layers of several sizes; each of a case's is one of them."""
    seen = {
        name: [] for name in ("demodulate_group_fork", "weight_energies", "dense_group", "conv_transpose2d")
    }

    def record(function):
        reference = getattr(kernels, f"{function}_reference")
        signature = inspect.signature(reference)

        def recording(*args, **kwargs):
            given = signature.bind(*args, **kwargs).arguments
            seen[function] += [
                tuple(t.shape)
                for v in given.values()
                for t in (v if isinstance(v, list) else [v])
                if torch.is_tensor(t)
            ]
            return reference(*args, **kwargs)

        return recording

    for function in seen:
        monkeypatch.setattr(kernels, function, record(function))
    for function in ("conv2d", "dense", "upfirdn2d"):
        monkeypatch.setattr(kernels, function, getattr(kernels, f"{function}_reference"))
    workload = Workload.from_dict(SMALL)
    recipe = Recipe(conv="double_backward", demodulation="grouped", dense="triton", resample="triton")
    G = Generator(workload, recipe)
    noise = [torch.randn(shape) for shape in G.noise_shapes(workload.batch)]
    with torch.no_grad():
        G(torch.randn(workload.batch, G.num_ws, workload.w_dim), noise)
    D = Discriminator(workload, recipe)
    for case in kernelcases.cases({"small": workload}, ops=list(GROUPS), smallest=4):
        function = case.entry.function
        for name in case.entry.inputs:
            shape = case.shape_of(name)
            if function == "dense_group" and name == "x":
                assert any(s[::2] == shape[::2] and len(s) == 3 for s in seen[function]), (
                    case.name,
                    seen[function],
                )
            elif function == "power_iteration":
                assert name[0] != "w" or shape in {tuple(p.shape) for p in D.parameters()}, case.name
            elif function in seen:
                assert shape in seen[function], (case.name, name, seen[function])
    assert LAYERS > 1


def test_skips_are_those_of_the_discriminator(monkeypatch):
    seen, reference = [], kernels.bias_act_skip_reference
    record = lambda x, bias, *skip, **how: seen.append((x, bias, *skip)) or reference(x, bias, *skip, **how)  # noqa: E731
    monkeypatch.setattr(kernels, "bias_act_skip", record)
    for function in ("act_filter", "fork_upfirdn2d", "bias_act"):
        monkeypatch.setattr(kernels, function, getattr(kernels, f"{function}_reference"))
    workload = Workload.from_dict(SMALL)
    on = dict.fromkeys(("channels_last", "fused_act", "fused_residual", "fused_filter"), True)
    D = Discriminator(workload, Recipe(conv="double_backward", resample="triton", **on))
    image = torch.randn(workload.batch, 3, workload.resolution, workload.resolution)
    with torch.no_grad():
        D(image.contiguous(memory_format=torch.channels_last))
    shapes = [tuple(tuple(t.shape) for t in each) for each in seen]
    cases = kernelcases.cases({"small": workload}, ops=["bias_act_skip"], smallest=4)
    assert len(shapes) == len(cases) > 1
    assert {tuple(case.shape_of(name) for name in case.entry.inputs) for case in cases} == {*shapes}


def test_cuda_c_is_left_out_where_it_cannot_be_built(monkeypatch):
    """A row without a number would end `ladder kernels` with status 1, on every machine without a compiler."""
    from ladder.base.errors import UserError
    from ladder.machine import system

    def plan(*ops):
        job = SimpleNamespace(device="cpu", options=record.Options(op=list(ops), quick=True))
        return study.make_request(job)

    ops = ("cuda instance_norm_act", "scale_act", "instance_norm_act")
    request = plan(*ops)
    assert {case.op for case in request.cases} == {"scale_act", "instance_norm_act"}
    assert request.lacking == ["needs a CUDA GPU"]
    with_reason = msgspec.structs.replace(made_up_kernels.file([]), setup={"lacking": "needs a CUDA GPU"})
    assert "without CUDA C++: needs a CUDA GPU" in study.STUDY.list_cautions(with_reason)
    with pytest.raises(UserError, match="these ops cannot run here: needs a CUDA GPU"):
        plan(*ops[:1])
    here = system.capabilities("cpu") | {"nvcc": None}
    monkeypatch.setattr(system, "capabilities", lambda device: here)
    assert {case.op for case in plan(*ops[:1]).cases} == {"cuda instance_norm_act"}
