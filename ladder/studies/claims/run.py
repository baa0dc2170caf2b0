"""The measurement of everything that the claims need, in order of importance, within `--minutes`."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.errors import UserError, describe, raise_if_environment
from ladder.base.events import CaseEvent
from ladder.base.paths import ROOT
from ladder.base.records import build, plain
from ladder.base.stopping import stop_on_sigterm
from ladder.machine import environment, system
from ladder.results import record
from ladder.results import store as results
from ladder.results.types import Machine
from ladder.studies.claims import experiments, launching, registry, stepping, timed
from ladder.studies.claims.hardware import counters, resources
from ladder.studies.claims.schema import (
    Claims,
    ExperimentResult,
    Kernel,
    Launched,
    PrecisionRow,
    Protocol,
)
from ladder.studies.kernelbench import cuda
from ladder.studies.kernelbench import timing as kerneltiming
from ladder.studies.kernelbench.calls import compiling
from ladder.studies.kernelbench.timing import Call
from ladder.studies.kernelbench.verdicts import summary

LADDER_RESULTS, PRECISION_RESULTS = ROOT / "results" / "ladder", ROOT / "results" / "precision"
COUNTING_S = 240  # seconds after which Nsight Compute is stopped
LOOKING_S = 150  # seconds of the time limit that are kept for the parts after the timing
LEAST, LEAST_QUICK = timed.LEAST_REPEATS, 2
OnEvent = Callable[[CaseEvent], None]


def measure(device: str, *, minutes: float, seed: int, quick: bool, count: bool, on_event: OnEvent) -> Claims:
    """Return the whole result, the claims included. Ctrl-C keeps the finished parts. `count` adds Nsight Compute."""
    smoke = device == "cpu"
    begun, head = time.monotonic(), record.header("claims", system.facts(device))
    machine = build(Machine, head.pop("machine"))
    timer = kerneltiming.timer_on(device)
    session = Session(timer.gpu, timer, smoke, quick or smoke, seed, begun + 60 * minutes)
    with stop_on_sigterm():
        complete = session.run(on_event, count)
    notes = [kerneltiming.SMOKE_NOTE] * smoke + ["quick: not to be quoted"] * (quick and not smoke)
    notes += ["dirty work tree: not to be published"] * bool(head["dirty"]) + ["interrupted"] * (not complete)
    notes += environment.said(environment.recorded())
    result = Claims(
        **head | {"complete": complete, "seconds": round(time.monotonic() - begun, 1)},
        machine=machine,
        protocol=Protocol(
            minutes=minutes, quick=quick, smoke=smoke, seed=seed, l2_bytes=timer.gpu.l2_bytes,
            evict=timer.rules.evict, graph_ms=1e3 * timer.rules.graph_s, notes=notes + session.notes,
            counters=session.refused,
        ),
        experiments=session.records(),
        kernels=session.kernel_rows(),
        counters={name: counters.totals(rows) for name, rows in session.counted.items()},
        errors=session.errors,
        kernels_per_step=kernels_per_step(machine.name),
        precision=precision_claims(machine.name),
        claims=[],
    )  # fmt: skip
    return replace(result, claims=registry.judged(result))


class Session:
    """The state of one run: the launches, times and counters so far."""

    def __init__(
        self, gpu: Any, timer: kerneltiming.Timer, smoke: bool, quick: bool, seed: int, end: float
    ) -> None:
        self.gpu, self.smoke, self.quick, self.seed, self.end = gpu, smoke, quick, seed, end
        self.stopwatch = timed.Stopwatch(gpu, timer, seed)
        setting = experiments.setting(gpu.name, smoke)
        self.timed = [timed.Timed(each, setting) for each in experiments.all_experiments()]
        self.launches = launching.Launches({}, {"launches": "not measured"})
        self.kernels = resources.Kernels()
        self.limits, self.limits_unknown = resources.limits_here()
        self.counted: dict[str, list[counters.Counts]] = {}
        self.refused: str | None = "not counted"
        self.errors: dict[str, float] = {}
        self.notes: list[str] = []

    def left_s(self) -> float:
        return self.end - time.monotonic()

    def run(self, on_event: OnEvent, count: bool) -> bool:
        """Run every part in order. Return whether it came to its end.

        A failed part leaves a note, and the rest goes on.
        """
        parts = self.parts(count)
        try:
            for done, (name, part) in enumerate(parts.items()):
                place = CaseEvent(name, done, len(parts))
                on_event(place)
                begin = time.monotonic()
                try:
                    for word in part() or ():
                        on_event(replace(place, doing=word))
                except Exception as error:
                    raise_if_environment(error)
                    self.notes.append(f"{name}: {describe(error)}")
                on_event(replace(place, rows=[f"{name}: {time.monotonic() - begin:.0f} s"]))
        except KeyboardInterrupt:
            return False
        return True

    def parts(self, count: bool) -> dict[str, Callable[[], Any]]:
        """Return the parts, timing first: a profiler, and the settings of a step, would disturb later timing."""
        parts: dict[str, Callable[[], Any]] = {"build CUDA C++": self.build}
        parts |= {"launches": self.time_launches, "experiments": self.time_experiments}
        parts |= {
            "errors": self.find_errors,
            "CUDA C++ kernels": self.profile,
            "every kernel": self.watch_kernels,
        }
        return parts | ({"Nsight Compute": self.count} if count else {})

    def build(self) -> None:
        """Make all builds side by side, before anything is timed."""
        if not self.smoke:
            cuda.build_ahead([{}, *experiments.BUILDS])

    def time_launches(self) -> None:
        repeats = LEAST_QUICK if self.quick else LEAST
        with self.gpu.running():
            self.launches = launching.measure(self.gpu, repeats, self.smoke, self.seed)

    def time_experiments(self) -> Iterator[str]:
        with compiling(), self.gpu.running():
            for each in self.timed:
                yield f"{each.experiment.name}, prepare"
                self.stopwatch.prepare(each, self._watcher(each.experiment.name))
            least = LEAST_QUICK if self.quick else LEAST
            most = least if self.quick else timed.MOST_REPEATS
            yield from timed.repeats(self.stopwatch, self.timed, least, most, self._timing_left_s)

    def _timing_left_s(self) -> float:
        """Return the seconds left for timing. The step and Nsight Compute get two and a half of five minutes."""
        return self.left_s() - (0 if self.quick else LOOKING_S)

    def _watcher(self, experiment: str) -> Callable[[str, Call], None]:
        """Return a function that notes a contender's Triton kernels under "EXPERIMENT: CONTENDER"."""

        def watch(name: str, call: Call) -> None:
            with self.kernels.listening(f"{experiment}: {name}"):
                call()

        return watch

    def find_errors(self) -> None:
        with self.gpu.running():
            self.errors = experiments.norm_errors(self.timed[0].setting)
        self.gpu.forget()

    def profile(self) -> Iterator[str]:
        """Record each contender's launches in CUDA C++ by the profiler, and the library's facts of its kernels."""
        for each in self.timed:
            for name in each.running:
                if "CUDA" in name or (each.experiment.name in experiments.IN_CUDA and name != "PyTorch"):
                    yield f"{each.experiment.name}: {name}"
                    self._profile(each, name)
        for flags in ({}, *experiments.BUILDS):  # builds differ in registers and spills
            try:
                self._add_facts(flags)
            except timed.Missing as missing:
                self.notes.append(str(missing))
                return

    def _add_facts(self, flags: cuda.Flags) -> None:
        said = cuda.resources(**flags)
        resources.told(self.kernels, said, lambda source: experiments.flags_of(source) == flags)
        self.notes += resources.disagreements(said, self.limits)

    def _profile(self, each: timed.Timed, name: str) -> None:
        source = f"{each.experiment.name}: {name}"
        try:
            call = each.experiment.contenders[name](each.setting)
            call()
            for row in resources.profiled(call, source):
                self.kernels.add(row)
        except Exception as error:
            self.notes.append(f"profiler, {source}: {describe(error)}")
        self.gpu.forget()

    def watch_kernels(self) -> None:
        """Record the kernels of a step outside the stopwatch's stream, as a step has its own streams."""
        self.notes += stepping.watch(self.kernels, self.gpu.name, self.smoke)
        if self.limits_unknown and not self.smoke:
            self.notes.append(self.limits_unknown)
        self.gpu.forget()

    def count(self) -> None:
        """Count in a separate process, after this process has given its memory back."""
        if self.smoke:
            self.refused = "Nsight Compute needs a CUDA GPU"
            return
        import torch

        torch.cuda.empty_cache()
        names = [
            each.experiment.name for each in self.timed if each.experiment.name not in counters.UNCOUNTED
        ]
        try:
            self.counted = counters.count([*names, stepping.OPS], COUNTING_S)
            self.refused = None
        except counters.Refused as refused:
            self.refused = str(refused)

    def records(self) -> list[ExperimentResult]:
        """Return the experiments, and the launches as one more experiment."""
        samples, reasons = self.launches.samples_us, self.launches.reasons
        launches = ExperimentResult(
            name="launches", shape=[1], itemsize=4, method=None, bytes={}, samples_us=samples, reasons=reasons,
            notes=[], us={name: summary(values) for name, values in samples.items()},
        )  # fmt: skip
        return [*(each.record() for each in self.timed), launches]

    def kernel_rows(self) -> list[Kernel]:
        rows = self.kernels.rows(self.limits)
        return [replace(row, achieved=achieved(row, self.counted)) for row in rows]


