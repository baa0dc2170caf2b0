"""What is kept on disk: whole or not at all, known to git as it is, and bounded."""

import os
import time
from pathlib import Path

import pytest

from kernels.tuning import timing as tuning
from ladder.machine import caches
from ladder.publish.site import building


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(tuning.torch.cuda, "get_device_name", lambda: "GPU")


@pytest.mark.usefixtures("on_a_gpu")
def test_what_was_tuned_is_not_lost_to_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "timed.json"
    tuning.write(path, "tiles", [])
    before = path.read_text()

    def full(self, text):
        self.write_bytes(text.encode()[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError):
        tuning.write(path, "tiles", [{"more": 1}])
    assert path.read_text() == before and os.listdir(tmp_path) == ["timed.json"]


def test_builds_of_old_sources_go_but_not_the_last_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "MOST_BUILDS", 3)
    code, root = tmp_path / "code", tmp_path / "extensions"
    (code / "kernels").mkdir(parents=True)
    (code / "kernels" / "a.cu").write_text("a")
    wanted = Path(caches.choose_build_folder(code, root)["TORCH_EXTENSIONS_DIR"])
    day = 24 * 3600
    ages = (
        {wanted: 90 * day} | {root / f"{n}-torch2": n * day for n in (9, 8, 7, 6)} | {root / "mine": 99 * day}
    )
    for folder, age in ages.items():
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age,) * 2)
    caches.choose_build_folder(code, root)
    assert sorted(each.name for each in root.iterdir()) == sorted(
        [wanted.name, "6-torch2", "7-torch2", "mine"]
    )
    for folder in (root / "9-torch2", root / "8-torch2"):
        folder.mkdir()  # used just now: a run may read it
    caches.choose_build_folder(code, root)
    assert (root / "9-torch2").is_dir() and (root / "8-torch2").is_dir()


def test_ctrl_c_while_the_new_site_takes_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    site, replace = tmp_path / "html", building.os.replace
    site.mkdir()
    (site / building._MARKS[-1]).touch()
    (site / "index.html").write_text("old")

    def pressed(source, target):
        replace(source, target)
        if Path(source) == site:
            raise KeyboardInterrupt

    monkeypatch.setattr(building.os, "replace", pressed)
    with pytest.raises(KeyboardInterrupt), building.replacing(site) as made:
        (made / "index.html").write_text("new")
    assert (site / "index.html").read_text() == "old" and [*tmp_path.iterdir()] == [site]
