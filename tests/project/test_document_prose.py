"""Sentences of the documents are short and name their subject first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import committed

ROOT = committed.ROOT
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 25  # words
BEGINNINGS = ("As", "From", "None", "Nor", "Of", "Such", "What", "Where", "Whose")
GENERATED = re.compile(r"<!-- table: [^>]*?-->.*?<!-- end -->|^```.*?^```", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> Iterator[str]:
    """Yield each paragraph, list item and table cell; generated regions, code and headings are left out."""
    lines: list[str] = []
    for line in [*GENERATED.sub("", text).splitlines(), ""]:
        item = re.match(r"\s*(- |\d+\. )", line)
        starts = not line.strip() or line.startswith(("|", "#")) or item is not None
        if starts and lines:
            yield " ".join(lines)
            lines = []
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("| ").split(" | "))
        elif item or (line.strip() and not line.startswith("#") and (lines or not line.startswith("    "))):
            lines.append(line[item.end() if item else 0 :].strip())


def sentences(text: str) -> Iterator[str]:
    """Yield each sentence; a link counts as its words, code as one word, and a colon or semicolon ends a sentence."""
    for block in blocks(text):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
        words = re.sub(r"\*\*?", "", re.sub(r"`[^`]*`", "CODE", words))
        yield from (each for each in re.split(r"(?<=[.?!])\s+(?=[A-Z\d(\"'])|(?<=[:;])\s+", words) if each)


def offences(text: str) -> list[str]:
    """Return the sentences that are too long, or begin with a word that hides their subject."""
    return [
        each
        for each in sentences(text)
        if len(each.split()) > LONGEST or (each.split()[0] in BEGINNINGS and len(each.split()) > 3)
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_sentences_are_short_and_name_their_subject(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "What is measured here counts.",
        "- Fine.\n- Of several, one counts.",
        "| a | From here on it is slow. |",
    ],
)
def test_a_hidden_subject_is_seen(text: str) -> None:
    assert len(offences(text)) == 1


def test_a_long_sentence_is_seen_and_code_and_tables_of_results_are_not() -> None:
    long = " ".join(["word"] * 26) + "."
    assert offences(f"Short.\n\n{long}\n") == [long]
    assert offences(f"    {long}\n\n```\n{long}\n```\n<!-- table: x -->\n{long}\n<!-- end -->\n") == []
