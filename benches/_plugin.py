"""What asv lacks for this project: an environment that installs nothing, a machine record that knows the GPU.

asv loads this module by asv.conf.json and calls `setup`. It is imported while benchmarks are discovered as well,
where it must do nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import asv.benchmarks
import asv.environment
import asv.machine
import asv.util
from asv.console import log

from benches import ROOT
from benches._measure import HANDOVER

WANTED = [
    r"^(?!kernels\.)"
]  # what runs without --bench: not the kernels, a process of seconds for each of hundreds
CODE_UNDER_TEST = ("stylegan_lite", "kernels")


class Checkout(asv.environment.Environment):
    """The interpreter that runs asv, and a commit's checkout in front of its path.

    Nothing is built or installed, so a commit costs a second. The versions of torch, Triton and CUDA are this
    environment's requirements: asv makes them parameters of the page and starts new series where they change.
    """

    tool_name = "checkout"
    matches_python_fallback = False

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict) -> None:
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if python not in ("same", here, sys.executable):
            _stop(f"only the Python that runs asv ({here}) is measured; start asv with the other one")
        self._python = here
        self._requirements = requirements | libraries()  # before super(): it names its folder after them
        super().__init__(conf, here, self._requirements, tagged_env_vars)
        self._handover: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def matches(cls, python: str) -> bool:
        return True  # so that another Python is refused above, in one line

    @property
    def code(self) -> str:
        """The folder that the measured packages come from."""
        return self._build_root

    def check_presence(self) -> bool:
        return True

    def create(self) -> None:
        Path(self._path).mkdir(parents=True, exist_ok=True)

    def _get_installed_commit_hash(self) -> None:
        return None  # always check out again: a second, and the tree is certainly the commit's

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        self._handover = None
        self.checkout_project(repo, commit_hash)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        env = dict(kwargs.pop("env", os.environ))
        env.pop("PYTHONPATH", None)
        env["ASV_PYTHONPATH"] = self.code
        env[HANDOVER] = self._handover_folder()
        return asv.util.check_output([sys.executable, *args], env=env, **kwargs)

    def _handover_folder(self) -> str:
        if self._handover is None:
            self._handover = tempfile.TemporaryDirectory(prefix="asv-ladder-")
            here = {key: machine_here()[key] for key in ("device", "capabilities")}
            (Path(self._handover.name) / "machine.json").write_text(json.dumps(here))
        return self._handover.name


class WorkingTree(Checkout):
    """`--python=same`: the files as they are, saved under HEAD; uncommitted changes make a series of their own."""

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict) -> None:
        super().__init__(
            conf, python, requirements | ({"tree": "dirty"} if _dirty() else {}), tagged_env_vars
        )

    @property
    def code(self) -> str:
        return str(ROOT)

    def can_install_project(self) -> bool:
        return False

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        self._handover = None


def libraries() -> dict[str, str]:
    """Versions that make a new series, read without importing: torch, triton, and the CUDA that torch is for."""
    found = {}
    for name in ("torch", "triton", "asv_runner"):
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"  # Triton has no wheel for some systems
    for name in ("torch", "asv_runner"):
        if found[name] == "none":
            _stop(f"the Python that runs asv has no {name}: `make ladder`, then `. .venv/bin/activate`")
    del found["asv_runner"]
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
    cuda = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", version, re.MULTILINE)
    return {**found, "cuda": cuda[1] if cuda else "none"}


@functools.cache
def machine_here() -> dict[str, Any]:
    """{"device", "capabilities", "facts"} of `ladder.machine`, asked once for an asv run."""
    from ladder import machine
    from ladder.errors import UserError

    try:
        device = machine.choose_device()
        return {
            "device": device,
            "capabilities": machine.capabilities(device),
            "facts": machine.facts(device),
        }
    except UserError as error:
        _stop(str(error))


def machine_record(name: str | None = None) -> dict[str, str]:
    """asv's machine record, from the hardware alone: no host name, nothing that a system update changes."""
    facts = machine_here()["facts"]
    memory = facts["gpu_memory_gb"]
    return {
        "machine": name or facts["name"],
        "os": facts["os"].split()[0],
        "arch": facts["os"].split()[-1],
        "cpu": facts["cpu"],
        "num_cpu": str(facts["cores"]),
        "ram": f"{facts['ram_gb']:.0f} GB",
        "gpu": facts["gpu"] or "none",
        "gpu_memory": "none" if memory is None else f"{memory:.0f} GB",
    }


def _load_machine(
    cls: type,
    interactive: bool = False,
    force_interactive: bool = False,
    _path: str | None = None,
    machine_name: str | None = None,
    use_defaults: bool = False,
    **given: str,
) -> Any:
    """Stands in for `Machine.load`: asks nothing, reads and writes no file of the user's home."""
    self = cls()
    self.__dict__.update(machine_record(machine_name))
    if force_interactive or given:  # `asv machine`
        log.info("The machine is described from its hardware at every run; nothing is stored for it:")
        for key, value in self.__dict__.items():
            log.info(f"  {key}: {value}")
    return self


def _dirty() -> bool:
    command = ["git", "status", "--porcelain", "--", *CODE_UNDER_TEST]
    return bool(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip())


def _stop(reason: str) -> NoReturn:
    log.flush()
    print(f"asv: {reason}", file=sys.stderr)
    raise SystemExit(2)


def setup() -> None:
    """asv's hook for plugins: called once, in asv's own process."""
    by_python = asv.environment.get_environment_class
    by_name = asv.environment.get_environment_class_by_name

    def environment_class(conf: Any, python: str) -> type:
        return WorkingTree if python == "same" else by_python(conf, python)

    def environment_class_by_name(name: str) -> type:
        return WorkingTree if name == "existing" else by_name(name)

    discover = asv.benchmarks.Benchmarks.discover.__func__

    def discover_wanted(cls: type, *args: Any, regex: Any = None, **kwargs: Any) -> Any:
        return discover(cls, *args, regex=regex or WANTED, **kwargs)

    asv.benchmarks.Benchmarks.discover = classmethod(discover_wanted)
    asv.environment.get_environment_class = environment_class
    asv.environment.get_environment_class_by_name = environment_class_by_name
    asv.machine.Machine.load = classmethod(_load_machine)
