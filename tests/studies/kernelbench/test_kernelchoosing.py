"""Which rows `ladder kernels --choose` makes of a result: where plain PyTorch is faster in both directions together."""

import json

import pytest
import torch
from click.testing import CliRunner

from kernels.alternatives import Where
from ladder.cli import main as cli
from ladder.publish.validation import validate
from ladder.results import store as results
from ladder.studies.kernelbench import choosing as kernelchoosing
from ladder.studies.kernelbench import verdicts as kernelverdicts
from tests.support import made_up_kernels


def told(case, size=25, variant="", **slower):
    """Rows of a case, forward and backward; by direction how far each contender is behind the copy."""
    found = []
    for direction, times in slower.items():
        direction = direction.replace("_", " ")
        row = made_up_kernels.row(case, direction, slower=dict(zip(("ours", "plain"), times, strict=False)))
        op = case.entry.function
        at = {"variant": variant, "architecture": 90, "dtype": "bfloat16", "layout": "nhwc", "size": size}
        found.append(row | {"dispatch": {"op": op, **at}, "taken": None})
    return found


ONE, OTHER = made_up_kernels.cases(quick=True, ops=["modulate"])[:2]
KEY = ("modulate", "", 90, "bfloat16", "nhwc", 25)


@pytest.mark.parametrize(
    ("forward", "backward", "faster"),
    [
        ((1.3, 1.1), (1.3, 1.1), True),
        ((1.3, 1.1), (1.15, 1.2), True),  # together, though slower in one
        ((1.2, 1.1), (1.1, 1.3), False),
        ((1.1, 1.1), (1.1, 1.1), False),  # straddles
        ((1.1, 3.0), (1.1, 3.0), False),
    ],
)
def test_a_row_needs_both_directions_together(forward, backward, faster):
    rows = told(ONE, forward=forward, backward=backward)
    kernelverdicts.derive(rows)
    assert (KEY in kernelchoosing.chosen(kernelchoosing.judge(rows))) == faster


def test_an_interval_that_straddles_stays_with_ours():
    """Plain PyTorch is 3% faster in the median, and the repeats are 10% apart."""
    rows = told(ONE, forward=(1.3, 1.26), backward=(1.3, 1.26))
    for row in rows:
        for name, mean, drift in (
            ("ours", 30.0, (0, -1, 1, 1, -1)),
            ("twin", 30.0, (0, -1, 1, 1, -1)),
            ("plain", 29.1, (-1, 1, 0, 1, -1)),
        ):
            row["samples_us"]["cold"][name] = [mean * (1 + 0.1 * k) for k in drift]
    kernelverdicts.derive(rows)
    judged = kernelchoosing.judge(rows)
    assert judged[0].times > 1 > judged[0].interval[0] and not kernelchoosing.chosen(judged)
    assert kernelchoosing.stays(judged, {})[0].startswith(f"stays with ours: {ONE.name}: 1.0")


def test_all_cases_of_a_kind_must_agree():
    fast = {"forward": (1.3, 1.1), "backward": (1.3, 1.1)}
    slow = {"forward": (1.1, 1.3), "backward": (1.1, 1.3)}
    rows = told(ONE, **fast) + told(OTHER, **slow)
    kernelverdicts.derive(rows)
    judged = kernelchoosing.judge(rows)
    assert not kernelchoosing.chosen(judged)
    assert kernelchoosing.stays(judged, {}) == [
        f"stays with ours: {kernelchoosing.said(judged[0])}, but not in all cases of its kind"
    ]
    rows = told(ONE, **fast) + told(OTHER, size=22, **slow)
    kernelverdicts.derive(rows)
    assert [*kernelchoosing.chosen(kernelchoosing.judge(rows))] == [KEY]


def test_an_op_without_gradients_counts_forward_alone_and_one_with_does_not():
    rows = told(ONE, forward=(1.3, 1.1))
    kernelverdicts.derive(rows)
    assert kernelchoosing.chosen(kernelchoosing.judge(rows))
    rows = told(ONE, forward=(1.3, 1.1), backward=(1.3,))
    kernelverdicts.derive(rows)
    assert not kernelchoosing.judge(rows)


def test_the_command_prints_a_table_that_the_dispatcher_can_read(tmp_path, monkeypatch):
    slow, fast = (1.1, 1.3), (1.3, 1.1)
    rows = told(ONE, forward=fast, backward=fast, double_backward=fast)
    rows += told(OTHER, size=22, forward=slow, backward=slow)
    result = made_up_kernels.result(rows)
    path = tmp_path / "nvidia-h200.json"
    results.write(path, result)  # as the command does, which writes an empty text as "-"
    assert validate.problem_of(path) is None
    said = CliRunner().invoke(cli.main, ["kernels", "--choose", str(path)])
    assert said.exit_code == 0, said.output
    read = {}
    exec(
        said.stdout.replace("TABLE: dict[str, dict[Where, str]]", "TABLE"),
        {"Where": Where, "torch": torch},
        read,
    )
    where = Where("", 90, torch.bfloat16, "nhwc", 25)
    assert list(read["TABLE"]) == ["modulate"] and list(read["TABLE"]["modulate"]) == [where]
    text = read["TABLE"]["modulate"][where]
    assert (
        text.startswith(f"{ONE.name}: 1.1") and "twice differentiated 1.1" in text and "nvidia-h200" in text
    )
    empty = made_up_kernels.result(told(OTHER, forward=slow, backward=slow))
    path.write_text(json.dumps(empty))
    said = CliRunner().invoke(cli.main, ["kernels", "--choose", str(path)])
    assert said.stdout == "TABLE: dict[str, dict[Where, str]] = {\n}\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda result: result["protocol"]["notes"].append("quick: not to be quoted"), "not to choose by"),
        (lambda result: [row.pop("dispatch") for row in result["rows"]], "made by an earlier version"),
        (lambda result: result.pop("rows"), "rows"),
    ],
)  # fmt: skip
def test_a_file_that_nothing_can_be_chosen_by_is_one_line(tmp_path, change, words):
    result = made_up_kernels.result(told(ONE, forward=(1.3, 1.1), backward=(1.3, 1.1)))
    change(result)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(result))
    said = CliRunner().invoke(cli.main, ["kernels", "--choose", str(path)])
    assert said.exit_code == 2 and said.output.count("\n") == 1 and words in said.output


def test_choosing_measures_nothing(tmp_path):
    (path := tmp_path / "file.json").write_text("{}")
    said = CliRunner().invoke(cli.main, ["kernels", "--choose", str(path), "--quick"])
    assert said.exit_code == 2 and said.output.count("\n") == 1 and "measures nothing" in said.output
