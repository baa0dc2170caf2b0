"""Building CUDA C++: what names a build, what is said where there can be none, and what then computes in its place."""

import ctypes
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import torch

import kernels
from kernels import cuda
from kernels.cuda import build, calls
from tests.support import cuda_on_cpu

SOURCE = re.compile(r'call\(\s*"(\w+)"|_act\("(\w+)"|_branch\("(\w+)"|_sum\("(\w+)"|_copy\("(\w+)"')
torch.set_num_threads(1)


@pytest.fixture
def with_gpu(monkeypatch, tmp_path):
    """Pretend that there are a GPU, nvcc and ninja, and an empty folder for builds."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=0: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(build, "nvcc", lambda: "/usr/bin/nvcc")
    monkeypatch.setattr(build, "compiler", lambda: "release 13.0")
    monkeypatch.setattr(build.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    build._library.cache_clear()
    yield tmp_path
    build._library.cache_clear()


def test_whatever_changes_the_machine_code_changes_the_name(monkeypatch, tmp_path):
    names = {
        build.key(flags, architecture, compiler)
        for flags in (cuda.Flags(), cuda.Flags(fast_math=True), cuda.Flags(max_threads=256, min_blocks=4))
        for architecture in (80, 90)
        for compiler in ("release 12.9", "release 13.0")
    }
    assert len(names) == 12 and all(re.fullmatch(r"ladder_cuda_[0-9a-f]{16}", name) for name in names)
    before = build.key(cuda.Flags(), 90, "")
    assert before == build.key(cuda.Flags(), 90, "")
    for name in ("copy.cu", "common.cuh"):  # a header is part of every source that includes it
        folder = shutil.copytree(build.HERE, tmp_path / name)
        (folder / name).write_text((folder / name).read_text() + "// changed\n")
        monkeypatch.setattr(build, "HERE", folder)
        assert build.key(cuda.Flags(), 90, "") != before


def test_every_exported_function_is_known_and_every_called_one_is_exported():
    exported = {n for path in build.sources() for n in re.findall(r'extern "C" int (\w+)', path.read_text())}
    assert exported == calls.signatures().keys()
    text = "".join(path.read_text() for path in build.HERE.glob("*.py"))
    called = {name for found in SOURCE.findall(text) for name in found if name}
    assert called == {n for n in exported if not n.endswith("_kernels") and n != "error_text"}


@pytest.mark.parametrize(
    ("module", "name", "value", "said"),
    [
        (build, "nvcc", None, "nvcc, which was not found: install the CUDA toolkit 13.0"),
        (shutil, "which", None, "pip install ninja"),
        (torch.cuda, "get_device_capability", (6, 1), "this GPU has 6.1"),
        (torch.cuda, "is_available", False, "CUDA C++ needs a CUDA GPU that PyTorch can use"),
    ],
)
def test_what_is_missing_is_said_in_one_line(module, name, value, said, with_gpu, monkeypatch):
    assert cuda.available() is None
    monkeypatch.setattr(module, name, lambda *_, **__: value)
    assert said in cuda.available() and "\n" not in cuda.available()


def test_a_build_that_fails_says_the_compilers_line_and_is_not_tried_again(with_gpu, monkeypatch):
    tried, line = [], 'copy.cu(7): error: identifier "x" is undefined'

    def load(*args, **how):
        tried.append(args)
        first = "Error building extension 'k': [1/8] nvcc -O3 ..."
        raise RuntimeError(f"{first}\n{build.HERE}/{line}\n1 error detected\nninja: stopped")

    monkeypatch.setattr("torch.utils.cpp_extension.load", load)
    for _ in range(3):
        with pytest.raises(cuda.Unavailable) as error:
            build.library(cuda.Flags(), 0)
        assert str(error.value) == f"CUDA C++ could not be built: kernels/cuda/{line}"
    assert len(tried) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_build_is_made_once_for_each_set_of_flags_and_survives_a_killed_one(with_gpu, monkeypatch):
    """torch's builder leaves a file named `lock` when it is killed, and waits for ever for the one that it finds."""
    made, loads = cuda_on_cpu.compile_sources()._name, []

    def load(name, sources, extra_cuda_cflags, build_directory, **how):
        assert not (with_gpu / name / "lock").exists()
        loads.append(extra_cuda_cflags)
        shutil.copy(made, f"{build_directory}/{name}.so")

    monkeypatch.setattr("torch.utils.cpp_extension.load", load)
    folder = with_gpu / build.key(cuda.Flags(), 90, "release 13.0")
    folder.mkdir()
    (folder / "lock").touch()
    for flags in (cuda.Flags(), cuda.Flags(), cuda.Flags(fast_math=True)):
        assert isinstance(build.library(flags, 0), ctypes.CDLL)
        build._library.cache_clear()  # as another process would
    assert ["--use_fast_math" in flags for flags in loads] == [False, True]
    assert all("-gencode=arch=compute_90,code=sm_90" in flags for flags in loads)


@pytest.mark.parametrize(
    ("reason", "name"), [(None, "Triton's kernel"), ("no Triton", "the plain PyTorch reference")]
)
def test_without_kernels_the_op_still_works_and_says_so_once(reason, name, monkeypatch):
    if reason is None and (kernels.available() is not None or not kernels.common.tiles.INTERPRETED):
        pytest.skip("Triton's kernel cannot take a CPU tensor")
    module = sys.modules["kernels.cuda.instance_norm_act"]
    monkeypatch.setattr(module, "_said", set())
    monkeypatch.setattr(module, "available", lambda: reason)
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    scale, bias = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True).unbind()
    with pytest.warns(UserWarning, match="needs a CUDA tensor, got one on cpu; " + name):
        y = cuda.instance_norm_act(x, scale, bias)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuda.instance_norm_act(x, scale, bias)
    want = cuda.instance_norm_act_reference(x, scale, bias)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(*(torch.autograd.grad(each.sum(), x) for each in (y, want)))


def test_a_pair_says_why_it_cannot_run():
    with pytest.raises(ValueError, match="need a CUDA tensor, got one on cpu"):
        cuda.strided_act(torch.zeros(1, 2, 3))
    if not torch.cuda.is_available():
        for run in (cuda.resources, cuda.empty):
            with pytest.raises(cuda.Unavailable, match="needs a CUDA GPU"):
                run()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", [80, pytest.param(120, marks=pytest.mark.exhaustive)])
def test_the_sources_compile_for_the_oldest_and_the_newest_without_a_warning(architecture, tmp_path):
    """All in one file, hardly optimized: what is asked is whether they are CUDA C++ for it."""
    every = tmp_path / "every.cu"
    every.write_text("".join(f'#include "{path}"\n' for path in build.sources()))
    # those of torch.utils.cpp_extension, which switch the operators of 16-bit types off
    names = ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
    options = "-Xcicc -O1 -Xptxas -O0 -Xcompiler -Wall -fatbin -o".split()
    arguments = [f"-gencode=arch=compute_{architecture},code=sm_{architecture}", *cuda.Flags().nvcc()]
    arguments += [f"-D__CUDA_NO_{name}__" for name in names]
    found = subprocess.run(
        ["nvcc", *arguments, *options, tmp_path / "out", every], capture_output=True, text=True
    )
    assert found.returncode == 0 and "warning" not in found.stderr, found.stderr
