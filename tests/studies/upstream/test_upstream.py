"""`ladder upstream`: a stand-in for NVIDIA's repository, its step beside ours, and files that validate."""

import contextlib
import importlib
import json
import sys
import textwrap
import threading
import types
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.utils import cpp_extension

from ladder.cli import main as cli
from ladder.core.errors import UserError
from ladder.engine import inspection
from ladder.engine.rounds import Interleaved
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.upstream import loops, record, source, step
from ladder.studies.upstream.study import STUDY, count_weights
from stylegan_lite.config import Workload
from tests.support import servers
from tests.support.small import LEAST

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
PARTS = (*source.PARTS, source.R3GAN, "train")
WORKLOAD = Workload.from_dict(LEAST).to_dict()

# The part of the repository that a step needs: ops in plain PyTorch, and networks and losses that need their second
# derivatives, behind imports that the lock has not, and a wrapper whose signature says nothing. Networks have the right
# number of weights, and losses note which phase called them.
FILES = {
    "dnnlib/__init__.py": "import requests\nfrom distutils.util import strtobool\nassert strtobool('yes')\n",
    "torch_utils/__init__.py": "",
    "torch_utils/misc.py": "import dnnlib\n",
    "torch_utils/persistence.py": """
        def persistent_class(original):
            class Decorator(original):
                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
            return Decorator
        """,
    "torch_utils/ops/__init__.py": "",
    "torch_utils/ops/conv2d_gradfix.py": """
        import contextlib, torch, warnings
        from pkg_resources import parse_version
        enabled, NEW = False, parse_version(torch.__version__) >= parse_version('1.11.0a')
        @contextlib.contextmanager
        def no_weight_gradients():
            yield
        def _should_use_custom_op(x):
            warnings.warn('not supported')
            return enabled and not NEW
        """,
    "torch_utils/ops/bias_act.py": """
        import torch
        def _init():
            return True
        def bias_act(x, b, act):
            return torch.nn.functional.leaky_relu(x + b[:, None, None], 0.2) * 2 ** 0.5
        """,
    "torch_utils/ops/upfirdn2d.py": """
        import torch
        def _init():
            return True
        def setup_filter(f):
            f = torch.tensor(f, dtype=torch.float32)
            return torch.outer(f, f) / f.sum() ** 2
        def downsample2d(x, f):
            weight = f.to(x.dtype).repeat(x.shape[1], 1, 1, 1)
            return torch.nn.functional.conv2d(x, weight, padding=1, stride=2, groups=len(weight))
        """,
    "torch_utils/ops/grid_sample_gradfix.py": "enabled = False\n",
    "torch_utils/ops/fma.py": "def fma(a, b, c):\n    return a * b + c\n",
    "torch_utils/ops/conv2d_resample.py": """
        import torch
        from . import conv2d_gradfix
        def conv2d_resample(x, w, padding):
            return torch.nn.functional.conv2d(x, w, padding=padding)
        """,
    "training/__init__.py": "import torch_utils.misc\n",
    "training/networks_stylegan2.py": """
        import torch
        from torch_utils import persistence
        from torch_utils.ops import bias_act, conv2d_resample, fma, upfirdn2d
        @persistence.persistent_class
        class SynthesisBlock(torch.nn.Module):
            def __init__(self, fused_modconv_default=True):
                super().__init__()
        class Net(torch.nn.Module):
            def __init__(self, inputs, outputs, count):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn([4, inputs, 3, 3]))
                self.bias, self.strength = torch.nn.Parameter(torch.zeros([4])), torch.nn.Parameter(torch.zeros([]))
                self.last = torch.nn.Parameter(torch.randn([outputs, 4, 1, 1]))
                used = sum(each.numel() for each in self.parameters())
                self.rest = torch.nn.Parameter(torch.zeros([count - used]))
                self.register_buffer('f', upfirdn2d.setup_filter([1, 3, 3, 1]))
            def forward(self, x, scale):
                x = conv2d_resample.conv2d_resample(x.to(torch.float32), self.weight, padding=1)
                noise = self.strength * torch.randn([len(x), 1, *x.shape[2:]], device=x.device)
                x = bias_act.bias_act(fma.fma(x, scale[:, :, None, None], noise), self.bias, act='lrelu')
                return conv2d_resample.conv2d_resample(upfirdn2d.downsample2d(x, self.f), self.last, padding=0)
        @persistence.persistent_class
        class Generator(Net):
            def __init__(self, z_dim, c_dim, w_dim, img_resolution, img_channels, mapping_kwargs={}, **more):
                super().__init__(1, 3, COUNT_G)
                self.side, self.more = 2 * img_resolution, more
        class Discriminator(Net):
            def __init__(self, c_dim, img_resolution, img_channels, epilogue_kwargs, **more):
                super().__init__(3, 1, COUNT_D)
        """,
    "training/loss.py": """
        import torch
        from torch_utils.ops import conv2d_gradfix
        class StyleGAN2Loss:
            def __init__(self, device, G, D, r1_gamma, style_mixing_prob, pl_weight, pl_batch_shrink, pl_decay,
                         pl_no_weight_grad=False):
                self.G, self.D, self.plain = G, D, torch.nn.functional.softplus
                self.seen, self.gamma, self.pl = [], r1_gamma, pl_no_weight_grad
            def accumulate_gradients(self, phase, real_img, real_c, gen_z, gen_c, gain, cur_nimg):
                z = gen_z[:, :4].requires_grad_()
                image = self.G(torch.rand([len(z), 1, self.G.side, self.G.side], device=z.device), z)
                ones = torch.ones([len(z), 4], device=z.device)
                if phase == 'Greg':
                    (g,) = torch.autograd.grad((image * torch.randn_like(image)).sum(), z, create_graph=True)
                    loss = (g.square().sum(1).sqrt() - 1).square().mean()
                elif phase == 'Dreg':
                    real = real_img.detach().requires_grad_()
                    with conv2d_gradfix.no_weight_gradients(True):
                        (g,) = torch.autograd.grad(self.D(real, ones).sum(), real, create_graph=True)
                    loss = g.square().sum((1, 2, 3)).mean()
                elif phase == 'Dmain':
                    loss = self.plain(self.D(image.detach(), ones)).mean() + self.plain(-self.D(real_img, ones)).mean()
                else:
                    loss = self.plain(-self.D(image, ones)).mean()
                loss.mul(gain).backward()
                self.seen.append((phase, gain))
        """,
    "training/dataset.py": """
        import torch
        from pathlib import Path
        from PIL import Image
        import numpy
        class ImageFolderDataset(torch.utils.data.Dataset):
            def __init__(self, path, resolution, xflip):
                self.paths = sorted(Path(path).rglob('*.jpg'))
            def __len__(self):
                return len(self.paths)
            def __getitem__(self, i):
                return numpy.asarray(Image.open(self.paths[i]).convert('RGB')).transpose(2, 0, 1).copy(), 0
        """,
}


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """No finding of a run outside of these tests."""
    monkeypatch.setattr(inspection, "CACHE", tmp_path / "kept")


