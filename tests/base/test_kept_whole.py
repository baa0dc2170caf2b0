"""What is kept on disk: whole or not at all, known to git as it is, and bounded."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.tuning import timing as tuning
from ladder.machine import caches
from ladder.publish.site import building

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.usefixtures("on_a_gpu")
def test_what_was_tuned_goes_through_links_and_into_pipes(tmp_path):
    (tmp_path / "link").symlink_to("real")
    tuning.write(tmp_path / "link", "tiles", [])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").is_file()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    tuning.write(tmp_path / "pipe", "tiles", [])
    assert os.read(reader, 9) == b'{\n "schem' and (tmp_path / "pipe").is_fifo()
    os.close(reader)


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


STOPPED = """
import os, shutil, signal, sys
from pathlib import Path
from benches import _plugin
from ladder.publish.site import building

_plugin.setup()
site, place, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def signalled(call):
    def run(*args, **how):
        done = call(*args, **how)
        signal.raise_signal(number)
        signal.raise_signal(number)
        return done
    return run

owner, name = {"begin": (building.tempfile, "mkdtemp"), "exchange": (os, "replace"), "end": (shutil, "rmtree")}[place]
setattr(owner, name, signalled(getattr(owner, name)))
with building.replacing(site) as made:
    (made / "index.html").write_text("new")
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("place", "kept"), [("begin", "old"), ("exchange", "new"), ("end", "new")])
def test_a_signal_while_asv_replaces_the_site_leaves_a_whole_one(tmp_path, number, status, place, kept):
    site = tmp_path / "html"
    site.mkdir()
    (site / building._MARKS[-1]).touch()
    (site / "index.html").write_text("old")
    command = [sys.executable, "-c", STOPPED, str(site), place, str(int(number))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, "asv: interrupted\n")
    assert (site / "index.html").read_text() == kept and [*tmp_path.iterdir()] == [site]
