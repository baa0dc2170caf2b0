"""`ladder ablate`: what each rung is worth, whatever the order of the ladder, and which rungs need each other.

A ladder of at most seven changes is measured in every subset that `Recipe` and `rests_on` allow. A longer one is
measured at its ends, without each rung, and without each two of the five rungs that save most.

A process for each subset would take an hour. One process takes seconds a subset, and GPU time hardly depends on the
process. How much it does is measured by repeating some subsets in processes of their own. The one process is replaced
after a failure, and after `ladder.engine.looks.MOST` subsets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.paths import ROOT
from ladder.core.records import Fields
from ladder.report import drawing
from ladder.results.record import read_findings
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.stats.shapley import NOTHING, Subset
from ladder.studies import frame
from ladder.studies.ablate import record
from ladder.studies.ablate.record import AGAIN, PARITY, Case, Figures, File, Observed, Options
from ladder.studies.base import Session, Study

if TYPE_CHECKING:
    from ladder.engine.looks import Onlooker

RUNS = ROOT / "results" / "ladder"
LARGEST = 5  # rungs of a longer ladder that are left out in pairs
TENTH, LEAST_AGAIN = 10, 3  # of the subsets, and how many at least, are measured again in fresh processes
SHOWN = 5  # pairs in the table

# --- the subsets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """The rungs of a ladder that change something and run here, in its order."""

    ladder: str
    base: Fields  # the change of the lowest rung, which is in every subset
    changes: dict[str, Fields]
    skipped: dict[str, str]  # rungs that cannot run here, and why

    def lay(self, subset: Iterable[str]) -> Fields:
        """Return the changed fields of a subset's recipe, laid in the order of the ladder, as `climb` does."""
        laid = dict(self.base)
        for name, change in self.changes.items():
            laid |= change if name in subset else {}
        return laid

    def make_recipe(self, subset: Iterable[str]) -> Fields:
        """Return all fields of a subset's recipe. Raises ConfigError if it is impossible."""
        from stylegan_lite.config import Recipe

        return Recipe.from_dict(self.lay(subset), where="it").to_dict()

    def leave_out(self, out: Iterable[str]) -> Subset:
        """Return all rungs but some, and but those that extend these or rest on them."""
        from ladder.plan import modes

        left = self.changes
        for name in out:
            left = modes.drop_rung(name, left) if name in left else left
        return frozenset(left)


def load_changes(job: Job) -> Changes:
    """Return the rungs of a job's ladder. Raises UserError if fewer than two of them can run here."""
    from ladder.plan import catalog, needs

    ladder = catalog.load_ladder(job.options.ladder)
    able = needs.list_able(job.device, job.workload, job.facts)
    climbed = catalog.plan_climb(dataclasses.replace(ladder, rival=None), able)
    base, *rest = [catalog.load_rung(rung.name) for rung in climbed if rung.recipe is not None]
    if len(rest) < 2:
        raise UserError(f"ladder {ladder.name}: fewer than two of its rungs run here")
    skipped = {rung.name: texts.make_display(rung.skipped) for rung in climbed if rung.skipped is not None}
    return Changes(ladder.name, base.change, {rung.name: rung.change for rung in rest}, skipped)


