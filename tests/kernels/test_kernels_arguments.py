"""The arguments that no op takes, fused or plain: lists or other dtypes for tensors, text or NaN for numbers."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TAPS = (1.0, 3.0, 3.0, 1.0)


def t(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def calls(n: int = 2, size: int = 8) -> dict[str, dict]:
    """Return a call of each op that is right, with all of its arguments that may be wrong."""
    x, noise = t(n, 3, size, size), {"noise": t(n, 1, size, size), "strength": t()}
    smaller = {"noise": t(n, 1, size - 1, size - 1), "strength": t()}
    act, filtered = {"slope": 0.2, "gain": 1.4}, {"padding": 1, "filter_gain": 1.0}
    groups = {"energies": [t(4, 3)], "styles": [t(n, 3)], "eps": 1e-8}
    spectral = {"weights": [t(4, 3)], "us": [t(4)], "vs": [t(3)]}
    taps = {"x": x, "taps": TAPS, "up": 1, "down": 1, "padding": 1, "gain": 1.0, "flip": False}
    return {
        "act_filter": {"x": x, "bias": t(3), "taps": TAPS, **filtered, **act},
        "bias_act": {"x": x, "bias": t(3), **noise, "scale": t(n, 3), "act": "lrelu", **act, "clamp": 1.0},
        "bias_act_modulate": {"x": x, "bias": t(3), "style": t(n, 3), **noise, "scale": t(n, 3), **act},
        "bias_act_residual": {"x": x, "bias": t(3), "residual": x, "act": "lrelu", **act},
        "bias_act_skip": {"x": x, "bias": t(3), "low": x, "weight": t(3, 3, 1, 1), "act": "lrelu", **act},
        "conv2d": {"x": x, "weight": t(4, 3, 3, 3), "stride": 1, "padding": 1, "groups": 1},
        "conv_transpose2d": {"x": x, "weight": t(3, 4, 3, 3), "stride": 2, "output_padding": 1, "groups": 1},
        "demodulate": {"weight": t(4, 3, 3, 3), "style": t(n, 3), "eps": 1e-8},
        "demodulate_group": groups,
        "demodulate_group_fork": groups,
        "dense": {"x": t(n, 5), "weight": t(4, 5), "bias": t(4), "weight_gain": 1.0, "act": True, **act},
        "dense_group": {"x": t(n, 3, 5), "weights": [t(4, 5)], "biases": [t(4)], "slots": [2], "bias_gain": 1.0},
        "filter_act": {"x": x, "taps": TAPS, "bias": t(3), **smaller, "scale": t(n, 3), **filtered, **act},
        "filter_act_modulate": {"x": x, "taps": TAPS, "style": t(n, 3), **smaller, **filtered, **act},
        "fork_upfirdn2d": taps,
        "from_rgb": {"image": x, "weight": t(4, 3), "bias": t(4), "gain": 1.0, "act_gain": 1.4},
        "instance_norm_act": {"x": x, "scale": t(n, 3), "bias": t(n, 3), **noise, "eps": 1e-5, **act},
        "minibatch_std": {"x": x, "group": 2, "parts": 1, "multiple": 1},
        "modulate": {"x": x, "style": t(n, 3)},
        "power_iteration": spectral,
        "scale_act": {"x": x, "scale": t(n, 3), **act},
        "spectral_norm": {**spectral, "gains": [1.0], "dtype": torch.float32},
        "to_rgb": {"x": x, "weight": t(3, 3), "style": t(n, 3), "bias": t(3), "gain": 1.0, "image": x},
        "upfirdn2d": taps,
        "weight_energies": {"weights": [t(4, 3, 3, 3)]},
    }  # fmt: skip


def wrong(value: object) -> list[object]:
    """Return what may not stand in a value's place."""
    if isinstance(value, torch.Tensor):
        types = (torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
        return [
            value.tolist(),
            "text",
            1.5,
            *map(value.to, types),
            value.to("meta"),
            value[None].expand(3, 2, *value.shape),
        ]
    if isinstance(value, bool):
        return ["no", None, 2, float("nan"), torch.ones(2)]
    if isinstance(value, int):
        return [None, "1", 1.5, True, float("nan"), torch.tensor(1), (1, "1"), [1, 2, 3], 10**30]
    if isinstance(value, float):
        return ["1", True, float("nan"), 1j, [1.0], torch.tensor(1.0)]
    if isinstance(value, str):
        return [None, "gelu", 3, ["lrelu"]]
    if isinstance(value, torch.dtype):
        return ["float32", torch.int32, float, torch.complex64]
    assert isinstance(value, list | tuple)
    within = [[each, *value[1:]] for each in wrong(value[0])]
    return [1.5, "1331", {0: value[0]}, *within]


@pytest.mark.parametrize("op", calls())
def test_what_no_op_takes_is_refused_in_one_line(op):
    right = calls()[op]
    for function in (getattr(kernels, op), getattr(kernels, f"{op}_reference")):
        function(**right)
        for name, value in right.items():
            for other in wrong(value):
                with pytest.raises(ValueError) as refusal:
                    function(**right | {name: other})
                said = str(refusal.value)
                assert "\n" not in said and len(said) < 240, said


@pytest.mark.parametrize(
    ("op", "given", "said"),
    [
        (
            "upfirdn2d",
            {"taps": torch.ones(4)},
            "taps must be a list of 1 to 8 numbers, all finite, got a tensor [4]: take taps.tolist()",
        ),
        ("upfirdn2d", {"taps": "1331"}, "taps must be a list of 1 to 8 numbers, all finite, got '1331'"),
        ("upfirdn2d", {"padding": 1.5}, "padding must be 1, 2 or 4 integers, got 1.5"),
        ("upfirdn2d", {"up": True}, "up and down must be 1 or 2, got up True, down 1"),
        ("bias_act", {"clamp": -1}, "clamp must be a finite number from 0 on, got -1"),
        ("bias_act", {"x": None}, "x must be a float tensor, got None"),
        ("instance_norm_act", {"eps": -1e-5}, "eps must be a finite number from 0 on, got -1e-05"),
        ("dense", {"act": "linear"}, "act must be True or False, got 'linear'"),
        ("filter_act_modulate", {"style": None}, "style must be a float tensor, got None"),
        ("to_rgb", {"dtype": torch.int8}, "dtype must be a float dtype of torch or None, got torch.int8"),
        (
            "conv2d",
            {"weight": t(0, 3, 3, 3)},
            "conv2d: the weight is empty: x [2, 3, 8, 8] and weight [0, 3, 3, 3]",
        ),
        (
            "from_rgb",
            {"image": t(2, 3, 8, 0)},
            "image must be a float tensor [N, 1 to 4, H, W] with pixels, got torch.float32 (2, 3, 8, 0)",
        ),
        ("conv2d", {"weight": t(4).to("meta")}, f"weight is on meta, x on {t().device}: move one of them"),
        (
            "conv2d",
            {"x": t(4).to("meta")},
            "x is on the meta device, which holds no values: use a GPU or the CPU",
        ),
    ],
)
def test_a_refusal_says_what_would_be_right(op, given, said):
    for function in (getattr(kernels, op), getattr(kernels, f"{op}_reference")):
        with pytest.raises(ValueError) as refusal:
            function(**calls()[op] | given)
        assert str(refusal.value) == said


def test_numbers_may_be_numpys_and_a_bound_infinite():
    x = torch.randn(2, 3, 8, 8, device=DEVICE)
    filtered = kernels.upfirdn2d(x, np.array(TAPS), gain=np.float32(0.5))
    torch.testing.assert_close(filtered, kernels.upfirdn2d(x, TAPS, gain=0.5))
    torch.testing.assert_close(kernels.bias_act(x, clamp=float("inf")), kernels.bias_act(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_checks_can_be_traced(dynamic):
    """A number that changes becomes a symbol, which the checks must take."""
    torch._dynamo.reset()

    def run(x, gain, clamp, padding):
        y = kernels.bias_act(
            kernels.conv2d(x, x[:, :, :3, :3].contiguous(), padding=padding), gain=gain, clamp=clamp
        )
        return kernels.upfirdn2d(y, TAPS, padding=padding, gain=gain)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    x = torch.randn(3, 3, 8, 8, device=DEVICE)
    for numbers in ((1.0, 2.0, 1), (1.5, 0.5, 2), (2.5, None, 1)):
        torch.testing.assert_close(compiled(x, *numbers), run(x, *numbers))


FEW = ("bias_act", "from_rgb", "modulate", "power_iteration", "to_rgb")


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[] if op in FEW else [pytest.mark.exhaustive]) for op in calls()]
)
def test_batch_and_resolution_may_change_under_the_compiler(op):
    """The compiler knows the sizes of parameters, and has symbols for those of data."""
    for function in (getattr(kernels, op), getattr(kernels, f"{op}_reference")):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for n, size in ((2, 8), (4, 12)):
            got, want = (results(f, learning(op, n, size)) for f in (compiled, function))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def learning(op: str, n: int, size: int) -> dict:
    """Return a call with a gradient of all that may have one. Tensors of one size for any data are parameters."""
    torch.manual_seed(0)
    other, found = calls(5, 16)[op], {}
    for name, value in calls(n, size)[op].items():
        alike = shapes(value) == shapes(other[name])
        tensors = [torch.rand_like(v) if isinstance(v, torch.Tensor) else v for v in items(value)]
        if name not in ("noise", "us", "vs") and shapes(value):
            tensors = [torch.nn.Parameter(v) if alike else v.requires_grad_() for v in tensors]
        elif alike and shapes(value):
            tensors = [torch.nn.Parameter(v, requires_grad=False) for v in tensors]
        found[name] = tensors if isinstance(value, list) else tensors[0] if shapes(value) else value
    return found


