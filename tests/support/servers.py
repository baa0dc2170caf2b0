"""The processes that import what is measured, kept while a module's tests run: importing torch takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ladder.core.paths import ROOT
from ladder.engine import pool
from ladder.engine.forkserver import ForkServer


class Kept(ForkServer):
    """A server that outlives its pools."""

    def close(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def end(self) -> None:
        ForkServer.stop(self)
        ForkServer.close(self)


@pytest.fixture(scope="module")
def kept_servers(server_with_torch: Callable[[], Kept]) -> Iterator[None]:
    """Give every pool of the same code the same server. That of the real model outlives the module.

    Code in a temporary folder is the same where its `stylegan_lite` reads the same, so it must be that one file.
    """
    made: dict[tuple[object, bool], Kept] = {}

    def server(code: Path | None = None, torch: bool = True) -> Kept:
        of = None if code in (None, ROOT) else (Path(code) / "stylegan_lite/__init__.py").read_text()
        if torch and of is None:
            return server_with_torch()
        if (of, torch) not in made:
            made[of, torch] = Kept(code, torch)
        return made[of, torch]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "ForkServer", server)
        yield
    for each in made.values():
        each.end()
