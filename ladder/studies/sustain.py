"""`ladder sustain`: whether a step is as fast after a minute, with the GPU's clock, power and energy.

A visit of `ladder run` lasts seconds. A card that reaches its power limit later lowers its clock, and a training of
days runs at that clock. Rungs are not compared: one process each says nothing of how processes differ.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from ladder.base.protocol import CYCLE_STEPS
from ladder.base.text import ms
from ladder.core.job import Job
from ladder.core.options import Seed, option
from ladder.core.records import (
    Amount,
    Count,
    Fields,
    Ms,
    Name,
    Record,
    Seconds,
    Share,
    Text,
    size,
    write_whole,
)
from ladder.results import plausible
from ladder.results.file import Status
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.frame import RungCase, Session, Study, StudyFile

WINDOW_S = 2.0  # length of a row, about that of a visit of `ladder run` at the top
MOST_CYCLES = 1000  # in a row
LEAST_S = 10.0  # of the rows whose energy counts: NVML's counter is coarse over less
COUNTER, POWER = "NVML's energy counter", "the highest power of each row, integrated: at most"


class Options(frame.Options):
    """The options of `ladder sustain`."""

    rungs: frame.Rungs = []
    ladder: Annotated[str, option("The ladder of the rungs.", metavar="NAME|FILE")] = "full"
    seconds: Annotated[float, Meta(ge=1, le=86_400), option("Seconds for each rung.")] = 60.0
    seed: Annotated[Seed, option("Seed for weights, latents and the order of images.")] = 0


class Window(Record):
    """A row of cycles: seconds since the first row began, the median step in ms, and NVML's readings.

    `energy_j` are joules by NVML's counter from the first row's begin to this row's. `steps` are those of the row,
    the ones before its timed cycles included. Older files lack both.
    """

    at_s: Seconds
    step_ms: Ms
    sm_mhz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Amount | None = None
    reasons: Annotated[list[Text], size(20)] | None = None
    energy_j: Amount | None = None
    steps: Count | None = None


class Observed(frame.Observation, kw_only=True):
    """The rows of one rung, the share of the CPU that other programs took, and whether parity was seen here."""

    windows: Annotated[list[Window], size(50_000)] = []
    others_cpu: Share | None = None
    inspected: bool = False


class Rung(Record, kw_only=True):
    """What is derived of a rung, beside what was observed. Both times are in ms a step."""

    name: Name
    recipe: Fields
    status: Status
    reason: Text | None
    inspected: bool
    first_ms: Ms | None
    sustained_ms: Ms | None
    factor: float | None
    windows: list[Window]
    others_cpu: Share | None


class Protocol(Record):
    """How the rungs were followed, and why the figures must not be quoted."""

    seconds: float
    window_s: float
    seed: int
    notes: list[str]


class Sustained(Record):
    """What `ladder report --json` prints beside the header."""

    protocol: Protocol
    rungs: list[Rung]


@dataclass(frozen=True)
class Energy:
    """The energy of a sustained step in joules, what it was read from, and the seconds that it was taken over."""

    step_j: float
    source: str
    seconds: float


File = StudyFile[Options, RungCase, Observed]


class Sustain(Study[Options, RungCase, Observed]):
    """Each rung in one process, row after row."""

    name, kind, folder = "sustain", "sustained", "sustained"
    help = """Run a rung for a minute and see whether its speed lasts.

    A visit of `ladder run` takes seconds. A GPU may reach its power limit later and lower its clock, and a training
    runs at that clock. Each RUNG (with all below it; default: the highest) runs in one process. The step time is
    reported every two seconds, with clock, power and temperature.

    Exit status: 0 if every rung has a number. 1 if a rung has none. 2 if the request is impossible. 130 if
    interrupted.
    """
    examples = """
