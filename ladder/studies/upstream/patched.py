"""The patched contender of `ladder upstream`: a copy of the clone with the drop-in files of `ladder export`.

Its gradients are compared with those of the clone as it is, both against FP64, before it is timed. Then each phase's
GPU time is measured in both.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.protocol import IN_ORDER
from ladder.base.records import build
from ladder.engine.pool import Pool, WorkerFailure
from ladder.studies.upstream import examined, source
from ladder.studies.upstream.record import (
    MOST,
    PATCHED,
    ROUNDING,
    UPSTREAM,
    PatchedParity,
    PhaseErrors,
    PhaseTime,
)

Texts = Mapping[str, str]  # path below `torch_utils` -> text
Tell = Callable[[str], None]
BATCH = 8  # at most, of the gradients: FP64 takes four times the memory of FP16
PATIENCE = 1800.0  # seconds of an examination, which sends no sign of life


def refuse(folder: Path, texts: Texts) -> None:
    """Raise UserError for a clone that lacks a file which the drop-in files replace."""
    for path in replaced(texts):
        if not (folder / "torch_utils" / path).is_file():
            raise UserError(
                f"{folder}: no torch_utils/{path}, which --patched replaces: give a clone of {source.URL}"
            )


def replaced(texts: Texts) -> list[str]:
    """Return the paths of the drop-in files without those of the ops below them."""
    return [path for path in sorted(texts) if path.count("/") == 1]


def copy(folder: Path, texts: Texts, into: Path) -> Path:
    """Copy the clone's sources and put the drop-in files in place of its own. Return the copy's folder."""
    for part in source.PARTS:
        shutil.copytree(folder / part, into / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path, each in texts.items():
        target = into / "torch_utils" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(each, encoding="utf-8", newline="\n")
    return into


# ---- parity ------------------------------------------------------------------------------------------------------


def compare_gradients(
    clones: Mapping[str, Path], workload: dict[str, Any], device: str, pool: Pool, folder: Path, tell: Tell
) -> PatchedParity:
    """Compute the gradients of both clones and those in FP64, each in a process of its own, and compare them.

    Raises:
        WorkerFailure: a process failed; its reason says which.
    """
    batch = min(BATCH, workload["batch"])
    workload = workload | {"batch": batch}
    found = {}
    for side, clone, what in (
        ("exact", clones[UPSTREAM], examined.EXACT),
        (UPSTREAM, clones[UPSTREAM], examined.GRADIENTS),
        (PATCHED, clones[PATCHED], examined.GRADIENTS),
    ):
        tell(f"gradients: {side}")
        found[side] = examine(clone, what, workload, device, pool, folder / f"gradients-{side}")
    seen = {side: json.loads((place / examined.SEEN).read_text()) for side, place in found.items()}
    for key in ("sizes", "draws"):
        if any(each[key] != seen[UPSTREAM][key] for each in seen.values()):
            return _failed(batch, f"the contenders do not compute from the same {_SPOKEN[key]}")
    if seen[PATCHED]["weights"] != seen[UPSTREAM]["weights"]:
        return _failed(batch, "the contenders do not begin with the same weights")
    phases = {}
    for phase in IN_ORDER:
        sizes = seen[UPSTREAM]["sizes"][phase[0]]
        exact, theirs, ours = (
            np.load(found[side] / f"{phase}.npy", mmap_mode="r", allow_pickle=False)
            for side in ("exact", UPSTREAM, PATCHED)
        )
        phases[phase] = errors(exact, theirs, ours, sizes)
    for place in found.values():
        shutil.rmtree(place)
    return judged(batch, phases)


_SPOKEN = {"sizes": "networks", "draws": "noise"}


def examine(
    clone: Path, what: str, workload: dict[str, Any], device: str, pool: Pool, findings: Path
) -> Path:
    """Let a process examine a clone, and return the folder with its findings. Raises WorkerFailure."""
    findings.mkdir()
    recipe = {"folder": str(clone), "findings": str(findings), "what": what, "cudnn_benchmark": True}
    worker = pool.take()
    try:
        worker.call("build", workload=workload, recipe=recipe, device=device, seed=0)
        worker.call("prepare", patience=PATIENCE)
    except WorkerFailure as failure:
        raise WorkerFailure(failure.status, f"{what}: {failure.reason}", failure.reply) from None
    finally:
        worker.close()
    return findings


def errors(exact: Any, theirs: Any, ours: Any, sizes: list[int]) -> PhaseErrors:
    """Return the errors of both gradients of a phase, which hold tensors of these sizes one after the other."""
    whole, tensors = zip(*(error(exact, got, sizes) for got in (theirs, ours)), strict=True)
    return PhaseErrors(
        unpatched=whole[0], patched=whole[1], unpatched_tensors=tensors[0], patched_tensors=tensors[1]
    )


def error(exact: Any, got: Any, sizes: list[int]) -> tuple[float, float]:
    """Return the relative L2 error of all gradients together, and the root mean square of each tensor's.

    In the second, a small tensor counts as much as a large one. A tensor whose exact gradient is 0 is left out, and no
    tensor's error counts for more than 1.
    """
    wrong, right, each, begin = 0.0, 0.0, [], 0
    for size in sizes:
        want = np.asarray(exact[begin : begin + size], dtype=np.float64)
        off = float(np.linalg.norm(np.asarray(got[begin : begin + size], dtype=np.float64) - want)) ** 2
        norm, begin = float(np.linalg.norm(want)) ** 2, begin + size
        wrong, right = wrong + off, right + norm
        if norm:
            share = off / norm
            each.append(share if share < 1 else 1.0)  # also for what is no number
    whole = math.sqrt(wrong / right) if right else math.sqrt(wrong)
    return whole if math.isfinite(whole) else MOST, math.sqrt(sum(each) / max(len(each), 1))


def judged(batch: int, phases: dict[str, PhaseErrors]) -> PatchedParity:
    """Return the parity that these errors show."""
    made = PatchedParity(verdict="ok", reason=None, batch=batch, phases=phases)
    why = made.problem()
    return made if why is None else _failed(batch, why, phases)


def _failed(batch: int, reason: str, phases: dict[str, PhaseErrors] | None = None) -> PatchedParity:
    return PatchedParity(
        verdict="failed: parity", reason=text.display(reason), batch=batch, phases=phases or {}
    )


# ---- time --------------------------------------------------------------------------------------------------------


def time_phases(
    clones: Mapping[str, Path], workload: dict[str, Any], device: str, pool: Pool, folder: Path, tell: Tell
) -> dict[str, dict[str, PhaseTime]]:
    """Return by side and phase the GPU time, of a process for each side. Raises WorkerFailure."""
    found = {}
    for side, clone in clones.items():
        tell(f"GPU time of each phase: {side}")
        place = examine(clone, examined.TIMES, workload, device, pool, folder / f"times-{side}")
        rows = json.loads((place / examined.SEEN).read_text())
        found[side] = {phase: build(PhaseTime, row) for phase, row in rows.items()}
    return found


__all__ = ["ROUNDING", "compare_gradients", "copy", "error", "errors", "judged", "refuse", "time_phases"]
