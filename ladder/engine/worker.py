"""The process that runs one rung, forked by `ladder.engine.forkserver` for `ladder.engine.pool`.

Protocol: JSON objects, one a line, on the process's original stdin and stdout. Prints of the measured code go to
stderr instead and cannot corrupt it. Each command, `{"do": NAME, ...}`, gets one reply, `{"ok": true, ...}`. Slow
commands send `{"progress": ...}` lines before it, which feed the watchdog.

| do | fields | keys of the reply |
|---|---|---|
| import | torch: bool | start_s |
| join | rank, ranks, folder, device | gpu_uuid; the process is a rank of a group from then on |
| describe | model, settings, device, seed, repository | problem, fields, facts of a user's pair: `ladder.engine.pair` |
| identify | model, settings | problem, pair: the digest of a user's pair |
| build | workload, recipe, device, seed, and options: see `Rung.do_build` | recipe, settings, build_s, gpu_uuid |
| prepare | | prepare_s, capture_s, the memory so far, and parts that the measured code reports: warmup_s, ... |
| visit | cycles, settle_s, settle_cycles, main: bool | those of begin, cycle and finish, lead_in_cycles, settled |
| begin | | |
| cycle | | samples_s, event_s: of one cycle, after what idle loaders hold |
| finish | main: bool, lazy: bool | main_s, lazy_s, canary_s, and the memory |
| canary | | canary_s |
| profile | part: "load", "record" or "kinds", cycles | those of `profiling.digest_cycles` or `profiling.record_kinds` |
| prove | | problem, left_out: one line or null, see `ladder.parity.check` |
| release | leave: bool, the step, too | reserved_bytes that the allocator keeps, null on a CPU |
| parity | | those of `ladder.parity.check.check_step`; needs "keep_gradients": true in "build" |
| trace | | none; what "receipts" needs of a step that has the GPU for itself |
| receipts | rungs: list or null | receipts: {rung: {}}, evidence |
| examine | variant | receipts and inspection of an entry of a study, see `ladder.plan.variants` |
| choices | | choices: rows of `kernels.choices` that decided here, null if the measured code does not say |
| threads | | cpu_threads, null without torch |
| scales | steps | those of `ladder.engine.timed_rung.follow_scales` (FP16: the loss scales of a training) |
| host | cycles | host: those of `ladder.engine.host_time.measure_host` |
| exit | | none; the process ends |

threads: CPU threads until a visit.
variant: null, or [study, name] of an entry whose patch is applied to the step.
memory_limit: bytes that the process may allocate on its GPU, or null.
gpu_uuid: the GPU of the process, which is compared and never stored.
lazy_s: {phase: seconds that a lazy phase adds to a step that has it}, or null; with "main".
canary_s: seconds of a kernel that is the same in every process.

A failure is a reply, not a crash: `{"ok": false, "status": ..., "reason": one line, "peak_reserved_bytes": n, ...}`.
The status is "oom", "failed", "invalid", "n/a", or "environment" (a full disk, say: no fault of the rung). The process
is then discarded. All times are seconds for one step (a 16-step cycle / 16) unless named otherwise.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path

from ladder.core.errors import format_error, of_environment, one_line
from ladder.core.plain import Plain
from ladder.engine.channel import ENVIRONMENT, SPOKEN, Channel, Nobody
from ladder.engine.timed_rung import Invalid, NoContract, Rung

_OOM_SIGNS = ("out of memory", "can't allocate memory", "annot allocate memory", "ALLOC_FAILED")


def make_failure(error: BaseException, did: str, rung: Rung) -> Plain:
    """Return the reply for an exception: its status, one line why, and the memory peaks."""
    name = SPOKEN.get(did, did)
    try:
        memory = rung.memory()
    except Exception:  # a CUDA error makes every later call fail as well
        memory = {}
    if system := of_environment(error):
        status, reason = ENVIRONMENT, f"{system} ({name})"
    elif isinstance(error, Invalid | NoContract):
        status, reason = "invalid" if isinstance(error, Invalid) else "n/a", str(error)
    elif out_of_memory(error):
        status, reason, where = "oom", f"out of memory in {name}", "reserved on the GPU"
        if (peak := memory.get("peak_reserved_bytes")) is None:
            peak, where = memory.get("peak_rss_bytes"), "resident"
        if peak is not None:
            reason += f", at most {peak / 2**30:.2f} GiB {where}"
    else:
        status, reason = "failed", f"{name}: {format_error(error)}"
    return {"ok": False, "did": name, "status": status, "reason": one_line(reason), **memory}


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out.

    In a capture the end of the capture fails, too. Its error hides the first one, which is then its context.
    """
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OOM_SIGNS):
        return True
    hidden = error.__context__ if "capture" in str(error) else None
    return hidden is not None and out_of_memory(hidden)


def preload_code(code: Path | None, torch: bool) -> None:
    """Import the code that workers need, so that their forks have it. A fork imports again and tells a failure."""
    with contextlib.suppress(Exception):
        if torch:
            importlib.import_module("numpy")  # before torch, see `ladder.engine.forkserver`
    with contextlib.suppress(Exception):
        Rung(code, Nobody()).do_import(torch)


def run_worker(code: Path | None) -> None:
    """Answer commands until one says "exit"."""
    channel = Channel()
    rung = Rung(code, channel)
    while True:
        command = channel.receive()
        did = command.pop("do")
        try:
            reply = {"ok": True, "did": did, **getattr(rung, f"do_{did}")(**command)}
        except Exception as error:
            reply = make_failure(error, did, rung)
            if reply["status"] == "failed":
                sys.excepthook(type(error), error, error.__traceback__)
        channel.send(reply)
        if did == "exit":
            os._exit(0)  # nothing left to save; interpreter teardown with CUDA and loaders takes seconds
