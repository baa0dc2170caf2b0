"""Ranks for tests: processes that share one gloo group, forked by a server that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PRELOAD = ["torch", "torch.distributed", "torch._dynamo", "stylegan_lite.step", "ladder.parity.check"]
PATIENCE_S = 300.0


def run(function: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """Return `function(*arguments)` of each rank, which runs in a process group of `ranks`.

    The function must be of a module's top level. Raises RuntimeError with the traceback of the first rank that fails.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ends, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            asked = (theirs, store, rank, ranks, function, arguments)
            processes.append(context.Process(target=_rank, args=asked, daemon=True))
            processes[-1].start()
            theirs.close()
            ends.append(ours)
        try:
            return [_result(end, rank) for rank, end in enumerate(ends)]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _result(end: Connection, rank: int) -> Any:
    if not end.poll(PATIENCE_S):
        raise RuntimeError(f"rank {rank} said nothing for {PATIENCE_S:g} s")
    ok, value = pickle.loads(end.recv_bytes())
    if not ok:
        raise RuntimeError(f"rank {rank}:\n{value}")
    return value


def _rank(
    end: Connection, store: str, rank: int, ranks: int, function: Callable[..., Any], arguments: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if ranks > 1:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        end.send_bytes(pickle.dumps((True, function(*arguments))))  # tensors whole, not as shared memory
    except BaseException:
        end.send_bytes(pickle.dumps((False, traceback.format_exc())))
    os._exit(0)
