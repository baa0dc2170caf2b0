"""The exported package: its files as text, and the checks before they are written."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.machinery
import importlib.util
import keyword
import re
import shutil
import sys
import textwrap
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ladder.base import files
from ladder.base.errors import UserError
from ladder.base.starting import near
from ladder.publish.export import sources
from ladder.publish.export.sources import OWN, Op

HERE = Path(__file__).parent
LICENSE = "LICENSE"
# PyTorch computes these everywhere. Only their derivatives are ours.
EVERYWHERE = ("conv2d", "conv_transpose2d")
# Names of this project, of what an export needs, and of operators that PyTorch registers itself.
TAKEN = ("kernels", "ladder", "stylegan_lite", "benches", sources.NAMESPACE, "torch", "triton")
TORCH = (
    "aten",
    "c10d",
    "higher_order",
    "import_module",
    "inductor",
    "prim",
    "prims",
    "profiler",
    "quantized",
)
# The fused functions say so of themselves; an exported op takes plain PyTorch there.
_NOT_HERE = re.compile(r",?\s+RuntimeError\s+for\s+a\s+CPU\s+tensor\s+outside\s+\w+(?:'s)?\s+interpreter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state of this project that an export is made from."""

    root: Path
    version: str
    commit: str | None  # 40 digits, with " (dirty)" behind them if files have changed; None without git


def chosen(root: Path, names: Iterable[str]) -> list[Op]:
    """Return the ops of these names in order, all of them for "all". Raises UserError for an unknown name."""
    known, names = sources.ops(root), list(names)
    if names == ["all"]:
        return list(known.values())
    for name in names:
        if name not in known:
            like = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {like[0]!r}?" if like else "`ladder export --list` names all"
            raise UserError(f"--ops: there is no op {name!r}; {hint}")
    if not names:
        raise UserError("--ops names no op; `ladder export --list` names all")
    return [known[name] for name in sorted(set(names))]


def summaries(root: Path) -> dict[str, str]:
    """Return op -> the first sentence of its docstring."""
    return {name: _summary(_documented(root, op)[1]) for name, op in sources.ops(root).items()}


def _summary(docstring: str) -> str:
    """Return the first sentence of a docstring in one line."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.]) (?=[A-Z])", paragraph)[0]


def check_name(package: str) -> None:
    """Refuse a name that Python cannot import, or that would hide another module. Raises UserError."""
    if not (package.isascii() and package.isidentifier()) or keyword.iskeyword(package):
        raise UserError(f"--package: {package!r} is no name that Python can import")
    if package in sys.stdlib_module_names:
        raise UserError(f"--package: {package!r} is a module of Python's standard library")
    if package in TAKEN or _is_installed(package):
        raise UserError(f"--package: {package!r} is the name of another package, which would be hidden")
    if package in TORCH:
        raise UserError(f"--package: PyTorch registers operators of its own as {package!r}")


def _is_installed(name: str) -> bool:
    """Return whether a module has this name. A folder of the working folder, without code, is no module."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    if found is None or found.origin is not None:
        return found is not None
    return any(Path(place).parent != Path.cwd() for place in found.submodule_search_locations or ())


