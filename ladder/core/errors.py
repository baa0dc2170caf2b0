"""Exceptions whose message is one line that a user can act on."""

import errno
import os
import re

_PATH = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\":;,()\[\]]+[/\\])+([^\s/\\'\":;,()\[\]]*)")
_LONGEST = 200
# The system lacks something, which is not the program's fault. ENOMEM may be the program's: "oom".
_TOLD = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)  # compilers wrap these
_SYSTEM = (*_TOLD, errno.EACCES, errno.EAGAIN, errno.EIO)
_SIGNS = {  # the same, in the words of other libraries
    "can't start new thread": errno.EAGAIN,
    "out of shared memory": errno.ENOSPC,
    "unable to open shared memory object": errno.ENOSPC,
    "PytorchStreamWriter failed": errno.ENOSPC,  # torch.save
    "unexpected pos": errno.ENOSPC,  # torch.save, when it closes what it could not write
}
# Data workers hand batches over there, and containers often have 64 MiB of it.
_SHARED = ": shared memory is full; in a container start it with --shm-size=2g"


class UserError(Exception):
    """A request that cannot be met. `str(e)` is one clear line, and the command ends with status 2."""


class EnvironmentFailure(UserError):
    """A lack of the system (disk, files, threads) that stops a measurement. The measured rung is not to blame."""


def of_environment(error: BaseException) -> str | None:
    """Return `No space left on device: reference.pt` if the system is to blame for an error, else None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _SYSTEM:
            where = seen.filename if isinstance(seen.filename, str) else ""
            name = os.path.basename(where.rstrip(os.sep))
            return one_line(os.strerror(seen.errno) + (f": {name}" if name else ""))
        seen = seen.__cause__
    text = str(error)
    if isinstance(error, EnvironmentFailure):
        return one_line(text)
    for number in _TOLD:
        if os.strerror(number) in text:
            return one_line(f"{os.strerror(number)}: {text}")
    for sign, number in _SIGNS.items():
        if sign in text:
            return os.strerror(number) + (_SHARED if "shared memory" in sign else "")
    return None


def raise_if_environment(error: BaseException) -> None:
    """Raise `EnvironmentFailure`, one line, if the system is to blame for an error. No record is made of the error."""
    if line := of_environment(error):
        raise EnvironmentFailure(line) from error


def one_line(text: str) -> str:
    """Return the first line of `text` that is not empty, at most 200 characters and without absolute paths.

    The line is published.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = re.sub(r"\s+", " ", lines[0]) if lines else ""
    line = _PATH.sub(lambda m: m.group(1) or "...", line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3].rstrip() + "..."


def words_of(error: BaseException) -> str:
    """Return an exception's message. For an error in a data worker, leave out the worker's traceback."""
    text = str(error)
    if text.startswith("Caught ") and "in DataLoader worker process" in text:
        said = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
        kind = text.split()[1]
        own = [line for line in said if line == kind or f"{kind}:" in line]
        return (own or said)[-1].partition(f"{kind}:")[2].strip()
    return text


def format_error(error: BaseException) -> str:
    """Return `Type: message` of an exception, shortened by `one_line`."""
    message = one_line(words_of(error))
    name = type(error).__name__
    return one_line(f"{name}: {message}") if message else name


class Missing(Exception):
    """A contender that this machine or this checkout does not have. The message is the reason."""
