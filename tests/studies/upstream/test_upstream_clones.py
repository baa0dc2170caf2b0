"""`ladder upstream` with what real clones have: imports that the lock has not, wrapped classes, two layouts."""

import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.machine import system
from ladder.studies.upstream import examined, source, step
from tests.studies.upstream.test_upstream import FILES, WORKLOAD, clone, kept, workload  # noqa: F401  (fixtures)

GRADFIX = """
    import contextlib
    import torch
    from pkg_resources import parse_version
    enabled = False
    NEW = parse_version(torch.__version__) >= parse_version('1.11.0a')
    @contextlib.contextmanager
    def no_weight_gradients(disable=True):
        yield
    def _should_use_custom_op(x):
        return enabled and not NEW
    """
# Like NVIDIA's `persistence.persistent_class`: the wrapper's own signature says nothing.
WRAPPED = """
    def persistent_class(original):
        class Decorator(original):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
        return Decorator
    """
STYLEGAN3 = """
    from torch_utils import persistence
    Plain = Generator
    @persistence.persistent_class
    class Generator(Plain):
        def __init__(self, z_dim, c_dim, w_dim, img_resolution, img_channels, mapping_kwargs={}, **synthesis_kwargs):
            super().__init__(z_dim, c_dim, w_dim, img_resolution, img_channels, mapping_kwargs, **synthesis_kwargs)
    SynthesisBlock = persistence.persistent_class(SynthesisBlock)
    """
ADA = """
    from torch_utils import persistence
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


def write(folder: Path, path: str, text: str, after: str = "") -> None:
    (folder / path).write_text(after + textwrap.dedent(text))


@pytest.fixture
def real(clone, monkeypatch):  # noqa: F811
    """The stand-in with the imports of NVIDIA's, in an environment without those that the lock has not."""
    for name in ("pkg_resources", "requests"):
        monkeypatch.setitem(sys.modules, name, None)
    write(clone, "torch_utils/ops/conv2d_gradfix.py", GRADFIX)
    write(clone, "torch_utils/persistence.py", WRAPPED)
    dnnlib = "import requests\nfrom distutils.util import strtobool\nassert strtobool('yes')\n"
    write(clone, "dnnlib/__init__.py", dnnlib)
    write(clone, "torch_utils/misc.py", "import dnnlib\n")
    write(clone, "training/__init__.py", "import torch_utils.misc\n")
    return clone


def made(folder: Path) -> step.UpstreamStep:
    return examined.make_step(WORKLOAD | {"data": None}, {"folder": str(folder)}, device="cpu")


def test_stylegan3_runs_and_its_convolutions_are_ordinary_ones_while_training(real):
    path = "training/networks_stylegan2.py"
    write(real, path, STYLEGAN3, (real / path).read_text())
    found = made(real)
    found.step(lazy=True)
    assert found.G.more["fused_modconv_default"] == "inference_only"
    assert found.G.more["num_fp16_res"] == found.settings()["fp16_resolutions"] == 0  # on a CPU
    assert found.G.more["channel_base"] == WORKLOAD["channel_base"]
    assert found.settings()["fast_double_backward"] is False and found.check_finite() is None


def test_stylegan2_ada_pytorch_runs_with_its_own_layout(real):
    old, new = real / "training/networks_stylegan2.py", "training/networks.py"
    write(real, new, ADA, old.read_text())
    old.unlink()
    write(real, "training/loss.py", ADA_LOSS)
    found = made(real)
    found.step(lazy=True)
    assert source.networks_of(real) == "networks"
    assert found.G.plain.more["num_fp16_res"] == 0
    assert found.G.plain.more["conv_clamp"] == 256 and "fused_modconv_default" not in found.G.plain.more
    assert found.loss.parts == (found.G.mapping, found.G.synthesis)
    assert found.loss.seen == [(name, True) for name in ("Gmain", "Greg", "Dmain", "Dreg")]


def test_what_is_no_clone_is_said_in_one_line(tmp_path, clone, monkeypatch):  # noqa: F811
    def refused(folder, *more):
        asked = ["upstream", str(folder), "--device", "cpu", "--out", str(tmp_path / "out"), *more]
        run = CliRunner().invoke(cli.main, asked)
        assert run.exit_code == 2 and run.output.count("\n") == 1, run.output
        return run.output

    assert "nothing: no such folder: `git clone https://" in refused(tmp_path / "nothing")
    assert "no training/networks_stylegan2.py: give the folder of a clone" in refused(tmp_path)
    assert "no training/networks_stylegan2.py" in refused(clone / "training")
    assert "workload: norm: NVIDIA's networks have 'demod' alone" in refused(clone, "-w", "adain-256")
    for path in source.NEEDED:
        text = (clone / path).read_text()
        (clone / path).unlink()
        assert f"no {path}: give the folder of a clone" in refused(clone)
        (clone / path).write_text(text)
    assert set(source.NEEDED) <= set(FILES)


@pytest.mark.parametrize(
    ("nvcc", "ninja", "says"), [("no nvcc", "/bin/ninja", "no nvcc"), (None, None, "no ninja on")]
)
def test_ops_that_cannot_be_built_are_said_before_anything_is_measured(monkeypatch, nvcc, ninja, says):
    monkeypatch.setattr(system, "list_capabilities", lambda device: {"nvcc": nvcc})
    monkeypatch.setattr(source.shutil, "which", lambda name: ninja)
    with pytest.raises(source.UserError, match=f"built at first use, and cannot be here: {says}"):
        source.refuse_unbuildable("cuda")
    source.refuse_unbuildable("cpu")
    monkeypatch.setattr(system, "list_capabilities", lambda device: {"nvcc": None})
    monkeypatch.setattr(source.shutil, "which", lambda name: "/bin/ninja")
    source.refuse_unbuildable("cuda")
