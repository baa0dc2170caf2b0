"""`ladder upstream --patched`: a stand-in whose networks use the ops, patched, compared and timed."""

from __future__ import annotations

import contextlib
import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ladder.cli import main as cli
from ladder.core.protocol import IN_ORDER
from ladder.engine import forkserver
from ladder.engine.pool import Pool
from ladder.publish.export import drop_in, package
from ladder.publish.pages.__main__ import TABLES
from ladder.publish.pages.committed import Committed
from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.upstream import examined, record, source, study
from ladder.studies.upstream.record import PATCHED, UPSTREAM
from ladder.studies.upstream.study import STUDY
from tests.studies.upstream.test_upstream import WORKLOAD, file_of_least, kept, standing_in  # noqa: F401
from tests.support import servers
from tests.support.commands import refused

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")

# Ops in plain PyTorch, and networks and losses that need their second derivatives.
FILES = {
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
    "torch_utils/ops/fma.py": "def fma(a, b, c):\n    return a * b + c\n",
    "torch_utils/ops/conv2d_resample.py": """
        import torch
        from . import conv2d_gradfix
        def conv2d_resample(x, w, padding):
            return torch.nn.functional.conv2d(x, w, padding=padding)
        """,
    "training/networks_stylegan2.py": """
        import torch
        from torch_utils.ops import bias_act, conv2d_resample, fma, upfirdn2d
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
        class Generator(Net):
            def __init__(self, z_dim, c_dim, w_dim, img_resolution, img_channels, mapping_kwargs, **more):
                super().__init__(1, 3, COUNT_G)
                self.side = 2 * img_resolution
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
            def accumulate_gradients(self, phase, real_img, real_c, gen_z, gen_c, gain, cur_nimg):
                z = gen_z[:, :4].requires_grad_()
                image = self.G(torch.rand([len(z), 1, self.G.side, self.G.side], device=z.device), z)
                ones = torch.ones([len(z), 4], device=z.device)
                if phase == 'Greg':
                    (g,) = torch.autograd.grad((image * torch.randn_like(image)).sum(), z, create_graph=True)
                    loss = (g.square().sum(1).sqrt() - 1).square().mean()
                elif phase == 'Dreg':
                    real = real_img.detach().requires_grad_()
                    with conv2d_gradfix.no_weight_gradients():
                        (g,) = torch.autograd.grad(self.D(real, ones).sum(), real, create_graph=True)
                    loss = g.square().sum((1, 2, 3)).mean()
                elif phase == 'Dmain':
                    loss = self.plain(self.D(image.detach(), ones)).mean() + self.plain(-self.D(real_img, ones)).mean()
                else:
                    loss = self.plain(-self.D(image, ones)).mean()
                loss.mul(gain).backward()
        """,
}


@pytest.fixture(scope="module", autouse=True)
def plain_ops() -> Iterator[None]:
    """No worker runs kernels in Triton's interpreter, where a step takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(forkserver.QUIET, "TRITON_INTERPRET", "0")
        yield


@contextlib.contextmanager
def clone_with_ops(folder: Path) -> Iterator[Path]:
    weights = study.count_weights(WORKLOAD)
    with standing_in(folder) as clone:
        for path, text in FILES.items():
            for net, count in weights.items():
                text = text.replace(f"COUNT_{net}", str(count))
            (clone / path).write_text(textwrap.dedent(text))
        yield clone


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    with clone_with_ops(tmp_path / "clone") as folder:
        yield folder


def ask(clone: Path, folder: Path, *more: object) -> Result:
    asked = ["upstream", clone, "-w", file_of_least(folder), "--device", "cpu", "--out", folder / "out"]
    return CliRunner().invoke(
        cli.main, [*map(str, asked), "--patched", "--no-inspect", "--rounds", "1", *map(str, more)]
    )


def only(folder: Path) -> dict:
    return json.loads(next((folder / "out").glob("*.json")).read_text())


def derive(data: dict) -> record.Figures:
    return record.Figures(frame.decode_file(STUDY, data))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, kept_servers: None, plain_ops: None) -> Path:
    """The folder of a whole run, for tests that only read it, and what the clone's files were before it."""
    folder = tmp_path_factory.mktemp("patched")
    with clone_with_ops(folder / "clone") as clone:
        before = {path: path.read_bytes() for path in sorted(clone.rglob("*")) if path.is_file()}
        run = ask(clone, folder)
        assert {path: path.read_bytes() for path in sorted(clone.rglob("*")) if path.is_file()} == before
    assert run.exit_code == 0, run.output
    return folder


