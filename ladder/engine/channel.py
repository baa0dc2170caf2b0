"""The pipes between a worker and the orchestrator, as the worker sees them, and words that both sides use."""

import json
import os
import queue
import signal
import threading

from ladder.core.plain import Plain

# A reader's names of commands.
SPOKEN = dict.fromkeys(("begin", "cycle", "finish"), "visit") | {"trace": "receipts"}
ENVIRONMENT = "environment"  # the system could not give what the rung needs: no verdict on the rung


class Nobody:
    """A stand-in for the other end of a worker's pipes."""

    def send(self, message: Plain) -> None:
        pass


class Channel(Nobody):
    """The protocol's two pipes, out of reach of the measured code's prints and reads."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        self._in = os.fdopen(os.dup(0), "r")
        os.dup2(2, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._in:
            self._commands.put(line)
        # The orchestrator is gone. The work of this moment (a hung kernel, say) must not hold the GPU for ever.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def receive(self) -> Plain:
        return json.loads(self._commands.get())

    def send(self, message: Plain) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()
