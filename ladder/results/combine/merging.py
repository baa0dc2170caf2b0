"""Merging: several runs of one measurement become one result, judged by today's rules.

A comparison is made inside a round. So rounds of several runs may stand side by side as long as every run measured the
same program in the same way on the same GPU and software. The program is told by a digest of its sources
(`ladder.results.code_digest`), or by the commit where a result has none. A run may have measured only some rungs. The
time of a host-bound rung belongs to its host, so another CPU is refused unless it is asked for. Samples are kept as
they are; a round only gets another number. Every derived number is computed anew.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.records import read_record, write_record
from ladder.machine import environment
from ladder.plan import content
from ladder.results import code_digest, derive, judging, loading, record, sources, store
from ladder.results.derive import INTERRUPTED
from ladder.results.file import OUT, Header
from ladder.results.run import Choice, Merged, Protocol, Result, Run, Rung, RunGpu, Twin
from ladder.stats import rounds_budget

Part = TypeVar("Part", Rung, Twin)
Numbers = list[dict[int, int]]  # for each file, the new number of each round
_MACHINE = ("name", "gpu", "gpu_memory_gb", "device", *store.SOFTWARE, "driver", "python", "os")
_HOST = ("cpu", "cores")  # what may differ if it is asked for, on a GPU
_PROTOCOL = ("mode", "quick", "cycles", "cycle_steps", "gpu_memory_limit_gb")


# --- what two runs must agree in --------------------------------------------------------------------------------------


def compare_fields(
    place: str, one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]
) -> list[str]:
    """Return the keys in which two mappings differ, a line each with both values. None is a value that is missing."""
    pairs = {key: (one.get(key), other.get(key)) for key in keys}
    named = {key: ["missing" if value is None else value for value in pair] for key, pair in pairs.items()}
    return [f"{place}.{key}: {was} and {now}" for key, (was, now) in named.items() if was != now]


def list_work_differences(first: Header, other: Header) -> list[str]:
    """Return how workload, images and environment of the two differ, as far as both say: each with both values."""
    lines, works = [], [each.workload for each in (first, other) if each.workload is not None]
    if len(works) == 2:
        one, two = (
            content.fields_of(each) | {key: each.get(key) for key in ("data", "name")} for each in works
        )
        lines = compare_fields("workload", one, two, sorted({*one, *two}))
    if first.environment is not None and other.environment is not None and first.images != other.images:
        both = [
            f"{each.count} (#{each.digest[:8]})" if each else "none of a user"
            for each in (first.images, other.images)
        ]
        lines.append(f"images: {' and '.join(both)}")
    variables = environment.list_differences(first.environment, other.environment)
    return [*lines, *(f"{name}: {was} and {now}" for name, was, now in variables)]


def list_origin_differences(first: Header, other: Header, anyway: bool = False) -> list[str]:
    """Return how machine, code and workload of the two differ; `anyway`, the CPU beside a GPU may."""
    keys = _MACHINE if anyway and first.machine.device == "cuda" else (*_MACHINE, *_HOST)
    lines = compare_fields("machine", asdict(first.machine), asdict(other.machine), keys)
    return lines + code_digest.list_differences(first, other) + list_work_differences(first, other)


def list_recipe_differences(first: Sequence[Rung], other: Sequence[Rung], anyway: bool = False) -> list[str]:
    """Return the fields in which recipe or settings of rungs of one name differ, as far as both are known."""
    from stylegan_lite.config import Recipe

    usual = {"recipe": {field.name: field.default for field in dataclasses.fields(Recipe)}, "settings": {}}
    lines, others = [], {rung.name: rung for rung in other}
    for rung in first:
        for part, default in usual.items():
            was, now = getattr(rung, part), getattr(others.get(rung.name), part, None)
            if was is not None and now is not None:
                was, now = default | was, default | now
                keys = sorted({*was, *now} - ({"cpu_threads"} if anyway else set()))
                lines += compare_fields(f"rung {rung.name}.{part}", was, now, keys)
    return lines


def list_differences(first: Run, other: Run, anyway: bool = False) -> list[str]:
    """Return why rounds of the two do not belong together: each key with both values."""
    lines = list_origin_differences(first, other, anyway)
    lines += compare_fields("ladder", asdict(first.ladder), asdict(other.ladder), ("digest", "name", "title"))
    lines += compare_fields("protocol", asdict(first.protocol), asdict(other.protocol), _PROTOCOL)
    if not lines and not anyway and not code_digest.is_known(first, other):
        lines += [f"dirty: {first.dirty} and {other.dirty}"] if bool(first.dirty) != bool(other.dirty) else []
    others = {rung.name: rung for rung in other.rungs}
    for rung, same in ((rung, others[rung.name]) for rung in first.rungs if rung.name in others):
        for a, b in ((rung, same), (same, rung)):
            if a.status in (store.NOT_ENGAGED, store.FAILED_PARITY) and b.rounds:
                lines.append(f"rung {rung.name}: {rung.status} and {same.status}")
    one, two = ([rung for rung in run.rungs if rung.rounds] for run in (first, other))
    return lines + list_recipe_differences(one, two, anyway and first.machine.device == "cuda")


def refuse_others(
    path: Path, other_path: Path, differ: Callable[[bool], list[str]], anyway: bool = False
) -> None:
    """Raise `UserError`, one line, if two files do not belong together. `differ` says why, with `--anyway` or not."""
    if lines := differ(anyway):
        hint = "; --anyway merges them nevertheless" if not anyway and not differ(True) else ""
        raise UserError(f"{path} and {other_path} do not belong together: {'; '.join(lines)}{hint}")


def refuse_the_same(files: Sequence[tuple[Path, Any]], visits: Callable[[Any], set[Any]]) -> None:
    """Raise `UserError`, one line, if two files hold a visit together."""
    for (other, earlier), (path, result) in itertools.combinations(files, 2):
        if visits(result) & visits(earlier):
            raise UserError(f"{other} and {path} hold the same run of {result.started}")


def order_rungs(runs: Sequence[Run]) -> list[str]:
    """Return all rungs of the runs in the order of their ladder, of which a run may have measured a part (`--rungs`).

    Raises:
        UserError: the runs leave open, or contradict each other in, which of two rungs comes first.
    """
    left, order = [list(run.ladder.rungs) for run in runs], []
    while heads := list(dict.fromkeys(names[0] for names in left if names)):
        free = [name for name in heads if not any(name in names[1:] for names in left)]
        if len(free) != 1:
            raise UserError(
                f"these do not belong together: rungs: no run says which of {' and '.join(free or heads)} comes first;"
                " a run that has both does"
            )
        order += free
        left = [names[names[:1] == free :] for names in left]
    return order


def find_problem(run: Run, anyway: bool = False) -> str | None:
    """Return why the rounds of a run must not be merged, in one line, or None. No genuine run has an unproved rung."""
    if not sources.end(run):
        return "nothing was measured in it"
    if run.reported_then:
        return "its judgement was reported then: too old to be judged anew"
    for rung in run.rungs:
        if rung.rounds and not all(each.engaged for each in (rung.receipts or {}).values()):
            return f"rung {rung.name}: not engaged, but timed"
        parity = derive.judge_parity(rung.parity)
        if rung.rounds and parity and parity.verdict != "ok":
            return f"rung {rung.name}: {parity.verdict}, but timed"
    unknown = not code_digest.is_known(run) and (run.commit is None or run.dirty)
    if unknown and not anyway:
        code = f"commit: {run.commit}, dirty: {run.dirty}"
        return f"{code}: nobody knows which code it measured; --anyway merges it nevertheless"
    return None


# --- one run of several -----------------------------------------------------------------------------------------------


def merge(paths: Sequence[Path], anyway: bool = False) -> Run:
    """Return the run of all rounds in these files.

    Raises:
        UserError: a file cannot be read, or they do not belong together; one line.
    """
    files = [(path, loading.load_record(path)) for path in paths]
    files.sort(key=lambda each: each[1].started[:19])
    if len(files) == 1:
        return files[0][1]
    refuse_the_same(files, sources.visits)
    for (path, run), (other_path, other) in itertools.combinations(files, 2):
        refuse_others(path, other_path, functools.partial(list_differences, run, other), anyway)
    for path, run in files:
        if problem := find_problem(run, anyway):
            raise UserError(f"{path}: {problem}")
    merged = read_record(Run, text.fit_texts(write_record(_merge([run for _, run in files]))))
    if problem := loading.find_problem(merged):
        raise UserError(f"these cannot be one result: {problem}")
    return merged


def _merge(runs: list[Run]) -> Run:
    """Return one run around the rounds of all, oldest first."""
    newest, names = runs[-1], order_rungs(runs)
    numbers, merged = _number_rounds(runs)
    derived = [judging.derive_result(each) for each in runs]
    twins = {twin.name: None for each in runs for twin in each.twins}
    whole = replace(
        newest,
        ladder=replace(newest.ladder, rungs=names),
        rungs=[_join_rungs(name, runs, numbers, derived) for name in names],
        twins=[_join([_find(each.twins, name) for each in runs], numbers) for name in twins],
        merged=merged,
        measured_code=newest.measured_code if code_digest.is_known(*runs) else None,
        dirty=True if any(each.dirty for each in runs) else newest.dirty,
        seconds=round(sum(each.seconds for each in runs), 1),
        first_table_s=None,
        stored_twins=None,
        gpu=_join_gpu_states(runs),
        choices=_join_choices(runs),
        **sources.join_commits(runs),
    )
    return replace(whole, protocol=_join_protocols(derived, whole))


def _find(parts: Sequence[Part], name: str) -> Part | None:
    return next((each for each in parts if each.name == name), None)


def _number_rounds(runs: list[Run]) -> tuple[Numbers, list[Merged]]:
    """Return for each file the new number of each round, and all runs by their start: a file may be a merged one."""
    pieces = []
    for index, result in enumerate(runs):
        first = 0
        for run in sources.runs(result):
            pieces.append((run, index, first))
            first += run.rounds
    pieces.sort(key=lambda piece: piece[0].started[:19])
    numbers: Numbers = [{} for _ in runs]
    free = 0
    for run, index, first in pieces:
        numbers[index] |= {first + number: free + number for number in range(run.rounds)}
        free += run.rounds
    return numbers, [run for run, _, _ in pieces]


def _join(parts: Sequence[Part | None], numbers: Numbers) -> Part:
    """Return a rung or twin with the rounds of all its `parts`, one from each file or None.

    It is "ok" if it was in any run; else the reason of a failure goes before a skipped one. The rest is the newest.
    """
    pairs = [(part, number) for part, number in zip(parts, numbers, strict=True) if part is not None]
    rounds = [replace(visit, round=number[visit.round]) for part, number in pairs for visit in part.rounds]
    timed = [part for part, _ in pairs if part.rounds] or [part for part, _ in pairs]
    chosen, number = max(pairs, key=lambda pair: {"ok": 3, "skipped": 1, "n/a": 0}.get(pair[0].status, 2))
    failed_at = None if chosen.status == "ok" else chosen.failed_at
    if failed_at and failed_at.round is not None:
        failed_at = replace(failed_at, round=number.get(failed_at.round))
    return replace(
        pairs[-1][0],
        rounds=sorted(rounds, key=lambda visit: visit.round),
        recipe=timed[-1].recipe,
        settings=timed[-1].settings,
        status=chosen.status,
        reason=chosen.reason,
        failed_at=failed_at,
    )


def _join_rungs(name: str, runs: list[Run], numbers: Numbers, derived: list[Result]) -> Rung:
    """Return `_join` of a rung, with its newest findings, and with what runs in which it has no number say of it.

    An inspection that saw the GPU busy goes before others. The profile is that of the oldest run with profiled cycles.
    """
    parts = [_find(each.rungs, name) for each in runs]
    joined, known = _join(parts, numbers), [part for part in parts if part is not None]
    notes = [note for part in known for note in part.elsewhere or []]
    if joined.status == "ok":
        notes += [
            text.make_display(f"{rung.status} in the run of {run.started[:16]}: {rung.reason}")
            for run in derived
            for rung in run.rungs
            if rung.name == name and rung.status in OUT
        ]
    inspections = [each.inspection for each in known if each.inspection]
    return replace(
        joined,
        inspection=max(reversed(inspections), key=lambda each: bool(each.gpu_busy_ms), default=None),
        parity=next((each.parity for each in reversed(known) if each.parity), None),
        receipts=next((each.receipts for each in reversed(known) if each.receipts is not None), None),
        elsewhere=notes[:64] or None,
        profile=next((each.profile for each in known if any(visit.profiled for visit in each.rounds)), None),
    )


def _join_choices(runs: list[Run]) -> list[Choice] | None:
    """Return the rows of tables that decided in any run, each once, with its rungs."""
    joined: list[Choice] | None = runs[-1].choices and []
    for row in [row for each in (runs[-1], *runs[:-1]) for row in each.choices or []]:
        fields = {key: value for key, value in write_record(row).items() if key != "rungs"}
        for name in row.rungs:
            joined = record.add_choices(joined, name, [fields])
    return joined


def _join_protocols(derived: list[Result], whole: Run) -> Protocol:
    """Return how all runs measured. A note says which of them measured some rungs alone, and that one is not whole."""
    raw, count = [each.protocol for each in derived], len(whole.rungs)
    own = (derive.QUICK, derive.MERGED, INTERRUPTED)
    notes = [note for each in raw for note in each.notes if not note.startswith(own)]
    notes += [
        f"only {len(each.rungs)} of {count} rungs in the run of {each.started[:16]}"
        for each in derived
        if len(each.rungs) < count
    ]
    parts = [
        each for each in sources.records(whole) if each.recipe is not None and each.status in ("ok", "n/a")
    ]
    enough = all(len(derive.counted(each)) >= rounds_budget.LEAST_ROUNDS for each in parts)
    if not enough and not all(each.complete for each in derived):
        notes.append(f"{INTERRUPTED}: a run that was merged is not whole")
    fixed = all(each.fixed for each in raw)
    return replace(
        raw[-1],
        fixed=fixed,
        budget_s=None if fixed else sum(each.budget_s or 0.0 for each in raw),
        rounds=sum(run.rounds for run in whole.merged or []),
        notes=list(dict.fromkeys(notes))[:60],
    )


def _join_gpu_states(runs: list[Run]) -> RunGpu | None:
    """Return the state of the GPU over all runs: alone, or known, only if every run was. Noise stays noted."""
    known = [each.gpu for each in runs if each.gpu]
    if not known:
        return None
    tenancies = {each.gpu.tenancy if each.gpu else "unknown" for each in runs}
    states = {each.gpu.state if each.gpu else "unknown" for each in runs}
    return RunGpu(
        state="unknown" if "unknown" in states else "known",
        tenancy="shared" if "shared" in tenancies else "unknown" if "unknown" in tenancies else "alone",
        rejected_visits=sum(each.rejected_visits for each in known),
        notes=sorted({note for each in known for note in each.notes})[:64],
    )
