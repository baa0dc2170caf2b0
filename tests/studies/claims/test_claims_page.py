"""The chart, the page and the file of `ladder kernels --claims`, and what is committed."""

import json

import pytest

from ladder.base import text as texts
from ladder.publish.validation import validate
from ladder.results import store as results
from ladder.studies.claims import (
    chart,
    page,
    redraw,
    registry,
    report,
)
from tests.support import committed, made_up_claims


@pytest.fixture(scope="module")
def result():
    return made_up_claims.result()


def test_the_same_result_gives_the_same_chart(result):
    first = chart.render(result, "svg")
    assert first == chart.render(json.loads(json.dumps(result)), "svg") and len(first) > 10_000


def test_a_file_that_its_own_samples_contradict_is_refused(result, tmp_path):
    def judge(data):
        path = tmp_path / "nvidia-h200.json"
        path.write_text(json.dumps(texts.fit(data)))
        return validate.problem_of(path)

    def changed(change):
        data = json.loads(json.dumps(result))
        change(data)
        return judge(data)

    assert judge(result) is None
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
    assert rounded(data) == rounded(json.loads(path.read_text())), "run python -m ladder.claims.redraw"
    text = path.with_suffix(".md").read_text()
    assert report.markdown(data) == text, "run python -m ladder.claims.redraw"


def test_a_result_is_judged_anew_by_its_samples_alone(result, tmp_path, capsys):
    path = tmp_path / "nvidia-h200.json"
    stale = json.loads(json.dumps(result))
    stale["claims"][0] |= {"verdict": "holds", "ours": {"median": 2.3, "interval": None}}
    results.write(path, stale)
    assert "not what the samples say" in validate.problem_of(
        path
    ) or "but the samples" in validate.problem_of(path)
    assert redraw.main([str(path)]) == 0
    assert {each.suffix for each in tmp_path.iterdir()} == {".json", ".md", ".png", ".svg"}
    again = json.loads(path.read_text())
    assert again["claims"] == json.loads(json.dumps(result["claims"])) and validate.problem_of(path) is None
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
    results.write(path, result)
    said = {"claim": "batch", "precision": "bf16", "on": "baseline", "ours": 1.75, "interval": None}
    made = {"claims": [said | {"against": "fp32", "article": 2.0}]}
    (tmp_path / "precision" / "nvidia-h200.json").write_text(json.dumps(made))
    data = redraw.judged_anew(path)
    assert data["precision"] == [said]
    assert {each["name"]: each for each in data["claims"]}["16-bit batch"]["ours"]["median"] == 1.75


def test_the_page_has_a_place_for_every_claim_and_says_what_the_result_says(result, tmp_path, monkeypatch):
    text = page.PAGE.read_text()
    assert sorted(page.CLAIM.findall(text)) == sorted(registry.BY_NAME)
    filled = page.filled(text, result, "nvidia-h200")
    assert "> **118x** (117x to 118x) for the article's 8x, more: access pattern, then" in filled
    assert "results/charts/nvidia-h200-claims.png" in filled and "No machine's result" not in filled
    other = made_up_claims.result({"coalescing": {"strided, N blocks": 4100}})
    again = page.filled(filled, other, "nvidia-h200")
    assert again == page.filled(text, other, "nvidia-h200") and "**118x**" not in again


def test_the_page_is_that_of_the_newest_result_in_the_repository():
    if (newest := page.newest(committed.folder("results/claims"))) is None:
        assert "No machine's result is in the repository yet" in page.PAGE.read_text()
        return
    text = page.PAGE.read_text()
    assert page.filled(text, page.quotable(newest), newest.stem) == text, "run python -m ladder.claims.page"


def test_a_smoke_test_is_not_put_on_the_page(result, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "PAGE", tmp_path / "claims.md")
    page.PAGE.write_text("<!-- claim: coalescing -->\n\nrest\n")
    path = tmp_path / "nvidia-h200.json"
    results.write(path, result | {"protocol": result["protocol"] | {"smoke": True}})
    assert page.main([str(path)]) == 2 and "not to be quoted" in capsys.readouterr().err
    assert page.newest(tmp_path) is None
    results.write(path, result)
    assert page.newest(tmp_path) == path and page.main([str(path)]) == 0
    assert page.PAGE.read_text().startswith("<!-- claim: coalescing -->\n> **118x**")
