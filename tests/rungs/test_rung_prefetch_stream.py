"""prefetch_stream: the loader's batches in its order, buffers that are filled after they were read, a receipt."""

import contextlib

import pytest
import torch

from stylegan_lite import Recipe, Workload
from stylegan_lite.data import DataFeed
from tests.support.rung_steps import gathered, receipt, small
from tests.support.small import SMALL

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def seen():
    return gathered(small())


class Streams:
    """CUDA's streams and events on a CPU: everything happens at once, and it is noted who waited for what."""

    def __init__(self, monkeypatch):
        self.log, self.on, log = [], "compute", self

        class Event:
            def record(self, stream=None):
                log.log.append(("record", id(self), log.on if stream is None else stream.name))

        class Stream:
            def __init__(self, name="side"):
                self.name = name

            def wait_event(self, event):
                log.log.append(("wait", id(event), self.name))

            def wait_stream(self, other):
                log.log.append(("wait", other.name, self.name))

        @contextlib.contextmanager
        def stream(chosen):
            before, self.on = self.on, chosen.name
            yield
            self.on = before

        for name, fake in (("Event", Event), ("Stream", Stream), ("stream", stream)):
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(self.on))


PREFETCH = Recipe(async_copy=True, uint8_input=True, prefetch_stream=True)


def feed(recipe, real=None):
    workload = Workload(**SMALL | {"batch": 8})
    real = torch.zeros(8, 3, 16, 16) if real is None else real
    return DataFeed(workload, recipe, real, seed=5)


def test_prefetched_batches_are_the_loader_s_in_its_order_over_epochs(monkeypatch):
    Streams(monkeypatch)
    plain, ahead = feed(Recipe()), feed(PREFETCH)
    for step in range(20):  # 8 batches an epoch
        plain.next()
        ahead.next()
        torch.testing.assert_close(ahead.real, plain.real)
        if step != 7:  # whoever runs no whole step never calls it
            ahead.prefetch()
            ahead.prefetch()  # twice is once
        torch.testing.assert_close(ahead.real, plain.real)  # the batch in use is left alone
        assert ahead.state_dict() == plain.state_dict()
    state = ahead.state_dict()
    plain.next()
    want = plain.real.clone()
    ahead.load_state_dict(state)
    ahead.next()
    torch.testing.assert_close(ahead.real, want)


def test_a_buffer_is_filled_after_it_was_read_and_read_after_it_was_filled(monkeypatch):
    streams = Streams(monkeypatch)
    ahead = feed(PREFETCH)
    read, copied = [id(e) for e in ahead.read], id(ahead.copied)
    assert streams.log == [("wait", "compute", "side")]
    for step in range(6):
        streams.log.clear()
        ahead.next()
        turn = ahead.turn
        staged = [] if step else [("wait", read[turn], "side"), ("record", copied, "side")]
        assert streams.log == [*staged, ("wait", copied, "compute"), ("record", read[turn], "compute")]
        streams.log.clear()
        ahead.prefetch()
        assert ahead.turn == 1 - turn and ahead.staged is ahead.buffers[ahead.turn]
        assert streams.log == [("wait", read[ahead.turn], "side"), ("record", copied, "side")]


def test_a_step_prefetches_once_its_phases_are_launched(monkeypatch):
    step, ran = small(), []
    monkeypatch.setattr(step, "run_phase", ran.append)
    monkeypatch.setattr(step.feed, "next", lambda: ran.append("next"))
    monkeypatch.setattr(step.feed, "prefetch", lambda: ran.append("prefetch"))
    step.step()
    assert ran == ["next", "G_main", "G_pl", "D_main", "D_r1", "prefetch"]


def test_prefetch_stream_shows_in_its_receipt(seen, refused):
    batch = {"to": "cuda", "non_blocking": True, "side_stream": True}
    data = seen["data"] | {"crossings": [batch], "operators": 1, "overlap": 0.9, "waiting_ms": 0.1}
    assert receipt("prefetch_stream", seen | {"data": data}).engaged
    for bad, what in (
        ({"operators": 4}, "the step normalizes the batch"),
        ({"crossings": []}, "no batch is copied"),
        ({"crossings": [batch | {"side_stream": False}]}, "batches are copied on the step's stream"),
    ):
        refused("prefetch_stream", seen | {"data": data | bad}, sabotage=what, planted="evidence")


@pytest.mark.gpu
def test_prefetched_batches_on_the_gpu_are_the_loader_s_while_the_gpu_is_busy():
    loading = {"workers": 1, "pin_memory": True, "async_copy": True, "uint8_input": True, "drop_last": True}
    plain, ahead = (
        feed(Recipe(**loading, prefetch_stream=on), torch.zeros(8, 3, 16, 16, device="cuda"))
        for on in (False, True)
    )
    for _ in range(40):
        torch.cuda._sleep(2_000_000)  # the buffers' readers are late
        for each in (plain, ahead):
            each.next()
        torch.testing.assert_close(ahead.real, plain.real)
        ahead.prefetch()
    for each in (plain, ahead):
        each.close()
