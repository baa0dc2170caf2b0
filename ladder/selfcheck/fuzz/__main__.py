"""`python -m ladder.selfcheck.fuzz`: result files and YAML files, damaged by the thousand, and what becomes of them.

Each file is damaged in one way (`ladder.selfcheck.fuzz.strategies`) and read as if a stranger had sent it. An accepted
file is shown and copied as usual. Three things must never happen: an exception other than the one-line refusal, a write
outside the output folder, more than two seconds of CPU time. The same seed and Hypothesis make the same files.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import hypothesis
from hypothesis import strategies as st

from ladder.base import files, git, text
from ladder.base.errors import describe
from ladder.base.paths import ROOT
from ladder.machine import system
from ladder.results import store as results
from ladder.selfcheck.fuzz import strategies
from ladder.selfcheck.fuzz import targets as fuzztargets
from ladder.selfcheck.fuzz.targets import Target

OUT = ROOT / "results" / "faults"
LIMIT_S = 2.0  # of CPU time
WAITING = 10  # times as long by the clock
BATCH = 1000  # files that Hypothesis draws at a time: it remembers each
FILES, YAML = 100_000, 10_000
TITLES = {"results": "Result files, ours and asv's", "yaml": "YAML files"}
COUNTS = ("count", "accepted", "refused", "exceptions", "writes_outside")
HEADINGS = ("file", "damage", *(key.replace("_", " ") for key in COUNTS), "slowest")


@dataclass
class Row:
    """The outcomes of the files that were damaged in one way."""

    file: str
    damage: str
    count: int = 0
    accepted: int = 0
    refused: int = 0
    exceptions: int = 0
    writes_outside: int = 0
    slowest_s: float = 0.0
    findings: list[str] = field(default_factory=list)


class Slowest(TypedDict):
    """The file that took longest."""

    file: str
    damage: str
    bytes: int
    number: int
    seconds: float  # of CPU time


class Told(TypedDict):
    """A row, as the result file has it."""

    file: str
    damage: str
    count: int
    accepted: int
    refused: int
    exceptions: int
    writes_outside: int
    slowest_s: float


class Outcome(TypedDict):
    """The outcomes of the files of one kind."""

    commit: str | None
    dirty: bool | None
    seed: int
    total: dict[str, int]
    slowest: Slowest
    findings: list[str]
    rows: list[Told]


class Fuzzed(TypedDict):
    """The result of all runs, as its file has it."""

    schema: int
    what: str
    machine: Mapping[str, Any]  # `ladder.machine.system.facts`
    limit_s: float
    kinds: dict[str, Outcome]


# --- the run ------------------------------------------------------------------------------------------------------


@dataclass
class Fuzz:
    """A fuzzer with a folder of its own; `rows` by kind of file and damage."""

    folder: Path
    seed: int = 0
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    slowest: Slowest | None = None

    def damage(self, target: Target, damage: str, raw: bytes, place: str) -> None:
        """Have a damaged file read, and count the outcome. `place` is its kind and number."""
        row = self.rows.setdefault((target.name, damage), Row(target.name, damage))
        row.count += 1
        path, out = self.folder / "in" / target.place, self.folder / "out"
        path.write_bytes(raw)
        verdict, seconds = self._read(target, path, out, row)
        if seconds > LIMIT_S:  # a collection of garbage is in it once, a slow file is slow always
            verdict, again = self._read(target, path, out, row)
            seconds = min(seconds, again)
            if seconds > LIMIT_S:
                row.findings.append(f"{place}: {seconds:.1f} s")
        if verdict == "accepted":
            row.accepted += 1
        elif verdict == "refused":
            row.refused += 1
        else:
            row.exceptions += 1
            row.findings.append(text.display(f"{place}: {verdict}"))
        path.write_bytes(target.bases[0])  # it lies beside the next one that is damaged
        row.slowest_s = max(row.slowest_s, seconds)
        if self.slowest is None or seconds > self.slowest["seconds"]:
            number = int(place.split()[1])
            self.slowest = {
                "file": target.name,
                "damage": damage,
                "bytes": len(raw),
                "number": number,
                "seconds": seconds,
            }

    def _read(self, target: Target, path: Path, out: Path, row: Row) -> tuple[str, float]:
        with fuzztargets.watched(self.folder) as outside:
            begin, began = time.process_time(), time.perf_counter()
            try:
                verdict = target.read(path, out)
            except Exception as error:  # what is looked for
                verdict = describe(error)
            # CPU time, which other programs do not stretch; what waits is found by the clock
            seconds = max(time.process_time() - begin, (time.perf_counter() - began) / WAITING)
            if outside:
                row.writes_outside += len(outside)
                row.findings.append(text.display(f"wrote to {os.path.basename(outside[0])}"))
        return verdict, seconds

    def lay_out(self, among: list[Target]) -> None:
        """The genuine files that lie beside those that are damaged."""
        (self.folder / "out").mkdir()
        for target in among:
            path = self.folder / "in" / target.place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(target.bases[0])


def run(kind: str, count: int, seed: int = 0, tell: Callable[[str], None] | None = None) -> Fuzz:
    """Damage so many files of a kind, "results" or "yaml", by the weights of the files that are damaged.

    Hypothesis draws each file's damage by the seed. No file is left out that its weight gives a share.
    """
    among = [target for target in fuzztargets.targets() if target.kind == kind]
    weighted = [each for each, target in enumerate(among) for _ in range(target.weight)]
    shares = collections.Counter(weighted[number % len(weighted)] for number in range(count))
    with tempfile.TemporaryDirectory(prefix="ladder-fuzz-") as folder:
        fuzz = Fuzz(Path(os.path.realpath(folder)), seed)
        fuzz.lay_out(among)
        done = 0
        for each, share in shares.items():
            for first in range(0, share, BATCH):
                some = min(BATCH, share - first)
                _batch(fuzz, among[each], f"{kind} {done}", some)
                done += some
                if tell:
                    tell(f"{kind}: {done} of {count}")
    return fuzz


def _batch(fuzz: Fuzz, target: Target, first: str, count: int) -> None:
    """Damage so many files of one target; the seed and the first one's kind and number decide how."""
    kind, number = first.split()
    numbers = itertools.count(int(number))

    @hypothesis.seed(f"{fuzz.seed} {first}")
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=[*hypothesis.HealthCheck],
    )  # fmt: skip
    @hypothesis.given(_damaged(target))
    def batch(file: tuple[str, bytes]) -> None:
        fuzz.damage(target, *file, f"{kind} {next(numbers)}")

    batch()


