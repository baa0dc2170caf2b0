"""Files that are there whole or not at all, and digests of what many of them hold."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ladder.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
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
    """Yield a temporary file beside ``path``; when the block ends well it is synced and takes ``path``'s place."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would shut out other users
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
