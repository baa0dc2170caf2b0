"""The theoretical occupancy: how many blocks of a kernel fit on one multiprocessor, and which limit stops the next one.

Occupancy is the share of a multiprocessor's places for warps that are taken. There are four limits:

- places for warps;
- places for blocks;
- registers, which a warp gets in pieces of 256;
- shared memory, in pieces of 128 bytes, plus 1 KiB of the system's for each block.

The rules are those of the CUDA toolkit's cuda_occupancy.h, for architectures from 8.0 on.
tests/studies/claims/test_claims_occupancy.py compares them with its answers.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
REGISTER_PIECE = 256  # registers a warp gets at a time
SHARED_PIECE = 128  # bytes a block gets at a time
SHARED_RESERVED = 1024  # bytes of each block that the system keeps
PARTITIONS = 4  # parts of a multiprocessor, each with a quarter of the registers
MOST_THREADS = 1024  # threads a block
MOST_REGISTERS = 255  # registers a thread


@dataclass(frozen=True)
class Limits:
    """The limits of one multiprocessor. `shared` is in bytes, at the largest carve-out."""

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
    """The occupancy: `share` of the places for warps. `limits` names what runs out first, several if they tie."""

    blocks: int
    share: float
    limits: tuple[str, ...]


def occupancy(limits: Limits, threads: int, registers: int, shared: int) -> Occupancy:
    """Return the occupancy of blocks of `threads` threads, with `registers` each and `shared` bytes a block.

    `shared` is static and dynamic memory together.

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
    """Return how many blocks the registers allow. A warp's registers all lie in one of the four quarters."""
    if registers == 0:
        return limits.blocks
    piece = _rounded_up(registers * WARP, REGISTER_PIECE)
    if piece * _rounded_up(warps, PARTITIONS) > limits.registers:
        return 0
    return limits.registers // PARTITIONS // piece * PARTITIONS // warps


def _rounded_up(n: int, piece: int) -> int:
    return -(-n // piece) * piece
