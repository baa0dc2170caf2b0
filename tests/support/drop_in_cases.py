"""Calls of NVIDIA's ops over their arguments, each op by its definition, and the drop-in files as modules."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.test_ops import derivatives, drawn, error
from ladder.publish.export import drop_in, package

ROOT = Path(__file__).resolve().parents[2]
ORIGIN = package.Origin(version="1.2.3", commit="0" * 40)
PARENT = "dropped_in"  # another name than NVIDIA's, so that both are modules of one process
F1331 = (1.0, 3.0, 3.0, 1.0)
Ops = SimpleNamespace  # by name: the modules
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def drop_ins(folder: Path, parent: str = PARENT) -> Iterator[Ops]:
    """Yield the exported modules. Convolutions are enabled as in NVIDIA's training loop."""
    written = drop_in.export(ORIGIN, folder)
    if parent != drop_in.TOP:
        (folder / drop_in.TOP).rename(folder / parent)
    assert written
    sys.path.insert(0, str(folder))
    found = modules(parent)
    try:
        yield found
    finally:
        found.conv2d_gradfix.use.undo()
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == parent]:
            del sys.modules[name]


def modules(parent: str) -> Ops:
    """Return the modules of a package, with convolutions enabled."""
    found: dict[str, ModuleType] = {
        name: importlib.import_module(f"{parent}.ops.{name}") for name in drop_in.REPLACED
    }
    found["conv2d_gradfix"].enabled = True  # type: ignore[attr-defined]
    return Ops(**found)


# ---- calls -------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One call: the shapes of the tensors that are differentiated, and the arguments."""

    op: str  # of a function, as "module.function"
    shapes: tuple[tuple[int, ...], ...]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        told = ",".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.op.partition('.')[2]}-{'x'.join(map(str, self.shapes[0]))}-{told}".replace(" ", "")


def _bias_act() -> Iterator[Case]:
    image, rows = (2, 3, 4, 5), (3, 4)
    for act in ("linear", "relu", "lrelu"):
        for clamp, gain in ((None, None), (0.7, None), (0.9, 1.7)):
            yield Case("bias_act.bias_act", (image, (3,)), {"act": act, "clamp": clamp, "gain": gain})
    yield Case("bias_act.bias_act", (image,), {"act": "lrelu", "alpha": 0.4})
    yield Case("bias_act.bias_act", (rows, (4,)), {"act": "lrelu", "clamp": 0.5})
    yield Case("bias_act.bias_act", (rows, (3,)), {"act": "linear", "dim": 0, "gain": 2})
    yield Case("bias_act.bias_act", ((2, 3, 4), (3,)), {"act": "lrelu", "clamp": 0})
    for act in ("tanh", "sigmoid", "elu", "selu", "softplus", "swish"):
        yield Case("bias_act.bias_act", (image, (3,)), {"act": act, "clamp": 0.6})


def _upfirdn2d() -> Iterator[Case]:
    image = ((2, 3, 5, 6),)
    yield Case("upfirdn2d.upfirdn2d", image, {"f": None, "up": 2, "padding": (1, -1)})
    for f in (F1331, (1.0, 2.0, 5.0), ((1.0, 2.0, 1.0), (0.0, 3.0, 1.0)), tuple(range(1, 10))):
        for up, down, padding, gain in (
            (1, 1, 2, 1),
            (2, 1, (3, 1, 2, 1), 4),
            (1, 2, (3, 5), 0.25),
            (2, 2, 3, 1),
        ):
            for flip in (False, True):
                given = {
                    "f": f,
                    "up": up,
                    "down": down,
                    "padding": padding,
                    "gain": gain,
                    "flip_filter": flip,
                }
                yield Case("upfirdn2d.upfirdn2d", image, given)
    yield Case(
        "upfirdn2d.upfirdn2d", image, {"f": F1331, "up": (3, 1), "down": (1, 2), "padding": (2, 1, 3, -1)}
    )
    yield Case("upfirdn2d.filter2d", image, {"f": F1331, "padding": (1, -1), "gain": 2})
    yield Case("upfirdn2d.upsample2d", image, {"f": F1331, "padding": -1})
    yield Case("upfirdn2d.upsample2d", image, {"f": (1.0, 2.0), "up": (1, 2), "flip_filter": True})
    yield Case("upfirdn2d.downsample2d", image, {"f": F1331, "gain": 3})
    yield Case("upfirdn2d.downsample2d", image, {"f": (1.0, 2.0, 5.0), "down": (2, 1), "padding": (1, 0)})


