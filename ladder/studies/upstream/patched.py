"""The patched contender of `ladder upstream`: a copy of the clone with the drop-in files of `ladder export`.

Its gradients are compared with those of the clone as it is, both against FP64, before it is timed. Then each phase's
GPU time is measured in both.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.protocol import IN_ORDER
from ladder.base.records import build
from ladder.engine.pool import Pool, WorkerFailure
from ladder.studies.upstream import examined, source
from ladder.studies.upstream.record import (
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
    tell("gradients in FP64")
    exact = examine(clones[UPSTREAM], examined.EXACT, workload, device, pool, folder / "exact")
    seen = {"exact": json.loads((exact / examined.SEEN).read_text())}
    for side in (UPSTREAM, PATCHED):
        tell(f"gradients: {side}")
        also = {"exact": str(exact)}
        place = examine(
            clones[side], examined.GRADIENTS, workload, device, pool, folder / f"gradients-{side}", also
        )
        seen[side] = json.loads((place / examined.SEEN).read_text())
    shutil.rmtree(exact)
    for key in ("sizes", "draws"):
        if any(each[key] != seen[UPSTREAM][key] for each in seen.values()):
            return _failed(batch, f"the contenders do not compute from the same {_SPOKEN[key]}")
    if seen[PATCHED]["weights"] != seen[UPSTREAM]["weights"]:
        return _failed(batch, "the contenders do not begin with the same weights")
    both = [seen[side]["errors"] for side in (UPSTREAM, PATCHED)]
    return judged(batch, {phase: errors(*(each[phase] for each in both)) for phase in IN_ORDER})


_SPOKEN = {"sizes": "networks", "draws": "noise"}


def examine(
    clone: Path,
    what: str,
    workload: dict[str, Any],
    device: str,
    pool: Pool,
    findings: Path,
    also: Mapping[str, str] | None = None,
) -> Path:
    """Let a process examine a clone, and return the folder with its findings. Raises WorkerFailure."""
    findings.mkdir()
    recipe = {"folder": str(clone), "findings": str(findings), "what": what, "cudnn_benchmark": True}
    recipe |= also or {}
    worker = pool.take()
    try:
        worker.call("build", workload=workload, recipe=recipe, device=device, seed=0)
        worker.call("prepare", patience=PATIENCE)
    except WorkerFailure as failure:
        raise WorkerFailure(failure.status, f"{what}: {failure.reason}", failure.reply) from None
    finally:
        worker.close()
    return findings


def errors(theirs: list[list[float]], ours: list[list[float]]) -> PhaseErrors:
    """Return the errors of a phase, from the pair of errors of each input: medians over the inputs."""
    (unpatched, unpatched_tensors), (patched, patched_tensors) = (
        [statistics.median(column) for column in zip(*pairs, strict=True)] for pairs in (theirs, ours)
    )
    least, least_tensors = (
        min(own / max(other, ROUNDING) for other, own in zip(*columns, strict=True))
        for columns in zip(zip(*theirs, strict=True), zip(*ours, strict=True), strict=True)
    )
    return PhaseErrors(
        unpatched=unpatched,
        patched=patched,
        least=min(least, examined.MOST),
        unpatched_tensors=unpatched_tensors,
        patched_tensors=patched_tensors,
        least_tensors=least_tensors,
    )


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
