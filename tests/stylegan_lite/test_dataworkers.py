"""Data workers where the system lacks something: they work all the same, or end; none waits for ever."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ladder.training import mishaps
from stylegan_lite.step import dataworkers


class Zeros(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(64, 64)


def batches(dataset: Dataset) -> int:
    loader = DataLoader(dataset, 4, num_workers=1, worker_init_fn=dataworkers.begin)
    found = dataworkers.started(loader)
    try:
        return sum(1 for _ in found)
    finally:
        found._shutdown_workers()  # or torch tells of their end whatever runs then


@pytest.fixture
def temporary(monkeypatch):
    """Sets the temporary folder, as TMPDIR does, of a process that has no sockets yet."""
    config = multiprocessing.current_process()._config
    monkeypatch.setitem(config, "tempdir", None)

    def set_to(folder: Path | str) -> dict:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return config

    return set_to


@pytest.fixture(autouse=True)
def no_waiting_for_ever():
    """Fail a test that hangs: hanging is the fault that this file is about."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for ever"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_long_temporary_folder_is_no_hindrance(temporary, tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    config = temporary(folder)
    assert batches(Zeros()) == 2
    assert len(os.fsencode(config["tempdir"])) + len("/listener-12345678") <= 107
    assert tempfile.gettempdir() == str(folder)  # for everything else it is as the user set it


def test_workers_that_cannot_be_started_are_one_error_without_noise(capfd):
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, before[1]))
    try:
        with pytest.raises(OSError) as error:
            batches(Zeros())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "too many open files" in mishaps.explain_mishap(error.value)
    error.value.__traceback__ = None
    assert "Exception ignored" not in capfd.readouterr().err