def items(value: object) -> list:
    return value if isinstance(value, list) else [value]


def shapes(value: object) -> list[tuple[int, ...]]:
    return [tuple(v.shape) for v in items(value) if isinstance(v, torch.Tensor)]


def tensors_in(value: object) -> int:
    return len(shapes(value))


def results(function, call: dict) -> list[torch.Tensor]:
    """Return what a call returns or writes, and its gradients."""
    given = [v for value in call.values() for v in items(value) if isinstance(v, torch.Tensor)]
    found = function(**call)
    made = list(found) if isinstance(found, list | tuple) else [found] if found is not None else []
    made = [y for each in made for y in (each if isinstance(each, list | tuple) else [each])]
    inputs = [v for v in given if v.requires_grad]
    loss = sum(y.square().sum() for y in made)
    grads = torch.autograd.grad(loss, inputs) if made else []
    return [*(v.detach() for v in (*made, *given)), *grads]


@pytest.mark.parametrize(
    "op", [op for op, call in calls().items() if sum(map(tensors_in, call.values())) > 1]
)
def test_every_tensor_is_on_the_device_of_the_first(op):
    """A scalar on the CPU beside tensors on a GPU is refused, too. Tensors without values need no GPU."""
    right = calls()[op]
    with FakeTensorMode():
        on_gpu, on_cpu = ({k: placed(v, device) for k, v in right.items()} for device in ("cuda", "cpu"))
        for name in filter(lambda name: tensors_in(right[name]), right):
            for function in (getattr(kernels, op), getattr(kernels, f"{op}_reference")):
                with pytest.raises(
                    ValueError, match=r" is on (cpu|cuda:0), .* on (cpu|cuda:0): move one of them$"
                ):
                    function(**on_gpu | {name: on_cpu[name]})


def placed(value: object, device: str) -> object:
    """Return tensors of these shapes on a device, and anything else as it is."""
    if isinstance(value, list):
        return [placed(v, device) for v in value]
    return torch.empty(value.shape, device=device) if isinstance(value, torch.Tensor) else value
