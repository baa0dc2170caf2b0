"""`ladder kernels --claims`: verdicts and sentences follow the numbers."""

import functools
import io
import re
from dataclasses import replace

import pytest
import rich.console
import torch

from ladder.studies.claims import (
    chart,
    experiments,
    registry,
    report,
    schema,
    spectral,
)
from ladder.studies.claims.hardware import counters
from ladder.studies.claims.timed import Setting
from ladder.studies.claims.view import EQUAL
from ladder.studies.kernelbench.launches import watched_launches
from ladder.studies.kernelbench.schema import Summary
from tests.support import committed, made_up_claims


@pytest.fixture(scope="module")
def result():
    return made_up_claims.result()


def claim_of(result, name):
    return next(row for row in result.claims if row.name == name)


def said(result, name):
    return registry.sentence(registry.BY_NAME[name], result)


def test_every_claim_has_its_number_and_its_interval(result):
    for row in result.claims:
        if not row.name.startswith("16-bit"):
            assert row.ours is not None and row.reason is None, row
            low, high = row.ours.interval or (row.ours.median,) * 2
            assert low <= row.ours.median <= high
        assert said(result, row.name)
    assert claim_of(result, "CUDA C++ against PyTorch").ours.median == pytest.approx(3.0, rel=0.01)
    assert claim_of(result, "Triton against CUDA C++").ours.median == pytest.approx(75, rel=0.01)
    assert claim_of(result, "launches of a step").ours.median == pytest.approx(16.0, rel=0.02)


@pytest.mark.parametrize(
    ("figure", "ours", "verdict"),
    [
        ((2.3, 2.3), (2.2, 2.4), "holds"),
        ((2.3, 2.3), (2.54, 2.6), "more"),
        ((85, 95), (70, 76), "less"),
        ((85, 95), (70, 80), "holds"),
        (None, (1.1, 1.2), "holds"),
        (None, (0.9, 1.01), "does not hold"),
        (None, (0.9, 1.2), "ambiguous"),
    ],
)
def test_a_verdict_is_about_the_interval(figure, ours, verdict):
    claim = registry.Claim("c", "c", figure, "x", (), lambda view: None, lambda view: "")
    assert registry.verdict(claim, Summary(median=sum(ours) / 2, interval=list(ours))) == verdict
    assert registry.verdict(claim, None) == "n/a"


def test_the_share_of_coalescing_and_that_of_the_grid_are_told_apart(result):
    assert claim_of(result, "coalescing").ours.median == pytest.approx(60_000 / 511, rel=0.02)
    words = said(result, "coalescing")
    assert "access pattern, then full grid: 6.6" in words and "full grid, then access pattern: 31.6" in words
    assert "sectors a load 32 and 4" in words
    for way in re.findall(
        r"[a-z], then [a-z ]+: ([\d.]+)x and ([\d.]+)x", words
    ):  # each of them is all of it
        assert float(way[0]) * float(way[1]) == pytest.approx(60_000 / 511, rel=0.02)
    few = {"strided, N blocks": 44_000, "coalesced, N blocks": 25_700, "strided": 6160, "coalesced": 971}
    other = said(made_up_claims.result({"coalescing": few}), "coalescing")
    assert "1.72x and 26.46x" in other


def test_sentences_have_the_numbers_that_were_measured_and_leave_out_others():
    found = made_up_claims.result({"divergence": {"divergent": 1210}}, counted=False)
    assert said(found, "warp divergence").startswith("divergent 1,21")
    assert claim_of(found, "warp divergence").verdict == "does not hold"
    assert "DRAM" not in said(found, "fusion saves traffic")
    assert "sectors" not in said(found, "coalescing")


def without(result, *names):
    """Return the result as if these experiments had not been measured."""
    kept = [each for each in result.experiments if each.name not in names]
    return made_up_claims.judged(result, experiments=kept)


