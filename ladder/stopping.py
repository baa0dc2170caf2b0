"""SIGTERM ends what we do as Ctrl-C does: what was finished is written, and workers end."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does. Signal handlers exist in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
