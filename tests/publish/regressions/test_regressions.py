"""Two commits side by side: verdicts from rounds, exit statuses, and the command itself with code that sleeps."""

import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ladder.base.errors import UserError
from ladder.core.records import read_record, write_record
from ladder.engine import rounds as interleaving
from ladder.machine import stillness, system
from ladder.plan import catalog
from ladder.publish.regressions import comparing, judging, report
from ladder.publish.regressions.judging import BASE, BROKEN, HEAD, TWIN
from ladder.publish.regressions.schema import Choice, Compared, Judged, Program
from ladder.results.file import Machine, Round
from ladder.results.types import Plain
from ladder.stats import answers
from tests.support.repositories import commit_all, git

ROOT = Path(__file__).resolve().parents[3]
FAKE = ROOT / "tests" / "support" / "fake_code"
SLOWER = """

_cycle = Step.cycle


def cycle(self, lazy=True):
    time.sleep(0.03)
    _cycle(self, lazy)


Step.cycle = cycle
"""


# --- verdicts ---------------------------------------------------------------------------------------------------------


def made_up(head: float = 1.0, rounds: int = 5, noise: float = 0.0002) -> Judged:
    """A comparison of one rung: HEAD takes `head` times as long."""
    draw = random.Random(1)
    name, workload = catalog.load_workload("tiny")
    workload = {"name": name, **workload, "data": "sample-photographs"}
    sides = [comparing.Side(letter * 40, label, FAKE) for letter, label in (("a", "main"), ("b", "HEAD"))]
    rung = comparing.Rung("baseline", "Baseline", workload, {})
    machine = read_record(Machine, system.facts("cpu"))
    result = comparing.begin(comparing.Plan(machine, workload, [rung], *sides, comparing.Options()))

    def visits(side: str) -> list[Round]:
        size = head if side == HEAD else 1.0
        samples = [[1000 * size * (1 + draw.gauss(0, noise)) for _ in range(2)] for _ in range(rounds)]
        more = {"prepare_s": 1.0, "lead_in_cycles": 1, "alloc_retries": 0}
        return [Round(round=number, samples_ms=ms, **more) for number, ms in enumerate(samples)]

    programs = [replace(each, status="ok", rounds=visits(each.side)) for each in result.programs]
    return judging.judge(replace(result, complete=True, programs=programs))


def stored(result: Judged) -> Plain:
    """What a file holds of a comparison."""
    derived = {*Judged.__struct_fields__} - {*Compared.__struct_fields__}
    data = {key: value for key, value in write_record(result).items() if key not in derived}
    data["rungs"] = [
        {key: rung[key] for key in ("name", "title", "skipped") if key in rung} for rung in data["rungs"]
    ]
    return data


def rejudge(result: Judged, **changes: Any) -> Judged:
    """The comparison with other observations, judged anew."""
    return judging.judge(read_record(Compared, stored(replace(result, **changes))))


def program(result: Judged, side: str) -> Program:
    return judging.find_sides(result, "baseline")[side]


def with_side(result: Judged, side: str, **changes: Any) -> Judged:
    """The comparison with other visits of one side, judged anew."""
    programs = [replace(each, **changes) if each.side == side else each for each in result.programs]
    return rejudge(result, programs=programs)


def test_the_exit_status_is_that_of_the_verdicts() -> None:
    for head, word, status in (
        (1.0, answers.LESS, 0),
        (0.98, answers.FASTER, 0),
        (1.02, answers.SLOWER, 1),
    ):
        result = made_up(head)
        assert (result.rungs[0].verdict, judging.find_status(result)) == (word, status)
        assert ("slower" in report.conclude(result)) and report.conclude(result).startswith("HEAD") == bool(
            status
        )


def test_too_close_to_tell_is_no_alarm_and_is_said() -> None:
    result = made_up(1.06, noise=0.03)
    assert result.rungs[0].verdict == answers.AMBIGUOUS and judging.find_status(result) == 0
    assert "too close to tell: baseline (wall time)" in report.render_text(result)


