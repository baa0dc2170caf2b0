"""A worker as a rank of a process group: how it joins, tells how far it is, and begins a cycle with the others.

`torch.distributed` makes the group, over a file that all ranks of this host see: no port is taken. NCCL's variables
stay as the machine has them. A second group over gloo lets ranks wait for each other without a kernel on their GPUs.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Any

WIDTH = 8  # bytes of a rank's count


class Joined:
    """This process's place in a group."""

    def __init__(self, rank: int, ranks: int, folder: str, device: str) -> None:
        torch = sys.modules["torch"]
        import torch.distributed as dist

        if device == "cuda":
            torch.cuda.set_device(rank)
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo", init_method=store, rank=rank, world_size=ranks
        )
        self.rank, self.ranks = rank, ranks
        self._waiting = dist.new_group(backend="gloo") if device == "cuda" else dist.group.WORLD
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


def beats_in(folder: Path) -> Path:
    """Return the file of the ranks' counts, which outlives every rank."""
    return folder / "beats"


def read_beats(folder: Path, ranks: int) -> list[int]:
    """Return how many all-reduces and replays each rank has begun."""
    return list(struct.unpack(f"<{ranks}q", beats_in(folder).read_bytes()[: WIDTH * ranks]))
