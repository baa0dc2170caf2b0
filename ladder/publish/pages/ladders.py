"""Tables of `ladder run`: staircases, gains at the top, one row for each workload."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from ladder.base.text import amount, bounds, factor, fine_factor, ms
from ladder.plan import modes
from ladder.publish import gallery
from ladder.publish.pages import studies
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import absent, link, span, table, text, under
from ladder.report import gpus as picture
from ladder.report import recommend_text, tables
from ladder.report.advising import ADOPT, Sources
from ladder.report.recommend import recommend
from ladder.report.view import Row, View, shown_gain, shown_verdict, view
from ladder.results import derive, sources
from ladder.results.combine import gains as across
from ladder.results.combine import series
from ladder.results.run import Result
from ladder.results.words import answer
from ladder.studies import frame
from ladder.studies.profile.study import STUDY as PROFILE

CARDS, DRIVERS = (6, 8, 10, 12, 16, 24, 32, 40, 48, 80), 0.5  # GiB of memory, and what no process gets of it
NOT_BESIDE = {"95% interval", "reserved GiB", "device GiB"}
CUMULATIVE, LEAVE_ONE_OUT = modes.CUMULATIVE, modes.LEAVE_ONE_OUT


def gpus(committed: Committed) -> str:
    """Return the article's ladder on every GPU, with a row of the ladder `full` and of NVIDIA's own step.

    A GPU without a decided run of the article's ladder is shown by its rungs in the run of `full`. Once a GPU has whole
    generations, which may be quoted, GPUs with older results alone are left out.
    """
    return "\n".join(
        _gpu(committed, part, first=not index) for index, part in enumerate(_staircases(committed))
    )


def _staircases(committed: Committed) -> list[Result]:
    """Return the run that shows the article's ladder, of each GPU of `gpus`."""
    wanted = (gallery.ARTICLE, gallery.ARTICLE, CUMULATIVE)
    found = [each for (_, *key), each in committed.best.items() if tuple(key) == wanted and each.machine.gpu]
    return list(filter(gallery.is_decided, found)) or found


def agreement(committed: Committed) -> str:
    """Return how the gains of GPU time on two GPUs compare, as `ladder compare` says it; a table for each pair."""
    # A part of a run is compared as the whole run, whose noise its verdicts rest on.
    runs = [committed.ladder(committed.path_of(each)) for each in _staircases(committed)]
    return "\n".join(_agreement(*pair) for pair in itertools.combinations(runs, 2))


def _agreement(first: Result, second: Result) -> str:
    rows = [row for row in across.compare(first, second, {}) if row.gpu]
    names = [str(each.machine.gpu) for each in (first, second)]
    cells = [
        [
            text(row.name),
            fine_factor(gain.before),
            fine_factor(gain.after),
            across.told(gain),
            text(row.lies_in) if gain.verdict in across.DIFFERS else "",  # else it is of the step
        ]
        for row in rows
        if (gain := row.gpu)
    ]
    said = across.summary([(row.name, row.gpu) for row in rows], names[1])
    head = ["rung", f"gain of GPU time, {names[0]}", names[1], "verdict", "where it lies"]
    doubt = across.OTHER_CODE if across.other_code(first, second) else ""
    return f"{table(head, cells, last=2)}{under(text(said), doubt)}"


def _gpu(committed: Committed, result: Result, first: bool) -> str:
    """Return the table of a GPU. The article's figures stand in the first table alone."""
    shown = view(result)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("rung", lambda row: text(row.title)),
        ("ms/step", lambda row: _step(row)[0]),
    ]
    if shown.has_gpu_time:
        columns += [
            ("GPU ms", lambda row: _gpu_ms(row)[0]),
            ("GPU work", lambda row: answer(row.gpu.seen) if row.gpu else ""),
            ("step", lambda row: answer(row.seen)),
        ]
    else:
        columns += [("95% interval", lambda row: span(row.interval)), ("verdict", shown_verdict)]
    columns += [("advice", lambda row: row.advice)] * any(row.advice for row in shown.rows)
    columns += [("total", lambda row: factor(row.total))]
    columns += [
        ("article, A100", lambda row: _article(row)[0]),
        ("its total", lambda row: _article(row)[1]),
    ] * first
    rows = [[cell(row) for _, cell in columns] for row in shown.rows]
    full = committed.top(result.machine.name, gallery.ARTICLE, gallery.FULL)
    if full is not None and (timed := _timed(all_rungs := view(full))):
        top = timed[-1]
        name = _all_rungs(picture.rungs_up_to(full, top.name), len(all_rungs.rows), committed.chart(full))
        name += f", {_made(full)}" * (_rounds(full) != _rounds(result))
        name += ", not to be quoted" * bool(all_rungs.marks)
        shown_here = {"ms/step", "95% interval", "GPU ms", "total"}
        cells = [cell(top) if heading in shown_here else "" for heading, cell in columns]
        cells[0] = name
        rows.append(cells)
    if theirs := studies.nvidias(committed, result.machine.name, gallery.ARTICLE):
        told = dict(zip(("rung", "ms/step", "GPU ms"), theirs, strict=True))
        rows.append([told.get(heading, "") for heading, _ in columns])
    head = [heading for heading, _ in columns]
    return f"**{result.machine.gpu}**, `article`\n\n{table(head, rows)}{_source(committed, result, shown, brief=True)}"