def test_the_advice_on_block_sizes_is_about_every_kernel_that_was_swept(result):
    assert claim_of(result, "block size").verdict == "holds"
    for name in ("block size", "block size in CUDA", "block size of the norm"):
        times = dict.fromkeys((f"{n} threads" for n in experiments.THREADS), 600) | {"512 threads": 500}
        found = made_up_claims.result({name: times})
        claim = claim_of(found, "block size")
        assert claim.verdict == "does not hold" and claim.ours.median == pytest.approx(1.2, rel=0.01)
        assert "512 threads are the quickest, 128 threads 1.20x, 256 threads 1.2" in said(found, "block size")
        one = without(found, *{"block size", "block size in CUDA", "block size of the norm"} - {name})
        assert claim_of(one, "block size").verdict == "does not hold"
        assert said(one, "block size").count("are the quickest") == 1
    either = {"128 threads": 900, "256 threads": 500}
    found = made_up_claims.result({"block size in CUDA": either | {"512 threads": 501}})
    assert claim_of(found, "block size").verdict == "holds"


def test_occupancy_is_judged_at_equal_work_and_else_not_at_all():
    slow = {"2 blocks": 2000, "4 blocks": 900, "8 blocks": 505, "16 blocks": 500}
    found = made_up_claims.result({EQUAL: slow})
    view = registry.View(found)
    assert [view.occupancy(EQUAL, f"{n} blocks") for n in (2, 4, 8, 16)] == [0.125, 0.25, 0.5, 1.0]
    claim = claim_of(found, "occupancy")
    assert claim.verdict == "holds" and claim.ours.median == pytest.approx(1.8, rel=0.01)
    assert "as many bytes on their way a thread" in said(found, "occupancy")
    as_fast = made_up_claims.result({EQUAL: dict.fromkeys(slow, 500)})
    assert claim_of(as_fast, "occupancy").verdict == "does not hold"
    # More registers for more elements a thread is another variable, whatever it does to the time.
    elements = dict.fromkeys(("32 elements", "64 elements", "128 elements"), 900)
    confused = without(made_up_claims.result({"occupancy": elements}), EQUAL)
    assert claim_of(confused, "occupancy").verdict == "not separated"
    assert "a thread's work differs" in said(confused, "occupancy")
    fewer = [replace(row, blocks=8) if row.source.startswith(EQUAL) else row for row in found.kernels]
    view = registry.View(replace(found, kernels=fewer))
    assert view.occupancy(EQUAL, "16 blocks") is None and view.occupancy(EQUAL, "8 blocks") == 1.0


def test_blocks_that_walk_over_the_activation_do_the_same_however_many_there_are(monkeypatch):
    pytest.importorskip("triton")
    launched = []
    monkeypatch.setattr("kernels.common.tiles.processor", lambda device: (90, 3))
    for shape in ((2, 3, 64, 65), (1, 1, 5, 7)):
        torch.manual_seed(0)
        expected = torch.nn.functional.leaky_relu(torch.randn(shape), 0.2)
        for make in experiments.occupancies().contenders.values():
            torch.manual_seed(0)
            with watched_launches(noting(launched)):
                torch.testing.assert_close(make(Setting("cpu", shape, True))(), expected)
    assert [grid for grid, _ in launched[:4]] == [(6,), (12,), (24,), (48,)]
    assert len({str(how) for _, how in launched}) == 1  # nothing but the grid differs


def noting(launched):
    def watching(run):
        def watched(kernel, *args, grid, **kwargs):
            launched.append((grid, kwargs))
            return run(kernel, *args, grid=grid, **kwargs)

        return watched

    return watching


def test_the_claim_about_spectral_norm_names_as_many_launches_as_there_are():
    pytest.importorskip("triton")
    launched, call = [], spectral.triton(made_up_claims.SETTING)
    with watched_launches(noting(launched)):
        call()
    words = {1: "one", 2: "two", 3: "three", 4: "four"}[len(launched)]
    assert registry.BY_NAME["spectral norm"].statement.startswith(f"{words} Triton launch")


def test_the_norm_is_timed_in_channels_last_too_in_every_language():
    found = {each.name: each for each in experiments.all_experiments()}
    for direction in ("forward", "backward"):
        experiment = found[f"norm {direction} bf16 channels_last"]
        assert list(experiment.contenders) == ["PyTorch", "CUDA C++", "Triton"]
        assert experiment.name not in counters.UNCOUNTED
    seen = []
    experiments.forward(lambda x: seen.append(x), torch.bfloat16, "channels_last")(made_up_claims.SETTING)()
    experiments.backward(lambda x: seen.append(x) or x * 2, torch.bfloat16, "channels_last")(
        made_up_claims.SETTING
    )()
    assert len(seen) == 2
    assert all(x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous() for x in seen)


