"""Steps in asv's history: found at 1%, confirmed by a comparison alone, labelled, accepted; and what is not asv's."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ladder.publish.history import notes as asvnotes
from ladder.publish.history import screening as history
from ladder.publish.history import series as recorded
from ladder.publish.history.screening import CANDIDATE, CONFIRMED, DRIVER, REFUTED, UNCLEAR
from tests.support import committed
from tests.support.asv_steps import ENVIRONMENT, MACHINE, Toy, toy

__all__ = ["toy"]  # a fixture


def test_a_step_of_two_percent_is_a_candidate_with_its_commit_and_what_would_confirm_it(toy: Toy) -> None:
    toy.slower_from(7)
    step = toy.only()
    assert (step.status, step.series.name) == (CANDIDATE, "article/bf16")
    assert (step.good, step.bad) == (toy.commits[6], toy.commits[7]) and step.share == pytest.approx(
        0.02, abs=1e-3
    )
    said = f"make bench-compare BASE={step.good[:10]} HEAD={step.bad[:10]} WORKLOAD=article RUNGS=bf16"
    lines = history.render_text([step], []).splitlines()
    assert lines[:3] == [
        f"candidate at {step.bad[:10]}:", f"  article/bf16 +2.0% on {MACHINE}", f"  to be confirmed: {said}",
    ]  # fmt: skip
    assert not step.between
    assert history.list_remarks([step]) == ["tuning: bias_act backward 2B nhwc sm90 large: warps 4 -> 8"]


def test_what_real_notes_name_is_found_by_the_series_of_their_results() -> None:
    """The notes' format is the one that asv's runs really leave, in this repository."""
    every = recorded.read(committed.folder("results/asv"))
    keys: dict[Path, set[str]] = {}
    for one in every:
        for path in one.files.values():
            keys.setdefault(path, set()).add(asvnotes.name_series(one.benchmark, one.params))
    notes = {path: (asvnotes.read_note(path) or {}).get("choices") for path in keys}
    assert any(notes.values())
    for path, choices in notes.items():
        assert set(choices or ()) <= keys[path], path.name


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
    lines = history.render_text([step], []).splitlines()
    assert f'  asv find --skip-save {step.good[:10]}~1..{step.bad[:10]} "{PATTERN}"' in lines
    assert lines[0] == f"candidate in {step.good[:10]}..{step.bad[:10]}:"


PATTERN = r"rungs\.Rung\.samples_step_time\('article', 'bf16'\)"


def test_steps_between_the_same_commits_are_compared_together(toy: Toy) -> None:
    """One comparison measures them, largest first; what is not compared has a paragraph of its own."""
    toy.slower_from(7)
    step = toy.only()
    names = ("baseline", "bf16", "fused_norm", "fused_act", "set_to_none")
    rungs = [
        replace(step, series=replace(step.series, params=("article", name)), share=0.02 + 0.01 * number)
        for number, name in enumerate(names)
    ]
    (group,) = history.group_candidates(rungs)
    command = (
        f"to be confirmed: make bench-compare BASE={step.good[:10]} HEAD={step.bad[:10]} WORKLOAD=article"
        " RUNGS=set_to_none,fused_act,fused_norm,bf16"
    )
    assert history.format_comparison(group) == command
    memory = replace(step.series, benchmark="rungs.Rung.track_peak_memory", params=("article", "bf16"))
    other = replace(step, series=memory, why="not measured by bench-compare: look at it")
    lines = history.render_text([*(replace(each, why=command) for each in rungs), other], []).splitlines()
    shown = [f"  article/{name} +{2 + k}.0% on {MACHINE}" for k, name in enumerate(names)]
    assert lines[1:7] == [*shown, f"  {command}"]
    assert f"  {memory.name} +2.0% on {MACHINE}" in lines[7:] and lines[-1] == "0 confirmed of 6 steps"


def test_a_range_that_begins_with_the_first_commit_has_none_before_it(toy: Toy) -> None:
    toy.slower_from(2)
    for number in (1, 2):
        (toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json").unlink()
    step = toy.only()
    assert step.good == toy.commits[0] and step.between == 2
    assert history.format_bisect(step) == f'asv find --skip-save {toy.commits[3][:10]} "{PATTERN}"'


def test_a_name_that_a_shell_would_read_otherwise_makes_no_command(toy: Toy) -> None:
    """The files are strangers': somebody copies the line."""
    toy.slower_from(7)
    for number in range(len(toy.commits)):
        path = toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json"
        path.write_text(path.read_text().replace("'bf16'", "'$(date)'"))
        if number in (5, 6, 7):
            path.unlink()
    step = toy.only()
    assert step.series.pattern is None and history.format_bisect(step) is None
    assert '"rungs' not in history.render_text([step], [])


def test_the_pattern_of_a_series_selects_that_one_of_all_that_asv_knows() -> None:
    """With every benchmark and every value of a parameter, of which patterns are made one by one."""
    from asv.benchmarks import Benchmarks

    data = json.loads(committed.file("results/asv/benchmarks.json").read_text())
    benchmarks, seen = [each for name, each in data.items() if name != "version"], set()
    for each in benchmarks:
        for index, params in enumerate(itertools.product(*each["params"])):
            if not seen >= {each["name"], *params}:
                seen |= {each["name"], *params}
                one = recorded.Series("m", "e", each["name"], (), tuple(params))
                chosen = Benchmarks(
                    SimpleNamespace(benchmark_dir=""), benchmarks, one.pattern
                ).benchmark_selection
                assert {name: places for name, places in chosen.items() if places} == {each["name"]: [index]}


@pytest.mark.parametrize(
    "head, noise, status", [(1.02, 0.0002, CONFIRMED), (1.0, 0.0002, REFUTED), (1.005, 0.02, UNCLEAR)]
)
def test_only_a_comparison_of_the_two_commits_confirms(
    toy: Toy, head: float, noise: float, status: str
) -> None:
    toy.slower_from(7)
    toy.compare(5, 7, 1.05)  # other commits
    toy.compare(6, 7, 1.05, name="other-gpu", cpu="Other GPU")
    toy.compare(6, 7, 1.05, torch="2.11.0")
    assert toy.only().status == CANDIDATE
    toy.compare(6, 7, head, noise)
    assert toy.only().status == status


def test_a_step_that_coincides_with_a_new_driver_is_labelled(toy: Toy) -> None:
    toy.slower_from(7, driver=7)
    assert (toy.only().status, toy.only().why) == (DRIVER, "coincides with a driver change: 580.65 -> 590.10")
    toy.compare(6, 7, 1.05)  # both on one driver
    assert toy.only().status == CONFIRMED
    assert "driver 580.65 -> 590.10" in history.list_remarks([toy.only()])
    toy.slower_from(7, driver=3)
    assert history.list_remarks([toy.only()])[-1] != "driver 580.65 -> 590.10"