ladder sustain                            the highest rung of full, one minute
ladder sustain baseline graph_fills -w article-b32
ladder sustain --seconds 600              ten minutes
"""

    def list_cases(self, job: Job, file: File | None) -> dict[str, RungCase]:
        if file is not None and file.cases:
            return file.cases
        recipes = frame.plan_rungs(job, job.options.ladder, job.options.rungs)
        names = job.options.rungs or list(recipes)[-1:]
        return {name: RungCase(recipe=recipes[name]) for name in names}

    def announce(self, job: Job, cases: Any) -> str:
        rungs = ", ".join(cases)
        return f"{job.name} on {job.device}: {rungs}, {job.options.seconds:g} s each once it is prepared"

    def observe(self, session: Session, key: str, case: RungCase) -> Observed:
        from ladder.engine import inspection
        from ladder.machine import neighbours

        job, seconds = session.job, session.job.options.seconds
        is_inspected = inspection.Cache(job.workload, job.machine).get(case.recipe) is not None
        with session.prepare_worker(case.recipe, job.options.seed) as worker:
            session.report(f"{key}: prepared")
            begin, cycles, before = time.monotonic(), 1, neighbours.take_sample()
            first_j = session.visits.energy_j()
            windows: list[Window] = []
            while (at := time.monotonic() - begin) < seconds or not windows:
                joules = session.visits.energy_j()
                with session.visits.watched({worker.pid}) as state:
                    reply = worker.call("visit", cycles=cycles, settle_s=0, settle_cycles=0, main=False)
                used_j = None if joules is None or first_j is None else joules - first_j
                windows.append(make_window(at, reply["samples_s"], state, used_j, reply["lead_in_cycles"]))
                cycles = min(MOST_CYCLES, max(1, round(WINDOW_S / (16 * windows[-1].step_ms / 1000))))
                session.growing = Observed(windows=windows, inspected=is_inspected)
            share = neighbours.derive_share(before, neighbours.take_sample())
            session.report(f"{key}: {ms(windows[0].step_ms)} ms at first, {ms(windows[-1].step_ms)} at last")
            return Observed(windows=windows, inspected=is_inspected, others_cpu=share)

    def derive(self, file: File) -> Sustained:
        protocol = Protocol(
            seconds=file.options.seconds,
            window_s=WINDOW_S,
            seed=file.options.seed,
            notes=frame.list_cautions(self, file),
        )
        return Sustained(protocol=protocol, rungs=[_derive_rung(file, name) for name in file.cases])

    def list_problems(self, file: File) -> Iterable[str]:
        least = plausible.floor_ms(write_whole(file.machine), file.workload or {})
        for name, each in file.observed.items():
            if each.status == "ok" and not each.windows:
                yield f"{name}: ok without a row"
            if least and any(row.step_ms < least[0] for row in each.windows):
                yield f"{name}: faster than this GPU can compute"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.machine import neighbours

        unseen = [
            name for name in file.cases if not (name in file.observed and file.observed[name].inspected)
        ]
        shares = [{neighbours.KEY: each.others_cpu} for each in file.observed.values()]
        lines = [f"parity and receipts of {', '.join(unseen)} were not seen here"] if unseen else []
        return [*lines, *neighbours.list_marks(shares)]

    def summarize(self, file: File) -> list[str]:
        work, machine = file.workload or {}, file.machine
        return [
            f"How fast a rung still is after a while: {machine.gpu or machine.cpu}",
            f"Workload {work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, R1 and path"
            f" length included. One process of each rung for {file.options.seconds:g} seconds, in rows of"
            f" {WINDOW_S:g} s; sustained is the median of the later half. PyTorch {machine.torch}, commit"
            f" {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        columns = [
            Column("rung"),
            Column("ms/step at first", "ms"),
            Column("sustained", "ms"),
            Column("factor", "ratio"),
            Column("MHz at first", "count", priority=2),
            Column("MHz sustained", "count", priority=2),
            Column("W at most", "count", priority=3),
            Column("power limit", priority=4),
            Column("J/step", priority=1),
        ]
        yield Table(columns, [_row_of(rung) for rung in self.derive(file).rungs])

    def draw(self, file: File, kind: str) -> bytes:
        from ladder.report import drawing

        return drawing.save(lambda: _draw_figure(file, self.derive(file)), kind)


STUDY = Sustain()


def make_window(
    at: float, samples_s: list[float], state: dict[str, Any], used_j: float | None = None, lead_in: int = 0
) -> Window:
    """Return a row of cycles that began ``at`` seconds after the first.

    Args:
        state: the GPU's (`ladder.machine.gpu_state`), empty on a CPU.
        used_j: joules that the GPU has used by then since the first row began.
        lead_in: cycles of the row before the timed ones.
    """
    readings = {key: state.get(key) for key in ("sm_mhz", "power_w", "temperature_c", "reasons")}
    return Window(
        at_s=round(at, 3),
        step_ms=1000 * statistics.median(samples_s),
        energy_j=None if used_j is None else round(used_j, 3),
        steps=CYCLE_STEPS * (lead_in + len(samples_s)),
        **readings,
    )


def _derive_rung(file: File, name: str) -> Rung:
    """Return the first row of a rung beside the median of the later half."""
    each = file.observed.get(name, Observed(status="n/a", reason="not measured"))
    first = sustained = None
    if each.windows:
        first = each.windows[0].step_ms
        sustained = statistics.median(row.step_ms for row in pick_later(each.windows))
    return Rung(
        name=name,
        recipe=file.cases[name].recipe,
        status=each.status,
        reason=each.reason,
        inspected=each.inspected,
        first_ms=first,
        sustained_ms=sustained,
        factor=sustained / first if first and sustained else None,
        windows=each.windows,
        others_cpu=each.others_cpu,
    )


def pick_later(rows: Sequence[Window]) -> list[Window]:
    """Return the rows of the later half of the time, at least one."""
    return [row for row in rows if row.at_s >= rows[-1].at_s / 2]


def derive_energy(rung: Rung) -> Energy | None:
    """Return the energy of a step over the later half of the rows, or over the last ten seconds if that is more.

    All joules of that time are divided by all steps in it: the pauses between rows, a few percent, are charged to the
    steps. In older files, which lack the number of steps, the mean power multiplies the median step. It is some
    percent too low, because the GPU draws less in a pause. Without the counter, power is integrated over the rows.
    Returns None if the rows last less than ten seconds or know neither.
    """
    rows = [row for row in rung.windows if row.at_s <= rung.windows[-1].at_s - LEAST_S]
    if rung.status != "ok" or not rows:
        return None
    begin = min(rows[-1].at_s, pick_later(rung.windows)[0].at_s)
    rows = [row for row in rung.windows if row.at_s >= begin]
    seconds, step_s = rows[-1].at_s - begin, statistics.median(row.step_ms for row in rows) / 1000
    first, last = rows[0].energy_j, rows[-1].energy_j
    if first is not None and last is not None and last > first:
        steps = [row.steps for row in rows[:-1]]
        if all(steps):
            return Energy((last - first) / sum(each or 0 for each in steps), COUNTER, seconds)
        return Energy((last - first) / seconds * step_s, COUNTER, seconds)
    joules = 0.0
    for one, other in itertools.pairwise(rows):
        if one.power_w is None or other.power_w is None:
            return None
        joules += (one.power_w + other.power_w) / 2 * (other.at_s - one.at_s)
    return Energy(joules / seconds * step_s, POWER, seconds)


def format_energy(energy: Energy | None) -> str:
    """Return joules a step, with "at most" where power was integrated."""
    if energy is None:
        return ""
    return f"{'at most ' if energy.source == POWER else ''}{energy.step_j:.3g}"


def _row_of(rung: Rung) -> list[Any]:
    rows = rung.windows
    if rung.status != "ok" or not rows:
        return [rung.name, f"{rung.status}: {rung.reason}", *[None] * 7]
    clocks = [row.sm_mhz for row in pick_later(rows) if row.sm_mhz]
    watts = [row.power_w for row in rows if row.power_w]
    capped = sum("power_cap" in (row.reasons or ()) for row in rows)
    return [
        rung.name,
        rung.first_ms,
        rung.sustained_ms,
        rung.factor,
        rows[0].sm_mhz or None,
        statistics.median(clocks) if clocks else None,
        max(watts) if watts else None,
        f"in {capped} of {len(rows)}" if clocks else None,
        format_energy(derive_energy(rung)),
    ]


# --- the chart: step time over a process's seconds, relative to the first, with the clock below -----------------------


def _draw_figure(file: File, derived: Sustained) -> Any:
    from matplotlib.figure import Figure

    from ladder.report.panels import ARTICLE, BUSY, GRID, INK, MUTED

    figure = Figure(figsize=(9.5, 6.0))
    grid = figure.add_gridspec(
        2, 1, left=0.09, right=0.97, top=0.8, bottom=0.13, hspace=0.25, height_ratios=(2, 1)
    )
    upper, lower = (figure.add_subplot(cell) for cell in grid)
    colors, styles = (BUSY, ARTICLE, INK, MUTED), ("-", "--", ":", "-.")
    shown = [rung for rung in derived.rungs if rung.windows]
    for number, rung in enumerate(shown):
        look = {
            "color": colors[number % 4],
            "linestyle": styles[number // 4 % 4],
            "marker": "o",
            "markersize": 3,
        }
        label = f"{rung.name}: {ms(rung.first_ms)} to {ms(rung.sustained_ms)} ms"
        upper.plot(*_line_of(rung.windows, "step_ms", rung.first_ms or 1.0), label=label, **look)
        lower.plot(*_line_of(rung.windows, "sm_mhz"), **look)
    for axes, label in ((upper, "step time, first = 1"), (lower, "MHz")):
        axes.set_ylabel(label, color=MUTED)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.tick_params(length=0, labelcolor=INK, labelsize=8.5)
    low, high = upper.get_ylim()
    upper.set_ylim(min(low, 0.98), max(high, 1.02))
    upper.tick_params(labelbottom=False)
    lower.set_xlabel("seconds", color=MUTED)
    if not any(row.sm_mhz for rung in shown for row in rung.windows):
        lower.text(0.5, 0.5, "no clock is known", transform=lower.transAxes, ha="center", color=MUTED)
        lower.set_yticks([])
    if shown:
        figure.legend(loc="upper left", bbox_to_anchor=(0.012, 0.915), ncols=2, frameon=False)
    _draw_header(figure, file, derived)
    return figure


def _line_of(rows: list[Window], key: str, unit: float = 1.0) -> tuple[list[float], list[float]]:
    pairs = [(row.at_s, getattr(row, key)) for row in rows if getattr(row, key) is not None]
    return [at for at, _ in pairs], [value / unit for _, value in pairs]


def _draw_header(figure: Any, file: File, derived: Sustained) -> None:
    from ladder.report.drawing import fitted
    from ladder.report.panels import MUTED

    machine, work, notes = file.machine, file.workload or {}, derived.protocol.notes
    caution = f" ({notes[0]})" if notes else ""
    fitted(
        figure,
        0.02,
        0.945,
        f"{machine.gpu or machine.cpu}: does the speed last?{caution}",
        15,
        fontweight="bold",
    )
    size_ = f"{work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}"
    line = f"{size_}; one process of each rung, PyTorch {machine.torch}. Lower is better above."
    fitted(figure, 0.02, 0.02, line, 8, color=MUTED)
