"""Files that are there whole or not at all, and digests of what many of them hold."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.base.paths import ROOT

COMPILED = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")  # sources of extensions, what they include among them


def cache(name: str) -> Path:
    """The folder of one kind of cache: `.cache/NAME` of the project, elsewhere where that cannot be written."""
    return (_own_cache() or ROOT / ".cache") / name


@functools.cache
def _own_cache() -> Path | None:
    """A folder of the user's for the caches of a checkout that cannot be written, else of the system's temporary one.

    None where the checkout can be written, or nothing can.
    """
    if is_writable(ROOT / ".cache"):
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if is_writable(home / "stylegan-ladder"):
        return home / "stylegan-ladder"
    try:
        folder = Path(tempfile.gettempdir()) / f"stylegan-ladder-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        mine = folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
        return folder if mine else None
    except OSError:
        return None


def is_writable(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def cache_variables() -> dict[str, str]:
    """Environment variables for compilers' caches, where these would lie in a folder that cannot be written."""
    found = {}
    if _own_cache() is not None:
        found["TORCH_EXTENSIONS_DIR"] = str(cache("extensions"))
    if not is_writable(Path.home() / ".triton"):
        found["TRITON_CACHE_DIR"] = str(cache("triton"))
    return {name: folder for name, folder in found.items() if not os.environ.get(name)}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file. When the block ends well, ``path`` holds what was written to it, whole or not at all.

    A file is replaced by a rename and keeps its mode and owner. A symlink stays one, and the file that it names is
    replaced. Another hard link keeps the old content. A pipe, a character device or an open descriptor (/dev/stdout)
    gets the content written to it and is never replaced.

    Raises:
        OSError: a folder, a block device, a file without write permission, or a disk that is full.
    """
    target = _behind(Path(path))
    if _takes_bytes(target):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / "content"
            temporary.touch()
            yield temporary
            _hand_over(target, temporary.read_bytes())
        return
    before = _replaceable(target)
    temporary = target.with_name(f".{target.name[:40]}-{uuid.uuid4().hex}.tmp")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # the umask counts
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        if before is not None:
            with suppress(OSError):  # only root may give a file away
                os.chown(temporary, before.st_uid, before.st_gid)
            temporary.chmod(stat.S_IMODE(before.st_mode))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _behind(path: Path) -> Path:
    """Follow symlinks to what ``path`` names, as far as an open descriptor in /proc (/dev/stdout, /dev/fd/3)."""
    for _ in range(40):
        path = Path(os.path.realpath(path.parent), path.name)
        if path.is_relative_to("/proc") or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, "its symlinks lead in a circle", str(path))


def _takes_bytes(target: Path) -> bool:
    """Return whether content is written to what is there, which a rename would destroy: descriptor, pipe, device."""
    if target.is_relative_to("/proc"):
        return True
    return target.is_char_device() or target.is_fifo() or target.is_socket()


def _replaceable(target: Path) -> os.stat_result | None:
    """Return what is known of the file that will be replaced, None if there is none. OSError if it must not be."""
    try:
        there = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(there.st_mode):
        kind = "a folder" if stat.S_ISDIR(there.st_mode) else "a block device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(target))
    if not there.st_mode & 0o222 or not os.access(target, os.W_OK):  # the first holds for root, too
        raise PermissionError(errno.EACCES, "the file there is read-only", str(target))
    return there


def _hand_over(target: Path, content: bytes) -> None:
    """Write to a pipe, a device or an open descriptor. One of ours goes on where it stands, as `> file` expects."""
    sys.stdout.flush()
    own = re.fullmatch(rf"/proc/{os.getpid()}(/task/\d+)?/fd/(\d+)", str(target))
    handle = os.dup(int(own[2])) if own else os.open(target, os.O_WRONLY | os.O_APPEND)
    with open(handle, "wb") as stream:
        stream.write(content)


def refuse_unwritable(*folders: Path) -> None:
    """Raise `UserError`, one line, if a file cannot be written to one of these folders; nothing is left behind.

    Called before anything is measured. It writes, as permissions do not tell: a folder may be read-only all the same.
    """
    for folder in folders:
        made: list[Path] = []
        try:
            for each in [each for each in (folder, *folder.parents) if not each.exists()][::-1]:
                each.mkdir(exist_ok=True)
                made.append(each)
            tempfile.NamedTemporaryFile(prefix=".writable-", dir=folder).close()
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from None
        finally:
            for each in reversed(made):
                with suppress(OSError):  # another process has begun to write there
                    each.rmdir()


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """While the block makes ``path``, other processes that would make it wait here; then they find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed
        yield


def below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Every file in ``folder``, at any depth, whose name ends so; none where there is no folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def digest(root: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256, in hexadecimal digits, of these sources of ``root``: of their names and of their text.

    A line ends with \\n, whatever the checkout has: git's core.autocrlf must not make other code of one commit.
    """
    whole = hashlib.sha256()
    for path in files:
        whole.update(path.relative_to(root).as_posix().encode() + b"\0")
        whole.update(hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).digest())
    return whole.hexdigest()


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write plain data as `write` does. A number that is not finite is a ValueError."""
    write(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def write(path: Path, content: str | bytes) -> None:
    """Write one file whole or not at all; the folder is made. Raises UserError if it cannot be."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def draw(stem: Path, render: Callable[[str], bytes]) -> list[Path]:
    """Write the picture that ``render`` makes as "png" and "svg", named ``stem`` and the suffix. Raises UserError."""
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        write(path, render(path.suffix[1:]))
    return paths


def try_draw(stem: Path, render: Callable[[str], bytes]) -> list[Path]:
    """Draw as `draw` does, after a measurement that is written: what cannot be drawn is one line on stderr."""
    try:
        return draw(stem, render)
    except UserError as error:
        print(f"ladder: {error}", file=sys.stderr)
        return []
