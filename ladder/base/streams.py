"""Standard output and standard error that cannot be written: a closed pipe, a full disk, a terminal that is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any


class _Stream:
    """A stream that says what becomes of an OSError; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Any:
        """The bytes below, minded alike: click writes there where the encoding is ASCII."""
        return type(self)(self._stream.buffer)

    def write(self, text: Any) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._refused(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._refused(error)


class _Stderr(_Stream):
    """Its words may get lost: no line about progress ends a measurement."""

    def _refused(self, error: OSError) -> None:
        let_go(self._stream)


class _Stdout(_Stream):
    """Its errors say where they come from."""

    def _refused(self, error: OSError) -> None:
        if error.errno == errno.EPIPE:  # `| head`
            raise error
        raise OSError(error.errno, f"cannot be written: {error.strerror}", "standard output") from None


@contextlib.contextmanager
def minded() -> Iterator[None]:
    """Let standard error lose words, and an error of standard output name it."""
    before = sys.stdout, sys.stderr
    sys.stdout = before[0] and _Stdout(before[0])
    sys.stderr = before[1] and _Stderr(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        try:
            if before[0]:
                before[0].flush()
        except OSError:
            let_go(before[0])


def let_go(stream: Any) -> None:
    """Point a stream at /dev/null: what is left in its buffer would be an error again when Python ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
