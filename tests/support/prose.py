"""The rules of this project's prose that a program can hold: sentences of at most 25 words that begin plainly.

`python -m tests.support.prose [FILE or FOLDER...]` prints each sentence that breaks them, with file and line.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "kernels",
    "stylegan_lite",
    "ladder",
    "benches",
    "tests",
    "examples",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
)
MOST_WORDS = 25
BEGIN_BADLY = frozenset("Of Nor What Whose Such From None Where As".split())
# A record of what was measured when; and sentences that the article's page quotes.
_LEFT_OUT = re.compile(r"(^|/)(results|\.venv|\.cache)/")
_CODE = re.compile(r"``[^`]*``|`[^`]*`|\[[^\]]*\]\([^)]*\)|https?://\S+|\$[^$]*\$")
_END = re.compile(r"(?<=[.?!])[\")*_]*\s+(?=[\"(*_`]*[A-Z0-9`])")
_SHORT = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|Eq|Fig|Sec|No|approx|al)\.\s", re.I)
_ITEM = re.compile(r"\s*([-*+]|\d+\.|[\w*`, ]{1,40}:)\s+")  # a list's entry, or an argument of a docstring
Text = tuple[int, str]


def sentences(text: str, line: int = 1) -> Iterator[Text]:
    """Split text into (line, sentence). An empty line, a list's entry and an indented block end one."""
    block: list[str] = []
    begin = line
    lines = text.splitlines()
    for number, each in enumerate([*lines, ""]):
        new = not each.strip() or _ITEM.match(each) or each.strip().startswith(("|", ">>>", "#", "<!--", "@"))
        if block and new:
            yield from _split(" ".join(block), begin)
            block = []
        if not each.strip() or each.strip().startswith(("|", ">>>", "#", "<!--", "@", "\b")):
            continue
        if not block:
            begin = line + number
        block.append(_ITEM.sub("", each, count=1).strip() if _ITEM.match(each) else each.strip())


def _split(block: str, line: int) -> Iterator[Text]:
    plain = _SHORT.sub(lambda found: found[0].replace(".", ""), _CODE.sub("Code", block))
    for sentence in _END.split(plain):
        if sentence.strip():
            yield line, sentence.strip()


def problem(sentence: str) -> str | None:
    """Return what breaks a rule in one sentence, or None."""
    words = [word for word in re.split(r"[\s/]+|--+", sentence) if re.search(r"[A-Za-z]", word)]
    if len(words) > MOST_WORDS:
        return f"{len(words)} words, at most {MOST_WORDS}"
    first = re.sub(r"\W", "", words[0]) if words else ""
    return f"begins with {first}" if first in BEGIN_BADLY else None


def texts(path: Path) -> Iterator[Text]:
    """Yield (first line, text) of each docstring, comment block and help text of a module, or a document's prose."""
    if path.suffix == ".md":
        yield from _document(path.read_text())
        return
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                yield node.body[0].lineno, ast.get_docstring(node) or ""
        elif isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            yield node.value.lineno, str(node.value.value)
    yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    """Yield comments, those of consecutive lines as one."""
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, own = token.start[0], not token.line[: token.start[1]].strip()
        text = token.string.lstrip("#:! ")
        if re.match(r"(noqa|type:|fmt:|pragma|-{3}|={3})", text):
            continue
        if block and own and row == last + 1:
            block.append(text)
        else:
            if block:
                yield begin, "\n".join(block)
            block, begin = [text], row
        last = row if own else -1
    if block:
        yield begin, "\n".join(block)


def _document(text: str) -> Iterator[Text]:
    """Yield a document without its code blocks and generated regions. An indented block follows an empty line."""
    kept: list[str] = []
    fence = made = False
    for each in text.splitlines():
        if each.lstrip().startswith(("```", "~~~")):
            fence = not fence
            kept.append("")
            continue
        made = (made or each.startswith(("<!-- table:", "<!-- made by"))) and not each.startswith("<!-- end")
        indented = each.startswith("    ") and not (kept and kept[-1].strip())
        kept.append("" if fence or made or indented else each)
    yield 1, "\n".join(kept)


def offences(path: Path) -> list[str]:
    """Return one line for each sentence of a file that breaks a rule."""
    found = []
    for line, text in texts(path):
        for at, sentence in sentences(text, line):
            if said := problem(sentence):
                found.append(f"{path}:{at}: {said}: {sentence[:100]}")
    return found


def files(places: Iterable[str | Path] = PLACES) -> list[Path]:
    """Return every module and document under these places."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found += (
            [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".py", ".md"))
        )
    return [path for path in found if not _LEFT_OUT.search(path.relative_to(ROOT).as_posix())]


if __name__ == "__main__":
    lines = [
        line.removeprefix(f"{ROOT}/") for path in files(sys.argv[1:] or PLACES) for line in offences(path)
    ]
    print("\n".join([*lines, f"{len(lines)} sentences to mend"]))
    sys.exit(bool(lines))
