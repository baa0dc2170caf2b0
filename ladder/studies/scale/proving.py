"""The proof of a way: its receipts and its parity with one process, from a group that is never timed.

Each rank has one group of minibatch standard deviation, so the reference in FP64 of the total batch stays small.
"""

from __future__ import annotations

from typing import Any

from ladder.base import text as texts
from ladder.base.errors import one_line
from ladder.base.records import build, plain
from ladder.engine import inspection
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure
from ladder.receipts import receipt as receipts
from ladder.results.types import Plain
from ladder.studies.scale.record import Proof
from ladder.studies.scale.ways import WAYS, Asked

NOT_ENGAGED, FAILED_PARITY = "not engaged", "failed: parity"


def batch_of(asked: Asked, workload: Plain) -> int:
    """Return the total batch of the proof: one group a GPU, and path length for each."""
    return asked.gpus * max(workload.get("mbstd_group", 4), workload.get("pl_batch_shrink", 2))


def prove(pool: Pool, asked: Asked, workload: Plain, machine: Plain, seed: int) -> Proof:
    """Return what the ranks show of a way. Status is "ok" only if all of them agree.

    An earlier proof of the same code, recipe, workload and machine counts.
    """
    batch, device = batch_of(asked, workload), machine["device"]
    known = inspection.Cache(workload | {"batch": batch}, machine)
    recipe = asked.way.on(asked.gpus)
    if (earlier := known.get(recipe)) is not None:
        return build(Proof, earlier["parity"])
    found = _proved(pool, asked, workload | {"batch": batch}, device, seed)
    if found.status == "ok":
        known.put(recipe, {"parity": plain(found), "receipts": {}, "inspection": {"error": None}})
    return found


def _proved(pool: Pool, asked: Asked, workload: Plain, device: str, seed: int) -> Proof:
    batch = workload["batch"]
    found = Proof(
        way=asked.way.name, gpus=asked.gpus, batch=batch, status="ok", reason=None, parity=None, lines=[]
    )
    made: dict[str, Any] = {}
    group = None
    try:
        group = Group(pool, asked.processes, device)
        recipe = asked.way.on(asked.gpus)
        group.build(workload, recipe, seed, keep_gradients=True)
        group.call("prepare")
        parity = group.call("parity")
        group.call("profile", part="load")
        group.call("trace")
        # A dispatch mode does not see the threads of nn.DataParallel, so only the way's own receipt can be issued.
        own = [WAYS[asked.way.name][1]] if asked.processes == 1 else None
        seen = group.call("receipts", rungs=own)
        made = judged(parity, [reply["receipts"] for reply in seen], asked.way.name)
    except WorkerFailure as failure:
        made = {"status": failure.status, "reason": texts.display(failure.reason)}
    finally:
        if group is not None:
            group.close()
    fields = {
        key: getattr(found, key) for key in ("way", "gpus", "batch", "status", "reason", "parity", "lines")
    }
    return Proof(**(fields | made))


def judged(parity: list[Plain], issued: list[Plain], way: str) -> dict[str, Any]:
    """Return the status, reason and lines that the ranks' findings make together."""
    outside = next((each for each in parity if each["verdict"] != "ok"), None)
    off = next((reason for each in issued if (reason := receipts.reason(each))), None)
    rung = WAYS[way][1]
    told = next((each[rung]["lines"] for each in issued if rung in each), [])
    if (
        not told
    ):  # the highest rung of a ladder: its all-reduce has the receipt of the flat or the captured one
        told = [
            line
            for name in ("captured_reduce", "flat_reduce")
            for line in issued[0].get(name, {}).get("lines", [])
        ]
    status = FAILED_PARITY if outside else NOT_ENGAGED if off else "ok"
    reason = outside["reason"] if outside else off
    return {
        "status": status,
        "reason": None if reason is None else texts.display(one_line(reason)),
        "parity": parity[0]["verdict"] if outside is None else outside["verdict"],
        "lines": [texts.display(line) for line in dict.fromkeys(told)],
    }
