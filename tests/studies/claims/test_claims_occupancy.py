"""Occupancy: against the CUDA toolkit's own calculator, and what is read of kernels that were launched."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ladder.studies.claims.experiments import flags_of
from ladder.studies.claims.hardware import resources
from ladder.studies.claims.hardware.occupancy import BY_ARCHITECTURE, occupancy
from ladder.studies.claims.hardware.resources import Kernels
from ladder.studies.claims.schema import Launched
from ladder.studies.kernelbench import launches as kernellaunches

TABLE = Path(__file__).parents[2] / "support" / "data" / "occupancy.txt"


def test_blocks_are_those_of_the_cuda_toolkit():
    rows = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    assert {int(row[0]) for row in rows} == {80, 86, 89, 90, 100, 120}
    for row in rows:
        architecture, threads, registers, shared, blocks = map(int, row)
        found = occupancy(BY_ARCHITECTURE[architecture], threads, registers, shared)
        assert found.blocks == blocks, row


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "share", "limits"),
    [
        (90, 256, 32, 0, 1.0, ("warps", "registers")),
        (90, 32, 16, 0, 0.5, ("blocks",)),  # 32 blocks of one warp, 64 places
        (86, 32, 16, 0, 16 / 48, ("blocks",)),
        (89, 32, 16, 0, 0.5, ("blocks",)),  # 24 of 48
        (80, 128, 128, 0, 0.25, ("registers",)),
        (90, 1024, 65, 0, 0.0, ("registers",)),  # no block fits at all
        (90, 256, 32, 128 * 1024, 0.125, ("shared memory",)),
        (90, 256, 32, 227 * 1024, 0.125, ("shared memory",)),
        (90, 256, 32, 228 * 1024, 0.0, ("shared memory",)),  # 1 KiB is the system's
    ],
)
def test_share_of_the_places_for_warps_and_what_runs_out(
    architecture, threads, registers, shared, share, limits
):
    found = occupancy(BY_ARCHITECTURE[architecture], threads, registers, shared)
    assert (found.share, found.limits) == (share, limits)


@pytest.mark.parametrize("block", [(0, 32, 0), (1025, 32, 0), (128, 256, 0), (128, 32, -1)])
def test_a_block_that_no_gpu_has_is_refused(block):
    with pytest.raises(ValueError, match="no block has"):
        occupancy(BY_ARCHITECTURE[90], *block)


# ---- kernels that were launched --------------------------------------------------------------------------------------


def row(source, kernel="k", grid=(1,), registers=32, local=0, threads=128, language=resources.TRITON):
    return Launched(
        source=source, kernel=kernel, language=language, grid=list(grid), threads=threads, registers=registers,
        shared_bytes=0, local_bytes=local,
    )  # fmt: skip


def test_a_kernel_is_shown_as_its_largest_launch_and_says_how_many_of_its_forms_spill():
    kernels = Kernels()
    for each in (
        row("step", grid=(5,), registers=64, local=8),
        row("step", grid=(900,), registers=40),
        row("step", grid=(7,), registers=40),
    ):
        kernels.add(each)
    kernels.add(row("ops"))
    (ops, step) = kernels.rows(BY_ARCHITECTURE[90])
    assert ops.source == "ops" and step.grid == [900] and step.registers == 40
    assert (step.forms, step.spilling, step.occupancy, step.blocks) == (2, 1, 0.75, 12)
    assert step.limited_by == "registers"


def test_without_registers_or_limits_there_is_a_row_but_no_occupancy():
    kernels = Kernels()
    kernels.add(row("step", registers=None, local=None))
    (found,) = kernels.rows(BY_ARCHITECTURE[90])
    assert found.occupancy is None and found.spilling is None and found.threads == 128
    kernels = Kernels()
    kernels.add(row("step"))
    assert kernels.rows(None)[0].occupancy is None


def test_triton_kernels_are_noted_when_they_are_launched_and_not_when_they_are_only_compiled(monkeypatch):
    metadata = SimpleNamespace(num_warps=8, shared=2048)
    launched = SimpleNamespace(metadata=metadata, n_regs=40, n_spills=3)

    class Launcher:
        arg_names = ("x",)
        __name__ = "some_kernel"
        left_out = False

        def run(self, *args, grid, **kwargs):
            return None if self.left_out else launched

    monkeypatch.setattr(kernellaunches, "_launchers", lambda: [Launcher])
    kernels, kernel = Kernels(), Launcher()
    with kernels.listening("step"):
        kernel.left_out = True  # as compile_ahead leaves launches out
        assert kernel.run(1, grid=(4,), num_warps=8) is None
        assert not kernels.seen
        kernel.left_out = False
        assert kernel.run(1, grid=lambda meta: (4, 2), num_warps=8) is launched
    kernel.run(1, grid=(4,), num_warps=8)  # nobody listens
    (found,) = kernels.rows(BY_ARCHITECTURE[90])
    assert (found.kernel, found.grid, found.threads) == ("some_kernel", [4, 2], 256)
    assert (found.registers, found.shared_bytes, found.local_bytes) == (40, 2048, 12)


def test_kernels_of_cuda_cpp_are_read_from_the_profilers_trace():
    event = {
        "cat": "kernel",
        "name": "void (anonymous namespace)::copy_kernel<float, Pair<int> >(float const*, float*, long)",
        "args": {"registers per thread": 22, "shared memory": 512, "grid": [3, 2, 1], "block": [64, 2, 1]},
    }
    other = {"cat": "gpu_memset", "name": "Memset", "args": {}}
    (found,) = resources.rows_of_trace({"traceEvents": [other, event]}, "fusion: one")
    assert found.kernel == "copy_kernel<float, Pair<int> >"
    assert (found.threads, found.grid, found.registers, found.shared_bytes) == (
        128,
        [3, 2, 1],
        22,
        512,
    )


def test_the_library_says_what_is_spilled_and_adds_what_nothing_launched():
    def said(kernel, spilled):
        return SimpleNamespace(kernel=kernel, registers=30, shared=0, spilled=spilled, threads=256)

    kernels = Kernels()
    kernels.add(row("coalescing: strided", "act_kernel<float>", local=None, language=resources.CUDA))
    kernels.add(row("step", "act_kernel", local=None))  # Triton's of that name is another one
    resources.told(
        kernels, [said("act_kernel<float>", 0), said("act_kernel<bf16>", 16), said("sum_kernel", 4)]
    )
    found = {(each.source, each.kernel): each for each in kernels.rows(BY_ARCHITECTURE[90])}
    assert found["coalescing: strided", "act_kernel<float>"].local_bytes == 16
    assert found["built", "sum_kernel"].threads == 256 and found["built", "sum_kernel"].local_bytes == 4
    assert found["step", "act_kernel"].local_bytes is None and len(found) == 3


def test_what_one_build_spills_is_not_said_of_another():
    def said(spilled):
        return [SimpleNamespace(kernel="norm_kernel", registers=30, shared=0, spilled=spilled, threads=256)]

    kernels, sources = Kernels(), ("launch bounds: 1024 threads", "launch bounds: 256 threads, 8 blocks")
    for source in sources:
        kernels.add(row(source, "norm_kernel", local=None, language=resources.CUDA))
    for flags, spilled in (({}, 0), ({"max_threads": 256, "min_blocks": 8}, 144)):
        resources.told(kernels, said(spilled), lambda source, flags=flags: flags_of(source) == flags)
    found = {each.source: each.local_bytes for each in kernels.rows(BY_ARCHITECTURE[90])}
    assert found == dict(zip(sources, (0, 144), strict=True))


def test_a_kernel_of_which_cuda_says_something_else_is_named():
    def said(blocks, threads=256):
        return SimpleNamespace(
            kernel="k", registers=64, shared=0, spilled=0, threads=threads, largest_block=512, blocks=blocks
        )

    rows = [said(4), said(5), said(0, threads=1024)]  # the last is a block that it was not built for
    (line,) = resources.disagreements(rows, BY_ARCHITECTURE[90])
    assert line == "k: 4 blocks fit by our calculator, 5 by CUDA"
    assert resources.disagreements(rows, None) == []
