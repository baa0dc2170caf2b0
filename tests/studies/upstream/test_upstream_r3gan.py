"""`ladder upstream` of R3GAN: a stand-in for its repository, its iteration, and a run with our ops in it."""

import math

import pytest
import torch

from ladder.core.errors import UserError
from ladder.publish.validation import validate
from ladder.studies.upstream import loops, record, source, step
from tests.studies.upstream import test_upstream, test_upstream_patched
from tests.support import servers
from tests.support.commands import refused

kept, kept_servers, plain_ops = test_upstream.kept, servers.kept_servers, test_upstream_patched.plain_ops
pytestmark = pytest.mark.usefixtures("kept_servers")

# What a step needs of the repository: grouped convolutions of PyTorch's own, a loss with both penalties that notes its
# calls, and a command line that makes a configuration.
OWN = {
    "dnnlib/__init__.py": """
        class EasyDict(dict):
            __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__
        """,
    "R3GAN/Networks.py": """
        import torch
        from torch_utils.ops import bias_act
        class Stage(torch.nn.Module):
            def __init__(self, width, groups, DataType=torch.float32):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.empty(width, width // groups, 3, 3).normal_(0, 0.1))
                self.last = torch.nn.Parameter(torch.zeros(width, width, 1, 1))
                self.bias, self.groups, self.DataType = torch.nn.Parameter(torch.zeros(width)), groups, DataType
                self.register_buffer('Kernel', torch.Tensor([[1.0, 2.0, 1.0]]))
            def forward(self, x):
                assert self.Kernel.dtype == torch.float32
                x = x.to(self.DataType)
                y = torch.nn.functional.conv2d(x, self.weight.to(x.dtype), padding=1, groups=self.groups)
                y = bias_act.bias_act(y, self.bias.to(x.dtype), act='lrelu')
                return x + torch.nn.functional.conv2d(y, self.last.to(x.dtype))
        """,
    "training/networks.py": """
        import torch
        from R3GAN.Networks import Stage
        class Net(torch.nn.Module):
            def __init__(self, WidthPerStage, CardinalityPerStage, FP16Stages, c_dim, img_resolution, ExpansionFactor):
                super().__init__()
                self.seen = (FP16Stages, c_dim, img_resolution)
                stages = zip(WidthPerStage, CardinalityPerStage)
                self.stages = torch.nn.Sequential(*(Stage(width, groups) for width, groups in stages))
                self.ends = torch.nn.Parameter(torch.empty(WidthPerStage[0], 3).normal_())
                self.labels = torch.nn.Parameter(torch.empty(c_dim, WidthPerStage[0]).normal_())
        class Generator(Net):
            def __init__(self, NoiseDimension, **more):
                super().__init__(**more)
                self.first = torch.nn.Parameter(torch.empty(NoiseDimension, len(self.ends)).normal_())
            def forward(self, z, c):
                size = self.seen[2]
                x = (z @ self.first + c @ self.labels)[:, :, None, None].expand(-1, -1, size, size)
                return torch.einsum('ncyx,cd->ndyx', self.stages(x), self.ends)
        class Discriminator(Net):
            def forward(self, x, c):
                x = torch.einsum('ndyx,cd->ncyx', x, self.ends)
                return (self.stages(x).mean((2, 3)) * (c @ self.labels)).sum(1)
        """,
    "training/loss.py": """
        import torch
        class R3GANLoss:
            def __init__(self, G, D, augment_pipe=None):
                self.G, self.D, self.calls = G, D, []
            def accumulate_gradients(self, phase, real_img, real_c, gen_z, gamma, gain):
                self.calls.append((phase, len(real_img), gamma, gain, real_img, gen_z))
                real, fake = real_img.detach().requires_grad_(), self.G(gen_z, real_c)
                fake = fake.detach().requires_grad_() if phase == 'D' else fake
                logits = [self.D(each, real_c) for each in (real, fake)]
                loss = torch.nn.functional.softplus(logits[1] - logits[0] if phase == 'D' else logits[0] - logits[1])
                for each, logit in zip((real, fake), logits) if phase == 'D' else ():
                    (g,) = torch.autograd.grad(logit.sum(), each, create_graph=True)
                    loss = loss + gamma / 2 * g.square().sum((1, 2, 3))
                (gain * loss.mean()).backward()
        """,
    "train.py": """
        import click, dnnlib
        from training import training_loop
        from metrics import metric_main
        def launch_training(c):
            raise SystemExit('it trains')
        def init_dataset_kwargs(data):
            raise SystemExit('it reads images')
        @click.command()
        @click.option('--gpus', type=int)
        @click.option('--batch', type=int)
        @click.option('--preset')
        @click.option('--cond', type=bool)
        @click.option('--aug', type=bool)
        @click.option('--metrics')
        @click.option('--outdir')
        @click.option('--data')
        def main(gpus, batch, preset, cond, aug, data, **more):
            c = dnnlib.EasyDict(batch_size=batch, g_batch_gpu=batch, d_batch_gpu=batch // 2)
            assert gpus == 1 and not aug and init_dataset_kwargs(data)[0].use_labels
            if preset == 'CIFAR10':
                width, groups = [96, 96], [48, 48]
            c.G_kwargs = dnnlib.EasyDict(class_name='training.networks.Generator', NoiseDimension=8)
            c.D_kwargs = dnnlib.EasyDict(class_name='training.networks.Discriminator')
            for net in (c.G_kwargs, c.D_kwargs):
                net.update(WidthPerStage=width, CardinalityPerStage=groups, FP16Stages=[-1], ExpansionFactor=2)
            c.G_opt_kwargs = c.D_opt_kwargs = dnnlib.EasyDict(class_name='torch.optim.Adam', betas=[0, 0], eps=1e-8)
            for name, first, last in (('lr', 2e-4, 5e-5), ('beta2', 0.9, 0.99), ('gamma', 2, 0.2), ('ema', 0, 640)):
                c[name + '_scheduler'] = {'base_value': first, 'final_value': last, 'total_nimg': 1000}
            launch_training(c=c, desc='')
        if __name__ == '__main__':
            main()
        """,
}
THEIRS = ("torch_utils/", "training/__init__.py", "training/dataset.py")
FILES = {path: text for path, text in test_upstream.FILES.items() if path.startswith(THEIRS)} | OWN


