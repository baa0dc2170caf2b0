"""The process that runs one rung: `python -m ladder.engine.worker [--code DIR]`, started by `ladder.engine.pool`.

Protocol: JSON objects, one a line, on what were stdin and stdout (prints of the measured code go to stderr
instead and cannot corrupt it). Each command gets one reply; slow ones send `{"progress": ...}` lines before,
which feed the watchdog.

    {"do": "import", "torch": bool}                      -> {"ok": true, "start_s": s}
    {"do": "build", "workload": {}, "recipe": {}, "device": "cuda", "seed": 0, "threads": CPU threads until a visit}
                                                         -> {"ok": true, "recipe": {}, "settings": {}, "build_s": s,
        "gpu_uuid": which GPU it is on, to be compared and never stored}
    {"do": "prepare"}                                    -> {"ok": true, "prepare_s": s, "capture_s": s, "warmup_s": s}
        (the first two are timed here, and parts like the third the measured code's own words)
    {"do": "visit", "cycles": K, "settle_s": s, "settle_cycles": n, "main": bool}
                                                         -> {"ok": true, "samples_s": [], "event_s": [], "main_s": s,
        "lazy_s": {phase: s} or null (what a lazy phase adds to a step that has it; with "main"),
        "canary_s": seconds of a kernel that is the same in every process, ...}
    {"do": "parity"}                                     -> {"ok": true, "verdict": "ok" | "failed: parity", ...}
        (as `ladder.parity.check.check` returns it; needs "keep_gradients": true in "build")
    {"do": "receipts", "rungs": [] | null}               -> {"ok": true, "receipts": {rung: {}}, "evidence": {}}
    {"do": "choices"}                                    -> {"ok": true, "choices": [{}] | null}
        (rows of `kernels.choices` that decided in this process, null where the measured code does not say)
    {"do": "threads"}                                    -> {"ok": true, "cpu_threads": n or null without torch}
    {"do": "scales", "steps": N}                         -> {"ok": true, "changes": [], ...}
        (FP16: the loss scales of a training, as `ladder.engine.loss_scales.follow` returns them)
    {"do": "exit"}                                       -> {"ok": true}, and the process ends

A failure is a reply, not a crash: `{"ok": false, "status": "oom" | "failed" | "invalid" | "n/a" | "environment" (a
full disk, say: of the system, not of the rung), "reason": one line, "peak_reserved_bytes": n, ...}`; the process
is then discarded. All times are seconds for one step
(a 16-step cycle / 16) unless named otherwise. `--code DIR` takes `stylegan_lite` and `kernels` from DIR (asv
measures old commits) while everything that times comes from the package beside this file.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ladder.base.errors import describe, of_environment, one_line
from ladder.engine.timed_rung import Channel, Invalid, NoContract, Rung

ENVIRONMENT = "environment"  # the system could not give what the rung needs: no verdict on the rung
_OOM_SIGNS = ("out of memory", "can't allocate memory", "annot allocate memory", "ALLOC_FAILED")


def failure(error: BaseException, did: str, rung: Rung) -> dict[str, Any]:
    """The reply for an exception: its status, one line why, and the memory peaks."""
    try:
        memory = rung.memory()
    except Exception:  # a CUDA error makes every later call fail as well
        memory = {}
    if system := of_environment(error):
        status, reason = ENVIRONMENT, one_line(f"{system} ({did})")
    elif isinstance(error, Invalid):
        status, reason = "invalid", one_line(str(error))
    elif isinstance(error, NoContract):
        status, reason = "n/a", one_line(str(error))
    elif isinstance(error, MemoryError) or any(sign in str(error) for sign in _OOM_SIGNS):
        peak, name = memory.get("peak_reserved_bytes"), "reserved on the GPU"
        if peak is None:
            peak, name = memory.get("peak_rss_bytes"), "resident"
        at_peak = f", at most {peak / 2**30:.2f} GiB {name}" if peak is not None else ""
        status, reason = "oom", f"out of memory in {did}{at_peak}"
    else:
        status, reason = "failed", one_line(f"{did}: {describe(error)}")
    return {"ok": False, "did": did, "status": status, "reason": reason, **memory}


def main() -> None:
    channel = Channel()
    parser = argparse.ArgumentParser(prog="ladder.engine.worker")
    parser.add_argument("--code", type=Path, help="folder that stylegan_lite and kernels come from")
    rung = Rung(parser.parse_args().code, channel)
    while True:
        command = channel.receive()
        did = command.pop("do")
        try:
            reply = {"ok": True, "did": did, **getattr(rung, f"do_{did}")(**command)}
        except Exception as error:
            reply = failure(error, did, rung)
            if reply["status"] == "failed":
                sys.excepthook(type(error), error, error.__traceback__)
        channel.send(reply)
        if did == "exit":
            os._exit(0)  # nothing left to save; interpreter teardown with CUDA and loaders takes seconds


if __name__ == "__main__":
    main()
