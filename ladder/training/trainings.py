"""Trainings side by side, each in a process of its own: for what is not timed and may share a GPU.

A process is used again for the next training unless one broke in it (its CUDA context may be unusable then). A process
that dies costs the training it was at, and nothing else.
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
from typing import Any

from ladder.training import mishaps

Task = tuple[Any, ...]
Record = dict[str, Any]  # it has "reason": None, or one line why the training broke


def run(
    prepare: Callable[..., Callable[..., Record]], arguments: Task, tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Record]]:
    """Each task with the record that ``prepare(*arguments)(*task)`` returns, in the order in which they end.

    ``prepare`` is called once in each process; it and everything that is handed over must be picklable. Closing the
    iterator ends the processes, and so does the end of this one.
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
            for connection in wait(list(busy)):
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
    """One process, in a process group with the data loaders that it starts."""

    def __init__(self, prepare: Callable[..., Any], arguments: Task) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process that has used CUDA cannot use it
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, prepare, arguments))
        self.process.start()
        other.close()  # so that the end of the process is the end of the pipe

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
        self.process.kill()  # it may not have its group yet
        self.process.join()
        self.connection.close()


def _given(member: _Member, task: Task) -> _Member | None:
    """The member, with the task; None if it is no longer there."""
    try:
        member.connection.send(task)
        return member
    except OSError:
        member.kill()
        return None


def _work(connection: Connection, prepare: Callable[..., Callable[..., Record]], arguments: Task) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for the process that asked; it ends us
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