@pytest.fixture
def clone(tmp_path):
    with test_upstream.standing_in(tmp_path / "R3GAN-clone", FILES) as folder:
        yield folder


def make_step(clone, batch=4):
    _, workload = source.make_r3gan("tiny", batch, "0" * 16)
    return step.make_step(workload, {"folder": str(clone), "preset": "tiny"}, device="cpu")


def test_an_iteration_trains_d_and_then_g_each_on_images_and_latents_of_its_own(clone):
    built = make_step(clone)
    assert built.G.seen == ([], 10, 32) and built.D.stages[0].weight.shape == (
        4,
        2,
        3,
        3,
    )  # BF16 on a GPU alone
    before = built.G.first.clone()
    built.prepare()
    calls = built.loss.calls
    assert [(each[0], each[1], each[3]) for each in calls] == [("D", 2, 0.5), ("D", 2, 0.5), ("G", 4, 1.0)]
    assert calls[0][2] == 2 and not torch.equal(torch.cat([calls[0][5], calls[1][5]]), calls[2][5])
    assert not torch.equal(before, built.G.first) and torch.equal(
        built.G_ema.first, built.G.first
    )  # no average yet
    assert built.labels.sum() == 4 and float(calls[0][4].min()) >= -1
    assert built.phases(0) == built.phases(7) == ("D_main", "G_main") and built.check_finite() is None