def test_many_samples_of_few_processes_support_no_verdict() -> None:
    result = made_up(2.0, rounds=2)
    for side in judging.SIDES:
        many = [replace(each, samples_ms=50 * each.samples_ms) for each in program(result, side).rounds]
        result = with_side(result, side, rounds=many)
    assert result.rungs[0].verdict is None and judging.find_status(result) == 2
    assert result.rungs[0].reason == "2 of 3 generations: too few for a verdict"


def test_without_base_a_second_time_the_noise_is_unknown_and_nothing_is_said() -> None:
    assert judging.find_status(with_side(made_up(2.0), TWIN, rounds=[])) == 2


def test_head_that_fails_where_base_ran_is_an_alarm() -> None:
    for status, reason, alarm in (
        ("oom", "out of memory in prepare", 1),
        ("invalid", "throttled: 4 visits void, last: hot", 2),
        ("n/a", "build: ConfigError: unknown field", 2),
    ):
        result = with_side(made_up(), HEAD, status=status, reason=reason)
        assert judging.find_status(result) == alarm, status
        assert (result.rungs[0].verdict == BROKEN) == (alarm == 1) and reason in report.render_text(result)


def test_the_programs_of_a_rung_are_neighbours_in_an_order_that_changes() -> None:
    rounds = interleaving.Interleaved("cpu", cycles=1, seed=3)
    programs = [
        interleaving.Program(f"{rung} {side}", rung, side, {}, {}, FAKE)
        for rung in "abc"
        for side in judging.SIDES
    ]
    orders = [[each.name for each in rounds.order(number, programs)] for number in range(6)]
    for order in orders:
        rungs = [name[0] for name in order]
        assert sorted(order) == sorted(each.name for each in programs)
        assert sum(a != b for a, b in itertools.pairwise(rungs)) == 2
    assert len({tuple(name[0] for name in order) for order in orders}) > 1
    assert len({tuple(name for name in order if name[0] == "a") for order in orders}) > 1
    assert [each.name for each in rounds.order(0, programs)] == orders[0]


# --- files of strangers, and what is made of them -------------------------------------------------------------------


def written(tmp_path: Path, result: Judged | Plain) -> Path:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(stored(result) if isinstance(result, Judged) else result))
    return path


def test_choices_of_every_table_are_read_back_and_their_changes_are_named(tmp_path: Path) -> None:
    noted = {"op": "bias_act_skip", "case": "small", "entry": "block_m 64, stages 4"}
    row = {
        "op": "bias_act",
        "direction": "backward",
        "tile": 4096,
        "columns": 64,
        "warps": 8,
        "per_sm": 2,
        "stages": 1,
    }
    result = with_side(made_up(), BASE, choices=[Choice(**row)])
    result = with_side(result, HEAD, choices=[Choice(**row | {"warps": 4}), Choice(**noted)])
    said = "baseline: other tuning choices: bias_act backward: warps 8 -> 4; bias_act_skip small: new"
    assert said in report.render_text(judging.load(written(tmp_path, result)))


def _spoil(path: str, value: Any) -> Any:
    def spoil(result: Plain) -> None:
        *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in keys:
            result = result[key]
        result[last] = value

    return spoil


