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


def communication(seen: dict[str, Any], above: float = 0) -> Check:
    """Return a check of the communication in the trace: it comes in more than so many bursts a phase.

    A burst begins after other kernels. A reduction beside the backward pass has a burst for each bucket, on every host.
    How much of it is hidden depends on the host: where the GPU waits for the CPU, nothing runs beside it.
    """
    found = seen["reduced"]
    if found["comm_ms"] is None:
        return None, "communication: not profiled"
    took, exposed = found["comm_ms"], found["exposed_ms"]
    bursts = found["comm_bursts"] / seen["graphs"]["phases_per_step"]
    line = (
        f"communication: {took:.3f} ms a step, {exposed:.3f} ms of it exposed, bursts a phase: {bursts:.1f}"
    )
    return took > 0 and bursts > above, line