def test_schedules_go_from_first_to_last_value_along_half_a_cosine(clone):
    built = make_step(clone)
    groups = [adam.param_groups[0] for _, _, adam, _ in built.updates]
    for seen, share in ((0, 0.0), (500, 0.5), (750, (1 + math.sqrt(0.5)) / 2), (5000, 1.0)):
        built.seen = seen
        old = built.G_ema.first.clone()
        built.step()
        for group in groups:
            assert group["lr"] == pytest.approx(2e-4 - 1.5e-4 * share)
            assert group["betas"] == (0.0, pytest.approx(0.9 + 0.09 * share))
        assert built.loss.calls[-1][2] == pytest.approx(2 - 1.8 * share)
        beta = 0.5 ** (4 / (640 * share)) if share else 0.0
        assert torch.allclose(built.G_ema.first, built.G.first.lerp(old, beta))


def test_a_preset_that_the_clone_lacks_is_named(clone):
    source.load(clone)
    with pytest.raises(UserError, match=r"train\.py has no preset FFHQ-256"):
        loops.read_config("FFHQ-256", 4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, kept_servers, plain_ops):
    """The folder of a whole run, for tests that only read it."""
    folder = tmp_path_factory.mktemp("r3gan")
    with test_upstream.standing_in(folder / "R3GAN-clone", FILES) as clone:
        before = test_upstream_patched.read_files(clone)
        run = run_upstream(clone, folder, "--patched")
        assert run.exit_code == 0 and test_upstream_patched.read_files(clone) == before, run.output
    return folder


def run_upstream(clone, folder, *more):
    return test_upstream.run_command("upstream", clone, "--device", "cpu", "--out", folder / "out", *more)


@pytest.mark.slow
def test_the_patched_clone_is_compared_with_fp64_and_timed_beside_the_clone(finished):
    data = test_upstream_patched.read_only(finished)
    figures = test_upstream_patched.derive(data)
    theirs, ours = figures.programs.values()
    assert (theirs.side, ours.side) == ("upstream", "patched") and theirs.status == ours.status == "ok"
    errors = data["observed"][record.ERRORS]["errors"]
    assert set(errors) == {"D_main", "G_main"}
    for each in errors.values():  # FP32's rounding, and not zero: FP64 is another run
        assert 1e-9 < each["unpatched"] < 1e-5 and 1e-9 < each["patched"] < 1e-5
    assert [each.settings["fast_double_backward"] for each in (theirs, ours)] == [False, True]
    assert figures.derive_wall_ratio("patched").median == pytest.approx(theirs.step_ms / ours.step_ms)
    (path,) = (finished / "out").glob("*.json")
    assert path.stem.endswith("-r3gan-tiny") and validate.problem_of(path) is None
    page = path.with_suffix(".md").read_text()
    assert "R3GAN's step" in page and "synthetic images, augmentation off" in page and "NVIDIA's" not in page


@pytest.mark.slow
def test_without_parity_of_every_phase_there_is_no_number(finished):
    data = test_upstream_patched.read_only(finished)
    data["observed"][record.ERRORS]["errors"]["D_main"]["patched"] = 0.5
    program = test_upstream_patched.derive(data).programs["patched"]
    assert program.status == "failed: parity" and "D_main: error" in program.reason


def test_what_r3gan_or_nvidia_alone_has_is_refused_for_the_other(clone, tmp_path):
    def refuse(*words):
        return refused("upstream", *words, "--device", "cpu", "--out", tmp_path / "out")

    assert "-w tiny: R3GAN has presets of its own: --preset, --batch" in refuse(clone, "-w", "tiny")
    assert "has no images of its own" in refuse(clone, "--data", clone / "training")
    assert "--batch is R3GAN's" in refuse(tmp_path, "--batch", 4)
    (clone / "train.py").unlink()
    assert f"no train.py: give the folder of a clone of {source.R3GAN_URL}" in refuse(clone)
