"""The project's prose keeps the rules that a program can hold (`tests.support.prose`)."""

from pathlib import Path

import pytest

from tests.support import prose


def test_every_sentence_is_short_and_begins_plainly() -> None:
    assert [line for path in prose.files() for line in prose.offences(path)] == []


@pytest.mark.parametrize(
    ("sentence", "says"),
    [
        ("Return the cache key of `one call, however long it is`.", None),
        ("Of one call, captured in a graph.", "begins with Of"),
        ("**What** asv records.", "begins with What"),
        (" ".join(["word"] * 26), "26 words"),
        (" ".join(["word"] * 25), None),
    ],
)
def test_a_sentence_is_judged(sentence: str, says: str | None) -> None:
    found = prose.problem(next(iter(prose.sentences(sentence)))[1])
    assert found is None if says is None else says in (found or "")


def test_docstrings_comments_help_and_documents_are_read(tmp_path: Path) -> None:
    code = (
        '"""Of a module."""\n\n\ndef f(x):\n    """Return x.\n\n    Nor this.\n    """\n'
        '    # Such a comment\n    # goes on here.\n    option(help="What it is.")\n'
    )
    (tmp_path / "a.py").write_text(code)
    page = "# Of a heading\n\nWhere it is.\n\n```\nOf code\n```\n\n- Nor an item.\n| Of | a table |\n"
    (tmp_path / "a.md").write_text(page)
    assert [line.split(": ")[1] for line in prose.offences(tmp_path / "a.py")] == [
        "begins with Of", "begins with Nor", "begins with What", "begins with Such"
    ]  # fmt: skip
    assert [line.split(": ")[1] for line in prose.offences(tmp_path / "a.md")] == [
        "begins with Where",
        "begins with Nor",
    ]
