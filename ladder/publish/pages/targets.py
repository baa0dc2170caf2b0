"""The targets of the project, and what result files hold of each."""

from __future__ import annotations

from collections.abc import Callable

from ladder.base.text import factor, ms
from ladder.plan import modes
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import link, span, table
from ladder.publish.pages.studies import ENOUGH, large, share
from ladder.results import derive
from ladder.results.run import Result, RungResult
from ladder.studies import frame
from ladder.studies.kernelbench.study import STUDY as KERNELS
from ladder.studies.roofline.study import STUDY
from ladder.studies.upstream.study import STUDY as UPSTREAM

MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
MACHINE = "nvidia-h200"  # the aims are about one H200
LIGHT = f"roofline/{MACHINE}-article-full-{{}}.json"  # the floor beside a rung
Row = tuple[str, str, str]


def render_targets(committed: Committed) -> str:
    """Return every target: the figure of a whole run, or the command that would give it."""
    return table(["target", "seen", "where"], [row(committed) for row in ROWS], 3)


def _absent(target: str, command: str) -> Row:
    return target, "no complete run", f"`{command}`"


def _best(committed: Committed, workload: str) -> tuple[Result, str] | None:
    """Return the best staircase of a workload on this machine that has the top of `full`, with its path."""
    result = committed.top(MACHINE, workload, "full")
    return None if result is None else (result, committed.path_of(result))


def _top(result: Result) -> RungResult:
    """Return the highest rung with a number."""
    return next(rung for rung in reversed(result.rungs) if rung.status == "ok")


def _time(rung: RungResult) -> str:
    return f"{ms(rung.step_ms)} ms ({span(rung.interval_ms)})"


def _times(rung: RungResult) -> str:
    return f"{factor(rung.speedup_total)} ({span(rung.total_interval, '.3g')})"


def _file(rung: RungResult, name: str, words: str = "file") -> str:
    return f"{link(words, name)}, generations: {len(derive.counted(rung))}"


def judge_step(committed: Committed) -> Row:
    target = "`article` (batch 8), top: at most 13 ms"
    if not (best := _best(committed, "article")):
        return _absent(target, "ladder run --ladder full")
    top = _top(best[0])
    return target, _time(top), _file(top, best[1])


def judge_speedup(committed: Committed) -> Row:
    target = "top over baseline: at least 8 times, without R1 and path length 5 times"
    if not (best := _best(committed, "article")):
        return _absent(target, "ladder run --ladder full")
    top = _top(best[0])
    return target, f"{_times(top)}, without {factor(top.main_speedup_total)}", _file(top, best[1])


def judge_batch_32(committed: Committed) -> Row:
    target = "`article-b32`, top: at most 42 ms"
    if not (best := _best(committed, "article-b32")):
        return _absent(target, "ladder run --ladder full -w article-b32")
    top = _top(best[0])
    return target, f"{_time(top)}, {_times(top)} the baseline", _file(top, best[1])


def judge_lazy(committed: Committed) -> Row:
    target = "batch 8: R1 at most 8 ms, path length at most 12 ms"
    if not (best := _best(committed, "article")):
        return _absent(target, "ladder run --ladder full")
    top = _top(best[0])
    costs = derive.lazy_costs(top)
    seen = [f"{ms(costs[phase][0])} ms" for phase in ("D_r1", "G_pl")]
    return target, " and ".join(seen), f"{_file(top, best[1])}; R1 and path length from one of them"


