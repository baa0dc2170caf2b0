"""The cases of `ladder kernels`: the shapes are those that the networks call the ops with, and every op is right."""

import functools
import inspect
import shutil
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
import torch

import kernels
import kernels.cuda
from ladder.core.errors import Missing, UserError
from ladder.machine import system
from ladder.studies.kernelbench import cases as kernelcases
from ladder.studies.kernelbench import record, study
from ladder.studies.kernelbench.cases import DTYPES, OPS, Case
from stylegan_lite import losses
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from tests.support import cuda_on_cpu, made_up_kernels, nvidia_clone
from tests.support.kernel_checks import assert_agrees
from tests.support.small import SMALL

torch.set_num_threads(1)
ON = dict.fromkeys(("channels_last", "fused_act", "fused_residual", "fused_filter"), True)
TOP = {
    "channels_last": True,
    "precision": "bf16",
    "fused_norm": True,
    "fused_act": True,
    "resample": "triton",
}
FUSED = TOP | ON | {"joint_batch": True, "rgb": "triton", "dense": "triton", "spectral_norm": "triton"}
GROUPED = {"conv": "double_backward", "demodulation": "grouped", "dense": "triton", "resample": "triton"}
RECIPES = (
    TOP | {"conv": "double_backward"},
    FUSED,
    FUSED | {"fused_modulation": True},
    GROUPED,
    ON | {"conv": "double_backward", "resample": "triton"},
)
# StyleGAN2's layers have noise and a bias as well, and styles are in toRGB's weights; images alone are filtered up.
NEVER = ("group_norm_act", "batch_norm_act", "weight_norm")  # of other networks
NEVER += ("scale_act", "to_rgb", "upfirdn2d up", "demodulate_group", "power_iteration")
EQUIVALENT = ("gain", "act_gain", "weight_gain", "filter_gain", "slope", "channels_last", "bias_gain", "taps")
LINEAR = ("conv2d", "upfirdn2d")  # of these a few calls are timed, and it matters how they are called
CUDA = [op for op, entry in OPS.items() if entry.needs]


@functools.cache
def list_calls(norm):
    """[(recipe, function, {argument: (shape, dtype)}, other arguments)] of forward passes of both networks."""
    calls = []

    def record(function, recipe):
        reference = getattr(kernels, f"{function}_reference")
        signature = inspect.signature(reference)

        def recording(*args, **kwargs):
            given = signature.bind(*args, **kwargs).arguments
            given |= {k: v for each in given.values() if isinstance(each, dict) for k, v in each.items()}
            lists = {f"{k}{i}": t for k, v in given.items() if isinstance(v, list) for i, t in enumerate(v)}
            tensors = {k: t for k, t in (given | lists).items() if torch.is_tensor(t)}
            rest = {k: v for k, v in given.items() if k not in tensors and not isinstance(v, list | dict)}
            shapes = {k: (tuple(t.shape), t.dtype) for k, t in tensors.items()}
            calls.append((recipe, function, shapes, rest))
            return reference(*args, **kwargs)

        return recording

    for index, settings in enumerate(RECIPES):
        recipe = Recipe.from_dict(settings)
        workload = Workload.from_dict(SMALL | {"norm": norm, "spectral_norm": index in (1, 2)})
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            for function in {entry.function for entry in OPS.values() if not entry.needs}:
                patch.setattr(kernels, function, record(function, index))
            G, D = Generator(workload, recipe), Discriminator(workload, recipe)
            n, r = workload.batch, workload.resolution
            image = torch.randn(n, 3, r, r)
            if recipe.channels_last:
                G, D = (network.to(memory_format=torch.channels_last) for network in (G, D))
                image = image.contiguous(memory_format=torch.channels_last)
            G.mapping(torch.randn(2 * n, workload.z_dim))
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
                noise = [torch.randn(shape) for shape in G.noise_shapes(n)]
                G(torch.randn(n, G.num_ws, workload.w_dim), noise)
                D(image)
                D(losses.one_batch(image, image), parts=2)
    return calls


