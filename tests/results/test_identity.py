"""What a result is of, by what it holds: workloads, ladders and images, whatever they are called."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from PIL import Image

from ladder.core.errors import UserError
from ladder.images import prepare as images
from ladder.machine import environment
from ladder.plan import catalog, content, needs
from ladder.results import code_digest, identity, judging
from ladder.results.combine import comparing, merging, resuming, series
from tests.support import made_up, typed
from tests.support.typed import Reading, problem_of, write_run

merging = Reading(merging)
comparing = Reading(comparing)
judging = Reading(judging)
series = Reading(series)


def continue_header(path, before, fresh):
    return resuming.continue_header(path, typed.typed(before), typed.typed(fresh))


TINY = (catalog.WORKLOADS / "tiny.yaml").read_text()


def judged() -> dict:
    """A result that is accepted."""
    result = made_up.judged_run(seed=1)
    result["workload"]["data"] = None
    return result


def user_file(folder: Path, text: str, name: str = "tiny.yaml") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)


# --- workloads ------------------------------------------------------------------------------------------------------


def test_a_users_file_is_the_preset_only_if_its_fields_are(tmp_path):
    for text in (TINY, TINY.replace("lr: 0.01", "lr: 1.0e-2"), TINY + "data: photos\n"):
        assert catalog.load_workload(user_file(tmp_path, text))[0] == "tiny"
    narrow = TINY.replace("channel_max: 64", "channel_max: 8")
    name, fields = catalog.load_workload(user_file(tmp_path, narrow))
    assert name == f"tiny-{content.of_workload(fields)}" and fields["channel_max"] == 8
    assert name != catalog.load_workload(user_file(tmp_path, narrow.replace("lr: 0.01", "lr: 0.02")))[0]
    assert catalog.load_workload(user_file(tmp_path, narrow, "mine.yaml"))[0] == "mine"


def test_a_preset_is_its_fields_with_defaults_for_newer_ones_and_what_it_was_once():
    for name, missing, changed, wrong in (
        ("article", ("flips", "r1_interval"), {}, {"flips": False}),
        ("tiny", (), {"lr": 0.002, "r1_gamma": None, "ema_images": 10_000}, {"lr": 0.003}),
    ):
        fields = catalog.load_workload(name)[1] | {"name": name, "data": None} | changed
        older = {key: value for key, value in fields.items() if key not in missing}
        assert content.of_workload(older) == content.of_workload(fields)
        assert identity.find_workload_problem(older) is None
        assert f"named like the preset {name}" in identity.find_workload_problem(older | wrong)


def test_a_strangers_result_under_a_presets_name_is_refused_in_one_line():
    result = judged()
    assert problem_of(result) is None
    result["workload"]["channel_max"] = 8
    assert "named like the preset article, whose channel_max is 512, not 8" in problem_of(result)
    result["workload"]["name"] = "mine"
    assert problem_of(result) is None


def test_two_workloads_of_one_name_are_two_series():
    one, other = made_up.gpu_run(), made_up.gpu_run()
    for each, width in ((one, 64), (other, 8)):
        each["workload"] |= {"name": "mine", "channel_max": width}
    assert series.key(one) != series.key(other)
    assert merging.list_work_differences(one, other) == ["workload.channel_max: 64 and 8"]
    assert "workload.channel_max: 64 and 8" in comparing.differences(one, other)
    other["workload"] |= {"channel_max": 64, "spectral_norm": False}  # at its default
    assert comparing.differences(one, other) == []
    assert series.key(one) == series.key(other)


# --- ladders --------------------------------------------------------------------------------------------------------


def test_a_users_ladder_that_is_named_like_ours_is_ours_only_if_it_says_the_same(tmp_path):
    text = (catalog.LADDERS / "article.yaml").read_text()
    same = catalog.load_ladder(user_file(tmp_path, text, "article.yaml"))
    assert (same.name, same.digest) == ("article", None)
    swapped = "rungs: [baseline, bf16, channels_last]\n"
    other = catalog.load_ladder(user_file(tmp_path, swapped, "article.yaml"))
    assert other.name == f"article-{other.digest}" and len(other.digest) == 6
    mine = catalog.load_ladder(user_file(tmp_path, swapped, "mine.yaml"))
    again = catalog.load_ladder(user_file(tmp_path, "rungs: [baseline, channels_last, bf16]\n", "mine.yaml"))
    assert mine.name == again.name == "mine" and mine.digest != again.digest


def test_results_of_two_orders_of_a_users_ladder_are_two_series():
    one, other = made_up.gpu_run(), made_up.gpu_run()
    for each, digest in ((one, "aaaaaa"), (other, "bbbbbb")):
        each["ladder"] |= {"name": "mine", "digest": digest}
    assert series.key(one) != series.key(other)
    assert "ladder.digest: aaaaaa and bbbbbb" in merging.list_differences(one, other)


def test_a_strangers_ladder_in_another_order_is_not_ours():
    result = judged()
    rungs = result["rungs"]
    rungs[1], rungs[2] = rungs[2], rungs[1]
    result["ladder"]["rungs"] = [rung["name"] for rung in rungs]
    assert "named like article" in problem_of(result)
    for name in ("mine", "full"):  # full was in another order at some commits
        result["ladder"]["name"] = name
        assert problem_of(result) is None
    result[code_digest.KEY] = code_digest.digests()
    assert "named like full" in problem_of(result)


def test_a_rung_whose_recipe_lacks_its_change_is_refused_by_results_of_now():
    result = judged()
    climbed = {rung.name: rung.recipe for rung in catalog.plan_climb(catalog.load_ladder("article"), HAS_ALL)}
    for rung in result["rungs"]:
        rung["recipe"] = climbed[rung["name"]]
    result[code_digest.KEY] = code_digest.digests()
    assert problem_of(result) is None
    bf16 = next(rung for rung in result["rungs"] if rung["name"] == "bf16")
    bf16["recipe"] = bf16["recipe"] | {"precision": "fp32"}
    assert problem_of(result) == "rung bf16: its recipe's precision is fp32, not bf16"


@pytest.mark.parametrize(
    ("part", "changed", "line"),
    [
        ("recipe", {"precision": "fp3"}, "precision must be one of fp32, bf16, fp16, fp64, got 'fp3'"),
        ("recipe", {"fused_act": 3}, "fused_act must be true or false, got 3"),
        ("recipe", {"workers": -1}, "workers must be 0 or more, got -1"),
        ("workload", {"norm": "batch"}, "norm must be one of demod, instance, got 'batch'"),
    ],
)
def test_a_value_that_no_recipe_or_workload_can_have_is_refused(part, changed, line):
    result = made_up.gpu_run()
    (result["rungs"][0] if part == "recipe" else result).setdefault(part, {}).update(changed)
    assert problem_of(result) == f"{'rung baseline.' * (part == 'recipe')}{part}: {line}"


HAS_ALL = dict.fromkeys(needs.NEEDS)


# --- images ---------------------------------------------------------------------------------------------------------


def pictures(folder: Path, shade: int, count: int = 4) -> str:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (8, 8), (shade, 10 * number, 0)).save(folder / f"{number}.png")
    return str(folder)


def prepared(tmp_path: Path, name: str, shade: int, count: int = 4):
    found = images.prepare_images(
        pictures(tmp_path / name, shade, count), 8, cache=tmp_path / f"{name}-cache"
    )
    return identity.of_images(found.path)


def test_images_count_by_what_they_hold_not_by_where_they_lie(tmp_path):
    one = prepared(tmp_path, "one", 0)
    assert one.count == 4 and one == prepared(tmp_path, "a-copy", 0)
    assert one.digest != prepared(tmp_path, "other", 200).digest
    assert one != prepared(tmp_path, "more", 0, count=5)
    assert identity.of_images(None) is None and identity.of_images(tmp_path / "nowhere") is None


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    folder = tmp_path / "entry" / "images"
    folder.mkdir(parents=True)
    (folder / "000000.jpg").write_bytes(b"a picture")
    (folder.parent / "manifest.json").write_text(json.dumps({"source": images.USER}))
    (folder.parent / "digest").mkdir()  # neither read nor written as a file
    assert identity.of_images(folder).count == 1


def with_images(digest: str | None) -> dict:
    result = made_up.gpu_run() | {environment.KEY: {}}
    result["workload"]["data"] = images.USER if digest else images.SAMPLE
    return result | ({"images": {"count": 8, "digest": digest * 16}} if digest else {})


def test_a_run_does_not_go_on_with_other_pictures_nor_merge_with_theirs():
    path = Path("run.json")
    with pytest.raises(UserError, match=r"images: 8 \(#aaaaaaaa\) and 8 \(#bbbbbbbb\)"):
        continue_header(path, with_images("a"), with_images("b"))
    with pytest.raises(UserError, match=r"workload\.data: user-images and sample-photographs"):
        continue_header(path, with_images("a"), with_images(None))
    continue_header(path, with_images("a"), with_images("a"))
    for list_lines in (merging.list_work_differences, comparing.differences):
        assert any(line.startswith("images: ") for line in list_lines(with_images("a"), with_images("b")))
    old = with_images("a")
    del old[environment.KEY], old["images"]  # of an earlier version: not known
    continue_header(path, old, with_images("b"))


def test_a_run_does_not_go_on_with_another_recipe_or_workload(tmp_path):
    made = judged()
    for rung in made["rungs"]:
        rung["recipe"] = {"precision": "bf16"}
    path, now = write_run(tmp_path / "run.json", made), copy.deepcopy(made)
    now["rungs"][2]["recipe"] = {"precision": "bf16", "channels_last": False}  # at its default
    assert typed.take_up(path, now)["protocol"]["notes"] == ["resumed"]
    now["rungs"][2]["recipe"] = {"precision": "fp16"}
    with pytest.raises(UserError, match=r"rung bf16.recipe.precision: bf16 and fp16"):
        typed.take_up(path, now)
    now["workload"]["batch"] = 16
    with pytest.raises(UserError, match=r"workload\.batch: 8 and 16"):
        typed.take_up(path, now)