# ---- a run -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_patched_clone_is_compared_and_then_timed_beside_the_clone(finished: Path) -> None:
    result = derive(only(finished))
    programs = [*result.programs.values()]
    assert [each.side for each in programs] == ["upstream", "patched", "ours"]
    assert all(len(each.rounds) == 1 and each.status == "ok" for each in programs)
    patched = STUDY.derive(frame.decode_file(STUDY, only(finished)))["patched"]
    assert patched["parity"]["verdict"] == "ok" and set(patched["parity"]["phases"]) == set(IN_ORDER)
    for errors in patched["parity"]["phases"].values():  # FP32's rounding, and not zero: FP64 is another run
        assert 1e-9 < errors.unpatched < 1e-5 and 1e-9 < errors.patched < 1e-5, errors
    assert programs[0].settings["fast_double_backward"] is False
    assert programs[1].settings["fast_double_backward"] is True
    for each in programs[:2]:
        (visit,) = each.rounds
        assert visit.main_ms > 0 and set(visit.lazy_ms) <= {"G_pl", "D_r1"}
    medians = [each.step_ms for each in programs]
    assert patched["ratio"].median == pytest.approx(medians[0] / medians[1])
    assert patched["gpu_ratio"] is None and patched["phases"] is None  # a CPU has no GPU time
    (path,) = (finished / "out").glob("*.json")
    assert validate.problem_of(path) is None and str(finished) not in path.read_text()
    page = path.with_suffix(".md").read_text()
    assert "the same, patched" in page and "| both main phases |" in page and "parity ok at batch 2" in page


@pytest.mark.slow
def test_a_patched_clone_that_was_timed_has_no_number_without_parity(finished: Path) -> None:
    """What a file says of parity follows from its errors, by today's budget."""
    for change, words in (
        (lambda errors: errors["D_r1"].update(patched=0.5), "D_r1: error"),
        (lambda errors: errors.pop("G_pl"), "G_pl: not compared"),
    ):
        data = only(finished)
        change(data["observed"][record.ERRORS]["errors"])
        program = derive(data).programs[PATCHED]
        assert program.status == "failed: parity" and words in program.reason


def broken(monkeypatch: pytest.MonkeyPatch, path: str, right: str, wrong: str) -> None:
    """Plant a bug in a drop-in file."""
    texts = drop_in.render_files(_origin())
    assert right in texts[path]
    monkeypatch.setattr(drop_in, "render_files", lambda _: texts | {path: texts[path].replace(right, wrong)})


