"""`ladder upstream`: NVIDIA's own StyleGAN2 beside the top of a ladder, and it or R3GAN with our ops in it.

The programs take turns within a generation, each in a fresh process, and are compared within it. Ours shows parity and
receipts first. The gradients of a patched clone and of the clone as it is are compared with FP64 before it is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.paths import ROOT
from ladder.core.records import Fields, read_record, write_whole
from ladder.results import plausible, store
from ladder.results.run import RunGpu
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.upstream import record, source
from ladder.studies.upstream.record import (
    Case,
    File,
    Observed,
    Options,
    PhaseErrors,
    Source,
    Visit,
)

Context = Callable[[], contextlib.AbstractContextManager[Any]]

if TYPE_CHECKING:
    from ladder.engine.outcomes import Program as Timed
    from ladder.engine.pool import Pool
    from ladder.engine.rounds import Interleaved

UPSTREAM, PATCHED, OURS = record.UPSTREAM, record.PATCHED, record.OURS
PROOF, ERRORS, PHASES, GENERATION = record.PROOF, record.ERRORS, record.PHASES, record.GENERATION
# fmt: off
STEPS = [
    Column("step"), Column("ms/step", "ms"), Column("95% interval", "ms_interval", 4), Column("GPU ms", "ms", 1),
    Column("waits for the host", "percent", 5), Column("without R1, path length", "ms", 6),
    Column("as fast as NVIDIA's", "factor", 2), Column("95% interval", "interval", 8),
    Column("GPU time less by", "factor", 3), Column("95% interval", "interval", 9), Column("images/s", "count", 10),
    Column("allocated GiB", "gib", 7), Column("generations", "count", 11), Column("status"),
]
PHASE_COLUMNS = [
    Column("phase"), Column("wall ms, NVIDIA's", "ms", 3), Column("wall ms, patched", "ms", 3),
    Column("GPU ms, NVIDIA's", "ms", 1), Column("GPU ms, patched", "ms", 1), Column("less by", "factor"),
    Column("error, NVIDIA's", "error", 2), Column("error, patched", "error", 2),
    Column("over tensors, NVIDIA's", "error", 4), Column("over tensors, patched", "error", 4),
]
LAZY_COLUMNS = ("without R1, path length", "wall ms, R3GAN's", "wall ms, patched")  # which its phases have not
# fmt: on
BATCH = 4  # at most, of the gradients: FP64 takes most of their time, and four times the memory of FP16
ROOM_GB = 70.0  # of the GPU's memory, for the proof of ours and FP64 of NVIDIA's side by side
R3GAN_GENERATIONS = 3  # an iteration takes seconds, and a process a minute
PATIENCE = 1800.0  # seconds of an examination, which sends no sign of life


# --- the study --------------------------------------------------------------------------------------------------------


class UpstreamStudy(Study[Options, Case, Observed]):
    """The proofs first, then generations of all programs that may be timed."""

    name, kind, folder = "upstream", "upstream", "upstream"
    help = """Time NVIDIA's own StyleGAN2 beside the top of a ladder.

    CLONE is a clone of https://github.com/NVlabs/stylegan3. It belongs to NVIDIA under NVIDIA's licence and is not
    part of this project. Its networks, losses and CUDA ops run as configuration `stylegan2` without augmentation, at
    the workload's widths. Its fresh processes take turns with ours.

    With --patched, a temporary copy of CLONE runs with this project's ops, and nothing else is changed. It is timed if
    the gradients of each phase are as near to FP64 as those of CLONE.

    CLONE may also be one of https://github.com/brownvc/R3GAN, which has no step of ours beside it: --patched compares
    its own with the same step on our ops. It trains on synthetic images, without augmentation.

    Exit status: 0 if all have a number. 1 if one has none. 2 if the request is impossible. 130 if interrupted.
    """
    examples = """
