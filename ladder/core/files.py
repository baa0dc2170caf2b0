"""Files that are written whole or not at all, and digests of many files."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import os
import stat
import sys
import tempfile
import tokenize
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ladder.core.errors import UserError
from ladder.core.paths import ROOT

COMPILED = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")  # sources of extensions and their headers


def cache_folder(name: str) -> Path:
    """Return the folder of one kind of cache: `.cache/NAME` of the project, or a user's folder if that is read-only."""
    return (_own_cache() or ROOT / ".cache") / name


@functools.cache
def _own_cache() -> Path | None:
    """Return a folder of the user for the caches of a read-only checkout, None if the checkout can be written."""
    if is_writable(ROOT / ".cache"):
        return None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stylegan-ladder"


def is_writable(folder: Path) -> bool:
    """Return whether a folder can be written, or made."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def cache_variables() -> dict[str, str]:
    """Return environment variables that move compilers' caches out of folders that cannot be written."""
    found = {}
    if _own_cache() is not None:
        found["TORCH_EXTENSIONS_DIR"] = str(cache_folder("extensions"))
    if not is_writable(Path.home() / ".triton"):
        found["TRITON_CACHE_DIR"] = str(cache_folder("triton"))
    return {name: folder for name, folder in found.items() if not os.environ.get(name)}


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file. When the block ends well, ``path`` holds what was written to it, whole or not at all.

    A file is replaced by a rename and keeps its mode. A symlink stays one, and the file that it names is replaced. A
    pipe or a device, such as /dev/stdout, gets the content written to it.

    Raises:
        OSError: a folder, a file without write permission, or a disk that is full.
    """
    path = Path(path)
    if path.is_relative_to("/dev") or path.is_fifo():
        sys.stdout.flush()
        with tempfile.NamedTemporaryFile() as temporary:
            yield Path(temporary.name)
            content = Path(temporary.name).read_bytes()
        # Our own descriptor continues where it stands, as `> file` expects.
        handle = os.dup(1) if path == Path("/dev/stdout") else os.open(path, os.O_WRONLY | os.O_APPEND)
        with open(handle, "wb") as stream:
            stream.write(content)
        return
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not mode & 0o222:
        raise PermissionError(errno.EACCES, "the file there is read-only", str(target))
    temporary_path = target.with_name(f".{target.name[:40]}-{uuid.uuid4().hex}.tmp")
    try:
        temporary_path.touch(exist_ok=False)
        yield temporary_path
        with open(temporary_path, "rb") as stream:
            os.fsync(stream.fileno())
        if mode is not None:
            temporary_path.chmod(stat.S_IMODE(mode))
        os.replace(temporary_path, target)
    finally:
        temporary_path.unlink(missing_ok=True)


def refuse_unwritable(*folders: Path, images: object = None) -> None:
    """Raise `UserError`, one line, if a file cannot be written to one of these folders. Nothing is left behind.

    Called before anything is measured. It writes a file, because a folder may be read-only whatever its permissions
    say. A folder inside that of the `images` is refused, too: pictures written there would be images next time.
    """
    for folder in folders:
        if isinstance(images, str) and Path(images).resolve() in (
            folder.resolve(),
            *folder.resolve().parents,
        ):
            raise UserError(f"{folder}: --out lies in the images of {images}: write elsewhere")
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
    """Hold a lock on ``path`` while the block makes it. Other processes wait, then find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        yield


def list_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return every file in ``folder``, at any depth, with one of these suffixes. Empty if there is no folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def digest_sources(root: Path, files: Iterable[Path], *, by_tokens: bool = False) -> str:
    """Return the SHA-256, in hexadecimal digits, of the names and the text of these sources of ``root``.

    Line ends count as \\n: git's core.autocrlf must not change the digest of a commit. ``by_tokens``: Python sources
    count by their tokens (`significant_tokens`).
    """
    whole = hashlib.sha256()
    for path in files:
        content = path.read_bytes().replace(b"\r\n", b"\n")
        if by_tokens and path.suffix == ".py":
            content = "\0".join(significant_tokens(content.decode())).encode()
        whole.update(path.relative_to(root).as_posix().encode() + b"\0")
        whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()


def significant_tokens(source: str) -> list[str]:
    """Return the tokens of Python code without its comments, docstrings and import statements.

    Python 3.10 to 3.13 give the same tokens: an f-string, several tokens since 3.12, counts as its source text.
    """
    lines = list(io.StringIO(source))
    tokens: list[str] = []
    statement: list[tuple[int, str]] = []
    inside: list[tuple[int, int]] = []  # where the f-strings around this token begin
    for kind, text, start, end, _ in tokenize.generate_tokens(iter(lines).__next__):
        name = tokenize.tok_name[kind]
        if name == "FSTRING_START":
            inside.append(start)
        elif name == "FSTRING_END":
            start = inside.pop()
            text, kind = _text_between(lines, start, end), tokenize.STRING
        if inside or kind in (tokenize.COMMENT, tokenize.NL):
            continue
        if kind == tokenize.NEWLINE or text == ";":
            tokens += _kept_tokens(statement)
            statement = []
        elif kind in (tokenize.INDENT, tokenize.DEDENT):
            tokens.append(name)
        elif kind != tokenize.ENDMARKER:
            statement.append((kind, text))
    return tokens


def _text_between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the source from one place to another, each a line from 1 and a column from 0."""
    text = "".join(lines[start[0] - 1 : end[0]])
    return text[start[1] : len(text) - len(lines[end[0] - 1]) + end[1]]


def _kept_tokens(statement: list[tuple[int, str]]) -> list[str]:
    """Return the tokens of a statement and the end of its line, or [] for an import and a string that stands alone."""
    is_import = statement[:1] in ([(tokenize.NAME, "import")], [(tokenize.NAME, "from")])
    if is_import or all(kind == tokenize.STRING for kind, _ in statement):
        return []
    return [*(text for _, text in statement), "\n"]


def read_file(path: Path, most: int, *, links: bool = True) -> bytes:
    """Return the bytes of a regular file of at most ``most`` bytes.

    A pipe or a device is not opened: it may wait for ever, or have no end. With ``links`` a symlink is followed, and
    what a user names below /dev is read, such as `<(command)`; no search of a folder finds that.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is larger, or no regular file.
    """
    path = Path(path)
    named = links and path.is_relative_to("/dev")
    if path.exists() and not (named or path.is_file()):
        raise ValueError("not a regular file")
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most} bytes")
    return content


def write_file(path: Path, content: str | bytes) -> None:
    """Write one file whole or not at all, and make its folder. Raises UserError if that fails."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def draw_pictures(stem: Path, render: Callable[[str], bytes]) -> list[Path]:
    """Write the picture that ``render`` makes as ``stem``.png and ``stem``.svg. Raises UserError."""
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        write_file(path, render(path.suffix[1:]))
    return paths


def try_draw(stem: Path, render: Callable[[str], bytes]) -> list[Path]:
    """Draw as `draw` does, after the measurement is written. A picture that cannot be drawn is one line on stderr."""
    try:
        return draw_pictures(stem, render)
    except UserError as error:
        print(f"ladder: {error}", file=sys.stderr)
        return []