SPOILT = {
    "markup in a name": (_spoil("base.name", "<img src=x>"), "base.name"),
    "markup in a reason": (_spoil("programs.0.reason", "a\n| b"), "programs[0].reason"),
    "a rung that is a path": (_spoil("rungs.0.name", "../../x"), "rungs[0].name"),
    "an unknown key": (_spoil("more", 1), "unknown key"),
    "negative time": (_spoil("programs.0.rounds.0.samples_ms", [-1.0]), "samples_ms"),
    "no samples": (_spoil("programs.0.rounds.0.samples_ms", []), "without samples"),
    "a round twice": (_spoil("programs.0.rounds.0.round", 1), "twice"),
    "an impossible time": (_spoil("programs.0.rounds.0.samples_ms", [0.001]), "faster than"),
    "no commit": (_spoil("head.commit", "main"), "head.commit"),
    "a side is missing": (lambda r: r["programs"].pop(), "BASE again"),
    "another kind": (_spoil("kind", "kernels"), "kind"),
    "a verdict": (_spoil("rungs.0.verdict", "faster"), "rungs[0]: unknown key 'verdict'"),
    "an older file": (_spoil("schema", 1), "schema"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    spoil, said = SPOILT[name]
    result = stored(made_up())
    spoil(result)
    with pytest.raises(UserError) as error:
        judging.load(written(tmp_path, result))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_json_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for raw in (b"", b"[]", b"null", b'{"schema": NaN}', b"\xff\xfe", b"[" * 5000, b" " * (2**21 + 1)):
        path.write_bytes(raw)
        with pytest.raises(UserError):
            judging.load(path)
    (tmp_path / "link.json").symlink_to(path)
    for other in (tmp_path / "link.json", tmp_path, tmp_path / "none.json"):
        with pytest.raises(UserError):
            judging.load(other)


def test_the_comment_cannot_carry_markup_links_or_mentions() -> None:
    """Whatever validation lets through: text is escaped where it is written."""
    result = made_up(1.05)
    nasty = "<script>x</script> | [a](http://b) `c` @octocat #12 ![i](j) <!-- **d** https://e www.f.org\n# g"
    result = replace(
        result,
        base=replace(result.base, name=nasty),
        rungs=[replace(each, name=nasty) for each in result.rungs],
        notes=[nasty],
    )
    page = report.render_markdown(result)
    assert page.startswith(report.MARK + "\n") and page.count("<") == 1
    for bare in ("[a](", "`c`", "@octocat", "#12", "**d**", "https://", "www.f", "\n# g"):
        assert bare not in page, bare
    row = next(line for line in page.splitlines() if "🔴" in line)
    assert len([c for i, c in enumerate(row) if c == "|" and row[i - 1] != "\\"]) == len(report.HEADS) + 1


# --- real workers ---------------------------------------------------------------------------------------------------


def compared(
    tmp_path: Path, base: Path, head: Path, recipe: Plain, *more: comparing.Rung, seed: int = 0
) -> Judged:
    workload = made_up().workload
    rungs = [comparing.Rung("baseline", "Baseline", {}, recipe), *more]
    sides = [comparing.Side(letter * 40, letter, code) for letter, code in (("a", base), ("b", head))]
    options = comparing.Options(rounds=5, cycles=1, torch=False, seed=seed)
    machine = read_record(Machine, system.facts("cpu"))
    result, path = comparing.run(comparing.Plan(machine, workload, rungs, *sides, options), tmp_path / "out")
    assert json.loads(path.read_text()) == stored(result)
    return result


@pytest.fixture(autouse=True)
def without_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake steps sleep: their visits need no quiet in between."""
    monkeypatch.setattr(stillness, "wait_until_still", lambda group: 0.0)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return slow_code(tmp_path / "slow")


def slow_code(folder: Path) -> Path:
    shutil.copytree(FAKE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "stylegan_lite" / "__init__.py", "a") as file:
        file.write(SLOWER)
    return folder


def test_every_visit_is_a_fresh_process_and_a_rung_that_fails_leaves_the_others(
    tmp_path: Path, slow: Path
) -> None:
    log = tmp_path / "log"
    failing = comparing.Rung("bf16", "BF16", {}, {"fault": "raise"})
    unable = comparing.Rung("cuda_graphs", "Graphs", {}, None, "needs a CUDA GPU")
    result = compared(tmp_path, FAKE, slow, {"log": str(log), "sleep": 0.01}, failing, unable)
    assert [each.verdict for each in result.rungs] == [answers.SLOWER, None, None]
    assert "weight of model.py" in result.rungs[1].reason and "CUDA" in result.rungs[2].reason
    assert judging.find_status(result) == 1
    visits = [each for each in result.programs if each.rung == "baseline"]
    assert [len(each.rounds) for each in visits] == [5, 5, 5]


def seed_with(first: str) -> int:
    """A seed whose first round begins with that side."""
    programs = [interleaving.Program(side, "baseline", side, {}, {}, FAKE) for side in judging.SIDES]
    orders = (interleaving.Interleaved("cpu", cycles=1, seed=seed).order(0, programs) for seed in range(99))
    return next(seed for seed, order in enumerate(orders) if order[0].side == first)


def test_a_head_that_raises_is_broken_and_a_commit_without_the_contract_is_not(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(FAKE, broken, ignore=shutil.ignore_patterns("__pycache__"))
    with open(broken / "stylegan_lite" / "__init__.py", "a") as file:
        file.write('\n\ndef prepare(self):\n    raise RuntimeError("no")\n\n\nStep.prepare = prepare\n')
    for first in (HEAD, BASE):
        result = compared(tmp_path, FAKE, broken, {}, seed=seed_with(first))
        assert result.rungs[0].verdict == BROKEN and judging.find_status(result) == 1
        assert program(result, BASE).rounds and len(program(result, TWIN).rounds) <= 1
    empty = tmp_path / "empty"
    empty.mkdir()
    result = compared(tmp_path, empty, FAKE, {})
    assert judging.find_status(result) == 2 and "no package stylegan_lite" in result.rungs[0].reason


# --- the command, in a repository of its own ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commits `fast`, `slow` and, with the packages as they are, main: the working tree."""
    root = tmp_path_factory.mktemp("toy")
    git(root, "init", "-q", "-b", "main")
    shutil.copytree(
        FAKE / "stylegan_lite", root / "stylegan_lite", ignore=shutil.ignore_patterns("__pycache__")
    )
    source = (FAKE / "stylegan_lite" / "__init__.py").read_text().replace("seen", "cpu_threads") + SLOWER
    for name, seconds in (("fast", "0.01"), ("slow", "0.05")):
        (root / "stylegan_lite" / "__init__.py").write_text(source.replace("0.03", seconds))
        commit_all(root, name)
        git(root, "tag", name)
    for name in ("ladder", "kernels", "stylegan_lite", "benches"):
        ignore = shutil.ignore_patterns("*.pyc.*")  # what is compiled already need not be compiled again
        shutil.copytree(ROOT / name, root / name, ignore=ignore, dirs_exist_ok=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / ".gitignore").write_text("__pycache__/\n.cache/\n")
    commit_all(root, "main")
    images = root / ".cache" / "images"
    images.mkdir(parents=True)
    return root


def make(root: Path, **variables: str) -> subprocess.CompletedProcess:
    command = ["make", "bench-compare", "NO_VENV=1", f"PYTHON={sys.executable}", "RUNGS=baseline", "ROUNDS=3"]
    given = [f"{key}={value}" for key, value in variables.items()]
    return subprocess.run([*command, "ARGS=--device cpu", *given], cwd=root, capture_output=True, text=True)


@pytest.mark.slow
def test_make_ends_with_the_status_of_the_comparison(toy: Path) -> None:
    """1 too, which make has for no recipe that fails."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    slower, same = make(toy, BASE="fast", HEAD="slow"), make(toy, BASE="slow", HEAD="slow")
    assert slower.returncode == 1, slower.stderr
    assert "HEAD is slower or broken: baseline" in slower.stderr
    assert same.returncode == 0, same.stderr
    assert make(toy, BASE="nope").returncode == 2
    quoted = make(toy, BASE="it's")  # a shell that could not read it would compare nothing and end with 0
    assert quoted.returncode == 2 and "BASE it's: git knows no such commit" in quoted.stderr
    nothing = make(toy, BASE="fast", HEAD="slow", RUNGS="cuda_graphs")
    assert nothing.returncode == 2 and "needs a CUDA GPU" in nothing.stderr
    files = sorted((toy / "results" / "compare").rglob("*.json"))
    assert len(files) == 2 and all(file.with_suffix(".md").is_file() for file in files)
    assert judging.load(files[0]).complete
    assert git(toy, "worktree", "list").count("\n") == 0 and not git(toy, "status", "--porcelain", "kernels")
