"""Programs of this project that share one import of torch: run one after the other, or as forks of one process."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
RUNNER = """
import contextlib, io, json, os, runpy, sys

ended = []
for module, *arguments in json.loads(sys.argv[1]):
    while "=" in module:
        name, _, os.environ[name] = module.partition("=")
        module, *arguments = arguments
    sys.argv, said, status = [module, *arguments], (io.StringIO(), io.StringIO()), 0
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
    ended.append([status, *(text.getvalue() for text in said)])
json.dump(ended, sys.__stdout__)
"""


PDEATHSIG = 1  # of Linux's prctl


def end_with_parent() -> None:
    """Let this process be killed as soon as its parent ends: Ctrl-C may reach the parent alone. A `preexec_fn`."""
    with contextlib.suppress(AttributeError):  # a system without prctl
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*commands: list[str], **env: str) -> list[Ended]:
    """Run `python -m` each command, with Triton's interpreter off and these variables set.

    A command may begin with NAME=VALUE, as in a shell. The variable stays for the commands after it.
    """
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", RUNNER, json.dumps(commands)]
    done = subprocess.run(command, cwd=ROOT, env=kept | env, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return [Ended(*each) for each in json.loads(done.stdout)]


class Warm:
    """A process that has imported what the helper of `kernels.precompile` imports, and forks helpers.

    Each helper would import for three seconds.
    """

    def __init__(self) -> None:
        import triton

        from kernels.compile import jobs

        triton.runtime.cache.triton_key()
        self.jobs = jobs
        self.socket, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self.socket.close()
            self.serve(asking)
        asking.close()

    def serve(self, asking: socket.socket) -> None:
        """Fork a helper for each message, until nobody is left who could ask."""
        while (message := socket.recv_fds(asking, 1 << 17, 3))[0]:
            if os.fork() == 0:
                self.run(*json.loads(message[0]), message[1])
            for end in message[1]:
                os.close(end)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        os._exit(0)

    def run(self, command: list[str], environment: dict[str, str], ends: list[int]) -> None:
        """Do what `python -c CODE PATH` does, with these descriptors as stdin, stdout and stderr."""
        try:
            for number, end in enumerate(ends):
                os.dup2(end, number)
            os.environ.clear()
            os.environ.update(environment)
            _, _, code, *sys.argv[1:] = command
            exec(code, {})
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)

    @contextlib.contextmanager
    def helping(self) -> Iterator[None]:
        """Let helpers be forks of this process, which ends afterwards."""
        popen = partial(Forked, self.socket)
        with mock.patch.object(
            self.jobs, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": popen})
        ):
            yield
        self.socket.close()
        os.waitpid(self.pid, 0)


class Forked:
    """A helper of `Warm` as `subprocess.Popen` gives it."""

    def __init__(self, asking, command, *, stdin, stdout, stderr, env):
        (read, self.stdin), (self.stdout, write) = os.pipe(), os.pipe()
        socket.send_fds(asking, [json.dumps([command, dict(env)]).encode()], [read, write, stderr.fileno()])
        os.close(read)
        os.close(write)

    def communicate(self, work, timeout):
        with os.fdopen(self.stdin, "wb") as file:
            file.write(work)
        with os.fdopen(self.stdout, "rb") as file:
            return file.read(), None
