"""The clock of `ladder kernels`, on a made-up GPU whose queue, cache and launch times are known."""

import math
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from ladder.studies.kernelbench.bench import Bench
from ladder.studies.kernelbench.timing import COLD, HOT, Cpu, Cuda, Rules, Timer

GRAPH_LAUNCH, FLUSH = 12e-6, 40e-6  # seconds


class FakeEvent:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.gpu.host += 1e-6
        self.at = max(self.gpu.host, self.gpu.busy_until)

    def query(self):
        return self.at <= self.gpu.host

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


class FakeGpu:
    """Work runs in order, after the CPU has launched it; the cache keeps what was touched last."""

    name = "fake"

    def __init__(self, l2_bytes=50 * 2**20):
        self.l2_bytes, self.host, self.busy_until = l2_bytes, 0.0, 0.0
        self.cache, self.recording, self.captures = OrderedDict(), None, []

    def event(self):
        return FakeEvent(self)

    def flush(self):
        self.host += 5e-6
        self._run(FLUSH)
        self.touch("trash", 3 * self.l2_bytes)

    def synchronize(self):
        self.host = max(self.host, self.busy_until)

    def launch(self, work, host_s):
        self.host += host_s
        if self.recording is not None:
            self.recording.append(work)
        else:
            self._run(work())

    def _run(self, seconds):
        self.busy_until = max(self.host, self.busy_until) + seconds

    def touch(self, buffer, size):
        """True if the buffer was in the cache."""
        hit = self.cache.pop(buffer, None) is not None
        self.cache[buffer] = size
        while sum(self.cache.values()) > self.l2_bytes and len(self.cache) > 1:
            self.cache.popitem(last=False)
        if size > self.l2_bytes:
            self.cache.clear()
        return hit

    def capture(self, body):
        self.recording = works = []
        body()
        self.recording = None
        self.captures.append(len(works))

        def replay():
            self.host += GRAPH_LAUNCH
            for work in works:
                self._run(work())

        return SimpleNamespace(replay=replay)


def calls(gpu, size, cold_s, hot_s, sets, host_s=50e-6):
    """One call a set of buffers; slow where the set is not in the cache."""

    def call(number):
        return lambda: gpu.launch(lambda: hot_s if gpu.touch(number, size) else cold_s, host_s)

    return [call(number) for number in range(sets)]


@pytest.mark.parametrize("microseconds", [1.5, 3, 20, 60, 99])
@pytest.mark.parametrize("temperature", [COLD, HOT])
def test_short_calls_come_back_with_their_length_cold_and_hot(microseconds, temperature):
    gpu = FakeGpu()
    timer, size, cold, hot = Timer(gpu), 8 * 2**20, microseconds * 1e-6, 0.4e-6 * microseconds
    made = calls(gpu, size, cold, hot, timer.sets(size, temperature))
    seconds, n = timer.graph(made)
    assert seconds == pytest.approx(cold if temperature == COLD else hot, rel=0.005)
    lasting = timer.rules.replays * n * seconds
    assert lasting >= timer.rules.graph_s or n == timer.rules.most_calls
    assert n % len(made) == 0  # every set equally often


@pytest.mark.parametrize("host_us", [5, 300, 2000])
@pytest.mark.parametrize("temperature", [COLD, HOT])
def test_long_calls_do_not_contain_the_launching(host_us, temperature):
    """The CPU takes longer to launch a call than the GPU to run it: what is queued before must cover that."""
    gpu = FakeGpu()
    timer, size = Timer(gpu), 40 * 2**20
    made = calls(gpu, size, 200e-6, 120e-6, timer.sets(size, temperature), host_us * 1e-6)
    seconds = timer.events(made, temperature)
    assert seconds == pytest.approx(200e-6 if temperature == COLD else 120e-6, rel=0.02)


