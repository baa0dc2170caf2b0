"""Environments of asv that install nothing per commit: a commit is checked out and its checkout comes first on the
path.

The measuring Python and its versions of torch, Triton and CUDA are found without importing them. The versions are
requirements of the environment. asv therefore shows them as parameters and starts new series when they change. No
path of an interpreter is stored.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import asv.environment
import asv.util
from asv.plugins.virtualenv import Virtualenv

from benches import CODE, ROOT
from benches._hardware import machine_here
from benches._interpreter import interpreter, lacks, libraries, stop
from benches._measure import HANDOVER
from ladder.core import git
from ladder.core.errors import UserError
from ladder.core.text import last_line
from ladder.machine import environment as environments

CODE_UNDER_TEST = ("stylegan_lite", "kernels")


class Checkout(asv.environment.Environment):
    """An existing Python with a commit's checkout first on its path."""

    tool_name = "checkout"
    matches_python_fallback = False

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict) -> None:
        self._executable = interpreter(python)
        found = libraries(self._executable)
        if missing := lacks(found):
            stop(f"the Python that measures has no {missing}: `make ladder`, then `. .venv/bin/activate`")
        self._python = found["python"]
        self._requirements = requirements | _versions(
            found
        )  # before super(), which names the folder after them
        super().__init__(conf, self._python, self._requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        return True  # so that __init__ can refuse another Python in one line

    @property
    def code(self) -> str:
        """Return the folder of the measured packages."""
        return self._build_root

    def check_presence(self) -> bool:
        return True

    def create(self) -> None:
        Path(self._path).mkdir(parents=True, exist_ok=True)

    def _get_installed_commit_hash(self) -> None:
        return None  # always check out again; it takes a second and guarantees the commit's files

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        _forget(self)
        self.checkout_project(repo, commit_hash)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        return _run(self, self._executable, args, **kwargs)


class WorkingTree(Checkout):
    """The environment of `--python=same`: the files as they are, saved under HEAD.

    Uncommitted changes form a separate series.
    """

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
        _forget(self)


class Managed(Virtualenv):
    """A virtual environment that asv makes and keeps, one per torch in the configuration's matrix.

    Other packages (`dependencies` in the configuration) are installed beside torch and are no parameters. A commit
    is only checked out, because its two packages need no building. A wheel of every commit in every environment
    would cost more than all other work of asv.
    """

    tool_name = "managed"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict) -> None:
        self._found: dict[str, str] | None = None
        super().__init__(conf, python, requirements, tagged_env_vars)
        if python == f"{sys.version_info[0]}.{sys.version_info[1]}":
            self._executable = sys.executable  # not the first Python on PATH
        self._beside = [
            f"asv_runner=={importlib.metadata.version('asv_runner')}",
            *getattr(conf, "dependencies", []),
        ]

    @property
    def requirements(self) -> dict[str, str]:
        """Return the matrix's requirements, and in an existing environment also pip's versions of Triton and CUDA."""
        if self._found is None and (python := self._executable_inside()):
            found = libraries(python)
            self._found = None if found is None or lacks(found) else found
        return self._requirements | _versions(self._found or {})

    @property
    def name(self) -> str:
        return asv.environment.get_env_name(
            self.tool_name, self._python, self.requirements, self._tagged_env_vars
        )

    @property
    def code(self) -> str:
        return self._build_root

    def _install_requirements(self) -> None:
        """Install all packages in one call, so that pip finds versions that agree.

        asv makes one call per package, and also installs build tools.
        """
        asked = [
            name.removeprefix("pip+") + (f"=={version}" if version[:1].isdigit() else version)
            for name, version in self._requirements.items()
        ]
        self._run_pip(["install", *asked, *self._beside])

    def _setup(self) -> None:
        super()._setup()
        self._found = None
        libraries.cache_clear()

    def _get_installed_commit_hash(self) -> None:
        return None

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        python = self._executable_inside()
        if python is None or (missing := lacks(libraries(python))):
            stop(
                f"the environment {self.name} has no {missing if python else 'Python'}: delete {self._env_dir}"
            )
        _forget(self)
        self.checkout_project(repo, commit_hash)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        return _run(self, Path(self.find_executable("python")), args, **kwargs)

    def _executable_inside(self) -> Path | None:
        try:
            return Path(self.find_executable("python"))
        except OSError:
            return None


def _versions(found: dict[str, str]) -> dict[str, str]:
    return {key: found[key] for key in ("torch", "triton", "cuda") if key in found}


def _run(environment: Any, python: Path, args: list[str], **kwargs: Any) -> Any:
    """Run a Python as asv does, with the commit's code and the folder that the commit's processes share."""
    env = dict(kwargs.pop("env", os.environ))
    env.pop("PYTHONPATH", None)
    env["PATH"] = os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)])
    env["ASV_PYTHONPATH"] = env[CODE] = environment.code
    folder = handover(environment)
    folder.mkdir(parents=True, exist_ok=True)
    here = {key: machine_here(python)[key] for key in ("device", "capabilities")}
    try:
        environments.refuse_variables(here["device"])
    except UserError as error:
        stop(str(error))
    (folder / "machine.json").write_text(json.dumps(here))
    env[HANDOVER] = str(folder)
    if "discover" not in args[:2]:
        return asv.util.check_output([str(python), *args], env=env, **kwargs)
    try:
        return asv.util.check_output([str(python), *args], env=env, display_error=False, **kwargs)
    except asv.util.ProcessError as error:
        stop(f"the benchmarks cannot be imported: {_blamed(error.stderr)}")


def _blamed(traceback: str) -> str:
    """Return the last line of a traceback, with the last place in a file of this project."""
    places = re.findall(rf'File "{re.escape(str(ROOT))}/(.+?)", line (\d+)', traceback)
    where = f"{places[-1][0]}:{places[-1][1]}: " if places else ""
    return where + last_line(traceback)


def handover(environment: Any) -> Path:
    """Return the folder through which the processes of one commit exchange data with each other and asv."""
    # A temporary folder would not do: with --parallel, another process prepares the commit.
    return Path(environment._path) / "handover"


def _forget(environment: Any) -> None:
    """Delete what another commit's benchmarks left, so that it is not taken for this commit's."""
    shutil.rmtree(handover(environment), ignore_errors=True)


def _dirty() -> bool:
    try:
        return bool(git.list_changes(ROOT, CODE_UNDER_TEST))
    except UserError:
        return True  # code that cannot be compared with its commit counts as changed
