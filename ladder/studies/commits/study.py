"""`ladder bench-compare`: two commits measured on one device, interleaved, and judged rung by rung.

Everything that times, and the recipes of the rungs, come from the working tree; from each commit come `kernels/` and
`stylegan_lite/` alone. A case is a generation, so nothing finished is ever lost.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from ladder.core import files, git, text
from ladder.core import options as shared
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.paths import ROOT
from ladder.core.records import Fields, read_record, write_record
from ladder.engine import models
from ladder.machine import neighbours
from ladder.report import output, tables, tiles
from ladder.results import identity, parts
from ladder.results.run import RunGpu
from ladder.show.table import Column, Table
from ladder.stats import answers, rounds_budget
from ladder.studies import frame
from ladder.studies.base import Session, Study
from ladder.studies.commits import checkouts, judging, known, record
from ladder.studies.commits.judging import BROKEN, GPU, LEAST_ROUNDS, MOST_ROUNDS, WALL
from ladder.studies.commits.record import BASE, HEAD, Case, File, Observed, Options

if TYPE_CHECKING:
    from ladder.engine.outcomes import Program, Visited
    from ladder.engine.rounds import Interleaved

MARK = "<!-- ladder bench-compare -->"  # by which the comment of an earlier run is found and replaced
COLUMNS = (
    Column("rung"), Column("of"), Column("BASE ms", "ms", 2), Column("HEAD ms", "ms", 2),
    Column("change of time", "change", 1), Column("95% interval", "changes", 4), Column("verdict"),
    Column("noise floor", "difference", 6), Column("seen from", "difference", 5), Column("generations", "count", 7),
)  # fmt: skip


class CommitsStudy(Study[Options, Case, Observed]):
    """The study that the frame runs."""

    name, kind, folder = "bench-compare", "compare", "compare"
    help = """Say whether commit HEAD is slower than BASE, timed in turn.

    A generation has two processes of BASE and one of HEAD for every rung, all alive together and visited in turn. The
    two processes of BASE differ only by noise, and a smaller difference counts as none. On a GPU wall time and GPU time
    are judged apart, and the last line says which of them is slower. Only kernels/ and stylegan_lite/ come from the
    commits; the measuring code is that of the working tree. `ladder compare` compares two stored results instead.

    With --model the commits are those of the repository that holds the pair: its file and all that it imports from
    there come from them, and this project's code is the same for both.

    Exit status: 0 if HEAD is as fast, faster or undecided. 1 if HEAD is slower, or fails where BASE runs. 2 if the
    request is impossible or nothing was measured. 130 if interrupted.
    """
    examples = """
