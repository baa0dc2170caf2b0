"""The arguments that no op takes, fused or plain: lists or other dtypes for tensors, text or NaN for numbers."""

import numpy as np
import pytest
import torch

import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TAPS = (1.0, 3.0, 3.0, 1.0)


def t(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def calls() -> dict[str, dict]:
    """Return a call of each op that is right, with all of its arguments that may be wrong."""
    x, noise = t(2, 3, 8, 8), {"noise": t(2, 1, 8, 8), "strength": t()}
    smaller = {"noise": t(2, 1, 7, 7), "strength": t()}
    act, filtered = {"slope": 0.2, "gain": 1.4}, {"padding": 1, "filter_gain": 1.0}
    groups = {"energies": [t(4, 3)], "styles": [t(2, 3)], "eps": 1e-8}
    spectral = {"weights": [t(4, 3)], "us": [t(4)], "vs": [t(3)]}
    taps = {"x": x, "taps": TAPS, "up": 1, "down": 1, "padding": 1, "gain": 1.0, "flip": False}
    return {
        "act_filter": {"x": x, "bias": t(3), "taps": TAPS, **filtered, **act},
        "bias_act": {"x": x, "bias": t(3), **noise, "scale": t(2, 3), "act": "lrelu", **act, "clamp": 1.0},
        "bias_act_modulate": {"x": x, "bias": t(3), "style": t(2, 3), **noise, "scale": t(2, 3), **act},
        "bias_act_residual": {"x": x, "bias": t(3), "residual": x, "act": "lrelu", **act},
        "bias_act_skip": {"x": x, "bias": t(3), "low": x, "weight": t(3, 3, 1, 1), "act": "lrelu", **act},
        "conv2d": {"x": x, "weight": t(4, 3, 3, 3), "stride": 1, "padding": 1, "groups": 1},
        "conv_transpose2d": {"x": x, "weight": t(3, 4, 3, 3), "stride": 2, "output_padding": 1, "groups": 1},
        "demodulate": {"weight": t(4, 3, 3, 3), "style": t(2, 3), "eps": 1e-8},
        "demodulate_group": groups,
        "demodulate_group_fork": groups,
        "dense": {"x": t(2, 5), "weight": t(4, 5), "bias": t(4), "weight_gain": 1.0, "act": True, **act},
        "dense_group": {"x": t(2, 3, 5), "weights": [t(4, 5)], "biases": [t(4)], "slots": [2], "bias_gain": 1.0},
        "filter_act": {"x": x, "taps": TAPS, "bias": t(3), **smaller, "scale": t(2, 3), **filtered, **act},
        "filter_act_modulate": {"x": x, "taps": TAPS, "style": t(2, 3), **smaller, **filtered, **act},
        "fork_upfirdn2d": taps,
        "from_rgb": {"image": x, "weight": t(4, 3), "bias": t(4), "gain": 1.0, "act_gain": 1.4},
        "instance_norm_act": {"x": x, "scale": t(2, 3), "bias": t(2, 3), **noise, "eps": 1e-5, **act},
        "minibatch_std": {"x": x, "group": 2, "parts": 1, "multiple": 1},
        "modulate": {"x": x, "style": t(2, 3)},
        "power_iteration": spectral,
        "scale_act": {"x": x, "scale": t(2, 3), **act},
        "spectral_norm": {**spectral, "gains": [1.0], "dtype": torch.float32},
        "to_rgb": {"x": x, "weight": t(3, 3), "style": t(2, 3), "bias": t(3), "gain": 1.0, "image": x},
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
