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
            " can be differentiated once.",
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
        *(f"```text\n{signature}\n\n{said}\n```" for signature, said in described.values()),
    ]
    if others:
        parts += ["These ops are not in the package. The lines above refer to their arguments:"]
        parts += [f"```text\n{signature}\n\n{said}\n```" for signature, said in others]
    return "\n\n".join(parts) + "\n"