@contextlib.contextmanager
def standing_in(folder, files=FILES):
    """The stand-in in a folder. Its modules, their substitutes and the settings of its step leave afterwards."""
    weights = count_weights(WORKLOAD)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        for net in ("G", "D"):
            text = text.replace(f"COUNT_{net}", str(weights[net]))
        (folder / path).write_text(textwrap.dedent(text))
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    modules = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        yield folder
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
    substitutes = {name for name in {*sys.modules} - modules if sys.modules[name].__spec__ is None}
    for name in substitutes | {name for name in sys.modules if name.split(".")[0] in PARTS}:
        del sys.modules[name]


@pytest.fixture
def clone(tmp_path):
    with standing_in(tmp_path / "clone") as folder:
        yield folder


def file_of_least(folder):
    path = folder / "least.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in LEAST.items()))
    return path


def run_upstream(clone, folder, *more):
    """Run the command. Its files are in the folder `out`."""
    least = file_of_least(folder)
    return run_command("upstream", clone, "-w", least, "--device", "cpu", "--out", folder / "out", *more)


def run_command(*words):
    return CliRunner().invoke(cli.main, [*map(str, words)])


def derive(folder):
    """Return the figures of the only file in the folder `out`."""
    (path,) = (folder / "out").glob("*.json")
    return record.Figures(frame.read_file(STUDY, path))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, kept_servers):
    """The folder of a whole run of two rounds, for tests that only read it."""
    folder = tmp_path_factory.mktemp("finished")
    with standing_in(folder / "clone") as clone:
        run = run_upstream(clone, folder, "--no-inspect", "--rounds", 2)
    assert run.exit_code == 0, run.output
    return folder


