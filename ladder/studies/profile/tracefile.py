"""The trace that a user opens in Perfetto or in Chrome: one step of each kind, gzipped, of bounded size."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import describe
from ladder.base.protocol import CYCLE_STEPS
from ladder.studies.profile import layers, tracing

MOST = 200_000  # events: about 50 MB of JSON, 3 MB zipped
SUFFIXES = (".json.gz", ".json")


def kinds(step: Any) -> list[int]:
    """Return the places in a cycle of one step of each kind: of each combination of phases."""
    first: dict[tuple[str, ...], int] = {}
    for index in range(CYCLE_STEPS):
        first.setdefault(step.phases(index), index)
    return sorted(first.values())


def write(step: Any, path: Path) -> str:
    """Record one step of each kind and write the trace. Return a line that says what the file holds."""
    places = kinds(step)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        with named_layers(step):
            profile = tracing.profiled(lambda: run_named(step, places), step.device, host=True)
        profile.export_chrome_trace(str(whole))
        raw = whole.read_bytes()
    named = f"{len(places)} steps, one of each kind"
    try:
        found = json.loads(raw.decode(errors="replace"))
    except ValueError as error:  # the profile must not be lost for that
        _write(path, raw)
        return f"{named}, as PyTorch wrote it: it is no JSON ({describe(error)})"
    kept, cut = bounded(found)
    _write(path, json.dumps(kept, separators=(",", ":")).encode())
    lost = f"; cut after {MOST:,} events, {cut:,} are left out" if cut else ""
    return f"{named}, {len(kept['traceEvents']):,} events{lost}"


def named_layers(step: Any) -> contextlib.AbstractContextManager[None]:
    """Return the ranges of layers. Compiled code has none: hooks would make torch.compile compile again."""
    return layers.ranges(step) if step.recipe.compile == "off" else contextlib.nullcontext()


def _write(path: Path, raw: bytes) -> None:
    files.write(path, gzip.compress(raw, mtime=0) if path.name.endswith(".gz") else raw)


def run_named(step: Any, places: list[int]) -> None:
    """Run the steps at these places of a cycle, each step and phase in a range of its name."""
    with _named(step):
        for index in places:
            step._step(index, True)


@contextlib.contextmanager
def _named(step: Any) -> Iterator[None]:
    """Give each step and each phase of it a range of its name while entered."""
    from torch.profiler import record_function

    run, run_phase = step.run, step.run_phase

    def whole(phases: tuple[str, ...]) -> None:
        with record_function("step: " + ", ".join(phases)):
            run(phases)

    def one(phase: str) -> None:
        with record_function(phase):
            run_phase(phase)

    step.run, step.run_phase = whole, one
    try:
        yield
    finally:
        del step.run, step.run_phase


def bounded(trace: dict[str, Any], most: int = MOST) -> tuple[dict[str, Any], int]:
    """Return a Chrome trace with at most so many events, and how many were cut. The latest are cut.

    Names of processes and threads stay, but not those of GPUs on which nothing ran: PyTorch names 16. The path of the
    trace and the profiler's own settings are left out.
    """
    events = trace.get("traceEvents", [])
    ran = {each.get("pid") for each in events if each.get("ph") != "M"}
    named = [each for each in events if each.get("ph") == "M" and each.get("pid") in ran]
    rest = sorted((each for each in events if each.get("ph") != "M"), key=lambda each: each.get("ts", 0))
    room = max(0, most - len(named))
    kept = {
        key: trace[key] for key in ("schemaVersion", "deviceProperties", "displayTimeUnit") if key in trace
    }
    return kept | {"traceEvents": named + rest[:room]}, len(rest[room:])
