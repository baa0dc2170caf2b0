"""The targets of the project, and what result files hold of each: a function each, in `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ladder.base.text import factor, ms
from ladder.plan import modes
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.pages.committed import Committed
from ladder.results import derive
from ladder.results.run import RungResult
from ladder.studies.kernelbench.record import NO_AIM
from ladder.studies.kernelbench.record import Row as Kernel
from ladder.studies.kernelbench.study import STUDY as KERNELS
from ladder.studies.roofline.study import STUDY as ROOFLINE
from ladder.studies.upstream.record import Figures

MACHINE = "nvidia-h200"  # the targets are about one H200
MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
LARGE = (128, 129, 256, 257)  # pixels a side; one more behind a transposed convolution
ENOUGH = 0.85  # of a cold copy
ABSENT = "no complete run"
Row = tuple[str, str, str]  # the target, what was measured, and where


def find_share(row: Kernel) -> float:
    """Return the time of a cold copy of the same bytes, divided by ours."""
    return row.share["ours"].median


def list_large(rows: Sequence[Kernel]) -> list[Kernel]:
    """Return the memory-bound ones of the rows of `ladder kernels` with large maps."""
    bound = [row for row in rows if "ours" in row.share and row.function not in NO_AIM]
    return [row for row in bound if len(row.shape) == 4 and row.shape[2] in LARGE]


def _find_top(committed: Committed, workload: str) -> tuple[RungResult, str] | None:
    """Return the top of `full` of a workload on this machine, and a link to its file with its generations."""
    result = committed.find_top(MACHINE, workload, FULL)
    return None if result is None else _pick_last(result.rungs, committed.find_path(result))


def _pick_last(rungs: Sequence[RungResult], path: str) -> tuple[RungResult, str]:
    top = next(rung for rung in reversed(rungs) if rung.status == "ok")
    return top, f"[file](@/results/{path}), generations: {len(derive.counted(top))}"


def _judge_top(
    target: str, workload: str, describe: Callable[[RungResult], str]
) -> Callable[[Committed], Row]:
    """Return the function of a target that the top of `full` meets or misses by itself."""

    def judge(committed: Committed) -> Row:
        if top := _find_top(committed, workload):
            return target, describe(top[0]), top[1]
        return target, ABSENT, f"`ladder run --ladder {FULL} -w {workload}`"

    return judge


def _time(rung: RungResult) -> str:
    low, high = rung.interval_ms or (None, None)
    return f"{ms(rung.step_ms)} ms ({ms(low)}-{ms(high)})"


def _times(rung: RungResult) -> str:
    low, high = rung.total_interval or (0, 0)
    return f"{factor(rung.speedup_total)} ({low:.3g}-{high:.3g})"


def _describe_lazy(rung: RungResult) -> str:
    costs = derive.lazy_costs(rung)
    return " and ".join(f"{ms(costs[phase][0])} ms" for phase in ("D_r1", "G_pl"))


def judge_upstream(committed: Committed) -> Row:
    target = "NVIDIA's stylegan3 repository, same widths, FP16: at least 10 times as fast at batch 8, 5 at batch 32"
    seen, where = [], []
    for name, file in committed.list_files("upstream", f"{MACHINE}-article*"):
        figures, batch, both = Figures(file), (file.workload or {})["batch"], []
        ratios = {"by the wall clock": figures.derive_wall_ratio(), "in GPU time": figures.derive_gpu_ratio()}
        for clock, ratio in ratios.items():
            if ratio:
                low, high = ratio.interval or (0, 0)
                both.append(f"{factor(ratio.median)} ({low:.2f}-{high:.2f}) {clock}")
        seen.append(f"{' and '.join(both)} at batch {batch}")
        rounds = min(len(program.rounds) for program in figures.programs.values())
        where.append(f"[batch {batch}](@/results/{name.replace('.json', '.md')}), generations: {rounds}")
    where.append("[what is compared](@/docs/upstream.md); a slow host slows NVIDIA's step alone")
    return (
        (target, "; ".join(seen), "; ".join(where)) if seen else (target, ABSENT, "`ladder upstream CLONE`")
    )


def judge_compiled(committed: Committed) -> Row:
    target = "BF16 and channels_last under `torch.compile(max-autotune)`: ours at least 1.25 times as fast"
    result = committed.best.get((MACHINE, ARTICLE, "compile_autotune", modes.CUMULATIVE))
    if result is None:
        return target, ABSENT, "`ladder run --ladder compile_autotune`"
    top, where = _pick_last(result.rungs, committed.find_path(result))
    seen = f"{_times(top)}: {ms(result.rungs[0].step_ms)} and {ms(top.step_ms)} ms"
    return target, seen, f"{where}; without coordinate descent and Triton templates for matmuls"


def judge_light(committed: Committed) -> Row:
    target = "within 1.8 times the speed of light"
    if (best := _find_top(committed, ARTICLE)) is None:
        return target, ABSENT, f"`ladder run --ladder {FULL}`"
    top, where = best
    for name, file in committed.list_files("roofline", f"{MACHINE}-article-full-{top.name}"):
        floor = ROOFLINE.derive(file).step["light_ms"]
        seen = f"{(top.step_ms or 0.0) / floor:.2f} times: {ms(top.step_ms)} ms and a floor of {ms(floor)}"
        return target, seen, f"{where}; [floor](@/results/{name.replace('.json', '.md')})"
    return target, ABSENT, f"`ladder doctor --roofline --rung {top.name}`"


def judge_memory_bound(committed: Committed) -> Row:
    target = (
        "`bias_act`, `modulate`, `upfirdn2d` at 128x128 and 256x256: at least 85% of a copy of the same bytes"
    )
    for name, file in committed.list_files("kernels", f"{MACHINE}*"):
        rows = list_large(KERNELS.derive(file).rows)
        ours = sorted(find_share(row) for row in rows if row.function in MEMORY_BOUND)
        others = [find_share(row) for row in rows if row.function not in MEMORY_BOUND]
        missed = [f"{100 * share:.1f}%" for share in ours if share < ENOUGH]
        seen = f"{len(ours) - len(missed)} of {len(ours)}; below: {', '.join(missed) or 'none'}"
        below = (
            f"{sum(share < ENOUGH for share in others)} of {len(others)} figures of the other ops are below"
        )
        return target, seen, f"[table](@/results/{name.replace('.json', '.md')}); {below}"
    return target, ABSENT, "`ladder kernels`"


def judge_overhead(committed: Committed) -> Row:
    name = "asv-overhead/amd-epyc"
    data = committed.read(f"{name}.json")
    where = f"[file](@/results/{name}.md), {data['machine']['cores']} CPU cores; not measured on the H200"
    return "`asv`: at most 3 s for each commit besides measuring", f"{data['overhead_s']:.2f} s", where


TARGETS: tuple[Callable[[Committed], Row], ...] = (
    _judge_top("`article` (batch 8), top: at most 13 ms", ARTICLE, _time),
    _judge_top(
        "top over baseline: at least 8 times, without R1 and path length 5 times",
        ARTICLE,
        lambda top: f"{_times(top)}, without {factor(top.main_speedup_total)}",
    ),
    _judge_top(
        "`article-b32`, top: at most 42 ms",
        "article-b32",
        lambda top: f"{_time(top)}, {_times(top)} the baseline",
    ),
    _judge_top("batch 8: R1 at most 8 ms, path length at most 12 ms", ARTICLE, _describe_lazy),
    judge_upstream,
    judge_compiled,
    judge_light,
    judge_memory_bound,
    judge_overhead,
)
