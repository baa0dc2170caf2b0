"""`ladder run`: its options, the plan of a run, its expected duration, and the way from a request to files.

An option that was not given is None: the default holds, or with `--resume` the value of that file.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from msgspec import Meta
from msgspec.structs import asdict, replace

from ladder.core import bounds, files, options, progress
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.events import Event
from ladder.core.options import declare_option
from ladder.core.paths import ROOT
from ladder.core.plain import Fields
from ladder.core.records import Record, write_whole
from ladder.core.starting import shorten_path
from ladder.plan import catalog, modes, needs
from ladder.results import loading
from ladder.results.file import OUT
from ladder.stats import rounds_budget as budget

if TYPE_CHECKING:
    from ladder.results.run import Result

RESULTS = ROOT / "results" / "ladder"
ARTICLE = "article"  # the ladder that studies stand on
USUAL_S = {"cpu": 12.0, "cuda": 14.0}  # a visit on two cores, where BF16 may be emulated, and on an H100
QUICK_ROUNDS = 3
EAGER = 0.5  # of a usual visit's seconds, if nothing is captured and hardly anything profiled


class RunOptions(Record):
    """The options of `ladder run` that no other command has."""

    # fmt: off
    ladder: Annotated[str | None, declare_option(
        "The ladder whose rungs are used. [default: article]", metavar="NAME|FILE")] = None
    rungs: Annotated[Any, declare_option(
        "Measure only these; each keeps its recipe of the whole ladder.", metavar="A,B,...")] = None
    without: Annotated[list[str], declare_option(
        "Measure the whole ladder, and the whole ladder without this rung; may be repeated.", metavar="RUNG")] = []
    budget: Annotated[float | None, Meta(gt=0), declare_option(
        "Time for measuring; generations and cycles are fitted to it. [default: 10; mistakes: 8]",
        metavar="MINUTES")] = None
    rounds: Annotated[int | None, Meta(ge=1, le=100), declare_option(
        "Exact number of generations. [default: 3 to 12, as the budget allows; quick: 3]",
        flags=["--generations"])] = None
    cycles: Annotated[int | None, Meta(ge=1, le=1000), declare_option(
        "Timed 16-step cycles of each process. [default: 2; quick: 1]")] = None
    seed: Annotated[int | None, Meta(ge=0, le=2**31 - 1), declare_option(
        "Seed for weights, latents, and the order of images and visits. [default: 0]")] = None
    quick: Annotated[bool, declare_option(
        "Three generations of one cycle. The result is marked as not to be quoted.")] = False
    mode: Annotated[Literal["cumulative", "solo", "leave-one-out", "mistakes", "levers"] | None, declare_option(
        "Rungs on top of each other, each rung alone, or all rungs but one, which says what to adopt. Or common"
        " mistakes beside a clean step, or levers that change the model. [default: cumulative]")] = None
    recipe: Annotated[str | None, declare_option(
        "Measure the baseline and this recipe alone: a YAML file of recipe fields, as `ladder recommend` writes it.",
        metavar="RUNG|FILE")] = None
    gpu_memory: Annotated[float | None, Meta(ge=2, le=10_000), declare_option(
        "Simulate a card with GIB of memory, the limit of each process. The result is marked, and is compared with"
        " no other.", metavar="GIB")] = None
    # fmt: on


class Request(RunOptions):
    """All options of one `ladder run`; `rungs` are a list of names."""

    workload: str | None = None
    model: str | None = None
    settings: tuple[str, ...] = ()
    resume: Path | None = None
    data: str | None = None
    device: str | None = None
    out: Path | None = None


def run_command(own: RunOptions, as_json: bool, **shared: Any) -> None:
    """Measure what the options ask for, and end with the status that `ladder run --help` gives."""
    from ladder.report import output

    request = Request(**{**asdict(own), **shared, "rungs": own.without or options.split_names(own.rungs)})
    resume, out = request.resume, request.out
    if resume is not None and out is not None and out.resolve() not in resume.resolve().parents:
        raise UserError(f"{resume}: --resume goes on in its own file: leave out --out")
    if own.without:
        if own.rungs or own.mode or own.recipe:
            raise UserError("--without leaves one rung out: leave out --rungs, --mode and --recipe")
        request = replace(request, mode="leave-one-out")
    path, result = run(request, as_json)
    if as_json:
        click.echo(json.dumps(write_whole(result), indent=1, allow_nan=False))
    lacks = not result.complete or any(rung.status in ("failed", "skipped") for rung in result.rungs)
    again = ("rungs", "without", "seed", "mode", "quick", "cycles", "gpu_memory")
    output.say_where(path, as_json, lacks, drop=again)
    if not result.complete:
        sys.exit(130)
    if not as_json and result.protocol.mode == modes.CUMULATIVE:
        click.echo(
            "next:\n" + "\n".join(f"  {command:<33}  {answer}" for command, answer in list_next(result))
        )
    if any(rung.status in OUT for rung in result.rungs):
        sys.exit(1)


def list_next(result: Result) -> list[tuple[str, str]]:
    """Return the commands that go on from a whole staircase, each with what it answers."""
    if "pair" in result.workload:
        return [
            ("ladder run --mode leave-one-out --model FILE", "what each rung is worth on top of all others"),
            ("ladder recommend --model FILE", "which rungs to adopt, and the hours that they save"),
            ("ladder report --html", "everything known of this machine on one page"),
        ]
    if result.machine.device == "cpu":
        return [
            ("ladder doctor", "what this machine lacks for the other rungs"),
            ("ladder show fused_act", "what a rung changes, and what it gained on measured GPUs"),
            ("ladder train -w tiny --out runs/t", "a training by this step"),
        ]
    work = "" if result.workload["name"] == ARTICLE else f" -w {result.workload['name']}"
    steps = [
        (f"ladder run --mode leave-one-out{work}", "what each rung is worth on top of all others"),
        (f"ladder recommend{work}", "which rungs to adopt, and the hours that they save"),
        ("ladder report --html", "everything known of this machine on one page"),
    ]
    if result.protocol.quick:
        return [(f"ladder run{work}", "the same, to be quoted"), *steps[1:]]
    longer = (f"ladder run --ladder full{work}", "the rungs beyond the article's")
    return [*steps[:2], longer] if result.ladder.name == ARTICLE else steps


def run(request: Request, quiet: bool = False) -> tuple[Path, Result]:
    """Measure a ladder; write the result, its tables and charts, and print the table unless `quiet`.

    Raises:
        UserError: the request is impossible; nothing was measured.
    """
    from ladder.core.job import Job, RunPlan
    from ladder.engine import models, pool
    from ladder.engine import run as measure
    from ladder.images.for_workload import DEFAULT_WORKLOAD, prepare_images
    from ladder.machine import environment, system
    from ladder.machine.threads import QUIET
    from ladder.publish import gallery
    from ladder.report import tables
    from ladder.results import identity
    from ladder.results.combine import series
    from ladder.studies import host

    if request.budget is not None and (request.rounds is not None or request.quick):
        raise UserError("--budget fits the number of generations: leave out --generations and --quick")
    if request.recipe is not None and (request.mode or request.rungs):
        raise UserError("--recipe measures that recipe beside the baseline: leave out --mode and --rungs")
    if request.mode in modes.STUDIES and request.ladder not in (None, ARTICLE):
        raise UserError(f"--mode {request.mode} stands on the article's ladder: leave out --ladder")
    if request.resume is not None:
        request = continue_request(request)
    if request.workload is not None:
        catalog.load_workload(request.workload)  # report a mistyped name before anything slow
    model = models.read_request(request.model, request.settings, request.workload)
    if model and request.mode in modes.STUDIES:
        raise UserError(f"--mode {request.mode} is about StyleGAN2: leave out --model")
    ladder = catalog.load_ladder(request.ladder or (models.LADDER if model else ARTICLE))
    with pool.Pool() as importing:  # while images are made and torch is asked for its GPU
        device = system.choose_device(request.device)
        environment.refuse_variables(device)
        machine = system.describe_machine(device)
        refuse_memory(request.gpu_memory, device, machine["gpu_memory_gb"])
        facts = None
        if model is None:
            name, workload = catalog.load_workload(request.workload or DEFAULT_WORKLOAD[device])
        else:
            name, workload, facts = models.describe_model(model, importing, device, request.seed or 0)
            models.refuse_idle_data(request.data, workload)
        able = needs.list_able(device, workload, facts)
        mode, ladder, planned = plan_run(request, ladder, able, workload, device)
        if all(rung.skipped for rung in planned):
            raise UserError(f"none of these rungs can run here: {planned[0].name}: {planned[0].skipped}")
        out = request.out or RESULTS
        folder = request.resume.parent if request.resume else out / texts.make_slug(machine["name"])
        files.refuse_unwritable(folder, images=request.data or workload["data"])
        minutes = choose_minutes(request, mode)
        number = sum(rung.recipe is not None for rung in planned)
        line = f"{name} on {device}: {texts.format_count(number, 'rung')}"
        expected = None
        if request.resume is not None:
            line += f", going on with {shorten_path(request.resume)}"
        else:
            rounds = request.rounds or (QUICK_ROUNDS if request.quick else None)
            least = f"{budget.LEAST_ROUNDS} to {budget.MOST_ROUNDS} generations"
            share, limit = EAGER if mode == modes.MISTAKES else 1.0, minutes or budget.MINUTES
            expected = estimate_minutes(folder, name, device, number, rounds, limit, share)
            generations = texts.format_count(rounds, "generation") if rounds else least
            line += f" in {generations} of fresh processes, {render_minutes(expected)}"
        first = progress.First(line, quiet)
        if warning := bounds.describe_older("torch"):
            first.note(f"warning: {warning}")
        images: str | None = None
        source: str | None = None
        if workload["resolution"]:
            pictures = prepare_images(request.data or workload["data"], workload, quiet, first)
            images, source = pictures.path, pictures.source
        plan = RunPlan(
            ladder=ladder, planned=planned, mode=mode, rounds=request.rounds, cycles=request.cycles,
            seed=request.seed or 0, quick=request.quick, gpu_memory_gb=request.gpu_memory,
            images=identity.of_images(images),
        )  # fmt: skip
        trained, minutes = {**workload, "data": images}, minutes or budget.MINUTES
        resume = request.resume
        job = Job(device, name, trained, source, machine, plan, out, resume, minutes, quiet, facts)
        written, pending = list[Path](), list[str]()
        expected_s = 60 * expected if expected else None
        with progress.ladder_progress(f"{name} on {device}", quiet, expected_s) as show_event:

            def on_event(event: Event) -> None:
                if event["event"] == "start":  # no refusal can come after this event
                    first()
                    environment.print_conditions(quiet, without=QUIET)
                written[:] = [Path(event["path"])] if "path" in event else written
                show_event(event)
                if event["event"] == "round" and not quiet:
                    with contextlib.suppress(UserError):
                        pending[:] = tables.describe_interim(loading.load_run(written[0]))
                elif pending and event["event"] != "end":  # the last generation's are in the table
                    click.echo("\n".join(pending), err=True)
                    pending.clear()

            measure.run_ladder(job, on_event, importing)
    file = written[0]
    result = loading.load_run(file)
    whole = series.with_top(result, series.readable(file.parent))
    whole = host.attach_host(whole, ROOT / "results" / "host")
    stem, pages = file.with_suffix(""), list[Path]()
    for write in (gallery.write_tables, gallery.write_charts):  # the result is stored whatever fails here
        try:
            pages += write(whole, stem)
        except UserError as error:
            click.echo(f"ladder: {error}", err=True)
    if not quiet:
        tables.print_table(whole)
        if pages:
            click.echo(f"{shorten_path(stem)}{', '.join(each.suffix for each in pages)}")
    return file, result


def refuse_memory(limit: float | None, device: str, has: float | None) -> None:
    """Raise `UserError`, one line, for a card that cannot be simulated: this one is no larger, or there is none."""
    if limit is not None and device != "cuda":
        raise UserError("--gpu-memory simulates a smaller GPU, and this run is on the CPU: leave it out")
    if limit is not None and has and limit >= has:
        raise UserError(f"--gpu-memory {limit:g}: this GPU has {has:g} GiB: give less, or leave it out")


def choose_minutes(request: Request, mode: str) -> float | None:
    """Return the budget of a request: of mistakes one of their own, if nothing else limits the measurement."""
    if mode == modes.MISTAKES and not request.quick and request.rounds is None and request.budget is None:
        return budget.MISTAKES_MINUTES
    return request.budget


def plan_run(
    request: Request, ladder: catalog.Ladder, able: dict[str, str | None], workload: Fields, device: str
) -> tuple[str, catalog.Ladder, list[catalog.Planned]]:
    """Return the mode of a run, the ladder that its result names, and its entries.

    Raises:
        UserError: a name is unknown, or the recipe cannot run here.
    """
    from stylegan_lite.config import Recipe, Workload

    if request.recipe is None:
        mode = request.mode or modes.CUMULATIVE
        planned = modes.plan_run(mode, ladder, able, request.rungs, workload)
        return mode, modes.ladder_of(mode, ladder), planned
    fields = choose_recipe(request.recipe, ladder, able, device)
    recipe = Recipe.from_dict(fields, where=request.recipe)
    if request.model is None:
        recipe.refuse_for(Workload.from_dict(workload), request.recipe)
    else:
        recipe.refuse_layers(request.recipe)
    return modes.RECIPE, *modes.beside_baseline(fields, ladder, Path(request.recipe).stem)


def choose_recipe(
    recipe: str | None, ladder: catalog.Ladder, able: dict[str, str | None], device: str
) -> Fields:
    """Return the recipe of a rung (with all below it), of a YAML file, or of the highest rung that runs here."""
    from stylegan_lite.config import Recipe

    planned = catalog.plan_climb(ladder, able)
    if recipe is None:
        return next((rung.recipe for rung in reversed(planned) if rung.recipe is not None), {})
    for rung in planned:
        if rung.name == recipe:
            if rung.recipe is None:
                raise UserError(f"--recipe {recipe}: {rung.skipped}")
            return rung.recipe
    if where := catalog.find_holder(recipe):
        raise UserError(f"--recipe {recipe}: not in ladder {ladder.name}{where}")
    fields = catalog.load_recipe(recipe, [rung.name for rung in planned])
    Recipe.from_dict(fields, where=recipe).refuse_on(device, where=recipe)
    return fields


def continue_request(request: Request) -> Request:
    """Return the request that continues `request.resume`, with the file's value for every option not given.

    Raises:
        UserError: an option contradicts the file, which would make it a different run.
    """
    from ladder.results.combine import resuming

    path = Path(request.resume or "")
    run = resuming.load(path)
    protocol, ladder, where = run.protocol, run.ladder.name, f"{path}: --resume:"
    workload = str(run.workload["name"])
    if "pair" in run.workload and request.model is None:
        raise UserError(f"{where} its workload is a pair of yours; name it with --model")
    if request.workload is None and request.model is None and workload not in catalog.list_workloads():
        raise UserError(f"{where} its workload is a file of yours; name it with --workload")
    if protocol.mode == modes.RECIPE and request.recipe is None:
        raise UserError(f"{where} name its recipe with --recipe")
    stored: dict[str, object] = {
        "mode": None if protocol.mode == modes.RECIPE else protocol.mode,
        "seed": protocol.seed,
        "cycles": protocol.cycles,
        "device": run.machine.device,
        "gpu_memory": protocol.gpu_memory_limit_gb,
        "rungs": None if request.recipe else [name for name in run.ladder.rungs if name != modes.ALL],
    }
    for key, value in stored.items():
        if getattr(request, key) not in (None, value):
            raise UserError(f"{where} that run has another --{key.replace('_', '-')}; leave it out")
    if request.quick and not protocol.quick:
        raise UserError(f"{where} that run is not a quick one; leave out --quick")
    if request.budget is not None and protocol.fixed:
        raise UserError(
            f"{where} that run has a fixed number of generations: give --generations, no --budget"
        )
    is_known = ladder in catalog.list_ladders()
    if protocol.mode not in (modes.RECIPE, *modes.STUDIES):
        if request.ladder is None and not is_known:
            raise UserError(f"{where} its ladder is a file of yours, or gone; name it with --ladder")
        if request.ladder is not None and catalog.load_ladder(request.ladder).name != ladder:
            raise UserError(f"{where} that run has another --ladder; leave it out")
    stored["workload"] = None if request.model else request.workload or workload
    stored["ladder"] = ladder if is_known else request.ladder
    return replace(request, **stored, quick=protocol.quick)


# --- the expected duration --------------------------------------------------------------------------------------------


def read_visit_seconds(folder: Path, workload: str) -> float | None:
    """Return the seconds of one visit in the newest result of a workload, or None if the folder has no such result."""
    for path in sorted(folder.glob(f"{workload}-*-2*.json"), key=lambda path: path.stem[-16:], reverse=True):
        with contextlib.suppress(UserError):
            result = loading.load_run(path)
            visits = sum(len(part.rounds) for part in (*result.rungs, *(result.twins or ())))
            visits += sum(bool(rung.inspection) for rung in result.rungs)
            if visits and result.protocol.mode != modes.MISTAKES:  # whose visits are short
                return result.seconds / visits
    return None


def estimate_minutes(
    folder: Path, workload: str, device: str, rungs: int, rounds: int | None = None,
    minutes: float = budget.MINUTES, share: float = 1.0,
) -> float | None:  # fmt: skip
    """Return the minutes of a run of `rungs`, or None if nothing is known about its workload.

    `folder` has this machine's results. `rounds` is None if the budget `minutes` decides. A visit takes a `share` of
    what it takes in a run of a ladder.
    """
    from ladder.images.for_workload import DEFAULT_WORKLOAD

    seconds = read_visit_seconds(folder, workload)
    if seconds is None and DEFAULT_WORKLOAD[device] == workload:
        seconds = USUAL_S[device]
    if seconds is None:
        return minutes if rounds is None else None
    # each rung is inspected once; the lowest and the highest rung have a twin in each generation
    fixed, each = share * seconds * rungs / 60, share * seconds * (rungs + min(rungs, 2)) / 60
    if rounds is not None:
        return fixed + rounds * each
    return min(max(minutes, fixed + budget.LEAST_ROUNDS * each), fixed + budget.MOST_ROUNDS * each)


def render_minutes(minutes: float | None) -> str:
    """Return the duration as text, `about 3 minutes`, in whole minutes and at least one."""
    if minutes is None:
        return "of unknown duration"
    return f"about {texts.format_count(max(1, math.ceil(minutes - 0.25)), 'minute')}"


HELP = """Measure every rung of a ladder, and judge what it gains.

    The table is printed, and the result is written with chart, Markdown and CSV beside it.

    A generation is a process of each rung, all alive together. Each is prepared, then visited in turn: one timed
    16-step cycle a visit, in random order. The lowest and the highest rung have two processes. These twins differ
    only by noise, and a gain below that noise does not count. A rung that this machine cannot run is n/a, and a rung
    that fails is shown with its reason; the others go on. Ctrl-C keeps the finished generations.

    Exit status: 0 if every rung that can run here has a number. 1 if one has none. 2 if the request is impossible. 130
    if interrupted.
    """
EXAMPLES = """
ladder run                                      the article's ladder, about ten minutes on a GPU
ladder run --quick                              a first look, not to be quoted
ladder run --mode leave-one-out                 what each rung is worth on top of all the others: adopt or skip
ladder run --without bf16 --quick               the same of one rung: a first look
ladder run --recipe best.yaml                   a recipe of yours, as `ladder recommend` writes it
ladder run --mode mistakes                      what common mistakes cost
ladder run --budget 30                          tighter intervals, half an hour
ladder run --resume results/ladder/MACHINE/RUN.json   go on after Ctrl-C, or with a larger budget
ladder run --workload large --data photos.zip   another workload, your images
ladder run --model my_pair.py --set width=64    your own networks and losses, see docs/your-pair.md
ladder run --rungs baseline,bf16,cuda_graphs    three rungs, each with the recipe it has in the whole ladder
ladder run --workload mine.yaml --json          your own workload; the result on stdout"""
run_ladder = options.make_command(
    "run", RunOptions, run_command, HELP, EXAMPLES,
    [options.workload_option("article on a GPU, tiny on the CPU"), *options.model_options, options.resume_option,
     options.data_option, options.device_option, options.out_option("results/ladder"), options.json_option],
)  # fmt: skip
