"""Data workers that end when something fails. Torch's own print a traceback and leave the training waiting for ever.

A worker hands each batch over as a file descriptor of shared memory. It goes through a Unix socket in multiprocessing's
temporary folder. Both can fail in a thread of the worker that nobody watches. The socket's path may be too long, or
the limit of open files reached. This file imports nothing of ours, so that NVIDIA's step can use it as well.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import queues, util
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader

FAILED = 100  # plus the system's error number: the exit status of a worker that cannot hand over a batch
# Bytes of a folder's path for sockets; Linux allows 107 in all
LONGEST = 107 - len("/pymp-12345678/listener-12345678")
_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)


def started(loader: DataLoader) -> Iterator[Any]:
    """Return an iterator of ``loader``, with its workers, if any, started.

    Raises:
        OSError: no temporary folder has a path that is short enough for the workers' sockets, or the system refuses
            processes, files or shared memory.
    """
    if loader.num_workers:
        make_socket_folder()
    try:
        return iter(loader)
    except OSError as error:
        _release(error)
        raise


def make_socket_folder() -> None:
    """Make the folder for the sockets of this process and its children. A short path is chosen.

    Raises:
        OSError: no folder is short enough and writable.
    """
    config = vars(multiprocessing.current_process())["_config"]  # Processes started from here inherit it.
    made = config.get("tempdir")
    if made is not None and os.path.isdir(made) and len(os.fsencode(os.path.dirname(made))) <= LONGEST:
        return
    for folder in (_usual(), *_FOLDERS):
        if folder is not None and len(os.fsencode(folder)) <= LONGEST:
            with suppress(OSError):  # It does not exist, or cannot be written.
                config["tempdir"] = made = tempfile.mkdtemp(prefix="pymp-", dir=folder)
                gone = {"ignore_errors": True}
                util.Finalize(None, shutil.rmtree, args=(made,), kwargs=gone, exitpriority=-100)
                return
    raise OSError(
        errno.ENAMETOOLONG,
        f"data workers: no folder for their sockets: set TMPDIR to a writable one of at most {LONGEST} characters",
    )


def _usual() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:  # No folder can be written.
        return None


def begin(worker: int) -> None:
    """Prepare a worker (``worker_init_fn``). Only its parent reacts to Ctrl-C, and a failing thread ends the worker."""
    for number in (signal.SIGINT, signal.SIGHUP):  # The terminal sends the signal to workers, too.
        signal.signal(number, signal.SIG_IGN)
    # Python's hook for a failing thread of a queue. The stubs of the standard library leave it out.
    queues.Queue._on_queue_feeder_error = staticmethod(lambda error, batch: _end(error))  # type: ignore[attr-defined]
    of_process, of_thread = sys.excepthook, threading.excepthook

    def in_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _end_if_lacking(error)
        of_process(kind, error, trace)

    def in_thread(seen: Any) -> None:
        _end_if_lacking(seen.exc_value)
        of_thread(seen)

    sys.excepthook, threading.excepthook = in_process, in_thread


def _end_if_lacking(error: BaseException | None) -> None:
    if getattr(error, "errno", None) in _LACKING:
        _end(error)


def _end(error: BaseException | None) -> None:
    if isinstance(error, OSError) and str(error) == "AF_UNIX path too long":  # The error has no number.
        os._exit(FAILED + errno.ENAMETOOLONG)
    os._exit(FAILED + (getattr(error, "errno", None) or 0))


def _release(error: OSError) -> None:
    """Let go of the half-made iterator that the traceback holds. Torch's destructor complains about it on stderr."""
    before, sys.unraisablehook = sys.unraisablehook, lambda seen: None
    try:
        traceback.clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = before
