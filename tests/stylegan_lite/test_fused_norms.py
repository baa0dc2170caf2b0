"""Norms of a user's modules by our kernels: which activations join them, and that everything computes the same."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from ladder import receipts
from ladder.engine.pair import describe_pair
from ladder.parity import check as parity
from ladder.plan import catalog
from ladder.receipts.evidence import gather_evidence
from stylegan_lite import ConfigError, Recipe, make_step
from stylegan_lite.step.fused import BATCH_NORMS, GROUP_NORMS, FusedNorms, GroupedSpectral, GroupedWeights
from stylegan_lite.step.loading import find_model
from tests.kernels.opcases import DEVICE

torch.set_num_threads(1)
KINDS = (*GROUP_NORMS, *BATCH_NORMS)


class Net(nn.Module):
    """Norms in every company: each attribute is named for what reads its result."""

    def __init__(self):
        super().__init__()
        self.function = nn.GroupNorm(2, 4)
        self.module = nn.Sequential(nn.BatchNorm2d(4), nn.LeakyReLU(0.1, inplace=True))
        self.in_place = nn.Sequential(nn.GroupNorm(1, 4, affine=False), nn.SiLU(inplace=True))
        self.method = nn.BatchNorm2d(4, track_running_stats=False)
        self.alone = nn.GroupNorm(4, 4)
        self.shared = nn.GroupNorm(2, 4)
        self.other = nn.GroupNorm(2, 4)
        self.cumulative = nn.BatchNorm2d(4, momentum=None)
        self.norms = {
            self.function: ("silu", 0.0),
            self.module[0]: ("leaky_relu", 0.1),
            self.in_place[0]: ("silu", 0.0),
            self.method: ("leaky_relu", 0.0),
        }

    def forward(self, x):
        x = F.silu(self.function(x))
        x = self.in_place(self.module(x))
        x = self.method(x).relu()
        x = self.alone(x) + 1
        y = self.shared(x)
        assert y.dim() == 4  # a question that reads no number
        return self.cumulative(F.gelu(self.other(F.silu(y) + y)))


def results(net, x, around, penalty=True):
    """The result, gradients by all, those of a penalty on the gradient by x, and buffers."""
    x = x.clone().requires_grad_()
    with around():
        y = net(x)
        loss = y.square().sum()
        if penalty:
            (gradient,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
            loss = loss + gradient.square().sum()
    grads = torch.autograd.grad(loss, [x, *net.parameters()])
    return [y, *grads, *net.buffers()]


@pytest.fixture
def nets():
    """A network, its copy with fused norms, those norms, and an input."""
    torch.manual_seed(0)
    plain = Net().to(DEVICE, torch.float64)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    fused = copy.deepcopy(plain)
    fused.norms = dict(
        zip([m for m in fused.modules() if m in fused.norms], fused.norms.values(), strict=False)
    )
    return (
        plain,
        fused,
        FusedNorms([fused], KINDS),
        torch.randn(3, 4, 2, 3, dtype=torch.float64, device=DEVICE),
    )


def test_only_an_activation_that_alone_reads_a_norm_joins_it(nets):
    _, net, norms, x = nets
    norms.observe("D", lambda: net(x))
    named = dict(net.named_modules())
    found = {name: norms.acts["D"].get(module) for name, module in named.items() if module in norms.modules}
    assert found == {
        "function": ("silu", 0.0),
        "module.0": ("leaky_relu", 0.1),
        "in_place.0": ("silu", 0.0),
        "method": ("leaky_relu", 0.0),
        **dict.fromkeys(("alone", "shared", "other")),
    }


@pytest.mark.parametrize("penalty", [False, True])
def test_results_gradients_and_running_statistics_are_pytorchs(nets, penalty):
    plain, net, norms, x = nets
    before = copy.deepcopy(net.state_dict())
    norms.observe("D", lambda: net(x))
    net.load_state_dict(before)
    got = results(net, x, lambda: norms.running("D"), penalty)
    want = results(plain, x, torch.enable_grad, penalty)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_outside_a_loss_and_in_evaluation_norms_are_pytorchs(nets):
    plain, net, norms, x = nets
    norms.observe("D", lambda: net(x))
    net.load_state_dict(plain.state_dict())
    assert torch.equal(net(x), plain(x))
    for each in (net.eval(), plain.eval()):
        each.method.track_running_stats = False
    with norms.running("D"):
        torch.testing.assert_close(net(x), plain(x))


def test_a_block_that_runs_again_in_backward_computes_the_same():
    torch.manual_seed(0)
    block = nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 4, 1)).to(DEVICE, torch.float64)
    norms, x = FusedNorms([block], KINDS), torch.randn(2, 4, 3, 3, dtype=torch.float64, device=DEVICE)
    norms.observe("G", lambda: block(x))
    with norms.running("G"):
        plain = block(x).square().sum()
        again = (
            checkpoint(
                block, x, use_reentrant=False, context_fn=lambda: (torch.enable_grad(), norms.running())
            )
            .square()
            .sum()
        )
    grads = [torch.autograd.grad(each, [*block.parameters()]) for each in (plain, again)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def test_a_run_that_reads_a_norm_otherwise_than_before_is_an_error():
    norm, x = nn.GroupNorm(2, 4).to(DEVICE), torch.randn(2, 4, 3, 3, device=DEVICE)
    norms = FusedNorms([norm, nn.Sequential(norm)], KINDS)  # networks may share a module
    norms.observe("G", lambda: F.silu(norm(input=x)))
    with pytest.raises(RuntimeError, match="read by mul here"), norms.running("G"):
        norm(x) * 2
    with pytest.raises(RuntimeError, match="not in this one"), norms.running("G"):
        norm(x)
    with norms.running("G"):
        assert torch.allclose(F.silu(norm(x)), F.silu(F.group_norm(x, 2)), atol=1e-5)


# ---- weight norm -----------------------------------------------------------------------------------------------------


def make_layers():
    torch.manual_seed(0)
    with pytest.warns(FutureWarning):
        old = torch.nn.utils.weight_norm(nn.Conv1d(4, 3, 3))
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(2, 4, 3)),
        old,
        parametrizations.weight_norm(nn.Conv1d(3, 2, 1), dim=1),  # left alone
        nn.Flatten(),
        parametrizations.weight_norm(nn.Linear(8, 2)),
    ).to(DEVICE, torch.float64)


def test_weights_of_all_layers_are_made_together_and_are_pytorchs():
    plain, net, unused = make_layers(), make_layers(), make_layers().requires_grad_(False)
    grouped, x = (
        GroupedWeights([net, unused, nn.Sequential(net)]),
        torch.randn(2, 2, 8, dtype=torch.float64, device=DEVICE),
    )
    net(x)
    grouped.note("G")
    assert [len(layers) for layers in grouped.used["G"]] == [3]  # nothing of what the loss does not read
    grouped.make("G")
    net[0](x)
    first = net[0].weight
    assert net[0].weight is first and first.grad_fn is not None  # made once
    got, want = results(net, x, torch.enable_grad), results(plain, x, torch.enable_grad)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    grouped.clear()
    with torch.no_grad():
        net[0].parametrizations.weight.original0.mul_(2)
    torch.testing.assert_close(net[0].weight, 2 * first)


def make_spectral():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1), nn.Flatten(), nn.Linear(12, 2)]
    return nn.Sequential(*(spectral_norm(each) if hasattr(each, "weight") else each for each in layers)).to(
        DEVICE, torch.float64
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_spectral_norms_of_a_network_iterate_together_at_each_pass(layout):
    plain, net = (make_spectral().to(memory_format=layout) for _ in range(2))
    grouped, x = (
        GroupedSpectral([net, nn.Sequential(net)]),
        torch.randn(2, 2, 4, 4, dtype=torch.float64, device=DEVICE),
    )
    net(x), net(-x), net[0].weight  # the first layer reads its weight once more
    grouped.note("D")
    assert [len(group) for group in grouped.groups["D"]] == [2, 1]
    net.load_state_dict(plain.state_dict())
    grouped.begin("D")
    found = []
    for each in (net, plain):
        twice = nn.Sequential(each)
        twice.forward = lambda x, each=each: each(x) + each(-x) + each[0].weight.sum()
        found.append(results(twice, x, torch.enable_grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


# ---- as a pair climbs ------------------------------------------------------------------------------------------------

PAIR = """
import torch, torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from stylegan_lite.step import Input, Phase

