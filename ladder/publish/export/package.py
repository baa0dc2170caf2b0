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
from types import FunctionType
from typing import NamedTuple

from ladder.core import files, git
from ladder.core.errors import UserError
from ladder.core.starting import ROOT, read_version, shorten_path

KERNELS = ROOT / "kernels"
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
ADDED = ("LICENSE", "README.md", "dispatch.py", "double_backward.py", "test_ops.py")  # go into every package
PUBLIC = ("OPS", "SOURCE_DIGEST", "fast_double_backward")  # of every package, beside its ops


class Origin(NamedTuple):
    """The state of this project that an export is made from."""

    version: str
    commit: str | None  # 40 digits, with " (dirty)" behind them if files have changed; None without git


def read_origin() -> Origin:
    """Return the state of this checkout, which an export names."""
    commit, dirty = git.commit_of(ROOT)
    return Origin(read_version(), f"{commit} (dirty)" if commit and dirty else commit)


# ---- the ops -----------------------------------------------------------------------------------------------------


def list_ops() -> dict[str, FunctionType]:
    """Return name -> function of everything that `kernels` offers with a reference. An alias has another's function."""
    import kernels

    names = vars(kernels)
    return {name: function for name, function in sorted(names.items()) if f"{name}_reference" in names}


def summarize_op(function: FunctionType) -> str:
    """Return the first sentence of an op's docstring."""
    paragraph = (function.__doc__ or "").partition("\n\n")[0]
    return re.split(r"(?<=[.]) (?=[A-Z])", " ".join(paragraph.split()))[0]


def choose_ops(names: Iterable[str]) -> list[str]:
    """Return these ops in order, and all if "all" is among them. Raises UserError for an unknown name."""
    known, names = list_ops(), {*names}
    if unknown := sorted(names - {*known, ALL}):
        like = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {like[0]!r}?" if like else "`ladder export --list` names all"
        raise UserError(f"--ops: there is no op {unknown[0]!r}; {hint}")
    if not names:
        raise UserError("--ops names no op; `ladder export --list` names all")
    return [name for name in known if name in names or ALL in names]


def check_name(package: str) -> None:
    """Refuse a name that Python cannot import, or that would hide another module. Raises UserError."""
    is_plain = package.isascii() and package.isidentifier() and not package.startswith("__")
    if not is_plain or keyword.iskeyword(package):
        raise UserError(f"--package: {package!r} is no name that Python can import")
    spec = importlib.util.find_spec(package)
    # A folder of the working folder, without code, is no module.
    places = [*(spec.submodule_search_locations or ())] if spec and spec.origin is None else []
    is_installed = spec is not None and (
        spec.origin is not None or any(Path(place).parent != Path.cwd() for place in places)
    )
    if package in TAKEN or package in sys.stdlib_module_names or is_installed:
        raise UserError(f"--package: {package!r} is the name of another module, which would be hidden")


# ---- the files ---------------------------------------------------------------------------------------------------

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
from .double_backward import fast_double_backward

__version__ = {version!r}
__commit__ = {commit!r}
SOURCE_DIGEST = "{digest}"
OPS = _offer(globals(), {names})

__all__ = {public}
"""


def export(origin: Origin, folder: Path, ops: list[str], package: str) -> list[Path]:
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


def render_package(origin: Origin, ops: list[str]) -> dict[str, str]:
    """Return the path of each file within the package -> its text. The same sources give the same files."""
    functions = {name: function for name, function in list_ops().items() if name in ops}
    modules = {name: function.__module__.partition(".")[2] for name, function in functions.items()}
    paths = list_files(KERNELS, [*ADDED, *(f"{module.replace('.', '/')}.py" for module in modules.values())])
    texts = {path: (KERNELS / path).read_text(encoding="utf-8") for path in paths}
    least = PYTORCH if {*ops} <= EVERYWHERE else PYTORCH_FUSED
    imports = [
        f"from .{modules[name]} import {function.__name__} as {name},"
        f" {function.__name__}_reference as {name}_reference"
        for name, function in sorted(functions.items(), key=lambda op: (modules[op[0]], op[1].__name__))
    ]
    texts["__init__.py"] = _INIT.format(
        summary=textwrap.fill(f'"""Ops for StyleGAN-style networks: {", ".join(functions)}.', 110),
        least=least,
        words=".".join(map(str, least)),
        imports="\n".join(imports),
        version=origin.version,
        commit=origin.commit,
        digest=files.digest_sources(KERNELS, [KERNELS / path for path in paths if path.endswith(".py")]),
        names=json.dumps([*functions], indent=4),
        public=json.dumps(sorted([*PUBLIC, *ops, *(f"{name}_reference" for name in ops)]), indent=4),
    )
    return texts


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