def judge_upstream(committed: Committed) -> Row:
    target = "NVIDIA's stylegan3 repository, same widths, FP16: at least 10 times as fast at batch 8, 5 at batch 32"
    seen, where = [], []
    for name in committed.names(f"upstream/{MACHINE}-article*.json"):
        file = frame.decode_file(UPSTREAM, committed.read(name))
        result, batch, both = UPSTREAM.derive(file), (file.workload or {})["batch"], []
        for ratio, clock in ((result.ratio, "by the wall clock"), (result.derive_gpu_ratio(), "in GPU time")):
            if ratio:
                both.append(f"{factor(ratio.median)} ({span(ratio.interval, '.2f')}) {clock}")
        seen.append(f"{' and '.join(both)} at batch {batch}")
        rounds = min(len(program.rounds) for program in result.programs)
        where.append(f"{link(f'batch {batch}', name.replace('.json', '.md'))}, generations: {rounds}")
    if not seen:
        return _absent(target, "ladder upstream CLONE")
    note = "[what is compared](@/docs/upstream.md); a slow host slows NVIDIA's step alone"
    return target, "; ".join(seen), "; ".join([*where, note])


def judge_compiled(committed: Committed) -> Row:
    target = "BF16 and channels_last under `torch.compile(max-autotune)`: ours at least 1.25 times as fast"
    key = (MACHINE, "article", "compile_autotune", modes.CUMULATIVE)
    if not (result := committed.best.get(key)):
        return _absent(target, "ladder run --ladder compile_autotune")
    plain, top = result.rungs
    seen = f"{_times(top)}: {ms(plain.step_ms)} and {ms(top.step_ms)} ms"
    other = "of `compile_autotune`: no coordinate descent, no Triton templates for matmuls"
    return target, seen, f"{_file(top, committed.path_of(result))}; {other}"


def judge_light(committed: Committed) -> Row:
    target = "within 1.8 times the speed of light"
    if not (best := _best(committed, "article")):
        return _absent(target, "ladder run --ladder full")
    top = _top(best[0])
    if not (names := committed.names(LIGHT.format(top.name))):
        return _absent(target, f"ladder doctor --roofline --rung {top.name}")
    floor = STUDY.derive(frame.decode_file(STUDY, committed.read(names[0]))).step["light_ms"]
    seen = f"{top.step_ms / floor:.2f} times: {ms(top.step_ms)} ms and a floor of {ms(floor)}"
    return target, seen, f"{_file(top, best[1], 'step')}; {link('floor', names[0].replace('.json', '.md'))}"


def judge_memory_bound(committed: Committed) -> Row:
    words = "`bias_act`, `modulate`, `upfirdn2d` at 128x128 and 256x256, batch 8 and 32"
    target = f"{words}: at least 85% of a copy of the same bytes"
    names = [name for each in ("", "-article") for name in committed.names(f"kernels/{MACHINE}{each}.json")]
    if not names:
        return _absent(target, "ladder kernels")
    rows = large(KERNELS.derive(frame.decode_file(KERNELS, committed.read(names[0]))).rows)
    ours = sorted(share(row) for row in rows if row.function in MEMORY_BOUND)
    others = [share(row) for row in rows if row.function not in MEMORY_BOUND]
    missed = [f"{100 * each:.1f}%" for each in ours if each < ENOUGH]
    seen = f"{len(ours) - len(missed)} of {len(ours)}" + f", the others {' and '.join(missed)}" * bool(missed)
    seen += ", at batch 8 alone" * names[0].endswith("-article.json")
    below = sum(each < ENOUGH for each in others)
    page = link("table", names[0].replace(".json", ".md"))
    return target, seen, f"{page}; {below} of {len(others)} figures of the other ops are below"


def judge_overhead(committed: Committed) -> Row:
    name = "asv-overhead/amd-epyc"
    result = committed.read(f"{name}.json")
    where = f"{link('file', f'{name}.md')}, {result['machine']['cores']} CPU cores; not measured on the H200"
    return "`asv`: at most 3 s for each commit besides measuring", f"{result['overhead_s']:.2f} s", where


ROWS: tuple[Callable[[Committed], Row], ...] = (
    judge_step, judge_speedup, judge_batch_32, judge_lazy, judge_upstream, judge_compiled, judge_light,
    judge_memory_bound, judge_overhead,
)  # fmt: skip
TABLES: dict[str, Callable[..., str]] = {"targets": render_targets}
