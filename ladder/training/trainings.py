"""Parallel trainings, each in its own process, for work that is not timed and may share a GPU.

A process takes the next training unless one broke in it, because its CUDA context may then be unusable. A process
that dies loses only its current training.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypedDict

from ladder.training import mishaps

Task = tuple[Any, ...]


class Record(TypedDict):
    """The outcome of a training. A training that came to its end has further keys."""

    reason: str | None  # one line on why the training broke


def run(
    prepare: Callable[..., Callable[..., Record]], arguments: Task, tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Record]]:
    """Yield each task with the record of ``prepare(*arguments)(*task)``, in the order of completion.

    Each process calls ``prepare`` once. ``prepare`` and all arguments and tasks must be picklable. The processes
    end when the iterator is closed or this process ends.
    """
    waiting = collections.deque(tasks)
    busy: dict[Connection, tuple[_Member, Task]] = {}
    idle: list[_Member] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                task = waiting.popleft()
                member = _given(idle.pop(), task) if idle else None
                member = member or _given(_Member(prepare, arguments), task)
                if member is None:
                    yield task, {"reason": "a process for it could not be started"}
                else:
                    busy[member.connection] = member, task
            ready = wait([*busy])
            for connection in [each for each in busy if each in ready]:
                member, task = busy.pop(connection)
                record = member.answer()
                if record["reason"] is None:
                    idle.append(member)
                else:
                    member.kill()
                yield task, record
    finally:
        for member in [*idle, *(member for member, _ in busy.values())]:
            member.kill()


class _Member:
    """One worker process, in a process group with its own data loaders."""

    def __init__(self, prepare: Callable[..., Any], arguments: Task) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use the CUDA of its parent
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, prepare, arguments))
        self.process.start()
        other.close()  # so that the pipe ends with the process

    def answer(self) -> Record:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
            if code is not None and code < 0:
                return {"reason": f"worker killed by {signal.Signals(-code).name}"}
            return {"reason": f"worker ended with status {code}"}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # the process may not have its group yet
        self.process.join()
        self.connection.close()


def _given(member: _Member, task: Task) -> _Member | None:
    """Send the task to the member and return it, or None if its process is gone."""
    try:
        member.connection.send(task)
        return member
    except OSError:
        member.kill()
        return None


def _work(connection: Connection, prepare: Callable[..., Callable[..., Record]], arguments: Task) -> None:
    os.setpgid(0, 0)  # Ctrl-C goes to the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    train = None
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            train = train or prepare(*arguments)
            record = train(*task)
        except Exception as error:
            record = {"reason": mishaps.told(error)}
        connection.send(record)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)
