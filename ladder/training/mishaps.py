"""Failures of the machine during a training, each as one line with cause and remedy."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal

from ladder.core.errors import format_error, one_line, words_of
from stylegan_lite.dataworkers import FAILED

MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed", "bad_alloc",
    "could not create a primitive", "could not create a memory",  # oneDNN's messages on a CPU
)  # fmt: skip
FEWER = "have fewer `workers` in the recipe"
SHM, ROOM = "/dev/shm", 64 * 2**20  # with this many bytes free, a batch had room


def describe_error(error: BaseException) -> str:
    """Return one line for any error: that of ``explain``, else its type and message."""
    return explain_mishap(error) or format_error(error)


def explain_mishap(error: BaseException) -> str | None:
    """Return one line about a failure of the machine, or None for any other error, such as a mistake of ours."""
    text = words_of(error)
    low, number = text.lower(), error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or any(sign in low for sign in MEMORY):
        is_gpu = type(error).__name__ == "OutOfMemoryError" or "cuda" in low
        about = f" ({one_line(text)})" if text else ""
        remedy = "end what else uses it; a smaller batch or 16-bit precision needs less"
        return f"the memory of {'the GPU' if is_gpu else 'this machine'} is full{about}: {remedy}"
    if "capture" in low and error.__context__ is not None and (first := explain_mishap(error.__context__)):
        return first  # the end of a capture fails after what broke it, and hides that error
    if match := re.search(r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (.*)", text):
        return _explain_worker(match[1])
    if SHM in low or "shared memory" in low or "unable to mmap" in low or "/torch_" in low:
        return _explain_shared_memory(text)
    if "too many open files" in low or number in (errno.EMFILE, errno.ENFILE):
        return _explain_open_files()
    if "can't start new thread" in low or number == errno.EAGAIN:
        return f"no more processes or threads may be started (ulimit -u): end others, or {FEWER}"
    if not isinstance(error, OSError) and (
        "gloo" in low or "nccl" in low
    ):  # a connection that is closed, reset or silent
        return "another rank has ended, or its network: see what it said"
    if isinstance(error, OSError):
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or one_line(text)}"
    if "cuda error" in low or type(error).__name__ == "AcceleratorError":
        return f"the GPU failed: {one_line(text)}"
    return None


def _explain_worker(ending: str) -> str:
    """Return one line on the end of a data worker, from torch's message."""
    if "Bus error" in ending:
        return _explain_shared_memory(ending)
    if (match := re.search(r"exit code (\d+)", ending)) and int(match[1]) > FAILED:
        number = int(match[1]) - FAILED
        if number in (errno.EMFILE, errno.ENFILE):
            return _explain_open_files()
        return f"a data worker cannot hand over its batch: {os.strerror(number)}"
    match = re.search(r"killed by signal: ([^.]+)", ending)
    how = f"a data worker was ended from outside ({match[1].strip()})" if match else "a data worker ended"
    if match and match[1].strip() != signal.strsignal(9):
        return how
    return f"{how}; the system may have run out of memory: {FEWER}"


def _explain_shared_memory(text: str) -> str:
    """Return one line on why data workers cannot share a batch: no room, or no permission to write."""
    remedy = "have `workers: 0` in the recipe"
    try:
        disk = shutil.disk_usage(SHM)
    except OSError:
        return f"data workers need {SHM}, which cannot be used here: {remedy}"
    if disk.free > ROOM:
        return f"data workers cannot use {SHM} ({one_line(text)}): make it writable or {remedy}"
    size = f"{disk.free / 2**20:.1f} of {disk.total / 2**20:.1f} MiB are free"
    return f"data workers found no room in {SHM} ({size}): make it larger (docker: --shm-size) or {remedy}"


def _explain_open_files() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"too many open files (at most {limit} here): raise it with `ulimit -n`, or {FEWER}"
