"""The page of an exported package: the ops in it, and how to call and check each of them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.starting import near
from ladder.publish.export import sources
from ladder.publish.export.sources import EVERYWHERE, Op

LICENSE = "LICENSE"
# The oldest versions with which an export was seen to pass its test. PyTorch before 2.7 cannot register the operators.
PYTORCH, PYTORCH_FUSED, TRITON = (2, 4), (2, 7), (3, 4)
# The fused functions say so of themselves; an exported op takes plain PyTorch there.
_NOT_HERE = re.compile(r",?\s+RuntimeError\s+for\s+a\s+CPU\s+tensor\s+outside\s+\w+(?:'s)?\s+interpreter")

# The lines before all examples, and an example of each op. `ops` is the package.
BEGIN = """\
import torch
import ops

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
TAPS = (1.0, 3.0, 3.0, 1.0)  # StyleGAN2's filter; its sum is 8 along each dimension
"""
EXAMPLES = {
    "act_filter": """
x, bias = torch.randn(2, 8, 16, 16), torch.zeros(8)
y = ops.act_filter(x, bias, TAPS, padding=2, filter_gain=1 / 64)
assert y.shape == (2, 8, 17, 17)
""",
    "bias_act": """
x, bias = torch.randn(2, 8, 16, 16), torch.zeros(8)
noise, strength = torch.randn(2, 1, 16, 16), torch.tensor(0.1)
y = ops.bias_act(x, bias, noise=noise, strength=strength)
assert y.shape == x.shape
""",
    "bias_act_modulate": """
x, bias, style = torch.randn(2, 8, 16, 16), torch.zeros(8), torch.randn(2, 8)
y, styled = ops.bias_act_modulate(x, bias, style)
assert y.shape == styled.shape == x.shape
""",
    "bias_act_residual": """
x, bias, residual = torch.randn(2, 8, 16, 16), torch.zeros(8), torch.randn(2, 8, 16, 16)
y = ops.bias_act_residual(x, bias, residual)
assert y.shape == x.shape
""",
    "bias_act_skip": """
x, bias = torch.randn(2, 8, 16, 16), torch.zeros(8)
low, weight = torch.randn(2, 4, 16, 16), torch.randn(8, 4, 1, 1)
y = ops.bias_act_skip(x, bias, low, weight)
assert y.shape == x.shape
""",
    "conv2d": """
x, weight = torch.randn(2, 4, 16, 16), torch.randn(8, 4, 3, 3)
y = ops.conv2d(x, weight, padding=1)
assert y.shape == (2, 8, 16, 16)
""",
    "conv_transpose2d": """
x, weight = torch.randn(2, 4, 16, 16), torch.randn(4, 8, 3, 3)
y = ops.conv_transpose2d(x, weight, stride=2)
assert y.shape == (2, 8, 33, 33)
""",
    "demodulate": """
weight, style = torch.randn(8, 4, 3, 3), torch.randn(2, 4)
coefficients = ops.demodulate(weight, style)
assert coefficients.shape == (2, 8)
""",
    "demodulate_group": """
weights = torch.randn(8, 4, 3, 3), torch.randn(6, 8, 3, 3)
styles = [torch.randn(2, 4), torch.randn(2, 8)]
energies = [weight.square().sum((2, 3)) for weight in weights]
first, second = ops.demodulate_group(energies, styles)
assert first.shape == (2, 8) and second.shape == (2, 6)
""",
    "demodulate_group_fork": """
weights = torch.randn(8, 4, 3, 3), torch.randn(6, 8, 3, 3)
styles = [torch.randn(2, 4), torch.randn(2, 8)]
energies = [weight.square().sum((2, 3)) for weight in weights]
coefficients, styles = ops.demodulate_group_fork(energies, styles)
assert coefficients[1].shape == (2, 6) and styles[1].shape == (2, 8)
""",
    "dense": """
x, weight, bias = torch.randn(2, 16), torch.randn(8, 16), torch.zeros(8)
y = ops.dense(x, weight, bias, weight_gain=16**-0.5, act=True, gain=2**0.5)
assert y.shape == (2, 8)
""",
    "dense_group": """
x = torch.randn(2, 3, 16)  # three latents for each sample
weights, biases = [torch.randn(8, 16), torch.randn(4, 16)], [torch.zeros(8), torch.zeros(4)]
first, second = ops.dense_group(x, weights, biases, slots=[0, 2])
assert first.shape == (2, 8) and second.shape == (2, 4)
""",
    "filter_act": """
