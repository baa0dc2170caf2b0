"""A made-up result of `ladder kernels --claims` on an H200, for tables, charts and sentences: no measurement."""

import random
from dataclasses import replace

from ladder.results.types import Machine, build
from ladder.studies.claims import experiments, launching, registry, schema, timed
from ladder.studies.claims.hardware import counters, resources
from ladder.studies.claims.hardware.occupancy import BY_ARCHITECTURE
from ladder.studies.claims.view import EQUAL
from ladder.studies.kernelbench.verdicts import summary
from tests.support import made_up

SETTING = timed.Setting("cpu", (2, 3, 4, 4), True)
US = {  # experiment -> contender -> microseconds; what is not named takes as long as a copy of its bytes
    "norm forward bf16": {"PyTorch": 900, "CUDA C++": 300, "CUDA C++, fast math": 299, "Triton": 400},
    "coalescing": {"PyTorch": 520, "strided, N blocks": 60_000, "coalesced, N blocks": 9000, "strided": 1900},
    "divergence": {"divergent": 2400, "predicated": 1210, "divergent, whole warps": 1215},
    "reduction": {"shared memory": 262, "shuffles": 261},
    "vector width": {"2 bytes": 350, "16 bytes": 250},
    "fusion": {"three operators": 1900, "one": 420},
    "spectral norm": {"PyTorch": 900, "Triton": 40},
    "block size": {"32 threads": 1200, "64 threads": 700, "1024 threads": 560},
}
LAUNCHES = {
    f"{what}: {name}": us
    for what, row in (
        (launching.LAUNCH, (4.1, 12.0, 2.2)),
        (launching.REPLAY, (1.4, 1.1, 1.0)),
        (launching.WHOLE, (900.0, 800.0, 700.0)),
    )
    for name, us in zip((launching.ADD, launching.EMPTY_TRITON, launching.EMPTY_CUDA), row, strict=True)
}


def result(us=None, counted=True, repeats=5):
    """All contenders have numbers; `us` replaces times of an experiment."""
    dice, setting, records = random.Random(0), experiments.setting("cuda", False), []
    kernels = resources.Kernels()
    for experiment in experiments.all_experiments():
        known = {**US.get(experiment.name, {}), **(us or {}).get(experiment.name, {})}
        row = timed.Timed(experiment, setting, method="events")
        for index, name in enumerate(experiment.contenders):
            median = known.get(name, experiment.bytes(setting, name) / 4.2e6)
            row.samples[name] = [1e-6 * median * dice.gauss(1, 0.002) for _ in range(repeats)]
            registers = 24 + 20 * index * (experiment.name != EQUAL)
            kernels.add(kernel(name, registers, source=f"{experiment.name}: {name}"))
        records.append(row.record())
    samples = {
        name: [value * dice.gauss(1, 0.01) for _ in range(repeats)] for name, value in LAUNCHES.items()
    }
    launches = schema.ExperimentResult(
        name="launches", shape=[1], itemsize=4, method=None, bytes={}, notes=[], reasons={}, samples_us=samples,
        us={name: summary(values) for name, values in samples.items()},
    )  # fmt: skip
    kernels.add(kernel("bias_act_kernel", 40, source="step", kernel="bias_act_kernel"))
    made = schema.Claims(
        schema=1, kind="claims", machine=build(Machine, made_up.gpu_run()["machine"]), commit="a" * 40,
        dirty=False, complete=True, started="2026-11-21T12:00:00+00:00", seconds=280.0,
        protocol=schema.Protocol(
            minutes=5.0, quick=False, smoke=False, seed=0, l2_bytes=50 * 2**20, evict=3,
            graph_ms=5.0, notes=[], counters=None if counted else "Nsight Compute (ncu) is not installed",
        ),
        experiments=[*records, launches], kernels=kernels.rows(BY_ARCHITECTURE[90]),
        counters={name: counters.totals(rows) for name, rows in _counted().items()} if counted else {},
        errors={"PyTorch": 1e-7, "CUDA C++": 1e-7, "CUDA C++, fast math": 3e-6}, kernels_per_step=3900.0,
        precision=[
            schema.PrecisionRow(claim=name, precision="bf16", on="baseline", ours=ours, interval=None)
            for name, ours in (("throughput", 1.2), ("memory", 0.6))
        ],
        claims=[],
    )  # fmt: skip
    return judged(made)


def judged(result, **changes):
    """The result with these changes and the claims that follow from them."""
    found = replace(result, **changes)
    return replace(found, claims=registry.judged(found))


def kernel(contender, registers, **more):
    threads = int(contender.split()[0]) if contender.endswith(" threads") else 128
    facts = {
        "source": "step", "kernel": "leaky_relu_kernel", "language": resources.TRITON, "grid": [1000],
        "threads": threads, "registers": min(registers, 255), "shared_bytes": 0, "local_bytes": 0,
    }  # fmt: skip
    return schema.Launched(**facts | more)


def _counted():
    def row(read, written, sectors=4.0):
        return counters.Counts(
            kernel="k", grid=[1], occupancy=80.0, dram_read=read, dram_written=written, ns=1e5,
            load_requests=1e6, load_sectors=sectors * 1e6, store_requests=1e6, store_sectors=4e6,
        )  # fmt: skip

    size = 2 * 512 * 256 * 256 * 8
    return {
        "fusion: three operators": [row(2 * size, size), row(size, size), row(size, size)],
        "fusion: one": [row(2 * size, size)],
        "coalescing: strided": [row(1e9, 1e9, 32.0)],
        "coalescing: coalesced": [row(1e9, 1e9)],
    }  # fmt: skip
