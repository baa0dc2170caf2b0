"""The measured code is the one that was asked for, whatever else is installed under the same names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ladder.core.paths import ROOT
from ladder.engine import timed_rung
from ladder.engine.pool import Pool, WorkerFailure

FAKE = ROOT / "tests" / "support" / "fake_code"
USES_KERNELS = "\nimport kernels\n"


@pytest.fixture
def old_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without `kernels`, and another `kernels` that is installed."""
    code, installed = tmp_path / "code", tmp_path / "installed"
    shutil.copytree(FAKE, code, ignore=shutil.ignore_patterns("__pycache__"))
    (installed / "kernels").mkdir(parents=True)
    (installed / "kernels" / "__init__.py").write_text("FOREIGN = True\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    return code


def reply(code: Path, *commands: tuple[str, dict]) -> str | None:
    """Why a worker refused to measure this code, or None."""
    with Pool(code=code, torch=False) as workers:
        try:
            worker = workers.take()
            for do, fields in commands:
                worker.call(do, **fields)
        except WorkerFailure as failure:
            return f"{failure.status}: {failure.reason}"
    return None


BUILD = ("build", {"workload": {}, "recipe": {}, "device": "cpu", "seed": 0})
PREPARE = ("prepare", {})


@pytest.mark.parametrize("place", ["import", "build", "prepare"])
def test_a_worker_refuses_kernels_of_another_checkout(place: str, old_commit: Path) -> None:
    """At whatever time the measured code imports it."""
    package = old_commit / "stylegan_lite" / "__init__.py"
    text = package.read_text()
    if place == "import":
        text += USES_KERNELS
    else:
        name = {"build": "def __init__(self", "prepare": "def prepare(self"}[place]
        head, _, tail = text.partition(name)
        signature, _, body = tail.partition(":\n")
        text = f"{head}{name}{signature}:\n        import kernels\n{body}"
        assert "import kernels" in text
    package.write_text(text)
    problem = "n/a: the measured code has no package kernels of its own: another was imported"
    assert reply(old_commit, BUILD, PREPARE) == problem
    (old_commit / "kernels").mkdir()
    (old_commit / "kernels" / "__init__.py").write_text("")
    assert reply(old_commit, BUILD, PREPARE) is None


def test_an_environment_inside_of_the_checkout_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI's `kernels` in `.venv` lies below the root, and is not the root's."""

    def of(**modules: Path) -> str | None:
        for name, file in modules.items():
            monkeypatch.setitem(sys.modules, name.replace("__", "."), SimpleNamespace(__file__=str(file)))
        return timed_rung.find_foreign(ROOT)

    for name in [name for name in sys.modules if name.partition(".")[0] in timed_rung.MEASURED]:
        monkeypatch.delitem(sys.modules, name)
    assert of(kernels=ROOT / "kernels" / "__init__.py") is None
    assert "no module kernels.common.tiles of" in of(
        kernels__common__tiles=ROOT.parent / "other" / "tiles.py"
    )
    for site in (ROOT / ".venv" / "lib" / "kernels" / "__init__.py", ROOT / "kernels.py"):
        assert "no package kernels of" in of(kernels=site)


@pytest.mark.parametrize("name", ["kernels", "stylegan_lite", "benches"])
def test_the_console_command_takes_the_checkouts_packages_before_installed_ones(
    name: str, tmp_path: Path
) -> None:
    """An editable installation stands at the end of the path, behind PyPI's `kernels`."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    code = f"import ladder.__main__ as command; command.starting.check_python(); import {name}; print({name}.__file__)"
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.stdout.strip() == str(ROOT / name / "__init__.py"), run.stderr


@pytest.mark.parametrize("name", ["kernels", "stylegan_lite"])
def test_asv_takes_the_measured_packages_from_the_commit_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "commit").mkdir()
    (tmp_path / "installed" / name).mkdir(parents=True)
    (tmp_path / "installed" / name / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'installed')!r}, {str(ROOT)!r}]\n"
        f"import benches\ntry:\n    import {name}\n    print({name}.__file__)\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )

    def said(**more: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    commit = tmp_path / "commit"
    assert said(LADDER_ASV_CODE=str(commit)) == f"this commit has no package {name}"
    (commit / name).mkdir()
    (commit / name / "__init__.py").write_text("")
    assert said(LADDER_ASV_CODE=str(commit)) == str(commit / name / "__init__.py")
    assert "installed" in said()  # asv's own process measures nothing
