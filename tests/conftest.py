"""What every test shares: without a GPU, GPU tests are skipped and Triton kernels run in its interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so it is set here, before any test module is imported.
Importing torch costs seconds: it waits until a GPU is seen or a GPU test is selected.
"""

import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ladder.core import git, text
from tests.support import interpreter, sweeps

if TYPE_CHECKING:
    from tests.support.servers import Kept

pytest.register_assert_rewrite("tests.support.rung_steps")


def nvml_sees_a_gpu() -> bool:
    """Whether the NVIDIA driver reports a GPU; False too where there is no driver. Costs milliseconds."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount() > 0
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no driver, no library, no permission: all mean that there is no GPU to use
        return False


def torch_has_cuda() -> bool:
    """Whether this torch can run on a GPU here (it may be a CPU build on a machine with one)."""
    import torch

    return torch.cuda.is_available()


# Tests run side by side, and threads that wait for a core that another process has spin: a test of 7 s took 97.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Containers set it. Each process would then rewrite every test module anew, for seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A hook that runs the tests exports GIT_DIR: commands that the tests start must not work on the user's repository.
for name in os.environ.keys() - git.clean_environment().keys():
    del os.environ[name]
# A program that a script starts with `&` ignores Ctrl-C, and so do its children; tests interrupt programs on purpose.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not (nvml_sees_a_gpu() and torch_has_cuda()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keep modules and tests, which live until the end, out of every collection of garbage: some million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    """Skip modules that import asv where it is not installed. One of them would end `-m gpu` before any test ran."""
    report = yield
    if report.failed and importlib.util.find_spec("asv") is None:
        skip_for_asv(report)
    return report


def skip_for_asv(report: pytest.CollectReport) -> None:
    """Make of a module that could not be imported for want of asv one that is skipped."""
    if re.search(r"No module named 'asv(_runner)?['.]", str(report.longrepr)):
        reason = "Skipped: asv is not installed: requirements.lock has it"
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make Triton's interpreter faster once it is imported. Tests of kernels get kernels."""
    interpreter.speed_up()
    if alternatives := sys.modules.get("kernels.alternatives"):
        alternatives._in_force = {}


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which leaves out what -m does not want
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where torch finds no GPU; where outcomes are recorded, leaves out all others."""
    sweeps.mark_exhaustive(items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # see the Makefile
    if config.getoption("--record-outcomes") is not None:
        others = [item for item in items if not TABLES.keys() & set(item.fixturenames)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests and not torch_has_cuda():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture
def references(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of parity's references and budgets: each is made once a run, whichever process needs it first.

    A test that changes what they are made of takes a folder of its own.
    """
    from ladder.parity import reference

    monkeypatch.setattr(reference, "KEPT", 1000)
    base = tmp_path_factory.getbasetemp()
    return (base.parent if hasattr(request.config, "workerinput") else base) / "references"


@pytest.fixture(scope="session")
def server_with_torch() -> "Iterator[Callable[[], Kept]]":
    """Return the one server of this checkout's code that all modules with `kept_servers` share."""
    made: list[Kept] = []

    def get() -> "Kept":
        from tests.support.servers import Kept

        if not made:
            made.append(Kept(None, True))
        return made[0]

    yield get
    for each in made:
        each.end()


# --- a history of toys for asv, see tests/support/toyhistory.py ---


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support import toyhistory

    return toyhistory.make(tmp_path_factory.mktemp("template") / "clone")


@pytest.fixture
def history(template: Path, tmp_path: Path) -> Path:
    """The repository, for one test to change."""
    shutil.copytree(template, tmp_path / "clone")
    return tmp_path / "clone"


# --- what planted faults came to, see tests/support/outcomes.py ---

TABLES = {
    "outcome": "faults",
    "planted_bug": "planted-bugs",
    "sabotaged_rung": "sabotaged-rungs",
    "hostile_file": "hostile",
}
_rows: dict[str, list[dict[str, Any]]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-outcomes",
        metavar="FOLDER",
        type=Path,
        help="run only the tests that plant faults, bugs and sabotage, and write what came of each to FOLDER",
    )


def _recorder(request: pytest.FixtureRequest, kind: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    test = f"{request.path.name} {request.node.name.partition('[')[0].removeprefix('test_')}"

    def say(**row: Any) -> None:
        _rows.setdefault(TABLES[request.fixturename], []).append(kind(**row, test=test))

    return say


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Callable[..., None]:
    """outcome(fault=, injected=, outcome=, count=1, number=None, kept=None): see `tests.support.outcomes.fault`."""
    from tests.support import outcomes

    return _recorder(request, outcomes.fault)


@pytest.fixture
def planted_bug(request: pytest.FixtureRequest) -> Callable[..., None]:
    """planted_bug(bug=, planted=, problem=): see `tests.support.outcomes.planted_bug`."""
    from tests.support import outcomes

    return _recorder(request, outcomes.planted_bug)


@pytest.fixture
def sabotaged_rung(request: pytest.FixtureRequest) -> Callable[..., None]:
    """sabotaged_rung(rung=, sabotage=, planted=, line=): see `tests.support.outcomes.sabotaged_rung`."""
    from tests.support import outcomes

    return _recorder(request, outcomes.sabotaged_rung)


@pytest.fixture
def hostile_file(request: pytest.FixtureRequest) -> Callable[..., None]:
    """hostile_file(file=, planted=, line=): see `tests.support.outcomes.hostile_file`."""
    from tests.support import outcomes

    return _recorder(request, outcomes.hostile_file)


@pytest.fixture
def refused(sabotaged_rung: Callable[..., None], outcome: Callable[..., None]) -> Callable[..., None]:
    """refused(rung, evidence, words of the reason, sabotage=what was done, planted="step" or "evidence")."""
    from ladder import receipts
    from ladder.plan import catalog

    def check(rung: str, seen: dict, *words: str, sabotage: str, planted: str = "step") -> None:
        found = catalog.load_rung(rung).receipt(seen)
        assert not found.engaged
        assert all(text.TEXT.fullmatch(line) for line in found.lines), found.lines
        for word in words:
            assert word in found.reason, found.lines
        against = [line for line in found.lines if line.startswith(receipts.NOT)]
        line = next((line for line in against if all(word in line for word in words)), against[0])
        sabotaged_rung(rung=rung, sabotage=sabotage, planted=planted, line=line)
        what = "something on that it leaves off" if rung == "baseline" else "its change not applied"
        where = {"step": "in a real step", "evidence": "in what an inspected step showed"}[planted]
        outcome(fault="silent fallback", injected=f"{rung}: {what}, {where}", outcome="not engaged")

    return check


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Write the tables, if every test passed: an outcome that a test did not accept is not one to publish."""
    folder = config.getoption("--record-outcomes")
    if folder is None:
        return
    if exitstatus != 0:
        terminalreporter.write_line("--record-outcomes: nothing is written, not every test passed", red=True)
        return
    from tests.support import outcomes

    for path in outcomes.write(folder, _rows):
        terminalreporter.write_line(f"--record-outcomes: {path}")