git clone https://github.com/NVlabs/stylegan3 ../stylegan3
ladder upstream ../stylegan3                    its step and ours, in turn, five generations
ladder upstream ../stylegan3 -w article-b32
ladder upstream ../stylegan3 --resume results/upstream/MACHINE-article-partial.json     the generations that it lacks
ladder upstream ../stylegan3 --patched          one more contender: the clone with our ops
ladder upstream ../R3GAN --patched              R3GAN's FFHQ-256 preset, batch 32
ladder upstream ../R3GAN --patched --preset CIFAR10
ladder upstream ../stylegan3 --json > upstream.json
"""
    extendable, unstored = ("clone", "generations"), ("clone",)
    answers = ("ok",)
    # a second try would end the same way
    final = ("ok", "oom", "invalid", store.FAILED_PARITY, "not engaged")
    in_order = True

    def load_workload(self, options: Options, name: str | None, device: str) -> tuple[str, Fields]:
        clone = options.clone and Path(options.clone).expanduser()
        if not clone or not (clone / source.R3GAN).is_dir():
            for word in ("preset", "batch"):
                if getattr(options, word) is not None:
                    raise UserError(
                        f"--{word} is R3GAN's; NVIDIA's networks have the sizes of a workload (-w)"
                    )
            return super().load_workload(options, name, device)
        source.networks_of(clone)
        preset = options.preset or source.PRESET[device]
        own, fields = source.make_r3gan(preset, options.batch, source.digest_of(clone))
        if name not in (None, own):
            raise UserError(f"-w {name}: R3GAN has presets of its own: --preset, --batch")
        return own, fields

    def reads_images(self, workload: Fields) -> bool:
        return "pair" not in workload

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        options = job.options
        cases = dict(file.cases) if file else {}
        if not cases:
            clone = open_clone(job)
            if not clone.source.is_r3gan:
                *_, (rung, recipe) = frame.plan_rungs(job, options.ladder, []).items()
                cases[PROOF] = Case(rung=rung, recipe=recipe)
            examinations = [ERRORS, PHASES] if job.device == "cuda" else [ERRORS]
            for key in (*(examinations if options.patched else ()), f"{GENERATION}1"):
                cases[key] = Case(source=clone.source, patch=clone.digest)
        is_r3gan = bool((first := cases[f"{GENERATION}1"].source) and first.is_r3gan)
        usual = {"cuda": R3GAN_GENERATIONS if is_r3gan else 5}.get(job.device, 1)
        for number in range(options.generations or usual):
            cases.setdefault(f"{GENERATION}{number + 1}", cases[f"{GENERATION}1"])
        return cases

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        sitting = session.share(open_sitting)
        if key == PROOF:
            return prove_beside(session, sitting, case) if session.job.options.inspect else Observed()
        if key in (ERRORS, PHASES):
            return examine_patched(session, sitting, key)
        return time_generation(session, sitting, int(key.removeprefix(GENERATION)) - 1)

    def describe(self, observation: Observed) -> str:
        rounds = {side: each.round for side, each in observation.programs.items() if each.round}
        times = {side: text.format_ms(statistics.median(each.samples_ms)) for side, each in rounds.items()}
        return ", ".join(f"{side} {ms} ms" for side, ms in times.items())

    def derive(self, file: File) -> Any:
        figures, options = record.Figures(file), file.options
        keys = ("side", "rung", "recipe", "status", "reason", "settings", "rounds", "step_ms", "interval_ms")
        compared, patched = figures.compared, None
        if options.patched:
            problem = record.find_parity_problem(compared, figures.source.phases)
            parity = {
                "verdict": "failed: parity" if problem else "ok",
                "reason": problem,
                "batch": compared.batch,
            }
            patched = {
                "digest": figures.first.patch, "phases": figures.timed.phases,
                "parity": parity | {"phases": compared.errors} if compared.batch else None,
                "ratio": figures.derive_wall_ratio("patched"), "gpu_ratio": figures.derive_gpu_ratio(PATCHED),
            }  # fmt: skip
        return {
            "source": figures.first.source, "patched": patched,
            "programs": [{key: getattr(each, key) for key in keys} for each in figures.programs.values()],
            "protocol": {
                "rounds": len(figures.generations), "cycles": figures.cycles, "seed": options.seed,
                "inspected": options.inspect, "notes": frame.list_cautions(self, file),
            },
            "parity": figures.parity, "receipts": figures.proof.receipts, "inspection": figures.proof.inspection,
            "ratio": figures.derive_wall_ratio(), "gpu": figures.generations[-1].gpu if figures.generations else None,
        }  # fmt: skip

    def list_problems(self, file: File) -> Iterable[str]:
        if f"{GENERATION}1" not in file.cases or (PROOF in file.cases) == record.read_source(file).is_r3gan:
            yield "cases: no generation, or not our rung"
        least = plausible.floor_ms(write_whole(file.machine), file.workload or {})
        rounds = record.Program(file, "ours").rounds
        if problem := plausible.program_too_fast({"rounds": write_whole(rounds)}, least):
            yield f"ours: {problem}"
        for key, each in file.observed.items():
            if any(visit.status == "ok" and not visit.round for visit in each.programs.values()):
                yield f"{key}: ok without a round"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.machine import neighbours

        rounds = [each.rounds for each in record.Figures(file).programs.values()]
        lines = [store.few()] if min(map(len, rounds)) < store.FEWEST_ROUNDS else []
        lines += neighbours.list_marks(write_whole(each) for program in rounds for each in program)
        if not file.options.inspect and PROOF in file.cases:
            lines.append("neither parity nor receipts of ours were asked for: not to be quoted")
        return lines

    def summarize(self, file: File) -> list[str]:
        figures = record.Figures(file)
        clone = figures.source
        generations, cycles = len(figures.generations), text.format_count(figures.cycles, "16-step cycle")
        if clone.is_r3gan:
            return [
                f"R3GAN's own step on {file.machine.gpu or file.machine.cpu}",
                f"Workload {frame.describe_workload(file)}; {text.format_count(generations, 'generation')} of {cycles},"
                f" each in fresh processes, in turn. {frame.describe_software(file)} R3GAN's: sources {clone.digest},"
                " preset of its train.py, the schedules' first iterations; synthetic images, augmentation off, one"
                " GPU. Its files run unchanged, with stand-ins for modules that they lack here, and with what its op"
                " builder compiled entered into sys.modules, where it looks for it.",
            ]
        return [
            f"NVIDIA's own StyleGAN2 and ours on {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}, R1 and path length included;"
            f" {text.format_count(generations, 'generation')} of {cycles}, each in fresh processes, in turn."
            f" {frame.describe_software(file)} NVIDIA's: training/{clone.networks}.py, sources {clone.digest}, as"
            " --cfg=stylegan2 --aug=noaug.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        figures = record.Figures(file)
        tables = [tabulate_steps(figures, int((file.workload or {})["batch"] or 0))]
        if file.options.patched:
            tables.append(tabulate_phases(figures))
        for table in tables:
            columns = [
                dataclasses.replace(each, title=each.title.replace("NVIDIA's", figures.source.owner))
                for each in table.columns
            ]
            table = dataclasses.replace(table, columns=columns)
            yield table.drop_columns(LAZY_COLUMNS) if figures.source.is_r3gan else table


STUDY = UpstreamStudy()


def tabulate_steps(figures: record.Figures, batch: int) -> Table:
    """Return a row for each program, by the wall clock and in GPU time, with what was checked below it."""
    rows, notes, is_r3gan = [], [], figures.source.is_r3gan
    first = "R3GAN's step" if is_r3gan else "NVIDIA's stylegan2"
    for side, each in figures.programs.items():
        ms, busy, wall, gpu = each.step_ms, figures.derive_gpu_ms(side), None, None
        if side != UPSTREAM:
            wall, gpu = figures.derive_wall_ratio(side), figures.derive_gpu_ratio(side)
        memory = [each.peak_allocated_bytes for each in each.rounds if each.peak_allocated_bytes]
        rows.append([
            {UPSTREAM: first, PATCHED: "the same, patched"}.get(side, f"ours, {each.rung}"),
            ms, each.interval_ms, busy, max(0.0, 1 - busy / ms) if ms and busy else None,
            each.derive_walls().get("main"), wall and wall.median, wall and wall.interval,
            gpu and gpu.median, gpu and gpu.interval, 1000 * batch / ms if ms else None,
            max(memory, default=None), len(each.rounds),
            f"{each.status}: {each.reason}" if each.reason else each.status,
        ])  # fmt: skip
    if (compared := figures.compared).batch:
        problem = record.find_parity_problem(compared, figures.source.phases)
        verdict = "failed: parity" if problem else "ok"
        notes.append(f"patched: parity {verdict} at batch {compared.batch}, of gradients against FP64")
    if settings := figures.programs["upstream"].settings:
        ops, backward = ("on" if settings[each] else "off" for each in ("cuda_ops", "fast_double_backward"))
        layers = f"FP16 in {settings.get('fp16_resolutions')} resolutions"
        if is_r3gan:
            layers = f"BF16 in {settings['bf16_stages']} stages of each network"
        notes.append(
            f"{figures.source.owner}: {layers}, its CUDA ops {ops}, its fast double backward {backward}"
        )
    if figures.parity:
        engaged = [each.engaged for each in (figures.proof.receipts or {}).values()]
        notes.append(f"ours: parity {figures.parity.verdict}, {sum(engaged)} of {len(engaged)} receipts")
    return Table(STEPS, rows, "", notes)


def tabulate_phases(figures: record.Figures) -> Table:
    """Return a row for each phase of the patched comparison.

    Wall time is that of both main phases together, and of a lazy phase what it adds to a step that has it.
    """
    walls = [figures.programs[side].derive_walls() for side in ("upstream", "patched")]  # type: ignore[index]
    rows: list[list[Any]] = []
    if not figures.source.is_r3gan:
        rows.append(["both main phases", *(each.get("main") for each in walls), *[None] * 7])
    for phase in figures.source.phases:
        timed = [each[phase] for each in (figures.timed.phases or {}).values() if phase in each]
        row: list[Any] = [phase, *(each.get(phase) for each in walls), *[None] * 7]
        if len(timed) == 2:
            theirs, ours = row[3:5] = [statistics.median(each.gpu_ms) for each in timed]
            row[5] = theirs / ours
        if each := figures.compared.errors.get(phase):  # type: ignore[call-overload]
            row[6:] = [each.unpatched, each.patched, each.unpatched_tensors, each.patched_tensors]
        rows.append(row)
    return Table(PHASE_COLUMNS, rows)


# --- observing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clone:
    """The user's clone, and the drop-in files of a patched copy: path below `torch_utils` -> text."""

    folder: Path
    source: Source
    files: Mapping[str, str]
    digest: str | None