ladder bench-compare                                  main and HEAD: the lowest and the highest rung
ladder bench-compare --base v1 --head v2 --rungs baseline,bf16,cuda_graphs
ladder bench-compare --head $(git stash create)       the working tree as it is
ladder bench-compare --model my_pair.py --base v1     two commits of your own repository, see docs/your-pair.md
ladder bench-compare --report results/compare/FILE.json --markdown comment.md"""
    gpu_minutes, takes_pairs = rounds_budget.MINUTES, True
    extendable = ("rounds", "report", "markdown")
    unstored = ("base", "head", "report", "markdown")
    in_order = True

    def answer(self, options: Options) -> int | None:
        """Judge the file of --report again, and return the status; None where the commits are to be measured."""
        if options.rounds is not None:
            shared.refuse_idle("fits the number of generations: leave out --generations", "budget")
        if options.markdown is not None:
            tables.refuse_outputs([options.markdown], [options.report] if options.report else [])
        if options.report is None:
            return None
        measuring = "rungs ladder workload model settings rounds budget seed device data resume out".split()
        shared.refuse_idle("has no effect: --report measures nothing", *measuring)
        file = frame.read_file(self, options.report)
        case = next(iter(file.cases.values()))
        for side, measured, name in (("BASE", case.base, options.base), ("HEAD", case.head, options.head)):
            is_full = name is None or re.fullmatch("[0-9a-f]{40}", name)  # this clone may lack it
            if (name if is_full else checkouts.commit_of(str(name), side)) not in (None, measured.commit):
                raise UserError(
                    f"{options.report.name}: its {side} is commit {measured.commit[:10]}, not {name}"
                )
        if click.get_current_context().params["as_json"]:
            click.echo(json.dumps(frame.write_derived(self, file), indent=1, allow_nan=False))
        else:
            click.echo(frame.render_terminal(self, file, output.measure_width()))
        self.write_comment(options, file)
        return self.find_status(file)

    def restore_options(self, file: File) -> Options:
        """Return the options with the commits of the file."""
        case = next(iter(file.cases.values()))
        return replace(file.options, base=case.base.commit, head=case.head.commit)

    def describe_model(
        self, model: models.Model, pool: Any, device: str, options: Options
    ) -> tuple[str, Fields, Any]:
        """Return the pair as HEAD has it; a rung applies if it does on both sides."""
        original = checkouts.find_repository(Path(model.place[0]))
        commits = resolve_commits(options, original)
        with checkouts.checked_out(commits, original, whole=True) as copies:
            moved = [model.move(copy, original) for copy in copies]
            try:
                _, base, lacks = models.describe_model(moved[0], pool, device, options.seed)
            except UserError as error:
                raise UserError(f"BASE: {error}") from None
            try:
                name, head, facts = models.describe_model(moved[1], pool, device, options.seed)
            except UserError as error:
                click.echo(f"HEAD is broken: {error}", err=True)
                sys.exit(judging.SLOWER)
        for key in ("batch", "resolution"):
            if base[key] != head[key]:
                raise UserError(
                    f"{key}: {base[key]} at BASE and {head[key]} at HEAD: give --set {key}=NUMBER"
                )
        facts |= {key: why for key, why in lacks.items() if isinstance(why, str)}
        facts["digests"] = [base["pair"], head["pair"]]
        return name, {**head, "model": model.place, "repository": None}, facts

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        """Return the generations: three in any case, more within the budget while they are worth it."""
        options: Options = job.options
        case = plan_case(job) if file is None else next(iter(file.cases.values()))
        done = 0 if file is None else len(file.observed)
        count = options.rounds or max(done, LEAST_ROUNDS)
        if file is not None and done:
            programs = judging.list_programs(file)
            alive = [rung for rung in case.recipes if judging.is_alive(programs, rung, HEAD)]
            fits = job.minutes is None or file.seconds * (done + 1) / done <= 60 * job.minutes
            if not alive:
                count = done
            elif options.rounds is None and done >= LEAST_ROUNDS and fits and done < MOST_ROUNDS:
                count = done + judging.wants_rounds(file, alive)
        return {f"{record.GENERATION}{number + 1}": case for number in range(count)}

    def observe_all(self, session: Session) -> None:
        """Make the generations that the file lacks, whatever the budget of the first three."""
        while missing := [key for key in session.file.cases if key not in session.file.observed]:
            session.keep(missing[0], self.observe(session, missing[0], session.file.cases[missing[0]]))

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        """Make one generation."""
        sitting = session.share(open_sitting)
        programs, visits = judging.list_programs(session.file), dict[str, record.Visit]()

        def is_due(program: Program) -> bool:
            return judging.is_alive(programs, program.rung, program.side)

        due = [program for program in sitting.programs if is_due(program)]
        with contextlib.closing(sitting.rounds.round(judging.read_number(key) - 1, due, is_due)) as visited:
            for each in visited:
                name = each.program.name
                before = programs[name]
                visit = visits[name] = make_visit(each, is_first=not before.rounds)
                rounds = [*before.rounds, *([visit.round] if visit.round else [])]
                programs[name] = replace(before, reason=visit.reason or before.reason, rounds=rounds)
                session.report(f"{name}: {visit.reason or 'visited'}")
        gpu = sitting.rounds.visits.summary(each for program in programs.values() for each in program.rounds)
        return Observed(programs=visits, gpu=read_record(RunGpu, text.fit_texts(gpu)) if gpu else None)

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        lines = [] if job.resume or job.facts else known.list_idle(known.read_entries())
        where = "kernels/ or stylegan_lite/" if job.facts is None else "your repository"
        paths = checkouts.PACKAGES if job.facts is None else (".",)
        changed = git.list_changes(find_root(job), paths)
        if any(job.facts is None or name.endswith(".py") for name in changed):
            lines += [f"uncommitted changes in {where} are not measured: commits are"]
        rungs = " and ".join(next(iter(cases.values())).recipes) if cases else "nothing more"
        many = job.options.rounds or f"{LEAST_ROUNDS} to {MOST_ROUNDS}"
        return "\n".join([*lines, f"{job.name} on {job.device}: {rungs} of two commits, {many} generations"])

    def finish(self, job: Job, file: File) -> None:
        self.write_comment(job.options, file)

    def write_comment(self, options: Options, file: File) -> None:
        """Write the page of a comparison as the comment of a pull request, if there is a file for it."""
        if options.markdown is not None:
            files.write_file(options.markdown, f"{MARK}\n{break_mentions(frame.render_page(self, file))}")

    def find_status(self, file: File) -> int:
        return judging.find_status(self.derive(file))

    def name_file(self, file: File) -> list[str]:
        case = next(iter(file.cases.values()))
        return [*super().name_file(file), case.base.commit[:8], case.head.commit[:8]]

    def derive(self, file: File) -> record.Judged:
        """Return the verdicts, with what this checkout accepts."""
        case = next(iter(file.cases.values()))
        entries = known.list_in_force(known.read_entries(), case.base.commit, case.head.commit)
        return known.mark(file, entries)

    def list_problems(self, file: File) -> Iterable[str]:
        if not file.cases:
            return ["cases: no generation"]
        return list(find_problems(file))

    def list_cautions(self, file: File) -> list[str]:
        judged = judging.judge(file)
        rounds = (write_record(each) for side in judged.programs for each in side.rounds)
        return [*(judged.gpu.notes or () if judged.gpu else ()), *neighbours.list_marks(rounds)]

    def summarize(self, file: File) -> list[str]:
        judged, machine = self.derive(file), file.machine
        base, head = (f"{side.name} ({side.commit[:10]})" for side in (judged.base, judged.head))
        place = f"{machine.gpu or machine.cpu}, PyTorch {machine.torch}, {(file.workload or {})['name']}"
        return [conclude(judged), f"BASE {base}, HEAD {head}; {place}"]

    def list_tables(self, file: File) -> Iterable[Table]:
        judged, rows = self.derive(file), []
        for rung in judged.rungs:
            slower = judging.list_slower(rung)
            for of, answer in ((WALL, rung), (GPU, rung.gpu)):
                if answer is not None:
                    verdict = describe_verdict(answer)
                    verdict += f" ({rung.known})" if rung.known and of in slower else ""
                    head = [rung.name, of, answer.base_ms, answer.head_ms, *derive_change(answer)]
                    rows.append([*head, verdict, answer.floor, answer.resolution, answer.rounds])
        yield Table(COLUMNS, rows, notes=[*explain_differences(judged), conclude(judged)])


STUDY = CommitsStudy()


# --- observing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sitting:
    """What all generations share: the programs, with their commits' packages in folders, and the maker of rounds."""

    programs: list[Program]
    rounds: Interleaved


