"""Two commits side by side: verdicts from rounds, exit statuses, and the command itself with code that sleeps."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from ladder.base.errors import UserError
from ladder.base.plain import Plain
from ladder.cli.main import main
from ladder.engine import rounds as interleaving
from ladder.machine import stillness
from ladder.plan import catalog
from ladder.publish.regressions import comparing, judging, report
from ladder.publish.regressions.judging import BASE, BROKEN, HEAD, TWIN
from ladder.publish.regressions.schema import Judged
from ladder.stats import answers
from tests.support.made_up_comparison import FAKE, made_up, make_job, stored, with_side
from tests.support.repositories import commit_all, git

ROOT = Path(__file__).resolve().parents[3]
SLOWER = """

_cycle = Step.cycle


def cycle(self, lazy=True):
    time.sleep(0.03)
    _cycle(self, lazy)


Step.cycle = cycle
"""


@pytest.mark.parametrize(
    "head, noise, word, status",
    [
        (1.0, 0.0002, answers.LESS, 0),
        (0.98, 0.0002, answers.FASTER, 0),
        (1.02, 0.0002, answers.SLOWER, 1),
        (1.06, 0.03, answers.AMBIGUOUS, 0),
    ],
)
def test_the_exit_status_is_that_of_the_verdicts(head: float, noise: float, word: str, status: int) -> None:
    result = made_up(head, noise=noise)
    assert (result.rungs[0].verdict, judging.find_status(result)) == (word, status)
    assert report.conclude(result).startswith("HEAD is slower") == bool(status)


def test_many_samples_of_few_processes_support_no_verdict() -> None:
    result = made_up(2.0, rounds=2)
    for side in judging.SIDES:
        rounds = judging.find_sides(result, "baseline")[side].rounds
        result = with_side(result, side, rounds=[replace(r, samples_ms=50 * r.samples_ms) for r in rounds])
    assert result.rungs[0].verdict is None and judging.find_status(result) == 2
    assert "2 of 3 generations" in result.rungs[0].reason


def test_without_base_a_second_time_the_noise_is_unknown_and_there_is_no_verdict() -> None:
    assert judging.find_status(with_side(made_up(2.0), TWIN, rounds=[], status="n/a")) == 2


@pytest.mark.parametrize(
    "status, reason, exit_status",
    [
        ("oom", "out of memory in prepare", 1),
        ("invalid", "throttled: 4 visits void, last: hot", 2),
        ("n/a", "build: ConfigError: unknown field", 2),
    ],
)
def test_head_that_fails_where_base_ran_is_an_alarm(status: str, reason: str, exit_status: int) -> None:
    result = with_side(made_up(), HEAD, status=status, reason=reason)
    assert judging.find_status(result) == exit_status
    assert (result.rungs[0].verdict == BROKEN) == (exit_status == 1) and reason in report.render_terminal(
        result
    )


def test_the_programs_of_a_rung_are_neighbours_in_an_order_that_changes() -> None:
    rounds = interleaving.Interleaved("cpu", cycles=1, seed=3)
    programs = [
        interleaving.Program(f"{rung} {side}", rung, side, {}, {}, FAKE)
        for rung in "abc"
        for side in judging.SIDES
    ]
    orders = [[each.name for each in rounds.order(number, programs)] for number in range(6)]
    for order in orders:
        assert sorted(order) == sorted(each.name for each in programs)
        assert sum(a[0] != b[0] for a, b in itertools.pairwise(order)) == 2
    assert len({tuple(name[0] for name in order) for order in orders}) > 1
    assert len({tuple(name for name in order if name[0] == "a") for order in orders}) > 1
    assert [each.name for each in rounds.order(0, programs)] == orders[0]


# --- files of strangers, and what is made of them ---------------------------------------------------------------------


def write(tmp_path: Path, result: Plain) -> Path:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(result))
    return path


SPOILT: dict[str, Any] = {
    "base.name": "<img src=x>",
    "programs.0.reason": "a\n| b",
    "rungs.0.name": "../../x",
    "more": 1,
    "programs.0.rounds.0.samples_ms": [-1.0],
    "programs.1.rounds.0.samples_ms": [],
    "programs.0.rounds.0.round": 1,
    "programs.2.rounds.0.samples_ms": [0.001],
    "head.commit": "main",
    "programs": [],
    "kind": "kernels",
    "rungs.0.verdict": "faster",
    "schema": 1,
    "machine.name": "another",
    "started": "2099-01-01T00:00:00+00:00",
}


@pytest.mark.parametrize("place", SPOILT)
def test_spoilt_files_are_refused_in_one_line_with_the_place(tmp_path: Path, place: str) -> None:
    data = stored(made_up())
    *keys, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    inner = data
    for key in keys:
        inner = inner[key]
    inner[last] = SPOILT[place]
    with pytest.raises(UserError) as error:
        judging.load(write(tmp_path, data))
    where = f"programs[{keys[1]}]" if len(keys) > 2 else str(last)
    assert where in str(error.value) or str(last) in str(error.value)
    assert "\n" not in str(error.value)


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


def test_a_stored_comparison_is_reported_by_both_commands(tmp_path: Path) -> None:
    path, runner = write(tmp_path, stored(made_up(1.05))), CliRunner()
    (tmp_path / "out").mkdir()
    files = ["--markdown", str(tmp_path / "out" / "t.md")]
    reported = runner.invoke(main, ["report", str(path), *files])
    judged = runner.invoke(main, ["bench-compare", "--report", str(path)])
    assert (reported.exit_code, judged.exit_code) == (0, 1) and reported.stdout == judged.stdout
    derived = json.loads(runner.invoke(main, ["report", str(path), "--json"]).stdout)
    assert derived["rungs"][0]["verdict"] == answers.SLOWER
    assert (tmp_path / "out" / "t.md").read_text().startswith(report.MARK)
    other = runner.invoke(main, ["bench-compare", "--report", str(path), "--head", "c" * 40])
    assert other.exit_code == 2 and other.stderr.count("\n") == 1


def test_the_comment_cannot_carry_markup_links_or_mentions() -> None:
    """Whatever validation lets through: text is escaped where it is written."""
    result = made_up(1.05)
    nasty = "<script>x</script> | [a](http://b) `c` @octocat #12 ![i](j) <!-- **d** https://e www.f.org\n# g"
    rungs = [replace(each, name=nasty) for each in result.rungs]
    programs = [replace(each, rung=nasty) for each in result.programs]
    base = replace(result.base, name=nasty)
    page = report.render_markdown(replace(result, base=base, rungs=rungs, programs=programs, notes=[nasty]))
    assert page.startswith(report.MARK + "\n") and page.count("<") == 1
    for bare in ("[a](", "`c`", "@octocat", "#12", "**d**", "https://", "www.f", "\n# g"):
        assert bare not in page, bare
    row = next(line for line in page.splitlines() if "🔴" in line)
    assert len([c for i, c in enumerate(row) if c == "|" and row[i - 1] != "\\"]) == len(report.COLUMNS) + 1


# --- real workers -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def without_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake steps sleep: their visits need no quiet in between."""
    monkeypatch.setattr(stillness, "wait_until_still", lambda group: 0.0)


