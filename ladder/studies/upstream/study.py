"""`ladder upstream`: NVIDIA's own StyleGAN2 beside the top of a ladder, and with our ops in it.

The programs take turns within a generation, each in a fresh process, and are compared within it. Ours shows parity and
receipts first. The gradients of a patched clone and of the clone as it is are compared with FP64 before it is timed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.protocol import IN_ORDER
from ladder.core.job import Job
from ladder.core.records import (
    Fields,
    read_record,
    write_whole,
)
from ladder.results import plausible, store
from ladder.results.derive import judge_parity
from ladder.results.run import RunGpu
from ladder.results.store import FAILED_PARITY
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.upstream import source, step
from ladder.studies.upstream.examined import EXACT, GRADIENTS, MOST, SEEN, TIMES
from ladder.studies.upstream.record import (
    BATCH,
    ERRORS,
    GENERATION,
    OURS,
    PATCHED,
    PATIENCE,
    PHASES,
    PROOF,
    ROUNDING,
    UPSTREAM,
    Case,
    File,
    Observed,
    Options,
    Patched,
    PhaseErrors,
    PhaseTime,
    PhaseTimes,
    Program,
    Protocol,
    Ratio,
    Source,
    Upstream,
    Visit,
    derive_patched_parity,
    derive_program,
    derive_ratio,
    derive_walls,
    find_refusal,
    list_generations,
    list_sides,
    medians_of,
)

if TYPE_CHECKING:
    from ladder.engine.outcomes import Program as Timed
    from ladder.engine.pool import Pool
    from ladder.engine.rounds import Interleaved

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

    Exit status: 0 if both have a number. 1 if one has none. 2 if the request is impossible. 130 if interrupted.
    """
    examples = """
git clone https://github.com/NVlabs/stylegan3 ../stylegan3
ladder upstream ../stylegan3                    its step and ours, in turn, five generations
ladder upstream ../stylegan3 -w article-b32
ladder upstream ../stylegan3 --resume results/upstream/MACHINE-article-partial.json     the generations that it lacks
ladder upstream ../stylegan3 --patched          one more contender: the clone with our ops
ladder upstream ../stylegan3 --json > upstream.json
"""
    extendable, unstored = ("clone", "generations"), ("clone",)
    answers = ("ok",)
    final = ("ok", "oom", "invalid", FAILED_PARITY, "not engaged")  # a second try would end the same way
    in_order = True

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        options = job.options
        cases = dict(file.cases) if file else {}
        if not cases:
            clone = open_clone(job)
            recipes = frame.plan_rungs(job, options.ladder, [])
            *_, rung = recipes
            cases[PROOF] = Case(rung=rung, recipe=recipes[rung])
            if options.patched:
                cases[ERRORS] = Case(source=clone.source, patch=clone.digest)
                if job.device == "cuda":
                    cases[PHASES] = Case(source=clone.source, patch=clone.digest)
            cases[f"{GENERATION}1"] = Case(source=clone.source, patch=clone.digest)
        for number in range(count_generations(options, job.device)):
            cases.setdefault(f"{GENERATION}{number + 1}", cases[f"{GENERATION}1"])
        return cases

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        steps = "NVIDIA's step, the patched one" if job.options.patched else "NVIDIA's step"
        ours = cases[PROOF].rung if PROOF in cases else "ours"
        generations = text.counted(sum(key.startswith(GENERATION) for key in cases), "generation")
        return f"{job.name} on {job.device}: {steps} and {ours}, {generations}"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        sitting = session.share(open_sitting)
        if key == PROOF:
            return prove(session, case) if session.job.options.inspect else Observed()
        if key in (ERRORS, PHASES):
            return examine_patched(session, sitting, key)
        return time_generation(session, sitting, int(key.removeprefix(GENERATION)) - 1)

    def describe(self, observation: Observed) -> str:
        timed = [(side, each.round) for side, each in observation.programs.items() if each.round]
        return ", ".join(f"{side} {text.ms(statistics.median(each.samples_ms))} ms" for side, each in timed)

    def derive(self, file: File) -> Upstream:
        generations, proof = list_generations(file), file.observed.get(PROOF) or Observed()
        programs = [derive_program(file, side) for side in list_sides(file.options.patched)]
        times = {each.side: medians_of(each.rounds) for each in programs}
        first = file.cases.get(f"{GENERATION}1") or Case()
        made = Upstream(
            source=first.source,
            protocol=Protocol(
                rounds=len(generations),
                cycles=count_cycles(file.options, file.machine.device),
                seed=file.options.seed,
                inspected=file.options.inspect,
                notes=frame.list_cautions(self, file),
            ),
            programs=programs,
            parity=judge_parity(proof.parity),
            receipts=proof.receipts,
            inspection=proof.inspection,
            ratio=derive_ratio(times["upstream"], times["ours"]),
            gpu=generations[-1].gpu if generations else None,
            patched=None,
        )
        if not file.options.patched:
            return made
        compared, timed = file.observed.get(ERRORS), file.observed.get(PHASES)
        patched = Patched(
            digest=first.patch,
            parity=derive_patched_parity(compared) if compared and compared.batch else None,
            phases=timed.phases if timed else None,
            ratio=derive_ratio(times["upstream"], times["patched"]),
            gpu_ratio=made.derive_gpu_ratio(PATCHED),
        )
        return msgspec.structs.replace(made, patched=patched)

    def list_problems(self, file: File) -> Iterable[str]:
        if f"{GENERATION}1" not in file.cases or PROOF not in file.cases:
            yield "cases: no generation, or not our rung"
        ours = derive_program(file, "ours")
        least = plausible.floor_ms(write_whole(file.machine), file.workload or {})
        if problem := plausible.program_too_fast(write_whole(ours), least):
            yield f"ours: {problem}"
        for key, each in file.observed.items():
            if any(visit.status == "ok" and not visit.round for visit in each.programs.values()):
                yield f"{key}: ok without a round"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.machine import neighbours

        programs = [derive_program(file, side) for side in list_sides(file.options.patched)]
        lines = [store.few()] if min(len(each.rounds) for each in programs) < store.FEWEST_ROUNDS else []
        lines += neighbours.list_marks(write_whole(round_) for each in programs for round_ in each.rounds)
        if not file.options.inspect:
            lines.append("neither parity nor receipts of ours were asked for: not to be quoted")
        return lines

    def summarize(self, file: File) -> list[str]:
        facts, work, made = file.machine, file.workload or {}, self.derive(file)
        networks, digest = (made.source.networks, made.source.digest) if made.source else ("", "")
        return [
            f"NVIDIA's own StyleGAN2 and ours on {facts.gpu or facts.cpu}",
            f"Workload {work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, R1 and path"
            f" length included; {text.counted(made.protocol.rounds, 'generation')} of"
            f" {text.counted(made.protocol.cycles, '16-step cycle')}, each in fresh processes, in turn. PyTorch"
            f" {facts.torch}, commit {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}."
            f" NVIDIA's: training/{networks}.py of NVlabs/stylegan3 or of a copy, sources {digest}, as --cfg=stylegan2"
            f" --aug=noaug.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        made = self.derive(file)
        yield Table(
            STEP_COLUMNS, [_step_row(made, each, file) for each in made.programs], "", list_findings(made)
        )
        if made.patched:
            yield Table(PHASE_COLUMNS, _phase_rows(made, made.patched))


STUDY = UpstreamStudy()

STEP_COLUMNS = [
    Column("step"),
    Column("ms/step", "ms"),
    Column("95% interval", "ms interval", priority=4),
    Column("GPU ms", "ms", priority=1),
    Column("waits for the host", "percent", priority=5),
    Column("without R1, path length", "ms", priority=6),
    Column("as fast as NVIDIA's", "factor", priority=2),
    Column("95% interval", "interval", priority=8),
    Column("GPU time less by", "factor", priority=3),
    Column("95% interval", "interval", priority=9),
    Column("images/s", "count", priority=10),
    Column("allocated GiB", "gib", priority=7),
    Column("generations", "count", priority=11),
    Column("status"),
]
PHASE_COLUMNS = [
    Column("phase"),
    Column("wall ms, NVIDIA's", "ms", priority=3),
    Column("wall ms, patched", "ms", priority=3),
    Column("GPU ms, NVIDIA's", "ms", priority=1),
    Column("GPU ms, patched", "ms", priority=1),
    Column("less by", "factor"),
    Column("error, NVIDIA's", "error", priority=2),
    Column("error, patched", "error", priority=2),
    Column("over tensors, NVIDIA's", "error", priority=4),
    Column("over tensors, patched", "error", priority=4),
]


def _step_row(made: Upstream, each: Program, file: File) -> list[Any]:
    """Return a program's row, by the wall clock and in GPU time."""
    ms, busy = each.step_ms, made.derive_gpu_ms(each.side)
    walls = {OURS: made.ratio, PATCHED: made.patched.ratio if made.patched else None}
    gpu = None if each.side == UPSTREAM else made.derive_gpu_ratio(each.side)
    name = {UPSTREAM: "NVIDIA's stylegan2", PATCHED: "the same, patched"}.get(each.side, f"ours, {each.rung}")
    sizes = [round_.peak_allocated_bytes for round_ in each.rounds if round_.peak_allocated_bytes]
    return [
        name,
        ms,
        each.interval_ms,
        busy,
        max(0.0, 1 - busy / ms) if ms and busy else None,
        derive_walls(each).get("main"),
        *_cells(walls.get(each.side)),
        *_cells(gpu),
        1000 * int((file.workload or {})["batch"] or 0) / ms if ms else None,
        max(sizes, default=None),
        len(each.rounds),
        each.status + (f": {each.reason}" if each.reason else ""),
    ]


def _cells(ratio: Ratio | None) -> list[Any]:
    return [ratio.median, ratio.interval] if ratio else [None, None]


def _phase_rows(made: Upstream, patched: Patched) -> list[list[Any]]:
    """Return a row for each phase of the patched comparison.

    Wall time is that of both main phases together, and of a lazy phase what it adds to a step that has it.
    """
    walls = [derive_walls(made.find_program(side)) for side in (UPSTREAM, PATCHED)]
    rows: list[list[Any]] = [["both main phases", *(each.get("main") for each in walls), *[None] * 7]]
    for phase in IN_ORDER:
        timed = [each[phase] for each in (patched.phases or {}).values() if phase in each]
        gpu = [statistics.median(each.gpu_ms) for each in timed] if len(timed) == 2 else [None, None]
        wrong = patched.parity.phases.get(phase) if patched.parity else None  # type: ignore[call-overload]
        errors = (
            [wrong.unpatched, wrong.patched, wrong.unpatched_tensors, wrong.patched_tensors]
            if wrong
            else [None] * 4
        )
        factor = gpu[0] / gpu[1] if gpu[0] and gpu[1] else None
        rows.append([phase, *(each.get(phase) for each in walls), *gpu, factor, *errors])
    return rows


def list_findings(made: Upstream) -> list[str]:
    """Return the speedups, what the drop-in files change, the settings in force, and our parity and receipts."""
    lines = []
    if made.ratio:
        lines.append(f"ours is {_describe(made.ratio, 'as fast')}, by the wall clock, paired by generation")
    if ours := made.derive_gpu_ratio():
        lines.append(f"ours, its GPU time is {_describe(ours, 'less')}")
    if patched := made.patched:
        if patched.ratio:
            faster = _describe(patched.ratio, "as fast")
            lines.append(f"patched, NVIDIA's step is {faster}, by the wall clock, paired by generation")
        if patched.gpu_ratio:
            both = ", ".join(f"{side} {text.ms(made.derive_gpu_ms(side))}" for side in (UPSTREAM, PATCHED))
            lines.append(f"patched, its GPU time is {_describe(patched.gpu_ratio, 'less')}: {both} ms a step")
        if parity := patched.parity:
            lines.append(
                f"patched: parity {parity.verdict} at batch {parity.batch}, of gradients against FP64"
            )
        lines.append(f"patched: drop-in files {patched.digest}")
    if settings := made.programs[0].settings:
        weights = " and ".join(f"{settings[f'parameters_{net}']:,} in {net}" for net in ("G", "D"))
        ops, backward = ("on" if settings[each] else "off" for each in ("cuda_ops", "fast_double_backward"))
        lines.append(f"weights of both: {weights}")
        lines.append(
            f"NVIDIA's: FP16 in {settings['fp16_resolutions']} resolutions, its CUDA ops {ops}, its fast double"
            f" backward {backward}"
        )
    if made.parity:
        receipts = made.receipts or {}
        engaged = sum(each.engaged for each in receipts.values())
        lines.append(f"ours: parity {made.parity.verdict}, {engaged} of {len(receipts)} receipts")
    return lines


def _describe(ratio: Ratio, what: str) -> str:
    """Return a factor in words ("2.00 times as fast"), with its interval if there is one."""
    interval = ratio.interval
    words = f" (95%: {interval[0]:.2f}-{interval[1]:.2f})" if interval else ""
    return f"{ratio.median:.2f} times {what}{words}"


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
    """What all cases share: the folders of the clones by side, the programs, and the maker of generations."""

    folder: Path  # a temporary one, with the package that stands for NVIDIA's step
    clones: dict[str, Path]
    programs: list[Timed]
    rounds: Interleaved


def count_generations(options: Options, device: str) -> int:
    return options.generations or (5 if device == "cuda" else 1)


def count_cycles(options: Options, device: str) -> int:
    return options.cycles or (2 if device == "cuda" else 1)


def open_clone(job: Job) -> Clone:
    """Return the clone that the user named. Raises UserError for what cannot be measured as NVIDIA's."""
    from ladder.publish.export import drop_in, package

    if job.options.clone is None:
        raise UserError(f"CLONE is missing: `git clone {source.URL}`, then give its folder")
    folder = Path(job.options.clone).expanduser().resolve()
    networks = source.networks_of(folder)
    drop_in.refuse_patched(folder)
    texts = drop_in.contents(package.read_origin()) if job.options.patched else {}
    for path in list_replaced(texts):
        if not (folder / "torch_utils" / path).is_file():
            raise UserError(
                f"{folder}: no torch_utils/{path}, which --patched replaces: give a clone of {source.URL}"
            )
    source.refuse_unbuildable(job.device)
    step.refuse(job.workload)
    facts = Source(networks, source.digest_of(folder))  # type: ignore[arg-type]
    return Clone(folder, facts, texts, drop_in.digest_of(texts) if texts else None)


def list_replaced(texts: Mapping[str, str]) -> list[str]:
    """Return the paths of the drop-in files without those of the ops below them."""
    return [path for path in sorted(texts) if path.count("/") == 1]


def copy_patched(clone: Clone, into: Path) -> Path:
    """Copy the clone's sources and put the drop-in files in place of its own. Return the copy's folder."""
    for part in source.PARTS:
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
    from ladder.base.stopping import stop_on_sigterm
    from ladder.engine.outcomes import Program as Timed
    from ladder.engine.rounds import Interleaved

    job, clone = session.job, open_clone(session.job)
    first = session.file.cases[f"{GENERATION}1"]
    if (first.source, first.patch) != (clone.source, clone.digest):
        what = "the clone's sources" if first.source != clone.source else "the drop-in files"
        raise UserError(f"{job.resume}: --resume: {what} differ from those of this file")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clones = {UPSTREAM: clone.folder}
        if clone.files:
            clones[PATCHED] = copy_patched(clone, folder / "patched")
        add_package(folder)
        also = bool(clone.files)  # the time without lazy phases, and what each of them costs
        programs = []
        for side, place in clones.items():  # cuDNN chooses by trying, so each is prepared alone
            recipe = {"folder": str(place), "cudnn_benchmark": True}
            programs.append(Timed(side, "step", side, job.workload, recipe, folder, main=also, lazy=also))
        ours = session.file.cases[PROOF].recipe or {}
        programs.append(Timed(OURS, "step", OURS, job.workload, ours, ROOT, main=also, lazy=also))
        rounds = Interleaved(
            job.device, cycles=count_cycles(job.options, job.device), seed=job.options.seed,
            on_wait=lambda: session.report("waiting for another run on this device"),
        )  # fmt: skip
        try:
            with stop_on_sigterm():
                yield Sitting(folder, clones, programs, rounds)
        finally:
            rounds.close()


def add_package(folder: Path) -> None:
    """Write the package that stands for `stylegan_lite` in a worker of NVIDIA's step."""
    package = folder / "stylegan_lite"
    package.mkdir()
    (package / "__init__.py").write_text(step.PACKAGE)


def prove(session: Session, case: Case) -> Observed:
    """Check parity and receipts of our step, now or from an earlier run. A step without them is not timed."""
    from ladder.base.locks import device_lock
    from ladder.engine import inspection
    from ladder.engine.pool import Pool, WorkerFailure
    from ladder.machine import system

    job, recipe = session.job, case.recipe or {}
    known = inspection.Cache(job.workload, job.machine)
    status: str = "ok"
    reason = None
    if (seen := known.get(recipe)) is None:
        try:
            with device_lock(system.device_key(job.device)), Pool() as workers:
                seen = inspect_ours(session, workers, case)
            known.put(recipe, seen)
        except WorkerFailure as failure:
            seen = getattr(failure, "found", {})
            status, reason = failure.status, text.display(failure.reason)
    parity = dict(seen.get("parity") or {})
    for derived in ("verdict", "reason"):
        parity.pop(derived, None)
    facts = {"parity": parity or None, "receipts": seen.get("receipts"), "inspection": seen.get("inspection")}
    return read_record(Observed, text.fit({"status": status, "reason": reason} | facts))


def inspect_ours(session: Session, workers: Pool, case: Case) -> dict[str, Any]:
    """Return what an inspector finds of our step. Raises WorkerFailure if it must not be timed."""
    from ladder.engine import inspection

    job, worker = session.job, workers.take()
    try:
        worker.call(
            "build", workload=job.workload, recipe=case.recipe, device=job.device, seed=job.options.seed,
            keep_gradients=True,
        )  # fmt: skip
        peak = worker.call("prepare").get("peak_reserved_bytes")
        seen = inspection.inspect(worker, lambda what: session.report(f"{case.rung}: {what}"))
        if peak:  # as a run's inspection has it, which takes this one's findings
            seen["inspection"]["peak_reserved_bytes"] = peak
        return seen
    finally:
        worker.close()


def examine_patched(session: Session, sitting: Sitting, key: str) -> Observed:
    """Compare the gradients of both clones, or measure each phase's GPU time if they are right."""
    from ladder.base.locks import device_lock
    from ladder.engine.pool import Pool
    from ladder.machine import system

    if key == PHASES and (refusal := find_refusal(session.file, PATCHED)):
        return Observed(status=refusal[0], reason=refusal[1])
    with device_lock(system.device_key(session.job.device)), Pool(code=sitting.folder) as workers:
        examiner = Examiner(session, sitting.clones, sitting.folder, workers)
        return examiner.compare_gradients() if key == ERRORS else Observed(phases=examiner.time_phases())


@dataclass(frozen=True)
class Examiner:
    """Processes of the clones that are never timed: each writes what it sees into a folder of its own."""

    session: Session
    clones: Mapping[str, Path]
    folder: Path
    workers: Pool

    def compare_gradients(self) -> Observed:
        """Compute the gradients of both clones and those in FP64, each in a process of its own, and compare them.

        Raises:
            WorkerFailure: a process failed; its reason says which.
        """
        batch = min(BATCH, int(self.session.job.workload["batch"] or BATCH))
        self.session.report("gradients in FP64")
        exact = self.examine(UPSTREAM, EXACT, self.folder / "exact", batch=batch)
        seen = {"exact": json.loads((exact / SEEN).read_text())}
        for side in (UPSTREAM, PATCHED):
            self.session.report(f"gradients: {side}")
            place = self.examine(side, GRADIENTS, self.folder / f"gradients-{side}", exact, batch)
            seen[side] = json.loads((place / SEEN).read_text())
        shutil.rmtree(exact)
        for key, words in (("sizes", "networks"), ("draws", "noise")):
            if any(each[key] != seen[UPSTREAM][key] for each in seen.values()):
                reason = f"the contenders do not compute from the same {words}"
                return Observed(status="failed: parity", reason=reason, batch=batch)
        if seen[PATCHED]["weights"] != seen[UPSTREAM]["weights"]:
            reason = "the contenders do not begin with the same weights"
            return Observed(status="failed: parity", reason=reason, batch=batch)
        theirs, ours = seen[UPSTREAM]["errors"], seen[PATCHED]["errors"]
        errors: dict[Any, PhaseErrors] = {
            phase: join_errors(theirs[phase], ours[phase]) for phase in IN_ORDER
        }
        return Observed(batch=batch, errors=errors)

    def time_phases(self) -> PhaseTimes:
        """Return by side and phase the GPU time, of a process for each side. Raises WorkerFailure."""
        times = {}
        for side in self.clones:
            self.session.report(f"GPU time of each phase: {side}")
            place = self.examine(side, TIMES, self.folder / f"times-{side}")
            rows = json.loads((place / SEEN).read_text())
            times[side] = {phase: read_record(PhaseTime, row) for phase, row in rows.items()}
        return times  # type: ignore[return-value]

    def examine(
        self, side: str, what: str, findings: Path, exact: Path | None = None, batch: int | None = None
    ) -> Path:
        """Let a process examine a clone, and return the folder with its findings. Raises WorkerFailure."""
        from ladder.engine.pool import WorkerFailure

        findings.mkdir()
        job, clone = self.session.job, str(self.clones[side])
        recipe = {"folder": clone, "findings": str(findings), "what": what, "cudnn_benchmark": True}
        recipe |= {"exact": str(exact)} if exact else {}
        workload = job.workload | ({"batch": batch} if batch else {})
        worker = self.workers.take()
        try:
            worker.call("build", workload=workload, recipe=recipe, device=job.device, seed=0)
            worker.call("prepare", patience=PATIENCE)
        except WorkerFailure as failure:
            raise WorkerFailure(failure.status, f"{what}: {failure.reason}", failure.reply) from None
        finally:
            worker.close()
        return findings


def join_errors(theirs: list[list[float]], ours: list[list[float]]) -> PhaseErrors:
    """Return the errors of a phase, from the pair of errors of each input: medians over the inputs."""
    (unpatched, unpatched_tensors), (patched, patched_tensors) = (
        [statistics.median(column) for column in zip(*pairs, strict=True)] for pairs in (theirs, ours)
    )
    least, least_tensors = (
        min(own / max(other, ROUNDING) for other, own in zip(*columns, strict=True))
        for columns in zip(zip(*theirs, strict=True), zip(*ours, strict=True), strict=True)
    )
    return PhaseErrors(
        unpatched=unpatched,
        patched=patched,
        least=min(least, MOST),
        unpatched_tensors=unpatched_tensors,
        patched_tensors=patched_tensors,
        least_tensors=least_tensors,
    )


def time_generation(session: Session, sitting: Sitting, number: int) -> Observed:
    """Visit every program that may still be timed, all alive together.

    A side without a number takes its status to the generation: a resumed run makes it again, unless that would end
    the same way.
    """
    file, visits = session.file, {}
    sides = list_sides(session.job.options.patched)
    before = {side: derive_program(file, side) for side in sides}
    due = [each for each in sitting.programs if before[each.name].status in ("ok", "n/a")]  # type: ignore[index]
    with contextlib.closing(sitting.rounds.round(number, due)) as visited:
        for each in visited:
            visits[each.program.name] = make_visit(each, session.job.workload)
            session.report(f"{GENERATION}{number + 1}: {each.program.name} visited")
    rounds = [each for program in before.values() for each in program.rounds]
    rounds += [each.round for each in visits.values() if each.round]
    gpu = sitting.rounds.visits.summary(rounds)
    observed = Observed(
        programs={side: visits[side] for side in sides if side in visits},
        gpu=None if gpu is None else read_record(RunGpu, gpu),
    )
    for side in sides:
        outcome = visits.get(side) or before[side]
        if outcome.status != "ok":
            reason = text.display(f"{side}: {outcome.reason}")
            return msgspec.structs.replace(observed, status=outcome.status, reason=reason)
    return observed


def make_visit(visited: Any, workload: Fields) -> Visit:
    """Return the outcome of a program. Networks of another size than ours are no comparison."""
    status, reason = visited.status, visited.reason
    if status == "ok" and visited.program.name != OURS:
        ours = count_weights(workload)
        theirs = {name: (visited.settings or {}).get(f"parameters_{name}") for name in ours}
        if theirs != ours:
            counts = [" and ".join(f"{n} in {net}" for net, n in each.items()) for each in (theirs, ours)]
            status, reason = "failed", f"weights: {counts[0]}, where ours has {counts[1]}"
    if status != "ok" or visited.round is None:
        why = text.display(reason or "no reason was given")
        return Visit("failed" if status in ("ok", "n/a") else status, why)  # type: ignore[arg-type]
    return Visit("ok", None, visited.round, text.fit(visited.settings))


def count_weights(workload: Fields) -> dict[str, int]:
    """Return the number of weights of our networks. The networks live on the meta device, without memory."""
    import torch

    from stylegan_lite.config import Recipe, Workload
    from stylegan_lite.networks import Discriminator, Generator

    made, recipe = Workload.from_dict(workload), Recipe.from_dict({})
    with torch.device("meta"):
        weights = {"G": Generator(made, recipe).parameters(), "D": Discriminator(made, recipe).parameters()}
    return {name: sum(each.numel() for each in every) for name, every in weights.items()}
