"""`make docs` makes the pages beside stored results anew: they say what today's code says of the same numbers."""

import json
from pathlib import Path

from ladder.publish.pages import redrawing
from tests.support import committed, made_up_scaled
from tests.support.repositories import commit_all, git
from tests.support.typed import write_run

MACHINE = json.loads(committed.file("results/precision/nvidia-h200.json").read_text())["machine"]


def test_a_page_and_a_picture_of_an_older_code_are_made_anew_and_no_file_is_added(tmp_path: Path) -> None:
    source = tmp_path / "results/scaled/a.json"
    write_run(source, made_up_scaled.of_scaled(MACHINE, (1, 2)))
    page, picture = source.with_suffix(".md"), source.with_suffix(".svg")
    page.write_text("# 1 generations\n")
    picture.write_bytes(b"an older drawing")
    git(tmp_path, "init", "-q")
    assert redrawing.redraw_pages(tmp_path) == [], "git does not have the result"
    commit_all(tmp_path, "a")
    assert redrawing.redraw_pages(tmp_path) == [page, picture]
    assert page.read_text().startswith("# Several GPUs: ") and picture.read_bytes().startswith(b"<?xml")
    assert not source.with_suffix(".png").exists()
    assert redrawing.redraw_pages(tmp_path) == []


def test_a_file_of_another_kind_has_no_page_here(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"kind": "canary"}))
    assert not list(redrawing.render_pages(tmp_path / "a.json"))