def list_small(norm, **how):
    return kernelcases.list_cases({"small": Workload.from_dict(SMALL | {"norm": norm})}, smallest=4, **how)


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_sizes_and_arguments_are_those_of_the_networks(norm):
    calls = list_calls(norm)
    for case in list_small(norm):
        entry = case.entry
        if case.setting or entry.needs or case.op in NEVER:
            continue
        same = [(shapes, rest) for _, function, shapes, rest in calls if function == entry.function]
        own = {name: case.shape_of(name) for name in entry.inputs}
        if entry.call:  # a network's groups hold layers of several sizes; each of a case's is one of them
            every = {shape for shapes, _ in same for shape, _ in shapes.values()}
            if case.op == "dense_group":
                assert {own.pop("x")[::2]} <= {shape[::2] for shape in every if len(shape) == 3}
            assert set(own.values()) <= every, case.name
            continue
        how = {k: v for k, v in entry.options.items() if entry.function in LINEAR or k not in EQUIVALENT}
        fits = [
            shapes
            for shapes, rest in same
            if {name: shape for name, (shape, _) in shapes.items()} == own and rest.items() >= how.items()
        ]
        assert fits, f"no network calls {case.name}: {same}"
        if case.op not in ("conv_transpose2d", "bias_act_skip"):  # seen in float32 alone
            first = next(iter(entry.inputs))
            dtype = DTYPES[case.dtype] if first in entry.activations else torch.float32
            assert dtype in {shapes[first][1] for shapes in fits}, case.name


def test_no_layer_of_the_networks_is_left_out():
    """On purpose: weights of a block's first layer, and its input at the resolution below."""
    workload = Workload.from_dict(SMALL)
    sizes = {(case.entry.function, case.shape) for case in list_small("demod")}
    for recipe, function, shapes, _ in list_calls("demod"):
        first = next(iter(shapes.values()))[0]
        is_known = (function, first) in sizes or first[0] != workload.batch  # fakes and reals together
        if recipe == 0 and function in ("bias_act", "modulate") and not is_known:
            assert first[1] != workload.fmaps(first[2]) or first[1] == 3, (function, first)


def test_weights_and_skips_are_the_discriminator_s():
    D = Discriminator(Workload.from_dict(SMALL), Recipe.from_dict(GROUPED))
    shapes = {tuple(p.shape) for p in D.parameters()}
    assert {case.shape for case in list_small("demod", ops=["power_iteration"])} <= shapes
    calls = {
        tuple(shape for shape, _ in shapes.values())
        for recipe, function, shapes, _ in list_calls("demod")
        if function == "bias_act_skip" and recipe == 4
    }
    cases = list_small("demod", ops=["bias_act_skip"])
    sizes = {tuple(case.shape_of(name) for name in case.entry.inputs) for case in cases}
    assert len(sizes) > 1 and {each for each in calls if each[0][0] == SMALL["batch"]} == sizes


def make_small(op):
    """A case of the op that the interpreter runs in a moment."""
    sizes = {"N": 2, "C": 3, "H": 5, "W": 6, "R": 4, "O": 3, "I": 5, "K": 45}
    if op in ("filter_act", "filter_act_modulate"):
        sizes |= {"W": 5}
    if op.startswith(("fork_upfirdn2d", "upfirdn2d down")):
        sizes |= {"H": 4}
    if op == "minibatch_std":
        sizes |= {"N": 8}
    letters = set("".join(OPS[op].inputs.values()))
    size = tuple((k, n) for k, n in sizes.items() if k in letters)
    return Case(op, size, "fp32", OPS[op].settings[-1][1])


@pytest.mark.parametrize("op", OPS)
def test_the_op_agrees_with_plain_pytorch_in_every_direction_and_its_name_gives_all_sizes(op, monkeypatch):
    case = make_small(op)
    same = kernelcases.parse_case(case.name)
    assert (same.op, dict(same.sizes), same.dtype, same.layout) == (op, dict(case.sizes), "fp32", case.layout)
    monkeypatch.setattr(kernelcases, "build_cuda", lambda: None)
    if op not in CUDA or op == "cuda instance_norm_act":  # for which Triton stands in
        return assert_agrees(case, case.directions)
    if shutil.which("g++") is None or torch.cuda.is_available():
        pytest.skip("needs g++, and a machine without a GPU")
    with cuda_on_cpu.emulated(monkeypatch):
        assert_agrees(case, case.directions)


def test_cuda_c_that_is_not_there_is_no_triton(monkeypatch):
    case = make_small("cuda instance_norm_act")
    if kernels.cuda.available():
        with pytest.raises(Missing):
            case.fused()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AttributeError, match="no cuda"):  # a commit from before: n/a
        case.fused()


