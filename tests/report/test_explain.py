"""Explanations: planted kernels lie in their categories, parts add up to GPU time, noise is not explained."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ladder.cli import stored as command
from ladder.engine import profiling
from ladder.plan import catalog
from ladder.receipts import categories, kernel_families
from ladder.results import parts, ranking
from tests.support import made_up, two_clocks
from tests.support.commands import refused, succeed
from tests.support.typed import typed, write_run

Plain = dict[str, Any]
US = 16_000  # ns in a cycle of 16 steps: a microsecond a step
STREAM = 7


def planted(*kernels: tuple[str, float], beside: tuple[tuple[str, float], ...] = ()) -> tuple[Plain, float]:
    """Return the profile of a cycle, and its GPU ms a step.

    Kernels, by name and microseconds a step, follow one another. Those of `beside` run on a second stream meanwhile.
    """
    events: list[kernel_families.Event] = []
    for stream, given in ((STREAM, kernels), (STREAM + 1, beside)):
        at = 0
        for name, us in given:
            events.append((name, True, stream, at, at + round(us * US)))
            at += round(us * US)
    return profiling.derive_composition(events), sum(us for _, us in kernels) / 1000


CONV = ("sm90_xmma_fprop_implicit_gemm_bf16", 40_000.0)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
BEFORE = planted(CONV, (ADD, 9_100.0), ("void reduce_kernel<512, 1>", 130.0))
AFTER = planted(CONV, ("bias_act_kernel", 1_200.0), ("bias_act_grad_kernel", 1_000.0), (ADD, 15.0))
SAME = planted(CONV, (ADD, 9_000.0), ("bias_act_kernel", 230.0))
TWO = planted(CONV, (ADD, 500.0), beside=(("Memcpy HtoD (Pinned -> Device)", 300.0),))


def run(**profiles: tuple[Plain, float]) -> Plain:
    """Return a judged result in which these rungs have a profile; their GPU times agree with it."""
    made = two_clocks.run()
    for rung in made["rungs"]:
        if rung["name"] in profiles:
            profile, gpu_ms = profiles[rung["name"]]
            rung["profile"] = profile
            for each in rung["rounds"]:
                each["profiled"] = [{**cycle, "gpu_ms": gpu_ms} for cycle in each["profiled"]]
    return made


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r.json", run(data_loading=BEFORE, fused_act=AFTER))


def told(*arguments: object) -> Plain:
    return json.loads(succeed("explain", *arguments, "--json").stdout)


# --- categories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, category",
    [
        ("sm90_xmma_wgrad_implicit_gemm_bf16", categories.CONVOLUTION),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<false>", categories.RESAMPLING),
        ("void cudnn::ops::nchwToNhwcKernel<float>", categories.LAYOUT),
        ("nvjet_tst_192x192_64x4", categories.MATMUL),
        ("void batch_norm_backward_kernel<float>", categories.NORMALIZATION),
        ("Memcpy HtoD (Pinned -> Device)", categories.COPIES),
        ("triton_poi_fused_add_3", categories.COMPILED),
        ("filter_act_modulate_grad_kernel", "fused: resampling, activation and modulation"),
        ("filter_act_kernel", "fused: resampling and activation"),
        ("bias_act_residual_kernel", "fused: activation, bias and residual sum"),
        ("adam_kernel", categories.OPTIMIZER),
        ("unheard_of", categories.OTHER),
    ],
)
def test_a_planted_kernel_lies_in_its_category(name: str, category: str, tmp_path: Path) -> None:
    made = run(data_loading=planted(CONV), fused_act=planted(CONV, (name, 734.0)))
    rows = told("data_loading", "fused_act", write_run(tmp_path / "r.json", made))["categories"]
    found = {row["category"]: row for row in rows}
    assert abs(found[category]["change_ms"] - 0.734) < 0.010 and found[category]["launches_after"] >= 1 / 16
    assert all(abs(row["change_ms"]) < 0.001 for other, row in found.items() if other != category)


def test_every_family_and_every_kernel_of_ours_has_a_category() -> None:
    known = {family for family, _ in kernel_families.PATTERNS} | {kernel_families.OTHER}
    known |= {kernel_families.BOOKKEEPING}  # of a CPU's operators, which are told by their names
    assert known == set(categories.OF_FAMILY)
    lines = tuple(beginning for beginning, _ in categories.OF_OURS)
    without = [name for name in kernel_families.own_kernels() if not name.startswith(lines)]
    assert not without, "add a line to ladder.receipts.categories"
    assert categories.name_category("Triton: new_trick_kernel") == "fused: new trick"


def test_every_instant_belongs_to_one_category(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r.json", run(data_loading=BEFORE, fused_act=TWO))
    found = told("data_loading", "fused_act", path)
    for side in ("before", "after"):
        ms = sum(row[f"{side}_ms"] for row in found["categories"])
        assert abs(ms - found[side]["gpu_ms"]) < 1e-4
    (copies,) = [row for row in found["categories"] if row["category"] == categories.COPIES]
    assert (copies["after_ms"], copies["launches_after"]) == (0, 1 / 16)  # the convolution's stream is busier
    assert abs(found["after"]["overlap_ms"] - 0.3) < 1e-4
    said = succeed("explain", "data_loading", "fused_act", path).stdout
    assert "beside another kernel ran 0.00 and 0.30 ms more" in said and "overlap of kernels" not in said


def test_parts_of_an_older_file_without_the_overlap_are_gpu_time(tmp_path: Path) -> None:
    """An older file has all milliseconds of each family alone; a newer one beside it is counted in the same way."""
    older = run(data_loading=BEFORE, fused_act=copy.deepcopy(TWO))
    for family in older["rungs"][-1]["profile"]["families"]:
        del family["own_ms"]
    path = write_run(tmp_path / "r.json", older)
    found = told("data_loading", "fused_act", path)
    for side in ("before", "after"):
        ms = sum(row[f"{side}_ms"] for row in found["categories"])
        assert abs(ms - found[side]["overlap_ms"] - found[side]["gpu_ms"]) < 1e-9
    assert abs(found["after"]["overlap_ms"] - 0.3) < 1e-4 and abs(found["before"]["overlap_ms"]) < 1e-4
    said = succeed("explain", "data_loading", "fused_act", path).stdout
    (row,) = [line.split() for line in said.splitlines() if line.startswith("overlap of kernels  ")]
    assert row[-2:] == ["-0.30", "-0.30"]
    rest: tuple[Any, ...] = None, {}, frozenset(), 0.0
    pair = [parts.Parts(gpu, 0, {"matmul": parts.Work(ms)}, *rest) for ms, gpu in ((10.0, 10.0), (10.5, 9.5))]
    assert parts.made_of(*pair) == "overlap of kernels -1.00 ms, matmul +0.50 ms"


# --- what is told -----------------------------------------------------------------------------------------------------


def test_the_first_line_says_what_the_difference_is_made_of(pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.md"
    said = succeed("explain", "data_loading", "fused_act", pair, "--markdown", out).stdout
    assert said.startswith(
        "fused_act: 7.01 ms less GPU work than data_loading: elementwise -9.08 ms,"
        " fused: activation and bias +2.20 ms, the rest -0.13 ms\n"
    )
    assert "kernels that appeared: bias_act_kernel 1.20 ms, bias_act_grad_kernel 1.00 ms" in said
    assert "kernels that went: reduce_kernel 0.13 ms" in said
    assert "of one process: 49.23 ms in generation 1 and 42.22 ms in generation 1; nothing is scaled" in said
    assert "fused_act: the GPU's work is 1.17x faster; the step is 1.12x faster" in said
    back = succeed("explain", "fused_act", "data_loading", pair).stdout
    assert back.startswith("data_loading: 7.01 ms more GPU work than fused_act: elementwise +9.08 ms")
    assert "data_loading: the GPU's work is 0.86x slower; the step is 0.90x slower" in back
    text = out.read_text()
    assert "| fused: activation and bias | 0.00 | 2.20 | +2.20 |" in text and "fused\\_act: 7.01 ms" in text


def test_a_kernel_too_short_for_the_other_list_is_not_called_new() -> None:
    """The 41st kernel of a step has no name in a result, but its family is known if it is ours."""
    many = [(f"elementwise_kernel_{number}", 50.0) for number in range(profiling.HEAVIEST)]
    before = planted(CONV, *many, ("modulate_kernel", 20.0))
    after = planted(CONV, ("gemm_small", 30.0), ("gemm_large", 90.0), ("modulate_kernel", 80.0))
    made = typed(run(data_loading=before, fused_act=after))
    was, now = (parts.parts_of(ranking.rung_of(made, name)) for name in ("data_loading", "fused_act"))
    assert was and now and list(parts.appeared(was, now)) == ["gemm_large"]


def test_a_difference_inside_the_noise_is_not_explained(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r.json", made := run(set_to_none=BEFORE, cuda_graphs=SAME))
    said = succeed("explain", "set_to_none", "cuda_graphs", path).stdout
    assert said.startswith("no difference: ") and "less than " in said.splitlines()[0]
    assert "elementwise" not in said and "appeared" not in said and "waiting" in said
    found = told("set_to_none", "cuda_graphs", path)
    assert not found["differs"] and not found["categories"] and not found["appeared"]
    rung = next(each for each in made["rungs"] if each["name"] == "cuda_graphs")
    for number, each in enumerate(rung["rounds"]):
        each["profiled"] = [cycle | {"gpu_ms": 45.0 + 4 * number} for cycle in each["profiled"]]
    said = succeed("explain", "set_to_none", "cuda_graphs", write_run(path, made)).stdout
    assert said.startswith("not decided: ") and "(ambiguous)" in said.splitlines()[0]


def test_rungs_that_are_no_neighbours_are_judged_by_their_generations(tmp_path: Path) -> None:
    made = run(baseline=BEFORE, fused_act=AFTER, bf16=BEFORE, set_to_none=AFTER)
    path = write_run(tmp_path / "r.json", made)
    assert told("baseline", "fused_act", path)["gpu_verdict"] == "faster"
    for rung in made["rungs"]:  # the same GPU time in every generation
        for each in rung["rounds"]:
            each["profiled"] = [{**cycle, "gpu_ms": 42.0} for cycle in each["profiled"]]
    assert not told("baseline", "fused_act", write_run(tmp_path / "same.json", made))["differs"]


def test_two_files_stand_for_their_tops_or_for_a_rung(tmp_path: Path) -> None:
    first, second = run(fused_act=BEFORE, bf16=BEFORE), run(fused_act=AFTER)
    second["machine"]["torch"] = "2.14.0"
    a, b = write_run(tmp_path / "a.json", first), write_run(tmp_path / "b.json", second)
    said = succeed("explain", a, b).stdout
    assert said.startswith(
        "fused_act after: 7.01 ms less GPU work than fused_act before: elementwise -9.08 ms"
    )
    assert "differs: torch: 2.11.0 and 2.14.0" in said
    of_a_rung = succeed("explain", f"{a}:bf16", b).stdout
    assert of_a_rung.startswith("fused_act: 7.01 ms less GPU work than bf16: ")
    assert not told(a, write_run(tmp_path / "same.json", first))["differs"]


def test_compare_names_the_parts_of_a_difference(tmp_path: Path) -> None:
    other = planted(CONV, (ADD, 9_000.0), ("void reduce_kernel<512, 1>", 230.0))  # as long as before
    first, second = run(fused_act=BEFORE, bf16=BEFORE), two_clocks.again(run(fused_act=AFTER, bf16=other))
    a, b = write_run(tmp_path / "a.json", first), write_run(tmp_path / "b.json", second)
    lines = succeed("compare", a, b).stdout.splitlines()
    (parts_of,) = [line for line in lines if "elementwise" in line]  # rungs without a difference have none
    assert parts_of.strip().startswith("elementwise -9.08 ms, fused: activation and bias +2.20 ms")


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_a_profile_that_is_missing_void_or_of_another_cycle_is_one_line(tmp_path: Path) -> None:
    profile, gpu_ms = AFTER
    longer = run(
        data_loading=BEFORE, fused_act=(profile, gpu_ms + 1)
    )  # kernels never take less than their union
    void = run(data_loading=BEFORE, fused_act=AFTER)
    void["rungs"][-1]["rounds"][0]["gpu_void"] = "GPU time of 9 ms in a step of 8 ms"
    for made, first, second, why in (
        (longer, "data_loading", "fused_act", "fused_act has no profile: its run stored none that fits"),
        (void, "data_loading", "fused_act", "it is of a process whose GPU time is void (GPU time of 9"),
        (made_up.cpu_run(), "baseline", "channels_last", "a CPU's run has none"),
    ):
        assert why in refused("explain", first, second, write_run(tmp_path / "r.json", made))


def test_what_cannot_be_explained_is_one_line(pair: Path, tmp_path: Path) -> None:
    made = json.loads(pair.read_text())
    made["rungs"][2] = made_up.rung("bf16")
    path = write_run(tmp_path / "na.json", made)
    for arguments, words in (
        (("data_loading", "fused_akt", pair), "no rung 'fused_akt'; did you mean 'fused_act' or"),
        (("bf16", "bf16", pair), "named twice"),
        (("bf16", pair), "two rungs, or two files"),
        ((pair, f"{pair}:bf16", pair), "leave out FILE"),
        (("baseline", "bf16", pair, "-w", "article"), "leave out --workload"),
        ((tmp_path / "no.json", pair), "cannot be read"),
        (("bf16", "fused_act", path), "bf16 has no number (needs a CUDA GPU)"),
        (("data_loading", "fused_act", pair, "--markdown", pair), "would be overwritten"),
    ):
        assert words in refused("explain", *arguments), arguments


# --- which result -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results of this machine: one with profiles, a newer one without, and one of another workload."""
    from ladder.cli import listing

    folder = tmp_path / "stored"
    for module in (command, listing):
        monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(ranking, "machines_here", lambda: ["nvidia-h200"])
    made = run(data_loading=BEFORE, fused_act=AFTER)
    made["workload"] = {**catalog.load_workload("article")[1], "name": "article", "data": None}
    write_run(folder / "nvidia-h200" / "old.json", made)
    without = copy.deepcopy(made) | {"started": "2026-11-22T00:00:00+00:00"}
    for rung in without["rungs"]:
        rung.pop("profile", None)
    write_run(folder / "nvidia-h200" / "new.json", without)
    other = copy.deepcopy(made) | {"started": "2026-11-23T00:00:00+00:00"}
    other["workload"] |= {"resolution": 64, "name": "other"}
    write_run(folder / "nvidia-h200" / "other.json", other)
    return folder