def _all_rungs(count: int, rows: int, page: str) -> str:
    """Return the name of the top of `full`, whose run may have timed some rungs alone; the linked page shows these."""
    if rows == count:
        return f"all {count} rungs of {link('`full`', page)}"
    return f"all {count} rungs of `full` at once ({link(f'run of {rows} rungs', page)})"


def _step(row: Row) -> list[str]:
    return [ms(row.step_ms) if row.status == "ok" else text(row.status), span(row.interval)]


def _article(row: Row) -> list[str]:
    return ["" if row.article_ms is None else f"{row.article_ms:g}", factor(row.article_total)]


def _timed(shown: View) -> list[Row]:
    return [row for row in shown.rows if row.status == "ok"]


def _rounds(result: Result) -> str:
    """Return the generations of the rungs with a number: `3`, or `2 to 4`."""
    counts = sorted({len(derive.counted(rung)) for rung in result.rungs if rung.status == "ok"})
    return " to ".join(map(str, counts[:1] + counts[1:][-1:])) or "0"


def _made(result: Result) -> str:
    return f"{sources.unit(result)}s: {_rounds(result)}"


def _source(committed: Committed, result: Result, shown: View, brief: bool = False) -> str:
    """Return the line under a table: its generations, table and samples; a brief one names either."""
    path = committed.path_of(result)
    page = [link("table", committed.chart(result))] * committed.is_best(result)
    visits = [visit for rung in result.rungs for visit in rung.rounds]
    loose = sum(visit.settled is False for visit in visits)
    unsettled = [f"{loose} of {len(visits)} visits unsettled"] * bool(loose)
    marks = map(text, shown.marks)
    samples = [link("samples", path)] * (not (brief and page))
    part = [f"rungs of a run of `{result.part_of}`"] * (bool(result.part_of) and not brief)
    return under(_made(result), *part, *unsettled, *page, *samples, *marks)


def rungs(committed: Committed, name: str) -> str:
    """Return every rung of one result, with its verdict; with GPU times where the run has them."""
    result = committed.ladder(name)
    shown = view(result)
    own, gain = (_with_gpu_time if shown.has_gpu_time else _wall_alone)(shown)
    head = ["rung", "ms/step", "95% interval", *own, "total", "total interval", "without R1, path length"]
    rows = [
        [text(row.title), *_step(row), *gain(row), factor(row.total), bounds(row.total_interval), ms(row.main_ms)]
        for row in shown.rows
    ]  # fmt: skip
    return table(head, rows) + _source(committed, result, shown)


def _wall_alone(shown: View) -> tuple[list[str], Callable[[Row], list[str]]]:
    """Return the headings and cells of the gain of each rung in a run without GPU times."""
    head = [shown.versus, "interval", "verdict"]
    return head, lambda row: [shown_gain(row), bounds(row.gain), shown_verdict(row)]


def _with_gpu_time(shown: View) -> tuple[list[str], Callable[[Row], list[str]]]:
    """Return the headings and cells of GPU time and of both gains of each rung."""

    def cells(row: Row) -> list[str]:
        return [*_gpu_ms(row), answer(row.gpu.seen) if row.gpu else "", answer(row.seen)]

    return ["GPU ms", "95% interval", "GPU work", "step"], cells


def _gpu_ms(row: Row) -> list[str]:
    """Return GPU time and its interval. A figure without an interval has too few generations to be quoted."""
    return [ms(row.gpu.ms), span(row.gpu.interval)] if row.gpu and row.gpu.interval else ["", ""]


