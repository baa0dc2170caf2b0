"""A section of the report, and the registry: each module of `sections` is one, in the order of its `PLACE`.

The module of a section holds

- `PLACE`, a number: sections stand in its order, a multiple of ten apart, so that another one fits between;
- `section(found: Found) -> Section | None`, which returns None where the files say nothing of its subject;
- `READS`, optional: the kinds of result that it needs beside the ladder's, which `found.of(KIND)` then returns.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

from markupsafe import Markup

from ladder.results.check import Kind


@dataclass(frozen=True)
class Section:
    """A section of the page. ``about`` is a line under its title; ``id`` is its address on the page."""

    id: str
    title: str
    body: Markup
    about: str = ""


@dataclass(frozen=True)
class Reads:
    """A kind of result that a section reads, and its folder below results/.

    ``any_workload``: files of other workloads of the same machine belong to the section, too.
    """

    kind: Kind
    folder: str
    any_workload: bool = False


def modules() -> list[ModuleType]:
    """Return the modules of all sections in the order of the page."""
    from ladder.publish.report import sections

    names = [each.name for each in pkgutil.iter_modules(sections.__path__)]
    found = [importlib.import_module(f"{sections.__name__}.{name}") for name in names]
    return sorted(found, key=lambda module: (module.PLACE, module.__name__))


def reads() -> list[Reads]:
    """Return the kinds of result that the sections read beside the ladder's, each once."""
    return list(dict.fromkeys(each for module in modules() for each in getattr(module, "READS", ())))