@pytest.mark.slow
def test_a_contender_with_other_gradients_is_not_timed(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One small tensor's gradient is missing."""
    broken(
        monkeypatch, "ops/fma.py", "return torch.addcmul(c, a, b)", "return torch.addcmul(c.detach(), a, b)"
    )
    run = ask(clone, tmp_path, "--ladder", "article")
    assert run.exit_code == 1 and "failed: parity" in run.output and "patched: G_main: error" in run.output, (
        run.output
    )
    result = derive(only(tmp_path))
    assert [len(each.rounds) for each in result.programs.values()] == [1, 0, 1]
    assert result.programs[PATCHED].status == "failed: parity" and result.derive_wall_ratio(PATCHED) is None


def _origin() -> object:
    from tests.support.drop_in_cases import ORIGIN

    return ORIGIN


def test_a_clone_that_lacks_a_replaced_file_is_refused_before_anything_is_written(
    clone: Path, tmp_path: Path
) -> None:
    for path in study.list_replaced(drop_in.render_files(_origin())):
        text = (clone / "torch_utils" / path).read_text()
        (clone / "torch_utils" / path).unlink()
        run = ask(clone, tmp_path)
        assert run.exit_code == 2 and run.output.count("\n") == 1 and path in run.output, run.output
        (clone / "torch_utils" / path).write_text(text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [(), ("--patched",)])
def test_a_clone_with_the_drop_in_files_in_it_is_not_measured_as_nvidias(
    clone: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Who follows docs/adopt.md may give the very clone that has the files already."""
    drop_in.export(package.read_origin(), tmp_path / "ops")
    shutil.copytree(tmp_path / "ops/torch_utils", clone / "torch_utils", dirs_exist_ok=True)
    said = refused("upstream", clone, "--device", "cpu", "--out", tmp_path / "out", *more)
    assert (
        "torch_utils/ops/bias_act.py comes from `ladder export`" in said
        and "git checkout torch_utils" in said
    )
    assert not (tmp_path / "out").exists()


def test_the_copy_has_the_drop_in_files_and_else_the_clones(clone: Path, tmp_path: Path) -> None:
    texts = drop_in.render_files(_origin())
    (clone / "training" / "data.zip").write_bytes(b"x")
    facts = record.Source(source.networks_of(clone), source.digest_of(clone))
    copy = study.copy_patched(study.Clone(clone, facts, texts, ""), tmp_path / "copy")
    for path in sorted(each.relative_to(clone) for each in clone.rglob("*") if each.is_file()):
        below = path.relative_to("torch_utils").as_posix() if path.parts[0] == "torch_utils" else ""
        same = (copy / path).read_bytes() == (clone / path).read_bytes()
        assert same != (below in texts), path
    assert (copy / "torch_utils/ops" / drop_in.PACKAGE / "__init__.py").is_file()


# ---- its parts ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gpu_times_reach_the_report(finished: Path, tmp_path: Path) -> None:
    """Stored as on a GPU: profiled cycles of a step, and the runs of each phase."""
    data = only(finished)
    observed, cases = data["observed"], data["cases"]
    for side, factor in ((UPSTREAM, 1.0), (PATCHED, 0.5), ("ours", 0.25)):
        cycle = {"gpu_ms": 40.0 * factor, "wall_ms": 99.0, "kernels": 9.0}
        observed["generation 1"]["programs"][side]["round"]["profiled"] = [cycle]
    for number in (1, 2):  # fewer generations are not quoted
        again = json.loads(json.dumps(observed["generation 1"]))
        for visit in again["programs"].values():
            visit["round"]["round"] = number
        observed[f"generation {number + 1}"] = again
        cases[f"generation {number + 1}"] = cases["generation 1"]
    times = {phase: {"gpu_ms": [30.0, 10.0, 20.0], "kernels": 5.0} for phase in IN_ORDER}
    patched = times | {"D_r1": {"gpu_ms": [4.0], "kernels": 5.0}}
    observed[record.PHASES] = {"phases": {UPSTREAM: times, PATCHED: patched}}
    cases[record.PHASES] = cases["generation 1"]
    file = frame.decode_file(STUDY, data)
    assert STUDY.derive(file)["patched"]["gpu_ratio"].median == pytest.approx(2)
    _, phases = STUDY.list_tables(file)
    rows = {row[0]: row for row in phases.rows}
    assert rows["D_r1"][3:6] == [20.0, 4.0, 5.0] and rows["G_main"][5] == 1.0
    assert rows["both main phases"][1] and rows["G_main"][1] is None
    (tmp_path / "results/upstream").mkdir(parents=True)
    (tmp_path / "results/upstream/m-least.json").write_text(json.dumps(data))
    shown = TABLES["upstream"](Committed(tmp_path), "m")
    assert "| 20.00 | 4.00 | 5.00x |" in shown and shown.count("\n|---") == 2


@pytest.mark.gpu
def test_a_gpu_has_the_same_gradients_and_tells_the_time_of_each_phase(clone: Path, tmp_path: Path) -> None:
    """The patched stand-in runs the fused ops, forward and through both derivatives."""
    study.add_package(tmp_path)
    facts = record.Source(source.networks_of(clone), source.digest_of(clone))
    copy = study.copy_patched(
        study.Clone(clone, facts, drop_in.render_files(_origin()), ""), tmp_path / "patched"
    )
    job = SimpleNamespace(workload=WORKLOAD | {"data": None}, device="cuda")
    session: Any = SimpleNamespace(job=job, report=print)
    with Pool(code=tmp_path) as workers:
        parity = record.find_parity_problem(
            study.compare_gradients(session, {UPSTREAM: clone, PATCHED: copy}, workers)
        )
        times = study.examine_clone(session, workers, copy, examined.TIMES)
    assert parity is None, parity
    assert set(times) == set(IN_ORDER)
    assert all(len(each["gpu_ms"]) == examined.REPEATS and each["kernels"] > 5 for each in times.values())
