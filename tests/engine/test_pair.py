"""A user's pair before it is measured: what it is, which rungs apply, and the line that refuses a wrong one."""

import json

import pytest

from ladder.engine import pair
from stylegan_lite.config import ConfigError
from stylegan_lite.step.loading import find_model

GOOD = """
import random
import numpy as np
import torch
from torch import nn
from stylegan_lite.step import Input, Phase

class Pair:
    def __init__(self, width):
        self.networks = {"G": nn.Linear(4, width), "D": nn.Linear(width, 1)}
        self.phases = [Phase("G_main", "G"), Phase("D_main", "D")]
        self.averages = {}

    def inputs(self, phase):
        return {"z": Input((6, 4)), "real": Input((6, 4), "batch")}

    def batch(self, number):
        return {"real": torch.full((6, 4), number % 7 + 1.0)}

    def loss(self, phase, inputs):
        G, D = self.networks["G"], self.networks["D"]
        sign = 1 if phase == "D_main" else -1
        return sign * D(G(inputs.z)).mean() - D(inputs.real * sign).mean()

    def optimizer(self, network):
        return torch.optim.Adam(self.networks[network].parameters(), lr=1e-3)

def make(width=4):
    return Pair(width)
"""
RETURN = "        return sign * D(G(inputs.z)).mean() - D(inputs.real * sign).mean()\n"
LINE = GOOD.split("\n").index(RETURN.strip("\n")) + 1


def describe(folder, text=GOOD, settings=None, model="my_pair.py"):
    (folder / "my_pair.py").write_text(text)
    return pair.describe_pair(find_model(model, folder), settings or {}, "cpu", 0)


def test_a_pair_is_described_and_what_it_lacks_stands_in_one_line(tmp_path):
    found = describe(tmp_path, settings={"width": 4})
    json.dumps(found)
    assert (found["fields"]["batch"], found["fields"]["resolution"]) == (6, None)
    assert found["facts"]["phases"] == ["G_main trains G", "D_main trains D"]
    facts = {
        key: found["facts"][key]
        for key in ("adam", "split", "graphs", "images", "blocks", "conv2d", "fused_grouped_conv")
    }
    assert [key for key, why in facts.items() if why] == ["images", "blocks", "conv2d", "fused_grouped_conv"]


def test_the_digest_follows_the_source_and_the_settings(tmp_path):
    digests = []
    for k, (text, settings) in enumerate([(GOOD, {}), (GOOD, {}), (GOOD + "#", {}), (GOOD, {"width": 4})]):
        (folder := tmp_path / str(k)).mkdir()
        digests.append(describe(folder, text, settings)["fields"]["pair"])
    assert digests[0] == digests[1] and len(set(digests)) == 3


