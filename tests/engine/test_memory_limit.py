"""`ladder run --gpu-memory`: every process is held to a smaller card, and its result stands beside no other."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from ladder.cli import climb
from ladder.core.errors import UserError
from ladder.engine import inspection, rounds, timed_rung
from ladder.engine.channel import Nobody
from ladder.engine.pool import Worker
from ladder.engine.timed_rung import Rung
from ladder.engine.worker import make_failure
from ladder.publish import gallery
from ladder.results import publishable, ranking
from ladder.results.combine import comparing, merging, series
from tests.cli.test_cli import call
from tests.engine.test_inspecting import asked
from tests.support import made_up, servers, typed
from tests.support.fake_runs import run
from tests.support.typed import write_run

answered = asked  # workers that answer their inspection
kept_servers = servers.kept_servers
GIB = 2**30


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int | None]]:
    """Return (whether it inspects, its bytes) of every process that is built. Fake steps have no GPU to limit."""
    seen: list[tuple[bool, int | None]] = []
    real = Worker.call

    def call_(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            seen.append((fields.get("keep_gradients", False), fields.pop("memory_limit", None)))
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call_)
    return seen


@pytest.mark.usefixtures("kept_servers", "answered")
@pytest.mark.parametrize("card", [24.0, None])
def test_inspectors_and_timed_processes_are_held_to_the_card(
    card: float | None, told: list, tmp_path: Path
) -> None:
    result = run(tmp_path / "out", {"a": {}, "b": {}}, inspect=True, gpu_memory_gb=card)
    limit = None if card is None else 23 * GIB  # a GiB is CUDA's own
    assert set(told) == {(True, limit), (False, limit)} and len(told) == 5
    assert result["protocol"].get("gpu_memory_limit_gb") == card
    (path,) = (tmp_path / "out").glob("*/*.json")
    assert ("-limited-" in path.name) == (card is not None)


def test_the_allocator_gets_the_share_of_the_gpu() -> None:
    shares: list[float] = []
    cuda = types.SimpleNamespace(
        current_device=lambda: 0,
        get_device_properties=lambda index: types.SimpleNamespace(total_memory=80 * GIB),
        set_per_process_memory_fraction=shares.append,
    )
    for limit in (20, 90):
        timed_rung.limit_memory(types.SimpleNamespace(cuda=cuda), limit * GIB)
    assert shares == [0.25, 1.0] and all(isinstance(each, float) for each in shares)  # PyTorch refuses an int
    assert rounds.allocatable_bytes(None) is None and rounds.allocatable_bytes(24) == 23 * GIB


def test_a_rung_that_passed_with_all_memory_is_inspected_anew(tmp_path: Path) -> None:
    whole, small = (inspection.Cache({}, {}, tmp_path, limit) for limit in (None, 23 * GIB))
    whole.put({}, {"inspection": {}, "parity": {}, "receipts": {}})
    assert whole.get({}) and small.get({}) is None


def limited(seed: int = 2, **more: float) -> dict[str, Any]:
    made = made_up.judged_run(seed=seed, **more)
    made["protocol"]["gpu_memory_limit_gb"] = 24.0
    return made


def test_a_limited_result_is_compared_merged_and_shown_with_no_other(tmp_path: Path) -> None:
    usual, small = typed.typed(made_up.judged_run(seed=1)), typed.typed(limited())
    (line,) = comparing.differences(usual, small)
    assert line == "protocol.gpu_memory_limit_gb: missing and 24.0"
    assert merging.list_differences(usual, small) == ["protocol.gpu_memory_limit_gb: missing and 24.0"]
    assert not comparing.differences(small, typed.typed(limited(seed=3)))
    assert series.key(usual) != series.key(small) and ranking.rank(usual) > ranking.rank(small)
    assert publishable.publishable(small) == [publishable.LIMITED] and not publishable.publishable(usual)
    assert gallery.name_files(small).endswith("-limited")
    for name, made in (("a", made_up.judged_run(seed=1)), ("b", limited())):
        write_run(tmp_path / f"{name}.json", made)
    for options in ((), ("--anyway",)):
        refused = call("compare", tmp_path / "a.json", tmp_path / "b.json", *options)
        assert refused.exit_code == 2 and "--gpu-memory" in refused.stderr


@pytest.mark.parametrize(
    ("device", "asked_for", "said"),
    [
        ("cpu", 24.0, "--gpu-memory simulates a smaller GPU, and this run is on the CPU: leave it out"),
        ("cuda", 80.0, "--gpu-memory 80: this GPU has 79.6 GiB: give less, or leave it out"),
        ("cuda", 24.0, None),
        ("cpu", None, None),
    ],
)
def test_a_card_that_cannot_be_simulated_here_is_refused_in_one_line(
    device: str, asked_for: float | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is None:
        climb.refuse_memory(asked_for, device, 79.6)
    else:
        with pytest.raises(UserError, match="^" + said.replace("(", r"\(") + "$"):
            climb.refuse_memory(asked_for, device, 79.6)


def test_a_run_goes_on_with_the_memory_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_run(path, limited())
    request = climb.Request(resume=path, out=tmp_path, ladder="article")
    assert climb.continue_request(request).gpu_memory == 24.0
    with pytest.raises(UserError, match="that run has another --gpu-memory; leave it out"):
        climb.continue_request(climb.replace(request, gpu_memory=16.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_more_than_the_card_holds_is_out_of_memory_and_less_is_not() -> None:
    try:
        timed_rung.limit_memory(torch, torch.cuda.memory_reserved() + 512 * 2**20)
        assert torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda").numel()
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(GIB, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert make_failure(caught.value, "prepare", Rung(None, Nobody()))["status"] == "oom"
