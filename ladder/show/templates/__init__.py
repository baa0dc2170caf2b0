"""The Jinja2 templates of pages and tables. Every value is escaped."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # what draws no page needs no Jinja2

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def render_template(name: str, **values: Any) -> Markup:
    """Return the template of that file name, filled with these values."""
    from markupsafe import Markup

    return Markup(_environment().get_template(name).render(**values))
