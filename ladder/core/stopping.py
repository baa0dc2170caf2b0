"""Signals that end a run: finished work is written, and workers end.

SIGTERM comes from batch systems and `timeout`, SIGHUP from a terminal or an ssh session that closes. A signal that
was ignored when the program started (`nohup`: SIGHUP; a job in the background of a script: SIGINT) stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

OTHERS = (signal.SIGTERM, signal.SIGHUP)  # beside Ctrl-C, which Python handles
Handler = Callable[[int, object], None]


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does, once. Later signals do not interrupt the writing.

    Signal handlers exist in the main thread only. The interruption's argument is the signal's number.
    """
    came, process = False, os.getpid()

    def stop(number: int, frame: object) -> None:
        nonlocal came
        if os.getpid() != process:  # one of a pool, forked with this handler, is ended by SIGTERM
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        _leave_dead_terminal(number)
        if not came:
            came = True
            raise KeyboardInterrupt(number)

    with handle_signals(OTHERS, stop):
        yield


@contextlib.contextmanager
def stop_between() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C, SIGTERM or SIGHUP has come. The caller stops between two steps.

    A second Ctrl-C raises KeyboardInterrupt at once. Repeated SIGTERM and SIGHUP change nothing: a closed terminal
    sends several.
    """
    came: list[int] = []  # no Event: its lock would wait for itself if a signal comes within a signal

    def note(number: int, frame: object) -> None:
        _leave_dead_terminal(number)
        again = number == signal.SIGINT and number in came
        came.append(number)
        if again:
            raise KeyboardInterrupt

    with handle_signals((signal.SIGINT, *OTHERS), note):
        yield lambda: bool(came)


@contextlib.contextmanager
def handle_signals(
    numbers: tuple[signal.Signals, ...], handler: Handler
) -> Iterator[dict[signal.Signals, Any]]:
    """Let ``handler`` see these signals, except ignored ones. In another thread than the main one it sees none.

    Yields the handler that each signal had, and gets back at the end.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
    before = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP come when the block has ended, so that what it exchanges is whole."""
    came: list[int] = []
    try:
        with handle_signals((signal.SIGINT, *OTHERS), lambda number, _: came.append(number)):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


def _leave_dead_terminal(number: int) -> None:
    """Let go of a terminal that is gone, after SIGHUP.

    Else each line to it would be an error while results are saved.
    """
    if number != signal.SIGHUP:
        return
    for handle in (0, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode) and not os.isatty(handle) and not _is_null(handle):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, handle)
                os.close(null)


def _is_null(handle: int) -> bool:
    return os.fstat(handle).st_rdev == os.stat(os.devnull).st_rdev


def end_surely(end: Callable[[], None]) -> None:
    """Call what ends processes until no other Ctrl-C falls into it. Raises `KeyboardInterrupt` if one did."""
    again: KeyboardInterrupt | None = None
    while True:
        try:
            end()
            break
        except KeyboardInterrupt as pressed:
            again = pressed
    if again:
        raise again
