"""The frame of all studies: the command, the files and the pages of what a study declares (`ladder.studies.base`).

It resolves the request into a `Job`, observes what the study's file lacks, saves after each case, resumes by key, and
renders the file for a terminal, as Markdown, CSV, HTML and JSON.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from ladder.core import files, locks, text
from ladder.core import options as shared
from ladder.core.errors import EnvironmentFailure, UserError
from ladder.core.job import Job
from ladder.core.paths import ROOT
from ladder.core.progress import First
from ladder.core.records import Fields, read_record, write_record, write_whole
from ladder.core.starting import shorten_path
from ladder.results import identity, loading, plausible, record, store
from ladder.results.combine import resuming
from ladder.results.file import Header
from ladder.results.store import FAILED_PARITY
from ladder.show.table import PIPE_WIDTH, render_csv, render_markdown, render_text
from ladder.studies import STUDIES
from ladder.studies.base import AnyFile, AnyStudy, Compared
from ladder.studies.base import Case as Case
from ladder.studies.base import Ladder as Ladder
from ladder.studies.base import Observation as Observation
from ladder.studies.base import Options as Options
from ladder.studies.base import RungCase as RungCase
from ladder.studies.base import Rungs as Rungs
from ladder.studies.base import Seed as Seed
from ladder.studies.base import Session as Session
from ladder.studies.base import Study as Study
from ladder.studies.base import StudyFile as StudyFile

NEWEST = "the newest"  # stands for --report without a file


@functools.cache
def load_studies() -> dict[str, AnyStudy]:
    """Return every study by the kind of its files."""
    return {study.kind: study for study in map(load_study, STUDIES)}


def load_study(command: str) -> AnyStudy:
    """Return the study of a command."""
    return importlib.import_module(f"ladder.studies.{STUDIES[command]}").STUDY  # type: ignore[no-any-return]


def plan_rungs(job: Job, ladder: str, rungs: Sequence[str]) -> dict[str, Fields]:
    """Return the recipes of a ladder's rungs that run here, in the ladder's order; of `rungs` alone if some are named.

    Raises:
        UserError: no such rung, or it cannot run here.
    """
    from ladder.plan import catalog, needs
    from stylegan_lite.config import suggestion

    able = needs.list_able(job.device, job.workload, job.facts)
    planned = {each.name: each for each in catalog.plan_climb(catalog.load_ladder(ladder), able)}
    recipes = {name: each.recipe for name, each in planned.items() if each.recipe is not None}
    if not recipes:
        raise UserError(f"ladder {ladder}: none of its rungs runs here")
    for rung in rungs:
        if rung not in planned:
            raise UserError(f"ladder {ladder} has no rung {rung!r}{suggestion(rung, planned, 'its rungs')}")
        if rung not in recipes:
            raise UserError(f"rung {rung} cannot run here: {planned[rung].skipped}")
    return {name: recipes[name] for name in dict.fromkeys(rungs or recipes)}


def describe_software(file: Header) -> str:
    """Return the last sentence above a table: PyTorch's version and the commit."""
    changed = " with changes" if file.dirty else ""
    return f"PyTorch {file.machine.torch}, commit {(file.commit or 'unknown')[:12]}{changed}."


def describe_workload(file: Header, has_batch: bool = True) -> str:
    """Return name, resolution and batch of a file's workload."""
    work = file.workload or {}
    sizes = [f"{work['resolution']}x{work['resolution']}"] * bool(work["resolution"])
    sizes += [f"batch {work['batch']}"] * has_batch
    return f"{work['name']}: {', '.join(sizes)}" if sizes else str(work["name"])


def describe_data(file: Header) -> str:
    """Return what stands for the images of a study that reads none, as the end of a clause."""
    return ", random images" if (file.workload or {}).get("resolution") else ""


