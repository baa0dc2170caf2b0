"""Training on several ranks: one rank's files, resuming with another number of ranks, stops and kills, torchrun."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from PIL import Image

from ladder.core.paths import ROOT
from ladder.images.prepare import ImageSet
from ladder.training import checkpoint
from ladder.training.ranks import Ranks
from ladder.training.train import Settings, follow_training, train_model
from tests.support import process_groups
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"batch": 8, "pl_interval": 2, "r1_interval": 4}
FP64 = {"precision": "fp64"}
COUNT = 22  # images: an epoch of two batches, and six images left out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for index in range(COUNT):
        pixels = generator.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:06d}.jpg", quality=90)
    return ImageSet(str(folder), COUNT, "user-images", [])


def go(
    images: ImageSet, out: Path, steps: int, ranks: Ranks | None = None, resume: Path | None = None
) -> None:
    recipe = FP64 if ranks is None else ranks.adapt_recipe(FP64)
    settings = Settings(out, "cpu", steps, 7, resume, log_every=1, sample_every=1000)
    if ranks is None or ranks.is_writer:
        train_model(WORKLOAD, recipe, images, settings, ranks=ranks)
    else:
        follow_training(WORKLOAD, recipe, images, settings, ranks)


def stop_once_it_trains(out: Path) -> None:
    """Send this process SIGTERM after the first steps, when its handler is in place."""
    log = out / "losses.jsonl"
    while not log.exists() or log.read_text().count("\n") < 2:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)


def on_two_ranks(images: ImageSet, folder: Path) -> int:
    """Train five steps on two ranks, go on after three steps of one process, and stop where rank 1 is told to."""
    ranks = Ranks(dist.get_rank(), 2, dist.get_rank(), dist.group.WORLD)
    go(images, folder / "two", 5, ranks)
    go(images, folder / "one, then two", 5, ranks, folder / "one" / "checkpoint.pt")
    if ranks.rank == 1:
        threading.Thread(target=stop_once_it_trains, args=(folder / "stopped",), daemon=True).start()
    try:
        go(images, folder / "stopped", 100_000, ranks)
    except KeyboardInterrupt:
        return 130
    return 0


@pytest.fixture(scope="module")
def trained(images: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trainings of two ranks, beside those of one process."""
    folder = tmp_path_factory.mktemp("trainings")
    torch.set_num_threads(1)
    go(images, folder / "one", 3)
    assert process_groups.run(on_two_ranks, 2, images, folder) == [130, 130]
    go(images, folder / "whole", 5)
    (folder / "two, then one").mkdir()
    go(images, folder / "two, then one", 8, resume=folder / "two" / "checkpoint.pt")
    go(images, folder / "longer", 8)
    return folder


def state(folder: Path) -> dict[str, Any]:
    return dict(checkpoint.load_checkpoint(folder / "checkpoint.pt")["state"])


@pytest.mark.parametrize(
    ("several", "one"), [("two", "whole"), ("one, then two", "whole"), ("two, then one", "longer")]
)
def test_any_number_of_ranks_trains_and_resumes_as_one_process(several, one, trained):
    mine, theirs = state(trained / several), state(trained / one)
    assert mine["count"] == theirs["count"] and mine["data"] == theirs["data"]
    assert torch.equal(mine["rng"], theirs["rng"])
    for network in ("G", "D", "G_ema"):
        for name, value in theirs[network].items():
            assert torch.allclose(mine[network][name], value, rtol=1e-8, atol=1e-12), name


def test_only_one_rank_writes_and_its_losses_are_those_of_the_total_batch(trained):
    both = [json.loads(line) for line in (trained / "two" / "losses.jsonl").read_text().splitlines()]
    alone = [json.loads(line) for line in (trained / "whole" / "losses.jsonl").read_text().splitlines()]
    assert [line["images"] for line in both] == [8, 16, 24, 32, 40]
    for mine, theirs in zip(both, alone, strict=True):
        assert mine["D_main"] == pytest.approx(theirs["D_main"], rel=1e-6)
    assert {path.name for path in (trained / "two").iterdir()} == {
        "checkpoint.pt",
        "losses.jsonl",
        "samples-000005.png",
    }


def test_all_ranks_stop_after_the_step_in_which_one_was_told_to(trained):
    stopped = state(trained / "stopped")
    assert 0 < stopped["count"] < 100_000  # both returned: no rank waits for the other


# torchrun itself


@pytest.fixture(scope="module")
def command(images: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("workload") / "little.yaml"
    path.write_text(yaml.safe_dump(WORKLOAD | {"data": images.path}))
    options = "--device cpu --log-every 1 --sample-every 2"
    return ["-m", "ladder", "train", "-w", str(path), *options.split()]


def torchrun(*arguments: str) -> subprocess.Popen[bytes]:
    asked = [sys.executable, "-m", "torch.distributed.run", *arguments]
    return subprocess.Popen(
        asked, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_nodes_of_one_host_train_together_and_another_number_resumes(command, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        out, port = tmp_path / "out", str(free.getsockname()[1])
    nodes = [
        torchrun("--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1", "--master-addr", "127.0.0.1",
                 "--master-port", port, *command, "--steps", "4", "--out", str(out))
        for rank in range(2)
    ]  # fmt: skip
    said = [node.communicate(timeout=300)[0].decode() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "2 ranks" in said[0] and "result:" in said[0] and "result:" not in said[1]
    resumed = torchrun("--standalone", "--nproc-per-node", "2", *command, "--steps", "6", "--out", str(out),
                       "--resume", str(out / "checkpoint.pt"))  # fmt: skip
    assert resumed.wait(timeout=300) == 0 and state(out)["count"] == 6
    alone = [
        sys.executable, *command, "--steps", "8", "--out", str(out), "--resume", str(out / "checkpoint.pt"),
    ]  # fmt: skip
    assert subprocess.run(alone, cwd=ROOT, timeout=300, capture_output=True, check=False).returncode == 0
    assert state(out)["count"] == 8


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_at_a_random_moment_ends_torchrun_and_tears_no_checkpoint(command, rank, tmp_path):
    out = tmp_path / "out"
    run = torchrun("--standalone", "--nproc-per-node", "2", *command, "--steps", "100000", "--out", str(out))
    try:
        deadline = time.monotonic() + 200
        while not (out / "checkpoint.pt").exists() and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.05)
        time.sleep(random.Random(rank).uniform(0, 1))
        ranks = children(run.pid)
        os.kill(ranks[rank], signal.SIGKILL)
        assert run.wait(timeout=90) != 0
    finally:
        run.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert state(out)["count"] > 0


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
