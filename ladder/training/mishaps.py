"""Failures of the machine during a training, each as one line with cause and remedy."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal

from ladder.base.errors import describe, one_line, words_of
from stylegan_lite.dataworkers import FAILED

MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed", "bad_alloc",
    "could not create a primitive", "could not create a memory",  # oneDNN's messages on a CPU
)  # fmt: skip
_WORKERS = "fewer `workers` in the recipe"
_SMALLER = "a smaller batch or 16-bit precision needs less"
_SHM, _ROOM = "/dev/shm", 64 * 2**20  # with this many bytes free, a batch had room


def explain(error: BaseException) -> str | None:
    """Return one line about a failure of the machine, or None for any other error, such as a mistake of ours."""
    text = words_of(error)
    low = text.lower()
    if isinstance(error, MemoryError) or any(sign in low for sign in MEMORY):
        return _explain_memory(error, text)
    if "capture" in low and error.__context__ is not None and (first := explain(error.__context__)):
        return first  # the end of a capture fails after what broke it, and hides that error
    if match := re.search(r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (.*)", text):
        return _explain_worker(match[1])
    if _SHM in low or "shared memory" in low or "unable to mmap" in low or "/torch_" in low:
        return _explain_shared_memory(text)
    if "too many open files" in low or _get_number(error) in (errno.EMFILE, errno.ENFILE):
        return _explain_open_files()
    if "can't start new thread" in low or _get_number(error) == errno.EAGAIN:
        return f"no more processes or threads may be started (ulimit -u): end others, or have {_WORKERS}"
    peers = ("gloo", "nccl")  # their connections are closed, reset, refused or silent for too long
    if not isinstance(error, OSError) and any(sign in low for sign in peers):  # a file may be named so
        return "another rank has ended, or its network: see what it said"
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or one_line(text)}"
    if "cuda error" in low or type(error).__name__ == "AcceleratorError":
        return f"the GPU failed: {one_line(text)}"
    return None


def _get_number(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _explain_memory(error: BaseException, text: str) -> str:
    is_gpu = type(error).__name__ == "OutOfMemoryError" or "cuda" in text.lower()
    message = one_line(text)
    about = f" ({message})" if message else ""
    where = "the GPU" if is_gpu else "this machine"
    return f"the memory of {where} is full{about}: end what else uses it; {_SMALLER}"


def _explain_worker(ending: str) -> str:
    """Return one line on the end of a data worker, from torch's message."""
    if "Bus error" in ending:
        return _explain_shared_memory(ending)
    if match := re.search(r"killed by signal: ([^.]+)", ending):
        killed = match[1].strip()
        hint = f"; the system may have run out of memory: have {_WORKERS}"
        return (
            f"a data worker was ended from outside ({killed}){hint if killed == signal.strsignal(9) else ''}"
        )
    if (match := re.search(r"exit code (\d+)", ending)) and int(match[1]) > FAILED:
        number = int(match[1]) - FAILED
        if number in (errno.EMFILE, errno.ENFILE):
            return _explain_open_files()
        return f"a data worker cannot hand over its batch: {os.strerror(number)}"
    return f"a data worker ended; the system may have run out of memory: have {_WORKERS}"


def _explain_shared_memory(text: str) -> str:
    """Return one line on why data workers cannot share a batch: no room, or no permission to write."""
    helps = "have `workers: 0` in the recipe"
    try:
        disk = shutil.disk_usage(_SHM)
    except OSError:
        return f"data workers need {_SHM}, which cannot be used here: {helps}"
    if disk.free > _ROOM:
        return f"data workers cannot use {_SHM} ({one_line(text)}): make it writable or {helps}"
    size = f"{disk.free / 2**20:.1f} of {disk.total / 2**20:.1f} MiB are free"
    return f"data workers found no room in {_SHM} ({size}): make it larger (docker: --shm-size) or {helps}"


def _explain_open_files() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"too many open files (at most {limit} here): raise it with `ulimit -n`, or have {_WORKERS}"


def describe_error(error: BaseException) -> str:
    """Return one line for any error: that of ``explain``, else its type and message."""
    return explain(error) or describe(error)
