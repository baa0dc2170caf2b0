"""Two commits side by side: verdicts from rounds, exit statuses, and the command itself with code that sleeps."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from ladder.cli.main import main
from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.engine import rounds as interleaving
from ladder.machine import stillness
from ladder.stats import answers
from ladder.studies import frame
from ladder.studies.commits import judging, record, study
from ladder.studies.commits.judging import BROKEN, HEAD, SIDES, TWIN, judge
from ladder.studies.commits.record import BASE, Judged
from ladder.studies.commits.study import STUDY
from tests.support.made_up_comparison import FAKE, begin, fail, made_up, make_job, stored, with_side
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
    judged = judge(made_up(head, noise=noise))
    assert (judged.rungs[0].verdict, judging.find_status(judged)) == (word, status)
    assert study.conclude(judged).startswith("HEAD is slower") == bool(status)


def test_many_samples_of_few_processes_support_no_verdict() -> None:
    file = made_up(2.0, rounds=2)
    for side in SIDES:
        file = with_side(
            file, side, lambda v: replace(v, round=replace(v.round, samples_ms=50 * v.round.samples_ms))
        )
    (rung,) = (judged := judge(file)).rungs
    assert rung.verdict is None and judging.find_status(judged) == 2 and "2 of 3 generations" in rung.reason
    # Without BASE a second time the noise is unknown.
    assert judging.find_status(judge(with_side(made_up(2.0), TWIN, lambda visit: None))) == 2


@pytest.mark.parametrize(
    "status, reason, exit_status",
    [
        ("oom", "out of memory in prepare", 1),
        ("invalid", "throttled: 4 visits void, last: hot", 2),
        ("n/a", "build: ConfigError: unknown field", 2),
    ],
)
def test_head_that_fails_where_base_ran_is_an_alarm(status: str, reason: str, exit_status: int) -> None:
    file = with_side(made_up(), HEAD, fail(status, reason))
    judged = judge(file)
    assert judging.find_status(judged) == exit_status
    assert (judged.rungs[0].verdict == BROKEN) == (exit_status == 1)
    assert reason in frame.render_terminal(STUDY, file, 200)


# --- files of strangers, and what is made of them ---------------------------------------------------------------------

FIRST = "observed.generation 1.programs.baseline base"
SPOILT: dict[str, Any] = {
    "cases.generation 1.base.name": "<img src=x>",
    "cases.generation 1.head.commit": "main",
    "cases.generation 2.recipes": {"bf16": {}},
    f"{FIRST}.reason": "a\n| b",
    f"{FIRST}.status": "failed",
    f"{FIRST}.round.samples_ms": [],
    "observed.generation 1.programs.bf16 head": {"reason": "x", "status": "oom"},
    "observed.generation 2.programs.baseline twin.round.samples_ms": [0.001],
}


@pytest.mark.parametrize("place", SPOILT)
def test_spoilt_files_are_refused_in_one_line_with_the_place(place: str) -> None:
    data = json.loads(json.dumps(stored(made_up())))
    *keys, last = place.split(".")
    inner = data
    for key in keys:
        inner = inner[key]
    inner[last] = SPOILT[place]
    with pytest.raises(UserError) as error:
        frame.decode_file(STUDY, data)
    assert keys[1] in str(error.value) and "\n" not in str(error.value)


def test_a_stored_comparison_is_judged_by_both_commands(tmp_path: Path) -> None:
    path, runner, page = tmp_path / "r.json", CliRunner(), tmp_path / "comment.md"
    path.write_text(json.dumps(stored(made_up(1.05))))
    reported = runner.invoke(main, ["report", str(path)])
    judged = runner.invoke(main, ["bench-compare", "--report", str(path), "--markdown", str(page)])
    assert (reported.exit_code, judged.exit_code) == (0, 1) and reported.stdout == judged.stdout
    assert page.read_text().startswith(study.MARK)
    for words in (["--head", "c" * 40], ["--rungs", "bf16"], ["--rounds", "5"]):
        other = runner.invoke(main, ["bench-compare", "--report", str(path), *words])
        assert other.exit_code == 2 and other.stderr.count("\n") == 1


def test_the_comment_cannot_carry_markup_links_or_mentions(tmp_path: Path) -> None:
    """Whatever validation lets through: text is escaped where it is written."""
    nasty = "<script>x</script> | [a](http://b) `c` @octocat #12 ![i](j) <!-- **d** https://e www.f.org\n# g"
    file, page = made_up(1.05), tmp_path / "c.md"
    case = next(iter(file.cases.values()))
    hostile = replace(case, base=replace(case.base, name=nasty), recipes={nasty: {}})
    observed = {}
    for key, each in file.observed.items():
        programs = {name.replace("baseline", nasty): visit for name, visit in each.programs.items()}
        observed[key] = replace(each, programs=programs)
    file = replace(file, cases=dict.fromkeys(file.cases, hostile), observed=observed)
    STUDY.write_comment(study.Options(markdown=page), file)
    text = page.read_text()
    assert text.startswith(study.MARK + "\n") and text.count("<") == 1
    assert not [
        bare
        for bare in ("[a](", "`c`", "@octocat", "#12", "**d**", "https://", "www.f", "\n# g")
        if bare in text
    ]


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


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measure two folders of code that sleeps; the recipes by rung are no genuine ones."""

    def run(base: Path, head: Path, seed: int = 0, **recipes: Plain) -> Judged:
        @contextmanager
        def check_out(commits: list[str], *_: Any, **__: Any) -> Iterator[list[Path]]:
            yield [base, head]

        monkeypatch.setattr(study.checkouts, "checked_out", check_out)
        monkeypatch.setattr(study, "find_problems", lambda file: iter(()))
        job = make_job(tmp_path / f"out-{seed}", rounds=5, seed=seed)
        file = frame.observe_cases(STUDY, job, begin(job, 5, **recipes), [])
        assert file.is_complete
        return judge(file)

    monkeypatch.setattr(record, "CYCLES", 1)
    return run