def achieved(row: Launched, counted: Mapping[str, list[counters.Counts]]) -> float | None:
    """Return the measured occupancy of the row's kernel, or None.

    Kernels of a whole step are looked up among the single ops. The longest of several launches counts.
    """
    sources = [row.source] if ":" in row.source else [name for name in counted if name.startswith("ops:")]
    base = row.kernel.split("<")[0]
    found = [
        each
        for source in sources
        for each in counted.get(source, [])
        if each.kernel.split("<")[0] == base and each.occupancy is not None
    ]
    longest = max(found, key=lambda each: each.ns or 0, default=None)
    return None if longest is None else longest.occupancy / 100


def kernels_per_step(name: str, folder: Path | None = None) -> float | None:
    """Return the kernels a step of the ladder's baseline on this machine, or None.

    The newest staircase of `article` with that number counts, of the article's ladder or of `full`.
    """
    stored = (LADDER_RESULTS if folder is None else folder) / name
    paths = [path for ladder in ("article", "full") for path in stored.glob(f"article-{ladder}-2*.json")]
    found = None
    for path in sorted(paths, key=lambda each: each.stem.split("-")[2:]):
        try:
            lowest = results.read(path)["rungs"][0]
            if lowest["name"] == "baseline":
                found = (lowest["inspection"] or {}).get("kernels_per_step") or found
        except (UserError, KeyError, IndexError, TypeError):
            continue
    return found