@pytest.fixture
def bare(clone, monkeypatch):
    """The stand-in, in an environment without the modules that the lock has not."""
    for name in ("pkg_resources", "requests"):
        monkeypatch.setitem(sys.modules, name, None)
    return clone


def make_step(folder, **changes):
    return step.make_step(WORKLOAD | {"data": None} | changes, {"folder": str(folder)}, device="cpu")


def test_a_step_is_an_iteration_of_its_training_loop(clone):
    built = make_step(clone, r1_gamma=None)
    built.prepare()
    assert [name for name, _ in built.loss.seen] == ["Gmain", "Greg", "Dmain", "Dreg"]
    del built.loss.seen[:]
    before = built.G_ema.weight.clone()
    built.cycle()
    names = [name for name, _ in built.loss.seen]
    counts = {name: names.count(name) for name in set(names)}
    assert counts == {"Gmain": 16, "Greg": 4, "Dmain": 16, "Dreg": 1}
    assert names[:4] == ["Gmain", "Greg", "Dmain", "Dreg"] and names[4:6] == ["Gmain", "Dmain"]
    assert {gain for name, gain in built.loss.seen if name == "Greg"} == {WORKLOAD["pl_interval"]}
    assert not torch.equal(before, built.G_ema.weight) and built.check_finite() is None
    del built.loss.seen[:]
    built.cycle(lazy=False)
    assert {name for name, _ in built.loss.seen} == {"Gmain", "Dmain"}
    assert built.loss.gamma == pytest.approx(0.0002 * WORKLOAD["resolution"] ** 2 / WORKLOAD["batch"])
    with torch.no_grad():
        built.D.weight[0] = float("nan")
    assert built.check_finite() == "D.weight is not finite"


def test_its_configuration_is_that_of_its_command_line(bare):
    built = make_step(bare)
    built.step(lazy=True)
    assert (loops.FP16_RESOLUTIONS, built.G.more["num_fp16_res"]) == (4, 0)  # on a GPU, on a CPU
    assert built.G.more["conv_clamp"] == 256 and built.loss.pl
    assert built.G.more["fused_modconv_default"] == "inference_only"
    assert built.G.more["channel_base"] == WORKLOAD["channel_base"]
    adam = {name: each.param_groups[0] for name, _, each, _ in built.updates}
    assert adam["Gmain"]["lr"] == pytest.approx(WORKLOAD["lr"] * 4 / 5) and adam["Gmain"] is adam["Greg"]
    assert adam["Dmain"]["betas"] == (0.0, pytest.approx(WORKLOAD["beta2"] ** (16 / 17)))
    assert built.settings()["fast_double_backward"] is False and built.settings()["fp16_resolutions"] == 0
    built.modules.ops["bias_act"]._init = lambda: False
    with pytest.raises(RuntimeError, match="NVIDIA's bias_act did not build: no reason was given"):
        source.build_ops(built.modules)


def test_an_op_is_imported_by_the_name_it_was_built_under(monkeypatch, tmp_path):
    """NVIDIA's loader does so, although torch no longer enters what it loads into `sys.modules`."""
    built, lock, locks = types.ModuleType("made_up_plugin"), tmp_path / "build" / "lock", []
    # torch would wait for a lock without an end
    load = lambda name, build_directory, **options: locks.append(lock.exists()) or built  # noqa: E731
    monkeypatch.setattr(cpp_extension, "load", load)
    monkeypatch.setitem(sys.modules, "made_up_plugin", built)
    monkeypatch.delitem(sys.modules, "made_up_plugin")  # and again after the test
    lock.parent.mkdir()
    lock.touch()  # of a build that was killed
    together = threading.Barrier(len(source._OPS), timeout=120)  # one after the other they would not meet

    def build():
        together.wait()
        cpp_extension.load(name="made_up_plugin", build_directory=str(lock.parent), sources=["a.cpp"])
        return importlib.import_module("made_up_plugin") is built

    ops = dict.fromkeys(source._OPS, types.SimpleNamespace(_init=build))
    source.build_ops(source.Modules(None, None, None, ops))
    assert cpp_extension.load is load and locks and not any(locks)


