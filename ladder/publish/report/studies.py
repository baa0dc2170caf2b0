"""The sections of the other commands' results, a function each. A function returns None without a file of its kind."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from ladder.publish.report.inputs import File, Inputs, shorten_path
from ladder.report import chart, tables
from ladder.report.themes import DARK, LIGHT
from ladder.report.view import view
from ladder.results import publishable
from ladder.results.parts import OVERLAP
from ladder.results.ranking import Stored
from ladder.results.types import Plain
from ladder.show.page import Bar, Bars, Block, Chart, Fold, Part, Section
from ladder.show.table import Column, Table
from ladder.studies import ablate, frame, sustain
from ladder.studies import map as maps
from ladder.studies.ablate import report as ablations
from ladder.studies.ablate.record import MOST_RUNGS, PARITY
from ladder.studies.profile import study as profiles
from ladder.studies.profile.record import Profile
from ladder.studies.roofline import derive
from ladder.studies.roofline import study as rooflines
from ladder.studies.upstream import study as upstream
from stylegan_lite.config import Recipe

NUMBER = re.compile(r"[-+]?\d")
MOST_PAIRS = 21  # in the folded table: all of seven rungs
LEAST_MS = 0.005  # less is 0.00 in a table
CHANGES = "in brackets: the change against the profile to the left, in ms a step"
WHOLE_IMAGES = 25e6  # of a training
JOULES_PER_KWH = 3.6e6


def make_table(rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return the table of cells that are text already, headings first, without empty columns.

    The first column names the rows. Another is one of numbers if at least half of its cells begin as numbers do.
    """
    headings, *body = rows
    columns = [k for k in range(len(headings)) if k == 0 or any(row[k] for row in body)]
    kinds = []
    for k in columns:
        texts = [row[k] for row in body if row[k] and k]
        is_number = texts and 2 * sum(bool(NUMBER.match(each)) for each in texts) >= len(texts)
        kinds.append(Column(headings[k], "amount" if is_number else "text"))
    return Table(kinds, [[row[k] for k in columns] for row in body], title)


# --- profiles ---------------------------------------------------------------------------------------------------------


def show_profiles(inputs: Inputs) -> Section | None:
    """Return the categories of each profiled rung side by side, and all tables of each."""
    places = {rung.name: place for place, rung in enumerate(inputs.main.rungs)}
    decoded = [(file, frame.decode_file(profiles.STUDY, file.data)) for file in inputs.list_files("profile")]
    shown = [(file, raw, profiles.STUDY.derive(raw)) for file, raw in decoded]
    shown = [each for each in shown if each[2].categories]
    shown.sort(key=lambda each: (places.get(each[2].rung or "", len(places)), each[2].rung, each[0].name))
    if not shown:
        return None
    return Section(
        "profiles",
        "What a step consists of",
        "One process of each rung, as `ladder profile` sees it. It shows where time goes, and is no verdict.",
        [
            _compare_profiles([profile for _, _, profile in shown]),
            [CHANGES] if len(shown) > 1 else [],
            *(
                Fold(
                    profiles.write_sentences(raw, profile)[1],
                    [*profiles.tabulate_profile(profile), file.list_remarks()],
                    on_paper=False,
                )
                for file, raw, profile in shown
            ),
        ],
    )


def _compare_profiles(shown: Sequence[Profile]) -> Table:
    """Return ms a step of every category, a column for each profile with the change against the one before."""
    once = all(each.is_once for each in shown)  # older files count two kernels that ran at once twice
    work = [{row.name: row.shown_ms if once else row.ms for row in each.categories} for each in shown]
    names = dict.fromkeys(row.name for each in shown for row in each.categories)
    rows = [
        [name, *_format_changes([each.get(name, 0.0) for each in work])]
        for name in sorted(names, key=lambda name: -max(row.get(name, 0.0) for row in work))
    ]
    overlaps = [each.overlap_ms if each.overlap_ms >= LEAST_MS else 0.0 for each in shown]
    if any(overlaps) and not once:
        rows.append([OVERLAP, *_format_changes([0.0 - ms for ms in overlaps])])
    rows.append([profiles.name_whole(shown[0]), *_format_changes([each.gpu_ms or 0.0 for each in shown])])
    rows.append(["step", *_format_changes([each.step_ms or 0.0 for each in shown])])
    return Table([Column("ms a step"), *(Column(each.rung or "", "decimal") for each in shown)], rows)


def _format_changes(sizes: Sequence[float]) -> list[str]:
    """Return sizes as text, with the change against the size before where there is one."""
    cells = [f"{sizes[0]:.2f}"]
    for before, after in itertools.pairwise(sizes):
        change = after - before
        cells.append(f"{after:.2f} ({change:+.2f})" if abs(change) >= LEAST_MS else f"{after:.2f}")
    return cells


# --- what rungs are worth ---------------------------------------------------------------------------------------------