@st.composite
def _damaged(draw: strategies.Draw, target: Target) -> tuple[str, bytes]:
    return draw(strategies.damaged(target.bases[draw(st.integers(0, len(target.bases) - 1))]))


def outcome(fuzz: Fuzz, commit: str | None, dirty: bool | None) -> Outcome:
    """Return the entry of one kind in the result file; `commit` is the checkout's when the run began."""
    rows = [fuzz.rows[key] for key in sorted(fuzz.rows)]
    return {
        "commit": commit,
        "dirty": dirty,
        "seed": fuzz.seed,
        "total": {key: sum(getattr(row, key) for row in rows) for key in COUNTS},
        "slowest": {**fuzz.slowest, "seconds": round(fuzz.slowest["seconds"], 3)},
        "findings": [finding for row in rows for finding in row.findings][:100],
        "rows": [
            {
                "file": row.file,
                "damage": row.damage,
                "count": row.count,
                "accepted": row.accepted,
                "refused": row.refused,
                "exceptions": row.exceptions,
                "writes_outside": row.writes_outside,
                "slowest_s": round(row.slowest_s, 3),
            }
            for row in rows
        ],
    }


def markdown(data: Fuzzed) -> str:
    """Return the result as tables."""
    facts = data["machine"]
    lines = [
        "# Damaged files and what became of them",
        "",
        "`python -m ladder.selfcheck.fuzz` damages files, each in the way that its row names, and reads them as if"
        " strangers had sent them; what is accepted is shown and copied. Exceptions, writes outside the output folder"
        " and files that"
        f" take more than {data['limit_s']:g} s must not be. {facts['cpu']}, Python {facts['python']}.",
    ]
    for kind, found in data["kinds"].items():
        total, slowest = found["total"], found["slowest"]
        commit = results.commit_words(dict(found))
        lines += [
            "",
            f"## {TITLES[kind]}",
            "",
            f"{total['count']}: {total['accepted']} accepted, {total['refused']} refused in one line,"
            f" {total['exceptions']} exceptions, {total['writes_outside']} writes outside. The slowest took"
            f" {slowest['seconds']} s of CPU time: {slowest['file']}, {slowest['damage']}, {slowest['bytes']} bytes."
            f" Seed {found['seed']}, commit {commit}.",
            "",
        ]
        rows = [
            [row["file"], row["damage"], *(str(row.get(key)) for key in COUNTS), f"{row['slowest_s']:.3f} s"]
            for row in found["rows"]
        ]
        lines += text.piped([HEADINGS, *rows], words=(0, 1), show=str)
        lines += [f"\nFound: {finding}" for finding in found["findings"]]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ladder.selfcheck.fuzz",
        description=__doc__.splitlines()[0],
        epilog="A kind of which 0 are asked for keeps what is recorded of it.",
    )
    parser.add_argument(
        "--results", type=int, default=FILES, metavar="N", help="result files, ours and asv's"
    )
    parser.add_argument("--yaml", type=int, default=YAML, metavar="N", help="workloads, ladders and others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT, help="where fuzz.json and fuzz.md go")
    asked = parser.parse_args(arguments)
    path, findings = asked.out / "fuzz.json", []
    kept: dict[str, Outcome] = json.loads(path.read_text())["kinds"] if path.is_file() else {}
    for kind, count in (("results", asked.results), ("yaml", asked.yaml)):
        if count:
            code = git.commit_of(ROOT)
            fuzz = run(kind, count, asked.seed, lambda line: print(line, file=sys.stderr, flush=True))
            kept[kind] = outcome(fuzz, *code)
            findings += kept[kind]["findings"]
    data: Fuzzed = {
        "schema": 1,
        "what": "fuzz",
        "machine": system.facts("cpu"),
        "limit_s": LIMIT_S,
        "kinds": {kind: kept[kind] for kind in TITLES if kind in kept},
    }
    data = text.fit(data)
    results.write(path, dict(data))
    files.write(asked.out / "fuzz.md", markdown(data))
    print(f"{asked.results + asked.yaml} files, {len(findings)} findings: {asked.out / 'fuzz.md'}")
    for line in findings:
        print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