def test_without_a_file_the_newest_with_profiles_is_taken(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told("data_loading", "fused_act")["before"]["file"].endswith("other.json")
    assert told("data_loading", "fused_act", "-w", "article")["before"]["file"].endswith("old.json")
    for here in ("nvidia-h200", "amd-epyc"):  # recommend speaks of the same run, where that has the profiles
        monkeypatch.setattr(ranking, "machines_here", lambda here=here: [here])
        (stored / "nvidia-h200" / "new.json").unlink(missing_ok=True)
        chosen = json.loads(succeed("recommend", "--json").stdout)["files"]["staircase"]
        assert Path(told("data_loading", "fused_act")["before"]["file"]).name == Path(chosen).name
    monkeypatch.setattr(ranking, "machines_here", lambda: ["nvidia-h200"])
    assert "no result of workload large has a profile" in refused(
        "explain", "bf16", "fused_act", "-w", "large"
    )
    assert "did you mean 'bf16'" in refused("explain", "bf61", "fused_act")
    assert succeed("explain", "data_loading", "fused_act").stderr == ""
    monkeypatch.setattr(ranking, "machines_here", lambda: ["amd-epyc"])
    elsewhere = succeed("explain", "data_loading", "fused_act").stderr
    assert elsewhere == "no profile of both on this machine (amd-epyc) yet: this is NVIDIA H200's\n"
    monkeypatch.setattr(command, "RESULTS", stored / "empty")
    assert "no result has a profile of both" in refused("explain", "baseline", "bf16")
