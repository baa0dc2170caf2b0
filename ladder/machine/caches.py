"""Folders in which compilers keep their output: emptied for a process, warmed by one, or one for each source.

Triton, Inductor, torch's builder of C++ extensions and the driver read them from environment variables when a process
first compiles. So a folder set here holds for processes that are started inside the `with`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from ladder.core import files
from ladder.core.paths import ROOT

VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "driver",  # PTX that the driver has compiled
}
BUILDS = ROOT / ".cache" / "extensions"


def point_into(folder: Path) -> dict[str, str]:
    """Return variables that put every cache into `folder`. It is cold while empty, warm once a process has compiled."""
    return {variable: str(Path(folder) / name) for variable, name in VARIABLES.items()}


def choose_build_folder(code: Path, root: Path = BUILDS) -> dict[str, str]:
    """Return the variable for the folder in which the C++ and CUDA extensions of the checkout `code` are built.

    Each state of the sources has its own folder: torch names it by the extension alone, so a commit would find
    another commit's build there. Empty if `code` has no such sources.
    """
    sources = files.list_below(Path(code) / "kernels", files.COMPILED)
    if not sources:
        return {}
    digest = files.digest_sources(Path(code), sources)[:16]
    about = f"torch{importlib.metadata.version('torch')}-py{platform.python_version()}"
    return {"TORCH_EXTENSIONS_DIR": str(Path(root) / f"{digest}-{about}")}


@contextlib.contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables, and make their folders, for processes started in the block."""
    before = {name: os.environ.pop(name, None) for name in variables}
    for folder in variables.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