def memory(committed: Committed, name: str) -> str:
    """Return the time and the peak of memory of every rung of one result, and the largest batch where it is known.

    A run measures the workload's batch alone. `ladder profile RUNG --ladder LADDER --largest-batch` searches.
    """
    result = committed.ladder(name)
    shown, most = view(result), _largest(committed, result)
    head = [
        "rung",
        "ms/step",
        "95% interval",
        "step",
        "without R1, path length",
        "reserved GiB",
        "allocated GiB",
        "device GiB",
        *(("largest batch", "images/s there") if most else ()),
    ]
    rows = []
    for row in shown.rows:
        peaks = map(amount, (row.memory, row.allocated, row.device))
        known = most.get(row.name, ["", ""]) if most else []
        rows.append([text(row.title), *_step(row), answer(row.seen), ms(row.main_ms), *peaks, *known])
    return table(head, rows) + _source(committed, result, shown)


def _largest(committed: Committed, result: Result) -> dict[str, list[str]]:
    """Return by rung the cells of the largest batch, of the profiles of the same machine, workload and ladder."""
    found: dict[str, list[str]] = {}
    for name in committed.names("profile/*.json"):
        file = frame.decode_file(PROFILE, committed.read(name))
        profile, workload = PROFILE.derive(file), (file.workload or {}).get("name")
        names = file.machine.name, workload, profile.ladder
        same = names == (result.machine.name, result.workload["name"], result.ladder.name)
        if same and (most := profile.largest) is not None and most.batch:
            fewest = "" if most.settled else "at least "
            found[profile.rung or ""] = [f"{fewest}{most.batch}", amount(most.images_per_s)]
    return found


def beside(committed: Committed, name: str) -> str:
    """Return every entry of a study beside the first one.

    Its column of memory is what is allocated. The linked table has the other columns and a sentence on each entry.
    """
    result = committed.ladder(name)
    shown = view(result)
    columns = [("entry", lambda row: row.title), *tables.columns_of(shown)]
    columns = [column for column in columns if column[0] not in NOT_BESIDE]
    rows = [[text(cell(row)) for _, cell in columns] for row in shown.rows]
    return table([heading for heading, _ in columns], rows) + _source(committed, result, shown)


def gains(committed: Committed, name: str) -> str:
    """Return the rungs of a leave-one-out result, the largest gain first."""
    result = committed.ladder(name)
    shown = view(result)
    own, gain = _with_gpu_time(shown) if shown.has_gpu_time else (["gain at top", "interval"], _at_top)
    order = sorted(shown.rows, key=lambda row: -(row.previous or 0))
    rows = [[text(row.title), *_step(row), *gain(row), row.advice] for row in order]
    return table(["left out", "ms/step", "95% interval", *own, "advice"], rows) + _source(
        committed, result, shown
    )


def _at_top(row: Row) -> list[str]:
    return [shown_gain(row), bounds(row.gain)]


def workloads(committed: Committed, machine: str, ladder: str) -> str:
    """Return one row for each workload that climbed a ladder on a machine."""
    times = [
        "baseline, ms",
        "the article's eight, ms",
        "top, ms",
        "interval",
        "top, GPU ms",
        "speedup",
        "interval",
        "without R1, path length",
    ]
    rows = [_workload_row(committed, result) for result in climbed(committed, machine, ladder)]
    return table(["workload", *times, "generations"], rows)


def climbed(committed: Committed, machine: str, ladder: str) -> list[Result]:
    """Return of each workload the best staircase that has the top of the ladder."""
    wanted = (machine, ladder, CUMULATIVE)
    names = [name for where, name, *rest in committed.best if (where, *rest) == wanted]
    return [each for name in names if (each := committed.top(machine, name, ladder))]


def _workload_row(committed: Committed, result: Result) -> list[str]:
    timed = {row.name: row for row in _timed(view(result))}
    top, eight = list(timed.values())[-1], timed.get("fused_act")
    work = result.workload
    name = link(f"`{work['name']}`", committed.chart(result))
    return [
        f"{name}: {work['resolution']}x{work['resolution']}, batch {work['batch']}",
        ms(timed["baseline"].step_ms),
        ms(eight.step_ms) if eight else "not measured",
        ms(top.step_ms),
        span(top.interval),
        _gpu_ms(top)[0],
        factor(top.total),
        bounds(top.total_interval),
        factor(top.main_total),
        _rounds(result),
    ]


