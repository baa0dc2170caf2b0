"""Locks of this host, on one GPU and on a folder of results. They are files of the temporary folder."""

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ladder.core.errors import UserError


@contextlib.contextmanager
def folder_lock(folder: Path, name: str = "", movable: bool = True) -> Iterator[None]:
    """Hold `folder` for one run. The folder is created if missing, and removed again if it stays empty.

    `name` selects the results of the folder that are held, if runs with other names may write beside them. `movable`:
    whether the user may name another folder; a run that is resumed continues in its own.

    Raises `UserError` if another run holds the folder or it cannot be created.
    """
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: results cannot be written here: {error.strerror}") from None
    handle = _open_lock(f"{folder.resolve()}\0{name}")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = " or name another folder with --out" if movable else ""
            raise UserError(f"{folder}: another run is writing here; wait for it{other}") from None
        yield
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):  # a folder with files stays
            for each in created:
                each.rmdir()


@contextlib.contextmanager
def device_lock(
    key: str | None, on_wait: Callable[[], None] | None = None, shared: bool = False
) -> Iterator[None]:
    """Hold this host's lock on one GPU: two runs that tune or time on it together would both be wrong.

    `key` names the GPU (None: nothing to lock). `on_wait` is called once if another process holds the lock; by default
    a line is written to stderr. There is no time limit, as a run that began earlier may end first. `shared`: nothing is
    timed, so that others which time nothing may hold it, too.
    """
    if key is None:
        yield
        return
    handle = _open_lock(key)
    how, is_waiting = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, False
    try:
        while True:
            try:
                fcntl.flock(handle, how | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_waiting:
                    (on_wait or _report_waiting)()
                is_waiting = True
                time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def _report_waiting() -> None:
    print("waits for another run on this GPU", file=sys.stderr)


def _open_lock(key: str) -> int:
    """Open a lock file that another user may have created. In a sticky folder the kernel refuses O_CREAT for it."""
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"stylegan-ladder-{name}.lock"
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
