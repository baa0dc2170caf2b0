"""Steps in asv's history: found at 1%, confirmed by a comparison alone, labelled, accepted; and what is not asv's."""

import dataclasses
import datetime
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ladder.base.errors import UserError
from ladder.cli.main import main
from ladder.plan import catalog
from ladder.publish.history import choices as choicehistory
from ladder.publish.history import issues
from ladder.publish.history import notes as asvnotes
from ladder.publish.history import screening as history
from ladder.publish.history import series as recorded
from ladder.publish.history.screening import CANDIDATE, CONFIRMED, DRIVER, KNOWN, REFUTED, UNCLEAR
from ladder.publish.regressions import known
from tests.publish.regressions.test_regressions import judging, made_up
from tests.support import committed, hostile_asv, made_up_asv
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
        for number in range(commits):
            git(root, "commit", "-q", "--allow-empty", "-m", str(number))
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
            asvnotes.add(path, asvnotes.made(commit, ENVIRONMENT, **note))
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
                    choicehistory.key(STEP, ["article", "bf16"]): choicehistory.lines([row]),
                    # Other processes decided otherwise at other commits:
                    "phases.Phase(article, bf16)": choicehistory.lines([ROW | {"tile": 2**number}]),
                    choicehistory.key(STEP, ["article", "baseline"]): choicehistory.lines(
                        [ROW | {"tile": 2**number}]
                    ),
                },
            )

    def compare(self, good: int, bad: int, head: float = 1.0, noise: float = 0.0002, **machine: Any) -> None:
        """A comparison of two of the commits, of bf16 of `article`."""
        result = made_up(head, noise=noise)
        result["base"]["commit"], result["head"]["commit"] = self.commits[good], self.commits[bad]
        result["machine"] |= {"name": MACHINE, "torch": "2.13.0+cpu"} | machine
        article = catalog.load_workload("article")[1]
        result["workload"] |= article | {"name": "article", "data": result["workload"]["data"]}
        for each in [*result["programs"], *result["rungs"]]:
            each["rung" if "side" in each else "name"] = "bf16"
        judging.judge(result)
        (self.compared / f"{len(list(self.compared.iterdir()))}.json").write_text(json.dumps(result))

    def screen(self, *entries: known.Entry, threshold: float = 0.01) -> tuple[list[history.Step], list[str]]:
        return history.screen(self.asv, self.compared, entries, "main", threshold, self.root)

    def only(self, *entries: known.Entry) -> history.Step:
        (step,), _ = self.screen(*entries)
        return step


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


def test_a_step_of_two_percent_is_a_candidate_with_its_commit_and_what_would_confirm_it(toy: Toy) -> None:
    toy.slower_from(7)
    step = toy.only()
    assert (step.status, step.series.name) == (CANDIDATE, "article/bf16")
    assert (step.good, step.bad) == (toy.commits[6], toy.commits[7]) and step.share == pytest.approx(
        0.02, abs=1e-3
    )
    said = f"make bench-compare BASE={step.good[:10]} HEAD={step.bad[:10]} WORKLOAD=article RUNGS=bf16"
    assert said in history.text([step], [])
    assert f"article/bf16 +2.0% at {step.bad[:10]}" in history.text([step], []) and not step.between
    assert step.remarks == ["tuning: bias_act backward 2B nhwc sm90 large: warps 4 -> 8"]


def test_what_real_notes_name_is_found_by_the_series_of_their_results() -> None:
    """The notes' format is the one that asv's runs really leave, in this repository."""
    every, lines = recorded.read(committed.folder("results/asv"))
    keys: dict[Path, set[str]] = {}
    for one in every:
        for path in one.files.values():
            keys.setdefault(path, set()).add(choicehistory.key(one.benchmark, one.params))
    notes = {path: (asvnotes.of(path) or {}).get("choices") for path in keys}
    assert not lines and any(notes.values())
    for path, choices in notes.items():
        assert set(choices or ()) <= keys[path], path.name


def test_more_choices_than_a_reader_wants_are_counted(toy: Toy) -> None:
    for number in range(len(toy.commits)):
        slow = number >= 7
        rows = [ROW | {"op": f"op{k}", "warps": 8 if slow else 4} for k in range(6)]
        named = {choicehistory.key(STEP, ["article", "bf16"]): choicehistory.lines(rows)}
        toy.record(number, {"baseline": 0.1, "bf16": 0.06 if slow else 0.05}, choices=named)
    assert len(toy.only().remarks) == 5 and toy.only().remarks[-1] == "tuning: 2 more choices changed"