def show_ablations(inputs: Inputs) -> Section | None:
    """Return the worth of each rung in any order, and which rungs act on each other."""
    files = inputs.list_files("ablation")
    files.sort(key=lambda file: len(file.data["cases"][PARITY]["rungs"]) > MOST_RUNGS)  # orders first
    return Section(
        "ablation",
        "What each rung is worth in any order",
        "As `ladder ablate` finds it: a rung's mean gain over all orders of the ladder (its Shapley value); of a"
        " longer ladder its gain on top of all others.",
        [block for file in files for block in _show_ablation(file)],
    ) if files else None  # fmt: skip


def _show_ablation(file: File) -> list[Block]:
    raw = frame.decode_file(ablate.STUDY, file.data)
    ablation = ablate.STUDY.derive(raw)
    title = f"Worth of each rung: {ablations.describe_clock(ablation)}, ladder {ablation.protocol.ladder}"
    blocks: list[Block] = [
        ablations.list_findings(ablation),
        dataclasses.replace(ablations.make_table(ablation), title=title),
    ]
    if ablation.worth:
        light, dark = (ablations.draw_chart(ablation, raw, "svg", theme) for theme in (LIGHT, DARK))
        about = f"Worth of each rung, and a heat map of pairs. {ablations.describe_pairs(ablation)}"
        blocks.append(Chart(about, light, dark))
    pairs, stored = ablations.make_pairs_table(ablation, MOST_PAIRS), ablations.make_beside_table(ablation)
    if pairs.rows:
        together = f"Two rungs together, beyond each without the other: {len(pairs.rows)} pairs"
        blocks.append(Fold(together, [pairs]))
    if stored.rows:
        blocks.append(Fold("Stored runs beside", [stored]))
    return [*blocks, file.list_remarks()]


def show_maps(inputs: Inputs) -> Section | None:
    """Return the batches and resolutions at which two rungs matter."""
    files = inputs.list_files("map")
    return Section(
        "maps",
        "Where two rungs matter",
        "Gains by resolution and batch, as `ladder map` looks at them: one process for each recipe in each cell.",
        [block for file in files for block in _show_map(file)],
    ) if files else None  # fmt: skip


def _show_map(file: File) -> list[Block]:
    raw = frame.decode_file(maps.STUDY, file.data)
    derived = maps.STUDY.derive(raw)
    findings = maps.list_findings(derived)
    blocks: list[Block] = [findings]
    if derived.rows:
        light, dark = (maps.draw_chart(derived, raw, "svg", theme) for theme in (LIGHT, DARK))
        blocks.append(Chart(" ".join(findings), light, dark))
    for table in maps.STUDY.list_tables(raw):
        bare = dataclasses.replace(table, title="", notes=())
        blocks.append(Fold(f"Table: {table.columns[0].title}", [bare], on_paper=False))
    return [*blocks, file.list_remarks()]


def show_mistakes(inputs: Inputs) -> Section | None:
    """Return common mistakes and cheaper models: each entry beside the first one, by both clocks."""
    return Section(
        "studies",
        "What mistakes cost, and what another model saves",
        "Each entry beside the first one, in times of its GPU work and of its step. 2x takes twice as long.",
        [block for run in inputs.studies for block in _show_mistakes(run)],
    ) if inputs.studies else None  # fmt: skip


def _show_mistakes(run: Stored) -> list[Block]:
    path, result = run
    shown = view(result)
    columns = [("entry", lambda row: row.title), *tables.columns_of(shown)]
    rows = [[heading for heading, _ in columns], *([cell(row) for _, cell in columns] for row in shown.rows)]
    light, dark = (chart.render(result, "svg", theme) for theme in (LIGHT, DARK))
    above = (*shown.sentences, *shown.marks)
    below = [line for line in tables.lines_below(shown) if line not in above]
    return [
        Chart(f"{shown.title}: milliseconds a step of each entry", light, dark),
        shown.sentences,
        Fold(f"Table: {shown.title}", [make_table(rows)], on_paper=False),
        [*map(publishable.told, shown.marks), *below, shorten_path(path)],
    ]


# --- energy -----------------------------------------------------------------------------------------------------------


def show_energy(inputs: Inputs) -> Section | None:
    """Return the energy of a step, and whether its speed lasts."""
    files = inputs.list_files("sustained")
    return Section(
        "energy",
        "Energy, and whether the speed lasts",
        "One process of each rung for a while, as `ladder sustain` follows it; sustained is the later half.",
        [block for file in files for block in _show_sustained(inputs, file)],
    ) if files else None  # fmt: skip


