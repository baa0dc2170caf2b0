"""A clone of NVIDIA's stylegan3 or stylegan2-ada-pytorch, for tests that compare with NVIDIA's own code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ladder.studies.upstream import source

CLONE = os.environ.get("STYLEGAN3_CLONE", "")
STAND_INS = ("requests", "pkg_resources", "distutils")  # `source.load` makes them where they are missing
needed = pytest.mark.skipif(not CLONE, reason="STYLEGAN3_CLONE names no clone of NVIDIA's repository")


@contextmanager
def imported() -> Iterator[source.Modules]:
    """Import the clone's modules, and forget them and the stand-ins for what they import."""
    path, modules = [*sys.path], {*sys.modules}
    try:
        yield source.load(Path(CLONE))
    finally:
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            top = name.partition(".")[0]
            if top in source.PARTS or (top in STAND_INS and sys.modules[name].__spec__ is None):
                del sys.modules[name]
