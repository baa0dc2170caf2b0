"""`ladder sustain`: whether a step is as fast after a minute, with the GPU's clock, power and energy.

A visit of `ladder run` lasts seconds. A card that reaches its power limit later lowers its clock, and a training of
days runs at that clock. Rungs are not compared: one process each says nothing of how processes differ.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta

from ladder.core import records as r
from ladder.core.job import Job
from ladder.core.options import declare_option
from ladder.core.protocol import CYCLE_STEPS
from ladder.core.text import format_ms
from ladder.machine import neighbours
from ladder.report import drawing
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.studies import frame
from ladder.studies.base import RungCase, Session, Study, StudyFile

WINDOW_S = 2.0  # length of a row, about that of a visit of `ladder run` at the top
MOST_CYCLES = 1000  # in a row
LEAST_S = 10.0  # of the rows whose energy counts: NVML's counter is coarse over less


class Options(frame.Options):
    """The options of `ladder sustain`."""

    rungs: frame.Rungs = []
    ladder: frame.Ladder = "full"
    seconds: Annotated[float, Meta(ge=1, le=86_400), declare_option("Seconds for each rung.")] = 60.0
    seed: frame.Seed = 0


class Window(r.Record):
    """A row of cycles: seconds since the first row began, the median step in ms, and NVML's readings.

    `energy_j` are joules by NVML's counter from the first row's begin to this row's. `steps` are those of the row,
    the ones before its timed cycles included.
    """

    at_s: r.Seconds
    step_ms: r.Ms
    sm_mhz: r.Amount | None = None
    power_w: r.Amount | None = None
    temperature_c: r.Amount | None = None
    reasons: Annotated[list[r.Text], r.size_between(20)] | None = None
    energy_j: r.Amount | None = None
    steps: r.Count | None = None


class Observed(frame.Observation, kw_only=True):
    """The rows of one rung, the share of the CPU that other programs took, and whether parity was seen here."""

    ANSWER = "windows"
    windows: Annotated[list[Window], r.size_between(50_000)] = []
    others_cpu: r.Share | None = None
    inspected: bool = False

    def list_times(self) -> Iterable[float]:
        return (row.step_ms for row in self.windows)

    @property
    def first_ms(self) -> float | None:
        """Return the ms a step of the first row."""
        return self.windows[0].step_ms if self.windows else None

    @property
    def sustained_ms(self) -> float | None:
        """Return the median ms a step of the later half."""
        rows = pick_later(self.windows)
        return statistics.median(row.step_ms for row in rows) if rows else None

    @property
    def factor(self) -> float | None:
        """Return how many times as long a step takes later."""
        first, sustained = self.first_ms, self.sustained_ms
        return sustained / first if first and sustained else None


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

    def plan_cases(self, job: Job) -> dict[str, RungCase]:
        recipes = frame.plan_rungs(job, job.options.ladder, job.options.rungs)
        return {name: RungCase(recipe=recipes[name]) for name in job.options.rungs or list(recipes)[-1:]}

    def announce(self, job: Job, cases: Any) -> str:
        return f"{job.name} on {job.device}: {', '.join(cases)}, {job.options.seconds:g} s each once it is prepared"

    def observe(self, session: Session, key: str, case: RungCase) -> Observed:
        from ladder.engine import inspection

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
            return Observed(windows=windows, inspected=is_inspected, others_cpu=share)

    def describe(self, observation: Observed) -> str:
        return f"{format_ms(observation.first_ms)} ms at first, {format_ms(observation.windows[-1].step_ms)} at last"

    def derive(self, file: File) -> Any:
        protocol = {"seconds": file.options.seconds, "window_s": WINDOW_S, "seed": file.options.seed}
        rungs = [
            {"name": name, **frame.write_row(file.cases[name], each)}
            | {key: getattr(each, key) for key in ("first_ms", "sustained_ms", "factor")}
            for name, each in list_rungs(file)
        ]
        return {"protocol": {**protocol, "notes": frame.list_cautions(self, file)}, "rungs": rungs}

    def list_cautions(self, file: File) -> list[str]:
        unseen = [name for name in file.cases if not file.observed.get(name, Observed()).inspected]
        shares = [{neighbours.KEY: each.others_cpu} for each in file.observed.values()]
        lines = [f"parity and receipts of {', '.join(unseen)} were not seen here"] if unseen else []
        return [*lines, *neighbours.list_marks(shares)]

    def summarize(self, file: File) -> list[str]:
        return [
            f"How fast a rung still is after a while: {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}, R1 and path length included. One process of each rung for"
            f" {file.options.seconds:g} seconds, in rows of {WINDOW_S:g} s; sustained is the median of the later half."
            f" {frame.describe_software(file)}",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        columns = [
            Column("rung"), Column("ms/step at first", "ms"), Column("sustained", "ms"), Column("factor", "ratio"),
            Column("MHz at first", "count", 2), Column("MHz sustained", "count", 2), Column("W at most", "count", 3),
            Column("power limit", priority=4), Column("J/step", priority=1),
        ]  # fmt: skip
        table: list[list[Any]] = []
        for name, rung in list_rungs(file):
            rows = rung.windows
            if rung.status != "ok" or not rows:
                table.append([name, f"{rung.status}: {rung.reason}", *[None] * 7])
                continue
            clocks = [row.sm_mhz for row in pick_later(rows) if row.sm_mhz]
            capped = sum("power_cap" in (row.reasons or ()) for row in rows)
            joules, is_bound = derive_energy(rows) or (None, False)
            most = max((row.power_w for row in rows if row.power_w), default=None)
            readings = [rows[0].sm_mhz or None, statistics.median(clocks) if clocks else None, most]
            energy = joules and f"{'at most ' * is_bound}{joules:.3g}"
            figures = [rung.first_ms, rung.sustained_ms, rung.factor]
            table.append(
                [name, *figures, *readings, f"in {capped} of {len(rows)}" if clocks else None, energy]
            )
        yield Table(columns, table)

    def draw(self, file: File, kind: str) -> bytes:
        return drawing.save(lambda: _draw_figure(file), kind)


STUDY = Sustain()


def make_window(
    at: float, samples_s: list[float], state: dict[str, Any], used_j: float | None = None, lead_in: int = 0
) -> Window:
    """Return a row of cycles that began ``at`` seconds after the first, with NVML's readings of `state`.

    Before it, the GPU has used `used_j` joules. `lead_in` cycles came before its timed ones.
    """
    return Window(
        at_s=round(at, 3), step_ms=1000 * statistics.median(samples_s),
        energy_j=None if used_j is None else round(used_j, 3), steps=CYCLE_STEPS * (lead_in + len(samples_s)),
        **{key: state.get(key) for key in ("sm_mhz", "power_w", "temperature_c", "reasons")},
    )  # fmt: skip


def list_rungs(file: File) -> list[tuple[str, Observed]]:
    """Return every rung with what was observed of it."""
    unknown = Observed(status="n/a", reason="not measured")
    return [(name, file.observed.get(name, unknown)) for name in file.cases]


def pick_later(rows: Sequence[Window]) -> list[Window]:
    """Return the rows of the later half of the time, at least one if there is any."""
    return [row for row in rows if row.at_s >= rows[-1].at_s / 2]


def derive_energy(rows: Sequence[Window]) -> tuple[float, bool] | None:
    """Return the joules of a step over the later half of the rows, or over the last ten seconds if that is more.

    All joules of NVML's counter are divided by all steps of that time: the pauses between rows, a few percent, are
    charged to the steps. Without the counter, the highest power of each row is integrated: then the second value is
    True, and the energy is at most that. Returns None if the rows last less than ten seconds or know neither.
    """
    early = [row.at_s for row in rows if row.at_s <= rows[-1].at_s - LEAST_S]
    if not early:
        return None
    begin = min(early[-1], pick_later(rows)[0].at_s)
    rows = [row for row in rows if row.at_s >= begin]
    first, last, steps = rows[0].energy_j, rows[-1].energy_j, [row.steps or 0 for row in rows[:-1]]
    if first is not None and last is not None and last > first and all(steps):
        return (last - first) / sum(steps), False
    joules = 0.0
    for one, other in itertools.pairwise(rows):
        if one.power_w is None or other.power_w is None:
            return None
        joules += (one.power_w + other.power_w) / 2 * (other.at_s - one.at_s)
    step_s = statistics.median(row.step_ms for row in rows) / 1000
    return joules / (rows[-1].at_s - begin) * step_s, True


# --- the chart: step time over a process's seconds, relative to the first, with the clock below -----------------------


def _draw_figure(file: File) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 6.0))
    grid = figure.add_gridspec(
        2, 1, left=0.09, right=0.97, top=0.8, bottom=0.13, hspace=0.25, height_ratios=(2, 1)
    )
    upper, lower = (figure.add_subplot(cell) for cell in grid)
    colors, styles = (LIGHT.busy, LIGHT.article, LIGHT.ink, LIGHT.muted), ("-", "--", ":", "-.")
    for number, (name, rung) in enumerate(each for each in list_rungs(file) if each[1].windows):
        color, style = colors[number % 4], styles[number // 4 % 4]
        for axes, key, unit in ((upper, "step_ms", rung.first_ms or 1.0), (lower, "sm_mhz", 1.0)):
            known = [
                (row.at_s, value / unit) for row in rung.windows if (value := getattr(row, key)) is not None
            ]
            axes.plot(*zip(*known, strict=True), color=color, linestyle=style, marker="o", markersize=3)
        upper.lines[-1].set_label(f"{name}: {format_ms(rung.first_ms)} to {format_ms(rung.sustained_ms)} ms")
    for axes, label in ((upper, "step time, first = 1"), (lower, "MHz")):
        axes.set_ylabel(label, color=LIGHT.muted)
        drawing.clear_axes(axes)
    low, high = upper.get_ylim()
    upper.set_ylim(min(low, 0.98), max(high, 1.02))
    upper.tick_params(labelbottom=False)
    lower.set_xlabel("seconds", color=LIGHT.muted)
    figure.legend(loc="upper left", bbox_to_anchor=(0.012, 0.915), ncols=2, frameon=False)
    under = f"{frame.describe_workload(file)}; one process of each rung, PyTorch {file.machine.torch}."
    frame.draw_heading(STUDY, file, figure, "does the speed last?", f"{under} Lower is better above.")
    return figure