@pytest.mark.slow
def test_both_are_timed_in_turn_and_the_file_is_accepted(finished):
    result = derive(finished)
    (path,) = (finished / "out").glob("*.json")
    assert validate.problem_of(path) is None and str(finished) not in path.read_text()
    theirs, ours = result.programs.values()
    assert [len(each.rounds) for each in (theirs, ours)] == [2, 2] and theirs.settings["loader_workers"] == 3
    ratios = [a.samples_ms[0] / b.samples_ms[0] for a, b in zip(theirs.rounds, ours.rounds, strict=True)]
    assert min(ratios) <= result.derive_wall_ratio().median <= max(ratios)
    assert "neither parity nor receipts" in path.with_suffix(".md").read_text()


def test_a_run_goes_on_where_it_was_stopped(finished, clone, tmp_path):
    """Both steps of a pair come from one sitting: half a generation is made again, a whole one is kept as it is."""
    (path,) = (finished / "out").glob("*.json")
    stopped, begun = tmp_path / "out/stopped.json", json.loads(path.read_text())
    del begun["observed"]["generation 2"]["programs"]["ours"]
    begun["observed"]["generation 2"] |= {"status": "failed", "reason": "ours: killed"}
    begun |= {"commit": "a" * 40, "dirty": False}
    stopped.parent.mkdir()
    stopped.write_text(json.dumps(begun))
    run = run_upstream(clone, tmp_path, "--resume", stopped, "--rounds", 3)
    assert run.exit_code == 0, run.output
    stopped.unlink()
    for each in derive(tmp_path).programs.values():
        assert [visit.round for visit in each.rounds] == [0, 1, 2] and each.status == "ok"
    (path,) = (tmp_path / "out").glob("*.json")
    after, before = json.loads(path.read_text()), begun["observed"]
    assert validate.problem_of(path) is None and after["observed"]["generation 1"] == before["generation 1"]
    again, once = (each["generation 2"]["programs"]["upstream"] for each in (after["observed"], before))
    assert again["round"] != once["round"]
    assert after["commits"][0] == "a" * 40 and after["options"]["generations"] == 3

    begun["cases"]["generation 1"]["source"]["digest"] = "0" * 16
    stopped.write_text(json.dumps(begun))
    run = run_upstream(clone, tmp_path, "--resume", stopped)
    assert run.exit_code == 2 and "the clone's sources differ" in run.output.splitlines()[-1], run.output


def test_ours_is_not_timed_without_parity(clone, tmp_path, monkeypatch):
    def refuse(worker, tell, alone):
        raise inspection.Objection("failed: parity", "G_main: error 1", {"parity": None})

    monkeypatch.setattr(inspection, "inspect_worker", refuse)
    run = run_upstream(clone, tmp_path)
    assert run.exit_code == 1 and "failed: parity: G_main: error 1" in run.output
    result = derive(tmp_path)
    assert result.derive_wall_ratio() is None and result.programs["ours"].status == "failed: parity"
    assert [len(each.rounds) for each in result.programs.values()] == [1, 0]


def test_the_same_code_is_inspected_once(clone, tmp_path, monkeypatch):
    """Whether a run of the ladder saw it or this command did: both keep it by recipe, workload and source."""
    calls, facts = [], {"inspection": {"error": None}, "parity": None, "receipts": {}}
    monkeypatch.setattr(inspection, "inspect_worker", lambda *_: calls.append("inspected") or facts)
    monkeypatch.setattr(Interleaved, "round", lambda *_: (each for each in ()))
    for name, times in (("1", 1), ("2", 1), ("3", 2)):
        if name == "3":
            monkeypatch.setattr(inspection, "source_digest", lambda: "another commit")
        (tmp_path / name).mkdir()
        run_upstream(clone, tmp_path / name)
        (path,) = (tmp_path / name / "out").glob("*.json")
        proof = json.loads(path.read_text())["observed"][record.PROOF]
        assert "inspection" in proof and proof["receipts"] == {} and len(calls) == times


def test_networks_of_another_size_are_no_comparison(clone, tmp_path):
    path = clone / "training/networks_stylegan2.py"
    path.write_text(path.read_text().replace("count - used", "count - used + 1"))
    run = run_upstream(clone, tmp_path, "--no-inspect", "--rounds", 1)
    assert run.exit_code == 1 and "failed: weights: " in run.output and ", where ours has " in run.output
    result = derive(tmp_path)
    assert result.derive_wall_ratio() is None
    assert [each.status for each in result.programs.values()] == ["failed", "ok"]