x, bias = torch.randn(2, 8, 17, 17), torch.zeros(8)
noise, strength = torch.randn(2, 1, 16, 16), torch.tensor(0.1)
y = ops.filter_act(x, TAPS, bias, noise=noise, strength=strength, padding=1, filter_gain=1 / 16)
assert y.shape == (2, 8, 16, 16)
""",
    "filter_act_modulate": """
x, bias, style = torch.randn(2, 8, 17, 17), torch.zeros(8), torch.randn(2, 8)
y = ops.filter_act_modulate(x, TAPS, style, bias, padding=1, filter_gain=1 / 16)
assert y.shape == (2, 8, 16, 16)
""",
    "fork_upfirdn2d": """
x = torch.randn(2, 8, 16, 16)
same, half = ops.fork_upfirdn2d(x, TAPS, down=2, padding=1, gain=1 / 64)
assert same.shape == x.shape and half.shape == (2, 8, 8, 8)
""",
    "from_rgb": """
image, weight, bias = torch.randn(2, 3, 16, 16), torch.randn(8, 3), torch.zeros(8)
y = ops.from_rgb(image, weight, bias, gain=3**-0.5)
assert y.shape == (2, 8, 16, 16)
""",
    "instance_norm_act": """
x, scale, bias = torch.randn(2, 8, 16, 16), torch.ones(2, 8), torch.zeros(2, 8)
y = ops.instance_norm_act(x, scale, bias)
assert y.shape == x.shape
""",
    "minibatch_std": """
x = torch.randn(8, 16, 4, 4)
y = ops.minibatch_std(x, group=4)
assert y.shape == (8, 17, 4, 4)
""",
    "modulate": """
x, style = torch.randn(2, 8, 16, 16), torch.randn(2, 8)
y = ops.modulate(x, style)
assert y.shape == x.shape
""",
    "power_iteration": """
weights = [torch.randn(8, 4, 3, 3), torch.randn(6, 8)]
us, vs = [torch.randn(8), torch.randn(6)], [torch.randn(36), torch.randn(8)]
ops.power_iteration(weights, us, vs)  # us and vs are written in place
assert abs(us[0].norm() - 1) < 1e-3
""",
    "scale_act": """
x, scale = torch.randn(2, 8, 16, 16), torch.ones(2, 8)
y = ops.scale_act(x, scale)
assert y.shape == x.shape
""",
    "scale_channels": """
x, style = torch.randn(2, 8, 16, 16), torch.randn(2, 8)
y = ops.scale_channels(x, style)
assert y.shape == x.shape
""",
    "spectral_norm": """
weights = [torch.randn(8, 4, 3, 3), torch.randn(6, 8)]
us, vs = [torch.randn(8), torch.randn(6)], [torch.randn(36), torch.randn(8)]  # as power iterations leave them
first, second = ops.spectral_norm(weights, us, vs)
assert first.shape == (8, 4, 3, 3) and second.shape == (6, 8)
""",
    "to_rgb": """
x, weight, style, bias = torch.randn(2, 8, 16, 16), torch.randn(3, 8), torch.randn(2, 8), torch.zeros(3)
image = ops.to_rgb(x, weight, style, bias, gain=8**-0.5)
assert image.shape == (2, 3, 16, 16)
""",
    "upfirdn2d": """
x = torch.randn(2, 8, 16, 16)
y = ops.upfirdn2d(x, TAPS, up=2, padding=(2, 1), gain=1 / 16)
assert y.shape == (2, 8, 32, 32)
""",
    "weight_energies": """
weights = [torch.randn(8, 4, 3, 3), torch.randn(6, 8, 3, 3)]
first, second = ops.weight_energies(weights)
assert first.shape == (8, 4) and second.shape == (6, 8)
""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state of this project that an export is made from."""

    root: Path
    version: str
    commit: str | None  # 40 digits, with " (dirty)" behind them if files have changed; None without git


def least(ops: list[Op]) -> tuple[int, int]:
    """Return the oldest PyTorch that can import a package of these ops."""
    return PYTORCH_FUSED if has_fused(ops) else PYTORCH


def has_fused(ops: list[Op]) -> bool:
    """Return whether one of these ops has a fused kernel."""
    return any(op.name not in EVERYWHERE for op in ops)


def version(numbers: tuple[int, int]) -> str:
    """Return a version as text."""
    return ".".join(map(str, numbers))


def summaries(root: Path) -> dict[str, str]:
    """Return op -> the first sentence of its docstring."""
    return {name: _summary(_documented(root, op)[1]) for name, op in sources.ops(root).items()}


def _summary(docstring: str) -> str:
    """Return the first sentence of a docstring in one line."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.]) (?=[A-Z])", paragraph)[0]


