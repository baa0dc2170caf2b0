"""The tables of `docs/memory.md`: peaks of each rung, largest batches, and the cards that a workload needs."""

from pathlib import Path

from ladder.publish.pages import ladders
from ladder.publish.pages.committed import Committed
from ladder.results import store as results
from tests.support import made_up_profile, two_clocks
from tests.support.two_clocks import stored_runs


def test_a_table_of_memory_has_the_peaks_of_each_rung(tmp_path: Path) -> None:
    made = two_clocks.run()
    for place, rung in enumerate(made["rungs"]):
        peaks = {"peak_reserved_bytes": (8 - place) << 30, "peak_allocated_bytes": (8 - place) << 29}
        rung["rounds"][0] |= peaks | {"device_used_bytes": (9 - place) << 30}
    stored, name = stored_runs(tmp_path, a=made), "nvidia-h200/article/article"
    lines = ladders.render_memory(stored, name).splitlines()
    assert lines[0].endswith("| reserved GiB | allocated GiB | device GiB |")
    assert lines[3].startswith("| channels\\_last | 158.0 | ") and lines[3].endswith("| 7.00 | 3.50 | 8.00 |")


def test_a_table_of_memory_has_the_largest_batch_of_rungs_whose_profile_searched_it(tmp_path: Path) -> None:
    made, name = two_clocks.run(), "nvidia-h200/article/article"
    stored = stored_runs(tmp_path, a=made)
    tried = [{"batch": 64, "reason": None}, {"batch": 128, "reason": "out of memory"}]
    most = {"settled": True, "tried": tried, "images_per_s": 512.5}
    other = made["machine"] | {"name": "nvidia-h100", "gpu": "NVIDIA H100"}
    for file, rung, machine, more in (
        ("a", "channels_last", made["machine"], most),
        ("b", "bf16", made["machine"], most | {"settled": False, "images_per_s": None}),
        ("c", "fused_norm", made["machine"], None),
        ("d", "fused_act", other, most),
        ("e", "fused_act", made["machine"], most),
    ):
        data = made_up_profile.of_profile(machine, rung, made_up_profile.FUSED)
        data["cases"]["largest batch"] = {}
        data["observed"] |= {"largest batch": {"largest": more}} if more else {}
        data["cases"]["step"]["ladder"] = "full" if file == "e" else "article"
        results.write(tmp_path / f"results/profile/{file}.json", data)
    lines = ladders.render_memory(stored, name).splitlines()
    assert lines[0].endswith("| device GiB | largest batch | images/s there |")
    cells = [[each.strip() for each in line.split("|")][-3:-1] for line in lines[2:10]]
    assert cells == [["", ""], ["64", "512"], ["at least 64", ""], *[["", ""]] * 5]


def test_the_cards_that_a_workload_needs_follow_from_the_gpu_where_it_holds_most(tmp_path: Path) -> None:
    assert (
        ladders.render_cards(Committed(tmp_path), "article")
        == "*No complete run yet: `ladder run --ladder article`.*\n"
    )
    made, names = two_clocks.run(), ("a", "b")
    runs = {name: two_clocks.run() for name in names}
    for name, most in zip(names, (17.6, 15.2), strict=True):
        runs[name]["machine"] = made["machine"] | {"name": f"nvidia-{name}", "gpu": f"NVIDIA {name}"}
        for place, rung in enumerate(runs[name]["rungs"]):
            held = {0: 15.0, 2: most}.get(place, 7.6)
            rung["rounds"][0]["device_used_bytes"] = int(held * 2**30)
    (row,) = ladders.render_cards(stored_runs(tmp_path, **runs), "article").splitlines()[2:]
    assert row == "| `article` | 15.0 | 17.6 | 24 GB | 7.60 | 10 GB |"
    large = two_clocks.run()
    large["rungs"][-1]["rounds"][0]["device_used_bytes"] = 90 << 30
    assert (
        ladders.render_cards(stored_runs(tmp_path, a=large, b=large), "article")
        .splitlines()[2]
        .endswith("| over 80 GB |")
    )
