"""A reader of small YAML files that trusts none of them.

A file is safe-loaded and holds one mapping, no key twice and no aliases. A bad file is one line.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.text import clean_line

LIMIT = 64 * 1024  # bytes; a workload has ten lines
DEPTH = 8
MOST_DIGITS = 18  # of a whole number: one of 400 digits is no float, and the readers compute with it


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, aliases, and numbers that no float holds.

    YAML would take the last of two equal keys, and aliases can grow without end.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.events.AliasEvent):
            _refuse("aliases are not allowed", self.peek_event())
        self.depth += 1
        if self.depth > DEPTH:
            _refuse("nested too deep", self.peek_event())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                _refuse("a key must be text", key_node)
            key = self.construct_object(key_node)
            if key in seen:
                _refuse(f"key {key!r} twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1_0 as 10, 010 as 8, 0x10 as 16 and 1:30 as 90.
_ODD = re.compile(r"[_:]|^[-+]?0[0-9bx]")


def _construct_number(loader: _Loader, node: yaml.ScalarNode) -> float:
    is_whole = node.tag == WHOLE
    value = loader.construct_yaml_int(node) if is_whole else loader.construct_yaml_float(node)
    if _ODD.search(node.value):
        _refuse(f"{node.value[:40]!r} is not a number in plain digits; put text in quotes", node)
    if is_whole and abs(value) >= 10**MOST_DIGITS:
        _refuse(f"a whole number of more than {MOST_DIGITS} digits", node)
    return value


def _refuse(problem: str, at: yaml.Node | yaml.Event) -> NoReturn:
    raise yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


WHOLE, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
for _tag in (WHOLE, FLOAT):
    _Loader.add_constructor(_tag, _construct_number)
# YAML 1.1, which PyYAML reads, takes 2e-3 for text; people who write `lr: 2e-3` mean a number.
_Loader.add_implicit_resolver(
    FLOAT, re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return one YAML file's mapping with text keys.

    Raises:
        UserError: it cannot be read, is too large, or is not such a mapping; one line with file and place.
    """
    where = show_path(path)
    try:
        if path.stat().st_size > LIMIT:
            raise UserError(f"{where}: larger than {LIMIT // 1024} KiB; this is not a small YAML file")
        values = yaml.load(files.read_file(path, LIMIT), Loader=_Loader)  # a SafeLoader
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror or error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        problem = clean_line(error.problem or error.context or "not YAML")
        raise UserError(f"{where}:{place} {problem}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{where}: not YAML: {clean_line(error)}") from None
    if not isinstance(values, dict):
        found = "nothing" if values is None else f"a {type(values).__name__}"
        raise UserError(f"{where}: expected `key: value` lines, found {found}")
    for key in values:
        if not isinstance(key, str):
            raise UserError(f"{where}: key {str(key)[:40]!r} must be text")
    return values


def show_path(path: Path) -> str:
    """Return the path as a user would name it: relative to the working folder if that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def read_comments(path: Path) -> list[str]:
    """Return the comments of a YAML file, without their signs, a line each."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [re.fullmatch(r"\s*#\s?(.*)", line) for line in lines]
    return [clean_line(match[1]) for match in found if match and match[1].strip()]
