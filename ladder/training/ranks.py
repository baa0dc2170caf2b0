"""A training that torchrun started on several processes: rank 0 writes all files, the others compute their share.

torchrun tells each process its rank in environment variables, which are its protocol and decide nothing else. The
processes agree on the step after which a signal ends them, over gloo, so that no rank waits for one that has stopped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ladder.core.errors import UserError, format_error
from ladder.core.plain import Fields
from ladder.machine import system
from ladder.training import mishaps

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
MEETING = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process among those of a training. `waiting` is a group over gloo."""

    rank: int
    size: int
    local: int
    waiting: Any = None

    @property
    def is_writer(self) -> bool:
        """Return whether this process writes samples, log and checkpoint."""
        return self.rank == 0

    def share_stop(self, stopped: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that every rank calls before each step: whether a signal stopped any rank."""

        def any_stopped() -> bool:
            import torch
            import torch.distributed as dist

            flag = torch.tensor(int(stopped()))
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.waiting)
            return bool(flag)

        return any_stopped

    def run_in_turn(self, do: Callable[[], Any]) -> Any:
        """Let one process of each host do something before the others of it: making files, say."""
        import torch.distributed as dist

        result = do() if self.local == 0 else None
        dist.barrier(self.waiting)
        return do() if self.local else result

    def adapt_recipe(self, recipe: Fields) -> Fields:
        """Return the recipe on these ranks. A recipe without a way to reduce gets the flat all-reduce."""
        way = recipe.get("reduce", "none")
        if way == "data_parallel":
            raise UserError("reduce: data_parallel is one process: start it without torchrun")
        return recipe | {"ranks": self.size, "reduce": "flat" if way == "none" else way}


def read_environment(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """Return this process's place among those that torchrun has started, or None for a single process.

    Raises UserError if only some of torchrun's variables are set: each process would train alone.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return None
    if missing := [name for name in (*VARIABLES, *MEETING) if name not in environment]:
        raise UserError(
            f"WORLD_SIZE is set, and {', '.join(missing)} not: start with torchrun, which sets all, or unset WORLD_SIZE"
        )
    try:
        rank, size, local = (int(environment[name]) for name in VARIABLES)
    except ValueError:
        raise UserError(f"{', '.join(VARIABLES)} must be numbers, as torchrun sets them") from None
    return Ranks(rank, size, local) if size > 1 else None


@contextlib.contextmanager
def join_ranks(device: str) -> Iterator[Ranks | None]:
    """Join the process group that torchrun asks for, on the GPU of the local rank. Alone nothing is joined.

    After an error the group is left as it is: another rank may never come to its end, and torchrun ends all.
    """
    place = read_environment()
    if place is None:
        yield None
        return
    import torch
    import torch.distributed as dist

    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    # Every rank of a host takes the locks of all: with its own alone, ranks and a run could wait for each other.
    with system.hold_untimed(device, int(here) if here.isdigit() else place.size):
        if device == "cuda":
            if place.local >= torch.cuda.device_count():
                raise UserError(
                    f"torchrun started {place.local + 1} processes here, and torch sees"
                    f" {torch.cuda.device_count()} GPUs: give as many to --nproc-per-node"
                )
            torch.cuda.set_device(place.local)
        try:
            dist.init_process_group("nccl" if device == "cuda" else "gloo")
        except (ValueError, dist.DistError) as error:
            where = ":".join(os.environ[name] for name in MEETING)
            raise UserError(f"the ranks cannot meet at {where}: {format_error(error)}") from error
        waiting = dist.new_group(backend="gloo") if device == "cuda" else dist.group.WORLD
        try:
            yield Ranks(place.rank, place.size, place.local, waiting)
            dist.barrier(waiting)
        except RuntimeError as error:  # what the rank that writes has not told already
            if (why := mishaps.explain_mishap(error)) is None:
                raise
            raise UserError(f"rank {place.rank}: {why}") from error
        dist.destroy_process_group()