def plan_case(job: Job) -> Case:
    """Return what each generation measures: the named rungs, else the lowest and the highest that run here.

    Raises:
        UserError: git does not know a commit, or none of the rungs can run here.
    """
    options: Options = job.options

    root = find_root(job)
    commits = resolve_commits(options, root)
    hashes = (
        [checkouts.read_hashes(commit) for commit in commits]
        if job.facts is None
        else [{"pair": digest} for digest in job.facts["digests"]]
    )
    given = options.base or "main", options.head or "HEAD"
    base, head = (
        record.Commit(commit, text.make_display(name), own)
        for commit, name, own in zip(commits, given, hashes, strict=True)
    )
    names = shared.split_names(options.rungs) or []
    recipes = frame.plan_rungs(job, options.ladder, names)
    ends = [*recipes][:1] + [*recipes][-1:]
    return Case(base, head, {name: recipes[name] for name in names or ends})


def resolve_commits(options: Options, root: Path) -> list[str]:
    """Return the hashes of both commits. Raises UserError if the repository lacks one."""
    given = {"BASE": options.base or "main", "HEAD": options.head or "HEAD"}
    return [checkouts.commit_of(name, side, root) for side, name in given.items()]


def find_root(job: Job) -> Path:
    """Return the repository whose commits are measured: this project's, or that of the user's pair."""
    return ROOT if job.facts is None else checkouts.find_repository(Path(job.workload["model"][0]))  # type: ignore


