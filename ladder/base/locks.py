"""Locks of this host, on one GPU and on a folder of results."""

import contextlib
import errno
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ladder.base.errors import UserError

MOST_TRIES = 100  # at a lock whose folder or file is removed meanwhile


@contextlib.contextmanager
def folder_lock(folder: Path, name: str = "", movable: bool = True) -> Iterator[None]:
    """Hold `folder` for one run. The folder is made if missing, and removed again if it stays empty.

    `name` says which results of the folder are held, if runs with other names may write beside them. `movable`:
    whether the user may name another folder; a run that is resumed goes on in its own.

    Raises `UserError` if another run holds the folder or it cannot be written.
    """
    folder = Path(folder)
    path = folder / f".{name}.lock" if name else folder / ".lock"
    made: list[Path] = []
    try:
        handle = _take_lock(path, made)
    except BlockingIOError:
        other = " or name another folder with --out" * movable
        raise UserError(f"{folder}: another run is writing here; wait for it{other}") from None
    except OSError as error:
        why = error.strerror
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            why = "its file system has no locks; name a folder of another one with --out"
        raise UserError(f"{folder}: results cannot be written here: {why}") from None
    try:
        yield
    finally:
        path.unlink(
            missing_ok=True
        )  # while still held: a process that opened it meanwhile sees that it is gone and tries again
        os.close(handle)
        with contextlib.suppress(OSError):  # a folder with files stays
            for each in made:
                each.rmdir()


def _take_lock(path: Path, made: list[Path]) -> int:
    """Open and lock the file, or raise OSError. Folders made for it go into `made`, the deepest first."""
    for left in range(MOST_TRIES, -1, -1):
        made += [each for each in path.parents if not each.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another run has just removed the folder that it had made, or it is /proc
            if left:
                continue
            raise
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                return handle
        os.close(handle)
    raise BlockingIOError(errno.EAGAIN, "others take the lock again and again", str(path))


@contextlib.contextmanager
def device_lock(
    key: str | None, on_wait: Callable[[], None] | None = None, shared: bool = False
) -> Iterator[None]:
    """Hold this host's lock on one GPU: two runs that tune or time on it together would both be wrong.

    `key` names the GPU (None: nothing to lock). `on_wait` is called once if another process holds the lock; by default
    a line on stderr says so. There is no time limit, as a run that began earlier may end first. Without a usable
    temporary folder there is no lock. `shared`: nothing is timed, so others that time nothing may hold it, too.
    """
    if key is None:
        yield
        return
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        handle = _open_shared(Path(tempfile.gettempdir()) / f"stylegan-ladder-{name}.lock")
    except OSError:
        yield
        return
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    try:
        waited = False
        while True:
            try:
                fcntl.flock(handle, how)
                break
            except BlockingIOError:
                if not waited:
                    (on_wait or _say_waiting)()
                waited = True
                time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def _say_waiting() -> None:
    print("waits for another run on this GPU", file=sys.stderr)


def _open_shared(path: Path) -> int:
    """Open a lock file that another user may have made. In a sticky folder the kernel refuses O_CREAT for it."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
