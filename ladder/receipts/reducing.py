"""Checks that the receipts of the distributed rungs share."""

from __future__ import annotations

from typing import Any

from ladder.base.protocol import PHASES

Check = tuple[bool | None, str]


def reduced_everywhere(seen: dict[str, Any]) -> list[Check]:
    """Return checks that several ranks are there and every phase all-reduces its gradients."""
    found = seen["reduced"]
    told = ", ".join(f"{phase} {found['bytes'].get(phase, 0) / 1e6:.3f}" for phase in PHASES)
    return [
        (found["ranks"] > 1, f"ranks: {found['ranks']}"),
        (all(found["bytes"].get(phase, 0) > 0 for phase in PHASES), f"MB all-reduced: {told}"),
    ]


def communication(seen: dict[str, Any], least_hidden: float | None = None) -> Check:
    """Return a check of the communication in the trace: it is there and, if asked, a share of it is hidden."""
    found = seen["reduced"]
    if found["comm_ms"] is None:
        return None, "communication: not profiled"
    took, exposed = found["comm_ms"], found["exposed_ms"]
    hidden = 1 - exposed / took if took else 0.0
    line = f"communication: {took:.3f} ms a step, {exposed:.3f} ms of it exposed, overlapped: {hidden:.2f}"
    return took > 0 and (least_hidden is None or hidden >= least_hidden), line