def find_floor_ms(file: Header, **fields: int) -> float:
    """Return the ms below which no machine of a file computes a step of its workload with other `fields`; 0 if unknown.

    Every study refuses a file with a shorter step.
    """
    least = plausible.floor_ms(write_whole(file.machine), (file.workload or {}) | fields)
    return least[0] if least else 0.0


def draw_heading(
    study: AnyStudy, file: AnyFile, figure: Any, question: str, under: str, lines: Sequence[str] = ()
) -> None:
    """Write the heading of a chart: the device, the question, and the first reason why not to quote the figures."""
    from ladder.report import drawing

    caution = next((f" ({line})" for line in list_cautions(study, file)), "")
    drawing.draw_heading(figure, f"{file.machine.gpu or file.machine.cpu}: {question}{caution}", under, lines)


# --- files ------------------------------------------------------------------------------------------------------------


def read_file(study: AnyStudy, path: Path) -> AnyFile:
    """Return the file of a study, judged as if a stranger had sent it. Raises UserError, one line."""
    try:
        data = store.parse(loading.read_bytes(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {loading.why(error)}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a result file: {error}") from None
    return decode_file(study, data, str(path))


def decode_file(study: AnyStudy, data: Any, where: str = "") -> AnyFile:
    """Return the file that plain data hold. Raises UserError, one line."""
    file = read_record(study.file_type(), data, where)
    if problem := find_problem(study, file):
        raise UserError(f"{where}: {problem}" if where else problem)
    return file


def find_problem(study: AnyStudy, file: AnyFile) -> str | None:
    """Return why a file of the right form cannot be genuine, in one line, or None."""
    if file.kind != study.kind:
        return f"a result of the kind {file.kind}, not {study.kind}"
    if problem := loading.find_header_problem(file):
        return problem
    if unknown := [key for key in file.observed if key not in file.cases]:
        return f"observed: {unknown[0]!r} is none of its cases"
    for key, case in file.cases.items():
        place = f"cases.{text.escape_controls(key)}.recipe"
        if problem := identity.find_recipe_problem(getattr(case, "recipe", None), place):
            return problem
    for key, each in file.observed.items():
        if study.types[2].ANSWER and (each.status == "ok") != bool(getattr(each, each.ANSWER)):
            return f"{key}: {each.status} contradicts its {each.ANSWER}"
        least = find_floor_ms(file, **file.cases[key].sizes)
        if any(ms < least for ms in each.list_times()):
            return f"{key}: faster than this machine can compute"
        if isinstance(each, Compared) and each.status == "ok" and each.verdict == FAILED_PARITY:
            return f"{key}: ok, and beyond the budgets of parity"
    return next(iter(study.list_problems(file)), None)


def list_cautions(study: AnyStudy, file: AnyFile) -> list[str]:
    """Return why the figures of a file must not be quoted, a line each; none if they may."""
    from ladder.machine import environment

    return [
        *([store.SMOKE_NOTE] if file.machine.device == "cpu" else []),
        *study.list_cautions(file),
        *environment.describe_variables(file.environment),
        *(["dirty work tree: not to be published"] if file.dirty else []),
        *(["interrupted"] if study.is_interrupted(file) else []),
    ]


def write_row(case: Case, observation: Observation) -> dict[str, Any]:
    """Return a case with what was observed of it, as plain data."""
    observed = write_whole(observation)
    return {**write_whole(case), **{key: observed[key] for key in observed if key != "stopped"}}


def write_derived(study: AnyStudy, file: AnyFile) -> dict[str, Any]:
    """Return what `ladder report --json` prints: the header, whether it is complete, and what the study derives."""
    header = {name: write_whole(getattr(file, name)) for name in Header.__struct_fields__}
    return header | {"complete": file.is_complete} | write_whole(study.derive(file))


def save_file(study: AnyStudy, file: AnyFile, folder: Path, pages: bool) -> list[Path]:
    """Write the file and, with `pages`, what is derived from it. Return the paths, that of the file first.

    The name ends in "-partial" until the file is complete. What another host or commit left under that name stays:
    then the time of the run is added.
    """

    def find_place(name: str) -> Path:
        path = folder / f"{name}.json"
        with contextlib.suppress(UserError):
            before = read_file(study, path) if path.exists() else file
            is_earlier = before.is_complete and (before.machine, before.commit) == (file.machine, file.commit)
            if before.started == file.started or is_earlier:
                return path
        return path.with_stem(f"{name}-{text.format_stamp(file.started)}")

    stem = "-".join(map(text.make_slug, study.name_file(file)))
    partial = find_place(f"{stem}-partial")
    path = find_place(stem) if file.is_complete else partial
    paths = write_file(study, file, path, pages)
    if file.is_complete and partial.exists():
        for each in paths:
            each.with_name(each.name.replace(path.stem, partial.stem, 1)).unlink(missing_ok=True)
    return paths


def write_file(study: AnyStudy, file: AnyFile, path: Path, pages: bool) -> list[Path]:
    """Write the file to `path` and, with `pages`, what is derived from it beside it. Return all paths."""
    content = json.dumps(text.fit_texts(write_record(file)), indent=1, allow_nan=False) + "\n"
    files.write_file(path, content)
    return [path, *(write_pages(study, file, path) if pages else [])]


def write_pages(study: AnyStudy, file: AnyFile, path: Path) -> list[Path]:
    """Write the page and the chart beside a file, and return their paths."""
    files.write_file(path.with_suffix(".md"), render_page(study, file))
    is_drawn = study.draw(file, "svg") is not None
    charts = (
        files.try_draw(path.with_suffix(""), lambda kind: study.draw(file, kind) or b"") if is_drawn else []
    )
    return [path.with_suffix(".md"), *charts]


def as_kind(study: AnyStudy) -> loading.Kind:
    """Return how `ladder validate` judges the files of a study."""
    judge, caution = functools.partial(find_problem, study), functools.partial(list_cautions, study)
    return loading.Kind(study.kind, study.file_type(), judge, caution)


# --- pages ------------------------------------------------------------------------------------------------------------


def render_page(study: AnyStudy, file: AnyFile) -> str:
    """Return the Markdown page beside a file."""
    title, *sentences = study.summarize(file)
    blocks = [f"# {text.escape_markdown(title)}", *map(text.escape_markdown, sentences)]
    blocks += map(render_markdown, study.list_tables(file))
    blocks.append("\n".join(f"- {text.escape_markdown(line)}" for line in list_cautions(study, file)))
    return "\n\n".join(blocks).rstrip() + "\n"


def render_terminal(study: AnyStudy, file: AnyFile, width: int = PIPE_WIDTH) -> str:
    """Return what the command prints at its end."""
    tables = [render_text(table, width) for table in study.list_tables(file)]
    return "\n\n".join([*study.summarize(file)[1:2], *tables, "\n".join(list_cautions(study, file))]).rstrip()


def open_stored(path: Path) -> tuple[AnyStudy, AnyFile] | None:
    """Return the study and the file that a path holds; None if it is a folder, or of another kind."""
    data = store.read(path) if path.is_file() else None
    study = load_studies().get(str(data.get("kind"))) if isinstance(data, dict) else None
    return None if study is None else (study, decode_file(study, data, str(path)))


def report_stored(paths: Sequence[Path], as_json: bool, markdown: Path | None, csv: Path | None) -> bool:
    """Print the stored results of studies, and write their tables; return False if a path is of another kind."""
    from ladder.report import output

    stored = [each for path in paths if (each := open_stored(path)) is not None]
    if len(stored) < len(paths) or not stored:
        return False
    if as_json:
        derived = [write_derived(study, file) for study, file in stored]
        click.echo(json.dumps(derived[0] if len(derived) == 1 else derived, indent=1, allow_nan=False))
    for study, file in stored if not as_json else ():
        click.echo(render_terminal(study, file, output.measure_width()))
    if markdown is not None:
        files.write_file(markdown, "\n".join(render_page(study, file) for study, file in stored))
    if csv is not None:
        tables = [table for study, file in stored for table in study.list_tables(file)]
        files.write_file(csv, render_csv(tables))
    return True


# --- the command ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """The frame's own options, as the user gave them."""

    workload: str | None = None
    device: str | None = None
    data: str | None = None
    out: Path | None = None
    resume: Path | None = None
    budget: float | None = None
    as_json: bool = False
    report: str | None = None
    model: str | None = None
    settings: tuple[str, ...] = ()


def resolve_job(study: AnyStudy, options: Any, request: Request, machine: dict[str, Any]) -> Job:
    """Return the job of a request with its workload; images are not prepared yet.

    Raises:
        UserError: no such workload, a pair that cannot be measured, or a folder that cannot be written.
    """
    from ladder.engine import models
    from ladder.engine.pool import Pool

    device = machine["device"]
    out = request.resume.parent if request.resume else request.out or ROOT / "results" / study.folder
    files.refuse_unwritable(out, images=request.data)
    name, workload, facts = "", {}, None
    if study.uses_workload:
        if model := models.read_request(request.model, request.settings, request.workload):
            with Pool() as pool:
                name, workload, facts = study.describe_model(model, pool, device, options)
            models.refuse_idle_data(request.data, workload)
        else:
            name, workload = study.load_workload(options, request.workload, device)
        reads = study.reads_images(workload)
        if request.data and not reads:
            raise UserError(f"--data: {name} has no images of its own: leave it out")
        images = request.data or workload["data"] or study.default_images if reads else None
        workload = workload | {"data": images}
    return Job(
        device, name, workload, None, machine, options, out, request.resume,
        request.budget or (study.gpu_minutes if device == "cuda" else None), request.as_json, facts,
    )  # fmt: skip


def begin_file(study: AnyStudy, job: Job) -> AnyFile:
    """Return the file of a measurement that begins now."""
    from ladder.plan import catalog

    trained, images = None, None
    reads = study.reads_images(job.workload)
    if study.uses_workload:
        trained = record.name_workload(job, job.source if reads else None)
    if reads and job.source:
        images = identity.of_images(str(job.workload["data"]))
    header = record.make_header(study.kind, job.machine, trained, images=images)
    options = structs.replace(job.options, **dict.fromkeys(study.unstored))
    empty = {"options": write_record(options), "cases": {}, "observed": {}}
    if (ladder := getattr(job.options, "ladder", None)) is not None:  # may be a path, which no result holds
        empty["ladder"] = empty["options"]["ladder"] = catalog.load_ladder(ladder).name
    return read_record(study.file_type(), text.fit_texts(header) | empty)  # type: ignore[no-any-return]


def continue_file(study: AnyStudy, job: Job, file: AnyFile) -> AnyFile:
    """Return the file to go on with. Observations without a number are made again, after all others.

    Raises:
        UserError: it was made on another machine, with other software, images or code, or of another workload.
    """
    assert job.resume is not None
    fresh = begin_file(study, job)
    if file.ladder not in (None, fresh.ladder):
        raise UserError(
            f"{job.resume}: --resume: the ladder {job.options.ladder} has changed since; start a new run"
        )
    header = resuming.continue_header(job.resume, file, fresh)
    kept = study.pick_kept(file)
    failed = [key for key, each in file.observed.items() if key not in kept and not each.stopped]
    last = [] if study.in_order else failed
    cases = {key: case for key, case in file.cases.items() if key not in last}
    return structs.replace(
        fresh, **header, cases=cases | {key: file.cases[key] for key in last}, observed=kept
    )


def run_study(study: AnyStudy, job: Job) -> int:
    """Observe what the file lacks, write it, print it, and return the exit status."""
    from ladder.images import for_workload
    from ladder.machine import environment

    paths: list[Path] = []
    with locks.folder_lock(job.out, text.make_slug(job.machine["name"]), movable=job.resume is None):
        earlier = read_file(study, job.resume) if job.resume else None  # another run may have continued it
        cases = study.list_cases(job, earlier)  # before images are made: it refuses what cannot be observed
        kept = {} if earlier is None else study.pick_kept(earlier)
        missing = {key: case for key, case in cases.items() if key not in kept}
        first = First(study.announce(job, missing), job.quiet)
        if study.reads_images(job.workload):
            pictures = for_workload.prepare_images(job.workload["data"], job.workload, job.quiet, first)
            job = replace(job, workload=job.workload | {"data": pictures.path}, source=pictures.source)
        if earlier is None:
            file = structs.replace(begin_file(study, job), cases=cases)
        else:
            file = update_cases(study, job, continue_file(study, job, earlier))
        first()
        environment.print_conditions(job.quiet)
        file = observe_cases(study, job, file, paths)
        paths[:] = save_file(study, file, job.out, pages=True)
        study.finish(job, file)
    show_result(study, file, paths, job.quiet)
    return study.find_status(file) if file.is_complete else 130


def update_cases(study: AnyStudy, job: Job, file: AnyFile) -> AnyFile:
    """Return the file with all cases that the study lists now, those of the file in their order.

    A case that was observed stays, also where the study would not list it any more.
    """
    listed = study.list_cases(job, file)
    known = {
        key: listed.get(key, case) for key, case in file.cases.items() if key in {**listed, **file.observed}
    }
    cases = {**listed, **known} if study.in_order else known | listed
    return structs.replace(file, cases=cases)


def observe_cases(study: AnyStudy, job: Job, file: AnyFile, paths: list[Path]) -> AnyFile:
    """Observe what the file lacks; save it after each case. An interrupt ends it with what there is."""
    begin, spent = time.monotonic(), file.seconds
    saved = -math.inf

    def save(current: AnyFile) -> AnyFile:
        nonlocal saved
        seconds = round(spent + time.monotonic() - begin, 1)
        current = update_cases(study, job, structs.replace(current, seconds=seconds))
        if time.monotonic() - saved >= study.save_every_s:
            paths[:] = save_file(study, current, job.out, pages=False)
            saved = time.monotonic()
        return current

    session = Session(job, file, save)
    try:
        study.observe_all(session)
    except KeyboardInterrupt:
        if session.growing is not None:
            session.keep(session.key, structs.replace(session.growing, stopped=True))
    except EnvironmentFailure as failure:
        if study.save_every_s:
            with contextlib.suppress(UserError, EnvironmentFailure):
                paths[:] = save_file(study, session.file, job.out, pages=False)
        where = next((f"; go on with --resume {shorten_path(path)}" for path in paths[:1]), "")
        raise EnvironmentFailure(f"{failure}{where}") from failure
    finally:
        session.close()
    return session.file


def show_result(study: AnyStudy, file: AnyFile, paths: list[Path], as_json: bool) -> None:
    """Print the tables, or JSON alone, and where the files are."""
    from ladder.report import output

    if as_json:
        click.echo(json.dumps(write_derived(study, file), indent=1, allow_nan=False))
    else:
        click.echo(render_terminal(study, file, output.measure_width()))
    output.say_files(paths, as_json, again=not (file.is_complete and study.has_answers(file)))


def run_request(study: AnyStudy, options: Any, request: Request) -> int:
    """Resolve and run the request of the current command, and return the exit status. Raises UserError."""
    from ladder.engine import models
    from ladder.machine import environment, system
    from ladder.plan import catalog

    if request.resume is not None:
        file, given = read_file(study, request.resume), shared.list_given(options)
        for name, value in given.items():
            stored = getattr(file.options, name)
            if name == "ladder" and value != stored:
                value = catalog.load_ladder(value).name
            if name not in study.extendable and stored != value:
                raise UserError(f"{request.resume}: --resume: that run has another {name}: leave it out")
        more = {name: given[name] for name in (*study.extendable, "ladder") if name in given}
        options = structs.replace(study.restore_options(file), **more)
        workload = request.workload
        if request.model is None:
            stored = file.workload or {}
            if "pair" in stored:
                raise UserError(
                    f"{request.resume}: --resume: its workload is a pair of yours; name it with --model"
                )
            workload = workload or stored.get("name")
        request = replace(request, workload=workload, device=request.device or file.machine.device)
    elif (
        request.model is not None
        and hasattr(options, "ladder")
        and "ladder" not in shared.list_given(options)
    ):
        options = structs.replace(options, ladder=models.LADDER)
    device = system.choose_device(request.device)
    if study.needs_gpu and device == "cpu" and request.device != "cpu":
        raise UserError(f"{study.needs_gpu}, and there is none; --device cpu is a smoke test")
    environment.refuse_variables(device)
    return run_study(study, resolve_job(study, options, request, system.describe_machine(device)))


def report_request(study: AnyStudy, options: Any, request: Request) -> int:
    """Print a stored result and return 0: the file of --report, else the newest with the options that the user gave.

    That is one of this machine, else one of the machine nearest to it; a line says whose it is.

    Raises:
        UserError: no such result, or an option that has no effect.
    """
    from ladder.engine import models
    from ladder.plan import catalog
    from ladder.results.combine import series

    idle = ("device", "data", "budget", "resume", "settings")
    shared.refuse_idle("has no effect: --report measures nothing", *idle)
    if request.report != NEWEST:
        path = Path(request.report or "").expanduser()
        file = read_file(study, path)
        line = f"for {text.clean_line(file.machine.gpu or file.machine.cpu)}, from the file that you named"
    else:
        given, folder = shared.list_given(options), request.out or ROOT / "results" / study.folder
        model = models.read_request(request.model, (), request.workload)
        workload = catalog.load_workload(request.workload)[0] if request.workload else model and model.name
        files: list[tuple[Path, AnyFile]] = []
        for each in sorted(folder.glob("*.json")):
            with contextlib.suppress(UserError):
                files.append((each, read_file(study, each)))
        files = [
            (each, file) for each, file in files
            if workload in (None, (file.workload or {}).get("name"))
            and all(getattr(file.options, name) == value for name, value in given.items())
        ]  # fmt: skip
        if not files:
            raise UserError(f"{shorten_path(folder)}: no such result: `ladder {study.name}` measures one")
        near = series.list_nearest(files)
        path, file = max(near.files, key=lambda each: each[1].started)
        line = f"{near.describe(file)}: {shorten_path(path)}"
    click.echo(line, err=request.as_json)
    show_result(study, file, [], request.as_json)
    return 0


def study_command(study: AnyStudy) -> click.Command:
    """Return the command of a study: its options are the fields of `Options`, with the frame's own behind them."""

    def call(options: Any, **values: Any) -> None:
        if (status := study.answer(options)) is not None:
            sys.exit(status)
        request = Request(**values)
        sys.exit(
            report_request(study, options, request)
            if request.report
            else run_request(study, options, request)
        )

    default = f"{study.default_workload['cuda']} on a GPU, {study.default_workload['cpu']} on the CPU"
    budget = "no limit" if study.gpu_minutes is None else f"{study.gpu_minutes:g}; CPU: no limit"
    has_minutes = "minutes" in study.types[0].__struct_fields__
    extra = [
        *([shared.workload_option(default)] if study.uses_workload else []),
        *(shared.model_options if study.takes_pairs else []),
        *([shared.data_option] if study.uses_images else []),
        *([] if has_minutes else [shared.budget_option(budget, study.budget_flag)]),
        *(shared.device_option, shared.resume_option, shared.out_option(f"results/{study.folder}")),
        *([] if "report" in study.types[0].__struct_fields__ else [shared.report_option(NEWEST)]),
        shared.json_option,
    ]
    return shared.make_command(study.name, study.types[0], call, study.help, study.examples, extra)