def list_subsets(
    job: Job, rungs: Changes, savings: Mapping[str, float] | None = None
) -> dict[Subset, tuple[str, ...]]:
    """Return the subsets to measure, each with the rungs that were to be left out of a longer ladder.

    The ends come first, then the others by chance, so that drift is noise. Of a short ladder a subset is left out where
    its recipe is impossible, or where it lacks what a rung in it rests on.

    Args:
        savings: what each rung of a longer ladder saves when it alone is left out; None while that is unknown.
    """
    from ladder.plan import catalog
    from stylegan_lite.config import ConfigError, Recipe, Workload

    names, chance = [*rungs.changes], random.Random(job.options.seed)
    subsets: dict[Subset, tuple[str, ...]] = {frozenset(names): (), NOTHING: ()}
    if len(names) <= record.MOST_RUNGS:
        workload, allowed = None if job.facts else Workload.from_dict(job.workload), list[Subset]()
        needed = {name: {*catalog.load_rung(name).rests_on} & {*names} for name in names}
        for subset in (each for n in range(1, len(names)) for each in itertools.combinations(names, n)):
            with contextlib.suppress(ConfigError):
                recipe = Recipe.from_dict(rungs.make_recipe(subset))
                recipe.refuse_on(job.device)
                if workload:
                    recipe.refuse_for(workload)
                allowed += [frozenset(subset)] if all(needed[name] <= {*subset} for name in subset) else []
        chance.shuffle(allowed)
        return subsets | dict.fromkeys(allowed, ())
    outs: list[tuple[str, ...]] = [(name,) for name in names]
    chance.shuffle(outs)
    largest = sorted(savings or {}, key=lambda name: -(savings or {})[name])[:LARGEST]
    whole = rungs.make_recipe(names)
    for out in [*outs, *itertools.combinations(largest, 2)]:
        left = rungs.leave_out(out)
        if rungs.make_recipe(left) != whole:  # else the other rungs contain its change
            subsets.setdefault(left, out)
    return subsets


