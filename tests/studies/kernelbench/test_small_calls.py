"""The calls of `make sanitize` launch every kernel, and it says in a line where it cannot run."""

import pytest
import torch

from kernels import cuda
from kernels.cuda import calls
from ladder.receipts.watch import count_launches
from tests.kernels.test_kernels_compile import jit_kernels
from tests.support import programs, sanitize, small_calls
from tests.support.cuda_on_cpu import emulated
from tests.support.small_calls import NAMES


def test_where_it_cannot_run_it_says_so_in_one_line(tmp_path):
    nothing, there = tmp_path / "nothing", tmp_path / "there"
    there.mkdir()
    (there / "compute-sanitizer").write_text("#!/bin/sh\n")
    (there / "compute-sanitizer").chmod(0o755)
    commands = [[f"PATH={place}", "tests.support.sanitize"] for place in (nothing, there)]  # then no GPU
    for end in programs.run(*commands, CUDA_HOME=str(nothing), CUDA_VISIBLE_DEVICES=""):
        assert end.returncode == 2 and end.stderr.startswith("sanitize: ") and end.stderr.count("\n") == 1


@pytest.fixture
def small(monkeypatch):
    """Tiles of 16 elements: of a small map there are several, too."""
    pytest.importorskip("triton")
    from kernels.choices import Choice
    from kernels.common import tiles

    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=1))
    tiles.tiling.cache_clear()
    yield
    tiles.tiling.cache_clear()


def test_the_calls_launch_every_kernel(small):
    """In the interpreter, on one shape: which kernels run does not depend on it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seen = set(sanitize.launch(device, NAMES, [((2, 5, 3, 7), "contiguous_format", "float32")]))
    assert seen == jit_kernels() if device == "cpu" else seen >= jit_kernels()


def test_the_names_are_those_of_all_calls(monkeypatch):
    """A request for calls by name leaves none out."""
    monkeypatch.setattr(cuda, "available", lambda: None)
    every = set()
    for setting in sanitize.SETTINGS:
        x = sanitize.make_tensor("cpu", *setting)
        names = [call.name for call in small_calls.calls(x)]
        assert len(names) == len(set(names))
        every.update(names)
    every.update(call.name for call in small_calls.cuda_calls(x))
    assert every == set(NAMES) and len(set(NAMES)) == len(NAMES)


def test_every_kernel_in_cuda_is_launched(monkeypatch):
    """Every exported function but those that answer questions, in the emulation on a CPU."""
    monkeypatch.setattr(cuda, "available", lambda: None)
    with emulated(monkeypatch), count_launches() as seen:
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(2, 5, 3, 7).contiguous(memory_format=layout)
            for call in small_calls.cuda_calls(x):
                small_calls.differentiate_twice(call.function, call.inputs)
    asked = {name for name in calls.signatures() if name == "error_text" or name.endswith("_kernels")}
    assert set(calls.signatures()) - asked <= set(seen)