@dataclass(frozen=True)
class Sitting:
    """What all cases share: the folders of the clones by side, the programs, and the maker of generations.

    Its servers of workers import once, ours and NVIDIA's side by side, and serve the first generation, too.
    """

    folder: Path  # a temporary one, with the package that stands for NVIDIA's step
    clones: dict[str, Path]
    programs: list[Timed]
    rounds: Interleaved
    ours: Pool
    theirs: Pool
    begun: dict[str, Future[Observed]] = field(default_factory=dict)  # examinations beside the proof of ours


def open_clone(job: Job) -> Clone:
    """Return the clone that the user named. Raises UserError for what cannot be measured as NVIDIA's."""
    from ladder.publish.export import drop_in, package
    from ladder.studies.upstream import loops

    if job.options.clone is None:
        raise UserError(f"CLONE is missing: `git clone {source.URL}`, then give its folder")
    folder = Path(job.options.clone).expanduser().resolve()
    networks = source.networks_of(folder)
    drop_in.refuse_patched(folder)
    texts = drop_in.render_files(package.read_origin()) if job.options.patched else {}
    for path in sorted(texts):
        if path.count("/") == 1 and not (folder / "torch_utils" / path).is_file():  # those below are new
            raise UserError(f"{folder}: no torch_utils/{path}, which --patched replaces: clone {source.URL}")
    source.refuse_unbuildable(job.device)
    if networks != source.R3GAN:
        loops.refuse_workload(job.workload)
    facts = Source(networks, source.digest_of(folder))  # type: ignore[arg-type]
    return Clone(folder, facts, texts, drop_in.digest_files(texts) if texts else None)