class Pair:
    def __init__(self):
        G = nn.Sequential(nn.Conv2d(2, 8, 1), nn.GroupNorm(2, 8), nn.SiLU(), weight_norm(nn.Conv2d(8, 2, 1)))
        last = spectral_norm(nn.Conv2d(8, 1, 3))
        D = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), last)
        self.networks, self.averages = {"G": G, "D": D}, {"G": 100}
        self.phases = [Phase("D_main", "D"), Phase("D_r1", "D", every=16, twice=True), Phase("G_main", "G")]

    def inputs(self, phase):
        return {"z": Input((8, 2, 6, 6)), "real": Input((8, 2, 6, 6), "batch")}

    def batch(self, number):
        return {"real": torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(number))}

    def loss(self, phase, inputs):
        G, D = self.networks["G"], self.networks["D"]
        if phase == "G_main":
            return F.softplus(-D(G(inputs.z))).mean()
        real = inputs.real.detach().requires_grad_(phase == "D_r1")
        judged = D(real)
        if phase == "D_r1":
            return torch.autograd.grad(judged.sum(), real, create_graph=True)[0].square().sum((1, 2, 3)).mean()
        with torch.no_grad():
            fake = G(inputs.z)
        return F.softplus(D(fake)).mean() + F.softplus(-judged).mean()

    def optimizer(self, network):
        return torch.optim.Adam(self.networks[network].parameters(), lr=1e-3)

