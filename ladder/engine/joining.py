"""A worker as a rank of a process group: how it joins, tells how far it is, and begins a cycle with the others.

`torch.distributed` makes the group, over a file that all ranks of this host see: no port is taken. NCCL's variables
stay as the machine has them. A second group over gloo lets ranks wait for each other without a kernel on their GPUs.
"""

from __future__ import annotations

import datetime
import mmap
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

WIDTH = 8  # bytes of a rank's count
# The worker pool looks after hangs. NCCL's own limit, ten minutes, would end a rank that only waits for another.
TIMEOUT = datetime.timedelta(hours=2)
_INTERFACE = "GLOO_SOCKET_IFNAME"


class Joined:
    """This process's place in a group."""

    def __init__(self, rank: int, ranks: int, folder: str, device: str) -> None:
        torch = sys.modules["torch"]
        import torch.distributed as dist

        if device == "cuda":
            torch.cuda.set_device(rank)
        stay_on_this_host()
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=store,
            rank=rank,
            world_size=ranks,
            timeout=TIMEOUT,
        )
        self.rank, self.ranks = rank, ranks
        self._waiting = dist.group.WORLD
        if device == "cuda":
            self._waiting = dist.new_group(backend="gloo", timeout=TIMEOUT)
            # NCCL connects at its first collective. If it cannot, joining fails, and no capture meets it.
            dist.all_reduce(torch.zeros(1, device="cuda"))
            torch.cuda.synchronize()
        with open(beats_in(Path(folder)), "r+b") as file:
            self._beats = mmap.mmap(file.fileno(), WIDTH * ranks)

    def follow(self, step: Any) -> None:
        """Write down how many all-reduces and replays the step has begun, whenever it begins one."""
        step.ranks.notice = self._write

    def align(self) -> None:
        """Wait until all ranks are here."""
        import torch.distributed as dist

        dist.barrier(self._waiting)

    def _write(self, entered: int) -> None:
        struct.pack_into("<q", self._beats, WIDTH * self.rank, entered)


class Member:
    """The part of a worker that knows of other ranks. Alone it waits for nobody."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.joined: Joined | None = None

    def do_join(self, rank: int, ranks: int, folder: str, device: str) -> dict[str, Any]:
        """Become a rank of a process group of this host. On GPUs the rank is the number of its GPU."""
        self.device, self.joined = device, Joined(rank, ranks, folder, device)
        return {}

    def align(self) -> None:
        """Wait for the other ranks, so that no cycle contains another rank's late start."""
        if self.joined:
            self.joined.align()


def stay_on_this_host() -> None:
    """Let gloo connect over the loopback interface, unless the user has named another.

    All ranks are on this host. By default gloo looks its name up, which waits for a name server that may not answer.
    """
    names = {name for _, name in socket.if_nameindex()}
    if loopback := next((name for name in ("lo", "lo0") if name in names), None):
        os.environ.setdefault(_INTERFACE, loopback)


def beats_in(folder: Path) -> Path:
    """Return the file of the ranks' counts, which outlives every rank."""
    return folder / "beats"


def read_beats(folder: Path, ranks: int) -> list[int]:
    """Return how many all-reduces and replays each rank has begun."""
    return list(struct.unpack(f"<{ranks}q", beats_in(folder).read_bytes()[: WIDTH * ranks]))
