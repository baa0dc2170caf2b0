"""Receipts: evidence, read from the running step, that a rung took effect.

``ladder.receipts.evidence`` gathers plain data from a step in an inspector process, and each rung's ``receipt(seen)``
judges it in a few lines. A rung that is not engaged is not timed: its number would belong to something else. Nothing
here imports torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from ladder.core.text import make_display

NOT = "not engaged: "  # begins every line that speaks against a rung
FULL = ("float32", "float64")
Check = tuple[bool | None, str]  # None: not judged; and a line
Evidence = Mapping[str, Any]  # `ladder.receipts.evidence.gather_evidence` names its keys


class Issued(TypedDict):
    """A receipt as plain data, for the result file."""

    engaged: bool
    lines: list[str]


@dataclass(frozen=True)
class Receipt:
    """The verdict whether a rung is on, and the evidence: one line a check, in words that a result file may hold."""

    engaged: bool
    lines: list[str]

    @property
    def reason(self) -> str | None:
        """Return the first line that speaks against the rung, or None."""
        return next((line for line in self.lines if line.startswith(NOT)), None)

    def to_dict(self) -> Issued:
        """Return plain data for the result file."""
        return {"engaged": self.engaged, "lines": list(self.lines)}


def judge(*checks: Check) -> Receipt:
    """Return a receipt from (ok, line) pairs: engaged if no check failed. A check of None is shown but not judged.

    Without a judged check the rung is not engaged: absence of evidence proves nothing.
    """
    lines = [NOT + line if ok is False else line for ok, line in checks]
    if all(ok is None for ok, _ in checks):
        lines.append(NOT + "nothing was seen that could prove it")
    return Receipt(not any(line.startswith(NOT) for line in lines), lines)


def issue(names: Iterable[str], evidence: Evidence) -> dict[str, Issued]:
    """Return the receipt of each of these rungs."""
    modules = {name: importlib.import_module(f"ladder.rungs.{name}") for name in names}
    return {name: module.receipt(evidence).to_dict() for name, module in modules.items()}


def reason(receipts: Mapping[str, Issued]) -> str | None:
    """Return why a recipe is not engaged, in one line that names the rung; None if all its rungs are."""
    for name, receipt in receipts.items():
        if not receipt["engaged"]:
            return f"{name}: {(Receipt(**receipt).reason or NOT).removeprefix(NOT)}"
    return None


# Questions of the rungs to the evidence

STYLEGAN2 = {
    "own": True,
    "trained": ["G", "D"],
    "phases": ["G_main", "G_pl", "D_main", "D_r1"],
    "always": ["G_main", "D_main"],
    "once": ["G_main", "D_main"],
    "twice": ["G_pl", "D_r1"],
    "averages": ["G"],
    "adam": True,
    "bytes": True,
}


def pair_of(seen: Evidence) -> Mapping[str, Any]:
    """Return what is trained (`ladder.receipts.evidence.describe_pair`); StyleGAN2 unless the evidence says more."""
    return seen.get("pair", STYLEGAN2)


def share(amounts: Mapping[str, float], *keys: str, of: Iterable[str] | None = None) -> float:
    """Return the part of ``amounts`` that these keys hold, among the keys ``of`` (default: all); 0 of nothing."""
    total = sum(amounts.get(key, 0) for key in (amounts if of is None else of))
    return sum(amounts.get(key, 0) for key in keys) / total if total else 0.0


def total(stages: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the amounts of all stages added up."""
    keys = {key for stage in stages.values() for key in stage}
    return {key: sum(stage.get(key, 0) for stage in stages.values()) for key in keys}


# How a kernel's name begins -> the public ops that launch it. `kernels.alternatives` may replace these by plain
# PyTorch.
OPS_OF = {
    "act_filter": ("act_filter",),
    "bias_act": ("bias_act", "scale_act"),
    "bias_act_modulate": ("bias_act_modulate",),
    "bias_act_residual": ("bias_act_residual",),
    "bias_act_skip": ("bias_act_skip",),
    "demodulate": ("demodulate",),
    "demodulate_group": ("demodulate_group", "demodulate_group_fork"),
    "dense": ("dense", "dense_group"),
    "filter_act": ("filter_act",),
    "instance_norm_act": ("instance_norm_act",),
    "minibatch_std": ("minibatch_std",),
    "modulate": ("modulate", "scale_channels"),
    "norm_act": ("group_norm_act", "batch_norm_act"),
    "rgb": ("to_rgb", "from_rgb"),
    "spectral": ("spectral_norm", "power_iteration"),
    "upfirdn2d": ("upfirdn2d", "fork_upfirdn2d"),
    "weight_energies": ("weight_energies",),
    "weight_norm": ("weight_norm",),
}


def taken(seen: Evidence, *ops: str) -> str:
    """Return " (plain PyTorch taken 3x)" if the table of alternatives took plain PyTorch for these ops, else ""."""
    count = sum(seen.get("alternatives", {}).get(op, 0) for op in ops)
    return f" (plain PyTorch taken {count}x)" if count else ""


