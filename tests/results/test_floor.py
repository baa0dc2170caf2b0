"""The roofline floor: genuine results lie far above it, impossible ones are refused and marked."""

import json

import pytest

from ladder.results import plausible
from stylegan_lite.config import Workload
from tests.support import committed, made_up, typed
from tests.support.typed import problem_of

RESULTS = committed.listed("results/ladder/*/*.json")
RUN = committed.RUN


def load(path):
    return json.loads(path.read_text())


def times_divided(result, by):
    """The same result as if every step had been `by` times faster."""
    for visit in [visit for rung in [*result["rungs"], *result.get("twins", [])] for visit in rung["rounds"]]:
        visit.pop("main_ms", None)
        for key in {"samples_ms", "event_ms"} & visit.keys():
            visit[key] = [each / by for each in visit[key]]
    return result


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_genuine_results_are_far_above_the_floor(path):
    assert problem_of(load(path)) is None
    result = load(path)
    least = plausible.floor_ms(result["machine"], result["workload"])
    assert least[0] > least[1] > 0
    for rung in result["rungs"]:  # wide layers and large maps fill a GPU best: `large` is at 6.4 times
        samples = [ms for each in rung.get("rounds", []) for ms in each["samples_ms"]]
        assert not samples or min(samples) > 5 * least[0]


def test_a_thousand_times_faster_is_refused_and_a_little_is_not():
    assert "faster than this GPU can compute" in problem_of(times_divided(load(RUN), 1000))
    assert problem_of(times_divided(load(RUN), 3)) is None


def test_times_without_the_lazy_phases_have_a_floor_too():
    result = load(RUN)
    result["rungs"][0]["rounds"][0]["main_ms"] = 0.2
    assert "0.2 ms is faster than this GPU" in problem_of(result)


def test_the_flops_are_those_of_the_layers():
    """Counted by PyTorch's own formulas in the running phases: at least the floor's, and not twice those."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    from stylegan_lite import make_step

    class Count(TorchDispatchMode):
        flops = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if "convolution" in func._overloadpacket.__name__:
                self.flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
            return out

    fields = {"resolution": 32, "channel_base": 512, "channel_max": 32, "z_dim": 32, "w_dim": 32, "batch": 4}
    step = make_step(fields | {"norm": "instance"}, {"resample": "depthwise"}, device="cpu", seed=0)
    work = Workload.from_dict(fields)
    step.feed.next()
    counted = {}
    for phase in ("G_main", "D_main", "G_pl", "D_r1"):
        with Count() as count:
            step.run_phase(phase)
        counted[phase] = count.flops
    step.close()
    whole, main = plausible.flops(work)
    seen = counted["G_main"] + counted["D_main"]
    assert 0.5 * seen < main <= seen
    assert 0 < whole - main <= counted["G_pl"] / work.pl_interval + counted["D_r1"] / work.r1_interval


def test_an_unknown_gpu_is_taken_for_a_very_fast_one_and_an_unknown_workload_has_no_floor():
    known = {"NVIDIA H200": 989, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA L4": 121, "NVIDIA L40S": 362}
    for name, least in known.items():
        assert least <= plausible.peak({"gpu": name, "device": "cuda"}) < 1.3 * least
    fastest = max(rate for _, rate in plausible.PEAKS)
    assert plausible.peak({"gpu": "NVIDIA Graphics Device", "device": "cuda"}) >= 2 * fastest
    assert plausible.floor_ms({"device": "cpu", "cores": 4}, {"name": "fake", "batch": 8}) is None


def test_an_impossible_rung_is_invalid_and_the_others_keep_their_numbers(outcome):
    made = made_up.judged_run(fused_act=0.3)
    made["workload"] |= {"channel_base": 16384}
    typed.fill(made)
    *others, last = made["rungs"]
    assert last["status"] == "invalid" and last["step_ms"] is None and last["verdict"] is None
    assert last["reason"].startswith("0.") and "faster than this GPU can compute" in last["reason"]
    assert all(rung["status"] == "ok" and rung["step_ms"] for rung in others)
    assert made["baseline"] == "baseline"
    outcome(fault="impossible time", injected="0.3 ms a step of article", outcome=last, kept=True)