def test_ours_have_as_many_weights_as_nvidias():
    """24,767,458 and 24,001,089 are what NVIDIA's networks of these widths have."""
    assert count_weights(catalog.load_workload("article")[1]) == {"G": 24_767_458, "D": 24_001_089}


def test_a_digest_follows_the_sources(clone):
    before = source.digest_of(clone)
    (clone / "README.md").write_text("x")
    assert source.digest_of(clone) == before
    (clone / "training" / "loss.py").write_text("x = 1\n")
    assert source.digest_of(clone) != before
    with pytest.raises(UserError, match="/nonexistent: no such folder"):
        source.networks_of(Path("/nonexistent"))


# The other layout: what it changes of the networks, and its losses.
ADA = """
    @persistence.persistent_class
    class SynthesisBlock(torch.nn.Module):
        def __init__(self, in_channels, **layer_kwargs):
            super().__init__()
    Plain = Generator
    @persistence.persistent_class
    class Generator(torch.nn.Module):
        def __init__(self, z_dim, c_dim, w_dim, img_resolution, img_channels, mapping_kwargs={}, synthesis_kwargs={}):
            super().__init__()
            self.plain = Plain(z_dim, c_dim, w_dim, img_resolution, img_channels, mapping_kwargs, **synthesis_kwargs)
            self.mapping, self.synthesis = torch.nn.Identity(), torch.nn.Identity()
    """
ADA_LOSS = """
    class StyleGAN2Loss:
        def __init__(self, device, G_mapping, G_synthesis, D, augment_pipe=None, style_mixing_prob=0.9, r1_gamma=10,
                     pl_batch_shrink=2, pl_decay=0.01, pl_weight=2):
            self.parts, self.D, self.seen = (G_mapping, G_synthesis), D, []
        def accumulate_gradients(self, phase, real_img, real_c, gen_z, gen_c, sync, gain):
            (self.D.weight.sum() * gen_z.mean() * gain).backward() if phase[0] == 'D' else None
            self.seen.append((phase, sync))
    """


def test_stylegan2_ada_pytorch_runs_with_its_own_layout(bare):
    path = (bare / "training/networks_stylegan2.py").rename(bare / "training/networks.py")
    path.write_text(path.read_text() + textwrap.dedent(ADA))
    (bare / "training/loss.py").write_text(textwrap.dedent(ADA_LOSS))
    built = make_step(bare)
    built.step(lazy=True)
    assert source.networks_of(bare) == "networks"
    assert built.G.plain.more["num_fp16_res"] == 0
    assert built.G.plain.more["conv_clamp"] == 256 and "fused_modconv_default" not in built.G.plain.more
    assert built.loss.parts == (built.G.mapping, built.G.synthesis)
    assert built.loss.seen == [(name, True) for name in ("Gmain", "Greg", "Dmain", "Dreg")]


def test_a_folder_that_is_no_clone_is_refused_in_one_line(tmp_path, clone):
    def refuse(folder, *more):
        run = run_upstream(folder, tmp_path, *more)
        assert run.exit_code == 2 and run.output.count("\n") == 1, run.output
        return run.output

    assert "nothing: no such folder: `git clone https://" in refuse(tmp_path / "nothing")
    assert "no training/networks_stylegan2.py: give the folder of a clone" in refuse(tmp_path)
    assert "no training/networks_stylegan2.py" in refuse(clone / "training")
    assert "workload: norm: NVIDIA's networks have 'demod' alone" in refuse(clone, "-w", "adain-256")
    for path in source.NEEDED:
        text = (clone / path).read_text()
        (clone / path).unlink()
        assert f"no {path}: give the folder of a clone" in refuse(clone)
        (clone / path).write_text(text)
    assert set(source.NEEDED) <= set(FILES)


@pytest.mark.parametrize(
    ("nvcc", "ninja", "reason"),
    [("no nvcc", "/bin/ninja", "no nvcc"), (None, None, "no ninja on"), (None, "/bin/ninja", None)],
)
def test_ops_that_cannot_be_built_are_refused_before_a_measurement(monkeypatch, nvcc, ninja, reason):
    monkeypatch.setattr(system, "list_capabilities", lambda device: {"nvcc": nvcc})
    monkeypatch.setattr(source.shutil, "which", lambda name: ninja)
    refusal = pytest.raises(UserError, match=f"built at first use, and cannot be here: {reason}")
    with refusal if reason else contextlib.nullcontext():
        source.refuse_unbuildable("cuda")
    source.refuse_unbuildable("cpu")
