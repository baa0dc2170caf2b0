"""Registers and memory that the compiler gave each CUDA C++ kernel, and the blocks that a
multiprocessor holds at once.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from .build import Flags
from .calls import function, signatures


class Resources(NamedTuple):
    """The resources of one kernel. Occupancy is theoretical: warps that fit, over warps that the multiprocessor has
    room for.
    """

    kernel: str
    registers: int  # registers of 4 bytes, a thread
    shared: int  # bytes a block: the static ones, and the dynamic ones asked about
    spilled: int  # bytes of local memory a thread
    largest_block: int  # threads
    threads: int  # threads of the block asked about
    blocks: int  # blocks of it that a multiprocessor holds; 0: too large a block
    occupancy: float


def resources(*, threads: int = 256, dynamic: int = 0, flags: Flags = Flags()) -> list[Resources]:  # noqa: B008
    """Return a row for each kernel, launched in blocks of `threads` with `dynamic` bytes of shared memory.

    Raises `Unavailable` where the kernels cannot be built.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    found = []
    for table in sorted(name for name in signatures() if name.endswith("_kernels")):
        row = 0
        while (one := _row(function(table, flags, device), row, threads, dynamic, device)) is not None:
            found.append(one)
            row += 1
    return found


def _row(table, row: int, threads: int, dynamic: int, device: int) -> Resources | None:
    name, numbers = ctypes.create_string_buffer(96), (ctypes.c_int64 * 5)()
    if table(row, threads, dynamic, ctypes.addressof(name), ctypes.addressof(numbers)):
        return None
    registers, static, local, largest, blocks = numbers
    places = torch.cuda.get_device_properties(device).max_threads_per_multi_processor
    occupancy = min(blocks * threads / places, 1.0)
    shared = static + dynamic
    return Resources(name.value.decode(), registers, shared, local, largest, threads, blocks, occupancy)
