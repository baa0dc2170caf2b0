"""Every kernel compiles, without a GPU, for every GPU generation in use, fits its shared memory, sums as one.

`make test` compiles for one of them, in few configurations; `make test-all` for all.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from kernels import choices
from tests.support import compiling
from tests.support.compiling import FULLY, SHARED_KIB
from tests.support.programs import end_with_parent

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_every_kernel_compiles_and_fits(cache):
    """In short strips, both dtypes of a step and both memory formats: half a minute on a core of its own."""
    assert_compiled(in_others(cache, ["few"]))


@pytest.mark.exhaustive
@pytest.mark.timeout(1300)  # three minutes on a core that has nothing else to do
def test_every_kernel_compiles_and_fits_in_every_configuration(cache):
    every = sorted(map(str, SHARED_KIB), key=lambda each: each != "90")
    first = every if len(FULLY) == 1 else ["80", "90", "100"]  # as long as all others
    rest = [each for each in every if each not in first]
    found = in_others(cache, first, *[rest] * bool(rest))
    assert_compiled(found)
    used = {choices.Key(*row) for each in found for row in each["rows"]}
    assert used == set(choices.TABLE)  # no row that the calls below do not come to


def in_others(cache: Path, *arguments: list[str]) -> list[dict]:
    """Return the answers of new processes, one for each list of arguments. This process may have the interpreter on."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes |= {"preexec_fn": end_with_parent}
    others = [
        subprocess.Popen([sys.executable, compiling.__file__, *each], env=env, **pipes) for each in arguments
    ]
    found = []
    for other in others:
        out, err = other.communicate(timeout=1250)
        assert other.returncode == 0, err[-3000:]
        found.append(json.loads(out))
    return found


def assert_compiled(found: list[dict]) -> None:
    compiled = [row for each in found for row in each["compiled"]]
    assert {name for name, *_ in compiled} == jit_kernels()
    for name, capability, shared_bytes, differing in compiled:
        where = f"{name} on sm_{capability}"
        assert not differing, f"{where}: a sum over lanes is another number in each: {differing[0]}"
        assert shared_bytes <= SHARED_KIB[capability] * 1024, where


def jit_kernels() -> set[str]:
    """The kernels that are there, by their source: whatever is launched is called <something>_kernel."""
    lines = (line for path in (ROOT / "kernels").rglob("*.py") for line in path.read_text().splitlines())
    return {line[4:].split("(")[0] for line in lines if line.startswith("def ") and "_kernel(" in line}


def test_no_kernel_has_a_default_that_an_older_triton_cannot_pass_on():
    """Triton 3.6 hands a default on as it stands, and knows no text: `EVICT=""` stopped every kernel that loads."""
    found = []
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(d) for d in node.decorator_list
            ):
                texts = [
                    d for d in node.args.defaults if isinstance(d, ast.Constant) and isinstance(d.value, str)
                ]
                found += [f"{path.name}: {node.name}" for _ in texts]
    assert not found
