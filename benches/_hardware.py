"""The machine as asv stores it: from its hardware, kept in this checkout, and the same whatever is updated on it.

The record under results/asv is the only one. It holds what makes two machines different: the GPU and its memory, the
CPU, cores, memory and family of operating system. What changes with updates, the driver and the kernel, is noted
beside each result (`ladder.asvnotes`) and splits no series.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from asv.console import log

from benches import ROOT
from benches._interpreter import ask, interpreter, stop
from ladder import asvnotes, environment, results
from ladder.errors import describe, one_line

RECORDS = ROOT / "results" / "asv"
DRIFT = 0.04  # of memory: what a kernel or driver keeps for itself changes with its version

_ASK = """
import json
from ladder import errors, machine
try:
    device = machine.choose_device()
    found = {"device": device, "capabilities": machine.capabilities(device), "facts": machine.facts(device)}
except errors.UserError as error:
    found = {"error": str(error)}
print("\\n" + json.dumps(found))
"""


@functools.cache
def machine_here(python: Path) -> dict[str, Any]:
    """{"device", "capabilities", "facts"} of `ladder.machine`, asked of the Python that measures, once for a run."""
    try:
        run = ask(python, _ASK, cwd=ROOT)
        found = json.loads(run.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = run.stderr.strip().splitlines()
        found = {"error": f"the Python that measures failed: {one_line(said[-1]) if said else 'no message'}"}
    except (OSError, subprocess.SubprocessError) as error:
        found = {"error": f"the Python that measures cannot be asked: {describe(error)}"}
    if "error" in found:
        stop(found["error"])
    return found


def facts() -> dict[str, Any]:
    return machine_here(interpreter())["facts"]


def machine_record(name: str | None = None, records: Path = RECORDS) -> dict[str, str]:
    """asv's machine record, strings only: no host name, nothing that a system update changes.

    A machine is the one that the checkout knows if hardware and memory agree, the latter within a few percent: it
    keeps that record to the letter. Another machine with the same GPU gets a name of its own.
    """
    known = facts()
    memory = known["gpu_memory_gb"]
    record = {
        "machine": name or known["name"],
        "os": known["os"].split()[0],
        "arch": known["os"].split()[-1],
        "cpu": known["cpu"],
        "num_cpu": str(known["cores"]),
        "ram": f"{known['ram_gb']:.0f} GB",
        "gpu": known["gpu"] or "none",
        "gpu_memory": "none" if memory is None else f"{memory:.0f} GB",
    }
    if name:
        return record
    stored = _stored(records)
    for other in sorted(stored.values(), key=lambda other: other["machine"] != record["machine"]):
        if _same(record, other):
            return {key: other[key] for key in record}
    if record["machine"] in stored:
        identity = json.dumps({**record, "machine": ""}, sort_keys=True)
        record["machine"] += f"-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"
    return record


def _stored(records: Path) -> dict[str, dict[str, Any]]:
    """Machine records of the checkout that can be used, by name."""
    found = {}
    for path in sorted(records.glob("*/machine.json")):
        try:
            data = results.parse(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and data.get("machine") == path.parent.name:
            found[path.parent.name] = data
    return found


def _same(record: dict[str, str], other: dict[str, Any]) -> bool:
    for key, value in record.items():
        theirs = other.get(key)
        if not isinstance(theirs, str):
            return False
        a, b = (re.fullmatch(r"(\d{1,9}) GB", text) for text in (value, theirs))
        if a and b:
            if abs(int(a[1]) - int(b[1])) > max(1, DRIFT * int(a[1])):
                return False
        elif key != "machine" and value != theirs:
            return False
    return True


def load_machine(
    cls: type,
    interactive: bool = False,
    force_interactive: bool = False,
    _path: str | None = None,
    machine_name: str | None = None,
    use_defaults: bool = False,
    **given: str,
) -> Any:
    """Stands in for `Machine.load`: asks nothing, reads and writes no file of the user's home."""
    if machine_name and results.slug(machine_name) != machine_name:
        stop(f"--machine {machine_name!a}: a name is of a-z, 0-9, '.', '_' and '-', it names a folder")
    self = cls()
    self.__dict__.update(machine_record(machine_name))
    if force_interactive or given:  # `asv machine`
        log.info("The machine is described from its hardware at every run; nothing is stored for it:")
        for key, value in self.__dict__.items():
            log.info(f"  {key}: {value}")
    return self


def note(result: Any, folder: str, choices: dict[str, list[str]] | None = None) -> None:
    """What asv's `Results`, just saved under `folder`, has no place for. Nothing if nothing was measured for it."""
    measured = list(result.errcode)  # of this run alone: it is not saved
    if not measured:
        return
    asvnotes.add(
        Path(folder) / result._filename,
        asvnotes.made(
            result.commit_hash,
            result.env_name,
            driver=facts()["driver"],
            kernel_release=platform.release(),
            benchmarks=measured,
            choices=choices,
            variables=environment.recorded(),
        ),
    )
