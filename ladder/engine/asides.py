"""A worker's work beside a step's time: whose code it is, whether weights moved, what loaders hold, lazy phases' costs.

For `ladder.engine.timed_rung`: nothing here imports torch, as the measured code may have none.
"""

from __future__ import annotations

import importlib
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from ladder.core.protocol import CYCLE_STEPS

MEASURED = ("stylegan_lite", "kernels")
CLOCK = time.perf_counter  # as it was before any measured code was imported
UNTIMED = 2  # steps between the last batch that was ready and a timed cycle


def limit_memory(torch: Any, limit: int) -> None:
    """Let this process allocate at most so many bytes of its GPU: more is out of memory, as on a smaller card."""
    has = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / has))


def gpu_memory(torch: Any) -> dict[str, int]:
    """Return the allocator's peaks and retries in this process, and what its GPU holds now; bytes."""
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "device_used_bytes": total - free,  # CUDA graphs' pools hide from the allocator's peaks
        "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }


def weights_of(step: Any) -> dict[str, list[float]]:
    """Return the length of every weight, by network: enough to see whether they moved, and a copy would take memory.

    Empty for a network that the measured code does not have.
    """
    torch, found = sys.modules.get("torch"), {}
    for name in ("G", "D", "G_ema"):
        weights = getattr(getattr(step, name, None), "parameters", list)
        lengths = [torch.linalg.vector_norm(weight.detach()) for weight in weights()]
        found[name] = torch.stack(lengths).tolist() if lengths else []
    return found


def stood_still(before: dict[str, list[float]], after: dict[str, list[float]]) -> str | None:
    """Return one line that names networks whose weights all stood still while they were trained, or None."""
    still = [name for name, weights in before.items() if weights and weights == after[name]]
    return f"weights of {', '.join(still)} did not move in the cycles that were timed" if still else None


def replaced_timer(device: str) -> str | None:
    """Return one line if the measured code replaced what times it, else None. Whatever it told was no time then."""
    if time.perf_counter is not CLOCK:
        return "the measured code replaced time.perf_counter, which times it"
    if device == "cuda" and sys.modules["torch"].cuda.synchronize.__module__ != "torch.cuda":
        return "the measured code replaced torch.cuda.synchronize, before which no time ends"
    return None


def derive_added(kinds: list[tuple[str, ...]], seconds: list[float]) -> dict[str, float]:
    """Return the seconds that each phase adds, if some steps differ by it alone: medians with it less those without."""
    took: dict[tuple[str, ...], list[float]] = {}
    for kind, each in zip(kinds, seconds, strict=True):
        took.setdefault(kind, []).append(each)
    costs = {}
    for kind in sorted(took, key=len, reverse=True):  # of several such pairs the shorter steps count
        for phase in kind:
            without = tuple(each for each in kind if each != phase)
            if without in took:
                costs[phase] = statistics.median(took[kind]) - statistics.median(took[without])
    return costs


def is_settled(times: list[float]) -> bool:
    """Return whether the medians of the last two windows (halves of `times`) differ by less than max(0.5%, 2 MAD)."""
    size = len(times) // 2
    if size == 0:
        return False
    windows = times[-2 * size : -size], times[-size:]
    medians = [statistics.median(window) for window in windows]
    spread = statistics.median(abs(t - m) for window, m in zip(windows, medians, strict=True) for t in window)
    return abs(medians[0] - medians[1]) < max(0.005 * medians[0], 2 * spread)


def is_part(seconds: Any, whole: float) -> bool:
    """Return whether so many seconds can be a part of the whole."""
    return isinstance(seconds, int | float) and 0 <= seconds <= whole


def study_of(variant: list[str]) -> Any:
    """Return the module of the study that an entry, [study, name], belongs to (`ladder.plan.variants`)."""
    return importlib.import_module(f"ladder.studies.{variant[0]}")


def find_foreign(code: Path) -> str | None:
    """Return one line if a measured package was imported from elsewhere than the folder `code`, else None.

    Another checkout's package may be installed, PyPI has an unrelated `kernels`, and a commit may lack its own.
    """
    home = code.resolve()
    for name, module in sorted(sys.modules.items()):
        package = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if package in MEASURED and file and not Path(file).resolve().is_relative_to(home / package):
            kind = "package" if name == package else "module"
            return f"the measured code has no {kind} {name} of its own: another was imported"
    return None


def peak_rss() -> int | None:
    """Return the peak resident bytes of this process. getrusage would inherit the parent's peak across exec."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def drain_loader(step: Any) -> None:
    """Take as many batches as idle loaders hold ready, untrained, then run some steps at the loaders' pace.

    NVIDIA's step and those of old commits have no feed of ours: they train on what is held.
    """
    held = math.ceil(step.data_capacity)
    if not (hasattr(step, "step") and hasattr(step, "count")):  # an old commit's
        for _ in range(math.ceil(held / CYCLE_STEPS)):
            step.cycle()
        return
    take = getattr(getattr(step, "feed", None), "next", None)
    for _ in range(held if take else 0):
        take()
    for _ in range(min(held, UNTIMED) if take else held):
        step.step()
