"""The cache hints that Triton writes for the kernels that walk over planes, read from their PTX for an H200."""

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.exhaustive  # twelve kernels of each type are compiled

ROOT = Path(__file__).parents[2]
DTYPES = ["bfloat16", "float32"]
PIPELINES = {"ahead": (3, 3), "again as it comes": (3, 1), "as they come": (1, 1)}


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """{(direction, dtype, pipeline, hints): how often each instruction on global memory of 16 bytes is there}."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__, *DTYPES], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {tuple(key): collections.Counter(found) for key, found in json.loads(done.stdout)}


def every_kernel(test):
    test = pytest.mark.parametrize("dtype", DTYPES)(test)
    return pytest.mark.parametrize("direction", ["forward", "backward"])(test)


def marked(found: collections.Counter, kind: str, policy: str) -> int:
    return sum(n for name, n in found.items() if name.startswith(kind) and f"L1::{policy}.L2::cache" in name)


@pytest.mark.timeout(300)
@every_kernel
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_hints_leave_pipeline_and_vectors_as_they_are(direction, dtype, pipeline, code):
    hints, plain = (code[direction, dtype, pipeline, hints] for hints in (True, False))
    for kind in ("cp.async", "ld.global", "st.global"):
        counts = [sum(n for name, n in found.items() if name.startswith(kind)) for found in (hints, plain)]
        assert counts[0] == counts[1], kind
    assert any(name.startswith("cp.async") for name in plain) == (PIPELINES[pipeline][0] > 1)
    assert not any("evict" in name for name in plain)


@every_kernel
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_is_written_is_the_first_to_go(direction, dtype, pipeline, code):
    found = code[direction, dtype, pipeline, True]
    written = sum(n for name, n in found.items() if name.startswith("st.global"))
    assert marked(found, "st.global", "evict_first") == written > 0


@every_kernel
def test_what_is_read_is_marked_where_it_is_not_fetched_ahead(direction, dtype, code):
    """`cp.async` could carry a mark, and may in another Triton; then the table is to be tuned again."""
    ahead, again, never = (code[direction, dtype, pipeline, True] for pipeline in PIPELINES)
    assert [marked(found, "ld.global", "evict_last") > 0 for found in (ahead, again, never)] == [
        False,
        False,
        True,
    ]
    assert [marked(found, "ld.global", "evict_first") > 0 for found in (ahead, again, never)] == [
        False,
        True,
        True,
    ]
    assert not any("cache_hint" in name for name in ahead if name.startswith("cp.async"))
    assert marked(never, "ld.global", "evict_last") == marked(never, "ld.global", "evict_first")


# ---- the other process -------------------------------------------------------------------------------------------


def main(*dtypes: str) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from kernels.norm import instance_norm_act_planes as planes
    from tests.support.compiling import record_launches, source

    launches, found = record_launches(), []
    for dtype in [getattr(torch, name) for name in dtypes]:
        for name, pipeline in PIPELINES.items():
            for hints in (True, False):
                how = planes.Walk(132, 8192, 16, *pipeline, hints, hints)  # and backwards
                x, style = torch.zeros(2, 64, 64, 128, dtype=dtype), torch.zeros(2, 64)
                launches.clear()
                planes.forward(x, style, style, None, None, 1e-5, 0.2, 1.4, dtype, how)
                needs = (True, True, True, False)
                planes.backward(x, x, None, None, style, style, style, style, 0.2, 1.4, needs, how)
                for direction, (kernel, arguments) in zip(("forward", "backward"), launches, strict=True):
                    options = {"num_warps": arguments["num_warps"]}
                    target = GPUTarget("cuda", 90, 32)
                    ptx = triton.compile(source(kernel, arguments), target=target, options=options).asm["ptx"]
                    key = (direction, str(dtype)[6:], name, hints)
                    found.append((key, collections.Counter(wide(ptx))))
    json.dump(found, sys.stdout)


def wide(ptx: str) -> list[str]:
    """Instructions on global memory that take 16 bytes a thread, a copy to shared memory with its operands."""
    copies = re.findall(r"(cp\.async\.c[ag]\.shared\.global\S*) [^;]*?(0x10\b[^;]*);", ptx)
    copies = [re.sub(r"%\w+", "", f"{name} {rest}") for name, rest in copies]
    return copies + re.findall(r"((?:ld|st)\.global\S*\.v4\.b32)\b", ptx)


if __name__ == "__main__":
    main(*sys.argv[1:])
