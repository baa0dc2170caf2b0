"""The cases of `ladder kernels`: the shapes are those that the networks call the ops with."""

import pytest
import torch

import kernels
from ladder.plan import catalog
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.kernelbench.cases.fused import MORE
from ladder.studies.kernelbench.cases.groups import GROUPS, PAIRS
from ladder.studies.kernelbench.cases.registry import OPS, Case
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from tests.support import made_up_kernels
from tests.support.kernel_checks import assert_agrees
from tests.support.small import SMALL

TOP = Recipe(
    channels_last=True,
    precision="bf16",
    fused_norm=True,
    fused_act=True,
    resample="triton",
    conv="double_backward",
)
LINEAR = ("conv2d", "upfirdn2d")  # of these a few calls are timed, and it matters how they are called


def called(workload, monkeypatch):
    """Return what both networks pass to `kernels`, forward: {(function, shapes of tensors, how): (dtype, nhwc)}."""
    seen = {}

    def record(function):
        reference = getattr(kernels, f"{function}_reference")

        def recording(*args, **kwargs):
            shapes = {k: tuple(v.shape) for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
            shapes |= {
                k: tuple(v.shape)
                for k, v in zip(("first", "second"), args, strict=False)
                if isinstance(v, torch.Tensor)
            }
            how = {k: v for k, v in kwargs.items() if k not in shapes} if function in LINEAR else {}
            how = {k: v for k, v in how.items() if (k, v) not in (("up", 1), ("down", 1))}
            how |= {"taps": args[1]} if function == "upfirdn2d" else {}
            key = function, tuple(sorted(shapes.items())), tuple(sorted(how.items()))
            nhwc = args[0].is_contiguous(memory_format=torch.channels_last)
            seen[key] = (args[0].dtype, nhwc)
            return reference(*args, **kwargs)

        return recording

    for function in {entry.function for op, entry in OPS.items() if op not in {*MORE, *GROUPS, *PAIRS}}:
        monkeypatch.setattr(kernels, function, record(function))
    G, D = Generator(workload, TOP), Discriminator(workload, TOP)
    for network in (G, D):
        network.to(memory_format=torch.channels_last)
    noise = [torch.randn(shape) for shape in G.noise_shapes(workload.batch)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        image = G(torch.randn(workload.batch, G.num_ws, workload.w_dim), noise)
        D(image.contiguous(memory_format=torch.channels_last))
    return seen


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_sizes_are_those_of_the_networks(norm, monkeypatch):
    workload = Workload.from_dict(SMALL | {"norm": norm})
    seen = called(workload, monkeypatch)
    expected = set()
    for case in kernelcases.cases({"small": workload}, smallest=4):
        if case.setting or case.op in {*MORE, *GROUPS, *PAIRS}:  # in tests of their own
            continue
        names = list(case.entry.inputs)
        positional = 3 if case.entry.function == "instance_norm_act" else 2
        shapes = {name: case.shape_of(name) for name in names[2:]}
        if positional == 3:
            shapes.pop(names[2])
        shapes |= {k: case.shape_of(v) for k, v in zip(("first", "second"), names, strict=False)}
        key = case.entry.function, tuple(sorted(shapes.items())), tuple(sorted(case.entry.options.items()))
        expected.add(key)
        if case.op == "upfirdn2d up":  # with images only, forward
            assert any(other[0] == key[0] and other[2] == key[2] for other in seen)
            continue
        assert key in seen, f"no network calls {case.name}"
        dtype, nhwc = seen[key]
        assert dtype == kernelcases.DTYPES[case.dtype] and nhwc, case.name
    # What is left out on purpose: weights of a block's first layer, and its input at the resolution below.
    left = {key for key in seen if key not in expected and key[0] not in ("demodulate", *LINEAR)}
    shapes = [dict(shapes)["first"] for _, shapes, _ in left]
    assert all(first[1] != workload.fmaps(first[2]) or first[1] == 3 for first in shapes), left


def test_a_case_says_all_of_itself_and_no_two_are_alike():
    cases = made_up_kernels.cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 96 for name in names)
    for text in (
        "bias_act noise scale 8x64x256x256 bf16 channels_last",
        "modulate 32x512x32x32 bf16 channels_last",
        "instance_norm_act 8x128x128x128 fp32 NCHW",
        "demodulate 512x512x3x3 batch 32 fp32 channels_last",
    ):
        assert text in names
    assert [c.setting for c in cases] == sorted(c.setting for c in cases)  # the ladder's top comes first


def test_bytes_of_linear_ops_are_those_of_x_y_and_the_weight():
    workload = {"small": Workload.from_dict(SMALL)}
    counted = {
        "upfirdn2d after up": 17**2 + 16**2,
        "upfirdn2d before down": 16**2 + 17**2,
        "upfirdn2d down": 16**2 + 8**2,
        "upfirdn2d up": 8**2 + 16**2,
    }
    for op, pixels in counted.items():
        case = kernelcases.cases(workload, ops=[op], smallest=16)[0]
        assert case.bytes(case.tensors("cpu"), "forward") == 2 * 4 * 8 * pixels
        assert case.fused()(**case.tensors("cpu")).shape[2] ** 2 == pixels - case.shape[2] ** 2
    case = kernelcases.cases(workload, ops=["conv2d"], smallest=16)[0]
    image, weight = 2 * 4 * 8 * 16**2, 2 * 8 * 8 * 9
    assert case.bytes(case.tensors("cpu"), "forward") == 2 * image + weight
    assert case.bytes(case.tensors("cpu"), "backward") == 3 * image + 2 * weight


@pytest.mark.parametrize("op", ["upfirdn2d after up", "upfirdn2d before down", "upfirdn2d up", "conv2d"])
def test_linear_ops_agree_with_plain_pytorch_in_every_direction(op):
    small = {"N": 2, "C": 3, "H": 5, "W": 6}
    case = Case(op, tuple(small.items()), "fp32", "NCHW")
    assert_agrees(case, kernelcases.DIRECTIONS)


def test_ops_are_chosen_by_entry_or_function():
    workload = {"small": Workload.from_dict(SMALL)}
    assert {c.op for c in kernelcases.cases(workload, ops=["bias_act"], smallest=4)} == {
        "bias_act",
        "bias_act noise scale",
    }
    assert {c.op for c in kernelcases.cases(workload, ops=["modulate"], smallest=4)} == {"modulate"}


def test_quick_takes_two_resolutions_in_the_tops_setting():
    quick = made_up_kernels.cases(quick=True)
    assert {c.setting for c in quick} == {0}
    assert {c.shape[2] for c in quick if c.op == "modulate"} == {64, 256}


def test_inputs_are_random_leaves_in_the_settings_precision_and_format():
    (case,) = [
        c for c in made_up_kernels.cases() if c.name == "bias_act noise scale 8x512x32x32 bf16 channels_last"
    ]
    small = Case(case.op, (("N", 2), ("C", 4), ("H", 8), ("W", 8)), case.dtype, case.layout)
    inputs = small.tensors("cpu")
    assert inputs["x"].dtype == torch.bfloat16 and inputs["x"].is_contiguous(
        memory_format=torch.channels_last
    )
    assert {t.dtype for name, t in inputs.items() if name != "x"} == {torch.float32}
    assert [name for name, t in inputs.items() if t.requires_grad] == ["x", "bias", "strength", "scale"]
    for t in inputs.values():
        assert t.is_leaf and bool(t.ne(0).all()) and (t.numel() == 1 or t.std() > 0)


@pytest.mark.parametrize("op", ["filter_act", "filter_act_modulate"])
def test_what_a_gradient_divides_by_is_not_near_zero(op):
    """One of 16,384 normal numbers is: rounding of y divided by it was 66% of all gradients of `filter_act`."""
    inputs = Case(op, (("N", 32), ("C", 512), ("H", 5), ("W", 5), ("R", 4)), "bf16", "channels_last").tensors(
        "cpu"
    )
    assert inputs["scale"].min() >= 0.5 and inputs["scale"].requires_grad
    assert inputs["bias"].abs().min() < 0.01  # which is normal


@pytest.mark.parametrize("op", OPS)
def test_plain_pytorch_stays_in_the_settings_precision(op):
    """float32 parameters would promote every intermediate result: an opponent made of straw."""
    workload = Workload.from_dict(SMALL | {"norm": "instance" if "instance_norm_act" in op else "demod"})
    case = kernelcases.cases({"small": workload}, ops=[op], smallest=4)[0]
    seen, inputs = [], case.tensors("cpu")
    original = case.reference()
    watched = Case(case.op, case.sizes, case.dtype, case.layout)
    object.__setattr__(
        watched, "reference", lambda: lambda **t: seen.extend(v.dtype for v in t.values()) or original(**t)
    )
    y = watched.plain()(**inputs)
    assert set(seen) == {torch.bfloat16 if case.dtype == "bf16" else torch.float32}
    torch.testing.assert_close(y, original(**inputs), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("op", OPS)
def test_every_entry_counts_its_bytes(op):
    for name in ("article", "adain-256"):
        workload = Workload.from_dict(catalog.load_workload(name)[1] | {"resolution": 32, "batch": 1})
        for case in kernelcases.cases({name: workload}, ops=[op])[:1]:
            inputs = case.tensors("cpu")
            forward, backward = (case.bytes(inputs, d) for d in ("forward", "backward"))
            assert 0 < forward <= backward and case.bytes(inputs, "double backward") is None
            same = (
                case.entry.function == "upfirdn2d" or not case.differentiated
            )  # reads no x; has no gradient
            assert (forward == backward) == same
