"""The exported package: files of `kernels/` as they stand, with an `__init__.py` for the chosen ops."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import keyword
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ladder.core import files, git
from ladder.core.errors import UserError
from ladder.core.starting import ROOT, read_version, shorten_path

ALL = "all"  # among the names of ops
# Names of this project, of what an export needs, and of operators that PyTorch registers itself.
TAKEN = {
    "kernels", "ladder", "stylegan_lite", "benches", "torch", "triton", "aten", "c10d", "higher_order",
    "import_module", "inductor", "prim", "prims", "profiler", "quantized",
}  # fmt: skip
# The oldest versions with which an export was seen to pass its test. PyTorch before 2.7 cannot register the operators.
PYTORCH, PYTORCH_FUSED, TRITON = (2, 4), (2, 7), (3, 4)
EVERYWHERE = {
    "conv2d",
    "conv_transpose2d",
}  # PyTorch computes these everywhere; only their derivatives are ours
ADDED = ("LICENSE", "README.md", "dispatch.py", "test_ops.py")  # go into every package


class Op(NamedTuple):
    """One public function of `kernels`."""

    name: str
    module: str  # below `kernels`, dotted
    function: str  # its name there; an alias has another


class Origin(NamedTuple):
    """The state of this project that an export is made from."""

    root: Path
    version: str
    commit: str | None  # 40 digits, with " (dirty)" behind them if files have changed; None without git


def read_origin() -> Origin:
    """Return the state of this checkout, which an export names."""
    commit, dirty = git.commit_of(ROOT)
    return Origin(ROOT, read_version(), f"{commit} (dirty)" if commit and dirty else commit)


# ---- the ops -----------------------------------------------------------------------------------------------------


def list_ops(root: Path) -> dict[str, Op]:
    """Return name -> op of everything that `kernels` offers with a reference, read from its `__init__.py`."""
    modules, aliases = {}, {}
    for node in ast.parse((root / "kernels" / "__init__.py").read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            aliases |= {target.id: node.value.id for target in node.targets if isinstance(target, ast.Name)}
    functions = {name: name for name in modules} | aliases
    return {
        name: Op(name, modules[function], function)
        for name, function in sorted(functions.items())
        if f"{name}_reference" in functions
    }


def summarize_ops(root: Path) -> dict[str, str]:
    """Return op -> the first sentence of its docstring."""
    sentences = {}
    for op in list_ops(root).values():
        source = (root / "kernels").joinpath(*op.module.split(".")).with_suffix(".py").read_bytes()
        functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        paragraph = (ast.get_docstring(functions[op.function]) or "").partition("\n\n")[0]
        sentences[op.name] = re.split(r"(?<=[.]) (?=[A-Z])", " ".join(paragraph.split()))[0]
    return sentences


def choose_ops(root: Path, names: Iterable[str]) -> list[Op]:
    """Return the ops of these names in order, and all if "all" is among them. Raises UserError for an unknown name."""
    known, names = list_ops(root), {*names}
    if unknown := sorted(names - {*known, ALL}):
        like = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {like[0]!r}?" if like else "`ladder export --list` names all"
        raise UserError(f"--ops: there is no op {unknown[0]!r}; {hint}")
    if not names:
        raise UserError("--ops names no op; `ladder export --list` names all")
    return [op for name, op in known.items() if name in names or ALL in names]


def check_name(package: str) -> None:
    """Refuse a name that Python cannot import, or that would hide another module. Raises UserError."""
    is_plain = package.isascii() and package.isidentifier() and not package.startswith("__")
    if not is_plain or keyword.iskeyword(package):
        raise UserError(f"--package: {package!r} is no name that Python can import")
    if package in TAKEN or package in sys.stdlib_module_names or _is_installed(package):
        raise UserError(f"--package: {package!r} is the name of another module, which would be hidden")


def _is_installed(name: str) -> bool:
    """Return whether a module has this name. A folder of the working folder, without code, is no module."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is not None:
        return spec is not None
    return any(Path(place).parent != Path.cwd() for place in spec.submodule_search_locations or ())


# ---- the files ---------------------------------------------------------------------------------------------------


