"""Measures everything that the claims need, in order of importance, within `--minutes`; makes the record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder import kerneltiming, machine, record
from ladder.claims import counters, cuda, experiments, launching, registry, resources, stepping, timed
from ladder.errors import describe
from ladder.kernelbench import now
from ladder.kernelcalls import compiling
from ladder.kerneltiming import Call

ROOT = Path(__file__).resolve().parents[2]
LADDER_RESULTS = ROOT / "results" / "ladder"
SMOKE_NOTE = "CPU smoke test: Triton's interpreter, not to be quoted"
COUNTING_S = 240  # Nsight Compute is given up after it
LEAST, LEAST_QUICK = timed.LEAST_REPEATS, 2
Row = dict[str, Any]
OnEvent = Callable[[dict[str, Any]], None]


def measure(
    device: str, *, minutes: float, seed: int, quick: bool, count: bool, on_event: OnEvent
) -> dict[str, Any]:
    """The whole result, the claims included. Ctrl-C keeps what there is; `count`: also by Nsight Compute."""
    smoke = device == "cpu"
    started, begun = now(), time.monotonic()
    gpu = kerneltiming.Cpu() if smoke else kerneltiming.Cuda()
    rules = kerneltiming.SMOKE if smoke else kerneltiming.Rules()
    session = Session(gpu, kerneltiming.Timer(gpu, rules), smoke, quick or smoke, seed, begun + 60 * minutes)
    complete = session.run(on_event, count)
    commit, dirty = record.commit_of(ROOT)
    notes = [SMOKE_NOTE] * smoke + ["quick: not to be quoted"] * (quick and not smoke)
    notes += ["dirty work tree: not to be published"] * bool(dirty) + ["interrupted"] * (not complete)
    result = {
        "schema": 1,
        "kind": "claims",
        "machine": machine.facts(device),
        "commit": commit,
        "dirty": dirty,
        "complete": complete,
        "started": started,
        "seconds": round(time.monotonic() - begun, 1),
        "protocol": {
            "minutes": minutes, "quick": quick, "smoke": smoke, "seed": seed, "l2_bytes": gpu.l2_bytes,
            "evict": rules.evict, "graph_ms": 1e3 * rules.graph_s, "notes": notes + session.notes,
            "counters": session.refused,
        },
        "experiments": session.records(),
        "kernels": session.kernel_rows(),
        "counters": {name: counters.totals(rows) for name, rows in session.counted.items()},
        "errors": session.errors,
        "kernels_per_step": kernels_per_step(machine.facts(device)["name"]),
    }  # fmt: skip
    result["claims"] = registry.judged(result)
    return result


class Session:
    """One run: what was launched, timed and counted so far."""

    def __init__(
        self, gpu: Any, timer: kerneltiming.Timer, smoke: bool, quick: bool, seed: int, end: float
    ) -> None:
        self.gpu, self.smoke, self.quick, self.seed, self.end = gpu, smoke, quick, seed, end
        self.stopwatch = timed.Stopwatch(gpu, timer, seed)
        setting = experiments.setting(gpu.name, smoke)
        self.timed = [timed.Timed(each, setting) for each in experiments.all_experiments()]
        self.launches: dict[str, Any] = {"samples_us": {}, "reasons": {"launches": "not measured"}}
        self.kernels = resources.Kernels()
        self.limits, self.limits_unknown = resources.limits_here()
        self.counted: dict[str, list[Row]] = {}
        self.refused: str | None = "not counted"
        self.errors: dict[str, float] = {}
        self.notes: list[str] = []

    def left_s(self) -> float:
        return self.end - time.monotonic()

    def run(self, on_event: OnEvent, count: bool) -> bool:
        """Everything in order; whether it came to its end. What fails leaves a note and the rest goes on."""
        try:
            for done, (name, part) in enumerate(self.parts(count)):
                on_event({"case": name, "doing": "", "done": done, "total": 5})
                try:
                    with compiling(), self.gpu.running():
                        for word in part() or ():
                            on_event({"case": name, "doing": word, "done": done, "total": 5})
                except Exception as error:
                    self.notes.append(f"{name}: {describe(error)}")
        except KeyboardInterrupt:
            return False
        return True

    def parts(self, count: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "every kernel", self.watch_kernels
        yield "launches", self.time_launches
        yield "experiments", self.time_experiments
        yield "errors", self.find_errors
        if count:
            yield "Nsight Compute", self.count

    def watch_kernels(self) -> None:
        self.notes += stepping.watch(self.kernels, self.gpu.name, self.smoke)
        if self.limits_unknown and not self.smoke:
            self.notes.append(self.limits_unknown)
        self.gpu.forget()

    def time_launches(self) -> None:
        repeats = LEAST_QUICK if self.quick else LEAST
        self.launches = launching.measure(self.gpu, repeats, self.smoke, self.seed)

    def time_experiments(self) -> Iterator[str]:
        for each in self.timed:
            yield f"{each.experiment.name}, prepare"
            self.stopwatch.prepare(each, self._watcher(each.experiment.name))
        self._cuda_resources()
        least = LEAST_QUICK if self.quick else LEAST
        most = least if self.quick else timed.MOST_REPEATS
        yield from timed.repeats(self.stopwatch, self.timed, least, most, self._timing_left_s)

    def _timing_left_s(self) -> float:
        """A third of a run of five minutes is left to Nsight Compute."""
        return self.left_s() - (0 if self.smoke else 90)

    def _watcher(self, experiment: str) -> Callable[[str, Call], None]:
        """Notes which kernels a contender launches, under "EXPERIMENT: CONTENDER"."""

        def watch(name: str, call: Call) -> None:
            source = f"{experiment}: {name}"
            if "CUDA" in source or self._runs_cuda(experiment, name):
                try:
                    for row in resources.profiled(call):
                        self.kernels.add(source, row)
                except Exception as error:
                    self.notes.append(f"profiler, {source}: {describe(error)}")
            else:
                with self.kernels.listening(source):
                    call()

        return watch

    def _runs_cuda(self, experiment: str, name: str) -> bool:
        return name != "PyTorch" and experiment in experiments.IN_CUDA

    def _cuda_resources(self) -> None:
        try:
            resources.told(self.kernels, cuda.resources())
        except timed.Missing as missing:
            self.notes.append(str(missing))

    def find_errors(self) -> None:
        found = experiments.norm_errors(self.timed[0].setting)
        self.errors = {name: value for name, value in found.items() if isinstance(value, float)}

    def count(self) -> None:
        """By a process of its own, with this one's memory given back."""
        if self.smoke:
            self.refused = "Nsight Compute needs a CUDA GPU"
            return
        import torch

        torch.cuda.empty_cache()
        try:
            self.counted = counters.count([], max(60.0, min(COUNTING_S, self.left_s() + 60)))
            self.refused = None
        except counters.Refused as refused:
            self.refused = str(refused)

    def records(self) -> list[Row]:
        """Experiments, and the launches as one more of them."""
        launches = {
            "name": "launches", "shape": [1], "itemsize": 4, "method": None, "bytes": {}, "notes": [], **self.launches,
        }  # fmt: skip
        records = [each.record() for each in self.timed] + [launches]
        for each in records:
            each["us"] = {name: timed.summary(values) for name, values in each["samples_us"].items()}
        return records

    def kernel_rows(self) -> list[Row]:
        rows = self.kernels.rows(self.limits)
        for row in rows:
            row["achieved"] = achieved(row, self.counted)
        return rows