def copy_code(folder: Path, more: str) -> Path:
    """The fake code with more at its end."""
    shutil.copytree(FAKE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "stylegan_lite" / "__init__.py", "a") as file:
        file.write(more)
    return folder


def compare(
    tmp_path: Path, base: Path, head: Path, recipe: Plain, *more: catalog.Planned, seed: int = 0
) -> Judged:
    rungs = [catalog.Planned("baseline", "Baseline", recipe, None, None), *more]
    job = make_job(tmp_path / "out", rungs, base, head, rounds=5, cycles=1, torch=False, seed=seed)
    result, path = comparing.run(job)
    assert json.loads(path.read_text()) == stored(result)
    return result


def test_every_visit_is_a_fresh_process_and_a_rung_that_fails_leaves_the_others(tmp_path: Path) -> None:
    slow, recipe = copy_code(tmp_path / "slow", SLOWER), {"log": str(tmp_path / "log"), "sleep": 0.01}
    failing = catalog.Planned("bf16", "BF16", {"fault": "raise"}, None, None)
    unable = catalog.Planned("cuda_graphs", "Graphs", None, "needs a CUDA GPU", None)
    result = compare(tmp_path, FAKE, slow, recipe, failing, unable)
    assert [each.verdict for each in result.rungs] == [answers.SLOWER, None, None]
    assert "weight of model.py" in result.rungs[1].reason and "CUDA" in result.rungs[2].reason
    assert judging.find_status(result) == 1
    assert [len(each.rounds) for each in result.programs if each.rung == "baseline"] == [5, 5, 5]


