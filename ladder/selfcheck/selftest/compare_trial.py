"""Does bench-compare find what it should? In simulation everywhere, in real steps with planted waits on a GPU.

One set of rounds holds several copies of one program and one whose step waits (`ladder.selfcheck.selftest.planting`).
Each question is judged as a comparison of two commits is: BASE, BASE again, HEAD. The planted program is HEAD of one;
each copy is HEAD of A/As whose BASE is visited by pairs of the others. So n copies make n times half of n - 1 of
them, of which n/3 share no program.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ladder.base import git
from ladder.base import protocol as protocols
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.files import replacing
from ladder.base.paths import ROOT
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.rounds import Interleaved, Program
from ladder.images import prepare as images
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.publish.regressions import judging
from ladder.publish.regressions.judging import LEAST_ROUNDS, MOST_ROUNDS
from ladder.results import code_digest, sources
from ladder.results import store as results
from ladder.selfcheck.selftest import compare_simulate, planting
from ladder.selfcheck.selftest.compare_judging import PLANTED, judge, markdown, questions
from ladder.stats import estimates

OUT = ROOT / "results" / "selftest"
COPIES = {"captured": 7, "eager": 4}
ENGINE = ("selfcheck/selftest/planting", "engine/rounds")  # what times a program, beside what times a rung
WAITS_ON = {
    "captured": "gpu",
    "eager": "both",
}  # an eager step is bound by the host, or by the GPU if it is large
MINUTES = 9.0
Tell = Callable[[str], None]
Result = dict[str, Any]


def command(kind: str, workload: str | None, copies: int | None, minutes: float | None, tell: Tell) -> int:
    """Run one kind of trial, write and print it; the exit status: 1 if a promise was broken."""
    if kind == "simulated":
        if (workload, copies, minutes) != (None, None, None):
            raise UserError("--selftest simulated: leave out --workload, --copies and --budget")
        begin = time.perf_counter()
        result: Result = {
            "schema": 1,
            "what": "selftest of bench-compare, simulated",
            **compare_simulate.measure(),
        }
        result["seconds"] = round(time.perf_counter() - begin, 1)
        path = _write(OUT / "bench-compare-simulated.json", result, _simulated_markdown(result))
    else:
        result, path = on_gpu(kind, workload or "article", copies or COPIES[kind], minutes or MINUTES, tell)
    print(path.with_suffix(".md").read_text(encoding="utf-8"))
    return 1 if result["broken"] else 0


def on_gpu(kind: str, workload_name: str, copies: int, minutes: float, tell: Tell) -> tuple[Result, Path]:
    """Measure on the GPU; goes on with an unfinished file of the same trial. Raises `UserError` without a GPU."""
    facts, able = system.facts("cuda"), system.capabilities("cuda")
    for need in ("triton", "cuda_graphs", "bf16"):
        if able[need]:
            raise UserError(f"--selftest {kind}: {able[need]}")
    name, workload = catalog.load_workload(workload_name)
    planned = catalog.climb(catalog.load_ladder("full"), needs.possible(able, workload))
    runnable = [each for each in planned if each.recipe is not None]
    rung = runnable[-1] if kind == "captured" else runnable[0]
    pictures = images.prepare_images(None, workload["resolution"], at_least=workload["batch"])
    path = OUT / f"{texts.slug(facts['name'])}-{texts.slug(name)}-bench-compare-{kind}.json"
    shown = {"name": name, **workload, "data": pictures.source}
    result = fresh = _new(kind, facts, shown, rung, copies)
    if path.is_file() and _same(kept := results.parse(path.read_bytes()), fresh):
        result = kept | {"complete": False} | sources.gone_on_with(kept, fresh)
    else:
        path = results.place(path, fresh)
    trial = Trial(result, {**workload, "data": pictures.path}, path, 60 * minutes, tell=tell)
    return trial.run(), path


def _new(kind: str, facts: dict[str, Any], workload: dict[str, Any], rung: Any, copies: int) -> Result:
    commit, dirty = git.commit_of(ROOT)
    code = code_digest.digests(also=ENGINE)
    names = [f"copy {number + 1}" for number in range(copies)] + [PLANTED]
    return {
        "schema": 1,
        "what": "selftest of bench-compare",
        "kind": kind,
        "machine": facts,
        "commit": commit,
        "dirty": dirty,
        code_digest.KEY: code,
        "workload": workload,
        "rung": rung.name,
        "recipe": rung.recipe,
        "share": compare_simulate.PLANTED[kind],
        "planted_ms": None,
        "protocol": {"rounds": 0, "cycles": 2, "settle_s": protocols.SETTLE_S, "seed": 0},
        "complete": False,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "programs": [{"name": name, "status": "n/a", "reason": None, "rounds": []} for name in names],
        "questions": [],
        "gpu": None,
        "broken": [],
    }


def _same(kept: Result, result: Result) -> bool:
    keys = ("schema", "what", "kind", "machine", "workload", "rung", "recipe", "share")
    programs = [[each["name"] for each in one.get("programs", [])] for one in (kept, result)]
    unfinished = not kept.get("complete") and kept.get("planted_ms") is not None
    alike = programs[0] == programs[1] and all(kept.get(k) == result[k] for k in keys)
    return unfinished and alike and not code_digest.differences(kept, result)


class Trial:
    """One trial in progress. `source`, a folder with the packages to measure, and `torch` are for tests."""

    def __init__(
        self,
        result: Result,
        workload: dict[str, Any],
        path: Path,
        budget_s: float,
        *,
        source: Path = ROOT,
        torch: bool = True,
        tell: Tell = lambda text: None,
    ) -> None:
        self.result, self.workload, self.path, self.budget_s = result, workload, path, budget_s
        self.source, self.tell, self.begin = source, tell, time.monotonic() - result["seconds"]
        self.started = time.monotonic()
        self.records = {each["name"]: each for each in result["programs"]}
        protocol = result["protocol"]
        self.rounds = Interleaved(
            result["machine"]["device"], cycles=protocol["cycles"], seed=protocol["seed"], torch=torch
        )

    def run(self) -> Result:
        """One visit to learn how long the step takes, then rounds: five, and more while the budget lasts."""
        protocol, round_s = self.result["protocol"], 0.0
        try:
            with tempfile.TemporaryDirectory() as folder, stop_on_sigterm():
                programs = self.programs(Path(folder))
                while self.goes_on(round_s):
                    begin = time.monotonic()
                    visits = self.rounds.round(protocol["rounds"], programs, self.is_due)
                    with contextlib.closing(visits):
                        for visited in visits:
                            self.take(visited)
                    round_s = max(round_s, time.monotonic() - begin)
                    protocol["rounds"] += 1
                    self.tell(f"round {protocol['rounds']}: {time.monotonic() - self.started:.0f} s")
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.tell("interrupted: what is finished is kept, and the same command goes on")
        finally:
            self.save()
            self.rounds.close()
        return self.result

    def programs(self, folder: Path) -> list[Program]:
        """Checkouts of the copies and of the planted program; the first visit says how much is to be planted."""
        plain = folder / "code-0"
        _copy(self.source, plain)
        rung, recipe = self.result["rung"], self.result["recipe"]
        made = [
            Program(each, rung, each, self.workload, recipe, plain)
            for each in self.records
            if each != PLANTED
        ]
        if self.result["planted_ms"] is None:
            self.tell("how long a step takes")
            (visited,) = self.rounds.round(
                -1, [Program("calibration", *[rung] * 2, self.workload, recipe, plain)]
            )
            if visited.round is None:
                raise UserError(f"the step cannot be measured: {visited.status}: {visited.reason}")
            self.result["planted_ms"] = self.result["share"] * estimates.median(visited.round["samples_ms"])
        planted = folder / "code-1"
        planted.mkdir()
        where = WAITS_ON[self.result["kind"]] if self.result["machine"]["device"] == "cuda" else "cpu"
        planting.checkout(planted, self.result["planted_ms"] / 1000, where, self.source)
        return [*made, Program(PLANTED, rung, PLANTED, self.workload, recipe, planted)]

    def is_due(self, program: Program) -> bool:
        """Whether a round that an interrupted run began still lacks this visit."""
        each, number = self.records[program.name], self.result["protocol"]["rounds"]
        return each["reason"] is None and all(r["round"] != number for r in each["rounds"])

    def goes_on(self, round_s: float) -> bool:
        done = self.result["protocol"]["rounds"]
        if done < LEAST_ROUNDS:
            return True
        fits = time.monotonic() - self.started + round_s <= self.budget_s
        asked = [times for *_, times in questions(self.result)]
        return fits and done < MOST_ROUNDS and judging.wants_rounds(asked)

    def take(self, visited: Any) -> None:
        each = self.records[visited.program.name]
        if visited.round is None:
            each.update(status=visited.status, reason=texts.display(visited.reason or "no reason was given"))
        else:
            each["rounds"].append(visited.round)
            each["status"] = "ok"
        self.save()

    def save(self) -> None:
        self.result["seconds"] = round(time.monotonic() - self.begin, 1)
        self.result["gpu"] = self.rounds.visits.summary(self.result["programs"])
        judge(self.result)
        _write(self.path, self.result, markdown(self.result))


def _copy(source: Path, into: Path) -> None:
    for name in planting.PACKAGES:
        if (source / name).is_dir():
            shutil.copytree(source / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))


def _simulated_markdown(result: Result) -> str:
    heads = ["steps", "noise", "planted", "runs", "found", "wrong sign", "exit status 0", "rounds"]
    lines = [
        "# bench-compare tried in simulation",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
    ]
    for row in result["table"]:
        found = "" if row["found"] is None else f"{row['found']:.0%}"
        size = f"{100 * row['slowdown']:g}%" if row["slowdown"] else "A/A"
        passed = "" if row["slowdown"] else f"{row['passed']} of {row['runs']}"
        cells = [row["kind"], row["family"], size, str(row["runs"]), found, str(row["wrong_sign"]), passed]
        lines.append("| " + " | ".join([*cells, f"{row['rounds']:.1f}"]) + " |")
    return (
        "\n".join(
            [*lines, "", *(f"- {line}" for line in result["broken"] or ["everything promised was kept"])]
        )
        + "\n"
    )


def _write(path: Path, result: Result, text: str) -> Path:
    try:
        results.write(path, result)
        with replacing(path.with_suffix(".md")) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path
