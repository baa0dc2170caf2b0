"""The receipt that the rungs of torch.compile share. ``ladder.receipts.evidence`` gathers its input."""

from __future__ import annotations

from typing import Any

from ladder.base.text import display
from ladder.receipts.receipt import Receipt, judge
from ladder.receipts.seen import Compiled, Trace


def evidence(step: Any, trace: Trace) -> Compiled:
    """Return facts on what a step compiled. Empty if its recipe does not compile, or its code cannot."""
    compiled = getattr(step, "compiled", None)
    if compiled is None:
        return {}
    return {
        "mode": compiled.mode,
        "failed": compiled.failed and display(compiled.failed),
        "graphs": dict(compiled.graphs),
        "late": sum(compiled.late.values()),
        "runs": dict(compiled.runs),
        "breaks": sum(compiled.breaks.values()),
        "why_broken": [display(reason) for reason in list(compiled.breaks)[:1]],
        "filters": compiled.filters,
        "kernels": trace.get("inductor_kernels"),
    }


def phases(seen: dict) -> list[str]:
    """Return the main phases that ran as compiled graphs. In a captured step these are the captured ones."""
    return [phase for phase in ("G_main", "D_main") if seen["compile"].get("runs", {}).get(phase)]


def receipt(seen: dict, *modes: str) -> Receipt:
    """Return the receipt: both main phases ran as one compiled graph each, in one of ``modes``.

    Nothing may have been compiled after warm-up.
    """
    found = seen["compile"]
    if not found:
        return judge((False, "nothing was given to torch.compile"))
    if found["failed"]:
        return judge((False, display(found["failed"])))
    ran = phases(seen)
    graphs = ", ".join(f"{phase} {count}" for phase, count in found["graphs"].items())
    kernels = found["kernels"]
    return judge(
        (found["mode"] in modes, f"torch.compile in mode {found['mode']}"),
        (len(ran) == 2, f"phases that ran compiled: {', '.join(ran) or 'none'}"),
        (None, f"graphs compiled: {graphs or 'none'}"),
        (found["breaks"] == 0, f"graph breaks: {found['breaks']}"),
        *((None, display(f"first break: {reason}")) for reason in found["why_broken"]),
        (found["late"] == 0, f"graphs compiled after warm-up: {found['late']}"),
        (
            None if kernels is None else kernels > 0,
            "kernels by the compiler: " + ("not profiled" if kernels is None else f"{kernels:.0f} a step"),
        ),
    )
