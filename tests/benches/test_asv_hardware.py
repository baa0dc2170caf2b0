"""The machine that asv's results belong to: hardware alone, kept in the checkout; updates are noted beside results."""

import json
import platform
from pathlib import Path

import pytest

from benches import _hardware
from ladder.publish.history import machines as asvmachines
from ladder.publish.history import notes as asvnotes
from tests.support import toyhistory
from tests.support.repositories import git
from tests.support.toyhistory import STEP, asv

H200 = {"name": "nvidia-h200", "gpu": "NVIDIA H200", "gpu_memory_gb": 139.8, "cpu": "Intel Xeon", "cores": 16}
H200 |= {"ram_gb": 126.0, "os": "Linux x86_64"}
LONG = "checkout-py3.11-cuda13.0-torch2.13.0-triton3.7.1-" + "x" * 60


@pytest.fixture
def describe(tmp_path):
    """describe(**facts): the record of a machine, whose facts are those of an H200 but for these."""
    return lambda **facts: asvmachines.identify(H200 | facts, tmp_path / "asv")


def keep(record: dict, folder: Path) -> None:
    path = folder / "asv" / record["machine"] / "machine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**record, "version": 1}))


# --- identity -------------------------------------------------------------------------------------------------------


def test_the_record_is_the_hardware_and_nothing_else(describe):
    record = describe(driver="580.65.06", torch="2.13.0", cuda="13.0")
    assert record == {
        "machine": "nvidia-h200",
        "os": "Linux",
        "arch": "x86_64",
        "cpu": "Intel Xeon",
        "num_cpu": "16",
        "ram": "126 GB",
        "gpu": "NVIDIA H200",
        "gpu_memory": "140 GB",
    }
    assert (
        describe(gpu=None, gpu_memory_gb=None)["gpu_memory"] == "none"
    )  # strings: asv's publish ends on others


def test_this_machine_has_no_host_name_and_no_release():
    words = " ".join(asvmachines.describe(_hardware.facts()).values())
    assert platform.node() not in words.split() and platform.release() not in words


@pytest.mark.parametrize(
    "other", [{"cpu": "AMD EPYC"}, {"cores": 32}, {"ram_gb": 504.0}, {"os": "Darwin arm64"}]
)
def test_two_machines_with_one_gpu_are_two(describe, tmp_path, other):
    """asv names result files by machine, commit and environment: under one name they would overwrite each other."""
    first = describe()
    keep(first, tmp_path)
    second = describe(**other)
    assert second["machine"].startswith("nvidia-h200-") and second == describe(**other)
    keep(second, tmp_path)
    assert describe(**other) == second and describe() == first


# --- the whole of asv, with a GPU that is made up -------------------------------------------------------------------

FAKE_TORCH = """
import os
from types import SimpleNamespace as Some
__version__ = "2.13.0"
version = Some(cuda="13.0")
GPUS = [("NVIDIA A100-SXM4-80GB", 85e9, [8, 0], "GPU-aaaa"), ("NVIDIA H200", 150e9, [9, 0], "GPU-bbbb")]
def _visible():  # as CUDA reads it: indices or beginnings of UUIDs, up to the first that is neither
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    for word in filter(None, words):
        found = [g for i, g in enumerate(GPUS) if word == str(i) or word[:4] == "GPU-" and g[3].startswith(word)]
        if not found:
            return
        yield found[0]
def _properties(index):
    name, memory, (major, minor), uuid = list(_visible())[index]
    return Some(name=name, total_memory=int(memory), major=major, minor=minor, uuid=uuid[4:])
def _init():
    if not list(_visible()):
        raise RuntimeError("No CUDA GPUs are available")
cuda = Some(init=_init, get_device_properties=_properties, device_count=lambda: len(list(_visible())),
            is_bf16_supported=lambda **_: True)
backends = Some(cudnn=Some(version=lambda: int(os.environ.get("FAKE_CUDNN", "91900"))))
class zeros:
    def __init__(self, n, device): self.n = n
    def add_(self, x): return self
    def item(self): return 1.0
    def sum(self): return self.n
"""
FAKE_TRITON = """
class _Kernel:
    def __init__(self, function): pass
    def __getitem__(self, grid): return lambda *_, **__: None
jit = _Kernel
"""
FAKE_NVML = """
import os
nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetCudaDriverVersion = lambda: 13000
nvmlSystemGetDriverVersion = lambda: os.environ.get("FAKE_DRIVER", "580.65.06")
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetName = lambda index: ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"][index]
"""


