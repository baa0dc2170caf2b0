"""The exported package: its files as text, and the checks before they are written."""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import importlib.machinery
import importlib.util
import keyword
import shutil
import sys
import textwrap
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from ladder.base import files
from ladder.base.errors import UserError
from ladder.base.starting import near
from ladder.publish.export import page, sources
from ladder.publish.export.page import LICENSE, Origin
from ladder.publish.export.sources import EVERYWHERE, OWN, Op

HERE = Path(__file__).parent
ALL = "all"  # among the names of ops
LONGEST = 100  # letters of a package: a file system takes 255 bytes, and a temporary folder adds to them
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


def chosen(root: Path, names: Iterable[str]) -> list[Op]:
    """Return the ops of these names in order, and all if "all" is among them. Raises UserError for an unknown name."""
    known, names = sources.ops(root), list(names)
    for name in names:
        if name not in (*known, ALL):
            like = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {like[0]!r}?" if like else "`ladder export --list` names all"
            raise UserError(f"--ops: there is no op {name!r}; {hint}")
    if not names:
        raise UserError("--ops names no op; `ladder export --list` names all")
    if ALL in names:
        return list(known.values())
    return [known[name] for name in sorted(set(names))]


def check_name(package: str) -> None:
    """Refuse a name that Python cannot import, or that would hide another module. Raises UserError."""
    plain = package.isascii() and package.isidentifier() and not package.startswith("__")
    if not plain or keyword.iskeyword(package):
        raise UserError(f"--package: {package!r} is no name that Python can import")
    if len(package) > LONGEST:
        raise UserError(f"--package: a name of {len(package)} letters; at most {LONGEST}")
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
    return write(folder, package, contents(origin, ops, package))


def write(folder: Path, name: str, texts: Mapping[str, str]) -> list[Path]:
    """Write files, by their paths, into `folder/name`, whole or not at all, and return them. Raises UserError."""
    target, made = folder / name, [each for each in (folder, *folder.parents) if not each.exists()]
    temporary = folder / f".{name}-{uuid.uuid4().hex}.tmp"
    try:
        if not made and any(folder.iterdir()):
            raise UserError(f"{near(folder)} is not empty; name a new folder")
        for path, text in texts.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8", newline="\n")
        temporary.rename(target)
    except OSError as error:
        raise UserError(f"{near(folder)}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not target.exists():
            for each in made:
                with contextlib.suppress(OSError):  # it was not reached
                    each.rmdir()
    return [target / path for path in texts]


def contents(origin: Origin, ops: list[Op], package: str) -> dict[str, str]:
    """Return the path of each file within the package -> its text. The same sources give the same files."""
    root = origin.root
    modules = sources.gather(root, [op.module for op in ops])
    names = [op.name for op in ops]
    fused = not set(names) <= set(EVERYWHERE)
    texts = {f"{_below(module).replace('.', '/')}.py": text for module, text in modules.items()}
    if fused:
        texts["dispatch.py"] = (HERE / "dispatch.py").read_text(encoding="utf-8")
    checks = (HERE / "check.py").read_text(encoding="utf-8")
    texts["test_ops.py"] = sources.keep(checks, ["check", *(f"case_{name}" for name in names)])
    texts["test_ops.py"] += _TEST + (_FUSED if fused else _PLAIN)
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
    found["README.md"] = page.readme(origin, ops, package, digest)
    found[LICENSE] = (root / LICENSE).read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def digest_of(root: Path, modules: Iterable[str]) -> str:
    """Return the SHA-256 of the sources of these modules, and of the two files that are added to them."""
    of_kernels = files.digest(
        root, [root.joinpath(*name.split(".")).with_suffix(".py") for name in sorted(modules)]
    )
    added = files.digest(HERE, [HERE / "check.py", HERE / "dispatch.py"])
    return hashlib.sha256(f"{of_kernels} {added}".encode()).hexdigest()


def _below(module: str) -> str:
    return module.partition(".")[2]


_TEST = """

# ---- this package ------------------------------------------------------------------------------------------------


def test_ops() -> None:
    from . import OPS

    check(OPS)


if __name__ == "__main__":
    test_ops()
"""
_FUSED = """\
    from .dispatch import can_run_fused

    fused = can_run_fused(torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu"))
    print("every op agrees with plain PyTorch" + ("" if fused else "; no fused kernel can run on this machine"))
"""
_PLAIN = """\
    print("every op agrees with plain PyTorch")
"""


_CHECK = """\
import sys as _sys

import torch as _torch

if _sys.version_info < (3, 10) or tuple(map(int, _torch.__version__.split(".")[:2])) < LEAST:
    raise ImportError(
        f"{__name__} needs Python 3.10 and PyTorch WORDS or newer: here are Python"
        f" {_sys.version_info[0]}.{_sys.version_info[1]} and PyTorch {_torch.__version__}"
    )
"""


_FOUND = """\
for _name, (_op, _) in OPS.items():  # pickle looks an op up by these
    if hasattr(_op, "fused"):
        _op.__module__, _op.__name__, _op.__qualname__ = __name__, _name, _name
"""


def _init(origin: Origin, ops: list[Op], modules: Mapping[str, str], digest: str) -> str:
    homes = {op.module: f"_{_below(op.module).replace('.', '_')}" for op in ops}
    fused = [op.name for op in ops if op.name not in EVERYWHERE]
    where = "They run fused Triton kernels on a CUDA GPU, and plain PyTorch everywhere else."
    lines = [
        textwrap.fill(f'"""Ops for StyleGAN-style networks: {", ".join(op.name for op in ops)}.', 110),
        "",
        *([where] if fused else []),
        "README.md says how to call and check them. `OPS` holds each op beside its plain-PyTorch reference.",
        '"""',
        "",
        _CHECK.replace("LEAST", str(page.least(ops))).replace("WORDS", page.version(page.least(ops))),
    ]
    for module in sorted(set(sources.OPERATORS) & modules.keys()):
        name = module.rpartition(".")[2]
        lines += [
            f"from .compile import {name} as _{name}  # noqa: F401  registers operators for torch.compile"
        ]
    if fused:
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
    lines += [_FOUND] if fused else []
    public = sorted(
        ["OPS", "SOURCE_DIGEST", *(op.name for op in ops), *(f"{op.name}_reference" for op in ops)]
    )
    return "\n".join([*lines, "__all__ = [", *(f'    "{name}",' for name in public), "]", ""])


def _quoted(value: str | None) -> str:
    return "None" if value is None else f'"{value}"'