def launched(seen: Evidence, *names: str) -> list[tuple[bool, str]]:
    """Return a check for each of these kernels: it was launched, or the table of alternatives took plain PyTorch."""
    checks = []
    for name in names:
        count = seen["kernels"].get(name, {}).get("calls", 0)
        begin = max((start for start in OPS_OF if name.startswith(start)), key=len, default="")
        instead = taken(seen, *OPS_OF.get(begin, ()))
        checks.append((count > 0 or bool(instead), f"{name} launched {count}x{instead}"))
    return checks


def gone(seen: Evidence, what: str, op: str, layers: Iterable[str] | None = None) -> tuple[bool, str]:
    """Return a check that the plain operations our kernels replace no longer run (in ``layers``)."""
    left = {k: n for k, n in seen["plain"].get(op, {}).items() if n and (layers is None or k in layers)}
    where = ", ".join(f"{layer} {count}x" for layer, count in sorted(left.items()))
    # In a forward pass the watch knows an alternative's operators. In a backward pass a product is a product.
    instead = taken(seen, "dense", "dense_group") if op == "dense" else ""
    return not left or bool(instead), f"{what} in plain PyTorch: {where or 'none left'}{instead}"


# Receipts and checks that several rungs share


def judge_accumulation(seen: Evidence, parts: int) -> Receipt:
    """Check that every phase of D has so many parts of one size. With joint batches D_main has parts of both kinds.

    Of another pair than StyleGAN2, networks pass so many times as many batches, of whole numbers of parts.
    """
    if not (pair := pair_of(seen))["own"]:
        cut = {phase: count for phase, count in pair["parts"].items() if count != parts}
        line = ", ".join(f"{phase} {count}" for phase, count in pair["parts"].items())
        runs = [len(batches) for batches in seen["passes"].values()]
        return judge((not cut and all(n % parts == 0 for n in runs), f"parts of the batch by phase: {line}"))
    batches = seen["passes"].get("Discriminator", [])
    one = min(batches, default=0)
    joint = [2 * one] if seen["recipe"]["joint_batch"] else [one, one]
    line = f"batches D is given: {', '.join(map(str, batches)) or 'none'}"
    return judge((one > 0 and sorted(batches) == sorted([one, one, *joint] * parts), line))


def list_compiled_phases(seen: Evidence) -> list[str]:
    """Return the main phases that ran as compiled graphs. In a captured step these are the captured ones."""
    return [phase for phase in pair_of(seen)["once"] if seen["compile"].get("runs", {}).get(phase)]


def judge_compilation(seen: Evidence, *modes: str) -> Receipt:
    """Return the receipt: both main phases ran as one compiled graph each, in one of ``modes``.

    Nothing may have been compiled after warm-up.
    """
    compiled = seen["compile"]
    if not compiled:
        return judge((False, "nothing was given to torch.compile"))
    if compiled["failed"]:
        return judge((False, make_display(compiled["failed"])))
    ran = list_compiled_phases(seen)
    graphs = ", ".join(f"{phase} {count}" for phase, count in compiled["graphs"].items())
    kernels = compiled["kernels"]
    count = "not profiled" if kernels is None else f"{kernels:.0f} a step"
    return judge(
        (compiled["mode"] in modes, f"torch.compile in mode {compiled['mode']}"),
        (len(ran) == len(pair_of(seen)["once"]), f"phases that ran compiled: {', '.join(ran) or 'none'}"),
        (None, f"graphs compiled: {graphs or 'none'}"),
        (compiled["breaks"] == 0, f"graph breaks: {compiled['breaks']}"),
        *((None, make_display(f"first break: {reason}")) for reason in compiled["why_broken"]),
        (compiled["late"] == 0, f"graphs compiled after warm-up: {compiled['late']}"),
        (None if kernels is None else kernels > 0, f"kernels by the compiler: {count}"),
    )


def check_reduction(seen: Evidence) -> list[Check]:
    """Return checks that several ranks are there and every phase all-reduces its gradients."""
    reduced = seen["reduced"]
    phases = pair_of(seen)["phases"]
    megabytes = ", ".join(f"{phase} {reduced['bytes'].get(phase, 0) / 1e6:.3f}" for phase in phases)
    return [
        (reduced["ranks"] > 1, f"ranks: {reduced['ranks']}"),
        (all(reduced["bytes"].get(phase, 0) > 0 for phase in phases), f"MB all-reduced: {megabytes}"),
    ]


def check_communication(seen: Evidence, above: float = 0) -> Check:
    """Return a check of the communication in the trace: it comes in more than so many bursts a phase.

    A burst begins after other kernels: a reduction beside the backward pass has one for each bucket, on every host. How
    much of it is hidden depends on the host, as nothing runs beside it where the GPU waits for the CPU.
    """
    reduced = seen["reduced"]
    if reduced["comm_ms"] is None:
        return None, "communication: not profiled"
    took, exposed = reduced["comm_ms"], reduced["exposed_ms"]
    bursts = reduced["comm_bursts"] / seen["graphs"]["phases_per_step"]
    spent = f"{took:.3f} ms a step, {exposed:.3f} ms of it exposed"
    return took > 0 and bursts > above, f"communication: {spent}, bursts a phase: {bursts:.1f}"
