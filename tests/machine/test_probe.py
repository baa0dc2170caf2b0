"""Torch is not asked while another run measures. The driver, torch's answers and the GPU are made up."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.core import locks
from ladder.core.paths import ROOT
from ladder.machine import probe, system

GPU, OTHER = "5f1e0000-0000-0000-0000-00000000000a", "5f1e0000-0000-0000-0000-00000000000b"
SAID: probe.Probe = {
    "error": None, "torch": "2.13.0", "cuda": "13.0", "capability": [9, 0], "name": "NVIDIA H200",
    "memory": 150_000_000_000, "cudnn": 91900, "bf16": True, "uuid": GPU, "uuids": [GPU],
    "triton_error": None, "nvcc_error": "no nvcc", "nvjpeg_error": None,
}  # fmt: skip
HOLDS = "from ladder.core.locks import device_lock\nwith device_lock('cuda {}'): print('held', flush=True); input()"


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.files, "cache_folder", lambda name: tmp_path / name)


@pytest.fixture
def measuring() -> Iterator[Callable[[str], Callable[[], None]]]:
    """Starts another process that holds a GPU's lock, and gives what ends it."""
    began = []

    def start(gpu: str) -> Callable[[], None]:
        other = subprocess.Popen(
            [sys.executable, "-c", HOLDS.format(gpu)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        began.append(other)
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        return lambda: other.communicate("\n") and None

    yield start
    for other in began:
        other.kill()
        other.wait()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The answers of torch that opened a context. The driver shows GPU alone."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(probe, "list_visible", lambda: (13000, [GPU]))
    monkeypatch.setattr(probe, "check_import", lambda: {"error": None})
    monkeypatch.setattr(probe, "probe_torch", lambda: seen.append(dict(SAID)) or seen[-1])
    return seen


def test_torch_is_not_asked_about_a_gpu_that_another_run_holds(measuring, asked, monkeypatch) -> None:
    assert probe.probe_unless_held() == SAID and len(asked) == 1
    end = measuring(GPU)
    assert probe.probe_unless_held() == SAID and len(asked) == 1
    monkeypatch.setattr(probe, "list_visible", lambda: (13000, [GPU, OTHER]))
    assert probe.probe_unless_held() == {**SAID, "uuids": [GPU, OTHER]}, (
        "it lists the GPUs of its own command"
    )
    monkeypatch.setattr(probe, "list_visible", lambda: (13000, [OTHER]))
    probe.probe_unless_held()
    assert len(asked) == 2, "the run is on another GPU"
    end()
    monkeypatch.setattr(probe, "list_visible", lambda: (13000, [GPU]))
    probe.probe_unless_held()
    assert len(asked) == 3, "what was kept counts during a run alone"


def test_a_run_waits_while_torch_is_asked(asked, monkeypatch) -> None:
    class Waits(Exception):
        pass

    def wait() -> None:
        raise Waits

    def ask() -> probe.Probe:
        with locks.device_lock(f"cuda {GPU}", wait, shared=True):  # another question need not wait
            pass
        with pytest.raises(Waits), locks.device_lock(f"cuda {GPU}", wait):
            pass
        asked.append({})
        return SAID

    monkeypatch.setattr(probe, "probe_torch", ask)
    assert probe.probe_unless_held() == SAID and asked


def test_an_answer_that_is_damaged_or_about_another_gpu_is_not_used(
    measuring, asked, tmp_path, monkeypatch
) -> None:
    for said in ({"error": "out of memory"}, {**SAID, "uuid": OTHER}):
        monkeypatch.setattr(probe, "probe_torch", lambda said=said: said)
        assert probe.probe_unless_held() == said and not list(tmp_path.glob("probe/*"))
    monkeypatch.setattr(probe, "probe_torch", lambda: SAID)
    probe.probe_unless_held()
    measuring(GPU)
    assert probe.probe_unless_held() == SAID
    (path,) = tmp_path.glob("probe/*")
    path.write_text("{")
    assert probe.probe_unless_held() == {"held": GPU}
    monkeypatch.setattr(probe, "check_import", lambda: {"error": "torch 2.13.0 is built without CUDA"})
    assert probe.probe_unless_held() == {"error": "torch 2.13.0 is built without CUDA"}, (
        "nobody waits for that"
    )


class Driver:
    """A made-up libcuda with two GPUs. `refuses` names the function that fails."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def __getattr__(self, name: str) -> Any:
        if name == self.refuses:
            return lambda *_: 803
        return {"cuInit": lambda _: 0, "cuDeviceGetUuid_v2": self.uuid}.get(name) or self.number(name)

    def number(self, name: str) -> Any:
        known = {"cuDriverGetVersion": lambda _: 13000, "cuDeviceGetCount": lambda _: 2}
        given = known.get(name, lambda index: index)  # cuDeviceGet

        def fill(place: Any, index: int = 0) -> int:
            place._obj.value = given(index)
            return 0

        return fill

    @staticmethod
    def uuid(raw: Any, device: Any) -> int:
        raw[:] = bytes.fromhex("5f1e" + "00" * 13) + bytes([10 + device.value])
        return 0


def test_the_driver_names_the_gpus_as_torch_does(monkeypatch) -> None:
    monkeypatch.setattr(probe.ctypes, "CDLL", lambda _: Driver())
    assert probe.list_visible() == (13000, [GPU, OTHER])
    for name in ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2"):
        monkeypatch.setattr(probe.ctypes, "CDLL", lambda _, name=name: Driver(name))
        assert probe.list_visible() == (0, [])


def test_without_a_kept_answer_a_command_waits_for_the_run(measuring, monkeypatch, tmp_path, capsys) -> None:
    """The answers come from a program in place of Python, which is asked a second time when the run has ended."""
    end, fake = measuring(GPU), tmp_path / "python"
    first, second = json.dumps({"held": GPU}), json.dumps(SAID)
    fake.write_text(f"#!/bin/sh\n[ -e '{tmp_path}/over' ] && echo '{second}' || echo '{first}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(system.sys, "executable", str(fake))
    told = locks._report_waiting

    def over() -> None:
        told()
        (tmp_path / "over").touch()
        end()

    monkeypatch.setattr(locks, "_report_waiting", over)
    assert system.probe_gpu.__wrapped__() == SAID
    assert capsys.readouterr().err == "waits for another run on this GPU\n"