def test_small_and_passing_steps_are_none(toy: Toy) -> None:
    toy.slower_from(7, 0.005)
    assert toy.screen()[0] == [] and len(toy.screen(threshold=0.003)[0]) == 1
    toy.slower_from(99)
    toy.record(5, {"baseline": 0.1, "bf16": 0.06})
    assert toy.screen()[0] == []


def test_commits_that_were_not_measured_widen_the_range(toy: Toy) -> None:
    toy.slower_from(7)
    for number in (5, 6, 7):
        (toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json").unlink()
    step = toy.only()
    assert (step.good, step.bad, step.between) == (toy.commits[4], toy.commits[8], 3)
    wanted = f"{step.good[:10]}~1..{step.bad[:10]}"
    said = f'asv find --skip-save {wanted} "{FOUND}"'
    assert said in history.text([step], []).splitlines()
    assert f"article/bf16 +2.0% in {step.good[:10]}..{step.bad[:10]}" in history.text([step], [])


FOUND = r"rungs\.Rung\.samples_step_time\('article', 'bf16'\)"


def test_a_range_that_begins_with_the_first_commit_has_none_before_it(toy: Toy) -> None:
    toy.slower_from(2)
    for number in (1, 2):
        (toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json").unlink()
    step = toy.only()
    assert step.good == toy.commits[0] and step.between == 2
    assert history.find(step) == f'asv find --skip-save {toy.commits[3][:10]} "{FOUND}"'


def test_a_name_that_a_shell_would_read_otherwise_makes_no_command(toy: Toy) -> None:
    """The files are strangers': somebody copies the line."""
    toy.slower_from(7)
    for number in range(len(toy.commits)):
        path = toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json"
        path.write_text(path.read_text().replace("'bf16'", "'$(date)'"))
        if number in (5, 6, 7):
            path.unlink()
    step = toy.only()
    assert step.series.pattern is None and history.find(step) is None
    assert '"rungs' not in history.text([step], []) and "asv find, by" in history.text([step], [])


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_pattern_of_every_series_selects_that_one_of_all_that_asv_knows(every: bool) -> None:
    from asv.benchmarks import Benchmarks

    data = json.loads(committed.file("results/asv/benchmarks.json").read_text())
    known_to_asv = [each for name, each in data.items() if name != "version"]
    seen = set()
    for each in known_to_asv:
        for index, params in enumerate(itertools.product(*each["params"])):
            if not every and seen >= {each["name"], *params}:
                continue
            seen |= {each["name"], *params}
            one = recorded.Series("m", "e", each["name"], (), None, tuple(params))
            selected = Benchmarks(
                SimpleNamespace(benchmark_dir=""), known_to_asv, one.pattern
            ).benchmark_selection
            assert {name: places for name, places in selected.items() if places} == {each["name"]: [index]}


@pytest.mark.parametrize(
    "head, noise, status", [(1.02, 0.0002, CONFIRMED), (1.0, 0.0002, REFUTED), (1.005, 0.02, UNCLEAR)]
)
def test_only_a_comparison_of_the_two_commits_confirms(
    toy: Toy, head: float, noise: float, status: str
) -> None:
    toy.slower_from(7)
    toy.compare(5, 7, 1.05)  # other commits
    toy.compare(6, 7, 1.05, name="other-gpu")
    toy.compare(6, 7, 1.05, torch="2.11.0")
    assert toy.only().status == CANDIDATE
    toy.compare(6, 7, head, noise)
    assert toy.only().status == status


def test_a_step_that_coincides_with_a_new_driver_is_labelled(toy: Toy) -> None:
    toy.slower_from(7, driver=7)
    assert (toy.only().status, toy.only().why) == (DRIVER, "coincides with a driver change: 580.65 -> 590.10")
    toy.compare(6, 7, 1.05)  # both on one driver
    assert toy.only().status == CONFIRMED
    assert "driver 580.65 -> 590.10" in toy.only().remarks
    toy.slower_from(7, driver=3)
    assert toy.only().remarks[-1] != "driver 580.65 -> 590.10"


def entry(commit: str, series: str = "article/*", days: int = 30, **more: Any) -> known.Entry:
    return known.Entry(commit, series, "wider tile", known.today() + datetime.timedelta(days), **more)


def test_what_was_accepted_is_silent_until_it_expires(toy: Toy) -> None:
    toy.slower_from(7)
    toy.compare(6, 7, 1.05)
    bad = toy.commits[7]
    assert toy.only(entry(bad)).status == toy.only(entry(bad[:9], machine=MACHINE)).status == KNOWN
    for other in (
        entry(bad, days=-1),
        entry(toy.commits[6]),
        entry(bad, "article/baseline"),
        entry(bad, machine="x"),
    ):
        assert toy.only(other).status == CONFIRMED
    assert "expired" in known.expired([entry(bad, days=-1), entry(bad)])[0]
    assert len(known.expired([entry(bad, days=-1), entry(bad)])) == 1


def test_a_comparison_of_an_accepted_commit_is_no_alarm_unless_it_is_broken(toy: Toy) -> None:
    result = made_up(1.05)
    entries = [entry("b" * 40, "tiny/baseline")]
    known.mark(result, entries)
    assert judging.status(result) == 0 and "wider tile" in result["rungs"][0]["known"]
    judging.sides_of(result, "baseline")["head"].update(status="failed", reason="it fails")
    judging.judge(result)
    known.mark(result, entries)
    assert judging.status(result) == 1
    assert known.between([entry(toy.commits[7])], toy.commits[6], toy.commits[9], toy.root)
    for base, head in ((7, 9), (2, 6)):
        assert not known.between([entry(toy.commits[7])], toy.commits[base], toy.commits[head], toy.root)


def test_what_is_broken_cannot_be_accepted_in_the_history_either(toy: Toy) -> None:
    toy.slower_from(7)
    toy.compare(6, 7, 1.0)
    (path,) = toy.compared.iterdir()
    result = json.loads(path.read_text())
    judging.sides_of(result, "bf16")["head"].update(status="failed", reason="it fails", rounds=[])
    judging.judge(result)
    path.write_text(json.dumps(result))
    step = toy.only(entry(toy.commits[7]))
    assert step.status == CONFIRMED and "broken" in step.why


def test_a_rung_that_has_left_the_ladder_stops_no_night(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rung left in its place may have another recipe. One refusal must not lose the other candidates."""
    asked: list[list[str]] = []

    def measure(request: Any, *_: Any) -> None:
        asked.append(request.rungs)
        if request.base == toy.commits[2]:
            raise UserError("this commit has no such recipe")

    monkeypatch.setattr(issues.arguments, "measure", measure)
    monkeypatch.setattr(issues.system, "facts", lambda device: {"name": MACHINE, "torch": "2.13.0"})
    toy.slower_from(7)
    step, told = toy.only(), []
    steps = [
        dataclasses.replace(
            step, series=dataclasses.replace(step.series, params=("article", rung)), good=good
        )
        for rung, good in (
            ("bf16-2", toy.commits[6]),
            ("cudnn_benchmark", toy.commits[6]),
            ("bf16", toy.commits[2]),
        )
    ]
    assert issues.confirm([*steps, step], 1, toy.compared, None, told.append, toy.root) == 1
    assert all(rungs == ["bf16"] for rungs in asked)
    said = "\n".join(told)
    assert (
        "article/bf16-2: not what full has" in said and "article/cudnn_benchmark: not what full has" in said
    )
    (tmp_path / "results" / "asv").mkdir(parents=True)
    (tmp_path / "results" / "asv" / "benchmarks.json").write_text(json.dumps({"x": [["'bf16'", "'bf16-2'"]]}))
    with monkeypatch.context() as renamed:  # of the recipe before
        renamed.setattr(issues, "ROOT", tmp_path)
        assert issues.confirm([step], 1, toy.compared, None, told.append, toy.root) == 0
    assert issues.confirm(steps[2:], 1, toy.compared, None, told.append, toy.root) == 0
    assert "not measured: this commit has no such recipe" in told


@pytest.mark.parametrize("name", hostile_asv.RESULT_FILES)
def test_the_command_reads_nothing_that_no_site_would_be_made_from(tmp_path: Path, name: str) -> None:
    """A traceback would end with the status of a confirmed regression."""
    committed.folder()  # the command asks git of this checkout
    path = made_up_asv.write(tmp_path / "asv")
    how, _ = hostile_asv.RESULT_FILES[name]
    how(path)
    seen = CliRunner().invoke(main, ["history", "--results", str(tmp_path / "asv"), "--json"])
    assert seen.exit_code == 0, seen.output
    assert json.loads(seen.stdout)["notes"]


def test_one_issue_for_each_confirmed_commit_and_none_for_candidates(toy: Toy) -> None:
    toy.slower_from(7)
    assert issues.write(toy.screen()[0]) == []
    toy.compare(6, 7, 1.05)
    steps = toy.screen()[0]
    (made,) = issues.write([*steps, *steps])
    assert made["body"].startswith(made["mark"]) and toy.commits[7] in made["mark"]
    assert made["title"] == f"Slower since {toy.commits[7][:10]}: article/bf16"
    assert f"Commit {toy.commits[7]} made these" in made["body"] and "asv find" not in made["body"]
    steps[0].remarks.append("tuning: <script> @octocat | x")
    (made,) = issues.write(steps)
    assert "<script>" not in made["body"] and "@octocat" not in made["body"]


def test_a_confirmed_range_names_the_range_and_blames_no_commit(toy: Toy) -> None:
    toy.slower_from(7)
    for number in (5, 6, 7):
        (toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json").unlink()
    toy.compare(4, 8, 1.05)
    steps = toy.screen()[0]
    assert steps[0].status == CONFIRMED
    (made,) = issues.write(steps)
    good, bad = toy.commits[4], toy.commits[8]
    assert made["title"] == f"Slower between {good[:10]} and {bad[:10]}: article/bf16"
    assert f"Commit {bad} made" not in made["body"] and "3 commits between them were not" in made["body"]
    assert history.find(steps[0]) in made["body"].splitlines()
    assert made["mark"] not in issues.MARK.format(where=bad)  # which is still to be opened once it is found
    assert issues.MARK.format(where=bad) not in made["body"]


def test_files_that_are_none_are_a_line_each_and_the_others_count(toy: Toy) -> None:
    toy.slower_from(7)
    folder = toy.asv / MACHINE
    good = json.loads(next(folder.glob(f"{toy.commits[0][:8]}*")).read_text())
    hostile = {
        "null": "null", "text": "{", "list": "[]", "deep": "[" * 5000, "other-machine": json.dumps(
            good | {"params": {"machine": "elsewhere"}}
        ), "commit": json.dumps(good | {"commit_hash": "../../x"}), "params": json.dumps(good | {"params": 3}),
        "results": json.dumps(good | {"results": {"b": 3}}),
    }  # fmt: skip
    for name, raw in hostile.items():
        (folder / f"{name}.json").write_text(raw)
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00")
    (folder / "link.json").symlink_to(next(folder.glob(f"{toy.commits[1][:8]}*")))
    infinite = good | {"commit_hash": toy.commits[3]}
    infinite["results"][STEP][0] = [float("inf"), -1.0]
    (folder / "infinite.json").write_text(json.dumps(infinite))
    (folder / "notes" / "bad.json").write_text("[1")
    steps, lines = toy.screen()
    assert [step.series.name for step in steps] == ["article/bf16"]
    assert len(lines) == len(hostile) + 2 and all("\n" not in line for line in lines)


# --- the file of accepted ones --------------------------------------------------------------------------------------

GOOD = {"commit": "0123456789", "series": "article/bf16", "reason": "wider tile", "expires": "2027-06-30"}
BAD = {
    "regressions: 3": "expected a list",
    "more: []": "unknown key 'more'",
    "regressions: [3]": "expected commit, series",
    json.dumps({"regressions": [GOOD | {"commit": "main"}]}): "commit: expected 7 to 40 hexadecimal digits",
    json.dumps({"regressions": [GOOD | {"expires": "soon"}]}): "expires: expected a day",
    json.dumps({"regressions": [GOOD | {"expires": 20270630}]}): "expires: expected a day",
    json.dumps({"regressions": [GOOD | {"reason": "<b>x</b>"}]}): "reason: expected one line of plain text",
    json.dumps({"regressions": [GOOD | {"series": ["a"]}]}): "series: expected a series",
    json.dumps({"regressions": [GOOD | {"expiry": "2027-06-30"}]}): "unknown key 'expiry'",
    json.dumps({"regressions": [{k: v for k, v in GOOD.items() if k != "reason"}]}): "reason is missing",
    "regressions:\n  - commit: a\n   series: b": "line",
    "a: &x [1]\nregressions: *x": "aliases",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_entries_are_one_line_that_names_the_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "known-regressions.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        known.read(path)
    assert BAD[text] in str(error.value) and "known-regressions.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_file_of_the_project_and_a_plain_day_are_read(tmp_path: Path) -> None:
    assert isinstance(known.read(), list)
    path = tmp_path / "known.yaml"
    path.write_text(
        "regressions:\n  - commit: 0123456789\n    series: article/bf16\n    reason: x\n    expires: 2027-06-30\n"
    )
    (found,) = known.read(path)
    assert found.commit == "0123456789" and found.expires == datetime.date(2027, 6, 30)


def test_the_command_lists_and_ends_with_a_status(toy: Toy) -> None:
    stored = committed.folder("results/asv")
    seen = CliRunner().invoke(main, ["history", "--results", str(toy.root / "none")])
    assert seen.exit_code == 2 and "no such folder" in seen.output
    seen = CliRunner().invoke(main, ["history", "--branch", "nope"])
    assert seen.exit_code == 2 and "git knows no such commit" in seen.output
    seen = CliRunner().invoke(main, ["history", "--results", str(stored), "--json"])
    assert seen.exit_code == 0 and isinstance(json.loads(seen.output)["steps"], list)