def _documented(root: Path, op: Op) -> tuple[str, str]:
    """Return the signature of an op and its docstring."""
    path = root.joinpath(*op.module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == op.function:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            said = _NOT_HERE.sub("", ast.get_docstring(node) or "").replace(":func:", "")
            return f"{op.name}({ast.unparse(node.args)}){returns}", said
    raise UserError(f"{near(path)} defines no {op.function}")


def _referred(root: Path, ops: list[Op]) -> list[Op]:
    """Return the ops beside `ops` to whose arguments their docstrings refer, in order."""
    known, found, waiting = sources.ops(root), {op.name for op in ops}, [*ops]
    while waiting:
        said = _documented(root, waiting.pop())[1]
        more = known.keys() & set(re.findall(r"`(\w+)`", said)) - found
        found |= more
        waiting += [known[name] for name in more]
    return [known[name] for name in sorted(found - {op.name for op in ops})]


def _example(text: str, package: str) -> str:
    """Return an example as Markdown."""
    code = re.sub(r"\bops\b", package, text.strip())
    return f"```python\n{code}\n```"


def readme(origin: Origin, ops: list[Op], package: str, digest: str) -> str:
    """Return README.md of a package with these ops."""
    described = {op.name: _documented(origin.root, op) for op in ops}
    others = [_documented(origin.root, op) for op in _referred(origin.root, ops)]
    table = "".join(f"\n| `{name}` | {_summary(said)} |" for name, (_, said) in described.items())
    fused = has_fused(ops)
    needs_triton = (
        f", and Triton {version(TRITON)} (it comes with PyTorch 2.8) for the fused kernels" if fused else ""
    )
    parts = [
        f"# {package}",
        "Ops for StyleGAN-style networks, exported by `ladder export` of the StyleGAN2 optimization ladder"
        f" {origin.version}, commit {origin.commit or 'unknown'}. The digest of the sources is `{digest[:16]}`."
        f" The licence is in {LICENSE}. The package needs Python 3.10 and PyTorch {version(least(ops))} or newer"
        f"{needs_triton}.",
        f"| op | what it does |\n|---|---|{table}",
    ]
    if fused:
        parts += [
            "On a CUDA GPU of compute capability 7.0 or newer the ops run fused. Without such a Triton, on a CPU and"
            " on other devices each op runs its plain-PyTorch reference. Both can be differentiated twice. The call"
            " decides, by its first argument. With TRITON_INTERPRET=1, set before the first import of triton, the"
            " fused kernels run on a CPU, slowly.",
            f"Under torch.compile an op is an operator of PyTorch (`torch.ops.{package}.*`) or plain PyTorch. There it"
            " can be differentiated once. Batch and resolution may change (`dynamic=True`).",
            "Tile sizes come from tables, measured on one H200. Nothing is tuned at run time.",
        ]
    if alone := [f"`{name}`" for name in described if name in EVERYWHERE]:
        parts.append(
            f"PyTorch computes {' and '.join(alone)} on every device. The gradients are convolutions again, also the"
            " second ones. Under torch.compile this is PyTorch's own convolution, which is differentiated once."
        )
    parts += [
        "The package writes no file. Triton keeps compiled kernels in its own cache, which TRITON_CACHE_DIR moves."
        " Comments that name `kernels.tuning`, `tests/` or `results/` mean files of the project.",
        f"Check it, in the folder that holds `{package}/`:",
        f"    python -m {package}.test_ops",
        "The check compares each op with its reference: results, gradients and gradients of gradients, in float64 and"
        " float32, in NCHW and channels_last memory.",
        "## How to call each op",
        "Each op has an example. All examples begin with:",
        _example(BEGIN, package),
    ]
    for name, (signature, said) in described.items():
        parts += [f"```text\n{signature}\n\n{said}\n```", _example(EXAMPLES[name], package)]
    if others:
        parts += ["These ops are not in the package. The lines above refer to their arguments:"]
        parts += [f"```text\n{signature}\n\n{said}\n```" for signature, said in others]
    return "\n\n".join(parts) + "\n"
