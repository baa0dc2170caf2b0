"""The house rules that no other test would notice: who imports whom, what the lock pins, what the documents name."""

import ast
import functools
import os
import platform
import re
import sys
from pathlib import Path

import pytest

from ladder.core import git
from tests.support import committed, house, plant

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("kernels", "stylegan_lite", "ladder", "benches", "tests")  # each may import those before it


def tracked() -> list[Path]:
    """Files that git knows or would take, without the results of whoever measures in this checkout."""
    if git.find_problem(ROOT):
        pytest.skip("not a git checkout")
    names = git.read_output(ROOT, "ls-files", "--cached", "-z").split("\0")
    new = git.read_output(
        ROOT, "ls-files", "--others", "--exclude-standard", "-z", "--", *FLOORS, "docs"
    ).split("\0")
    return [path for path in (ROOT / name for name in names + new if name) if path.is_file()]


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Top-level packages that a file imports anywhere, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(path.relative_to(ROOT).parts[0] if node.level else (node.module or "").split(".")[0])
    return frozenset(names)


@pytest.mark.parametrize("floor", range(len(FLOORS) - 1))
def test_imports_go_down_only(floor):
    above = set(FLOORS[floor + 1 :])
    for path in sorted((ROOT / FLOORS[floor]).rglob("*.py")):
        assert not imported(path) & above, f"{path.relative_to(ROOT)} imports from a floor above it"


def test_only_the_ladder_and_the_floors_above_it_plot_or_measure():
    """The measured packages stay free of what measures: an old commit is timed by today's tools only."""
    measuring = {"asv", "asv_runner", "matplotlib", "pynvml", "rich", "click"}
    for floor in FLOORS[:2]:
        for path in (ROOT / floor).rglob("*.py"):
            assert not imported(path) & measuring, path.relative_to(ROOT)


def test_no_private_paths_or_host_names_in_tracked_files():
    private = [str(ROOT) + "/", str(Path.home()) + "/", sys.prefix + "/"]
    host = re.compile(rf"\b{re.escape(platform.node())}\b") if len(platform.node()) > 4 else None
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for word in private:
            assert word not in text, f"{path.relative_to(ROOT)} names {word}"
        assert not (host and host.search(text)), f"{path.relative_to(ROOT)} names this host"


# --- the lock -------------------------------------------------------------------------------------------------------

PIN = re.compile(
    r'([A-Za-z0-9_.-]+)==([0-9][\w.]*)(?: ; (?:python_version (?:<|>=) "3\.\d+"|platform_system == "Linux"))?'
)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> list[tuple[str, str, str]]:
    """(name, version, the whole line) of each pin."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = []
    for line in lines:
        if line and not line.startswith("#"):
            match = PIN.fullmatch(line)
            assert match, f"requirements.lock: not a plain pin: {line}"
            pins.append((_normal(match[1]), match[2], line))
    return pins


def test_the_lock_pins_torch_and_leaves_its_build_to_the_machine():
    pins = {name: version for name, version, _ in locked()}
    assert pins["torch"] == "2.13.0" and pins["triton"] == "3.7.1"
    assert pins["asv"] == "0.6.6" and pins["asv-runner"] == "0.3.2"
    cuda = [name for name in pins if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"]
    assert not cuda, f"{cuda} belong to a CUDA build of torch; a CPU machine must not download them"


def test_the_lock_has_one_version_for_each_python():
    lines = [line for _, _, line in locked()]
    for name in {name for name, _, _ in locked()}:
        mine = [line for n, _, line in locked() if n == name]
        markers = [line.partition(" ; ")[2] for line in mine]
        assert len(mine) == 1 or sorted(markers) == ['python_version < "3.11"', 'python_version >= "3.11"'], (
            mine
        )
    assert len(lines) == len(set(lines))


def test_the_lock_has_everything_that_the_project_asks_for():
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)[1]
    asked = {_normal(name) for name in re.findall(r'^\s*"([A-Za-z0-9_.-]+)', block, re.MULTILINE)}
    assert asked and asked <= {name for name, _, _ in locked()}


def test_every_third_party_import_is_a_declared_dependency():
    named = {"yaml": "pyyaml", "PIL": "pillow", "skimage": "scikit-image", "pynvml": "nvidia-ml-py"}
    known = {name for name, _, _ in locked()} | {
        "torchvision"
    }  # of gpu_decode alone, which says how to get it
    for floor in FLOORS:
        for path in (ROOT / floor).rglob("*.py"):
            for name in imported(path) - set(sys.stdlib_module_names) - set(FLOORS) - {"conftest"}:
                assert _normal(named.get(name, name)) in known, f"{path.relative_to(ROOT)} imports {name}"


# --- documents and commands -----------------------------------------------------------------------------------------

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)


def _is_there(path: Path) -> bool:
    """In this checkout, or a committed result that somebody removed from it."""
    return path.exists() or committed.file(os.path.relpath(path, ROOT)).exists()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_only_files_that_exist(document):
    """Links and pictures, and `paths/in/code` that begin with a folder of ours."""
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r"(?:src|href|srcset)=\"([^\"#]+)", text)
    missing = [link for link in links if "://" not in link and not _is_there(path.parent / link)]
    for code in re.findall(r"`([\w.-]+/[\w./-]*)`", text):
        if "NAME" in code or code.startswith(("results/", ".asv/")):
            continue  # made by whoever reads this
        folder = code.split("/")[0]  # of which .cache is made by whoever builds or measures
        if folder != ".cache" and (ROOT / folder).is_dir() and not (ROOT / code).exists():
            missing.append(code)
    assert not missing, f"{document} names {missing}"


def test_no_figure_of_the_code_is_beyond_its_budget(capsys):
    assert house.main() == 0, capsys.readouterr().out


def test_every_planted_bug_has_its_place_and_its_tests():
    assert plant.list_bad_anchors(plant.ROOT, plant.read_bugs(plant.ROOT)) == []
