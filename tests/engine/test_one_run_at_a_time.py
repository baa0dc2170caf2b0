"""Every command holds the user's folder that it writes into, and the GPU that it uses.

Once it holds a folder, it looks again at what is there.
"""

import tempfile
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core import locks, text
from ladder.core.errors import UserError
from ladder.engine import parts
from ladder.images import for_workload
from ladder.machine import environment, system
from ladder.studies import frame
from ladder.studies.kernelbench.bench import Bench
from ladder.studies.kernelbench.study import KernelStudy
from ladder.studies.precision import PrecisionStudy
from ladder.studies.roofline import measure as roofline_measure
from ladder.studies.roofline import study as roofline
from ladder.training import sample, train


@contextmanager
def held(folder):
    """Hold the folder as another run on this machine does."""
    with locks.folder_lock(folder, text.make_slug(system.describe_machine("cpu")["name"])):
        yield


def measured(*_, **__):
    raise AssertionError("it measures beside another run")


@pytest.mark.parametrize(
    ("arguments", "module", "name"),
    [(["kernels", "--op", "bias_act"], KernelStudy, "observe"), (["precision"], PrecisionStudy, "observe")],
)
def test_a_second_run_into_one_folder_is_refused(arguments, module, name, tmp_path, monkeypatch):
    monkeypatch.setattr(module, name, measured)
    with held(tmp_path):
        said = CliRunner().invoke(cli.main, [*arguments, "--device", "cpu", "--out", str(tmp_path)])
    assert said.exit_code == 2, said.output
    assert f"ladder: {tmp_path}: another run is writing here" in said.output


def state():
    """Return how this process holds the lock of the GPU."""

    class Held(Exception):
        pass

    def refuse():
        raise Held

    for shared, how in ((True, "alone"), (False, "shared")):
        try:
            with locks.device_lock("a gpu", refuse, shared=shared):
                pass
        except Held:
            return how
    return "free"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Give the CPU a lock. gpu(module, name) -> the states in which this function was called; it then fails."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(system, "device_key", lambda device: "a gpu")
    monkeypatch.setattr(system, "device_keys", lambda device, count: ["a gpu"])

    def watch(module, name):
        seen = []

        def use(*_, **__):
            seen.append(state())
            raise UserError("enough")

        monkeypatch.setattr(module, name, use)
        return seen

    return watch


@pytest.mark.parametrize(
    ("arguments", "module", "name", "how"),
    [
        ("kernels --op bias_act --device cpu", Bench, "__init__", "alone"),
        ("kernels --op bias_act --device cpu", frame, "render_page", "alone"),
        ("sample FILE --device cpu", sample, "draw_images", "shared"),
        ("train --workload tiny --steps 1 --device cpu", train, "train_model", "shared"),
    ],
)
def test_a_command_holds_the_gpu_that_it_uses(arguments, module, name, how, gpu, tmp_path, monkeypatch):
    seen, file = gpu(module, name), tmp_path / "file"
    file.touch()
    monkeypatch.setattr("ladder.studies.kernelbench.bench.compile_ours", lambda *_: None)
    if name == "render_page":  # the context of the measurement is still there
        monkeypatch.setattr(Bench, "measure_case", lambda *_: [])
    monkeypatch.setattr(for_workload, "prepare_images", lambda *_: None)
    words = [str(file) if word == "FILE" else word for word in arguments.split()]
    words += ["--out", str(tmp_path / "out")]
    said = CliRunner().invoke(cli.main, words)
    assert (said.exit_code, seen) == (2, [how]), said.output
    assert state() == "free"


def done(*_, **__):
    """Stand for a measurement."""


def test_what_is_timed_without_a_command_holds_the_gpu(gpu, tmp_path, monkeypatch):
    for use, module, name in (
        (lambda: parts.time_phases({}, {}, "cpu"), parts.Rung, "do_import"),
        (lambda: parts.time_loading({}, {}, "cpu"), parts, "_make_feed"),
    ):
        seen = gpu(module, name)
        with pytest.raises(Exception, match="enough"):
            use()
        assert seen == ["alone"]
        monkeypatch.setattr(parts.Rung, "do_import", done)
    monkeypatch.setattr(system, "choose_device", lambda _: "cuda")
    monkeypatch.setattr(environment, "refuse_variables", done)
    facts = system.describe_machine("cpu")
    monkeypatch.setattr(system, "describe_machine", lambda device: facts)
    monkeypatch.setattr(system, "list_capabilities", lambda device: {})
    monkeypatch.setattr(roofline, "OUT", tmp_path)
    seen = gpu(roofline_measure, "observe_step")
    with pytest.raises(UserError, match="enough"):
        roofline.measure_distance(roofline.Options(rung="baseline"), "tiny", None, True)
    assert seen == ["alone"]
