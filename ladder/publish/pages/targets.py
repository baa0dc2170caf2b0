"""The targets of the project, and what result files hold of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ladder.base.text import factor, ms
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import link, span, table
from ladder.publish.pages.studies import ENOUGH, large, share
from ladder.results import derive
from ladder.results import store as results
from ladder.results.types import Result, RungResult, given
from ladder.studies.kernelbench.schema import of_data as kernels_of

MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
PARTS = ("start", "build", "prepare")
FULL = "ladder/nvidia-h200/article-full-20261122T202833Z.json"
WITH_AUTOTUNING = "ladder/nvidia-h200/article-full-20261121T213446Z.json"
BATCH_32 = "ladder/nvidia-h200/article-b32-full-20261123T023416Z.json"
COMPILED = "ladder/nvidia-h200/article-compile_autotune-20261122T231746Z.json"
WARM, COLD = (f"ladder/nvidia-h200/article-full-20261123T{time}Z.json" for time in ("215235", "215416"))
LIGHT = "roofline/nvidia-h200-article-full-fused_modulation"
TRIALS = ("article-bench-compare-captured", "article-b32-bench-compare-eager", "article-bench-compare-eager")
Row = tuple[str, str, str]


def targets(committed: Committed) -> str:
    """Return every target with a result file: the figure, and whether the file lets it count."""
    return table(["target", "seen", "where, and whether it counts"], [row(committed) for row in ROWS], 3)


def _top(result: Result, name: str = "") -> RungResult:
    """Return the rung of that name; without a name, the highest rung with a number."""
    timed = [rung for rung in result.rungs if rung.status == "ok"]
    return next(rung for rung in reversed(timed) if name in ("", rung.name))


def _time(rung: RungResult) -> str:
    return f"{ms(rung.step_ms)} ms ({span(rung.interval_ms)})"


def _times(rung: RungResult) -> str:
    return f"{factor(rung.speedup_total)} ({span(given(rung.total_interval), '.3g')})"


def _counts(count: int, words: str) -> str:
    return f"{words}, rounds: {count}" + ("" if count >= results.FEWEST_ROUNDS else ", too few to count")


def _file(rung: RungResult, name: str, words: str = "file") -> str:
    return _counts(len(derive.counted(rung)), link(words, name))


def step(committed: Committed) -> Row:
    top = _top(committed.ladder(FULL))
    return "`article` (batch 8), top: at most 13 ms", _time(top), _file(top, FULL)


def speedup(committed: Committed) -> Row:
    top, other = (_top(committed.ladder(name)) for name in (FULL, WITH_AUTOTUNING))
    main = [factor(rung.main_speedup_total) for rung in (top, other)]
    seen = f"{_times(top)}, without {main[0]}; with `cudnn_benchmark` {_times(other)}, without {main[1]}"
    target = "top over baseline: at least 8 times, without R1 and path length 5 times"
    return target, seen, f"{_file(top, FULL)}; {_file(other, WITH_AUTOTUNING)}"


def batch_32(committed: Committed) -> Row:
    top = _top(committed.ladder(BATCH_32))
    return (
        "`article-b32`, top: at most 42 ms",
        f"{_time(top)}, {_times(top)} the baseline",
        _file(top, BATCH_32),
    )


def lazy(committed: Committed) -> Row:
    top = _top(committed.ladder(FULL))
    costs = derive.lazy_costs(top)
    seen = [f"{ms(costs[phase][0])} ms ({span(costs[phase][1])})" for phase in ("D_r1", "G_pl")]
    return "batch 8: R1 at most 8 ms, path length at most 12 ms", " and ".join(seen), _file(top, FULL)


def upstream(committed: Committed) -> Row:
    seen, where = [], []
    for batch, name in (
        (8, "upstream/nvidia-h200-article"),
        (32, "upstream/nvidia-h200-article-b32-partial"),
    ):
        result = committed.read(f"{name}.json")
        ratio = result["ratio"]
        seen.append(f"{factor(ratio['median'])} ({span(ratio['interval'], '.2f')}) at batch {batch}")
        rounds = min(len(program["rounds"]) for program in result["programs"])
        where.append(_counts(rounds, link(f"batch {batch}", f"{name}.md")))
    note = "a copy with [other networks](@/docs/upstream.md), its fast double backward off"
    target = "NVIDIA's stylegan3 repository, same widths, FP16: at least 10 times as fast at batch 8, 5 at batch 32"
    return target, ", ".join(seen), "; ".join([*where, note])


def compiled(committed: Committed) -> Row:
    plain, top = committed.ladder(COMPILED).rungs
    seen = f"{_times(top)}: {ms(plain.step_ms)} and {ms(top.step_ms)} ms"
    target = "BF16 and channels_last under `torch.compile(max-autotune)`: ours at least 1.25 times as fast"
    other = "of `compile_autotune`: no coordinate descent, no Triton templates for matmuls"
    return target, seen, f"{_file(top, COMPILED)}; {other}"


def light(committed: Committed) -> Row:
    top = _top(committed.ladder(FULL))
    floor = committed.read(f"{LIGHT}.json")["step"]["light_ms"]
    seen = f"{top.step_ms / floor:.2f} times: {ms(top.step_ms)} ms and a floor of {ms(floor)}"
    return (
        "within 1.8 times the speed of light",
        seen,
        f"{_file(top, FULL, 'step')}; {link('floor', f'{LIGHT}.md')}",
    )


def memory_bound(committed: Committed) -> Row:
    name = "kernels/nvidia-h200-partial"
    rows = large(kernels_of(committed.read(f"{name}.json")).rows)
    ours = sorted(share(row) for row in rows if row.function in MEMORY_BOUND)
    others = [share(row) for row in rows if row.function not in MEMORY_BOUND]
    missed = [each for each in ours if each < ENOUGH]
    seen = f"{len(ours) - len(missed)} of {len(ours)}, the others {_percents(missed)}"
    below = sum(each < ENOUGH for each in others)
    words = "`bias_act`, `modulate`, `upfirdn2d` at 128x128 and 256x256, batch 8 and 32"
    target = f"{words}: at least 85% of a copy of the same bytes"
    counts = (
        f"{link('table', f'{name}.md')}, stopped; {below} of {len(others)} figures of the other ops are below"
    )
    return target, seen, counts


def _percents(shares: Sequence[float]) -> str:
    return " and ".join(f"{100 * each:.1f}%" for each in shares)


def cold_start(committed: Committed) -> Row:
    seen, where = [], []
    for words, name in (("warm", WARM), ("cold", COLD)):
        rung = _top(committed.ladder(name))
        first = rung.rounds[0]
        parts = [getattr(first, f"{part}_s") for part in PARTS]
        compiling = first.compile_kernels_s
        detail = ", ".join(f"{part} {value:.1f}" for part, value in zip(PARTS, parts, strict=True))
        extra = f", of which kernels {compiling:.1f}" if compiling else ""
        seen.append(f"{sum(parts):.1f} s {words} ({detail}{extra})")
        where.append(_file(rung, name, words))
    return (
        "from the start to the first timed cycle at the top: 15 s warm, 90 s cold",
        "; ".join(seen),
        "; ".join(where),
    )


def overhead(committed: Committed) -> Row:
    name = "asv-overhead/amd-epyc"
    result = committed.read(f"{name}.json")
    where = f"{link('file', f'{name}.md')}, {result['machine']['cores']} CPU cores; not asked on the H200"
    return "`asv`: at most 3 s for each commit besides measuring", f"{result['overhead_s']:.2f} s", where


def trials(committed: Committed) -> Row:
    names = [f"selftest/nvidia-h200-{name}" for name in TRIALS]
    asked = [each for name in names for each in committed.read(f"{name}.json")["questions"]]
    same = [each["verdict"] for each in asked if not each["planted"]]
    found = [f"{100 * each['planted']:g}%: {each['verdict']}" for each in asked if each["planted"]]
    seen = f"{'; '.join(found)}; {sum(word != 'slower' for word in same)} A/A of {len(same)} pass"
    where = ", ".join(link(name.removeprefix("selftest/nvidia-h200-"), f"{name}.md") for name in names)
    simulated = link("simulated", "selftest/bench-compare-simulated.md")
    target = "`bench-compare`: 1% of a captured step found, 5% of an eager one, 20 A/A of 20 pass"
    return target, seen, f"{where}; {simulated}: all found"


def damaged(committed: Committed) -> Row:
    kinds = committed.read("faults/fuzz.json")["kinds"]
    findings = sum(len(each["findings"]) for each in kinds.values())
    slowest = max(each["slowest"]["seconds"] for each in kinds.values())
    target = (
        "100,000 damaged result files and 10,000 YAML files: no traceback, no write outside, none over 2 s"
    )
    count = " and ".join(f"{each['total']['count']:,}" for each in kinds.values())
    return target, f"{findings} findings in {count}, {slowest:.2f} s at most", link("table", "faults/fuzz.md")


def sanitizer(committed: Committed) -> Row:
    result = committed.read("sanitizer/nvidia-h200.json")
    tools = result["tools"]
    seen = ", ".join(f"{name} {tool['status']}" for name, tool in tools.items())
    count = len(next(iter(tools.values()))["kernels"])
    where = f"{link('summaries', 'sanitizer/nvidia-h200.txt')}, kernels as of {result['commit'][:7]}"
    return (
        "compute-sanitizer: memcheck and racecheck clean",
        f"{seen}: {count} kernels in {result['seconds']:.0f} s",
        where,
    )


ROWS: tuple[Callable[[Committed], Row], ...] = (
    step, speedup, batch_32, lazy, upstream, compiled, light, memory_bound, cold_start, overhead, trials, damaged,
    sanitizer,
)  # fmt: skip
TABLES: dict[str, Callable[..., str]] = {"targets": targets}
