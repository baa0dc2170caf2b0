"""The arguments that no op takes, fused or plain: lists or other dtypes for tensors, text or NaN for numbers."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from kernels.pointwise.logistic_loss import logistic_loss

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
        "group_norm_act": {"x": x, "groups": 3, "weight": t(3), "bias": t(3), "eps": 1e-5, "silu": True, "slope": 0.2},
        "batch_norm_act": {"x": x, "weight": t(3), "bias": t(3), "running": [t(3), t(3), 0.1], "slope": 0.2},
        "weight_norm": {"vs": [t(4, 3)], "gs": [t(4, 1)], "dtype": torch.float32},
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


REFUSALS = [
    ("upfirdn2d", {"taps": torch.ones(4)},
        "taps must be a list of 1 to 8 numbers, all finite, got a tensor [4]: take taps.tolist()"),
    ("upfirdn2d", {"taps": "1331"}, "taps must be a list of 1 to 8 numbers, all finite, got '1331'"),
    ("upfirdn2d", {"padding": 1.5}, "padding must be 1, 2 or 4 integers, got 1.5"),
    ("upfirdn2d", {"up": True}, "up and down must be 1 or 2, got up True, down 1"),
    ("bias_act", {"clamp": -1}, "clamp must be a finite number from 0 on, got -1"),
    ("bias_act", {"x": None}, "x must be a float tensor, got None"),
    ("instance_norm_act", {"eps": -1e-5}, "eps must be a finite number from 0 on, got -1e-05"),
    ("dense", {"act": "linear"}, "act must be True or False, got 'linear'"),
    ("filter_act_modulate", {"style": None}, "style must be a float tensor, got None"),
    ("to_rgb", {"dtype": torch.int8}, "dtype must be a float dtype of torch or None, got torch.int8"),
    ("conv2d", {"weight": t(0, 3, 3, 3)}, "conv2d: the weight is empty: x [2, 3, 8, 8] and weight [0, 3, 3, 3]"),
    ("from_rgb", {"image": t(2, 3, 8, 0)},
        "image must be a float tensor [N, 1 to 4, H, W] with pixels, got torch.float32 (2, 3, 8, 0)"),
    ("conv2d", {"weight": t(4).to("meta")}, f"weight is on meta, x on {t().device}: move one of them"),
    ("conv2d", {"x": t(4).to("meta")}, "x is on the meta device, which holds no values: use a GPU or the CPU"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "given", "said"), REFUSALS)
def test_a_refusal_says_what_would_be_right(op, given, said):
    for function in (getattr(kernels, op), getattr(kernels, f"{op}_reference")):
        with pytest.raises(ValueError) as refusal:
            function(**calls()[op] | given)
        assert str(refusal.value) == said


NOTHING = {"noise": None, "strength": None, "scale": None}
X, W = (2, 4, 6, 6), (6, 4, 3, 3)  # of convolutions
MISFITS = [
    ("bias_act", {"x": t(2, 3, 4)}, r"\[N, C\] or \[N, C, H, W\]"),
    ("bias_act", {"bias": t(2)}, r"bias must be \[C\] = \[3\], got \(2,\)"),
    ("bias_act", {"scale": t(3, 2)}, "scale must be"),
    ("bias_act", {"strength": None}, "come together"),
    ("bias_act", {"noise": t(2, 1, 8, 5)}, "noise must be"),
    ("bias_act", {"act": "gelu"}, '"lrelu" or "linear"'),
    ("bias_act_residual", {"residual": t(2, 3, 8, 5)}, r"x's shape \(2, 3, 8, 8\), got torch.float32 \(2, 3, 8, 5\)"),
    ("bias_act_residual", {"residual": t(2, 3, 8, 8).int()}, r"\(float16, .*\), got torch.int32 \(2, 3, 8, 8\)"),
    ("bias_act_skip", {"weight": t(3, 3, 3, 3)}, "^bias_act_skip: need x"),
    ("bias_act_skip", {"low": t(2, 3, 4, 8)}, "^bias_act_skip: need x"),
    ("bias_act_skip", {"weight": t(4, 3, 1, 1)}, "^bias_act_skip: x has 3 channels, weight makes 4"),
    ("upfirdn2d", {"x": t(3, 8, 8)}, r"\[N, C, H, W\]"),
    ("upfirdn2d", {"x": t(1, 1, 8, 8).int()}, "float tensor"),
    ("upfirdn2d", {"taps": ()}, "1 to 8 numbers"),
    ("upfirdn2d", {"taps": (1.0,) * 9}, "1 to 8 numbers"),
    ("upfirdn2d", {"up": 3}, "up and down must be 1 or 2"),
    ("upfirdn2d", {"down": 0}, "up and down must be 1 or 2"),
    ("upfirdn2d", {"padding": (1, 2, 3)}, "1, 2 or 4 integers"),
    ("upfirdn2d", {"x": t(1, 1, 2, 8), "padding": 0}, "4 taps do not fit into 2x8 pixels"),
    ("upfirdn2d", {"taps": (1.0,), "padding": -4}, "do not fit"),
    ("to_rgb", {"weight": t(3, 7)}, r"weight must be \[1 to 4, C\] = \[K, 3\]"),
    ("to_rgb", {"weight": t(5, 3)}, "weight must be"),
    ("to_rgb", {"weight": t(3, 3, 3, 3)}, "weight must be"),
    ("to_rgb", {"weight": t(2, 5, 3)}, "weight must be"),
    ("to_rgb", {"weight": t(1, 3, 3), "style": None}, r"or \[2, K, 3\] with a style in it"),
    ("to_rgb", {"x": t(3, 8, 8)}, "x must be"),
    ("to_rgb", {"style": t(1, 3)}, "style must be"),
    ("to_rgb", {"bias": t(6)}, "bias must be"),
    ("to_rgb", {"image": t(2, 3, 8, 2)}, "image must be"),
    ("from_rgb", {"image": t(2, 6, 8, 8)}, "image must be"),
    ("from_rgb", {"weight": t(4, 4)}, r"weight must be \[C, K\] = \[C, 3\]"),
    ("from_rgb", {"bias": t(3)}, "bias must be"),
    *(
        (op, NOTHING | change if op == "filter_act" else change, words)
        for op in ("filter_act", "act_filter")
        for change, words in (
            ({"padding": 4}, "padding must be 0 to 3 for 4 taps"),
            ({"padding": (-1, 2, 2, 2)}, "padding must be 0 to 3"),
            ({"slope": 0.0}, "slope must be in"),
            ({"gain": -1.0}, "gain above 0"),
            ({"taps": ()}, "1 to 8 numbers"),
            ({"bias": t(2)}, r"bias must be \[3\]"),
        )
    ),
    ("filter_act", {"scale": t(2, 2)}, r"scale must be \[2, 3\]"),
    ("filter_act", {"strength": None}, "noise and strength come together"),
    ("filter_act", {"noise": t(2, 1, 4, 4)}, "noise must be"),
    ("filter_act_modulate", {"style": t(2, 2)}, r"style must be \[2, 3\]"),
    ("filter_act_modulate", {"style": t(3)}, r"style must be \[2, 3\]"),
    ("filter_act_modulate", {"style": t(2, 3, 1, 1)}, r"style must be \[2, 3\]"),
    ("minibatch_std", {"x": t(4, 4)}, r"\[N, C, H, W\]"),
    ("minibatch_std", {"x": t(2, 0, 4, 4)}, "of some size"),
    ("minibatch_std", {"x": t(6, 1, 2, 2), "group": 4}, "6 samples are not 1 parts of whole groups of 4"),
    ("minibatch_std", {"x": t(5, 1, 2, 2), "parts": 2}, "5 samples are not 2 parts"),
    ("minibatch_std", {"multiple": 0}, "multiple must be an integer from 1 on, got 0"),
    ("dense", {"x": t(5)}, r"need x \[N, I\]"),
    ("dense", {"weight": t(4, 3)}, r"weights \[O, I\], got \(2, 5\) and \[\(4, 3\)\]"),
    ("dense", {"bias": t(2)}, r"one bias \[O\] for each weight"),
    ("dense", {"slope": 0.0}, "slope and gain must be positive"),
    ("dense", {"gain": -1.0}, "slope and gain must be positive"),
    ("dense_group", {"x": t(2, 5)}, r"need x \[N, S, I\]"),
    ("dense_group", {"weights": [], "biases": [], "slots": []}, r"need x \[N, S, I\]"),
    ("dense_group", {"weights": [t(4, 5)] * 2, "slots": [0, 0]}, "one bias"),
    ("dense_group", {"slots": [3]}, "a slot below 3"),
    ("dense_group", {"slots": [0, 0]}, "for each of 1 weights"),
    *(
        (op, change, words)
        for op in ("spectral_norm", "power_iteration")
        for change, words in (
            ({"us": []}, r"need weights \[O, ...\]"),
            ({"us": [t(3)], "vs": [t(4)]}, r"need weights \[O, ...\]"),
            ({"weights": [], "us": [], "vs": []}, r"need weights \[O, ...\]"),
            ({"weights": [t(0, 3)]}, "of some size"),
            ({"weights": [t(4, 3), t(4, 3).double()], "us": [t(4)] * 2, "vs": [t(3)] * 2}, "of one float dtype"),
        )
    ),
    *(("weight_energies", {"weights": w}, "need weights") for w in ([], [t(2, 3)], [t(2, 3, 3, 3), t(2, 3, 1, 1)])),
    *(
        ("demodulate_group", {"energies": energies, "styles": styles}, "need an energy")
        for energies, styles in (
            ([], []), ([t(2, 3)], []), ([t(2, 3)], [t(3, 4)]), ([t(2, 3)] * 2, [t(4, 3), t(2, 3)]),
            ([t(2, 3, 3, 3)], [t(4, 3)]),
        )
    ),
    ("conv2d", {"x": t(4, 6, 6), "weight": t(*W)}, r"^conv2d: .*\[4, 6, 6\]"),
    ("conv2d", {"x": t(2, 5, 6, 6), "weight": t(*W)}, "^conv2d: .*channels do not fit for groups=1"),
    ("conv2d", {"x": t(*X), "weight": t(*W), "groups": 2}, "^conv2d: .*groups=2"),
    ("conv2d", {"x": t(2, 16, 6, 6), "weight": t(*W), "groups": 4}, "^conv2d: .*groups=4"),
    ("conv2d", {"stride": 0}, "^conv2d: .*stride >= 1"),
    ("conv2d", {"padding": -1}, "^conv2d: .*padding >= 0"),
    ("conv2d", {"stride": (1, 1, 1)}, "^conv2d: .*a number or a pair"),
    ("conv2d", {"x": t(2, 3, 2, 2), "padding": 0}, "^conv2d: .*nothing is left"),
    ("conv_transpose2d", {"x": t(*X), "weight": t(*W)}, "^conv_transpose2d: .*channels do not fit"),
    ("conv_transpose2d", {"output_padding": 2}, "^conv_transpose2d: .*smaller than the stride"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "change", "words"), MISFITS)
def test_what_does_not_fit_is_refused_in_one_line(op, change, words):
    for function in (getattr(kernels, op), getattr(kernels, f"{op}_reference")):
        with pytest.raises(ValueError, match=words) as refusal:
            function(**calls()[op] | change)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("x", "fakes", "words"),
    [
        (t(4), 0, r"\[N, 1\]"),
        (t(0, 1), 0, r"\[N, 1\]"),
        (t(4, 1).int(), 0, "float tensor"),
        (t(4, 1), 5, "fakes must be 0 to 4"),
    ],
)
def test_what_does_not_fit_the_logistic_loss_is_refused(x, fakes, words):
    with pytest.raises(ValueError, match=words):
        logistic_loss(x, fakes)


def test_noise_that_learns_has_no_place_in_a_joined_filter():
    """The reference has its gradient."""
    for op in ("filter_act", "filter_act_modulate"):
        with pytest.raises(ValueError, match="noise has no gradient here"):
            getattr(kernels, op)(**calls()[op] | {"noise": t(2, 1, 7, 7).requires_grad_()})


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


def tensors_in(value: object) -> int:
    return sum(isinstance(v, torch.Tensor) for v in (value if isinstance(value, list) else [value]))


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
