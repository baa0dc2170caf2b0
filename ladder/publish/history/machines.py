"""The name under which asv files a machine's results: the record of its hardware, in results/asv/MACHINE/machine.json.

A record holds all that makes two machines different: the GPU and its memory, the CPU, cores, memory and family of
operating system. Results of two machines are never mixed under one name, and a name is settled before measuring. A name
of another machine's folder, or one that `ladder validate` would refuse, is refused in one line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.results import store as results

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
    record = describe(facts)
    stored = _stored(folder)
    for other in sorted(stored.values(), key=lambda other: other["machine"] != record["machine"]):
        if not _differences(record, other):
            return {key: other[key] for key in record}
    if record["machine"] in stored:
        identity = json.dumps({**record, "machine": ""}, sort_keys=True)
        record["machine"] += f"-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"
    return record


def choose(facts: Mapping[str, Any], folder: Path, name: str | None = None) -> Record:
    """Return the record to measure under; `name` is what `--machine` says, if it does.

    Raises:
        UserError: one line with the name that is right. The folder of that name is another machine's, or the name
            is not made from this machine's hardware.
    """
    own, stored, hardware = identify(facts, folder), _stored(folder), facts["name"]
    place = f"{folder.parent.name}/{folder.name}"
    right = f"this machine is {own['machine']}: leave out --machine"
    if own["machine"] not in (hardware, *stored):  # somebody else's has the plain name
        right = f"name this machine with --machine {own['machine']}"
        if name is None:
            differences = _said(own, stored[hardware])
            raise UserError(f"{place}/{hardware} is another machine ({differences}): {right}")
    if name in (None, own["machine"]):
        return own
    if name in stored:
        if differences := _said(own, stored[name]):
            raise UserError(f"--machine {name}: {place}/{name} is another machine ({differences}): {right}")
        return {key: stored[name][key] for key in own}
    if not re.fullmatch(rf"{re.escape(hardware)}(-[0-9a-f]{{6}})?", name):
        raise UserError(
            f"--machine {texts.plain(ascii(name))}: a machine is named after its hardware, {hardware}, perhaps with a"
            f" hyphen and six of 0-9 and a-f behind it; {right}"
        )
    return own | {"machine": name}


def _stored(folder: Path) -> dict[str, Record]:
    """Return the machine records in a folder of asv's results that can be used, by name: what is text in them."""
    records = {}
    for path in sorted(folder.glob("*/machine.json")):
        try:
            data = results.read(path)
        except UserError:
            continue
        if isinstance(data, dict) and data.get("machine") == path.parent.name:
            records[path.parent.name] = {key: each for key, each in data.items() if isinstance(each, str)}
    return records


def _differences(record: Record, other: Record) -> list[str]:
    """Return the keys, but for the name, in which another record is not of the same machine."""
    return [key for key, value in record.items() if key != "machine" and not _agree(value, other.get(key))]


def _agree(value: str, other: str | None) -> bool:
    if other is None:
        return False
    a, b = (re.fullmatch(r"(\d{1,9}) GB", text) for text in (value, other))
    if a and b:
        return abs(int(a[1]) - int(b[1])) <= max(1, DRIFT * int(a[1]))
    return value == other


def _said(record: Record, other: Record) -> str:
    """Return in which facts another record differs: "num_cpu 16, here 2"; empty if it does not."""
    return ", ".join(
        f"{key} {texts.plain(other.get(key))[:60]}, here {record[key]}"
        for key in _differences(record, other)[:3]
    )