BAD = {
    "waits for the device": (
        RETURN,
        f"        inputs.z.sum().item()\n{RETURN}",
        ".item() waits for the device",
    ),
    "own autocast": (
        RETURN,
        f"        torch.mm(inputs.z.bfloat16(), inputs.z.bfloat16().t())\n{RETURN}",
        "leave autocast to the step",
    ),
    "single precision": (RETURN, f"        torch.mm(inputs.z, torch.ones(4, 4))\n{RETURN}", "in FP64"),
    "masks": (RETURN, f"        inputs.z[inputs.z > 0].sum()\n{RETURN}", "a mask as an index waits"),
    "draws": (RETURN, f"        torch.randn(3)\n{RETURN}", "draws random numbers"),
    "drops out": (RETURN, f"        nn.functional.dropout(inputs.z)\n{RETURN}", "draws random numbers"),
    "steps an optimizer": (
        RETURN,
        f"        with torch.no_grad(): G.weight.add_(1)\n{RETURN}",
        "changes the weight G.weight in place",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_loss_that_is_not_pure_is_refused_with_its_line(name, tmp_path):
    old, new, words = BAD[name]
    with pytest.raises(ConfigError) as caught:
        describe(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).startswith(f"my_pair.py:{LINE}: ") and words in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG = {
    "python's random": (RETURN, f"        random.random()\n{RETURN}", "draws random numbers of its own"),
    "numpy's random": (RETURN, f"        np.random.rand()\n{RETURN}", "draws random numbers of its own"),
    "shapes": (
        RETURN,
        f"        self.n = getattr(self, 'n', 0) + 1\n        inputs.z[: self.n].sum()\n{RETURN}",
        "changes shapes between steps",
    ),
    "no scalar": (RETURN, "        return D(G(inputs.z))\n", "must be a scalar tensor, got shape [6, 1]"),
    "no tensor": (RETURN, "        return 1.0\n", "must be a scalar tensor, got float"),
    "no gradient": (RETURN, "        return D(G(inputs.z).detach()).mean()\n", "gives network G no gradient"),
    "no graph": (RETURN, "        return inputs.z.mean()\n", "gives network G no gradient"),
    "nan": (RETURN, f"{RETURN.rstrip()} * float('nan')\n", "is nan in the first step"),
    "raises": (
        RETURN,
        "        raise RuntimeError('why not')\n",
        f"my_pair.py:{LINE}: RuntimeError: why not",
    ),
    "syntax": ("import random", "import random(", "my_pair.py:2: SyntaxError"),
    "import": ("import random", "import nothing_of_this_name", "my_pair.py:2: ModuleNotFoundError"),
    "make fails": ("    return Pair(width)", "    return 1 / 0", "ZeroDivisionError"),
    "make is none": ("def make(width=4):", "make = 3\ndef other(width=4):", "is no function, but int"),
    "no make": ("def make(", "def built(", "no function 'make'; it has: built"),
    "no member": ("        self.averages = {}\n", "", "without 'averages'"),
    "no such network": (
        'Phase("D_main", "D")',
        'Phase("D_main", "E")',
        "trains 'E', which networks does not name",
    ),
    "every": ('Phase("D_main", "D")', 'Phase("D_main", "D", 5)', "every must be 1, 2, 4, 8 or 16"),
    "input's name": ('"z": Input', '"batch": Input', "the name is taken"),
    "module left out": (
        "        self.averages = {}\n",
        "        self.averages = {}\n        self.vgg = nn.Linear(2, 2)\n",
        "vgg has weights and is in none of networks",
    ),
    "another device": ("nn.Linear(4, width)", "nn.Linear(4, width, device='meta')", "network G is on meta"),
    "two calls": (
        "        self.averages = {}\n",
        "        self.averages = {}\n        self.networks['G'].weight.data += random.random()\n",
        "two calls with one seed differ in G.weight",
    ),
    "optimizer": ("        return torch.optim.Adam(", "        return len(", "TypeError"),
    "a list of numbers": (RETURN, f"        inputs.z.tolist()\n{RETURN}", ".tolist() waits for the device"),
    "prints": (RETURN, f"        print(inputs.z)\n{RETURN}", "printing a tensor waits for the device"),
    "numpy's other random": (
        RETURN,
        f"{RETURN.rstrip()} * float(np.random.default_rng().random())\n",
        "on the same inputs: it must depend on nothing else",
    ),
    "a counter": (
        RETURN,
        f"        self.n = getattr(self, 'n', 0) + 1\n{RETURN.rstrip()} * self.n\n",
        "on the same inputs: it must depend on nothing else",
    ),
    "replaces weights": (
        RETURN,
        f"        D.weight.data = D.weight.data / 2\n{RETURN}",
        "replaces the weight D.weight",
    ),
    "penalty": (
        RETURN,
        "        x = inputs.z.clone().requires_grad_()\n"
        "        g, = torch.autograd.grad(D(G(x)).tanh().sum(), x, create_graph=True)\n"
        f"{RETURN.rstrip()} + g.square().mean()\n",
        "declare Phase('G_main', 'G', twice=True)",
    ),
    "needs a closure": (
        "        return torch.optim.Adam(self.networks[network].parameters(), lr=1e-3)",
        "        return torch.optim.LBFGS(self.networks[network].parameters())",
        "the update of G_main: TypeError",
    ),
    "shares weights": (
        "        self.averages = {}\n",
        "        self.averages = {}\n        self.networks['E'] = nn.Sequential(self.networks['G'])\n",
        "networks G and E share a weight",
    ),
    "exits": ("    return Pair(width)", "    raise SystemExit(3)", "SystemExit: 3"),
    "a package of ours": (
        "import random",
        "from kernels import my_op",
        "kernels is a package of this project",
    ),
    "shape": ("Input((6, 4))", "Input(6)", "must be a tuple of whole numbers above 0, got 6"),
    "no inputs": ('        return {"z"', '        {"z"', "inputs('G_main') must return a dict, got NoneType"),
    "no averages": ("        self.averages = {}", "        self.averages = None", "averages must be a dict"),
    "its batch": ("number % 7 + 1.0", "random.random()", "batch(0) gives other numbers each time"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pair_is_refused_in_one_line(name, tmp_path):
    old, new, words = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        describe(tmp_path, GOOD.replace(old, new))
    assert "my_pair.py" in str(caught.value) and words in str(caught.value)
    assert "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_settings_that_make_does_not_take_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="takes no setting 'widht'; did you mean 'width'"):
        describe(tmp_path, settings={"widht": 4})


def test_a_branch_on_a_value_takes_the_rungs_with_graphs_alone(tmp_path):
    found = describe(tmp_path, GOOD.replace(RETURN, f"        if inputs.z.sum() > 0: pass\n{RETURN}"))
    assert found["facts"]["graphs"].startswith(f"my_pair.py:{LINE}: a branch")


def test_layers_that_may_draw_and_do_not_are_no_dropout(tmp_path):
    layers = "nn.Sequential(nn.Linear(4, width), nn.Dropout(0.0), A(width, 2, batch_first=True))"
    text = GOOD.replace('"G": nn.Linear(4, width)', f'"G": {layers}')
    text = text.replace("class Pair", "A = nn.TransformerEncoderLayer\n\nclass Pair")
    text = text.replace("G(inputs.z)", "G(inputs.z[None])[0]")
    with pytest.raises(ConfigError, match="draws random numbers"):  # its default is 0.1
        describe(tmp_path, text)
    (tmp_path / "other").mkdir()
    assert (
        describe(tmp_path / "other", text.replace("batch_first=True", "dropout=0.0"))["fields"]["batch"] == 6
    )


def test_another_optimizer_and_batch_norm_take_the_rungs_that_need_otherwise(tmp_path):
    text = GOOD.replace("torch.optim.Adam(", "torch.optim.SGD(")
    text = text.replace("nn.Linear(4, width)", "nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))")
    facts = describe(tmp_path, text)["facts"]
    assert "SGD, no Adam" in facts["adam"] and facts["split"].startswith("G.1.running_mean moves")


def test_a_module_of_a_package_is_imported_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # torch has modules whose file is a name without a folder
    (package := tmp_path / "some_package").mkdir()
    (package / "__init__.py").write_text("")
    (package / "width.py").write_text("WIDTH = 4\n")
    text = GOOD.replace("import random\n", "import random\nfrom .width import WIDTH\n")
    text = text.replace("class Pair:", "class Pair(nn.Module):").replace(
        "    def __init__(self, width):\n", ("    def __init__(self, width):\n        super().__init__()\n")
    )
    text = text.replace(
        '{"G": nn.Linear(4, width), "D": nn.Linear(width, 1)}',
        ('nn.ModuleDict({"G": nn.Linear(4, width), "D": nn.Linear(width, 1)})'),
    )
    (package / "gan.py").write_text(text.replace("def make(", "def build("))
    place = find_model("some_package.gan:build", tmp_path)
    found = [pair.describe_pair(place, {}, "cpu", 0) for _ in range(2)]
    assert found[0] == found[1]
    with pytest.raises(ConfigError, match=r"some_package\.gone: ModuleNotFoundError"):
        pair.describe_pair(find_model("some_package.gone:build", tmp_path), {}, "cpu", 0)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nowhere.py", "no such file"),
        ("kernels.py", "rename it"),
        ("my pair", "give FILE.py"),
        ("my_pair.py:2", "no name"),
    ],
)
def test_a_place_without_a_pair_is_refused(model, words, tmp_path):
    for name in ("my_pair.py", "kernels.py"):
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(ConfigError, match=words):
        find_model(model, tmp_path)