def _convolutions() -> Iterator[Case]:
    for stride, padding, dilation, groups in (
        (1, 1, 1, 1),
        (2, (0, 1), 1, 1),
        (1, 2, 2, 1),
        ([2, 1], 1, 1, 2),
    ):
        given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        shapes = ((2, 4, 6, 5), (2, 4 // groups, 3, 2), (2,))
        yield Case("conv2d_gradfix.conv2d", shapes, given)
        shapes = ((2, 4, 3, 4), (4, 2 // groups, 3, 2), (2,))
        yield Case("conv2d_gradfix.conv_transpose2d", shapes, given | {"output_padding": 0})
    yield Case(
        "conv2d_gradfix.conv_transpose2d", ((2, 2, 3, 3), (2, 3, 3, 3)), {"stride": 2, "output_padding": 1}
    )
    for kernel in (1, 3):
        for up, down, padding in (
            (1, 1, 1),
            (2, 1, 1),
            (1, 2, 1),
            (2, 2, 0),
            (1, 1, (1, 2, 0, -1)),
            (2, 1, -1),
        ):
            for flip, groups in ((True, 1), (False, 2)):
                shapes = ((2, 4, 7, 6), (2, 4 // groups, kernel, kernel))
                given = {"f": F1331, "up": up, "down": down, "padding": padding, "groups": groups}
                yield Case("conv2d_resample.conv2d_resample", shapes, given | {"flip_weight": flip})
    given = {"f": (1.0, 2.0, 5.0), "up": 2, "padding": (0, 1, 2, 1), "flip_filter": True}
    yield Case("conv2d_resample.conv2d_resample", ((1, 2, 5, 4), (3, 2, 2, 3)), given)
    yield Case(
        "conv2d_resample.conv2d_resample", ((1, 2, 5, 6), (3, 2, 3, 3)), {"f": None, "up": 3, "padding": 1}
    )


def _fma() -> Iterator[Case]:
    for b, c in (
        ((2, 3, 1, 1), (2, 1, 4, 5)),
        ((2, 3, 1, 1), (1, 1, 4, 5)),
        ((3, 1, 1), (2, 3, 4, 5)),
        ((1, 1, 1), (5,)),
    ):
        yield Case("fma.fma", ((2, 3, 4, 5), b, c), {})


CASES = [*_bias_act(), *_upfirdn2d(), *_convolutions(), *_fma()]


def compared(case: Case, op: Callable[..., Tensor], other: Callable[..., Tensor]) -> dict[str, float]:
    """Return by direction the largest relative error of `op` against `other`, in float64."""
    torch.manual_seed(len(str(case)))
    with torch.device(DEVICE):
        inputs = [torch.randn(shape, dtype=torch.float64) for shape in case.shapes]
        ours, theirs = (derivatives(lambda op, *t: op(*t), each, inputs, 1) for each in (op, other))
    found = {}
    for direction, tensors in theirs.items():
        assert [t.shape for t in tensors] == [t.shape for t in ours[direction]]
        found[direction] = max(error(a, b) for a, b in zip(ours[direction], tensors, strict=True))
    return found


def called(case: Case, ops: Ops, impl: str | None = None) -> Callable[..., Tensor]:
    """Return the call as a function of its tensors. `impl` is passed on where the function takes it."""
    module, name = case.op.split(".")
    function, given = getattr(getattr(ops, module), name), dict(case.arguments)
    if "f" in given:
        given["f"] = ops.upfirdn2d.setup_filter(given["f"], device=DEVICE)
    if impl and module in ("bias_act", "upfirdn2d"):
        given["impl"] = impl
    return lambda *tensors: function(*tensors, **given)


# ---- definitions -------------------------------------------------------------------------------------------------


def defined(case: Case) -> Callable[..., Tensor]:
    """Return the call as the documents of NVIDIA's ops define it."""
    name, given = case.op.partition(".")[2], dict(case.arguments)
    if "f" in given:
        given["f"] = normalized(given["f"]).to(DEVICE)
    function: Callable[..., Tensor] = globals()[f"define_{name}"]
    return lambda *tensors: function(*tensors, **given)


def normalized(f: Any) -> Tensor:
    """Return the matrix of a filter. Its sum is 1, in FP32."""
    if f is None:
        return torch.ones(1, 1, dtype=torch.float64)
    made = torch.tensor(f, dtype=torch.float32)
    if made.dim() == 1 and len(made) < 8:
        made = made[:, None] * made[None]
    made = (made / made.sum()).double()
    return made[:, None] * made[None] if made.dim() == 1 else made


def define_bias_act(
    x: Tensor, b: Tensor | None = None, act: str = "linear", dim: int = 1, alpha: float = 0.2,
    gain: float | None = None, clamp: float | None = None,
) -> Tensor:  # fmt: skip
    if b is not None:
        x = (x.movedim(dim, -1) + b).movedim(-1, dim)
    y = {
        "linear": lambda: x,
        "relu": lambda: torch.where(x > 0, x, 0),
        "lrelu": lambda: torch.where(x > 0, x, alpha * x),
        "tanh": lambda: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
        "sigmoid": lambda: 1 / (1 + (-x).exp()),
        "elu": lambda: torch.where(x > 0, x, x.exp() - 1),
        "selu": lambda: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * (x.exp() - 1)),
        "softplus": lambda: (1 + x.exp()).log(),
        "swish": lambda: x / (1 + (-x).exp()),
    }[act]()
    y = y * ((2**0.5 if act in ("relu", "lrelu", "swish") else 1) if gain is None else gain)
    if clamp is None:
        return y
    return torch.where(y.abs() <= clamp, y, clamp * y.detach().sign())


def define_upfirdn2d(
    x: Tensor, f: Tensor, up: Any = 1, down: Any = 1, padding: Any = 0, gain: float = 1, flip_filter: bool = False
) -> Tensor:  # fmt: skip
    """y[o] = sum over k of f[k] x[i] where i * up = o * down + k - padding, along y and along x."""
    ups, downs, (left, right, top, bottom) = pair(up), pair(down), four(padding)
    f = f if flip_filter else f.flip((0, 1))
    rows = selections(x.shape[2], len(f), ups[1], downs[1], top, bottom)
    columns = selections(x.shape[3], f.shape[1], ups[0], downs[0], left, right)
    return gain * torch.einsum("kl,koh,lpw,nchw->ncop", f, rows, columns, x)


def selections(size: int, taps: int, up: int, down: int, before: int, after: int) -> Tensor:
    """Return [taps, outputs, size]: which pixel each tap of each output reads."""
    outputs = (size * up + before + after - taps) // down + 1
    found = torch.zeros(taps, outputs, size, dtype=torch.float64)
    for k in range(taps):
        for o in range(outputs):
            i = o * down + k - before
            if i % up == 0 and 0 <= i // up < size:
                found[k, o, i // up] = 1
    return found


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def four(padding: Any) -> tuple[int, int, int, int]:
    sides = pair(padding)
    return (sides[0], sides[0], sides[1], sides[1]) if len(sides) == 2 else sides


def around(padding: Any, f: Tensor, up: Sequence[int], down: Sequence[int]) -> list[int]:
    """Return the padding that keeps a filtered image centred; see the documents of `upsample2d` and `downsample2d`."""
    left, right, top, bottom = four(padding)
    sides = []
    for (a, b), taps, u, d in zip(((left, right), (top, bottom)), reversed(f.shape), up, down, strict=True):
        if u > 1:
            a, b = a + (taps + u - 1) // 2, b + (taps - u) // 2
        if d > 1:
            a, b = a + (taps - d + 1) // 2, b + (taps - d) // 2
        sides += [a, b]
    return sides


def define_filter2d(
    x: Tensor, f: Tensor, padding: Any = 0, gain: float = 1, flip_filter: bool = False
) -> Tensor:
    (left, right, top, bottom), (height, width) = four(padding), f.shape
    sides = [left + width // 2, right + (width - 1) // 2, top + height // 2, bottom + (height - 1) // 2]
    return define_upfirdn2d(x, f, padding=sides, gain=gain, flip_filter=flip_filter)


def define_upsample2d(x: Tensor, f: Tensor, up: Any = 2, padding: Any = 0, **more: Any) -> Tensor:
    (x_up, y_up), taps = pair(up), f.shape
    left, right, top, bottom = four(padding)
    sides = [left + (taps[1] + x_up - 1) // 2, right + (taps[1] - x_up) // 2]
    sides += [top + (taps[0] + y_up - 1) // 2, bottom + (taps[0] - y_up) // 2]
    return x_up * y_up * define_upfirdn2d(x, f, up=up, padding=sides, **more)


def define_downsample2d(x: Tensor, f: Tensor, down: Any = 2, padding: Any = 0, **more: Any) -> Tensor:
    (x_down, y_down), taps = pair(down), f.shape
    left, right, top, bottom = four(padding)
    sides = [left + (taps[1] - x_down + 1) // 2, right + (taps[1] - x_down) // 2]
    sides += [top + (taps[0] - y_down + 1) // 2, bottom + (taps[0] - y_down) // 2]
    return define_upfirdn2d(x, f, down=down, padding=sides, **more)


def define_conv2d(x: Tensor, w: Tensor, b: Tensor | None = None, **geometry: Any) -> Tensor:
    return F.conv2d(x, w, b, **geometry)


def define_conv_transpose2d(x: Tensor, w: Tensor, b: Tensor | None = None, **geometry: Any) -> Tensor:
    return F.conv_transpose2d(x, w, b, **geometry)


def define_conv2d_resample(
    x: Tensor, w: Tensor, f: Tensor, up: int = 1, down: int = 1, padding: Any = 0, groups: int = 1,
    flip_weight: bool = True, flip_filter: bool = False,
) -> Tensor:  # fmt: skip
    sides = around(padding, f, (up, up), (down, down))
    one = torch.ones(1, 1, dtype=torch.float64)
    x = define_upfirdn2d(x, f if up > 1 else one, up=up, padding=sides, gain=up**2, flip_filter=flip_filter)
    x = F.conv2d(x, w if flip_weight else w.flip((2, 3)), groups=groups)
    return define_upfirdn2d(x, f, down=down, flip_filter=flip_filter) if down > 1 else x


def define_fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


__all__ = ["CASES", "Case", "called", "compared", "defined", "drawn", "drop_ins", "modules"]