def copy_patched(clone: Clone, into: Path) -> Path:
    """Copy the clone's sources and put the drop-in files in place of its own. Return the copy's folder."""
    for part in source.list_parts(clone.folder):
        if (clone.folder / part).is_file():
            shutil.copy(clone.folder / part, into)
        else:
            shutil.copytree(clone.folder / part, into / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path, each in clone.files.items():
        target = into / "torch_utils" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(each, encoding="utf-8", newline="\n")
    return into


@contextlib.contextmanager
def open_sitting(session: Session) -> Iterator[Sitting]:
    """Yield what all cases share. SIGTERM ends it as Ctrl-C does.

    Raises:
        UserError: the clone or the drop-in files are not those of the file that is resumed.
    """
    from ladder.core.stopping import stop_on_sigterm
    from ladder.engine.outcomes import Program as Timed
    from ladder.engine.pool import Pool
    from ladder.engine.rounds import Interleaved

    job, clone = session.job, open_clone(session.job)
    first = session.file.cases[f"{GENERATION}1"]
    if (first.source, first.patch) != (clone.source, clone.digest):
        what = "the clone's sources" if first.source != clone.source else "the drop-in files"
        raise UserError(f"{job.resume}: --resume: {what} differ from those of this file")
    with tempfile.TemporaryDirectory() as name:
        folder, clones = Path(name), {UPSTREAM: clone.folder}
        if clone.files:
            clones[PATCHED] = copy_patched(clone, folder / "patched")
        add_package(folder)
        # cuDNN chooses by trying, so each of NVIDIA's is prepared alone
        recipes = {side: make_recipe(session, place) for side, place in clones.items()}
        is_r3gan = clone.source.is_r3gan
        if not is_r3gan:
            recipes[OURS] = session.file.cases[PROOF].recipe or {}
        also = bool(clone.files) and not is_r3gan  # the time without lazy phases, and what each of them costs
        programs = [
            Timed(
                side,
                "step",
                side,
                job.workload,
                recipe,
                folder if side in clones else ROOT,
                main=also,
                lazy=also,
                kinds=is_r3gan,  # all of its iterations are alike, and profiled ones take long to read
            )
            for side, recipe in recipes.items()
        ]
        rounds = Interleaved(
            job.device, cycles=record.count_cycles(job.options, job.device, clone.source), seed=job.options.seed,
            on_wait=lambda: session.report("waiting for another run on this device"),
        )  # fmt: skip
        with (
            contextlib.closing(rounds),
            stop_on_sigterm(),
            Pool(code=ROOT) as ours,
            Pool(code=folder) as theirs,
        ):
            rounds.adopt(ROOT, ours)
            rounds.adopt(folder, theirs)
            yield Sitting(folder, clones, programs, rounds, ours, theirs)


def make_recipe(session: Session, clone: Path) -> Fields:
    """Return the recipe of a clone's step."""
    own = {"folder": str(clone), "cudnn_benchmark": True}
    if "pair" in session.job.workload:
        own["preset"] = session.job.options.preset or source.PRESET[session.job.device]
    return own


def add_package(folder: Path) -> None:
    """Write the package that stands for `stylegan_lite` in a worker of NVIDIA's step."""
    from ladder.studies.upstream import step

    (folder / "stylegan_lite").mkdir()
    (folder / "stylegan_lite" / "__init__.py").write_text(step.PACKAGE)


def prove_beside(session: Session, sitting: Sitting, case: Case) -> Observed:
    """Prove our step, and meanwhile compare the gradients of both clones if the GPU has room for that.

    Nothing of this is timed. The comparison builds NVIDIA's CUDA ops, which takes a minute of a few cores, while ours
    compiles its kernels and computes.
    """
    from ladder.core.locks import device_lock
    from ladder.engine.run import Gate
    from ladder.machine import system

    gate, room = Gate(), float(session.job.machine.get("gpu_memory_gb") or 0)
    is_waiting = ERRORS in session.file.cases and ERRORS not in session.file.observed
    with device_lock(system.device_key(session.job.device)), ThreadPoolExecutor(1) as thread:
        if is_waiting and room >= ROOM_GB:
            sitting.begun[ERRORS] = thread.submit(compare_gradients, session, sitting, gate.together)
        try:
            with gate.together():
                return prove_ours(session, sitting.ours, case, gate.alone)
        except BaseException:
            sitting.theirs.kill()
            raise


def prove_ours(session: Session, workers: Pool, case: Case, alone: Context) -> Observed:
    """Check parity and receipts of our step, now or from an earlier run. A step without them is not timed."""
    from ladder.engine import inspection
    from ladder.engine.pool import WorkerFailure

    job, recipe, outcome = session.job, case.recipe or {}, {"status": "ok"}
    cache = inspection.Cache(job.workload, job.machine)
    facts = cache.get(recipe)
    if facts is None:
        try:
            with contextlib.closing(workers.take()) as worker:
                worker.call(
                    "build", workload=job.workload, recipe=recipe, device=job.device, seed=job.options.seed,
                    keep_gradients=True,
                )  # fmt: skip
                peak = worker.call("prepare").get("peak_reserved_bytes")
                facts = inspection.inspect_worker(
                    worker, lambda what: session.report(f"{case.rung}: {what}"), alone
                )
            if peak:  # as a run's inspection has it, which takes this one's findings
                facts["inspection"]["peak_reserved_bytes"] = peak
            cache.put(recipe, facts)
        except WorkerFailure as failure:
            facts = getattr(failure, "found", {})
            outcome = {"status": failure.status, "reason": failure.reason}
    derived = ("verdict", "reason")
    parity = {key: value for key, value in (facts.get("parity") or {}).items() if key not in derived}
    fields = {key: facts.get(key) for key in ("receipts", "inspection")} | {"parity": parity or None}
    return read_record(Observed, text.fit_texts(outcome | fields))


def examine_patched(session: Session, sitting: Sitting, key: str) -> Observed:
    """Compare the gradients of both clones, or measure each phase's GPU time if they are right."""
    from ladder.core.locks import device_lock
    from ladder.engine.pool import WorkerFailure
    from ladder.engine.rounds import is_unsure
    from ladder.machine import system
    from ladder.studies.upstream.step import TIMES

    if key == PHASES and (refusal := record.find_refusal(session.file, PATCHED)):
        return Observed(status=refusal[0], reason=refusal[1])
    if key in sitting.begun:
        try:
            return sitting.begun[key].result()
        except WorkerFailure as failure:
            if not is_unsure(failure):  # else memory was short beside the proof of ours
                raise
    with device_lock(system.device_key(session.job.device)):
        if key == ERRORS:
            return compare_gradients(session, sitting, contextlib.nullcontext)
        times = {
            side: examine_clone(session, sitting.theirs, clone, TIMES)
            for side, clone in sitting.clones.items()
        }
        return read_record(Observed, {"phases": times})


def compare_gradients(session: Session, sitting: Sitting, together: Context) -> Observed:
    """Compute the gradients of both clones and those in FP64, each in a process of its own, and compare them.

    `together` is a context around each, in which others may use the GPU.

    Raises:
        WorkerFailure: a process failed; its reason says which.
    """
    from ladder.studies.upstream.step import EXACT, GRADIENTS

    batch = min(BATCH, int(session.job.workload["batch"] or BATCH))

    def examine(side: str, what: str) -> Any:
        with together():
            return examine_clone(session, sitting.theirs, sitting.clones[side], what, folder, batch)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as threads:
        exact = examine(UPSTREAM, EXACT)
        theirs, ours = threads.map(lambda side: examine(side, GRADIENTS), (UPSTREAM, PATCHED))
    if not exact["draws"] == theirs["draws"] == ours["draws"] or theirs["weights"] != ours["weights"]:
        reason = "the contenders do not begin with the same weights and noise"
        return Observed(status="failed: parity", reason=reason, batch=batch)
    pairs: dict[Any, Any] = {
        phase: (theirs["errors"][phase], ours["errors"][phase]) for phase in theirs["errors"]
    }
    return Observed(batch=batch, errors={phase: join_errors(*each) for phase, each in pairs.items()})


def examine_clone(
    session: Session, workers: Pool, clone: Path, what: str, exact: str = "", batch: int | None = None
) -> Any:
    """Let a process that is never timed examine a clone, and return what it wrote into a folder of its own.

    `exact` is the folder of gradients in FP64.

    Raises:
        WorkerFailure: the process failed.
    """
    from ladder.engine.pool import WorkerFailure
    from ladder.studies.upstream.step import SEEN

    session.report(f"{what}: {clone.name}")
    workload = session.job.workload | ({"batch": batch} if batch else {})
    recipe = make_recipe(session, clone) | {"what": what, "exact": exact}
    with tempfile.TemporaryDirectory() as findings, contextlib.closing(workers.take()) as worker:
        recipe["findings"] = findings
        try:
            worker.call("build", workload=workload, recipe=recipe, device=session.job.device, seed=0)
            worker.call("prepare", patience=PATIENCE)
        except WorkerFailure as failure:
            raise WorkerFailure(failure.status, f"{what}: {failure.reason}", failure.reply) from None
        return json.loads((Path(findings) / SEEN).read_text())


def join_errors(theirs: list[list[float]], ours: list[list[float]]) -> PhaseErrors:
    """Return the errors of a phase, from the pair (all, over tensors) of each input: medians over the inputs."""
    from ladder.studies.upstream.step import MOST

    values = {}
    pairs = zip(zip(*theirs, strict=True), zip(*ours, strict=True), strict=True)
    for name, (unpatched, patched) in zip(("", "_tensors"), pairs, strict=True):
        ratios = [own / max(other, record.ROUNDING) for other, own in zip(unpatched, patched, strict=True)]
        values |= {
            f"unpatched{name}": statistics.median(unpatched),
            f"patched{name}": statistics.median(patched),
        }
        values[f"least{name}"] = min(*ratios, MOST)
    return PhaseErrors(**values)


def time_generation(session: Session, sitting: Sitting, number: int) -> Observed:
    """Visit every program that may still be timed, all alive together.

    A side without a number takes its status to the generation: a resumed run makes it again, unless that would end
    the same way. Networks of another size than ours are no comparison.
    """
    sides = record.list_sides(session.job.options, record.read_source(session.file))
    expected = count_weights(session.job.workload) if OURS in sides else None
    before = {side: record.Program(session.file, side) for side in sides}
    due = [each for each in sitting.programs if before[each.name].status in ("ok", "n/a")]  # type: ignore[index]
    visits: dict[Any, Visit] = {}
    with contextlib.closing(sitting.rounds.round(number, due)) as visited:
        for each in visited:
            side, status, reason = each.program.name, each.status, each.reason
            weights = {net: (each.settings or {}).get(f"parameters_{net}") for net in expected or ()}
            if status == "ok" and expected and side != OURS and weights != expected:
                status, reason = "failed", f"weights: {weights}, where ours has {expected}"
            if status == "ok" and each.round is not None:
                visits[side] = Visit("ok", None, each.round, text.fit_texts(each.settings))
            else:
                status = "failed" if status in ("ok", "n/a") else status
                visits[side] = Visit(status, text.make_display(reason or "no reason was given"))  # type: ignore[arg-type]
    rounds = [each for program in before.values() for each in program.rounds]
    gpu = sitting.rounds.visits.summary([*rounds, *(each.round for each in visits.values() if each.round)])
    observed = Observed(
        programs={side: visits[side] for side in sides if side in visits},
        gpu=None if gpu is None else read_record(RunGpu, gpu),
    )
    for side in sides:
        outcome: Any = visits.get(side) or before[side]
        if outcome.status != "ok":
            reason = text.make_display(f"{side}: {outcome.reason}")
            return msgspec.structs.replace(observed, status=outcome.status, reason=reason)
    return observed


def count_weights(workload: Fields) -> dict[str, int]:
    """Return the number of weights of our networks. The networks live on the meta device, without memory."""
    import torch

    from stylegan_lite.config import Recipe, Workload
    from stylegan_lite.networks import Discriminator, Generator

    fields, recipe = Workload.from_dict(workload), Recipe.from_dict({})
    with torch.device("meta"):
        networks = Generator(fields, recipe), Discriminator(fields, recipe)
    counts = [sum(each.numel() for each in network.parameters()) for network in networks]
    return dict(zip("GD", counts, strict=True))
