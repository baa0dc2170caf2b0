"""The studies on a user's own pair, from its file to a result that `ladder validate` accepts."""

import json

import pytest

from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.ablate.record import PARITY
from tests.support import servers
from tests.support.commands import call, refused

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
PAIR = """
import torch
from torch import nn
from stylegan_lite.step import Input, Phase

class Pair:
    def __init__(self, batch):
        self.batch_size = batch
        self.networks = {"E": nn.Linear(4, 4), "G": nn.Sequential(nn.Linear(4, 8), nn.Tanh()), "D": nn.Linear(8, 1)}
        self.phases = [Phase("D_main", "D"), Phase("G_main", "G"), Phase("G_late", "G", 4)]
        self.averages = {"G": 1000}

    def inputs(self, phase):
        return {"z": Input((self.batch_size, 4)), "real": Input((self.batch_size, 8), "batch")}

    def batch(self, number):
        return {"real": torch.full((self.batch_size, 8), number % 7 + 1.0)}

    def loss(self, phase, inputs):
        fake = self.networks["G"](self.networks["E"](inputs.z))
        sign = 1 if phase == "D_main" else -1
        return (sign * self.networks["D"](fake) - self.networks["D"](inputs.real)).tanh().mean()

    def optimizer(self, network):
        return torch.optim.Adam(self.networks[network].parameters(), lr=1e-3)

def make(batch=6):
    return Pair(batch)
"""
LADDER = "title: two\nrungs: [baseline, set_to_none, fused_adam]\n"


@pytest.fixture
def place(tmp_path):
    """A folder with a pair and a ladder."""
    (tmp_path / "secret_pair.py").write_text(PAIR)
    (tmp_path / "two.yaml").write_text(LADDER)
    return tmp_path


def study(place, command, *more):
    """Run a study on the pair, and return its file and its path; nothing in it tells where the pair is."""
    done = call(
        command, *more, "--model", place / "secret_pair.py", "--device", "cpu", "--out", place / "out"
    )
    assert done.exit_code == 0, done.output
    (path,) = (place / "out").glob("*.json")
    assert validate.problem_of(path) is None
    text = path.read_text()
    assert "secret_pair.py" not in text and str(place) not in text
    workload = json.loads(text)["workload"]
    assert (workload["name"], workload["batch"], workload["resolution"]) == ("secret_pair", 6, None)
    return frame.open_stored(path)[1], path


def test_a_profile_has_the_phases_and_layers_of_the_pair(place):
    step = study(place, "profile", "fused_adam")[0].observed["step"].step
    assert [(each.name, each.runs) for each in step.phases[:3]] == [
        ("D_main", 1),
        ("G_main", 1),
        ("G_late", 0.25),
    ]
    assert {"D", "E", "G 0 Linear", "G 1 Tanh"} <= {each.name for each in step.layers}
    assert step.no_layers is None and {*step.memory.timeline} == {"D_main", "G_main", "G_late"}


def test_an_ablation_measures_the_rungs_that_apply_to_the_pair(place):
    file, path = study(place, "ablate", "--ladder", place / "two.yaml")
    assert file.observed[PARITY].status == "ok"
    looks = [each for key, each in file.observed.items() if each.look]
    assert len(looks) >= 4 and {*file.cases["everything"].rungs} == {"set_to_none", "fused_adam"}
    assert "name it with --model" in refused("ablate", "--resume", path)


def test_a_map_changes_the_setting_batch(place):
    file, _ = study(place, "map", "--ladder", place / "two.yaml", "--batches", "8")
    assert {(case.resolution, case.batch) for case in file.cases.values()} == {(None, 8)}
    assert all(each.status == "ok" for each in file.observed.values())


def test_a_size_that_the_function_does_not_take_is_refused(place):
    (place / "secret_pair.py").write_text(
        PAIR.replace("make(batch=6)", "make()").replace("Pair(batch)", "Pair(6)")
    )
    words = "secret_pair.py:make takes no setting 'batch'"
    assert words in refused("map", "--model", place / "secret_pair.py", "--device", "cpu")
    where = ("--model", place / "secret_pair.py", "--device", "cpu")
    assert words in refused("profile", "baseline", "--largest-batch", *where)


def test_a_size_that_the_pair_does_not_follow_is_refused(place):
    (place / "secret_pair.py").write_text(PAIR.replace("self.batch_size = batch", "self.batch_size = 6"))
    done = call(
        "map",
        "--model",
        place / "secret_pair.py",
        "--device",
        "cpu",
        "--out",
        place / "out",
        "--batches",
        "8",
    )
    assert done.exit_code == 1 and "with batch=8 its batch is 6" in done.output


def test_a_model_and_a_workload_contradict_each_other(place):
    for command in (("profile", "baseline"), ("ablate",), ("map",), ("recommend",)):
        assert "leave out --workload" in refused(*command, "--model", place / "secret_pair.py", "-w", "tiny")
        assert "give --model" in refused(*command, "--set", "batch=2")


def test_two_ranks_train_a_pair_as_one_process_does(place):
    drawn = 'Input((self.batch_size, 4), "uniform"), "y": Input((self.batch_size,), "labels", classes=5)'
    text = PAIR.replace("Input((self.batch_size, 4))", drawn).replace(
        "inputs.z)", "inputs.z + inputs.y[:, None])"
    )
    (place / "secret_pair.py").write_text(text)
    few = ("--gpus", "2", "--scaling", "weak", "--generations", 1, "--visits", 1)
    file, _ = study(place, "scale", "flat", "ddp", *few)
    for way in ("flat", "ddp"):
        proof = file.observed[f"proof of {way} on 2"]
        assert proof.verdict == "ok"
        assert any(line.startswith("MB all-reduced: D_main") for line in proof.lines)
        assert file.cases[f"{way}, weak, 2"].batch == 12