def achieved(row: Row, counted: dict[str, list[Row]]) -> float | None:
    """Of that kernel in that contender; a kernel of the step is looked for among the ops. The longest launch counts."""
    sources = (
        [row["source"]] if ":" in row["source"] else [name for name in counted if name.startswith("ops:")]
    )
    base = row["kernel"].split("<")[0]
    found = [
        each
        for source in sources
        for each in counted.get(source, [])
        if each["kernel"].split("<")[0] == base and each["occupancy"] is not None
    ]
    longest = max(found, key=lambda each: each["ns"] or 0, default=None)
    return None if longest is None else longest["occupancy"] / 100


def kernels_per_step(name: str, folder: Path | None = None) -> float | None:
    """Kernels a step of the ladder's baseline on this machine, by the newest staircase of `article` that has it."""
    found = None
    for path in sorted(
        (LADDER_RESULTS if folder is None else folder).glob(f"{name}/article-article-2*.json")
    ):
        try:
            rungs = json.loads(path.read_text(encoding="utf-8"))["rungs"]
            found = (rungs[0]["inspection"] or {}).get("kernels_per_step") or found
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
    return found


@contextmanager
def locked(device: str) -> Iterator[None]:
    from ladder.pool import device_lock

    with device_lock(machine.device_key(device)):
        yield
