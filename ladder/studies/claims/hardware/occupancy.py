"""Theoretical occupancy: how many blocks of a kernel fit on one multiprocessor, and what stops the next one.

Occupancy is the share of a multiprocessor's places for warps that are taken. Four things run out: places for warps,
places for blocks, registers (handed out to a warp in pieces of 256) and shared memory (in pieces of 128 bytes, 1 KiB of
it the system's own for each block). The rules are those of the CUDA toolkit's cuda_occupancy.h, for architectures from
8.0 on; tests/studies/claims/test_claims_occupancy.py holds them against its answers.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
REGISTER_PIECE = 256  # registers a warp gets at a time
SHARED_PIECE = 128  # bytes a block gets at a time
SHARED_RESERVED = 1024  # bytes of each block that the system keeps
PARTITIONS = 4  # of a multiprocessor, each with a quarter of the registers
MOST_THREADS = 1024  # of a block
MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor has. `shared` is in bytes, at the largest carve-out."""

    warps: int
    blocks: int
    registers: int
    shared: int


_KIB = 1024
BY_ARCHITECTURE = {
    80: Limits(64, 32, 65536, 164 * _KIB),
    86: Limits(48, 16, 65536, 100 * _KIB),
    87: Limits(48, 16, 65536, 164 * _KIB),
    89: Limits(48, 24, 65536, 100 * _KIB),
    90: Limits(64, 32, 65536, 228 * _KIB),
    100: Limits(64, 32, 65536, 228 * _KIB),
    103: Limits(64, 32, 65536, 228 * _KIB),
    120: Limits(48, 24, 65536, 100 * _KIB),
    121: Limits(48, 24, 65536, 100 * _KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """`share` of the places for warps; `limits` names what runs out first (several where they tie)."""

    blocks: int
    share: float
    limits: tuple[str, ...]


def occupancy(limits: Limits, threads: int, registers: int, shared: int) -> Occupancy:
    """Of blocks of `threads` threads with `registers` each and `shared` bytes a block, static and dynamic together.

    Raises:
        ValueError: no GPU has such a block.
    """
    if not 1 <= threads <= MOST_THREADS or not 0 <= registers <= MOST_REGISTERS or shared < 0:
        raise ValueError(f"no block has {threads} threads, {registers} registers and {shared} bytes")
    warps = -(-threads // WARP)
    fits = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(limits, warps, registers),
        "shared memory": limits.shared // _rounded_up(shared + SHARED_RESERVED, SHARED_PIECE),
    }
    blocks = min(fits.values())
    stopping = tuple(name for name, count in fits.items() if count == blocks)
    return Occupancy(blocks, blocks * warps / limits.warps, stopping)


def _by_registers(limits: Limits, warps: int, registers: int) -> int:
    """Registers belong to a quarter of the multiprocessor each, and a warp's are all in one."""
    if registers == 0:
        return limits.blocks
    piece = _rounded_up(registers * WARP, REGISTER_PIECE)
    if piece * _rounded_up(warps, PARTITIONS) > limits.registers:
        return 0
    return limits.registers // PARTITIONS // piece * PARTITIONS // warps


def _rounded_up(n: int, piece: int) -> int:
    return -(-n // piece) * piece
