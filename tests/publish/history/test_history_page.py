"""The site's history: a row for each rung, marks at their commits with verdicts, what became slower since when."""

import html
import itertools
import re
from pathlib import Path

import pytest

from ladder.publish.history import page
from ladder.show.page import Fold, Lines
from tests.support import made_up_asv
from tests.support.asv_steps import MACHINE, Toy, toy

__all__ = ["toy"]  # a fixture


def branch_of(toy: Toy) -> page.Branch:
    return page.read_branch({commit: number for number, commit in enumerate(toy.commits)}, toy.root)


def write(toy: Toy, site: Path) -> dict[str, str]:
    """Return the pages of a made-up history by their names."""
    site.mkdir(exist_ok=True)
    page.write_histories(site, toy.asv, toy.screen()[0], branch_of(toy))
    return {path.name: path.read_text() for path in site.glob("*.html")}


def draw(toy: Toy) -> Lines:
    states = {page.identify_line(step.series, step.bad): step.status for step in toy.screen()[0]}
    every = [one for one in page.series.read(toy.asv) if one.rung]
    chart, table = page.draw_rungs(every, states, branch_of(toy))
    assert isinstance(chart, Lines) and isinstance(table, Fold)
    return chart


def test_a_step_is_marked_at_its_commit_with_its_verdict(toy: Toy) -> None:
    toy.slower_from(7)
    baseline, bf16 = draw(toy).rows
    assert (baseline.name, bf16.name, baseline.marks) == ("baseline", "bf16", [])
    (mark,) = bf16.marks
    ((_, points),) = bf16.runs
    assert mark.at == points[7].at == (7 + 0.5) / 12, "where the first slow commit stands"
    assert mark.name == toy.commits[7][:8] and (mark.tone, mark.about) == ("open", "+2.00%, candidate")
    toy.compare(6, 7, 1.02)
    (mark,) = draw(toy).rows[1].marks
    assert (mark.tone, mark.about) == ("bad", "+2.00%, confirmed")


def test_a_step_that_coincides_with_a_new_driver_names_it(toy: Toy) -> None:
    toy.slower_from(7, driver=7)
    (mark,) = draw(toy).rows[1].marks
    assert mark.tone == "muted" and mark.about.startswith("+2.00%, driver change, driver 5")


def test_a_step_down_and_one_that_did_not_last_are_marked_as_what_they_are(toy: Toy) -> None:
    for number in range(len(toy.commits)):
        by = 1.05 if 4 <= number < 8 else 1.0
        toy.record(number, {"baseline": 0.1 * by, "bf16": 0.05 * (1 if number < 6 else 0.9)})
    baseline, bf16 = draw(toy).rows
    assert [(mark.at, mark.tone) for mark in bf16.marks] == [(6.5 / 12, "good")]
    assert [mark.about for mark in baseline.marks] == ["+5.00%, regained since", "-4.76%, not compared"]
    assert [mark.tone for mark in baseline.marks] == ["muted", "good"]


def test_points_and_marks_are_drawn_where_their_numbers_are(toy: Toy, tmp_path: Path) -> None:
    toy.slower_from(7, 0.2)
    text = write(toy, tmp_path / "site")[f"history-{MACHINE}.html"]
    row = text.partition(">bf16</span>")[2].partition("</li>")[0]
    (mark,) = re.findall(r'class="mark open" x1="([0-9.]+)%" x2="([0-9.]+)%"', row)
    circles = re.findall(r'cx="([0-9.]+)%" cy="([0-9.]+)" r="3"><title>([^<]*)', row)
    assert mark == (circles[7][0], circles[7][0]) == ("62.500", "62.500")
    assert [float(x) for x, _, _ in circles] == pytest.approx(
        [100 * (k + 0.5) / 12 for k in range(12)], abs=1e-3
    )
    heights = [float(y) for _, y, _ in circles]
    assert min(heights) == heights[7] == pytest.approx(8) and max(heights) == pytest.approx(40)
    assert circles[7][2].startswith(f"{toy.commits[7][:8]}, 1970-01-01: 60.0")
    segments = re.findall(
        r'class="run busy" x1="([0-9.]+)%" y1="([0-9.]+)" x2="([0-9.]+)%" y2="([0-9.]+)"', row
    )
    assert segments == [(*a[:2], *b[:2]) for a, b in itertools.pairwise(circles)]


def test_noise_of_one_percent_looks_small(toy: Toy) -> None:
    for number in range(len(toy.commits)):
        toy.record(number, {"baseline": 0.1 * (1 + 0.01 * (number % 2))})
    chart = draw(toy)
    ((_, places),) = chart.place_points(chart.rows[0])
    heights = [float(y) for _, y, _ in places]
    assert 3 < max(heights) - min(heights) < 4, "of 32 pixels"


def test_what_became_slower_stands_first_with_its_day_its_commit_and_its_verdict(
    toy: Toy, tmp_path: Path
) -> None:
    toy.slower_from(7)
    pages = write(toy, tmp_path / "site")
    assert {*pages} == {page.OVERVIEW, f"history-{MACHINE}.html"}
    text = re.sub(
        r"<[^>]+>", " ", pages[page.OVERVIEW].partition('id="slower"')[2].partition("</section>")[0]
    )
    shown = " ".join(html.unescape(text).split())
    assert "1970-01-01 article/bf16 +2.00% candidate" in shown and toy.commits[7][:8] in shown
    assert "make bench-compare" in shown
    for name, text in pages.items():
        for link in re.findall(r'href="([^"#]+)', text):
            known = {*pages, page.FRONT, f"{page.ASV}/index.html", "data:,"}
            assert html.unescape(link) in known, f"{name} leads to {link}, which does not exist"


def test_a_gpu_has_a_page_with_the_wall_time_of_each_of_its_hosts_apart(toy: Toy, tmp_path: Path) -> None:
    hosts = [
        made_up_asv.facts(),
        made_up_asv.facts(cpu="Another CPU") | {"machine": "nvidia-some-gpu-0a1b2c"},
    ]
    folder, site = tmp_path / "asv", tmp_path / "site"
    site.mkdir()
    for host in hosts:
        for name in (page.series.GPU_STEP, page.series.STEP):
            made_up_asv.write(folder, host, name=name, commit=toy.commits[name == page.series.STEP])
    _, card = page.write_histories(site, folder, [], branch_of(toy))
    ((_, address),) = card.links
    text = (site / address).read_text()
    assert card.title == "NVIDIA Some GPU" and text.index("GPU milliseconds a step") < text.index(
        "<summary>Wall time"
    )
    assert [f"Wall time of a step on {host['machine']}" in text for host in hosts] == [True, True]


def test_a_row_of_several_softwares_has_the_newest_time(toy: Toy, tmp_path: Path) -> None:
    for number, torch in ((3, "2.13.0"), (1, "2.14.0")):
        path = toy.record(number, {"baseline": 0.1 * number})
        path.write_text(path.read_text().replace("2.13.0", torch))
    (row,) = draw(toy).rows
    assert len(row.runs) == 2 and row.figure == "300.0 ms"
    assert len({tone for tone, _ in row.runs}) == 2


def test_a_line_is_named_by_what_tells_it_from_the_others() -> None:
    cpu, cuda, older = ("torch 2", "cuda none"), ("torch 2", "cuda 13.0"), ("torch 1", "cuda 13.0")
    assert page.name_software(cpu, [cpu, cuda]) == ["torch 2", "cuda none"]
    assert page.name_software(older, [older, cuda]) == ["torch 1"]