def export(origin: Origin, folder: Path, ops: list[Op], package: str) -> list[Path]:
    """Write the package into `folder`, whole or not at all, and return its files.

    Raises:
        UserError: a folder that is not empty or that cannot be written.
    """
    check_name(package)
    texts = contents(origin, ops, package)
    target, made = folder / package, not folder.exists()
    temporary = folder / f".{package}-{uuid.uuid4().hex}.tmp"
    try:
        if not made and any(folder.iterdir()):
            raise UserError(f"{near(folder)} is not empty; name a new folder")
        for name, text in texts.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
        temporary.rename(target)
    except OSError as error:
        raise UserError(f"{near(folder)}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if made and folder.is_dir() and not target.exists():
            folder.rmdir()
    return [target / name for name in texts]


def contents(origin: Origin, ops: list[Op], package: str) -> dict[str, str]:
    """Return the path of each file within the package -> its text. The same sources give the same files."""
    root = origin.root
    modules = sources.gather(root, [op.module for op in ops] + [f"{OWN}.common.language"])
    names = [op.name for op in ops]
    texts = {f"{_below(module).replace('.', '/')}.py": text for module, text in modules.items()}
    texts["dispatch.py"] = (HERE / "dispatch.py").read_text(encoding="utf-8")
    checks = (HERE / "check.py").read_text(encoding="utf-8")
    texts["test_ops.py"] = sources.keep(checks, ["check", *(f"case_{name}" for name in names)]) + _CHECKED
    found = {
        path: sources.moved(
            f"{OWN}.{path.removesuffix('.py').replace('/', '.')}", text, package, modules, names
        )
        for path, text in texts.items()
    }
    for room in sorted({path.partition("/")[0] for path in texts if "/" in path}):
        text = (root / OWN / room / "__init__.py").read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
        found[f"{room}/__init__.py"] = f'"""{first}"""\n'
    digest = digest_of(root, modules)
    found["__init__.py"] = _init(origin, ops, modules, digest)
    found["README.md"] = _readme(origin, ops, package, digest)
    found[LICENSE] = (root / LICENSE).read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def digest_of(root: Path, modules: Iterable[str]) -> str:
    """Return the SHA-256 of the sources of these modules, and of the two files that every package gets."""
    of_kernels = files.digest(
        root, [root.joinpath(*name.split(".")).with_suffix(".py") for name in sorted(modules)]
    )
    added = files.digest(HERE, [HERE / "check.py", HERE / "dispatch.py"])
    return hashlib.sha256(f"{of_kernels} {added}".encode()).hexdigest()


def _below(module: str) -> str:
    return module.partition(".")[2]


_CHECKED = """

# ---- this package ------------------------------------------------------------------------------------------------


def test_ops() -> None:
    from . import OPS

    check(OPS)


if __name__ == "__main__":
    from .dispatch import can_run_fused

    test_ops()
    fused = can_run_fused(torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu"))
    print("every op agrees with plain PyTorch" + ("" if fused else "; no fused kernel can run on this machine"))
"""


def _init(origin: Origin, ops: list[Op], modules: Mapping[str, str], digest: str) -> str:
    homes = {op.module: f"_{_below(op.module).replace('.', '_')}" for op in ops}
    lines = [
        textwrap.fill(f'"""Ops for StyleGAN-style networks: {", ".join(op.name for op in ops)}.', 110),
        "",
        "They run fused Triton kernels on a CUDA GPU, and plain PyTorch everywhere else.",
        "README.md says how to call and check them. `OPS` holds each op beside its plain-PyTorch reference.",
        '"""',
        "",
    ]
    for module in sorted(set(sources.OPERATORS) & modules.keys()):
        name = module.rpartition(".")[2]
        lines += [
            f"from .compile import {name} as _{name}  # noqa: F401  registers operators for torch.compile"
        ]
    if any(op.name not in EVERYWHERE for op in ops):
        lines += ["from .dispatch import dispatched as _dispatched"]
    for module, alias in sorted(homes.items()):
        room, _, name = _below(module).rpartition(".")
        lines += [f"from .{room} import {name} as {alias}"]
    lines += ["", f"__version__ = {_quoted(origin.version)}", f"__commit__ = {_quoted(origin.commit)}"]
    lines += [f"SOURCE_DIGEST = {_quoted(digest)}", ""]
    for name, module, function in ops:
        ours, plain = f"{homes[module]}.{function}", f"{homes[module]}.{function}_reference"
        lines += [f"{name} = {ours if name in EVERYWHERE else f'_dispatched({ours}, {plain})'}"]
        lines += [f"{name}_reference = {plain}"]
    lines += ["", "OPS = {", *(f'    "{op.name}": ({op.name}, {op.name}_reference),' for op in ops), "}", ""]
    public = sorted(
        ["OPS", "SOURCE_DIGEST", *(op.name for op in ops), *(f"{op.name}_reference" for op in ops)]
    )
    return "\n".join([*lines, "__all__ = [", *(f'    "{name}",' for name in public), "]", ""])


def _quoted(value: str | None) -> str:
    return "None" if value is None else f'"{value}"'


def _documented(root: Path, op: Op) -> tuple[str, str]:
    """Return the signature of an op and its docstring."""
    path = root.joinpath(*op.module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == op.function:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            said = _NOT_HERE.sub("", ast.get_docstring(node) or "").replace(":func:", "")
            return f"{op.name}({ast.unparse(node.args)}){returns}", re.sub(r"\nRaises\.?$", "", said)
    raise UserError(f"{near(path)} defines no {op.function}")


def _readme(origin: Origin, ops: list[Op], package: str, digest: str) -> str:
    alone = [op.name for op in ops if op.name in EVERYWHERE]
    described = [_documented(origin.root, op) for op in ops]
    parts = [
        f"# {package}",
        "Ops for StyleGAN-style networks, exported by `ladder export` of the StyleGAN2 optimization ladder"
        f" {origin.version}, commit {origin.commit or 'unknown'}. The digest of the sources is `{digest[:16]}`."
        f" The licence is in {LICENSE}. The package needs torch, and triton for the fused kernels.",
        "| op | what it does |\n|---|---|\n"
        + "\n".join(
            f"| `{op.name}` | {_summary(said)} |" for op, (_, said) in zip(ops, described, strict=True)
        ),
        "On a CUDA GPU of compute capability 7.0 or newer the ops run fused. Without Triton, on a CPU and on other"
        " devices each op runs its plain-PyTorch reference. Both can be differentiated twice. The call decides, by its"
        " first argument. With TRITON_INTERPRET=1, set before the first import of triton, the fused kernels run on a"
        " CPU, slowly.",
    ]
    if alone:
        named = " and ".join(f"`{name}`" for name in alone)
        parts.append(
            f"PyTorch computes {named} everywhere; the gradients are convolutions again, also the second ones."
        )
    parts += [
        f"Under torch.compile the fused ops are operators of PyTorch, `torch.ops.{package}.*`. There they can be"
        " differentiated once. Tile sizes come from tables, measured on one H200; nothing is tuned at run time. The"
        " package writes no file. Triton keeps compiled kernels in its own cache, which TRITON_CACHE_DIR moves."
        " Comments that name `kernels.tuning` or `results/` mean files of the project.",
        f"Check it, in the folder that holds `{package}/`:",
        f"    python -m {package}.test_ops",
        "The check compares each op with its reference: results, gradients and gradients of gradients, in float64 and"
        " float32, in NCHW and channels_last memory.",
        "## How to call each op",
        *(f"```text\n{signature}\n\n{said}\n```" for signature, said in described),
    ]
    return "\n\n".join(parts) + "\n"
