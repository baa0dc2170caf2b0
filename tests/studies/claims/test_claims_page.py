"""The chart, the page and the file of `ladder kernels --claims`, and what is committed."""

import json
import re
from dataclasses import replace

import pytest

from ladder.base import text as texts
from ladder.base.records import plain
from ladder.publish.validation import validate
from ladder.results import store as results
from ladder.studies.claims import (
    chart,
    page,
    redraw,
    registry,
    report,
    schema,
)
from tests.support import committed, made_up_claims


@pytest.fixture(scope="module")
def result():
    return made_up_claims.result()


def test_the_same_result_gives_the_same_chart(result):
    first = chart.render(result, "svg")
    assert first == chart.render(schema.of_data(plain(result)), "svg") and len(first) > 10_000


def test_a_file_that_its_own_samples_contradict_is_refused(result, tmp_path):
    def judge(data):
        path = tmp_path / "nvidia-h200.json"
        path.write_text(json.dumps(texts.fit(data)))
        return validate.problem_of(path)

    def changed(change):
        data = plain(result)
        change(data)
        return judge(data)

    assert judge(plain(result)) is None
    assert "not what the samples say" in changed(lambda d: d["claims"][0]["ours"].update(median=9.0))
    assert "among its samples" in changed(lambda d: d["experiments"][0]["us"]["PyTorch"].update(median=1.0))
    assert changed(lambda d: d.update(host="x")) == "unknown key 'host'"
    assert "made from its hardware" in changed(lambda d: d["machine"].update(name="nvidia-b200"))


def rounded(data: dict) -> dict:
    """Floats to 12 digits: the last ones of an interval differ from CPU to CPU."""
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.12g}"))


@pytest.mark.parametrize("path", committed.listed("results/claims/*.json"), ids=lambda path: path.stem)
def test_what_is_committed_says_what_its_samples_say_today(path):
    data = redraw.judged_anew(path)
    assert rounded(plain(data)) == rounded(json.loads(path.read_text())), (
        "run python -m ladder.studies.claims.redraw"
    )
    text = path.with_suffix(".md").read_text()
    assert report.markdown(data) == text, "run python -m ladder.studies.claims.redraw"


def test_a_result_is_judged_anew_by_its_samples_alone(result, tmp_path, capsys):
    path = tmp_path / "nvidia-h200.json"
    stale = plain(result)
    stale["claims"][0] |= {"verdict": "holds", "ours": {"median": 2.3, "interval": None}}
    results.write(path, stale)
    assert "not what the samples say" in validate.problem_of(
        path
    ) or "but the samples" in validate.problem_of(path)
    assert redraw.main([str(path)]) == 0
    assert {each.suffix for each in tmp_path.iterdir()} == {".json", ".md", ".png", ".svg"}
    again = json.loads(path.read_text())
    assert again["claims"] == plain(result.claims) and validate.problem_of(path) is None
    assert again["experiments"] == stale["experiments"] and again["precision"] == stale["precision"]
    for bad in (b"{", b"{}", b"[]"):
        path.write_bytes(bad)
        assert redraw.main([str(path)]) == 2
    assert redraw.main([str(tmp_path / "none.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_what_the_other_command_says_is_taken_from_its_file_of_today(result, tmp_path):
    path = tmp_path / "claims" / "nvidia-h200.json"
    for folder in ("claims", "precision"):
        (tmp_path / folder).mkdir()
    results.write(path, plain(result))
    said = {"claim": "batch", "precision": "bf16", "on": "baseline", "ours": 1.75, "interval": None}
    made = {"claims": [said | {"against": "fp32", "article": 2.0}]}
    (tmp_path / "precision" / "nvidia-h200.json").write_text(json.dumps(made))
    data = redraw.judged_anew(path)
    assert plain(data.precision) == [said]
    assert {each.name: each for each in data.claims}["16-bit batch"].ours.median == 1.75


# ---- the lines in docs/claims.md -------------------------------------------------------------------------------------


def test_the_document_has_a_place_for_every_claim():
    text = (committed.ROOT / "docs" / "claims.md").read_text()
    named = re.findall(r"^<!-- table: claim (\S+) -->$", text, re.MULTILINE)
    assert sorted(named) == sorted(name.replace(" ", "-") for name in registry.BY_NAME)


def test_a_quoted_line_says_what_its_result_says(result):
    line = page.quote("coalescing", result)
    assert line.startswith("> **118x** (117x to 118x) for the article's 8x, more: access pattern, then")
    other = made_up_claims.result({"coalescing": {"strided, N blocks": 4100}})
    assert "**118x**" not in page.quote("coalescing", other)
    assert page.quote("coalescing", replace(result, claims=[])) == ""


@pytest.mark.parametrize(
    "change", [{"dirty": True}, {"complete": False}, {"protocol": "smoke"}, {"protocol": "quick"}]
)
def test_what_must_not_be_quoted_is_not(result, change):
    assert page.is_quotable(result)
    if rule := change.get("protocol"):
        change = {"protocol": replace(result.protocol, **{rule: True})}
    assert not page.is_quotable(replace(result, **change))
