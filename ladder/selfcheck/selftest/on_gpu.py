"""The measure measured on a real device: waits of known length, planted slowdowns, identical programs.

- waits: 20 us to 100 ms by the GPU's own clock, through the code that times rungs.
- planted: the same step with a wait of 0.5% to 5% in each step, judged as a rung of a run is.
- identical: copies of one program, every pair of which is compared. No pair may be called different.

One round visits every program once, each in a fresh process, in random order. The file is written after each visit.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ladder.base import files
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.locks import device_lock
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.base.protocol import CYCLE_STEPS
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.outcomes import Program, Visited
from ladder.engine.rounds import PREPARED, Interleaved
from ladder.machine import system
from ladder.plan import catalog
from ladder.results import record
from ladder.results import store as results
from ladder.selfcheck.selftest import judging, planting, spin
from ladder.selfcheck.selftest.judging import Result, judge, markdown, wants_rounds
from ladder.stats import estimates, rounds_budget

MINUTES = 9.0
CYCLES = 2
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Group:
    """Programs that differ by nothing but a planted wait: `copies` without, and one with each share of `planted`.

    The first two copies are the twins, so at least three are needed. The verdict of `promised` shares must be `slower`.
    """

    name: str
    workload_name: str
    workload: Fields
    recipe: Fields
    copies: int
    planted: tuple[float, ...]
    promised: tuple[float, ...]
    where: str  # what is kept waiting: "gpu" or "cpu"

    def copy_names(self) -> list[str]:
        return [f"{self.name} {number + 1}" for number in range(self.copies)]

    def planted_names(self) -> dict[float, str]:
        return {share: f"{self.name} +{100 * share:g} percent" for share in self.planted}

    def against(self, share: float) -> str:
        """Return the copy that a planted program is compared with; not a twin."""
        rest = self.copy_names()[2:]
        return rest[self.planted.index(share) % len(rest)]


def groups(capabilities: dict[str, str | None]) -> list[Group]:
    """Return a captured step, bound by the GPU, and an eager one, bound by the host.

    The captured one is the article's top rung without data workers. At 64x64 it would be done sooner, but its processes
    differ more: 0.16% on one H200. Its 21 pairs of copies and the eager one's 3, each less its twins, are 22
    comparisons of identical programs.
    """
    ladder = catalog.load_ladder("article")
    top = catalog.climb(ladder, capabilities)[-1].recipe or {}
    alone = {"workers": 0, "persistent_workers": False, "prefetch_factor": None}
    article, tiny = (catalog.load_workload(name)[1] for name in ("article", "tiny"))
    captured = (0.005, 0.01, 0.02, 0.05), (0.01, 0.02, 0.05)
    return [
        Group("captured", "article", article, {**top, **alone}, 7, *captured, "gpu"),
        Group("eager", "tiny", tiny, {}, 3, (0.02, 0.05), (), "cpu"),
    ]


def run(folder: Path, minutes: float | None = None, tell: Tell = lambda text: None) -> tuple[Result, Path]:
    """Measure on the GPU, write `folder`/<machine>-real.json and .md, and return the result and the JSON file.

    Ctrl-C keeps what is finished ("complete" false). Raises `UserError` where it cannot be measured or written.
    """
    facts, capabilities = system.facts("cuda"), system.capabilities("cuda")
    for need in ("triton", "cuda_graphs", "bf16"):
        if capabilities[need]:
            raise UserError(f"--selftest: no waits can be planted on this GPU: {capabilities[need]}")
    name = f"{texts.slug(facts['name'])}-real.json"
    path = results.place(Path(folder) / name, record.header(None, facts))
    test = SelfTest(facts, groups(capabilities), path, minutes or MINUTES, tell=tell)
    return test.run(), path


class SelfTest:
    """One self-test in progress. `source`, a folder with the packages to measure, and `torch` are for tests."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        groups: Sequence[Group],
        path: Path,
        minutes: float,
        *,
        cycles: int = CYCLES,
        lengths_us: tuple[int, ...] = spin.LENGTHS_US,
        seed: int = 0,
        source: Path = ROOT,
        torch: bool = True,
        tell: Tell = lambda text: None,
    ) -> None:
        self.groups, self.path, self.source, self.torch, self.tell = groups, path, source, torch, tell
        self.device, self.lengths_us = facts["device"], lengths_us
        self.begin, self.budget_s = time.monotonic(), 60 * minutes
        # The promises are about step times. Profiles of 16 programs would take minutes, and nobody would read them.
        self.rounds = Interleaved(
            self.device, cycles=cycles, seed=seed, profile=False, torch=torch, on_wait=self._wait
        )
        made = {
            **record.header(None, facts),
            "what": "selftest on a device",
            "protocol": {
                "budget_s": self.budget_s,
                "rounds": 0,
                "cycles": cycles,
                "cycle_steps": CYCLE_STEPS,
                "seed": seed,
                "settle_s": 0.0,
                "settle_cycles": 0,
                "built_together": PREPARED.get(self.device, 1),
            },
            "spin": [],
            "groups": [_group_record(group) for group in groups],
            "programs": [each for group in groups for each in _program_records(group)],
            "gpu": None,
            "gpu_notes": [],
            "broken": [],
        }
        self.result = cast(Result, made)
        self.records = {each["name"]: each for each in self.result["programs"]}

    def run(self) -> Result:
        """Measure waits, one visit of each step to learn its time, then rounds as the budget allows."""
        try:
            with stop_on_sigterm(), tempfile.TemporaryDirectory() as folder:
                self._spin(Path(folder) / "spin")
                programs = self._programs(Path(folder))
                number, round_s = 0, 0.0
                while programs and self._goes_on(number, round_s):
                    begin = time.monotonic()
                    self.tell(f"generation {number + 1}: {len(programs)} programs")
                    for visit in self._visits(number, programs):
                        self._take(visit)
                    programs = [p for p in programs if self.records[p.name]["status"] != "failed"]
                    round_s = max(round_s, time.monotonic() - begin)
                    number += 1
                    self.result["protocol"]["rounds"] = number
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.tell("interrupted: what is finished is kept")
        finally:
            self.rounds.close()
            self._save()
        return self.result

    def _goes_on(self, done: int, round_s: float) -> bool:
        """Return whether a run would make another generation: three always, more for wide intervals."""
        return rounds_budget.another_round(
            done,
            fixed=None,
            budget_s=self.budget_s,
            spent_s=time.monotonic() - self.begin,
            round_s=round_s,
            wanted=done >= rounds_budget.LEAST_ROUNDS and wants_rounds(self.result),
        )

    def _wait(self) -> None:
        self.tell("waiting for another run on this device")

    def _spin(self, folder: Path) -> None:
        if not self.lengths_us:
            return
        self.tell(f"waits of {self.lengths_us[0]:g} to {self.lengths_us[-1]:g} us")
        folder.mkdir()
        with device_lock(system.device_key(self.device), self._wait):
            self.result["spin"] = spin.measure(self.device, folder, self.lengths_us)
        self._save()

    def _programs(self, folder: Path) -> list[Program]:
        """Learn how long a step of each group takes, and make the checkouts in which so much of it is planted."""
        self.tell("how long the steps take")
        first = [self._program(group, group.copy_names()[0], self.source) for group in self.groups]
        steps_s: dict[str, float] = {}
        for visit in self._visits(-1, first):
            group = next(g for g in self.result["groups"] if g["name"] == visit.program.rung)
            group["calibration"] = visit.round
            if visit.round is None:
                self._fail(self.records[visit.program.name], f"calibration: {visit.reason}")
            else:
                group["recipe"], group["settings"] = visit.recipe, visit.settings
                steps_s[group["name"]] = estimates.median(visit.round["samples_ms"]) / 1000
        programs = []
        for group in (group for group in self.groups if group.name in steps_s):
            self._recall(group)
            programs += [self._program(group, name, self.source) for name in group.copy_names()]
            for number, (share, name) in enumerate(group.planted_names().items()):
                place, seconds = folder / f"{group.name}-{number}", share * steps_s[group.name]
                place.mkdir()
                checkout = planting.checkout(place, seconds, group.where, self.source)
                programs.append(self._program(group, name, checkout))
                self.records[name]["planted_ms"] = 1000 * seconds
        self._save()
        return programs

    def _recall(self, group: Group) -> None:
        """Tell what memory the first copy took: the others take as much, and are prepared side by side at once."""
        seen = next(each["calibration"] for each in self.result["groups"] if each["name"] == group.name) or {}
        for name in [*group.copy_names()[1:], *group.planted_names().values()]:
            self.rounds.recall(name, [], seen.get("peak_reserved_bytes"))

    def _program(self, group: Group, name: str, code: Path) -> Program:
        return Program(name, group.name, name, group.workload, group.recipe, code)

    def _visits(self, number: int, programs: Sequence[Program]) -> Iterator[Visited]:
        with contextlib.closing(self.rounds.round(number, programs)) as visits:
            yield from visits

    def _take(self, visit: Visited) -> None:
        """Keep the outcome of a visit, and write the file."""
        each = self.records[visit.program.name]
        group = next(g for g in self.result["groups"] if g["name"] == visit.program.rung)
        if visit.round is None:
            self._fail(each, visit.reason or "no reason was given")
        elif (visit.recipe, visit.settings) != (group["recipe"], group["settings"]):
            self._fail(each, "its recipe or settings are not those of the step without a plan")
        else:
            each["rounds"].append(visit.round)
            each["status"] = "ok"
        self._save()

    def _fail(self, each: judging.Program, reason: str) -> None:
        each["status"], each["reason"] = "failed", texts.display(reason)

    def _save(self) -> None:
        """Bring everything derived up to date and write both files."""
        result = self.result
        result["seconds"] = round(time.monotonic() - self.begin, 1)
        judge(result)
        if gpu := self.rounds.visits.summary(map(dict, result["programs"])):
            result["gpu"], result["gpu_notes"] = gpu, gpu["notes"]
        results.write(self.path, result)
        files.write(self.path.with_suffix(".md"), markdown(result))


def _group_record(group: Group) -> judging.Group:
    return {
        "name": group.name,
        "workload": {"name": group.workload_name, **group.workload, "data": None},
        "recipe": group.recipe,
        "settings": None,
        "waits_on": group.where,
        "promised": list(group.promised),
        "calibration": None,
        "twins": [],
        "floor": None,
        "resolution": None,
        "step_ms": None,
        "between_processes": None,
        "inside_process": None,
        "comparisons": [],
    }


def _program_records(group: Group) -> list[judging.Program]:
    def record(name: str, share: float | None) -> judging.Program:
        return {
            "name": name,
            "group": group.name,
            "planted": share,
            "against": None if share is None else group.against(share),
            "status": "n/a",
            "reason": None,
            "planted_ms": None,
            "rounds": [],
        }

    copies = [record(name, None) for name in group.copy_names()]
    return [*copies, *(record(name, share) for share, name in group.planted_names().items())]