def pick_again(measured: Iterable[Subset], seed: int) -> list[Subset]:
    """Return the subsets to repeat in fresh processes: a tenth of those that were measured, three at least."""
    names = sorted(measured, key=lambda subset: (len(subset), sorted(subset)))
    number = max(LEAST_AGAIN, -(-len(names) // TENTH))
    return random.Random(seed + 1).sample(names, min(number, len(names)))


def name_subset(case: Case, whole: Sequence[str]) -> str:
    """Return the key of a subset's case."""
    name = "everything" if len(case.rungs) == len(whole) else "+".join(case.rungs) or "nothing"
    return f"without {' and '.join(case.out)}" if case.out else name


# --- the study --------------------------------------------------------------------------------------------------------


class Ablate(Study[Options, Case, Observed]):
    """Subsets of a ladder's rungs, one after the other in one process."""

    name, kind, folder = "ablate", "ablation", "ablation"
    help = """Say what each rung is worth in any order, and in pairs.

    Every subset of the rungs that is possible runs in one process: each kind of step of two cycles. Their GPU times
    give each rung's mean gain over all orders and the interaction of each pair. Some subsets are repeated in fresh
    processes for the intervals. Solo and leave-one-out runs of this machine stand beside them. A ladder of more than
    seven changes is measured without each rung, and without each two of the five that save most. On a CPU it is wall
    time.

    Exit status: 0 if every subset has a time. 1 if one has none, or if the ladder failed parity. 2 if the request is
    impossible. 130 if it was interrupted or the time was over.
    """
    examples = """
ladder ablate                             the article's rungs in every possible subset; at most 20 minutes on a GPU
ladder ablate -w article-b32 --budget 40
ladder ablate --model my_pair.py          the rungs of your own networks, see docs/your-pair.md
ladder ablate --ladder full               all rungs but one, and all but two of the five that save most
ladder ablate --resume results/ablation/MACHINE-article-article-partial.json
"""
    gpu_minutes, case_seconds = 20.0, {"cuda": 7.0, "cpu": 5.0}
    answers = ("ok",)
    uses_images, takes_pairs = False, True

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        """Return the parity and all subsets; of a longer ladder pairs follow from what was seen, then the repeats."""
        cases, observed = (dict(file.cases), file.observed) if file else ({}, {})
        if (parity := observed.get(PARITY)) is not None and parity.status != "ok":
            return {PARITY: cases[PARITY]}

        def add(savings: Mapping[str, float] | None) -> None:
            changes = load_changes(job)
            rungs = list(changes.changes)
            cases[PARITY] = Case(kind="parity", rungs=rungs)
            for subset, out in list_subsets(job, changes, savings).items():
                case = Case(kind="once", rungs=[name for name in rungs if name in subset], out=list(out))
                cases[name_subset(case, rungs)] = case

        if cases.keys() <= {PARITY}:
            add(None)
        if file is None or not cases.keys() <= observed.keys():
            return cases
        figures = Figures(file)
        if not figures.is_whole and not any(len(case.out) == 2 for case in cases.values()):
            add({each.rung: each.left_out for each in figures.worth if each.left_out is not None})
        if cases.keys() <= observed.keys() and not any(case.kind == "again" for case in cases.values()):
            keys = {frozenset(case.rungs): key for key, case in cases.items() if case.kind == "once"}
            for subset in pick_again(figures.times, job.options.seed):
                cases[keys[subset] + AGAIN] = replace(cases[keys[subset]], kind="again")
        return cases

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.engine.looks import Onlooker, Task

        job, changes = session.job, load_changes(session.job)
        if case.kind == "parity":
            return _prove(session, changes)
        task = Task(job.workload, changes.make_recipe(case.rungs), job.device, job.options.seed)
        onlooker = session.share(_open_onlooker)
        if case.kind == "once":
            earlier = [each for name, each in session.file.observed.items() if name != PARITY]
            if len(earlier) == 2 and not any(each.look for each in earlier):
                reason = earlier[0].reason  # no gain would follow from the other subsets
                raise UserError(f"neither the whole ladder nor its base has a time: {reason}")
            return Observed(look=onlooker.look(task, session.visits))
        onlooker.close()  # its memory, too
        with contextlib.closing(Onlooker(session.pool)) as fresh:
            return Observed(look=fresh.look(task, session.visits))

    def describe(self, observation: Observed) -> str:
        look = observation.look
        ms = look and record.time_ms(look, record.GPU if look.gpu_ms else record.WALL)
        return f"{texts.format_ms(ms)} ms" if ms else ""

    def derive(self, file: File) -> Any:
        figures, parity = Figures(file), Figures(file).parity
        verdict = parity.verdict if parity.status == "ok" else parity.status
        protocol = {
            "ladder": file.ladder or file.options.ladder, "rungs": figures.rungs, "skipped": parity.skipped,
            "whole": figures.is_whole, "clock": figures.clock, "seed": file.options.seed,
            "notes": frame.list_cautions(self, file),
        }  # fmt: skip
        subsets = [
            {"rungs": case.rungs, "out": case.out, "status": once.status, "reason": once.reason, "once": once.look,
             "again": again}
            for case, once, again in figures.rows
        ]  # fmt: skip
        proof = {"verdict": verdict, "reason": parity.reason, "earlier": parity.earlier} if verdict else None
        known = {key: getattr(figures, key) for key in ("total", "worth", "pairs", "noise")}
        return {"protocol": protocol, "parity": proof, "subsets": subsets, "beside": parity.beside, **known}

    def list_problems(self, file: File) -> Iterable[str]:
        if PARITY not in file.cases:
            yield f"cases: {PARITY!r} is missing"
            return
        figures = Figures(file)
        sets = [frozenset(case.rungs) for case, _, _ in figures.rows]
        if len({*sets}) < len(sets) or not frozenset().union(*sets) <= {*figures.rungs}:
            yield "cases: a subset is there twice, or has rungs that the ladder lacks"
        for key, each in file.observed.items():
            if each.look and record.time_ms(each.look, figures.clock) is None:
                yield f"{key}: no {figures.clock} time"
            if key != PARITY and (each.status == "ok") != (each.look is not None):
                yield f"{key}: {each.status} contradicts its look"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.engine import looks

        lines = looks.find_marks(each.look for each in file.observed.values() if each.look)
        both = Figures(file).both
        if others := sum(once.kernels != again.kernels for once, again in both):
            lines.append(
                f"{others} of {len(both)} subsets launched other numbers of kernels in a fresh process"
            )
        if len(both) < record.LEAST_PAIRS:
            lines.append("too few subsets repeated in fresh processes: no intervals")
        return lines

    def name_file(self, file: File) -> list[str]:
        return [*super().name_file(file), file.ladder or file.options.ladder]

    def summarize(self, file: File) -> list[str]:
        figures = Figures(file)
        return [
            f"What each rung is worth {figures.place}: {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}{frame.describe_data(file)}; ladder"
            f" {file.ladder or file.options.ladder}, {len(figures.rows)} subsets of {len(figures.rungs)} rungs,"
            f" {describe_clock(figures)} of two cycles each in one process; {figures.parity.describe_parity()}."
            f" {frame.describe_software(file)}",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        figures = Figures(file)
        yield make_table(figures)
        known = sorted((pair for pair in figures.pairs if pair.gain is not None), key=_rank_pair)[:SHOWN]
        columns = [Column("pair"), Column("interaction", "factor"), Column("95% interval", "interval")]
        if known:
            pairs = [
                [f"{each.first}, {each.second}", _factor(each.gain), _factors(each.interval)]
                for each in known
            ]
            yield Table(columns, pairs)
        columns = [
            Column("rung"), Column("run"), Column("GPU", "factor"), Column("interval", "interval", 1),
            Column("step", "factor", 2), Column("interval", "interval", 3),
        ]  # fmt: skip
        beside = [
            [
                each.rung,
                f"{each.mode}, {each.started[:10]}",
                each.gpu,
                each.gpu_interval,
                each.wall,
                each.wall_interval,
            ]
            for each in figures.parity.beside
        ]
        if beside:  # with their days: newer runs may say more
            yield Table(columns, beside)

    def draw(self, file: File, kind: str) -> bytes:
        return drawing.save(lambda: _draw_figure(Figures(file), file), kind)


STUDY = Ablate()


def _prove(session: Session, changes: Changes) -> Observed:
    """Compare the whole ladder with the FP64 reference, unless an inspection of the same code has done so."""
    from ladder.engine import inspection
    from ladder.engine.pool import strip_protocol

    job, beside, whole = session.job, read_beside(session.job, changes), [*changes.changes]
    for images in (True, None):  # of `ladder run`, and none
        known = inspection.Cache(job.workload | {"data": images}, job.machine).get(changes.lay(whole))
        if known is not None:
            parity = read_findings({"parity": known["parity"]})["parity"]
            return Observed(parity=parity, earlier=True, skipped=changes.skipped, beside=beside)
    session.report(PARITY)
    recipe, seed = changes.make_recipe(whole), job.options.seed
    with session.prepare_worker(recipe, seed, keep_gradients=True) as worker:
        reply = strip_protocol(worker.call("parity"))
    reason = None if reply["reason"] is None else texts.make_display(reply["reason"])
    parity = read_findings({"parity": reply})["parity"]
    return Observed(
        status=reply["verdict"], reason=reason, parity=parity, earlier=False, skipped=changes.skipped, beside=beside
    )  # fmt: skip


@contextlib.contextmanager
def _open_onlooker(session: Session) -> Iterator[Onlooker]:
    """Yield the one process of all subsets, begun once nothing else disturbs it."""
    from ladder.engine.looks import Onlooker

    session.settle()
    with contextlib.closing(Onlooker(session.pool)) as onlooker:
        yield onlooker


def read_beside(job: Job, changes: Changes) -> list[record.Beside]:
    """Return what the best stored solo and leave-one-out runs of this machine say of the rungs."""
    from ladder.plan import content, modes
    from ladder.results import ranking
    from ladder.results.combine import series

    workload, beside = content.of_workload(job.workload), []
    stored = series.readable(RUNS / texts.make_slug(str(job.machine["name"])))
    same = [
        run for run in stored if (run.ladder.name, content.of_workload(run.workload)) == (changes.ladder, workload)
    ]  # fmt: skip
    for mode in (modes.SOLO, modes.LEAVE_ONE_OUT):
        best = max((run for run in same if ranking.mode(run) == mode), key=ranking.rank, default=None)
        for rung in best.rungs if best else ():
            wall, gpu = rung.gain, rung.gpu_gain
            if best and rung.name in changes.changes and (wall or gpu):
                each = record.Beside(mode=cast(Any, mode), started=best.started, rung=rung.name)
                each = replace(each, wall=wall.ratio, wall_interval=wall.interval) if wall else each
                beside.append(replace(each, gpu=gpu.ratio, gpu_interval=gpu.interval) if gpu else each)
    return beside


# --- the report: a logarithm is shown as a factor ---------------------------------------------------------------------


def _factor(log: float | None) -> float | None:
    return None if log is None else math.exp(log)


def _factors(logs: Sequence[float | None] | None) -> list[float] | None:
    return None if not logs or None in logs else [math.exp(cast(float, log)) for log in logs]


def _show(log: float | None) -> str:
    return texts.fine_factor(_factor(log))


def _rank_pair(pair: record.Pair) -> float:
    return -abs(pair.gain or 0.0)


def describe_clock(figures: Figures) -> str:
    """Return the name of the clock."""
    return "GPU time" if figures.clock == record.GPU else "wall time on a CPU"


def make_table(figures: Figures) -> Table:
    """Return the rungs in the order of the ladder, with what they gain; of a longer ladder only at its top."""
    rungs, whole, total = figures.rungs, figures.is_whole, figures.total
    columns = [
        Column("rung"), Column("on average" if whole else "gain at top", "factor"), Column("95% interval", "interval"),
        Column("saves ms/step", "ms", 1), Column("in the ladder's order", "factor", 1), Column("first", "factor", 3),
        Column("last", "factor", 3), Column("all orders", "interval", 2), Column("leaves with it", priority=1),
    ]  # fmt: skip
    left = {out[0]: {*subset, out[0]} for out, subset in figures.outs.items() if len(out) == 1}
    rows: list[list[Any]] = []
    for each in figures.worth:
        gain, interval = (each.gain, each.interval) if whole else (each.left_out, each.left_out_interval)
        row = [each.rung, _factor(gain), _factors(interval), each.ms, _factor(each.staircase)]
        row += [_factor(each.alone), _factor(each.left_out)] if whole else [None, None]
        others = ", ".join(name for name in rungs if name not in left.get(each.rung, rungs))
        rows.append([*row, _factors((each.least, each.most)), others])
    if total is not None:
        row = ["all together", _factor(total.gain), _factors(total.interval), total.ms if whole else None]
        rows.append([*row, *[None] * 4, ""])
    return Table(columns, rows, notes=list_findings(figures)).drop_empty()


def list_findings(figures: Figures) -> list[str]:
    """Return the findings, one sentence each: how much is the order, which pairs act on each other, the noise."""
    parity, noise, total = figures.parity, figures.noise, figures.total
    skipped = [f"{name} is left out: {why}." for name, why in parity.skipped.items()]
    if parity.status != "ok":
        return [f"Nothing was measured, because the whole ladder failed parity: {parity.reason}.", *skipped]
    findings = []
    if total is None:
        findings.append("The ladder's two ends were not both measured.")
    elif not figures.is_whole:
        findings.append(
            f"The whole ladder gains {_show(total.gain)}. Gains at the top do not multiply to it."
        )
    elif total.moved is not None:
        most = max(figures.worth, key=lambda each: abs((each.staircase or 0.0) - (each.gain or 0.0)))
        findings.append(
            f"{100 * total.moved:.0f}% of the staircase's {_show(total.gain)} in {describe_clock(figures)} is its"
            f" order: on average over all {total.orders:,} orders that share goes to other rungs. {most.rung} depends"
            f" most on its place: {_show(most.staircase)} in the ladder's order, {_show(most.gain)} on average,"
            f" {_show(most.least)} to {_show(most.most)} from its worst place to its best."
        )
    known = [each for each in figures.pairs if each.gain is not None]
    sure = [each for each in known if record.is_beyond_noise(each, noise, len(figures.pairs))]
    if pair := min(sure, key=_rank_pair, default=None):
        findings.append(
            f"{pair.first} and {pair.second} act on each other most: together they gain {_show(pair.gain)} the product"
            " of their gains without each other."
        )
    findings.append(f"{len(sure)} of {len(known)} pairs are beyond the noise.")
    if noise is not None:
        findings.append(
            f"{noise.freedom + 1} subsets were measured again in fresh processes: one measurement has a standard"
            f" deviation of {100 * noise.sd:.2f}%, and fresh processes took {100 * noise.shift:+.2f}%."
        )
    failed = [f"{once.status}: {once.reason}" for _, once, _ in figures.rows if once.status != "ok"]
    findings += [f"{len(failed)} subsets have no time: {reason}." for reason in failed[:1]]
    return [*findings, *skipped]


# --- the chart: bars of the rungs, and a heat map of pairs if any was measured ----------------------------------------

WIDE, ROW = 12.5, 0.42  # inches


def _draw_figure(figures: Figures, file: File) -> Any:
    from matplotlib.figure import Figure

    rungs = figures.rungs
    gains = {frozenset((pair.first, pair.second)): pair.gain for pair in figures.pairs}
    names = [rung for rung in rungs if figures.is_whole or any(rung in pair for pair in gains)]
    findings = list_findings(figures)[:2]
    lines = [line for each in findings for line in drawing.wrapped(each, 9, WIDE - 0.5)]
    above = 0.95 + 0.19 * len(lines)
    high = above + 1.05 + ROW * max(len(rungs), 6)
    figure = Figure(figsize=(WIDE, high))
    grid = figure.add_gridspec(
        1, 2, left=0.135, right=0.98, top=1 - above / high, bottom=0.9 / high, wspace=0.42, width_ratios=(1.05, 1)
    )  # fmt: skip
    bars, axes = (figure.add_subplot(cell) for cell in grid)
    _draw_bars(bars, figures)
    place = axes.get_position()
    tall = min(place.height, 1.35 * ROW * max(len(names) - 1, 1) / high)
    axes.set_position((place.x0, place.y1 - tall, place.width, tall))
    cells = [
        [gains.get(frozenset((row, column))) if y >= x else None for x, column in enumerate(names[:-1])]
        for y, row in enumerate(names[1:])
    ]
    drawing.heatmap(axes, names[1:], names[:-1], cells, LIGHT, format_gain)
    title = f"gain {'on average over all orders' if figures.is_whole else 'at the top of the ladder'}"
    for each, words in ((bars, title), (axes, "two rungs together, beyond each without the other")):
        each.set_title(words, loc="left", fontsize=10.5, fontweight="bold", color=LIGHT.ink)
    question = f"what each rung is worth {figures.place}"
    under = f"{frame.describe_workload(file)}; {describe_clock(figures)}. Line in a bar: 95% interval."
    under += (
        " Diamond: in the ladder's order. Line under it: worst to best order." if figures.is_whole else ""
    )
    under += f" PyTorch {file.machine.torch}."
    frame.draw_heading(STUDY, file, figure, question, under, lines)
    return figure


def format_gain(log: float | None) -> str:
    """Return a gain as percent: +2.0% is a factor of 1.02."""
    if log is None:
        return ""
    change = 100 * math.expm1(log)
    return "0" if abs(change) < 0.05 else f"{change:+.1f}%"


def _draw_bars(axes: Any, figures: Figures) -> None:
    whole = figures.is_whole
    for place, each in enumerate(figures.worth):
        value, interval = (each.gain, each.interval) if whole else (each.left_out, each.left_out_interval)
        if value is None:
            axes.text(0, place, " no time", va="center", color=LIGHT.muted, fontsize=8.5)
            continue
        axes.barh(place, value, 0.56, color=LIGHT.busy if value >= 0 else LIGHT.article, zorder=2)
        span = [] if each.least is None or each.most is None else [each.least, each.most]
        stair = [] if each.staircase is None else [each.staircase]
        ends, diamond = interval or [], {"marker": "D", "markersize": 5, "markeredgecolor": LIGHT.ground}
        axes.plot(span, [place + 0.37] * len(span), color=LIGHT.muted, linewidth=1.4, zorder=3)
        axes.plot(ends, [place] * len(ends), color=LIGHT.ink, linewidth=1.2, zorder=4)
        axes.plot(stair, [place] * len(stair), color=LIGHT.ink, zorder=5, **diamond)
        end, beside = (
            max([value, 0.0, *span, *stair, *ends]),
            {"xytext": (5, 0), "textcoords": "offset points"},
        )
        words = f"{math.exp(value):.3f}x"
        axes.annotate(words, (end, place), **beside, va="center", fontsize=8.5, color=LIGHT.ink)
    axes.set_yticks(range(len(figures.worth)), [each.rung for each in figures.worth])
    axes.set_ylim(len(figures.worth) - 0.4, -0.6)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.004), high + 0.18 * (high - min(low, 0)))
    axes.axvline(0, color=LIGHT.muted, linewidth=0.8, zorder=1)
    axes.xaxis.set_major_formatter(lambda log, _: f"{math.exp(log):.2f}x")
    drawing.clear_axes(axes, "x")
