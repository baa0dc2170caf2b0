"""Workloads, ladders and climbs: what a user's YAML file can do, and each way it can be wrong in one line."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml

from ladder.core.errors import UserError
from ladder.plan import catalog, modes, needs
from stylegan_lite.config import Workload
from tests.support.commands import call, refused
from tests.support.small import LEAST

EVERYTHING = dict.fromkeys(needs.NEEDS)
NO_GPU = {need: None if need == "bf16" else "needs a CUDA GPU" for need in needs.NEEDS}


def refusal(load, *args) -> str:
    with pytest.raises(UserError) as caught:
        load(*args)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    return message


def test_the_issue_s_workloads_are_there():
    sizes = {}
    for name in catalog.list_workloads():
        shown, w = catalog.load_workload(name)
        assert shown == name
        sizes[name] = (w["resolution"], w["channel_base"], w["batch"], w["norm"])
    assert sizes == {
        "article": (256, 16384, 8, "demod"),
        "article-b32": (256, 16384, 32, "demod"),
        "article-sn": (256, 16384, 8, "demod"),
        "adain-256": (256, 16384, 8, "instance"),
        "large": (256, 32768, 32, "demod"),
        "stylegan2-512": (512, 32768, 8, "demod"),
        "stylegan2-1024": (1024, 32768, 4, "demod"),
        "fashion": (32, 2048, 32, "demod"),
        "tiny": (32, 1024, 4, "demod"),
    }


def test_the_article_s_ladder_in_its_order_with_its_numbers():
    ladder = catalog.load_ladder("article")
    assert [(rung.name, rung.article_ms) for rung in ladder.rungs] == [
        ("baseline", 312), ("channels_last", 265), ("bf16", 158), ("fused_norm", 131),
        ("set_to_none", 127), ("cuda_graphs", 119), ("data_loading", 112), ("fused_act", 104),
    ]  # fmt: skip


def test_a_rung_of_another_ladder_is_named_with_the_ladder_that_has_it(tmp_path):
    for command in (
        ["train", "-w", "tiny", "--out", tmp_path / "out", "--recipe", "graph_fills"],
        ["run", "-w", "tiny", "--recipe", "graph_fills"],
        ["run", "-w", "tiny", "--rungs", "bf16,graph_fills"],
    ):
        said = refused(*command)
        assert "graph_fills" in said and said.endswith("not in ladder article; `--ladder full` has it"), said
    assert not (tmp_path / "out").exists()


def test_a_users_workload_file(tmp_path):
    (tmp_path / "photos").mkdir()
    path = tmp_path / "My Work.yaml"
    path.write_text("resolution: 64\nchannel_base: 2048\nbatch: 4\nlr: 2e-3\ndata: photos\n")
    name, workload = catalog.load_workload(str(path))
    assert name == "my-work"  # fit for a file name
    assert workload["lr"] == 0.002  # YAML 1.1 would have read text
    assert workload["data"] == str(tmp_path / "photos")  # from the file's folder, wherever the command runs


BAD = {
    "syntax": ("resolution: [64\nbatch: 4\n", ["line 2"]),
    "unknown key": ("resolution: 64\nchannel_base: 2048\nbatch: 4\nbatchsize: 8\n", ["batchsize"]),
    "wrong type": ("resolution: 64\nchannel_base: 2048\nbatch: four\n", ["batch", "integer"]),
    "missing key": ("resolution: 64\n", ["channel_base"]),
    "key twice": ("resolution: 64\nbatch: 4\nbatch: 8\nchannel_base: 2048\n", ["'batch' twice", "line 3"]),
    "a list": ("- resolution: 64\n", ["list"]),
    "nothing": ("# only a comment\n", ["nothing"]),
    "a tag": ("!!python/object/apply:os.system ['echo pwned']\n", ["line 1"]),
    "an alias": ("resolution: &a 64\nchannel_base: *a\nbatch: 4\n", ["aliases"]),
    "a key that is a list": ("? [1, 2]\n: 3\n", ["key"]),
    "a number for a key": ("64: resolution\n", ["64"]),
    "too deep": ("a: " + "[" * 5000 + "\n", ["deep"]),
    "not text": (b"\xff\xfe\x00\x01bad", []),
    "a bad date": ("resolution: 2001-99-99\n", []),
    "too large": ("# " + "x" * 70_000 + "\n", ["KiB"]),
    "absurd resolution": ("resolution: 65536\nchannel_base: 65536\nbatch: 4\n", ["resolution", "4096"]),
    "more than a machine has": ("resolution: 64\nchannel_base: 2048\nbatch: 100000000\n", ["batch", "TiB"]),
    "a deep mapping": (
        "resolution: 64\nchannel_base: 2048\nbatch: 4\nmapping_layers: 100000000\n",
        ["mapping_layers", "TiB"],
    ),
    "infinite": ("resolution: 64\nchannel_base: 2048\nbatch: 4\nlr: .inf\n", ["lr"]),
}


@pytest.mark.parametrize("content, said", BAD.values(), ids=BAD.keys())
def test_a_bad_workload_file_is_refused_in_one_line_that_names_it(tmp_path, content, said):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refusal(catalog.load_workload, str(path))
    assert "mine.yaml" in message
    for words in said:
        assert words in message


@pytest.mark.parametrize(
    "content, said",
    [
        ("rungs: [baseline, turbo]\n", "turbo"),
        ("rungs: [baseline, bf16, baseline]\n", "twice"),
        ("rungs:\n  - baseline: fast\n", "milliseconds"),
        ("rungs:\n  - baseline: -3\n", "milliseconds"),
        ("rungs: []\n", "one or more"),
        ("rungs: baseline\n", "list"),
        ("steps: [baseline]\n", "'steps'"),
        ("title: 3\nrungs: [baseline]\n", "title"),
        ("rungs:\n  - [baseline]\n", "NAME"),
        ("rungs: [baseline]\nrival: fulll\n", "fulll"),
        ("rungs: [baseline]\nrival: [full]\n", "rival"),
        ("rungs: [baseline, fused_act]\nrival: article\n", "fused_act"),
    ],
)
def test_a_bad_ladder_file_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    message = refusal(catalog.load_ladder, str(path))
    assert "mine.yaml" in message and said in message


def test_a_name_that_is_none_gets_what_there_is(tmp_path):
    assert "article-b32" in refusal(catalog.load_workload, "artcle")
    assert "no such workload file" in refusal(catalog.load_workload, str(tmp_path / "no.yaml"))
    assert f"({len(catalog.list_rungs())} in all)" in refusal(catalog.load_rung, "../cli")


def test_recipes_are_cumulative():
    planned = catalog.plan_climb(catalog.load_ladder("article"), EVERYTHING)
    assert all(rung.skipped is None for rung in planned)
    for lower, higher in pairwise(planned):
        assert set(lower.recipe) <= set(higher.recipe)
    assert planned[0].recipe == {}
    assert planned[-1].recipe["precision"] == "bf16" and planned[-1].recipe["fused_act"] is True


def test_what_the_hardware_cannot_do_is_skipped_and_the_rest_goes_on_without_it():
    planned = {rung.name: rung for rung in catalog.plan_climb(catalog.load_ladder("article"), NO_GPU)}
    skipped = {name for name, rung in planned.items() if rung.skipped}
    assert skipped == {"fused_norm", "cuda_graphs", "data_loading", "fused_act"}
    assert planned["cuda_graphs"].recipe is None and "GPU" in planned["cuda_graphs"].skipped
    assert "fused_norm" not in planned["set_to_none"].recipe
    assert planned["set_to_none"].recipe["precision"] == "bf16"


@pytest.mark.parametrize(("batch", "parts"), [(4, 1), (8, 2), (16, 4), (24, 2), (32, 8)])
def test_a_batch_that_a_rung_would_cut_inside_a_group_skips_that_rung(batch, parts):
    """Else it would be built, and told as a rung that failed, or as a training that broke."""
    workload = {"norm": "demod", "batch": batch, "mbstd_group": 4}
    able = needs.join_capabilities(dict.fromkeys(needs.NEEDS), workload)
    for name in ("accumulation", "memory"):
        planned = catalog.plan_climb(catalog.load_ladder(name), able)
        cut = {rung.name: rung.skipped for rung in planned if rung.skipped}
        assert [*cut] == [f"accumulate_{n}" for n in (2, 4, 8) if n > parts]
        top = next(rung.recipe for rung in reversed(planned) if rung.recipe)
        assert top.get("micro_batches", 1) == parts
    if parts == 2:
        assert cut["accumulate_8"].endswith(f"(4), or a multiple; this workload has batch: {batch}")


def test_a_chosen_rung_keeps_its_recipe_of_the_whole_ladder():
    ladder = catalog.load_ladder("article")
    whole = {rung.name: rung.recipe for rung in catalog.plan_climb(ladder, EVERYTHING)}
    some = catalog.plan_climb(ladder, EVERYTHING, ["cuda_graphs", "baseline"])
    assert [rung.name for rung in some] == ["baseline", "cuda_graphs"]  # in the ladder's order
    assert some[1].recipe == whole["cuda_graphs"]
    assert "turbo" in refusal(catalog.plan_climb, ladder, EVERYTHING, ["turbo"])
    assert "name one" in refusal(catalog.plan_climb, ladder, EVERYTHING, [])


def test_the_top_of_another_ladder_is_measured_last_with_its_own_recipe(tmp_path):
    ladder = catalog.load_ladder("compile")
    top = catalog.plan_climb(catalog.load_ladder("full"), EVERYTHING)[-1]
    *own, rival = catalog.plan_climb(ladder, EVERYTHING)
    assert (rival.name, rival.recipe, rival.title) == (top.name, top.recipe, "the top of full")
    assert [rung.name for rung in own] == [step.name for step in ladder.rungs]
    assert [rung.name for rung in catalog.plan_climb(ladder, EVERYTHING, [top.name])] == [top.name]
    assert top.name not in [rung.name for rung in modes.plan_run(modes.LEAVE_ONE_OUT, ladder, EVERYTHING)]
    (tmp_path / "mine.yaml").write_text("rungs: [baseline]\nrival: compile\n")
    *_, last = catalog.plan_climb(catalog.load_ladder(str(tmp_path / "mine.yaml")), EVERYTHING)
    assert (last.name, last.recipe) == (own[-1].name, own[-1].recipe)  # not the top of the rival's rival
    recipes = {rung.name: rung.recipe for rung in [*own, rival]}
    assert modes.depends_on(modes.CUMULATIVE, recipes, top.name, ["compile_max_autotune"]) is None


def test_a_new_rung_is_a_file_and_a_line_of_yaml(tmp_path, monkeypatch):
    import ladder.rungs

    (tmp_path / "mine.py").write_text(
        '"""Mine."""\ntitle = "mine"\nchange = {"modconv": "grouped"}\nneeds = ()\n'
        'def receipt(seen):\n    """Seen."""\n'
    )
    (tmp_path / "typo.py").write_text(
        '"""Typo."""\ntitle = "typo"\nchange = {"fused_nrom": True}\nneeds = ()\n'
    )
    (tmp_path / "bare.py").write_text('title = "bare"\nchange = {}\nneeds = ()\n')
    for path in catalog.RUNGS.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(catalog, "RUNGS", tmp_path)
    monkeypatch.setattr(catalog, "list_rungs", catalog.list_rungs.__wrapped__)
    monkeypatch.setattr(ladder.rungs, "__path__", [str(tmp_path), *ladder.rungs.__path__])
    (tmp_path / "my.yaml").write_text("rungs: [baseline, mine]\n")
    planned = catalog.plan_climb(catalog.load_ladder(str(tmp_path / "my.yaml")), EVERYTHING)
    assert planned[1].recipe == {"modconv": "grouped"}
    assert "ladder/rungs/typo.py" in refusal(catalog.load_rung, "typo")
    assert "docstring" in refusal(catalog.load_rung, "bare")
    for name, text in {"same": '{"fused_norm": True}', "none": "{}", "default": '{"compile": "off"}'}.items():
        mine = (tmp_path / "mine.py").read_text()
        (tmp_path / f"{name}.py").write_text(mine.replace('{"modconv": "grouped"}', text))
        (tmp_path / "my.yaml").write_text(f"rungs: [baseline, fused_norm, {name}]\n")
        for able in (EVERYTHING, NO_GPU):  # on each machine, before anything is measured
            line = refusal(catalog.plan_climb, catalog.load_ladder(str(tmp_path / "my.yaml")), able)
            assert f"ladder/rungs/{name}.py" in line and "equals that of the rung before, fused_norm" in line
    (tmp_path / "silent.py").write_text('"""Silent."""\ntitle = "silent"\nchange = {}\nneeds = ()\n')
    assert "receipt" in refusal(catalog.load_rung, "silent")


NUMBERS = [key for key, value in Workload.from_dict(LEAST).to_dict().items() if type(value) in (int, float)]


@pytest.mark.parametrize("key", [*NUMBERS, "r1_gamma", "conv_clamp"])
def test_a_workload_of_trillions_is_refused_by_name(key, tmp_path):
    """In any of its numbers, before anything is built."""
    (tmp_path / "w.yaml").write_text("".join(f"{k}: {v}\n" for k, v in (LEAST | {key: 10**12}).items()))
    line = refusal(catalog.load_workload, str(tmp_path / "w.yaml"))
    assert "w.yaml" in line and key in line and "\n" not in line


def test_a_recipe_contains_the_rungs_whose_whole_change_it_carries():
    planned = catalog.plan_climb(catalog.load_ladder("article"), EVERYTHING)
    names = [rung.name for rung in planned]
    for place, rung in enumerate(planned):
        assert set(catalog.list_contained(rung.recipe)) == set(names[: place + 1])
    assert catalog.list_contained({"adam": "capturable"}) == ["baseline"]  # half of a rung is not the rung


def test_an_impossible_climb_names_the_rung(tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text("rungs: [cuda_graphs]\n")
    ladder = catalog.load_ladder(str(tmp_path / "my.yaml"))
    broken = catalog.Rung("cuda_graphs", "t", "s", "s", {"cuda_graphs": True}, ())
    monkeypatch.setattr(catalog, "load_rung", lambda name: broken)
    message = refusal(catalog.plan_climb, ladder, EVERYTHING)
    assert "cuda_graphs.py" in message and "adam" in message


def test_reading_the_catalog_imports_no_torch():
    code = (
        "import json, sys; from ladder.plan import catalog; catalog.load_workload('article');"
        "catalog.plan_climb(catalog.load_ladder('article'), {}); [catalog.load_rung(r) for r in catalog.list_rungs()];"
        "print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'matplotlib') if m in sys.modules]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=catalog.HERE.parent, capture_output=True, text=True
    )
    assert json.loads(run.stdout or "null") == [], run.stderr


@pytest.mark.parametrize(
    ("names", "field"),
    [
        (["baseline", "fp16", "bf16"], "precision"),
        (["baseline", "bf16", "set_to_none", "fp16"], "precision"),
        (["baseline", "set_to_none", "compile", "compile_max_autotune"], "compile"),
        (["baseline", "fused_resample", "shifted_resample"], "resample"),
    ],
)
@pytest.mark.parametrize("able", [EVERYTHING, NO_GPU])
def test_two_rungs_that_contradict_each_other_are_refused(names, field, able, tmp_path):
    """On every machine alike: on a CPU the first of two precisions would be n/a and the second measured."""
    (tmp_path / "mine.yaml").write_text(f"rungs: [{', '.join(names)}]\n")
    ladder = catalog.load_ladder(str(tmp_path / "mine.yaml"))
    for only in (None, names[:1], names[-1:]):
        said = refusal(catalog.plan_climb, ladder, able, only)
        assert f"{field} is" in said and names[-1] in said and "solo" in said
        assert said == refusal(modes.plan_run, modes.LEAVE_ONE_OUT, ladder, able, only)
    if able is EVERYTHING and field == "precision":  # each alone may contradict the others
        planned = {rung.name: rung.recipe for rung in modes.plan_run(modes.SOLO, ladder, able)}
        assert planned[names[-1]] == catalog.load_rung(names[-1]).change


@pytest.mark.parametrize("need", needs.OF_WORKLOAD)
def test_show_names_the_field_of_a_workload_that_meets_a_need(need):
    rung = next(name for name in catalog.list_rungs() if need in catalog.load_rung(name).needs)
    (field,) = re.findall(rf"{need} \(workload with (.+?)\)", call("show", rung).output)
    lacking = {"norm": "demod" if need == "instance_norm" else "instance", "conv_clamp": 256}
    lacking["spectral_norm"] = need == "kept_weights"
    assert needs.join_capabilities({}, lacking)[need]
    assert needs.join_capabilities({}, lacking | yaml.safe_load(field))[need] is None
