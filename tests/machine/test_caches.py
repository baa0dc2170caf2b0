"""Compilers' caches: cold ones for a process, and builds that no other commit finds."""

import os
import subprocess
import sys

from ladder.machine import caches


def seen_by_a_process(variable):
    code = f"import os; print(os.environ.get({variable!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def test_every_cache_is_elsewhere_for_processes_started_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "before")
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    with caches.set_variables(caches.point_into(tmp_path)):
        assert seen_by_a_process("TRITON_CACHE_DIR").startswith(str(tmp_path))
        assert len({os.environ[name] for name in caches.VARIABLES}) == len(caches.VARIABLES) == 4
        assert all(os.listdir(os.environ[name]) == [] for name in caches.VARIABLES)
    assert os.environ["TRITON_CACHE_DIR"] == "before" and "TORCH_EXTENSIONS_DIR" not in os.environ


def test_extensions_are_built_in_a_folder_for_each_state_of_their_sources(tmp_path):
    commits = [tmp_path / name for name in ("plain", "first", "second", "same")]
    for commit in commits:
        (commit / "kernels").mkdir(parents=True)
        (commit / "kernels" / "__init__.py").write_text(commit.name)
    for commit, text in zip(commits[1:], ("a", "b", "a"), strict=True):
        (commit / "kernels" / "act.cu").write_text(text)
    plain, first, second, same = (caches.choose_build_folder(commit, tmp_path) for commit in commits)
    assert plain == {}  # nothing to build: nothing set
    assert first == same != second and list(first) == ["TORCH_EXTENSIONS_DIR"]
