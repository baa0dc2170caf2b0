"""What is kept on disk: whole or not at all, known to git as it is, and bounded."""

import os
from pathlib import Path

import pytest

from kernels.tuning import timing as tuning
from ladder.publish import site as building


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


def test_ctrl_c_while_the_new_site_takes_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    site, replace = tmp_path / "html", building.os.replace
    site.mkdir()
    (site / building.MARKS[-1]).touch()
    (site / "index.html").write_text("old")

    def pressed(source, target):
        replace(source, target)
        if Path(source) == site:
            raise KeyboardInterrupt

    monkeypatch.setattr(building.os, "replace", pressed)
    with pytest.raises(KeyboardInterrupt), building.replacing(site) as made:
        (made / "index.html").write_text("new")
    assert (site / "index.html").read_text() == "old" and [*tmp_path.iterdir()] == [site]
