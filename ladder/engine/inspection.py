"""The inspection of a rung before it is timed: it must be on, and compute what the baseline computes.

An inspector process builds and prepares the rung as a timed one does, and compares it with the FP64 reference
(`ladder.parity.check`). Then it reads the rung's receipts (`ladder.receipts`) from a traced cycle, which also
shows how long the GPU is busy. It ends before the timing: timed processes never load a profiler.

Findings of rungs that passed stay under `.cache/inspections/`, by recipe, workload, torch, GPU and the source code they
depend on, so a resumed run, another mode, or NVIDIA's step beside it need not inspect again.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ladder import receipts
from ladder.core import files
from ladder.core.files import COMPILED, digest_sources, list_below, replace_file
from ladder.core.paths import ROOT
from ladder.core.plain import Plain
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
KEYS = ("inspection", "parity", "receipts")  # of findings, as they are stored with a rung

Alone = Callable[[], contextlib.AbstractContextManager]


class Objection(WorkerFailure):
    """A rung that was inspected and must not be timed, with its findings."""

    def __init__(self, status: str, reason: str, found: Plain) -> None:
        super().__init__(status, reason)
        self.found = found


def inspect_worker(
    worker: Worker,
    tell: Callable[[str], None],
    alone: Alone = contextlib.nullcontext,
    variant: Variant | None = None,
    name: str = "",
) -> Plain:
    """Inspect a prepared worker, built with "keep_gradients", and return its findings.

    `alone` is a context in which nobody else uses the GPU, around the traced cycle. An entry of a study (`variant`,
    `name`) shows by itself that it is in force; rungs' receipts do not apply to one that patches its step or model.
    Raises `WorkerFailure` if the rung must not be timed.
    """
    findings: Plain = {"parity": None, "receipts": {}, "inspection": {"error": None}}
    if variant is None or variant.exempt is None:
        tell("parity")
        findings["parity"] = parity = strip_protocol(worker.call("parity"))
        if parity["verdict"] != "ok":
            raise Objection(FAILED_PARITY, parity["reason"], {"parity": parity})
    if variant is None or not variant.patched:
        worker.call("profile", part="load")  # which takes seconds, and no GPU
        with contextlib.ExitStack() as gate:
            gate.enter_context(alone())
            tell("receipts")
            worker.call("trace", on_progress=lambda _: gate.close())
        reply = worker.call("receipts")
        _add_receipts(findings, reply)
        evidence = reply["evidence"]
        trace = evidence["graphs"]
        if evidence["device"] == "cuda" and trace.get("busy_ms") is None:
            findings["inspection"]["error"] = "the profiler saw no kernels"
        elif evidence["device"] == "cuda":
            busy = {"gpu_busy_ms": trace["busy_ms"], "kernels_per_step": trace["kernels"]}
            findings["inspection"] = busy | findings["inspection"]
    if variant is not None:
        tell("receipts")
        reply = worker.call("examine", variant=(variant.study, name))
        _add_receipts(findings, reply)
        findings["inspection"] |= reply["inspection"]
    return findings


def _add_receipts(findings: Plain, reply: Plain) -> None:
    """Add the receipts of a reply. Raises `Objection` if one speaks against its rung."""
    findings["receipts"] = findings["receipts"] | reply["receipts"]
    if reason := receipts.reason(reply["receipts"]):
        raise Objection(NOT_ENGAGED, reason, {key: findings[key] for key in ("parity", "receipts")})


class Cache:
    """Findings of earlier inspections of the same code on the same machine."""

    def __init__(
        self, workload: Plain, machine: Plain, folder: Path | None = None, memory_limit: int | None = None
    ) -> None:
        self.folder = folder or CACHE
        # The folder of the images does not matter, only whether there are any.
        of = workload | {"data": workload.get("data") is not None}
        if memory_limit is not None:  # a rung that passed with all of the GPU's memory may not fit
            of["memory_limit"] = memory_limit
        self._common = [of, {key: machine.get(key) for key in MACHINE}, source_digest()]

    def path(self, recipe: Plain, entry: Any = None) -> Path:
        """Return the file of a recipe's findings; `entry` is what else they depend on (of a study's entry)."""
        text = json.dumps([*self._common, recipe, *([] if entry is None else [entry])], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def get(self, recipe: Plain, entry: Any = None) -> Plain | None:
        try:
            findings = json.loads(self.path(recipe, entry).read_text())
            return findings if findings.keys() == {*KEYS} else None
        except (OSError, ValueError, AttributeError):
            return None

    def put(self, recipe: Plain, findings: Plain, entry: Any = None) -> None:
        """Keep findings. A folder that cannot be written only costs the next run its time."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with replace_file(self.path(recipe, entry)) as temporary:
                temporary.write_text(json.dumps(findings))
            stored = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in stored[:-KEPT]:
                old.unlink(missing_ok=True)


def source_digest(root: Path = ROOT) -> str:
    """Return a digest of every source and YAML file that a finding depends on. Uncommitted changes count as well."""
    below_them = [path for each in SOURCES for path in list_below(root / each, (".py", ".yaml", *COMPILED))]
    rungs = [f"ladder.rungs.{path.stem}" for path in (root / "ladder" / "rungs").glob("*.py")]
    return digest_sources(root, sorted({*below_them, *closure.files(root, (*FINDERS, *rungs))}))
