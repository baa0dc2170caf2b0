"""The resources of each kernel: registers, shared memory, spills, and the occupancy that follows.

Triton's compiled kernels report them after their launch. The profiler sees launches of CUDA C++, with registers,
shared memory, grid and block. Bytes of local memory come from `kernels.cuda.resources`, which also lists the kernels
that nothing launched.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ladder.studies.claims.hardware.occupancy import BY_ARCHITECTURE, WARP, Limits, occupancy
from ladder.studies.claims.schema import Kernel, Launched
from ladder.studies.kernelbench.launches import describe_launch, watched_launches

TRITON, CUDA = "Triton", "CUDA C++"
BUILT = "built"  # the source of kernels that nothing launched
INTERPRETED = "Triton's interpreter compiles nothing"


def limits_here() -> tuple[Limits | None, str | None]:
    """Return (limits of a multiprocessor of the current GPU, why they are unknown). One of both is None."""
    import torch

    if not torch.cuda.is_available():
        return None, "no CUDA GPU"
    has = torch.cuda.get_device_properties(torch.cuda.current_device())
    known = BY_ARCHITECTURE.get(10 * has.major + has.minor)
    return known, None if known else f"limits of compute capability {has.major}.{has.minor} are not known"


class Kernels:
    """A record of launched kernels by name, source and resources; see `rows`."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str | int | None, ...], Launched] = {}
        self.lock = threading.Lock()  # autograd launches from its own threads

    @contextlib.contextmanager
    def listening(self, source: str) -> Iterator[None]:
        """Note every Triton kernel that is launched inside, under `source`."""

        def watching(run: Callable[..., Any]) -> Callable[..., Any]:
            def watched(kernel: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
                compiled = run(kernel, *args, grid=grid, **kwargs)
                with contextlib.suppress(Exception):  # noting must never disturb a call
                    if hasattr(compiled, "n_regs") or is_interpreted(kernel):  # others were not launched
                        self.add(triton_row(source, kernel, compiled, args, grid, kwargs))
                return compiled

            return watched

        with watched_launches(watching):
            yield

    def add(self, row: Launched) -> None:
        resources = (row.threads, row.registers, row.shared_bytes, row.local_bytes)
        key = (row.source, row.kernel, row.language, *resources)
        with self.lock:
            known = self.seen.get(key)
            if known is None or math.prod(row.grid) > math.prod(known.grid):
                self.seen[key] = row

    def rows(self, limits: Limits | None) -> list[Kernel]:
        """Return a row for each kernel and source: the form with the most threads.

        It also has the number of forms, and how many of them spill.
        """
        found: dict[tuple[str, str], list[Launched]] = {}
        for row in self.seen.values():
            found.setdefault((row.source, row.kernel), []).append(row)
        rows = [_shown(forms, limits) for forms in found.values()]
        return sorted(rows, key=lambda row: (row.source, row.language, row.kernel))


def _shown(forms: list[Launched], limits: Limits | None) -> Kernel:
    """Return the row of a kernel by its forms: the form with the most threads, with its occupancy."""
    largest = max(forms, key=lambda row: math.prod(row.grid) * row.threads)
    spilling = [row.local_bytes for row in forms if row.local_bytes is not None]
    found = None
    if limits is not None and largest.registers is not None and largest.shared_bytes is not None:
        with contextlib.suppress(ValueError):
            found = occupancy(limits, largest.threads, largest.registers, largest.shared_bytes)
    return Kernel(
        **{field.name: getattr(largest, field.name) for field in fields(Launched)},
        blocks=found.blocks if found else None,
        occupancy=found.share if found else None,
        limited_by=", ".join(found.limits) if found else None,
        achieved=None,
        forms=len(forms),
        spilling=sum(map(bool, spilling)) if spilling else None,
    )


def is_interpreted(kernel: Any) -> bool:
    return type(kernel).__name__ == "InterpretedFunction"


def triton_row(
    source: str, kernel: Any, compiled: Any, args: tuple[Any, ...], grid: Any, kwargs: Mapping[str, Any]
) -> Launched:
    """Return the row of one launch of a Triton kernel. In the interpreter only the requested warps are known."""
    launch = describe_launch(kernel, args, grid, kwargs)
    metadata = getattr(compiled, "metadata", None)
    warps = getattr(metadata, "num_warps", kwargs.get("num_warps", 4))
    words = getattr(compiled, "n_spills", None)  # words of 4 bytes
    return Launched(
        source=source,
        kernel=launch.kernel,
        language=TRITON,
        grid=launch.grid,
        threads=WARP * warps,
        registers=getattr(compiled, "n_regs", None),
        shared_bytes=getattr(metadata, "shared", None),
        local_bytes=None if words is None else 4 * words,
    )


# ---- CUDA C++, by the profiler ---------------------------------------------------------------------------------------


def profiled(call: Callable[[], Any], source: str) -> list[Launched]:
    """Return the profiler's row of every kernel that `call` launches, without spills."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return rows_of_trace(json.loads(path.read_text(encoding="utf-8", errors="replace")), source)


def rows_of_trace(trace: dict[str, Any], source: str) -> list[Launched]:
    """Return the kernels of a Chrome trace as PyTorch's profiler writes it."""
    rows = []
    for event in trace.get("traceEvents", []):
        args = event.get("args", {})
        if event.get("cat") != "kernel" or "registers per thread" not in args:
            continue
        rows.append(
            Launched(
                source=source,
                kernel=short_name(event["name"]),
                language=CUDA,
                grid=[int(n) for n in args["grid"]],
                threads=math.prod(int(n) for n in args["block"]),
                registers=int(args["registers per thread"]),
                shared_bytes=int(args["shared memory"]),
                local_bytes=None,
            )
        )
    return rows


def short_name(name: str) -> str:
    """Return a C++ kernel's bare name, cut to 64 characters: `void ns::scale<float, 4>(x*)` -> `scale<float, 4>`."""
    text = name.removeprefix("void ")
    depth, end = 0, len(text)
    for index, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not text.startswith("(anonymous namespace)", index):
            end = index
            break
    text = text[:end]
    head, angle, rest = text.partition("<")
    text = head.rsplit("::", 1)[-1] + angle + rest
    return text if len(text) <= 64 else text[:61] + "..."


def told(kernels: Kernels, resources: list[Any], of: Callable[[str], bool] = lambda source: True) -> None:
    """Add the facts of `kernels.cuda.resources` about one build.

    Kernels launched by the build's sources get their spills. If `BUILT` is among the sources, each kernel that
    nothing launched gets a row.
    """
    spilled: dict[str, int] = {}
    for built in resources:
        base = built.kernel.split("<")[0]
        spilled[base] = max(spilled.get(base, 0), built.spilled)
    for key, row in kernels.seen.items():
        if row.language == CUDA and row.local_bytes is None and of(row.source):
            kernels.seen[key] = replace(row, local_bytes=spilled.get(row.kernel.split("<")[0]))
    launched = {row.kernel.split("<")[0] for row in kernels.seen.values() if row.language == CUDA}
    for built in resources if of(BUILT) else ():
        if built.kernel.split("<")[0] not in launched:
            kernels.add(
                Launched(
                    source=BUILT,
                    kernel=built.kernel,
                    language=CUDA,
                    grid=[1],
                    threads=built.threads,
                    registers=built.registers,
                    shared_bytes=built.shared,
                    local_bytes=built.spilled,
                )
            )


def disagreements(resources: list[Any], limits: Limits | None) -> list[str]:
    """Return a line for each kernel whose number of fitting blocks differs between CUDA and our calculator.

    There should be none.
    """
    lines = []
    for row in resources if limits is not None else ():
        ours = occupancy(limits, row.threads, row.registers, row.shared).blocks
        if ours != row.blocks and row.threads <= row.largest_block:
            lines.append(f"{row.kernel}: {ours} blocks fit by our calculator, {row.blocks} by CUDA")
    return lines
