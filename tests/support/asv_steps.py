"""A made-up history of asv in which some commit is slower, with comparisons of its commits."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ladder.plan import catalog
from ladder.publish.history import notes as asvnotes
from ladder.publish.history import screening as history
from ladder.report import tiles
from ladder.studies.commits import known
from ladder.studies.commits.record import File
from tests.support.made_up_comparison import made_up, stored, with_commits
from tests.support.repositories import git

ROOT = Path(__file__).resolve().parents[3]
MACHINE, ENVIRONMENT = "some-gpu", "checkout-py3.12-torch2.13.0"
RUNGS = ["baseline", "bf16"]
STEP = "rungs.Rung.samples_step_time"
ROW = {"op": "bias_act", "direction": "backward", "itemsize": 2, "layout": "nhwc", "architecture": 90}
ROW |= {"size": "large", "tile": 4096, "columns": 64, "warps": 4, "per_sm": 2, "stages": 1}


class Toy:
    """A repository of empty commits, results of asv for them, and comparisons."""

    def __init__(self, root: Path, commits: int = 12) -> None:
        self.root, self.asv, self.compared = root, root / "asv", root / "compared"
        git(root, "init", "-q", "-b", "main")
        who = "committer Toy <toy@example.org>"
        lines = [f"commit refs/heads/main\n{who} {number} +0000\ndata 1\n\n" for number in range(commits)]
        subprocess.run(
            ["git", "fast-import", "--quiet"], input="".join(lines), cwd=root, text=True, check=True
        )
        self.commits = git(root, "rev-list", "--reverse", "HEAD").split()
        (self.asv / MACHINE).mkdir(parents=True)
        self.compared.mkdir()
        (self.asv / MACHINE / "machine.json").write_text(json.dumps({"machine": MACHINE, "version": 1}))

    def record(self, number: int, seconds: dict[str, float | None], **note: Any) -> Path:
        """What `asv run` leaves for one commit: a step time for each rung."""
        commit = self.commits[number]
        (self.asv / MACHINE / "notes" / f"{commit[:8]}-{ENVIRONMENT}.json").unlink(missing_ok=True)
        values = [seconds.get(rung) for rung in RUNGS]
        columns = {
            "result": values,
            "params": [["'article'"], [f"'{rung}'" for rung in RUNGS]],
            "version": "1",
            "stats_ci_99_a": [v and v * 0.9999 for v in values],
            "stats_ci_99_b": [v and v * 1.0001 for v in values],
        }
        data = {
            "commit_hash": commit, "env_name": ENVIRONMENT, "date": 1000 * number, "python": "3.12",
            "params": {"machine": MACHINE, "torch": "2.13.0"}, "requirements": {"torch": "2.13.0"}, "env_vars": {},
            "result_columns": list(columns), "results": {STEP: list(columns.values())},
            "durations": {}, "version": 2,
        }  # fmt: skip
        path = self.asv / MACHINE / f"{commit[:8]}-{ENVIRONMENT}.json"
        path.write_text(json.dumps(data))
        if note:
            conditions = {name: note.pop(name) for name in asvnotes.NAMES if name in note}
            asvnotes.add_note(path, asvnotes.create_note(commit, ENVIRONMENT, conditions, **note))
        return path

    def slower_from(self, first: int, by: float = 0.02, *, driver: int | None = None) -> None:
        """Every commit measured; bf16 takes `by` more from `first` on; from `driver` on there is a newer one."""
        for number in range(len(self.commits)):
            wobble = 1 + 1e-4 * ((number * 7) % 5 - 2)
            slow = 1 + by * (number >= first)
            new = driver is not None and number >= driver
            row = ROW | {"warps": 8 if number >= first else 4}
            self.record(
                number,
                {"baseline": 0.1 * wobble, "bf16": 0.05 * wobble * slow},
                driver="590.10" if new else "580.65",
                kernel_release="6.1",
                choices={
                    asvnotes.name_series(STEP, ["article", "bf16"]): tiles.lines([row]),
                    # Other processes decided otherwise at other commits:
                    "phases.Phase(article, bf16)": tiles.lines([ROW | {"tile": 2**number}]),
                    asvnotes.name_series(STEP, ["article", "baseline"]): tiles.lines(
                        [ROW | {"tile": 2**number}]
                    ),
                },
            )

    def compare(self, good: int, bad: int, head: float = 1.0, noise: float = 0.0002, **machine: Any) -> None:
        """A comparison of two of the commits, of bf16 of `article`."""
        file = with_commits(made_up(head, noise=noise), base=self.commits[good], head=self.commits[bad])
        cases = {key: replace(case, recipes={"bf16": {}}) for key, case in file.cases.items()}
        observed = {
            key: replace(
                each, programs={name.replace("baseline", "bf16"): v for name, v in each.programs.items()}
            )
            for key, each in file.observed.items()
        }
        article = catalog.load_workload("article")[1] | {"name": "article", "data": "sample-photographs"}
        facts = {"name": MACHINE, "cpu": "Some GPU", "torch": "2.13.0+cpu"} | machine
        host = replace(file.machine, **facts)
        self.write(replace(file, machine=host, workload=article, cases=cases, observed=observed))

    def write(self, result: File) -> None:
        """A comparison among those that are known."""
        path = self.compared / f"{len(list(self.compared.iterdir()))}.json"
        path.write_text(json.dumps(stored(result)))

    def screen(self, *entries: known.Entry, threshold: float = 0.01) -> tuple[list[history.Step], list[str]]:
        return history.screen(self.asv, self.compared, entries, "main", threshold, self.root)

    def only(self, *entries: known.Entry) -> history.Step:
        (step,), _ = self.screen(*entries)
        return step


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)
