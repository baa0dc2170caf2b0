"""A stand-in for `stylegan_lite`, without torch, in which the tests of measuring plant faults through the recipe.

Pass `tests/support/fake_code` as `code`. The recipe's key "fault" says what goes wrong, "at" in which method. The key
"once" names a file: the fault then waits until the first call has made that file. Cycles are logged to the file that
"log" names.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time

CONTRACT = 1


def make_step(workload, recipe, *, device=None, seed=0):
    return Step(workload, recipe)


class Step:
    def __init__(self, workload, recipe):
        self.workload, self.recipe, self.data_capacity = workload, recipe, recipe.get("capacity", 0)
        self.cycles = 0
        self.fail("build")

    def fail(self, where):
        fault = self.recipe.get("fault") if self.recipe.get("at", "cycle") == where else None
        once = self.recipe.get("once")
        if fault and once:
            if not os.path.exists(once):
                open(once, "w").close()
                return
        if fault == "raise":
            raise RuntimeError("weight of /home/someone/model.py is wrong\nsecond line")
        if fault == "oom":
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit":
            sys.exit("no licence")
        if fault == "hang":
            child = subprocess.Popen(["sleep", "60"])
            with open(self.recipe["pids"], "w") as file:
                json.dump([os.getpid(), child.pid], file)
            time.sleep(60)
        if fault == "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if fault == "memory":
            bytearray(2**62)
        if fault == "half" and time.perf_counter.__name__ == "perf_counter":
            real, time.perf_counter = time.perf_counter, lambda: real() / 2
        if (
            fault == "clock" and time.perf_counter.__name__ == "perf_counter"
        ):  # the loader's drain replaces it
            time.perf_counter = itertools.cycle(map(float, self.recipe["ticks"].split())).__next__
        if fault == "garbage":
            for number in range(3, 20):
                with contextlib.suppress(OSError):
                    os.write(number, b"not JSON\n")
        if fault == "print":
            print("not the protocol", flush=True)
            os.write(1, b"{}\n")
            assert sys.stdin.read() == ""

    def prepare(self):
        self.fail("prepare")
        time.sleep(self.recipe.get("prepare", 0))
        return {"warmup_s": 0.0, "capture_s": 0.0} | self.recipe.get("says", {})

    def cycle(self, lazy=True):
        self.fail("cycle")
        self.cycles += 1
        # Sixteen steps of `tiny` in a millisecond would be refused on one core: none computes so fast.
        time.sleep(self.recipe.get("sleep", 0.003))
        if log := self.recipe.get("log"):
            with open(log, "a") as file:
                file.write(json.dumps([self.recipe.get("name"), lazy]) + "\n")

    def check_finite(self):
        return "D_r1: gradient of D.b4.conv.weight is NaN" if self.recipe.get("fault") == "nan" else None

    def settings(self):
        return {"seen": self.cycles}

    def close(self):
        self.fail("close")