def find_seed(first: str) -> int:
    """A seed whose first round begins with that side."""
    programs = [interleaving.Program(side, "baseline", side, {}, {}, FAKE) for side in judging.SIDES]
    orders = (interleaving.Interleaved("cpu", cycles=1, seed=seed).order(0, programs) for seed in range(99))
    return next(seed for seed, order in enumerate(orders) if order[0].side == first)


def test_a_head_that_raises_is_broken_and_a_commit_without_the_contract_is_not(tmp_path: Path) -> None:
    fault = '\n\ndef prepare(self):\n    raise RuntimeError("no")\n\n\nStep.prepare = prepare\n'
    broken = copy_code(tmp_path / "broken", fault)
    for first in (HEAD, BASE):
        result = compare(tmp_path, FAKE, broken, {}, seed=find_seed(first))
        assert result.rungs[0].verdict == BROKEN and judging.find_status(result) == 1
        sides = judging.find_sides(result, "baseline")
        assert sides[BASE].rounds and len(sides[TWIN].rounds) <= 1
    (tmp_path / "empty").mkdir()
    result = compare(tmp_path, tmp_path / "empty", FAKE, {})
    assert judging.find_status(result) == 2 and "no package stylegan_lite" in result.rungs[0].reason


# --- the command, in a repository of its own --------------------------------------------------------------------------


def make_toy(root: Path) -> None:
    """Commits `fast`, `slow` and, with the packages as they are, main: the working tree."""
    git(root, "init", "-q", "-b", "main")
    source = (FAKE / "stylegan_lite" / "__init__.py").read_text().replace("seen", "cpu_threads") + SLOWER
    (root / "stylegan_lite").mkdir()
    for name, seconds in (("fast", "0.01"), ("slow", "0.05")):
        (root / "stylegan_lite" / "__init__.py").write_text(source.replace("0.03", seconds))
        commit_all(root, name)
        git(root, "tag", name)
    ignore = shutil.ignore_patterns("*.pyc.*")  # what is compiled already need not be compiled again
    for name in ("ladder", "kernels", "stylegan_lite", "benches"):
        shutil.copytree(ROOT / name, root / name, ignore=ignore, dirs_exist_ok=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / ".gitignore").write_text("__pycache__/\n.cache/\n")
    commit_all(root, "main")
    (root / ".cache" / "images").mkdir(parents=True)


@pytest.mark.slow
def test_make_ends_with_the_status_of_the_comparison(tmp_path: Path) -> None:
    """1 too, which make has for no recipe that fails."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    make_toy(tmp_path)

    def make(base: str, head: str, rungs: str = "baseline") -> tuple[int, str]:
        command = [
            "make",
            "bench-compare",
            "NO_VENV=1",
            f"PYTHON={sys.executable}",
            f"RUNGS={rungs}",
            "ROUNDS=3",
        ]
        command += ["ARGS=--device cpu", f"BASE={base}", f"HEAD={head}"]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return run.returncode, run.stderr

    status, stderr = make("fast", "slow")
    assert status == 1 and "HEAD is slower or broken: baseline" in stderr
    assert make("slow", "slow")[0] == 0
    for base, rungs, reason in (
        ("nope", "baseline", "BASE nope: git knows no such commit"),
        ("it's", "baseline", "BASE it's: git knows no such commit"),  # quoted for the shell
        ("fast", "cuda_graphs", "needs a CUDA GPU"),
    ):
        status, stderr = make(base, "slow", rungs)
        assert status == 2 and reason in stderr
    files = sorted((tmp_path / "results" / "compare").rglob("*.json"))
    assert len(files) == 2 and all(file.with_suffix(".md").is_file() for file in files)
    assert judging.load(files[0]).complete
    assert git(tmp_path, "worktree", "list").count("\n") == 0
