"""What goes wrong, in one line that a user can act on."""

import re

_PATH = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\":;,()\[\]]+[/\\])+([^\s/\\'\":;,()\[\]]*)")
_LONGEST = 200


class UserError(Exception):
    """The user asked for something that cannot be; `str(e)` is one clear line. The command ends with status 2."""


def one_line(text: str) -> str:
    """The first line of `text` that says something, at most 200 characters, without absolute paths: it is published."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = re.sub(r"\s+", " ", lines[0]) if lines else ""
    line = _PATH.sub(lambda m: m.group(1) or "...", line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3].rstrip() + "..."


def words_of(error: BaseException) -> str:
    """An exception's message; of one that a data worker passed on, what it said there and not the whole traceback."""
    text = str(error)
    if text.startswith("Caught ") and "in DataLoader worker process" in text:
        said = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
        kind = text.split()[1]
        own = [line for line in said if line == kind or f"{kind}:" in line]
        return (own or said)[-1].partition(f"{kind}:")[2].strip()
    return text


def describe(error: BaseException) -> str:
    """`Type: message` of an exception, as `one_line` gives it."""
    message = one_line(words_of(error))
    name = type(error).__name__
    return one_line(f"{name}: {message}") if message else name