@pytest.fixture(scope="module")
def gpus(tmp_path_factory) -> Path:
    """A Python whose torch, Triton and NVML know an A100 and an H200."""
    files = toyhistory.torch_files("2.13.0", "3.7.1", code=FAKE_TORCH)
    files |= {"pynvml.py": FAKE_NVML, "triton/__init__.py": FAKE_TRITON}
    files |= {"triton/language.py": "constexpr = load = store = arange = program_id = None"}
    without = (*toyhistory.TORCH, "pynvml")
    return toyhistory.interpreter(tmp_path_factory.mktemp("gpus") / "venv", without=without, files=files)


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [("0", "A100"), ("1,0", "H200"), ("GPU-bbbb", "H200"), ("GPU-aaaa,GPU-bbbb", "A100")],
)
def test_the_visible_gpu_is_described(history, gpus, visible, gpu):
    """By index or UUID; NVML, which does not heed the variable, would say A100 each time."""
    run = asv(history, "machine", "--yes", python=gpus, CUDA_VISIBLE_DEVICES=visible)
    assert run.returncode == 0, run.stdout + run.stderr
    memory = {"A100": "79 GB", "H200": "140 GB"}[gpu]
    assert f"gpu: NVIDIA {gpu}" in run.stdout and f"gpu_memory: {memory}" in run.stdout
    assert "aaaa" not in run.stdout and "bbbb" not in run.stdout


def test_a_new_driver_or_cudnn_is_noted_and_splits_no_series(history, gpus):
    for commits, driver in (("v3^!", "580.65.06"), ("v4^!", "590.10")):
        fake = {"FAKE_DRIVER": driver, "FAKE_CUDNN": {"580.65.06": "91900", "590.10": "92001"}[driver]}
        run = asv(history, "run", commits, python=gpus, CUDA_VISIBLE_DEVICES="1", **fake)
        assert run.returncode == 0, run.stdout + run.stderr

    folder = history / "results/asv/nvidia-h200"
    files = {git(history, "describe", "--tags", p.name[:8]): p for p in folder.glob("????????-*.json")}
    (params,) = {json.dumps(json.loads(path.read_text())["params"]) for path in files.values()}
    assert "580" not in params and platform.release() not in params
    assert not any(
        "9.19.0" in text or "cudnn" in text for text in (params, *(path.name for path in files.values()))
    )
    notes = {tag: asvnotes.read_note(path) for tag, path in files.items()}
    assert {tag: note["driver"] for tag, note in notes.items()} == {"v3": "580.65.06", "v4": "590.10"}
    assert {note["kernel_release"] for note in notes.values()} == {platform.release()}
    conditions = [asvnotes.find_conditions(notes[tag], STEP) for tag in ("v3", "v4")]
    assert asvnotes.list_excuses(*conditions) == (
        "driver 580.65.06 -> 590.10",
        "cuDNN 9.19.0 -> 9.20.1",
    )

    # One series on the page, and asv takes no note for a result.
    for command in (("publish",), ("update",), ("show", "v4")):
        run = asv(history, *command, python=gpus, CUDA_VISIBLE_DEVICES="1")
        assert "notes" not in run.stdout + run.stderr and "Traceback" not in run.stderr
    index = json.loads((history / ".asv/html/asv/index.json").read_text())
    assert len(index["graph_param_list"]) == 1 and len(index["revision_to_hash"]) >= 2


# --- notes ----------------------------------------------------------------------------------------------------------


def note(commit: str = "a" * 40, environment: str = LONG, **given) -> asvnotes.Note:
    conditions = {
        name: given.pop(name, default)
        for name, default in (("driver", "580"), ("cudnn", None), ("kernel_release", "6.1"))
    }
    return asvnotes.create_note(commit, environment, conditions, **given)


def changes(before, after, benchmark=None):
    return asvnotes.find_changes(*(asvnotes.find_conditions(each, benchmark) for each in (before, after)))


def test_what_was_measured_later_has_its_own_driver(tmp_path):
    result = tmp_path / f"{'a' * 8}-{LONG}.json"
    asvnotes.add_note(result, note(benchmarks=["early"]))
    asvnotes.add_note(result, note(benchmarks=["late"], driver="590", choices={"s": ["fused_act: tile 128"]}))
    path = asvnotes.add_note(result, note(benchmarks=["again"], driver="590"))
    assert path == tmp_path / "notes" / result.name and [p.name for p in path.parent.iterdir()] == [path.name]
    both, newer = asvnotes.read_note(result), note(driver="590", benchmarks=["early", "late"])
    assert both["driver"] == "590" and both["choices"] == {"s": ["fused_act: tile 128"]}
    assert both["environment"] == LONG
    assert changes(both, newer, "early") == {"driver": "580 -> 590"}
    assert changes(both, newer, "late") == {} == changes(both, newer)