@pytest.mark.parametrize(
    ("op", "forward", "backward"),
    [
        ("scale_act", 2 * 180, 3 * 180),
        ("act_filter", 180 + 2 * 3 * 6 * 7, 180 + 2 * 2 * 3 * 6 * 7),
        ("filter_act", 150 + 96 + 32, 150 + 96 + 150 + 32),
        ("filter_act_modulate", 150 + 96 + 32, 150 + 96 + 150 + 32),
        ("bias_act_modulate", 3 * 180 + 60, 4 * 180 + 60),
        ("bias_act_residual", 3 * 180, 3 * 180),
        ("fork_upfirdn2d", 144 + 36, 2 * 144 + 36),
        ("minibatch_std", 8 * (3 + 8) * 30, 8 * (2 * 3 + 8) * 30),
        ("to_rgb", 180 + 180, 2 * 180 + 180),
        ("to_rgb image", 180 + 2 * 180, 2 * 180 + 180),
        ("dense", 2 * 5 + 15 + 6, 2 * (2 * 5 + 15) + 6),
        ("spectral_norm", 135 + 135 / 2, 2 * 135 + 135 / 2),
        ("demodulate_group", 4 * (15 + 10) + 4 * 6, 2 * 4 * (15 + 10) + 2 * 4 * 6),
        ("demodulate_group_fork", 4 * (15 + 10) + 4 * 6, 2 * 4 * (15 + 10) + 2 * 4 * 6 + 4 * 10),
        ("weight_energies", 4 * (135 + 15), 4 * (2 * 135 + 15)),
        ("dense_group", 2 * 20 + 4 * 15 + 4 * 6, 2 * (2 * 20 + 4 * 15) + 4 * 6),
        ("power_iteration", 4 * (135 + 2 * 3 + 2 * 45), None),
        ("conv2d", 2 * 180 + 81, 3 * 180 + 2 * 81),
        ("conv_transpose2d", 180 + 81 + 2 * 3 * 11 * 13, 2 * (180 + 81) + 2 * 3 * 11 * 13),
        ("group_norm_act", 2 * 180, 3 * 180),
        ("weight_norm", 4 * 2 * 135, 4 * 3 * 135),
        ("bias_act_skip", 2 * 180 + 300 + 15, 3 * 180 + 2 * (300 + 15)),
        ("cuda instance_norm_act", 2 * 180 + 60, 3 * 180 + 60),
        ("upfirdn2d after up", 180 + 2 * 3 * 4 * 5, 180 + 2 * 3 * 4 * 5),
        ("upfirdn2d down", 2 * 3 * 4 * 6 + 2 * 3 * 2 * 3, 2 * 3 * 4 * 6 + 2 * 3 * 2 * 3),
        ("upfirdn2d up", 180 + 2 * 3 * 10 * 12, 180 + 2 * 3 * 10 * 12),
        ("cuda shared_sum", 180, None),
    ],
)
def test_bytes_are_those_of_what_is_read_and_written(op, forward, backward):
    case = make_small(op)
    tensors = case.tensors("cpu")
    assert case.bytes(tensors, "forward") == 4 * forward and case.bytes(tensors, "double backward") is None
    assert backward is None or case.bytes(tensors, "backward") == 4 * backward


def test_cases_of_the_usual_workloads_are_named_ordered_and_chosen():
    cases, quick = made_up_kernels.cases(), made_up_kernels.cases(quick=True)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names) and all(len(name) <= 96 for name in names)
    assert {
        "bias_act noise scale 8x64x256x256 bf16 channels_last",
        "modulate 32x512x32x32 bf16 channels_last",
        "instance_norm_act 8x128x128x128 fp32 NCHW",
        "demodulate 512x512x3x3 batch 32 fp32 channels_last",
    } <= {*names}
    assert {case.op for case in cases} == set(OPS)
    assert {name for case in cases for name in case.workloads} == set(study.USUAL)
    assert [c.setting for c in cases] == sorted(c.setting for c in cases)  # the ladder's top comes first
    assert {c.setting for c in quick} == {0}
    assert {c.shape[2] for c in quick if c.op == "modulate"} == {64, 256}
    assert {c.op for c in list_small("demod", ops=["bias_act"])} == {"bias_act", "bias_act noise scale"}
    pairs = [c for c in list_small("demod", quick=True) if c.op in CUDA]
    assert {c.directions for c in pairs} == {("forward",)} and {c.shape[-1] for c in pairs} == {16}