@contextlib.contextmanager
def open_sitting(session: Session) -> Iterator[Sitting]:
    """Yield what all generations share. SIGTERM ends it as Ctrl-C does."""
    from ladder.core.stopping import stop_on_sigterm
    from ladder.engine.outcomes import Program
    from ladder.engine.rounds import Interleaved

    job, case = session.job, next(iter(session.file.cases.values()))
    root, is_pair = find_root(job), job.facts is not None
    commits = [case.base.commit, case.head.commit]
    with stop_on_sigterm(), checkouts.checked_out(commits, root, whole=is_pair) as (base, head):
        code = {BASE: base, record.TWIN: base, HEAD: head}
        work: Any = {
            side: models.place(job.workload, copy, root) if is_pair else job.workload
            for side, copy in code.items()
        }
        programs = [
            Program(f"{rung} {side}", rung, side, work[side], recipe, None if is_pair else code[side])
            for rung, recipe in case.recipes.items()
            for side in record.SIDES
        ]
        rounds = Interleaved(
            job.device, cycles=record.CYCLES, seed=job.options.seed, torch=is_pair or job.device == "cuda",
            on_wait=lambda: session.report("waiting for another run on this device"),
        )  # fmt: skip
        with contextlib.closing(rounds):
            yield Sitting(programs, rounds)


def make_visit(visited: Visited, is_first: bool) -> record.Visit:
    """Return the outcome of a program. What its processes share is kept of the first; BASE again needs no profile."""
    if visited.round is None:
        reason = text.make_display(visited.reason or "no reason was given")
        return record.Visit(status=visited.status, reason=reason)  # type: ignore[arg-type]
    if not is_first:
        return record.Visit(round=visited.round)
    choices = (
        None if visited.choices is None else read_record(list[record.Choice], text.fit_texts(visited.choices))
    )
    profile = visited.profile if visited.program.side != record.TWIN else None
    return record.Visit(round=visited.round, settings=visited.settings, choices=choices, profile=profile)


def find_problems(file: File) -> Iterator[str]:
    """Yield what no genuine comparison holds."""
    first = next(iter(file.cases.values()))
    names = {f"{rung} {side}" for rung in first.recipes for side in record.SIDES}
    for rung, recipe in first.recipes.items():
        if problem := identity.find_recipe_problem(recipe, f"cases.recipes.{rung}"):
            yield problem
    for number, (key, case) in enumerate(file.cases.items()):
        if key != f"{record.GENERATION}{number + 1}" or case != first:
            yield f"cases.{text.escape_controls(key)}: not the generation after the one before it"
    for key, observed in file.observed.items():
        for name, visit in observed.programs.items():
            where, seen = f"observed.{key}.programs.{text.escape_controls(name)}", visit.round
            if name not in names:
                yield f"{where}: not BASE, HEAD and BASE again of its rungs"
            if problem := identity.find_settings_problem(visit.settings, f"{where}.settings"):
                yield problem
            if not (visit.status == "ok") == bool(seen) == (not visit.reason):
                yield f"{where}.status: {visit.status} contradicts its round and its reason"
            if seen and (seen.round != judging.read_number(key) - 1 or not seen.samples_ms):
                yield f"{where}.round: not of this generation, or without samples"