def test_a_call_that_the_cpu_can_never_launch_in_time_has_no_time():
    gpu = FakeGpu()
    made = calls(gpu, 2**20, 200e-6, 200e-6, 1, host_s=1.0)
    with pytest.raises(RuntimeError, match="waited for the CPU"):
        Timer(gpu).events(made, COLD)


def test_cold_buffers_are_more_than_three_times_the_cache_and_never_too_many():
    timer = Timer(FakeGpu())
    for size in (2**20, 17 * 2**20, 134 * 2**20):
        sets = timer.sets(size, COLD)
        assert (sets - 1) * size >= 3 * timer.gpu.l2_bytes or sets == timer.rules.most_sets
        assert timer.sets(size, HOT) == 1
    assert timer.sets(100, COLD) == timer.rules.most_sets
    assert timer.sets(10**12, COLD) == 2
    assert timer.lukewarm(2**20) is None and "only 24 MiB" in timer.lukewarm(10**5)


def test_results_live_until_their_buffers_come_round_again():
    """Else the allocator would hand the same memory to every call, and writes would stay in the cache."""
    alive, most = set(), []

    class Result:
        def __init__(self):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    for sets in (7, 1):  # cold; hot: the same memory again
        gpu = FakeGpu()
        gpu.capture = lambda body, gpu=gpu: (body(), SimpleNamespace(replay=lambda: gpu._run(1e-3)))[-1]
        Timer(gpu).graph([Result] * sets, 21)
        assert max(most) == sets and not alive
        most.clear()


def test_a_later_repeat_begins_with_the_size_of_the_first():
    gpu = FakeGpu()
    timer, every = Timer(gpu), calls(gpu, 2**20, 10e-6, 10e-6, 4)
    _, n = timer.graph(every)
    timer.graph(every, n)
    assert len(gpu.captures) == 3 and gpu.captures[2] == n and 3 * n * 10e-6 >= 5e-3


@pytest.mark.parametrize("ms", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(ms, monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr(FakeEvent, "elapsed_time", lambda *_: ms)
    for measure in (lambda t, c: t.graph(c), lambda t, c: t.events(c, COLD)):
        with pytest.raises(RuntimeError, match="impossible"):
            measure(Timer(gpu), calls(gpu, 2**20, 1e-4, 1e-4, 1))


def test_the_smoke_device_runs_calls_as_often_as_it_says():
    runs = []
    seconds, n = Timer(Cpu(), Rules(graph_s=0, most_calls=2)).graph([lambda: runs.append(1)])
    assert n == 2 and seconds > 0 and len(runs) == 5 * n  # captured, warmed up, timed in three replays


def test_a_slow_call_is_not_repeated_a_dozen_times():
    """Plain PyTorch's second derivative of a depthwise convolution takes a second: 12 of them, 9 times over."""
    gpu = FakeGpu()
    ran = []
    (call,) = calls(gpu, 2**20, 0.15, 0.15, 1)
    seconds = Timer(gpu).events([lambda: (ran.append(1), call())], COLD)
    assert seconds == pytest.approx(0.15, rel=0.005)
    assert 3 <= len(ran) <= 5  # the first may not have been queued in time


def test_after_a_capture_that_was_given_up_nothing_is_timed_in_this_process():
    """PyTorch then keeps the capture's memory pool open; the first error is the reason of the case itself."""

    def fail(
        message="CUDA error: operation failed due to a previous error during capture\nmore", kind=RuntimeError
    ):
        raise kind(message)

    gpu, graph = object.__new__(Cuda), SimpleNamespace(capture_begin=lambda: None, capture_end=fail)
    gpu.torch = SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=lambda: graph, synchronize=lambda: None))
    with pytest.raises(ValueError, match="planted"):
        gpu.capture(lambda: fail("planted", ValueError))
    with pytest.raises(RuntimeError, match="an earlier capture was given up: CUDA error: operation failed"):
        Bench(gpu, None).measure_case(None, 1, 1, 0)
