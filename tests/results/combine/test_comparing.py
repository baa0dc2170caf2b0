"""Two results side by side: what is called slower, what is refused, and how the command ends."""

import json

import pytest

from ladder.core.errors import UserError
from ladder.results.combine import comparing
from tests.cli.test_cli import call
from tests.support import made_up, two_clocks
from tests.support.commands import refused
from tests.support.typed import Reading, write_run

comparing = Reading(comparing)


def verdicts_of(before, after, **more):
    return {row.name: row.verdict for row in comparing.compare(before, after, **more)}


def test_only_what_changed_is_called_changed():
    before = made_up.judged_run(seed=1)
    same = verdicts_of(before, made_up.judged_run(seed=2))
    assert not {"faster", "slower"} & set(same.values()) and same["fused_act"] == "less than"
    after = made_up.judged_run(seed=2, fused_act=25.3 * 1.01, cuda_graphs=30.0, baseline=96.4 * 1.1)
    changed = verdicts_of(before, after)
    assert changed["fused_act"] == "slower" and changed["cuda_graphs"] == "faster"
    assert changed["baseline"] == "slower" and changed["data_loading"] == "less than"


def test_two_commits_in_place_of_files_name_the_command_that_compares_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "`ladder bench-compare --base main --head HEAD`" in refused("compare", "main", "HEAD")
    assert "bench-compare" not in refused("compare", "no.json", "other.json")


def test_what_is_not_comparable_is_refused_unless_told_to():
    before, after = made_up.judged_run(seed=1), made_up.judged_run(seed=2)
    after["machine"]["torch"] = "2.14.0"  # what one wants to compare
    assert verdicts_of(before, after)
    for part, key, value in (
        ("machine", "gpu", "A100"),
        ("workload", "batch", 16),
        ("protocol", "quick", True),
    ):
        other = {**after, part: {**after[part], key: value}}
        with pytest.raises(UserError, match=f"not comparable: .*{key}"):
            comparing.compare(before, other)
        assert verdicts_of(before, other, anyway=True)
    with pytest.raises(UserError, match="no rung is in both"):
        comparing.compare(before, {**after, "rungs": [{**after["rungs"][0], "name": "other"}]})


def test_another_software_is_compared_but_named_as_another_series(tmp_path):
    before, after = made_up.judged_run(seed=1), made_up.judged_run(seed=2)
    write_run(tmp_path / "a.json", before)
    write_run(tmp_path / "same.json", after)
    after["machine"] |= {"torch": "2.14.0", "triton": "3.8.0"}
    write_run(tmp_path / "b.json", after)
    said = call("compare", tmp_path / "a.json", tmp_path / "b.json").stdout
    assert "another series: torch: 2.11.0 and 2.14.0" in said and "another series: triton" in said
    assert "series" not in call("compare", tmp_path / "a.json", tmp_path / "same.json").stdout


def test_a_rung_without_a_number_or_another_recipe_has_a_reason_and_no_verdict():
    before, after = made_up.judged_run(seed=1), made_up.judged_run(seed=2)
    after["rungs"][1].update(status="oom")
    before["rungs"][2]["recipe"], after["rungs"][2]["recipe"] = {"precision": "fp32"}, {"precision": "bf16"}
    after["rungs"][3]["recipe"] = {"a field of a later commit": False}
    rows = {row.name: row for row in comparing.compare(before, after)}
    assert rows["channels_last"].reason == "oom in the second" and rows["channels_last"].verdict == ""
    assert rows["bf16"].reason == "another recipe" and rows["fused_norm"].verdict
    del before["noise"]  # made before there were twins
    assert {row.verdict for row in comparing.compare(before, after)} == {""}


def test_slower_is_status_1_and_a_refusal_2(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json", "slow.json", "other.json")]
    slow, other = made_up.judged_run(seed=2, fused_act=26.0), made_up.judged_run(seed=2)
    other["machine"] |= {"gpu": "NVIDIA A100", "name": "nvidia-a100"}
    for path, made in zip(
        paths, [made_up.judged_run(seed=1), made_up.judged_run(seed=2), slow, other], strict=True
    ):
        write_run(path, made)
    fine = call("compare", paths[0], paths[1])
    assert fine.exit_code == 0 and "less than 0." in fine.stdout
    assert call("compare", paths[0], paths[2]).exit_code == 1
    rows = json.loads(call("compare", paths[0], paths[2], "--json").stdout)
    assert rows[-1]["verdict"] == "slower" and rows[-1]["ratio"] == pytest.approx(25.3 / 26, rel=0.01)
    refusal = call("compare", paths[0], paths[3])
    assert refusal.exit_code == 2 and "A100" in refusal.stderr and refusal.stdout == ""
    assert "warning: machine.gpu" in call("compare", paths[0], paths[3], "--anyway").stdout


def test_gpu_time_is_compared_beside_the_step_where_both_have_it(tmp_path):
    before, after = two_clocks.run(4), two_clocks.again(two_clocks.run(4))
    for number, each in enumerate(after["rungs"][1]["rounds"]):
        each["profiled"] = [cycle | {"gpu_ms": 97.0 + number / 100} for cycle in each["profiled"]]
    rows = {row.name: row for row in comparing.compare(before, after)}
    row = rows["channels_last"]
    assert (row.verdict, row.gpu_verdict) == ("less than", "slower") and row.is_slower
    assert row.gpu_ratio == pytest.approx(93 / 97, rel=0.001) and row.gpu_interval[1] < 1
    assert rows["bf16"].gpu_verdict == "less than" and not rows["bf16"].is_slower
    for name, made in (("a", before), ("b", after)):
        write_run(tmp_path / f"{name}.json", made)
    told = call("compare", tmp_path / "a.json", tmp_path / "b.json")
    lines = told.stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("channels_last"))
    assert "step" in lines[at] and lines[at + 1].split()[0] == "GPU" and lines[at + 1].endswith("slower")
    assert told.exit_code == 1
    del before["gpu_noise"]
    for each in before["rungs"]:
        each["rounds"] = [{k: v for k, v in visit.items() if k != "profiled"} for visit in each["rounds"]]
    rows = comparing.compare(before, after)
    assert {row.gpu_verdict for row in rows} == {""} and rows[1].verdict == "less than"


def test_a_faster_step_is_no_loss_though_the_gpu_works_for_longer():
    row = comparing.compare(made_up.judged_run(seed=1), made_up.judged_run(seed=2, cuda_graphs=30.0))[5]
    import dataclasses

    assert row.verdict == "faster"
    assert not dataclasses.replace(row, gpu_verdict="slower").is_slower
    assert dataclasses.replace(row, verdict="less than", gpu_verdict="slower").is_slower


def test_a_run_is_not_compared_with_itself(tmp_path):
    """Nor with a merged result that holds it: whatever happened to one of them happened to the other."""
    run = made_up.judged_run()
    write_run(tmp_path / "a.json", run)
    write_run(tmp_path / "copy.json", run | {"seconds": 1.0})
    for options in ((), ("--anyway",)):
        said = call("compare", tmp_path / "a.json", tmp_path / "copy.json", *options)
        assert (said.exit_code, said.stdout) == (2, "")
        assert "not comparable: visits of one run are in both" in said.stderr
