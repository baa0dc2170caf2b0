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


def describe(error: BaseException) -> str:
    """`Type: message` of an exception, as `one_line` gives it."""
    message = one_line(str(error))
    name = type(error).__name__
    return one_line(f"{name}: {message}") if message else name