def test_a_rung_that_fails_leaves_the_others(tmp_path: Path, compare: Any) -> None:
    slow, recipe = copy_code(tmp_path / "slow", SLOWER), {"log": str(tmp_path / "log"), "sleep": 0.01}
    judged = compare(FAKE, slow, baseline=recipe, bf16={"fault": "raise"})
    assert [each.verdict for each in judged.rungs] == [answers.SLOWER, None]
    assert "weight of model.py" in judged.rungs[1].reason and judging.find_status(judged) == 1
    assert [len(each.rounds) for each in judged.programs if each.rung == "baseline"] == [5, 5, 5]


def find_seed(first: str) -> int:
    """A seed whose first round begins with that side."""
    programs = [interleaving.Program(side, "baseline", side, {}, {}, FAKE) for side in SIDES]
    orders = (interleaving.Interleaved("cpu", cycles=1, seed=seed).order(0, programs) for seed in range(99))
    return next(seed for seed, order in enumerate(orders) if order[0].side == first)


def test_a_head_that_raises_is_broken_and_one_without_the_contract_is_not(
    tmp_path: Path, compare: Any
) -> None:
    fault = '\n\ndef prepare(self):\n    raise RuntimeError("no")\n\n\nStep.prepare = prepare\n'
    broken = copy_code(tmp_path / "broken", fault)
    for first in (HEAD, BASE):
        judged = compare(FAKE, broken, find_seed(first), baseline={})
        assert judged.rungs[0].verdict == BROKEN and judging.find_status(judged) == 1
        base, _, twin = judged.programs
        assert base.rounds and len(twin.rounds) <= 1
    (tmp_path / "empty").mkdir()
    judged = compare(tmp_path / "empty", FAKE, baseline={})
    assert judging.find_status(judged) == 2 and "no package stylegan_lite" in judged.rungs[0].reason


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

    def make(base: str, head: str, rungs: str = "baseline") -> tuple[int, str, str]:
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
        return run.returncode, run.stdout + run.stderr, run.stderr

    status, stdout, _ = make("fast", "slow")
    assert status == 1 and "HEAD is slower or broken: baseline" in stdout
    assert make("slow", "slow")[0] == 0
    for base, rungs, reason in (
        ("nope", "baseline", "BASE nope: git knows no such commit"),
        ("it's", "baseline", "BASE it's: git knows no such commit"),  # quoted for the shell
        ("fast", "cuda_graphs", "needs a CUDA GPU"),
    ):
        status, _, stderr = make(base, "slow", rungs)
        assert status == 2 and reason in stderr
    files = sorted((tmp_path / "results" / "compare").rglob("*.json"))
    assert len(files) == 2 and all(file.with_suffix(".md").is_file() for file in files)
    assert frame.read_file(STUDY, files[0]).is_complete
    assert git(tmp_path, "worktree", "list").count("\n") == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_killed_make_ends_the_comparison_which_leaves_nothing_half_written(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The signal comes to make alone, as from a script or a supervisor."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    make_toy(tmp_path)
    command = ["make", "bench-compare", "NO_VENV=1", f"PYTHON={sys.executable}", "BASE=fast", "HEAD=slow"]
    command += ["RUNGS=baseline", "ROUNDS=90", "ARGS=--device cpu"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as make:
        assert make.stderr is not None
        next(line for line in make.stderr if "two commits" in line)
        make.send_signal(number)
        make.stderr.read()  # until all that could write to it has ended
    for _ in range(100):
        try:
            os.killpg(make.pid, 0)
            time.sleep(0.1)
        except ProcessLookupError:
            break
    else:
        pytest.fail("the group of processes lives on")
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".md"}
    assert all(frame.read_file(STUDY, path).observed is not None for path in files if path.suffix == ".json")
    assert git(tmp_path, "worktree", "list").count("\n") == 0
