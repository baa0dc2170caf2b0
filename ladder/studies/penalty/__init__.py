"""`ladder penalty`: an R1 step of common discriminators, with and without `fast_double_backward`.

The two sides take turns in one process. A factor is the mean of the pairs' ratios, with its interval.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from ladder.core import records as r
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import declare_option
from ladder.core.records import read_record
from ladder.core.text import format_ms
from ladder.show.table import Column, Table
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.base import Session, Study, StudyFile

Network = Literal["DCGAN", "PatchGAN", "SNGAN-ResNet", "R3GAN", "UNet"]
Precision = Literal["tf32", "bf16"]
ALLOWED = 2.5  # times the error of PyTorch's own formula
ROUNDING = 1e-6
NETWORK = declare_option("Discriminators. [default: all]", argument=True, metavar="[NETWORK]...")


class Options(frame.Options):
    """The options of `ladder penalty`."""

    networks: Annotated[list[Network], r.size_between(10), NETWORK] = []
    batch: Annotated[int, Meta(ge=1, le=1024), declare_option("Images of a step.")] = 32
    repeats: Annotated[int, Meta(ge=2, le=1000), declare_option("Timed steps of each side.")] = 20
    seed: frame.Seed = 0


class Case(frame.Case):
    """A network in a precision: PyTorch's default in NCHW, or BF16 autocast in channels_last."""

    network: Network
    precision: Precision


class Observed(frame.Observation, kw_only=True):
    """Steps by PyTorch's formula and by ours: times, and the gradients' relative error against FP64."""

    plain_ms: r.Samples = []
    fast_ms: r.Samples = []
    plain_error: r.Amount = 0.0
    fast_error: r.Amount = 0.0


File = StudyFile[Options, Case, Observed]


class Penalty(Study[Options, Case, Observed]):
    """Each network in this process."""

    name, kind, folder = "penalty", "penalty", "penalty"
    help = """Time an R1 step with and without `fast_double_backward`.

    Five common discriminators. A step is the forward pass, the gradient by the images, and the backward pass of loss
    and penalty. Its gradients are first compared with FP64. A CPU's times mean nothing.

    Exit status: 0 if every network has a number. 1 if one has none. 2 if the request is impossible. 130 if
    interrupted.
    """
    examples = """
ladder penalty                      five discriminators, TF32 and BF16
ladder penalty R3GAN --batch 64
"""
    uses_workload = uses_images = False
    needs_gpu = "penalties are timed on a CUDA GPU"

    def plan_cases(self, job: Job) -> dict[str, Case]:
        names: Any = job.options.networks or get_args(Network)
        if len({*names}) < len(names):
            raise UserError("ladder penalty: a network is named twice")
        pairs = itertools.product(names, get_args(Precision))
        return {f"{name} {how}": Case(network=name, precision=how) for name, how in pairs}

    def announce(self, job: Job, cases: Any) -> str:
        return f"penalty on {job.device}: {len(cases)} cases, batch {job.options.batch}"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        import torch

        from ladder.studies.penalty import networks

        session.settle()
        options, device = session.job.options, session.job.device
        sizes = options.batch, options.repeats
        try:
            observed = networks.measure(case.network, case.precision, *sizes, device, options.seed)
        except torch.OutOfMemoryError:
            return Observed(status="oom", reason="out of memory")
        plain, fast = observed["plain_error"], observed["fast_error"]
        if fast > ALLOWED * plain + ROUNDING:
            return Observed(status="failed: parity", reason=f"error {fast:.1e}, PyTorch's {plain:.1e}")
        return read_record(Observed, observed)

    def describe(self, observation: Observed) -> str:
        plain, fast = map(statistics.median, (observation.plain_ms, observation.fast_ms))
        return f"{format_ms(plain)} ms, then {format_ms(fast)}"

    def derive(self, file: File) -> Any:
        rows = []
        for name, case in file.cases.items():
            each = file.observed.get(name, Observed(status="n/a", reason="not measured"))
            rows.append({"name": name, **frame.write_row(case, each)})
            if each.plain_ms:
                logs = [math.log(a / b) for a, b in zip(each.plain_ms, each.fast_ms, strict=True)]
                interval = estimates.log_interval([*map(math.exp, logs)])
                rows[-1] |= {"factor": math.exp(statistics.fmean(logs)), "interval": interval}
        return {"networks": rows, "notes": frame.list_cautions(self, file)}

    def list_problems(self, file: File) -> Iterable[str]:
        for name, each in file.observed.items():
            if each.status == "ok" and not len(each.plain_ms) == len(each.fast_ms) > 1:
                yield f"{name}: ok without pairs of times"

    def summarize(self, file: File) -> list[str]:
        return [
            f"R1 with and without fast_double_backward: {file.machine.gpu or file.machine.cpu}",
            f"Batch {file.options.batch}; a step is a forward pass, the gradient by the images, and the backward pass"
            " of loss and penalty. Error: of the weights' gradients, against FP64. tf32: PyTorch's default, NCHW."
            f" bf16: autocast, channels_last. {frame.describe_software(file)}",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        columns = [
            Column("network"), Column("precision"), Column("ms without", "ms"), Column("ms with", "ms"),
            Column("times faster", "factor"), Column("interval", priority=2), Column("error without", priority=3),
            Column("error with", priority=3),
        ]  # fmt: skip
        rows: list[list[Any]] = []
        for row in self.derive(file)["networks"]:
            rows.append([row["network"], row["precision"], f"{row['status']}: {row['reason']}", *[None] * 5])
            if each := file.observed.get(row["name"]):
                if each.plain_ms:
                    medians = map(statistics.median, (each.plain_ms, each.fast_ms))
                    errors = [f"{error:.1e}" for error in (each.plain_error, each.fast_error)]
                    between = "{:.2f}-{:.2f}".format(*row["interval"])
                    rows[-1][2:] = [*medians, row["factor"], between, *errors]
        yield Table(columns, rows)


STUDY = Penalty()
