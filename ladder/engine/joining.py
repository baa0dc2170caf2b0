"""A worker as a rank of a process group: how it joins, and tells how far it is.

`torch.distributed` makes the group, over a file that all ranks of this host see: no port is taken. A second group over
gloo lets ranks wait for each other without a kernel on their GPUs.
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
BEATS = "beats"  # the file of the ranks' counts, which outlives every rank
# The worker pool looks after hangs. NCCL's own limit, ten minutes, would end a rank that only waits for another.
TIMEOUT = datetime.timedelta(hours=2)


def use_loopback() -> None:
    """Let gloo talk within this host. By default it looks the host's name up, and no name server may answer."""
    if loopback := {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", min(loopback))


class Joined:
    """This process's place in a group."""

    def __init__(self, rank: int, ranks: int, folder: str, device: str) -> None:
        torch = sys.modules["torch"]
        import torch.distributed as dist

        if device == "cuda":
            torch.cuda.set_device(rank)
        use_loopback()
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{Path(folder) / 'store'}",
            rank=rank,
            world_size=ranks,
            timeout=TIMEOUT,
        )
        self.rank = rank
        self._waiting = dist.group.WORLD
        if device == "cuda":
            self._waiting = dist.new_group(backend="gloo", timeout=TIMEOUT)
            # NCCL connects at its first collective. If it cannot, joining fails, and no capture meets it.
            dist.all_reduce(torch.zeros(1, device="cuda"))
            torch.cuda.synchronize()
        with open(Path(folder) / BEATS, "r+b") as file:
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
