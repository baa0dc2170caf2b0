"""The sources of `kernels/` that some ops need, and the same sources as modules of another package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

OWN = "kernels"
NAMESPACE = "stylegan_ladder"  # of the operators that `kernels/compile` registers
# These files register the operators of many ops. An export takes only the statements for its own ops.
OPERATORS = tuple(f"{OWN}.compile.{name}" for name in ("operators", "linear_operators", "joined_operators"))
_OPERATOR = re.compile(rf"\btorch\.ops\.{NAMESPACE}\.(\w+)")
_REFERENCE = "_reference"
# PyTorch computes these everywhere. Only their derivatives are ours.
EVERYWHERE = ("conv2d", "conv_transpose2d")


class Op(NamedTuple):
    """One public function of `kernels`."""

    name: str
    module: str  # dotted, that defines it
    function: str  # its name there; an alias has another


def ops(root: Path) -> dict[str, Op]:
    """Return name -> op of everything that `kernels` offers with a reference, read from its `__init__.py`."""
    tree = ast.parse((root / OWN / "__init__.py").read_bytes())
    homes, aliases, public = {}, {}, []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if isinstance(node.value, ast.Name):
                aliases[name] = node.value.id
            elif name == "__all__":
                public = ast.literal_eval(node.value)
    found = {name: aliases.get(name, name) for name in public}
    return {
        name: Op(name, homes[function], function)
        for name, function in sorted(found.items())
        if f"{function}{_REFERENCE}" in homes
    }


def path_of(root: Path, module: str) -> Path | None:
    """Return the file of a module, or None if the name is no module."""
    whole = root.joinpath(*module.split("."))
    places = (whole.with_suffix(".py"), whole / "__init__.py")
    return next((path for path in places if path.is_file()), None)


def gather(root: Path, modules: Iterable[str]) -> dict[str, str]:
    """Return module -> text of these modules and all that they import, without the `__init__.py` of packages.

    A module that calls an operator under torch.compile also needs the statements that register the operator. Those
    statements need modules themselves, so the search goes on until nothing is added.
    """
    found: dict[str, str] = {}
    waiting = [*modules]
    while waiting:
        for module in waiting:
            _add(root, module, found)
        parts = _operators(root, found)
        needed = {name for text in parts.values() for name, _ in imported(root, text)}
        waiting = sorted(needed - found.keys() - set(OPERATORS))
    return dict(sorted((found | parts).items()))


def _add(root: Path, module: str, found: dict[str, str]) -> None:
    path = path_of(root, module)
    if module in found or module in OPERATORS or path is None or path.name == "__init__.py":
        return
    found[module] = path.read_text(encoding="utf-8")
    for name, _ in imported(root, found[module]):
        _add(root, name, found)


def imported(root: Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import from `kernels`. A module that is imported whole has an empty name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and _is_own(node):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole, "") if path_of(root, whole) else (str(node.module), alias.name)


def _is_own(node: ast.ImportFrom) -> bool:
    return not node.level and str(node.module).partition(".")[0] == OWN


def _operators(root: Path, found: Mapping[str, str]) -> dict[str, str]:
    """Return module -> text of the registering statements for all operators that these sources call."""
    whole = {
        module: (root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8") for module in OPERATORS
    }
    parts: dict[str, str] = {}
    while True:
        texts = [*found.values(), *parts.values()]
        called = {name for text in texts for name in _OPERATOR.findall(text)}
        pairs = [pair for text in texts for pair in imported(root, text)]
        more = {}
        for module, text in whole.items():
            names = called | {name for home, name in pairs if home == module}
            if names & {name for node in ast.parse(text).body for name in _bound(node)}:
                more[module] = keep(text, names)
        if more == parts:
            return parts
        parts = more


# ---- parts of a file ---------------------------------------------------------------------------------------------


def keep(text: str, names: Iterable[str]) -> str:
    """Return a source with only the top-level statements that these names need, and the comments above them.

    A statement that decorates or calls a method of a name at top level (`@op.register_fake`) belongs to that name.
    """
    body, lines = ast.parse(text).body, text.splitlines(keepends=True)
    needed, kept = {"annotations", *names}, set()  # the first is an import of `__future__`
    while True:
        more = {n for n, node in enumerate(body) if n not in kept and _is_needed(node, needed)}
        if not more:
            break
        kept |= more
        needed |= {name for n in more for name in _used(body[n])}
    parts, end = [], 0
    for number, node in enumerate(body):
        last = int(node.end_lineno or 0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            used = [alias for alias in node.names if (alias.asname or alias.name) in needed]
            if used:
                node.names = used
                parts.append("".join(lines[end : node.lineno - 1]) + ast.unparse(node) + "\n")
        elif number in kept or (not number and isinstance(node, ast.Expr)):  # the docstring
            parts.append("".join(lines[end:last]))
        end = last
    return "".join(parts)


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return []


def _is_needed(node: ast.stmt, needed: set[str]) -> bool:
    owners = [_owner(each) for each in getattr(node, "decorator_list", ())]
    if isinstance(node, ast.Expr):
        owners.append(_owner(node.value))
    owners = [owner for owner in owners if owner]
    return not needed.isdisjoint(owners or _bound(node))


def _owner(node: ast.expr) -> str | None:
    """Return `op` of `op.method` or `op.method(...)`, else None. A method of a module is none of an op."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else None


def _used(node: ast.stmt) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | set(_OPERATOR.findall(ast.unparse(node)))


# ---- another package ---------------------------------------------------------------------------------------------


def moved(module: str, text: str, package: str, modules: Iterable[str], names: Iterable[str]) -> str:
    """Return a source as a module of another package: imports are relative, operators have its namespace.

    Comments and docstrings name files and ops of `modules` and `names` by their new place, and others by their old.
    """
    lines = text.splitlines(keepends=True)
    dots = "." * module.count(".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and _is_own(node):
            below = str(node.module).removeprefix(OWN).removeprefix(".")
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(
                f"from {node.module} import", f"from {dots}{below} import", 1
            )
    there = {f"{OWN}.{name}" for name in names} | set(modules)

    def renamed(found: re.Match[str]) -> str:
        dotted = found[0].removesuffix(".py").replace("/", ".")
        return package + found[0].removeprefix(OWN) if dotted in there else found[0]

    text = re.sub(rf"\b{NAMESPACE}\b", package, "".join(lines))
    return re.sub(rf"(?<![\w./]){OWN}(?:/[\w/]+\.py|(?:\.\w+)+)", renamed, text)