# --- what is shown ----------------------------------------------------------------------------------------------------


def break_mentions(markdown: str) -> str:
    """Return escaped Markdown in which no name of a user or number of an issue becomes a link."""
    return markdown.replace("@", "@\u200b").replace("\\#", "\\#\u200b")


def derive_change(answer: record.Answered) -> tuple[float | None, list[float] | None]:
    """Return how much more time HEAD takes, as a share (a positive one is slower), and the interval of that."""
    if answer.ratio is None or not answer.interval:
        return None, None
    return 1 / answer.ratio - 1, [1 / bound - 1 for bound in reversed(answer.interval)]


def describe_verdict(answer: record.Answered) -> str:
    """Return the verdict, "less than X%" with its X, or why there is none."""
    if answer.verdict == BROKEN:
        return f"broken: {answer.reason}"
    if answer.verdict == answers.LESS and answer.below is not None:
        return text.less_than(answer.below)
    return answer.verdict or f"no verdict: {answer.reason}"


def conclude(judged: record.Judged) -> str:
    """Return the exit status in a line, with the quantity that shows it."""
    status = judging.find_status(judged)
    if status == judging.SLOWER:
        alarms = judging.list_alarms(judged)
        slower = [f"{rung.name} ({' and '.join(judging.list_slower(rung)) or BROKEN})" for rung in alarms]
        return f"HEAD is slower or broken: {', '.join(slower)}"
    if status == judging.NOTHING:
        return "nothing was measured: no rung has a verdict"
    if doubtful := list(list_doubtful(judged)):
        how = "an idle machine, or more generations with --resume, would decide"
        return f"probably slower, not decided: {', '.join(doubtful)}; {how}"
    return "nothing is slower"


def list_doubtful(judged: record.Judged) -> Iterator[str]:
    """Yield each rung and quantity whose whole interval says slower, though it is not beyond the noise floor."""
    for rung in judged.rungs:
        for of, answer in ((judging.WALL, rung), (judging.GPU, rung.gpu)):
            change, interval = derive_change(answer) if answer else (None, None)
            if change is not None and interval and interval[0] > 0 and answer.verdict == answers.AMBIGUOUS:
                yield f"{rung.name} ({of}, {100 * change:+.1f}%)"


def explain_differences(judged: record.Judged) -> list[str]:
    """Return that both commits are one, what a difference of GPU work consists of, and other tuning choices."""
    lines = [*judged.notes]
    by_name = {f"{each.rung} {each.side}": each for each in judged.programs}
    for rung in judged.rungs:
        base, head = (by_name[f"{rung.name} {side}"] for side in (BASE, HEAD))
        was, now = parts.parts_of(base), parts.parts_of(head)
        if was and now and rung.gpu and rung.gpu.verdict in (answers.FASTER, answers.SLOWER):
            apart = f"{now.gpu_ms - was.gpu_ms:+.2f} ms GPU work in the profiled cycles"
            lines += [f"{rung.name}: {apart}: {parts.made_of(was, now)}"]
            lines += [f"{rung.name}: {line}" for line in parts.came_and_went(was, now)]
        tables = [
            None if each.choices is None else tiles.lines(write_record(each.choices)) for each in (base, head)
        ]
        lines += [f"{rung.name}: other tuning choices: {change}" for change in tiles.changes(*tables)]
    return lines