def test_memory_bound_ops_at_large_maps_come_first():
    cases = made_up_kernels.cases()
    order = kernelcases.order_cases(cases, "memory-bound")
    assert sorted(order, key=cases.index) == cases == kernelcases.order_cases(cases, "largest")
    due = [
        case
        for case in cases
        if case.entry.function in ("bias_act", "modulate", "upfirdn2d") and case.setting == 0
        if case.batch in (8, 32) and case.shape[2] in (128, 129, 256, 257)
    ]
    assert order[: len(due)] == due and len(due) > 20


def test_inputs_are_random_leaves_in_the_settings_precision_and_format():
    size = (("N", 2), ("C", 4), ("H", 8), ("W", 8))
    inputs = Case("bias_act noise scale", size, "bf16", "channels_last").tensors("cpu")
    assert inputs["x"].dtype == torch.bfloat16
    assert inputs["x"].is_contiguous(memory_format=torch.channels_last)
    assert {t.dtype for name, t in inputs.items() if name != "x"} == {torch.float32}
    assert [name for name, t in inputs.items() if t.requires_grad] == ["x", "bias", "strength", "scale"]
    for t in inputs.values():
        assert t.is_leaf and bool(t.ne(0).all()) and (t.numel() == 1 or t.std() > 0)
    # One of 16,384 normal numbers is near zero: rounding of y divided by it was 66% of all gradients of `filter_act`.
    size = (("N", 32), ("C", 512), ("H", 5), ("W", 5), ("R", 4))
    scale = Case("filter_act", size, "bf16", "channels_last").tensors("cpu")["scale"]
    assert scale.min() >= 0.5 and scale.requires_grad


@pytest.mark.parametrize("op", OPS)
def test_plain_pytorch_stays_in_the_settings_precision(op, monkeypatch):
    """float32 parameters would promote every intermediate result: an opponent made of straw."""
    case = list_small("instance" if "instance_norm_act" in op else "demod", ops=[op])[0]
    dtypes, inputs, original = set(), case.tensors("cpu"), case.reference()
    watched = lambda **t: dtypes.update(v.dtype for v in t.values()) or original(**t)  # noqa: E731
    monkeypatch.setattr(Case, "reference", lambda self: watched)
    y = case.plain()(**inputs)
    assert dtypes == {DTYPES[case.dtype]}
    torch.testing.assert_close(y, original(**inputs), rtol=0.1, atol=0.1)


@nvidia_clone.needed
@pytest.mark.parametrize(
    "op", [op for op, entry in OPS.items() if op == "bias_act" or entry.function == "upfirdn2d"]
)
def test_nvidia_s_op_computes_the_same(op):
    case = next(case for case in list_small("demod", ops=[op]) if case.op == op)
    case = replace(case, dtype="fp32")
    inputs = case.tensors("cpu")
    with nvidia_clone.imported() as clone:
        y = case.theirs(clone, "cpu")(**inputs)
    torch.testing.assert_close(y.float(), case.reference()(**inputs), rtol=0.02, atol=0.02)


def test_cuda_c_is_left_out_where_it_cannot_be_built(monkeypatch):
    """A row without a number would end `ladder kernels` with status 1, on every machine without a compiler."""

    def plan(*ops):
        job = SimpleNamespace(device="cpu", options=record.Options(op=list(ops), quick=True))
        return study.make_request(job)

    ops = ("cuda instance_norm_act", "scale_act", "instance_norm_act")
    assert {case.op for case in plan(*ops)[0]} == {"scale_act", "instance_norm_act"}
    assert plan(*ops)[2] == ["needs a CUDA GPU"]
    with_reason = msgspec.structs.replace(made_up_kernels.file([]), setup={"lacking": "needs a CUDA GPU"})
    assert "without CUDA C++: needs a CUDA GPU" in study.STUDY.list_cautions(with_reason)
    with pytest.raises(UserError, match="these ops cannot run here: needs a CUDA GPU"):
        plan(*ops[:1])
    here = system.list_capabilities("cpu") | {"nvcc": None}
    monkeypatch.setattr(system, "list_capabilities", lambda device: here)
    assert {case.op for case in plan(*ops[:1])[0]} == {"cuda instance_norm_act"}