def export(origin: Origin, folder: Path, ops: list[Op], package: str) -> list[Path]:
    """Write the package into `folder`, whole or not at all, and return its files.

    Raises:
        UserError: a name that is taken, or a folder that is not empty or that cannot be written.
    """
    check_name(package)
    return write(folder, package, render_package(origin, ops))


def write(folder: Path, name: str, texts: Mapping[str, str]) -> list[Path]:
    """Write files, by their paths, into `folder/name`, whole or not at all, and return them. Raises UserError."""
    temporary, is_new = folder / f".{name}.tmp", not folder.exists()
    try:
        if not is_new and any(folder.iterdir()):
            raise UserError(f"{shorten_path(folder)} is not empty; name a new folder")
        for path, text in texts.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8", newline="\n")
        temporary.rename(folder / name)
    except OSError as error:
        shutil.rmtree(folder if is_new else temporary, ignore_errors=True)
        raise UserError(f"{shorten_path(folder)}: cannot be written: {error.strerror or error}") from None
    return [folder / name / path for path in texts]


def render_package(origin: Origin, ops: list[Op]) -> dict[str, str]:
    """Return the path of each file within the package -> its text. The same sources give the same files."""
    kernels = origin.root / "kernels"
    paths = list_files(kernels, [*ADDED, *(f"{op.module.replace('.', '/')}.py" for op in ops)])
    sources = [kernels / path for path in paths if path.endswith(".py")]
    texts = {path: (kernels / path).read_text(encoding="utf-8") for path in paths}
    return texts | {"__init__.py": _render_init(origin, ops, files.digest_sources(kernels, sources))}


def list_files(package: Path, start: Iterable[str]) -> list[str]:
    """Return the paths of these files of a package and of all that they import from it, sorted.

    The package's own `__init__.py` is left out.
    """
    paths: set[str] = set()
    waiting = {package / path for path in start}
    while waiting:
        path = waiting.pop()
        paths.add(path.relative_to(package).as_posix())
        places = {path.parent / "__init__.py"}
        for node in ast.walk(ast.parse(path.read_bytes() if path.suffix == ".py" else "")):
            if isinstance(node, ast.ImportFrom) and node.level:
                place = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                places |= {place.with_suffix(".py"), *(place / f"{each.name}.py" for each in node.names)}
        waiting |= {
            place
            for place in places - {package / "__init__.py"}
            if place.is_file() and place.relative_to(package).as_posix() not in paths
        }
    return sorted(paths)


_INIT = """\
{summary}

README.md says where they run, and how to call and check them. `OPS` holds each beside its plain-PyTorch reference.
\"\"\"

import sys as _sys

import torch as _torch

if _sys.version_info < (3, 10) or tuple(map(int, _torch.__version__.split(".")[:2])) < {least}:
    raise ImportError(
        f"{{__name__}} needs Python 3.10 and PyTorch {words} or newer: here are Python"
        f" {{_sys.version_info[0]}}.{{_sys.version_info[1]}} and PyTorch {{_torch.__version__}}"
    )

{imports}
from .dispatch import offer as _offer

__version__ = {version!r}
__commit__ = {commit!r}
SOURCE_DIGEST = "{digest}"
OPS = _offer(globals(), {names})

__all__ = {public}
"""


def _render_init(origin: Origin, ops: list[Op], digest: str) -> str:
    """Return the `__init__.py` of a package with these ops."""
    names = [op.name for op in ops]
    references = [f"{name}_reference" for name in names]
    least = PYTORCH if {*names} <= EVERYWHERE else PYTORCH_FUSED
    imports = [
        f"from .{op.module} import {op.function} as {op.name}, {op.function}_reference as {op.name}_reference"
        for op in sorted(ops, key=lambda op: op[1:])
    ]
    return _INIT.format(
        summary=textwrap.fill(f'"""Ops for StyleGAN-style networks: {", ".join(names)}.', 110),
        least=least,
        words=".".join(map(str, least)),
        imports="\n".join(imports),
        version=origin.version,
        commit=origin.commit,
        digest=digest,
        names=json.dumps(names, indent=4),
        public=json.dumps(sorted(["OPS", "SOURCE_DIGEST", *names, *references]), indent=4),
    )