def precision_claims(name: str, folder: Path | None = None) -> list[PrecisionRow]:
    """Return this machine's rows of `ladder precision` for 16 bits against FP32, or [].

    A stopped run's partial file counts only where there is no whole file.
    """
    keys = [field.name for field in fields(PrecisionRow)]
    found: list[tuple[bool, str, list[PrecisionRow]]] = []
    for path in sorted((PRECISION_RESULTS if folder is None else folder).glob(f"{name}*.json")):
        named = re.fullmatch(rf"{re.escape(name)}(-partial)?(-\d{{8}}T\d{{6}}Z)?", path.stem)
        with contextlib.suppress(UserError, KeyError, TypeError):
            result = results.read(path)
            rows = [
                PrecisionRow(**{key: row[key] for key in keys})
                for row in result["claims"]
                if row["against"] == "fp32" and row["ours"] is not None
            ]
            if named:  # skips other workloads, and machines whose names begin alike
                found.append((named[1] is None, str(result.get("started")), rows))
    return max(found, key=lambda each: each[:2])[2] if found else []


@contextmanager
def locked(device: str) -> Iterator[None]:
    from ladder.base.locks import device_lock

    with device_lock(system.device_key(device)):
        yield


OUT = ROOT / "results" / "claims"

MINUTES = 5.0


def write(result: Claims, out: Path) -> list[Path]:
    """Write JSON, Markdown and chart, each whole or not at all.

    A quick or unfinished run never replaces a whole run.
    """
    from ladder.studies.claims import chart, report

    rules = result.protocol
    words = [result.machine.name, *["quick"] * rules.quick, *["smoke"] * rules.smoke]
    stem, pages = "-".join(text.slug(word) for word in words), {"md": report.markdown(result)}
    return results.save(
        plain(result), out, pages, lambda kind: chart.render(result, kind), stem=stem, picture="-claims"
    )
