"""Entries of fused pairs, few channels and whole layers: called as the networks call them, right in every direction."""

import inspect

import pytest
import torch

import kernels
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.kernelbench.cases.fused import MORE
from ladder.studies.kernelbench.cases.registry import Case
from stylegan_lite import losses
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from tests.support.kernel_checks import assert_agrees
from tests.support.small import SMALL

FUSED = {
    "channels_last": True,
    "precision": "bf16",
    "fused_norm": True,
    "fused_act": True,
    "resample": "triton",
    "fused_filter": True,
    "fused_residual": True,
    "joint_batch": True,
    "rgb": "triton",
    "dense": "triton",
    "spectral_norm": "triton",
}
JOINED = {"fused_modulation": True}  # which calls one op in place of another
# StyleGAN2's layers have noise and a bias as well. Its toRGB adds an image, and styles are in the weights already.
NEVER = ("scale_act", "to_rgb")
OF_A_GROUP = ("spectral_norm",)  # the networks pass all layers at once
EQUIVALENT = ("gain", "act_gain", "weight_gain", "filter_gain", "slope", "channels_last", "bias_gain", "taps")
torch.set_num_threads(1)


def called(workload, monkeypatch, more=None):
    """[(function, {argument: tensor's shape and dtype, or value})] of one forward pass of each network."""
    seen = []

    def record(function):
        reference = getattr(kernels, f"{function}_reference")
        signature = inspect.signature(reference)

        def recording(*args, **kwargs):
            how = signature.bind(*args, **kwargs).arguments
            how |= how.pop("options", {})  # of a function that passes them on
            if function in OF_A_GROUP:
                layers = zip(how["weights"], how["us"], how["vs"], strict=True)
                for weight, u, v in layers:
                    seen.append(
                        (function, {"weight": _said(weight), "u": _said(u), "v": _said(v)} | _rest(how))
                    )
            else:
                tensors = {k: _said(t) for k, t in how.items() if torch.is_tensor(t)}
                seen.append((function, tensors | _rest(how)))
            return reference(*args, **kwargs)

        return recording

    for function in {entry.function for entry in MORE.values()}:
        monkeypatch.setattr(kernels, function, record(function))
    for function in ("bias_act", "modulate", "demodulate", "upfirdn2d", "dense_group"):
        monkeypatch.setattr(kernels, function, getattr(kernels, f"{function}_reference"))
    recipe = Recipe.from_dict(FUSED | (more or {}))
    G, D = (
        network(workload, recipe).to(memory_format=torch.channels_last)
        for network in (Generator, Discriminator)
    )
    n, r = workload.batch, workload.resolution
    noise = [torch.randn(shape) for shape in G.noise_shapes(n)]
    image = torch.randn(n, 3, r, r).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            G.mapping(torch.randn(2 * n, workload.z_dim))
        G(torch.randn(n, G.num_ws, workload.w_dim), noise)
        D(image)
        D(losses.one_batch(image, image), parts=2)
    return seen


def _said(t):
    return tuple(t.shape), t.dtype


def _rest(how):
    return {k: v for k, v in how.items() if isinstance(v, int | torch.dtype) and k not in EQUIVALENT}


def test_shapes_and_arguments_are_those_of_the_networks(monkeypatch):
    workload = Workload.from_dict(SMALL | {"spectral_norm": True})
    seen = called(workload, monkeypatch) + called(workload, monkeypatch, JOINED)
    for case in kernelcases.cases({"small": workload}, ops=list(MORE), smallest=4):
        if case.setting or case.op in NEVER:
            continue
        own = {name: case.shape_of(name) for name in case.entry.inputs}
        how = {k: v for k, v in case.entry.options.items() if k not in EQUIVALENT}
        for function, arguments in seen:
            shapes = {k: v[0] for k, v in arguments.items() if isinstance(v, tuple)}
            rest = {k: v for k, v in arguments.items() if not isinstance(v, tuple)}
            if function == case.entry.function and shapes == own and rest.items() >= how.items():
                dtypes = {k: arguments[k][1] for k in case.entry.activations}
                assert set(dtypes.values()) <= {kernelcases.DTYPES[case.dtype]}, case.name
                break
        else:
            pytest.fail(f"no network calls {case.name}: {[a for f, a in seen if f == case.entry.function]}")


def small(op):
    """A case of the op that the interpreter runs in a moment."""
    sizes = {"N": 2, "C": 3, "H": 5, "W": 6, "R": 4, "O": 3, "I": 5, "K": 45}
    if op in ("filter_act", "filter_act_modulate"):
        sizes |= {"H": 5, "W": 5}
    if op == "fork_upfirdn2d":
        sizes |= {"H": 4, "W": 6}
    if op == "minibatch_std":
        sizes |= {"N": 8}
    entry = MORE[op]
    letters = {letter for shape in entry.inputs.values() for letter in shape}
    return Case(op, tuple((k, n) for k, n in sizes.items() if k in letters), "fp32", entry.settings[-1][1])


@pytest.mark.parametrize("op", MORE)
def test_the_op_agrees_with_plain_pytorch_in_every_direction(op):
    case = small(op)
    assert_agrees(case, case.directions)


@pytest.mark.parametrize("op", MORE)
def test_a_name_says_all_of_the_sizes(op):
    case = small(op)
    found = kernelcases.named(case.name)
    assert (found.op, dict(found.sizes), found.dtype, found.layout) == (
        op,
        dict(case.sizes),
        "fp32",
        case.layout,
    )


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
    ],
)
def test_bytes_are_those_of_what_is_read_and_written(op, forward, backward):
    case = small(op)
    tensors = case.tensors("cpu")
    assert case.bytes(tensors, "forward") == 4 * forward
    assert case.bytes(tensors, "backward") == 4 * backward
