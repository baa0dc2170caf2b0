"""Digests by tokens: what they leave out, and that every Python of the project computes the same."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.core.files import digest_sources

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""A module."""

from __future__ import annotations

import os
from math import (
    pi,  # a comment
    tau,
)

SEPARATOR = ";"


@property
@decorate(a=1, b=[2, 3])
def outer(x: int, *rest: str, ä: float = 1e-3) -> str:
    """Say what it does.

    In two paragraphs.
    """

    async def inner(y):
        r"""Nested \\d."""
        import json; from os import path
        await y; yield {**y, "k": x if y else not x}

    class Local(Base): "no body else"

    name = "ü"  # a comment
    text = f"é{name!r:>{x + 1}} {{literal}} {f'{x:.3f} # no comment; {x}'}" "and more" rf"\\{x}"
    lines = f"""first {
        x
    } second {name = }
    third""" + \\
        'ß'
    if (y := x @ x ** 2) <= 0b11_0 != 3j:
        pass
    return lambda: (text, lines, ...)
'''
DIGEST = "e36ad93d40f5124a334cb9c6ee52a4c0000671767f7cf5c11a0e85a5e0d77c9f"
PYTHONS = [shutil.which(f"python3.{minor}") for minor in (10, 11, 12, 13)]
COMPUTE = """
import sys
from pathlib import Path
from ladder.core.files import digest_sources
folder = Path(sys.argv[1])
print(digest_sources(folder, [folder / "a.py"], by_tokens=True))
"""


def digest_of(source, folder):
    (folder / "a.py").write_text(source, encoding="utf-8")
    return digest_sources(folder, [folder / "a.py"], by_tokens=True)


@pytest.mark.parametrize("python", [sys.executable, *filter(None, PYTHONS)])
def test_every_python_computes_one_digest(python, tmp_path):
    digest_of(SOURCE, tmp_path)
    run = subprocess.run([python, "-c", COMPUTE, tmp_path], cwd=ROOT, capture_output=True, text=True)
    if run.returncode == 127:
        pytest.skip(f"{python} starts no Python here")
    assert run.stdout.strip() == DIGEST, run.stderr


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("  # a comment", ""),
        ("In two paragraphs.", "In two other ones."),
        ('"""A module."""\n', ""),
        ("import os\n", "from . import os, sys\n"),
        ("    tau,\n", ""),
        ("import json; ", ""),
        ("\n\n\n", "\n"),
        ("[2, 3]", "[\n    2,\n    3]"),
    ],
)
def test_comments_docstrings_imports_and_layout_do_not_count(was, now, tmp_path):
    assert was in SOURCE and digest_of(SOURCE.replace(was, now), tmp_path) == DIGEST


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("1e-3", "1e-4"),
        ("{x + 1}", "{x + 2}"),
        ("no comment", "no  comment"),
        ("    third", "   third"),
        ("@property\n", ""),
        ('"ü"', '"u"'),
        ("        pass\n    return", "        pass\n        return"),
        ('SEPARATOR = ";"\n', ""),
        ("yield {", "yield\n        {"),
    ],
)
def test_code_counts(was, now, tmp_path):
    assert was in SOURCE and digest_of(SOURCE.replace(was, now), tmp_path) != DIGEST