def _show_sustained(inputs: Inputs, file: File) -> list[Block]:
    raw = frame.decode_file(sustain.STUDY, file.data)
    rungs = sustain.STUDY.derive(raw).rungs
    batch = int((raw.workload or {})["batch"] or 1)
    rows = [
        [
            rung.name,
            sustain.format_energy(each),
            *_scale_energy(each.step_j / batch),
            each.seconds,
            each.source,
        ]
        for rung in rungs
        if (each := sustain.derive_energy(rung))
    ]
    columns = [
        Column("rung"),
        Column("J a step", "amount"),
        Column("J an image", "amount"),
        Column("kWh for 25M images", "amount"),
        Column("seconds", "count"),
        Column("read from"),
    ]
    recipes = [complete_recipe(rung.recipe) for rung in inputs.main.rungs if rung.recipe]
    others = [rung.name for rung in rungs if complete_recipe(rung.recipe) not in recipes]
    notes = file.list_remarks()
    if others:
        notes.append(f"another recipe than any rung of this page: {', '.join(others)}")
    if not rows:
        notes.append("no ten seconds in a row know power or energy: the energy of a step is unknown")
    energy = [Table(columns, rows, f"Energy, {file.name}")] if rows else []
    return [*sustain.STUDY.list_tables(raw), *energy, notes]


def _scale_energy(image_j: float) -> tuple[float, float]:
    """Return joules an image, and kWh of a whole training."""
    return image_j, image_j * WHOLE_IMAGES / JOULES_PER_KWH


def complete_recipe(recipe: Plain) -> Plain:
    """Return a recipe with the fields that have their default."""
    return Recipe().to_dict() | recipe


def list_joules(inputs: Inputs) -> list[tuple[Plain, str]]:
    """Return each recipe whose energy was measured, whole, with the joules of a step as text."""
    files = [frame.decode_file(sustain.STUDY, file.data) for file in inputs.list_files("sustained")]
    return [
        (complete_recipe(rung.recipe), sustain.format_energy(sustain.derive_energy(rung)))
        for file in files
        for rung in sustain.STUDY.derive(file).rungs
    ]


# --- floors and NVIDIA's step -----------------------------------------------------------------------------------------


def show_light(inputs: Inputs) -> Section | None:
    """Return how far a step is from its floor; None where neither a frozen floor nor a roofline is known."""
    study = rooflines.STUDY
    files = [(file, frame.decode_file(study, file.data)) for file in inputs.list_files("roofline")]
    files.sort(key=lambda pair: getattr(study.derive(pair[1]).measured, "step_ms", math.inf))
    frozen = derive.find_frozen(inputs.main.machine.name, inputs.main.workload)
    if not files and frozen is None:
        return None
    today = study.derive(files[0][1]).step.get("light_ms") if files else None
    blocks: list[Block] = ["No score: no floor is frozen for this GPU and workload."]
    if frozen:
        blocks = _show_scores(inputs, frozen, today)
    for number, (file, raw) in enumerate(files):
        title, *sentences = study.summarize(raw)
        notes = [*file.list_remarks(), *sentences]
        blocks.append(Fold(title, [*study.list_tables(raw), notes], is_open=number == 0))
    return Section(
        "light",
        "Distance to the speed of light",
        "The floor is the arithmetic of the convolutions and the bytes that must move, at this GPU's best rates.",
        blocks,
    )


def _show_scores(inputs: Inputs, frozen: derive.Frozen, today: float | None) -> list[Block]:
    rows: list[list[Any]] = []
    bars = []
    for rung in inputs.main.rungs:
        if rung.status == "ok" and rung.step_ms:
            scores = [
                derive.derive_score(rung.step_ms, frozen.base_ms, floor) for floor in (frozen.floor_ms, today)
            ]
            rows.append([rung.name, rung.step_ms, rung.step_ms / frozen.floor_ms, *scores])
            score = scores[0]
            if score:
                bars.append(Bar(rung.title, [Part(score, "busy")], f"{score:.3f}"))
            else:
                bars.append(Bar(rung.title, missing="no score: below the floor"))
    columns = [
        Column("rung"),
        Column("ms/step", "ms"),
        Column("times the floor", "decimal"),
        Column("score", "ratio"),
        Column("score, today's floor", "ratio"),
    ]
    beside = "" if today is None else f" Today's floor is {today:.2f} ms."
    name = "Speed-of-light score"
    return [
        Bars(bars, 1.0, f"{name} of each rung", heading=name),
        [
            "score: 1 / (1 + (t - floor) / (base - floor)), as SOL-ExecBench defines it: 1 at the floor, 0.5 at the"
            " base",
            f"floor: {frozen.floor_ms:.2f} ms, frozen on {frozen.since} ({frozen.floor_of}).{beside}",
            f"base: {frozen.base_ms:.2f} ms, torch.compile ({frozen.base_of})",
        ],
        Fold("Scores and floors", [Table(columns, rows).drop_empty()]),
    ]


def show_upstream(inputs: Inputs) -> Section | None:
    """Return NVIDIA's own step beside ours, by both clocks."""
    files = inputs.list_files("upstream")
    return Section(
        "upstream",
        "NVIDIA's own step beside ours",
        "As `ladder upstream` times them. An eager step waits for its host, so read GPU time first.",
        [block for file in files for block in _show_upstream(file)],
    ) if files else None  # fmt: skip


def _show_upstream(file: File) -> list[Block]:
    raw = frame.decode_file(upstream.STUDY, file.data)
    steps, *phases = upstream.STUDY.list_tables(raw)
    return [steps, file.list_remarks(), *(Fold("By phase", [table]) for table in phases)]