def test_a_row_without_achieved_occupancy_says_why(result):
    stored = schema.load(committed.file("results/claims/nvidia-h200.json"))
    for found in (result, made_up_claims.result(counted=False), stored):
        for row in found.kernels:
            assert "%" in (cell := report.kernel_cells(row, found)[-2]) or re.fullmatch(r"n/a: [\w, ]+", cell)
    row = replace(result.kernels[0], achieved=None)
    for source, why in (
        ("step", "only a step launches it"),
        ("launch bounds: 256 threads", "left out, to save time"),
    ):
        assert report.kernel_cells(replace(row, source=source), result)[-2] == f"n/a: {why}"


@pytest.mark.parametrize("width", [80, 149, 150, 200])
def test_a_terminal_of_any_width_has_the_intervals(result, width, monkeypatch):
    out = io.StringIO()
    narrow = functools.partial(rich.console.Console, force_terminal=True, width=width, file=out)
    monkeypatch.setattr(rich.console, "Console", narrow)
    report.print_table(result)
    text = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert "counted" in text  # DRAM, which has none
    low, high = claim_of(result, "CUDA C++ against PyTorch").ours.interval
    assert f"{low:.2f}x" in text and f"{high:.2f}x" in text


def test_traffic_saved_is_what_dram_saw_and_else_what_was_counted(result):
    name = "fusion saves traffic"
    assert claim_of(result, name).ours.median == pytest.approx(268.4, rel=1e-3)
    three, one = (result.counters[f"fusion: {each}"] for each in ("three operators", "one"))
    counted = result.counters | {"fusion: three operators": replace(three, dram_read=2 * three.dram_read)}
    more = made_up_claims.judged(result, counters=counted)
    assert claim_of(more, name).ours.median > 400
    assert f"{claim_of(more, name).ours.median:.0f} MB in DRAM" in said(more, name)
    counted |= {"fusion: one": replace(one, dram_written=None)}
    less = made_up_claims.judged(result, counters=counted)
    assert claim_of(less, name).ours.median == pytest.approx(268.4, rel=1e-3)


def test_a_bound_is_compared_with_none_and_not_with_itself():
    unbounded, bounds = 500, dict.fromkeys(experiments.LAUNCH_BOUNDS, 600)
    for quickest, says in ((600, "does not hold"), (400, "holds")):
        times = bounds | {"1024 threads": unbounded, "256 threads, 4 blocks": quickest}
        found = made_up_claims.result({"launch bounds": times})
        claim = claim_of(found, "launch bounds")
        assert claim.verdict == says and claim.ours.median == pytest.approx(unbounded / quickest, rel=0.01)
        assert "against one of 1024 threads" in said(found, "launch bounds")


def test_the_low_occupancies_are_those_that_were_found_and_not_those_that_were_hoped_for(result):
    view = registry.View(result)
    assert view.occupancy("occupancy", "4 elements") == 1.0
    assert view.occupancy("occupancy", view.by_occupancy("occupancy", 0, 0.5)) < 0.5


def test_the_page_has_every_claim_every_contender_and_every_kernel(result):
    page = report.markdown(result)
    for claim in registry.CLAIMS:
        assert f"| {report.escaped(claim.name)} |" in page
    for experiment in experiments.all_experiments():
        assert f"### {report.escaped(experiment.name)}" in page
        for contender in experiment.contenders:
            assert f"| {contender} |" in page
    assert "| bias\\_act\\_kernel | Triton | 128 | 40 |" in page


def test_the_table_says_why_there_is_no_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = made_up_claims.result(counted=False)
    lacking = {"samples_us": {}, "us": {}, "reasons": {"strided": "CUDA C++ needs nvcc"}}
    experiments = [
        replace(each, **lacking) if each.name == "coalescing" else each for each in found.experiments
    ]
    found = made_up_claims.judged(found, experiments=experiments)
    report.print_table(found)
    text = capsys.readouterr().out
    assert (
        "CUDA C++ needs nvcc" in text and "hardware counters: Nsight Compute (ncu) is not installed" in text
    )
    assert chart.render(found, "png")[:4] == b"\x89PNG"  # with a gap for it
