"""The name under which asv files a machine's results: the record of its hardware, in results/asv/MACHINE/machine.json.

A record holds all that makes two machines different. Results of two machines are never mixed under one name, and a name
is settled before measuring: one of another machine's folder, or that `ladder validate` would refuse, is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.results import store

DRIFT = 0.04  # of memory: what a kernel or driver keeps for itself changes with its version
Record = dict[str, str]


def describe(facts: Mapping[str, Any]) -> Record:
    """Return the record of a machine by its `machine.facts`, named after its hardware.

    asv takes strings only. No host name is in it, and nothing that a system update changes.
    """
    memory = facts["gpu_memory_gb"]
    return {
        "machine": facts["name"],
        "os": facts["os"].split()[0],
        "arch": facts["os"].split()[-1],
        "cpu": facts["cpu"],
        "num_cpu": str(facts["cores"]),
        "ram": f"{facts['ram_gb']:.0f} GB",
        "gpu": facts["gpu"] or "none",
        "gpu_memory": "none" if memory is None else f"{memory:.0f} GB",
    }


def identify(facts: Mapping[str, Any], folder: Path) -> Record:
    """Return the record of this machine in asv's results folder, or a new one whose name is free there.

    A machine is known if hardware and memory agree, the latter within a few percent: it keeps that record to the
    letter. Another machine with the same GPU gets six digits behind the name, made from its hardware.
    """
    record, stored = describe(facts), _read_records(folder)
    for other in sorted(stored.values(), key=lambda other: other["machine"] != record["machine"]):
        if not describe_differences(record, other):
            return {key: other[key] for key in record}
    if record["machine"] in stored:
        identity = json.dumps({**record, "machine": ""}, sort_keys=True)
        record["machine"] += f"-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"
    return record


def choose(facts: Mapping[str, Any], folder: Path, name: str | None = None) -> Record:
    """Return the record to measure under; `name` is the value of `--machine`, if there is one.

    Raises:
        UserError: one line with the name that is right. The folder of that name is another machine's, or the name
            is not made from this machine's hardware.
    """
    own, stored, hardware = identify(facts, folder), _read_records(folder), facts["name"]
    place, right = (
        f"{folder.parent.name}/{folder.name}",
        f"this machine is {own['machine']}: leave out --machine",
    )
    if own["machine"] not in (hardware, *stored):  # somebody else's has the name without digits
        right = f"name this machine with --machine {own['machine']}"
        if name is None:
            differences = describe_differences(own, stored[hardware])
            raise UserError(f"{place}/{hardware} is another machine ({differences}): {right}")
    if name in (None, own["machine"]):
        return own
    if name in stored:
        if differences := describe_differences(own, stored[name]):
            raise UserError(f"--machine {name}: {place}/{name} is another machine ({differences}): {right}")
        return {key: stored[name][key] for key in own}
    if not re.fullmatch(rf"{re.escape(hardware)}(-[0-9a-f]{{6}})?", name):
        raise UserError(
            f"--machine {texts.clean_line(ascii(name))}: a machine is named after its hardware, {hardware}, perhaps"
            f" with a hyphen and six of 0-9 and a-f behind it; {right}"
        )
    return own | {"machine": name}


def _read_records(folder: Path) -> dict[str, Record]:
    """Return the machine records in a folder of asv's results that can be used, by name: what is text in them."""
    records = {}
    for path in sorted(folder.glob("*/machine.json")):
        with contextlib.suppress(UserError):
            data = store.read(path)
            if isinstance(data, dict) and data.get("machine") == path.parent.name:
                records[path.parent.name] = {key: each for key, each in data.items() if isinstance(each, str)}
    return records


def describe_differences(record: Record, other: Record) -> str:
    """Return in which facts another record differs, "num_cpu 16, here 2"; empty if it is of the same machine."""
    differences = []
    for key, value in record.items():
        here, there = (re.fullmatch(r"(\d{1,9}) GB", each) for each in (value, other.get(key, "")))
        same = value == other.get(key)
        if here and there:
            same = abs(int(here[1]) - int(there[1])) <= max(1, DRIFT * int(here[1]))
        if key != "machine" and not same:
            differences.append(f"{key} {texts.clean_line(other.get(key))[:60]}, here {value}")
    return ", ".join(differences[:3])