def cards(committed: Committed, ladder: str) -> str:
    """Return what each workload's ends of a ladder hold on the device, most of all GPUs, and the cards that suffice."""
    machines = sorted({machine for (machine, *_), each in committed.best.items() if each.machine.gpu})
    held: dict[str, list[tuple[float, float, float]]] = {}  # of any rung, of the baseline, of the top
    for result in (each for machine in machines for each in climbed(committed, machine, ladder)):
        rows = [row.device for row in view(result).rows if row.device]
        if rows:
            held.setdefault(result.workload["name"], []).append((max(rows), rows[0], rows[-1]))
    most = {name: tuple(map(max, zip(*each, strict=True))) for name, each in held.items()}
    lines = [
        [f"`{name}`", amount(first), amount(any_), _card(any_), amount(top), _card(top)]
        for name, (any_, first, top) in sorted(most.items(), key=lambda item: item[1])
    ]
    head = ["workload", "baseline, GiB", "most of any rung, GiB", "card for all", "top, GiB", "card for it"]
    return table(head, lines) if lines else absent(f"ladder run --ladder {ladder}")


def _card(gib: float) -> str:
    """Return the smallest usual card that holds so much, its driver's part left out."""
    return next((f"{card} GB" for card in CARDS if gib <= card - DRIVERS), f"over {CARDS[-1]} GB")


def lazy(committed: Committed, machine: str, ladder: str) -> str:
    """Return the milliseconds that R1 and path length add to a step, at both ends of a ladder.

    They are measured in one generation of a run, so they have no interval.
    """
    rows = []
    for result in climbed(committed, machine, ladder):
        timed = [rung for rung in result.rungs if rung.status == "ok"]
        for rung in (timed[0], timed[-1]):
            costs = derive.lazy_costs(rung)
            cells = [ms(costs[phase][0]) if phase in costs else "" for phase in ("D_r1", "G_pl")]
            rows.append([f"`{result.workload['name']}`", text(rung.title), *cells])
    said = table(["workload", "rung", "R1 adds, ms", "path length adds, ms"], rows, 2)
    return f"{said}{under('of one generation of each run')}" if rows else said


def staircases(committed: Committed, machine: str, workload: str, ladder: str) -> list[str]:
    """Return the names of all runs of one ladder that timed its baseline and another rung, the newest first."""
    names = reversed(committed.names(f"ladder/{machine}/{workload}-{ladder}-2*.json"))
    return [name for name in names if _climbs(view(committed.ladder(name)))]


def _climbs(shown: View) -> bool:
    timed = _timed(shown)
    return len(timed) > 1 and timed[0].name == "baseline"


def hosts(committed: Committed, names: list[str]) -> str:
    """Return the lowest and the highest rung of each of these staircases."""
    head = [
        "run",
        "baseline, ms",
        "interval",
        "last rung, ms",
        "interval",
        "speedup",
        "interval",
        "ambiguous verdicts",
        "generations",
    ]
    rows = []
    for name in names:
        result = committed.ladder(name)
        timed = _timed(view(result))
        unclear = sum(row.verdict == "ambiguous" for row in timed)
        first = [text(result.started[:16].replace("T", " ")), *_step(timed[0])]
        rows.append([link(first[0], name), *first[1:], *_step(timed[-1]), factor(timed[-1].total),
                     bounds(timed[-1].total_interval), f"{unclear} of {len(timed) - 1}", _rounds(result)])  # fmt: skip
    return table(head, rows)


def recommended(committed: Committed, name: str) -> str:
    """Return what one run recommends: the advice on each rung, the units of practice, and why a rung is not ADOPT."""
    result = committed.ladder(name)
    left_out = series.left_out_of(result, [*committed.best.values()])
    alone = result.protocol.mode == LEAVE_ONE_OUT
    made = recommend(Sources(None, result, {}) if alone else Sources(result, left_out, {}))
    others = replace(made, rungs=tuple(each for each in made.rungs if each.advice != ADOPT))
    reasons = "".join(f"- {text(line)}\n" for line in recommend_text.reasons(others))
    return f"{recommend_text.tables(made)}\n\n{reasons}{_source(committed, result, view(result))}"


TABLES: dict[str, Callable[..., str]] = {
    "hosts": hosts,
    "gpus": gpus,
    "agreement": agreement,
    "rungs": rungs,
    "memory": memory,
    "beside": beside,
    "gains": gains,
    "workloads": workloads,
    "cards": cards,
    "lazy": lazy,
    "recommended": recommended,
}
