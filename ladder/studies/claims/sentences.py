"""The numbers behind each claim: a table of templates, filled from a result.

A template stands in `WHY` under its claim's name. `{KIND EXPERIMENT|CONTENDER|...}` in it is a number of the result,
by a function of `NUMBERS`. A template is left out where the result lacks one of its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ladder.studies.claims.view import ADD, EMPTY_CUDA, EMPTY_TRITON, EQUAL, LAUNCH, REPLAY, View
from ladder.studies.kernelbench.schema import Summary

FORMS = {
    "backward": "norm backward bf16",
    "FP32 forward": "norm forward fp32",
    "FP32 backward": "norm backward fp32",
}
BLOCKS = {  # the sweeps over blocks of 32 to 1024 threads
    "block size": "leaky ReLU in Triton",
    "block size in CUDA": "the activation in CUDA C++",
    "block size of the norm": "the norm in CUDA C++",
}
ADVISED = ("128 threads", "256 threads")
UNBOUNDED = "1024 threads"  # the most that a block may have: a bound that bounds nothing
_NORM = "norm forward bf16"
_NUMBER = re.compile(r"\{(\w+)(?: ([^}]*))?\}")


def _forms(kind: str, unit: str, slow: str, quick: str) -> list[str]:
    return [f"{word} {{{kind} {name}|{slow}|{quick}}}{unit}" for word, name in FORMS.items()]


def _microseconds(experiment: str, *contenders: str) -> str:
    return ", ".join(f"{name} {{us {experiment}|{name}}} us" for name in contenders)


WHY: dict[str, list[str]] = {
    "CUDA C++ against PyTorch": [
        "{span .2f|x|PyTorch|CUDA C++}",
        "in BF16, forward, PyTorch's two operators cross memory 5 times and CUDA C++ twice: bytes alone make 2.5x",
        f"PyTorch moves {{rate {_NORM}|PyTorch}} TB/s and CUDA C++ {{rate {_NORM}|CUDA C++}}",
        *_forms("x", "x", "PyTorch", "CUDA C++"),
    ],
    "Triton against CUDA C++": [
        "{span .0%||CUDA C++|Triton}",
        "three passes through memory for CUDA C++'s two would make 67%",
        f"Triton moves {{rate {_NORM}|Triton}} TB/s and CUDA C++ {{rate {_NORM}|CUDA C++}}",
        f"DRAM gives Triton {{dram_read {_NORM}|Triton|CUDA C++}}x as much",
        *_forms("percent", "", "CUDA C++", "Triton"),
    ],
    "coalescing": [  # the two ways from the article's strided kernel to its coalesced one
        "access pattern, then full grid: {x coalescing|strided, N blocks|coalesced, N blocks}x"
        " and {x coalescing|coalesced, N blocks|coalesced}x",
        "full grid, then access pattern: {x coalescing|strided, N blocks|strided}x"
        " and {x coalescing|strided|coalesced}x",
        "sectors a load {sectors coalescing|strided} and {sectors coalescing|coalesced}",
        "PyTorch's kernel against the strided one on a full grid: {x coalescing|strided|PyTorch}x",
    ],
    "block size": [
        "the better of 128 and 256 threads, in the kernel where it costs most",
        *(
            f"{words}: {{name {sweep}|quickest}} are the quickest, "
            + ", ".join(f"{each} {{x {sweep}|{each}|quickest}}x" for each in (*ADVISED, "32 threads"))
            for sweep, words in BLOCKS.items()
        ),
    ],
    "occupancy": [
        f"{words}: {{name {sweep}|below half}} at {{occupancy {sweep}|below half}} takes"
        f" {{x {sweep}|below half|from half}}x the time of {{name {sweep}|from half}}"
        f" at {{occupancy {sweep}|from half}}"
        for sweep, words in (
            (EQUAL, "one kernel, as many bytes on their way a thread"),
            ("occupancy", "where a thread's work differs"),
        )
    ],
    "fusion saves traffic": [
        "two intermediates in BF16, each written and read, are {saved} MB an image",
        "{saved dram} MB in DRAM by Nsight Compute",
        "one operator is {x fusion|three operators|one}x as fast as three",
    ],
    "launch overhead": [
        f"{name} {{us launches|{what}: {name}}} us {words}"
        for what, words in ((LAUNCH, "of the CPU"), (REPLAY, "in a graph"))
        for name in (ADD, EMPTY_TRITON, EMPTY_CUDA)
    ],
    "launches of a step": [
        "1 to 2 ms are 200 launches of 5 to 10 us, and the ladder's baseline has {kernels} kernels a step",
        "an upper bound: a launch costs time only where the GPU waits for it",
    ],
    "warp divergence": [_microseconds("divergence", "divergent", "predicated", "divergent, whole warps")],
    "shared memory or shuffles": [_microseconds("reduction", "shared memory", "shuffles")],
    "vector width": [_microseconds("vector width", "2 bytes", "16 bytes")],
    "launch bounds": [
        "{name launch bounds|bound} is the quickest bound for blocks of 256, against one of 1024 threads",
        "the slowest, {name launch bounds|slowest}, takes {x launch bounds|slowest|1024 threads}x the time",
        "in Triton 32 registers instead of no bound take {x register bounds|32 registers|no bound}x the time",
    ],
    "fast math": [
        "relative error against float64, FP32: CUDA C++ {error CUDA C++}, with fast math {error CUDA C++, fast math},"
        " PyTorch {error PyTorch}"
    ],
    "spectral norm": [_microseconds("spectral norm", "PyTorch", "Triton")],
    **{
        f"16-bit {name}": [
            "against IEEE FP32, by results/precision",
            *(
                f"{precision.upper()} on the {base} {{precision {name}|{precision}|{base}}}x"
                for base in ("baseline", "top")
                for precision in ("bf16", "fp16")
            ),
        ]
        for name in ("throughput", "memory", "batch")
    },
}


def sentence(name: str, view: View) -> str:
    """Return the templates of a claim, filled and joined; those that lack a number are left out."""
    filled = (_filled(template, view) for template in WHY[name])
    return "; ".join(text for text in filled if text is not None)


def _filled(template: str, view: View) -> str | None:
    lacks = False

    def shown(found: re.Match[str]) -> str:
        nonlocal lacks
        function, form = NUMBERS[found[1]]
        value = function(view, *(found[2] or "").split("|"))
        lacks |= value is None
        return "" if value is None else format(value.median if isinstance(value, Summary) else value, form)

    text = _NUMBER.sub(shown, template)
    return None if lacks else text


def contender(view: View, experiment: str, name: str) -> str | None:
    """Return the name of a contender that is named by its place among the others; else the name itself."""
    if name in ("quickest", "slowest"):
        return getattr(view, name)(experiment)
    if name == "bound":
        bounds = tuple(each for each in view.samples_of(experiment) if each != UNBOUNDED)
        return view.quickest(experiment, bounds)
    if name in ("below half", "from half"):
        return view.by_occupancy(experiment, *((0.0, 0.5) if name == "below half" else (0.5, 1.01)))
    return name


def _span(view: View, form: str, unit: str, slow: str, quick: str) -> str | None:
    """Return where BF16 forward stands among all directions and precisions: `the most of 4 cases, 1.90x to 4.01x`."""
    found = [each for name in (_NORM, *FORMS.values()) if (each := view.ratio(name, slow, quick))]
    if len(found) < 2:
        return None
    ordered = sorted(found, key=lambda each: each.median)
    place = "the most" if ordered[-1] is found[0] else "the least" if ordered[0] is found[0] else "one"
    low, high = (format(each.median, form) for each in (ordered[0], ordered[-1]))
    return f"{place} of {len(found)} cases, {low}{unit} to {high}{unit}"


def _ratio(view: View, experiment: str, slow: str, quick: str) -> Summary | None:
    return view.ratio(experiment, contender(view, experiment, slow), contender(view, experiment, quick))


def _dram_read(view: View, experiment: str, first: str, second: str) -> float | None:
    counted = [view.counted(experiment, name) for name in (first, second)]
    read = [each.dram_read if each else None for each in counted]
    return read[0] / read[1] if all(read) else None


def _sectors_a_load(view: View, experiment: str, contender: str) -> float | None:
    counted = view.counted(experiment, contender)
    return counted.sectors_a_load if counted else None


# Kind -> (function of a view and the names behind the kind, how its number is written)
NUMBERS: dict[str, tuple[Callable[..., Any], str]] = {
    "dram_read": (_dram_read, ".2f"),
    "error": (lambda view, name: view.result.errors.get(name), ".1e"),
    "kernels": (lambda view, _: view.result.kernels_per_step, ",.0f"),
    "name": (contender, ""),
    "occupancy": (lambda view, name, place: view.occupancy(name, contender(view, name, place)), ".0%"),
    "percent": (lambda view, *names: _ratio(view, *names), ".0%"),
    "precision": (lambda view, *names: view.precision(*names), ".2f"),
    "rate": (lambda view, *names: view.rate(*names), ".2f"),
    "saved": (lambda view, by: view.saved_by_fusion(by or None), ".0f"),
    "sectors": (_sectors_a_load, ".0f"),
    "span": (_span, ""),
    "us": (lambda view, *names: view.us(*names), ",.2f"),
    "x": (_ratio, ".2f"),
}
