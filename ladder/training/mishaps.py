"""Failures of the machine during a training, each as one line with cause and remedy."""

from __future__ import annotations

import os
import re

from ladder.core.errors import format_error, one_line, words_of
from stylegan_lite.step.dataworkers import FAILED

# What torch, oneDNN and the system say, in small letters, and what it means.
MEMORY = (
    r"out of memory|can(no|')t allocate memory|alloc_failed|bad_alloc|could not create a (primitive|memory)"
)
SIGNS = {
    r"/dev/shm|shared memory|unable to mmap|/torch_|bus error": "data workers find no room in /dev/shm: make it larger"
    " (docker: --shm-size) or have `workers: 0` in the recipe",
    r"too many open files": "too many open files: raise the limit with `ulimit -n`, or have fewer `workers` in the"
    " recipe",
    r"can't start new thread|temporarily unavailable": "no more processes or threads may be started (ulimit -u): end"
    " others, or have fewer `workers` in the recipe",
}


def describe_error(error: BaseException) -> str:
    """Return one line for any error: that of ``explain_mishap``, else its type and message."""
    return explain_mishap(error) or format_error(error)


def explain_mishap(error: BaseException) -> str | None:
    """Return one line about a failure of the machine, or None for any other error, such as a mistake of ours."""
    text = words_of(error)
    if match := re.search(r"DataLoader worker .* exit code (\d+)", text):
        number = int(match[1]) - FAILED  # of the error with which a worker could not hand over its batch
        text += os.strerror(number) if number > 0 else ""
    if isinstance(error, OSError) and error.errno:
        text += f" {os.strerror(error.errno)}"
    low = text.lower()
    if isinstance(error, MemoryError) or re.search(MEMORY, low):
        is_gpu = type(error).__name__ == "OutOfMemoryError" or "cuda" in low
        about = f" ({one_line(text)})" if text else ""
        remedy = "end what else uses it; a smaller batch or 16-bit precision needs less"
        return f"the memory of {'the GPU' if is_gpu else 'this machine'} is full{about}: {remedy}"
    if "capture" in low and error.__context__ is not None and (first := explain_mishap(error.__context__)):
        return first  # the end of a capture fails after what broke it, and hides that error
    for sign, meaning in SIGNS.items():
        if re.search(sign, low):
            return meaning
    if "dataloader worker" in low:
        return f"a data worker ended: {one_line(text)}; the system may have run out of memory"
    if isinstance(error, OSError):
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or one_line(text)}"
    if "gloo" in low or "nccl" in low:  # a connection that is closed, reset or silent
        return "another rank has ended, or its network: see what it said"
    if "cuda error" in low or type(error).__name__ == "AcceleratorError":
        return f"the GPU failed: {one_line(text)}"
    return None
