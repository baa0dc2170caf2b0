"""A tool of NVIDIA's with the program that it watches: both end together, whatever ends the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.base.paths import ROOT


@dataclass(frozen=True)
class Done:
    """The output of a tool that has ended, and its exit status."""

    stdout: str
    stderr: str
    status: int


def run(line: Sequence[str], timeout_s: float) -> Done:
    """Run a command line in the project's folder.

    The tool starts the program that it watches. Ended alone, it would leave that program on the GPU. So both are in a
    session of their own, which is killed as a whole, also after Ctrl-C.

    Raises:
        TimeoutError: it was not done after so many seconds.
        OSError: it did not start.
    """
    process = subprocess.Popen(
        line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        with contextlib.suppress(OSError):  # all gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return Done(stdout, stderr, process.returncode)