def make():
    return Pair()
"""
RUNGS = {
    "double_backward": "double_backward",
    "fused_group_norm": "fused_group_norm",
    "fused_batch_norm": "fused_batch_norm",
    "grouped_weight_norm": "fused_weight_norm",
    "grouped_spectral_norm": "fused_spectral_norm",
}


@pytest.fixture(scope="module")
def description(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    (folder / "norms_pair.py").write_text(PAIR)
    return describe_pair(find_model("norms_pair.py", folder), {}, "cpu", 0)


def test_the_rungs_apply_to_a_pair_that_has_their_modules(description):
    assert not any(description["facts"][field] for field in RUNGS.values())
    vocoder = Path(__file__).resolve().parents[2] / "examples" / "pairs"
    small = {"width": 8, "batch": 2, "samples": 128}
    facts = describe_pair(find_model("vocoder.py", vocoder), small, "cpu", 0)["facts"]
    assert [field for field in RUNGS.values() if facts[field] is None] == ["fused_weight_norm"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_of_them_agree_with_the_reference_and_earn_their_receipts(description, precision, tmp_path):
    below = catalog.load_rung("channels_last").change | {"set_to_none": True, "precision": precision}
    recipe = below | dict.fromkeys(RUNGS.values(), True)
    step = make_step(description["fields"], recipe, device=DEVICE)
    step.keep_gradients = True
    step.prepare()
    found = parity.check_step(step, cache=tmp_path)
    assert found["verdict"] == "ok", found["problems"]
    issued = receipts.issue(catalog.list_contained(step.recipe.to_dict()), gather_evidence(step))
    assert issued.keys() >= {*RUNGS, "baseline", "channels_last"}
    assert all(each["engaged"] for each in issued.values()), issued
    assert "modules: 1, 1 of them with the activation behind it" in issued["fused_batch_norm"]["lines"]


def test_a_step_without_them_earns_none_of_the_receipts(description):
    step = make_step(description["fields"], {}, device=DEVICE)
    step.prepare()
    issued = receipts.issue(RUNGS, gather_evidence(step))
    assert not any(each["engaged"] for each in issued.values()), issued


def test_stylegan2_has_its_own_rungs_and_the_compiler_its_own_norms():
    with pytest.raises(ConfigError, match="for pairs of your own"):
        make_step({"resolution": 8, "channel_base": 64, "batch": 2}, {"double_backward": True}, device="cpu")
    with pytest.raises(ConfigError, match="compile: off"):
        Recipe.from_dict({"fused_group_norm": True, "compile": "default"})
