"""The inspection of a rung before it is timed: it must be on, and compute what the baseline computes.

An inspector process builds and prepares the rung as a timed one does, and compares it with the FP64 reference
(`ladder.parity.check`). Then it reads the rung's receipts (`ladder.receipts`) from a traced cycle, which also
shows how long the GPU is busy. It ends before the timing: timed processes never load a profiler. A rung that fails
either check has no number.

Findings stay under `.cache/inspections/`, by recipe, workload, torch, GPU and the source code they depend on. So a
resumed run, another mode, NVIDIA's step beside it, or a changed table or chart need not inspect again. Only rungs
that passed both checks are kept there.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import receipts
from ladder.core import files
from ladder.core.files import COMPILED, digest_sources, list_below, replace_file
from ladder.core.paths import ROOT
from ladder.engine.pool import Worker, WorkerFailure, strip_protocol
from ladder.plan.variants import Variant
from ladder.results import closure
from ladder.results.store import FAILED_PARITY, NOT_ENGAGED

CACHE = files.cache_folder("inspections")
KEPT = 500  # files of some ten kilobytes
SOURCES = ("kernels", "stylegan_lite", "ladder/rungs")  # the measured code; the inspecting code is
STUDIES = ("ladder.studies.mistakes", "ladder.studies.levers")
FINDERS = ("ladder.engine.worker", "ladder.engine.inspection", *STUDIES)
MACHINE = ("gpu", "cpu", "device", "driver", "cuda", "cudnn", "torch", "triton", "python")

Alone = Callable[[], contextlib.AbstractContextManager]
Found = dict[str, Any]  # "inspection", "parity" and "receipts", as they are stored with a rung


@dataclass(frozen=True)
class Examined:
    """An entry of a study that is inspected: its name and what it changes."""

    name: str
    variant: Variant


def inspect_worker(
    worker: Worker,
    tell: Callable[[str], None],
    alone: Alone = contextlib.nullcontext,
    entry: Examined | None = None,
) -> Found:
    """Inspect a prepared worker, built with "keep_gradients". Raises `WorkerFailure` if the rung must not be timed.

    `alone` is a context in which nobody else uses the GPU: it covers the receipts' traced cycle, and no more. An
    `entry` of a study shows by itself that it is in force. If it is another step or model than its recipe says, the
    rungs' receipts do not apply to it.
    """
    parity = None
    if entry is None or entry.variant.exempt is None:
        tell("parity")
        parity = strip_protocol(worker.call("parity"))
        if parity["verdict"] != "ok":
            raise Objection(FAILED_PARITY, parity["reason"], {"parity": parity})
    if entry is None or not entry.variant.patched:
        found = trace_cycle(worker, tell, alone, parity)
    else:
        found = {"parity": parity, "receipts": {}, "inspection": {"error": None}}
    if entry is not None:
        tell("receipts")
        seen = worker.call("examine", variant=(entry.variant.study, entry.name))
        found["receipts"] |= seen["receipts"]
        found["inspection"] |= seen["inspection"]
        if reason := receipts.reason(seen["receipts"]):
            raise Objection(NOT_ENGAGED, reason, {key: found[key] for key in ("parity", "receipts")})
    return found


def trace_cycle(worker: Worker, tell: Callable[[str], None], alone: Alone, parity: Found | None) -> Found:
    """Return the findings of a traced cycle. Raises `Objection` if a rung of the recipe is not engaged."""
    worker.call("profile", part="load")  # which takes seconds, and no GPU
    with contextlib.ExitStack() as gate:
        gate.enter_context(alone())
        tell("receipts")
        worker.call("trace", on_progress=lambda _: gate.close())
    seen = worker.call("receipts")
    found = {"parity": parity, "receipts": seen["receipts"]}
    if reason := receipts.reason(seen["receipts"]):
        raise Objection(NOT_ENGAGED, reason, found)
    return found | {"inspection": derive_busy(seen["evidence"])}


class Objection(WorkerFailure):
    """A rung that was inspected and must not be timed. `found` holds the findings."""

    def __init__(self, status: str, reason: str, found: Found) -> None:
        super().__init__(status, reason)
        self.found = found


def derive_busy(evidence: dict[str, Any]) -> dict[str, Any]:
    """Return the inspection's record: how long the GPU works in a step, in ms, and on how many kernels."""
    trace = evidence["graphs"]
    if evidence["device"] != "cuda":
        return {"error": None}
    if trace.get("busy_ms") is None:
        return {"error": "the profiler saw no kernels"}
    return {"gpu_busy_ms": trace["busy_ms"], "kernels_per_step": trace["kernels"], "error": None}


class Cache:
    """Findings of earlier inspections of the same code on the same machine."""

    def __init__(
        self,
        workload: dict[str, Any],
        machine: dict[str, Any],
        folder: Path | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.folder = folder or CACHE
        # The folder of the images does not matter, only whether there are any.
        asked = workload | {"data": workload.get("data") is not None}
        if memory_limit is not None:  # a rung that passed with all of the GPU's memory may not fit
            asked["memory_limit"] = memory_limit
        self._common = [asked, {key: machine.get(key) for key in MACHINE}, source_digest()]

    def path(self, recipe: dict[str, Any], entry: Any = None) -> Path:
        """Return the file of a recipe's finding; `entry` is what else it depends on (of a study's entry)."""
        asked = [*self._common, recipe] if entry is None else [*self._common, recipe, entry]
        text = json.dumps(asked, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def get(self, recipe: dict[str, Any], entry: Any = None) -> Found | None:
        try:
            found = json.loads(self.path(recipe, entry).read_text())
            return found if found.keys() == {"inspection", "parity", "receipts"} else None
        except (OSError, ValueError, AttributeError):
            return None

    def put(self, recipe: dict[str, Any], found: Found, entry: Any = None) -> None:
        """Keep a finding. A folder that cannot be written only costs the next run its time."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replace_file(self.path(recipe, entry)) as temporary:
                temporary.write_text(json.dumps(found))
            files = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-KEPT]:
                old.unlink(missing_ok=True)
        except OSError:
            pass


def source_digest(root: Path = ROOT) -> str:
    """Return a digest of every source and YAML file that a finding depends on. Uncommitted changes count as well."""
    below_them = [path for each in SOURCES for path in list_below(root / each, (".py", ".yaml", *COMPILED))]
    rungs = [f"ladder.rungs.{path.stem}" for path in (root / "ladder" / "rungs").glob("*.py")]
    return digest_sources(root, sorted({*below_them, *closure.files(root, (*FINDERS, *rungs))}))
