"""The system's errors (a full disk, a read-only folder) end a run with one line, and blame no rung."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ladder.core import errors, files
from ladder.core.errors import EnvironmentFailure, UserError
from ladder.engine import once, pool, timed_rung, worker
from tests.support.fake_runs import run, stored


def caused(line: str, by: OSError) -> Exception:
    try:
        raise ValueError(line) from by
    except ValueError as error:
        return error


FULL = OSError(errno.ENOSPC, "No space left on device", "/home/someone/.cache/parity/reference.pt")
SHARED = "DataLoader worker is killed: Bus error. You are out of shared memory."
LACKS = {
    FULL: "No space left on device: reference.pt",
    OSError(errno.EROFS, "x", "/srv/.cache/parity"): "Read-only file system: parity",
    PermissionError(errno.EACCES, "x", "/opt/.triton/cache"): "Permission denied: cache",
    OSError(errno.EMFILE, "x"): "Too many open files",
    OSError(errno.EDQUOT, "x"): os.strerror(errno.EDQUOT),
    caused("recipe: cached_images: 1 GB cannot be written", FULL): "No space left on device: reference.pt",
    RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 512 vs 406"): "No space left",
    RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"): "No space left",
    RuntimeError("InductorError: OSError: [Errno 28] No space left on device"): "No space left on device",
    RuntimeError(
        SHARED
    ): "No space left on device: shared memory is full; in a container start it with --shm-size=2g",
    RuntimeError("can't start new thread"): os.strerror(errno.EAGAIN),
}
RUNG = type("Rung", (), {"memory": lambda self: {}})


@pytest.mark.parametrize("error", LACKS, ids=str)
def test_what_the_system_lacks_is_told_from_what_a_rung_does_wrong(error: Exception) -> None:
    line = errors.of_environment(error)
    assert line.startswith(LACKS[error]) and "/" not in line.split(": ")[0] and "someone" not in line
    reply = worker.make_failure(error, "parity", RUNG())
    assert (reply["ok"], reply["status"]) == (False, pool.ENVIRONMENT) and LACKS[error] in reply["reason"]


@pytest.mark.parametrize(
    "error, status",
    [
        (RuntimeError("weight is wrong"), "failed"),
        (FileNotFoundError(errno.ENOENT, "No such file", "kernel.cu"), "failed"),
        (timed_rung.Invalid("NaN"), "invalid"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"), "oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom"),  # it may be the rung that takes it
    ],
)
def test_what_a_rung_does_wrong_stays_the_rungs(error, status):
    assert errors.of_environment(error) is None
    assert worker.make_failure(error, "build", RUNG())["status"] == status


def fails_once_full(monkeypatch: pytest.MonkeyPatch, do: str, calls: int, what: Exception) -> None:
    """The worker's command raises from this call on."""
    real, seen = pool.Worker.call, []

    def call(self: pool.Worker, asked: str, **more: Any) -> dict[str, Any]:
        seen.extend([asked] * (asked == do))
        if len(seen) >= calls and asked == do:
            raise what
        return real(self, asked, **more)

    monkeypatch.setattr(pool.Worker, "call", call)


def test_a_disk_that_fills_up_ends_the_run_and_no_rung_has_a_verdict_for_it(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        fails_once_full(full, "prepare", 4, EnvironmentFailure("No space left on device: x (prepare)"))
        with pytest.raises(UserError) as refusal:
            run(tmp_path, {"a": {}, "b": {}}, rounds=2)
    line = str(refusal.value)
    assert (
        line.startswith("No space left on device: x (prepare); what was finished is kept")
        and "\n" not in line
    )
    (path,) = tmp_path.glob("*/*.json")
    assert f"--resume {path}" in line
    result = stored(tmp_path)
    assert not result["complete"] and sum(len(rung["rounds"]) for rung in result["rungs"]) >= 1
    assert {rung["status"] for rung in result["rungs"]} <= {"ok", "n/a"}
    gone_on = run(tmp_path, {"a": {}, "b": {}}, rounds=2, resume=path)
    assert gone_on["complete"] and [len(rung["rounds"]) for rung in gone_on["rungs"]] == [2, 2]
    assert not any("No space" in note for note in gone_on["protocol"]["notes"])


def test_a_real_worker_tells_a_full_disk_from_a_broken_rung(tmp_path):
    code = tmp_path / "code" / "stylegan_lite"
    code.mkdir(parents=True)
    (code / "__init__.py").write_text(
        "CONTRACT = 1\ndef make_step(*_, **__): raise OSError(28, 'No space left on device', '/a/b/c.pt')\n"
    )
    with pytest.raises(EnvironmentFailure, match=r"^No space left on device: c.pt \(build\)$"):
        once.measure_once({}, {}, "cpu", 1, code=code.parent)


# --- caches of a checkout that cannot be written --------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A checkout in which `os.access` allows no writing, as a read-only mount does even to root."""
    (tmp_path / "checkout" / ".cache").mkdir(parents=True)
    real = os.access

    def access(path: Path, mode: int) -> bool:
        return tmp_path / "checkout" not in (Path(path), *Path(path).parents) and real(path, mode)

    monkeypatch.setattr(files, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(os, "access", access)
    files._own_cache.cache_clear()
    yield tmp_path
    files._own_cache.cache_clear()


def test_caches_of_a_read_only_checkout_are_the_users(read_only, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only / "home"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    assert files.cache_folder("parity") == read_only / "home" / "stylegan-ladder" / "parity"
    assert files.cache_variables()["TORCH_EXTENSIONS_DIR"].startswith(str(read_only / "home"))
