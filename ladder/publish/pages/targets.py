"""The targets of the project, and what result files hold of each: a function each, in `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ladder.core.text import format_factor, format_ms
from ladder.plan import modes
from ladder.publish.gallery import ARTICLE, FULL
from ladder.publish.pages.committed import Committed
from ladder.results import derive
from ladder.results.run import Result, RungResult
from ladder.studies.kernelbench.record import NO_AIM, derive_rows
from ladder.studies.kernelbench.record import Row as Kernel
from ladder.studies.roofline.study import STUDY as ROOFLINE
from ladder.studies.upstream.record import Figures

MACHINE = "nvidia-h200"  # the targets are about one H200
MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
LARGE = (128, 129, 256, 257)  # pixels a side; one more behind a transposed convolution
ENOUGH = 0.85  # of a cold copy
Row = tuple[str, str]  # what was measured, and where


class Absent(Exception):
    """No complete run measured a target: its text is the command that would."""


def find_share(row: Kernel) -> float:
    """Return the time of a cold copy of the same bytes, divided by ours."""
    return row.share["ours"].median


def list_large(rows: Sequence[Kernel]) -> list[Kernel]:
    """Return the memory-bound ones of the rows of `ladder kernels` with large maps."""
    bound = [row for row in rows if "ours" in row.share and row.function not in NO_AIM]
    return [row for row in bound if len(row.shape) == 4 and row.shape[2] in LARGE]


def _find_top(committed: Committed, workload: str) -> tuple[RungResult, str]:
    """Return the top of `full` of a workload on this machine, and a link to its file. Raises Absent."""
    if (result := committed.find_top(MACHINE, workload, FULL)) is None:
        raise Absent(f"ladder run --ladder {FULL} -w {workload}")
    return _pick_last(committed, result)


def _pick_last(committed: Committed, result: Result) -> tuple[RungResult, str]:
    top = next(rung for rung in reversed(result.rungs) if rung.status == "ok")
    return top, f"[file](@/results/{committed.find_path(result)}), generations: {len(derive.counted(top))}"


def _time(rung: RungResult) -> str:
    low, high = rung.interval_ms or (None, None)
    return f"{format_ms(rung.step_ms)} ms ({format_ms(low)}-{format_ms(high)})"


def _times(rung: RungResult) -> str:
    low, high = rung.total_interval or (0, 0)
    return f"{format_factor(rung.speedup_total)} ({low:.3g}-{high:.3g})"


def judge_step(committed: Committed) -> Row:
    top, where = _find_top(committed, ARTICLE)
    return _time(top), where


def judge_speedup(committed: Committed) -> Row:
    top, where = _find_top(committed, ARTICLE)
    return f"{_times(top)}, without {format_factor(top.main_speedup_total)}", where


def judge_batch_32(committed: Committed) -> Row:
    top, where = _find_top(committed, "article-b32")
    return f"{_time(top)}, {_times(top)} the baseline", where


def judge_lazy(committed: Committed) -> Row:
    top, where = _find_top(committed, ARTICLE)
    costs = derive.lazy_costs(top)
    return " and ".join(f"{format_ms(costs[phase][0])} ms" for phase in ("D_r1", "G_pl")), where


def judge_nvidia(committed: Committed) -> Row:
    seen, where = [], []
    for name, file in committed.list_files("upstream", f"{MACHINE}-article*"):
        figures, batch, both = Figures(file), (file.workload or {})["batch"], []
        ratios = {"by the wall clock": figures.derive_wall_ratio(), "in GPU time": figures.derive_gpu_ratio()}
        for clock, ratio in ratios.items():
            if ratio:
                low, high = ratio.interval or (0, 0)
                both.append(f"{format_factor(ratio.median)} ({low:.2f}-{high:.2f}) {clock}")
        seen.append(f"{' and '.join(both)} at batch {batch}")
        rounds = min(len(program.rounds) for program in figures.programs.values())
        where.append(f"[batch {batch}](@/results/{name.replace('.json', '.md')}), generations: {rounds}")
    if not seen:
        raise Absent("ladder upstream CLONE")
    where.append("[what is compared](@/docs/upstream.md); a slow host slows NVIDIA's step alone")
    return "; ".join(seen), "; ".join(where)


def judge_compiled(committed: Committed) -> Row:
    result = committed.best.get((MACHINE, ARTICLE, "compile_autotune", modes.CUMULATIVE))
    if result is None:
        raise Absent("ladder run --ladder compile_autotune")
    top, where = _pick_last(committed, result)
    seen = f"{_times(top)}: {format_ms(result.rungs[0].step_ms)} and {format_ms(top.step_ms)} ms"
    return seen, f"{where}; without coordinate descent and Triton templates for matmuls"


def judge_light(committed: Committed) -> Row:
    top, where = _find_top(committed, ARTICLE)
    for name, file in committed.list_files("roofline", f"{MACHINE}-article-full-{top.name}"):
        floor = ROOFLINE.derive(file).step["light_ms"]
        times = (top.step_ms or 0.0) / floor
        seen = f"{times:.2f} times: {format_ms(top.step_ms)} ms and a floor of {format_ms(floor)}"
        return seen, f"{where}; [floor](@/results/{name.replace('.json', '.md')})"
    raise Absent(f"ladder doctor --roofline --rung {top.name}")


def judge_ops(committed: Committed) -> Row:
    for name, file in committed.list_files("kernels", f"{MACHINE}*"):
        rows = list_large(derive_rows(file))
        ours = sorted(find_share(row) for row in rows if row.function in MEMORY_BOUND)
        others = [find_share(row) for row in rows if row.function not in MEMORY_BOUND]
        missed = [f"{100 * share:.1f}%" for share in ours if share < ENOUGH]
        below = (
            f"{sum(share < ENOUGH for share in others)} of {len(others)} figures of the other ops are below"
        )
        seen = f"{len(ours) - len(missed)} of {len(ours)}; below: {', '.join(missed) or 'none'}"
        return seen, f"[table](@/results/{name.replace('.json', '.md')}); {below}"
    raise Absent("ladder kernels")


def judge_overhead(committed: Committed) -> Row:
    name = "asv-overhead/amd-epyc"
    data = committed.read(f"{name}.json")
    where = f"[file](@/results/{name}.md), {data['machine']['cores']} CPU cores; not measured on the H200"
    return f"{data['overhead_s']:.2f} s", where


TARGETS: dict[str, Callable[[Committed], Row]] = {
    "`article` (batch 8), top: at most 13 ms": judge_step,
    "top over baseline: at least 8 times, without R1 and path length 5 times": judge_speedup,
    "`article-b32`, top: at most 42 ms": judge_batch_32,
    "batch 8: R1 at most 8 ms, path length at most 12 ms": judge_lazy,
    "NVIDIA's stylegan3, same widths, FP16: at least 10 times as fast at batch 8, 5 at batch 32": judge_nvidia,
    "BF16 and channels_last under `torch.compile(max-autotune)`: ours at least 1.25 times as fast": judge_compiled,
    "within 1.8 times the speed of light": judge_light,
    "`bias_act`, `modulate`, `upfirdn2d` at 128x128 and 256x256: at least 85% of a copy of the same bytes": judge_ops,
    "`asv`: at most 3 s for each commit besides measuring": judge_overhead,
}


def list_targets(committed: Committed) -> Iterator[tuple[str, str, str]]:
    """Yield every target with the figure of a whole run and where it is, or the command that would give it."""
    for target, judge in TARGETS.items():
        try:
            yield target, *judge(committed)
        except Absent as absent:
            yield target, "no complete run", f"`{absent}`"
