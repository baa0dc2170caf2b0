"""Compiles what `ladder kernels` is about to time: hundreds of Triton kernels, on all cores instead of one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ladder.kernelcalls import call_of
from ladder.kernelcases import Case


def compile_ours(cases: Sequence[Case], gpu: Any) -> Any:
    """Every Triton kernel that these cases launch, into Triton's cache; what fails is compiled when it is launched.

    Returns:
        a `kernels.precompile.Report`.
    """
    from kernels.precompile import compile_ahead

    def call_each() -> None:
        for case in cases:
            for direction in case.directions:
                with contextlib.suppress(Exception):  # it comes again, and is then a row's reason
                    call_of(case, direction, case.fused(), gpu.name)()
                gpu.forget()

    with gpu.running():
        return compile_ahead(call_each)
