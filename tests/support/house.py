"""The size and shape of the code against its budget: `python -m tests.support.house` prints them.

The budget is `tests/support/house.yaml`. A figure may fall; who raises one says in the commit why.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

import yaml

from ladder.core import git
from ladder.core.paths import ROOT

BUDGET = Path(__file__).with_suffix(".yaml")
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
LAYOUT += (tokenize.ENCODING,)


def list_files(folder: str, suffix: str = ".py") -> list[Path]:
    """Return the files below a folder that git knows and that are there."""
    names = git.read_output(ROOT, "ls-files", "-z", "--", folder).split("\0")
    return [ROOT / name for name in names if name.endswith(suffix) and (ROOT / name).is_file()]


def measure() -> dict[str, float]:
    """Return every figure by its name in the budget."""
    figures: dict[str, float] = {}
    for room in ("ladder", "tests", "kernels", "stylegan_lite", "benches"):
        files = list_files(room)
        texts = [path.read_text(encoding="utf-8") for path in files]
        figures |= {f"{room} files": len(files), f"{room} lines": sum(text.count("\n") for text in texts)}
        if room in ("ladder", "tests"):
            trees = [ast.parse(text) for text in texts]
            statements = sum(is_statement(node) for tree in trees for node in ast.walk(tree))
            figures |= {f"{room} statements": statements, f"{room} tokens": sum(map(count_tokens, texts))}
    ladder = {path: ast.parse(path.read_text(encoding="utf-8")) for path in list_files("ladder")}
    functions = [
        node
        for tree in ladder.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__")
    ]
    words = [len(re.findall(r"[a-z0-9]+", node.name)) for node in functions]
    figures["one-word functions, percent"] = round(100 * sum(each == 1 for each in words) / len(words), 1)
    figures["functions of more than seven parameters"] = sum(count_parameters(node) > 7 for node in functions)
    figures["dict[str, Any] in ladder"] = sum(
        path.read_text(encoding="utf-8").count("dict[str, Any]") for path in ladder
    )
    figures["modules with one importer"] = count_single_importers(ladder)
    pages = list_files("docs", ".md")
    figures["docs pages"] = len(pages)
    figures["docs words"] = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    return figures


def is_statement(node: ast.AST) -> bool:
    """Return whether a node is a statement that does something: no docstring."""
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.stmt) and not docstring


def count_tokens(text: str) -> int:
    """Return the tokens of a source without comments and layout."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in LAYOUT for token in tokens)


def count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the parameters of a function without `self`; a click command's are its options and count as none."""
    if any("option" in ast.dump(each) or "argument" in ast.dump(each) for each in node.decorator_list):
        return 0
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in every if each.arg not in ("self", "cls")])


def count_single_importers(trees: dict[Path, ast.Module]) -> int:
    """Return the number of modules that exactly one other module of `ladder` imports."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in trees}
    importers: Counter[str] = Counter()
    for tree in trees.values():
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
        importers.update(names & modules.keys())
    return sum(times == 1 for times in importers.values())


def main() -> int:
    """Print each figure beside its budget. Return 1 if one is beyond it."""
    budget = yaml.safe_load(BUDGET.read_text(encoding="utf-8"))
    beyond = 0
    for name, value in measure().items():
        allowed = budget.get(name)
        over = allowed is not None and value > allowed
        beyond += over
        print(
            f"{name:<44}{value:>12,g}{'' if allowed is None else f'{allowed:>12,g}'}{'  over' if over else ''}"
        )
    return min(1, beyond)


if __name__ == "__main__":
    sys.exit(main())
