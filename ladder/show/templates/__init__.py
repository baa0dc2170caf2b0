"""The Jinja2 templates of pages and tables, with their filters. Every value is escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FOLDER = Path(__file__).parent
_TONES = {
    "good": ("faster", "ADOPT", "ok"),
    "bad": ("slower", "SKIP", "BROKEN", "failed", "not engaged"),
    "open": (
        "ambiguous", "undecided", "too few generations", "not yet proved", "not decided", "no verdict",
    ),
}  # fmt: skip


def split_code(text: str) -> list[str]:
    """Return the pieces of a line between backticks: every second one is code. An odd backtick is a letter."""
    pieces = show_line(text).split("`")
    return pieces if len(pieces) % 2 else [show_line(text)]


def show_line(text: object) -> str:
    """Return text in one line without control and direction characters, however long."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())


def find_tone(text: str) -> str:
    """Return the class of a word that a reader must see, by the end of the text; "" for all others."""
    return next(
        (tone for tone, words in _TONES.items() for word in words if f" {text}".endswith(f" {word}")), ""
    )


def make_digest(text: str) -> str:
    """Return what a page's policy says of a script or style sheet that may be in it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def make_svg_address(svg: bytes) -> str:
    """Return a picture as an address. Its text stays text, because base64 hides from compression what repeats."""
    return f"data:image/svg+xml,{quote(b' '.join(svg.split()), safe='/:=;,.()-_!*~@$?+')}"


FILTERS = {
    "split_code": split_code,
    "line": show_line,
    "tone": find_tone,
    "digest": make_digest,
    "svg_address": make_svg_address,
}


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # what draws no page needs no Jinja2

    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= FILTERS
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def render_template(name: str, **values: Any) -> Markup:
    """Return the template of that file name, filled with these values."""
    from markupsafe import Markup

    return Markup(_environment().get_template(name).render(**values))


def read_script(name: str) -> Markup:
    """Return a script of this folder as it is."""
    from markupsafe import Markup

    return Markup((FOLDER / name).read_text(encoding="utf-8"))
