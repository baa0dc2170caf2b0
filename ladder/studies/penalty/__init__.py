"""`ladder penalty`: an R1 step of common discriminators, with and without `fast_double_backward`.

The two sides take turns in one process, in random order. A factor is the mean of the pairs' ratios, with its interval.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from ladder.core import records as r
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import declare_option
from ladder.core.records import read_record
from ladder.core.text import format_count, format_ms
from ladder.show.table import Column, Table
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.base import Session, Study, StudyFile

Network = Literal["DCGAN", "PatchGAN", "SNGAN-ResNet", "R3GAN", "UNet"]
PRECISIONS = ("tf32", "bf16")
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
    precision: Literal["tf32", "bf16"]


class Observed(frame.Observation, kw_only=True):
    """Steps by PyTorch's formula and by ours: times, peak memory, and the gradients' relative error against FP64."""

    plain_ms: r.Samples = []
    fast_ms: r.Samples = []
    plain_bytes: r.Bytes | None = None
    fast_bytes: r.Bytes | None = None
    plain_error: r.Amount = 0.0
    fast_error: r.Amount = 0.0

    @property
    def ratios(self) -> list[float]:
        """Return how many times as fast ours was, pair by pair."""
        return [plain / fast for plain, fast in zip(self.plain_ms, self.fast_ms, strict=True)]


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
        from ladder.studies.penalty.networks import NETWORKS

        names: Any = job.options.networks or list(NETWORKS)
        if len({*names}) < len(names):
            raise UserError("ladder penalty: a network is named twice")
        return {
            f"{name} {how}": Case(network=name, precision=how)  # type: ignore[arg-type]
            for name in names
            for how in PRECISIONS
        }

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        return f"penalty on {job.device}: {format_count(len(cases), 'case')}, batch {job.options.batch}"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        import torch

        from ladder.studies.penalty import networks

        session.share(hold_device)
        job, options = session.job, session.job.options
        try:
            found = networks.measure(
                case.network, case.precision, options.batch, options.repeats, job.device, options.seed
            )
        except torch.OutOfMemoryError:
            return Observed(status="oom", reason="out of memory")
        observed = read_record(Observed, found)
        if observed.fast_error > ALLOWED * observed.plain_error + ROUNDING:
            return Observed(
                status="failed: parity",
                reason=f"error {observed.fast_error:.1e}, PyTorch's {observed.plain_error:.1e}",
            )
        return observed

    def describe(self, observation: Observed) -> str:
        plain, fast = map(statistics.median, (observation.plain_ms, observation.fast_ms))
        return f"{format_ms(plain)} ms, then {format_ms(fast)}"

    def derive(self, file: File) -> Any:
        rows = []
        for name, case in file.cases.items():
            each = file.observed.get(name, Observed(status="n/a", reason="not measured"))
            row = {"name": name, **frame.write_row(case, each)}
            if each.plain_ms:
                row |= {
                    "factor": math.exp(statistics.fmean(map(math.log, each.ratios))),
                    "interval": estimates.log_interval(each.ratios),
                }
            rows.append(row)
        return {"networks": rows, "notes": frame.list_cautions(self, file)}

    def list_problems(self, file: File) -> Iterable[str]:
        for name, each in file.observed.items():
            if each.status == "ok" and not (each.plain_ms and len(each.plain_ms) == len(each.fast_ms)):
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
            Column("times faster", "factor"), Column("interval", priority=2), Column("GiB without", "ratio", 3),
            Column("GiB with", "ratio", 3), Column("error without", priority=4), Column("error with", priority=4),
        ]  # fmt: skip
        rows: list[list[Any]] = []
        for row in self.derive(file)["networks"]:
            each, case = file.observed.get(row["name"]), file.cases[row["name"]]
            if each is None or not each.plain_ms:
                rows.append([case.network, case.precision, f"{row['status']}: {row['reason']}", *[None] * 7])
                continue
            between = "{:.2f}-{:.2f}".format(*row["interval"])
            sizes = [size and size / 2**30 for size in (each.plain_bytes, each.fast_bytes)]
            errors = [f"{error:.1e}" for error in (each.plain_error, each.fast_error)]
            medians = map(statistics.median, (each.plain_ms, each.fast_ms))
            rows.append([case.network, case.precision, *medians, row["factor"], between, *sizes, *errors])
        yield Table(columns, rows)


STUDY = Penalty()


@contextlib.contextmanager
def hold_device(session: Session) -> Iterator[None]:
    """Keep others that measure away from the device."""
    from ladder.core.locks import device_lock
    from ladder.core.stopping import stop_on_sigterm
    from ladder.machine import system

    with device_lock(system.device_key(session.job.device)), stop_on_sigterm():
        yield
