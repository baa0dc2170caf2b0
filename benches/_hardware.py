"""asv's record of the machine (`ladder.publish.history.machines`), with the hardware that the measuring Python sees.

The record under results/asv is the only one. Driver, cuDNN and kernel change with updates, so they are noted
beside each result (`ladder.publish.history.notes`). They split no series.
"""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import asv.machine
import asv.util
from asv.console import log

from benches import ROOT
from benches._git import refuse_unknown_commit
from benches._interpreter import ask, interpreter, stop
from ladder.core import files
from ladder.core.errors import UserError, format_error
from ladder.core.text import last_line
from ladder.machine import environment
from ladder.publish.history import machines as asvmachines
from ladder.publish.history import notes as asvnotes

RECORDS = ROOT / "results" / "asv"

_ASK = """
import json
from ladder.core import errors; from ladder.machine import system as machine
try:
    device = machine.choose_device()
    able, facts = machine.list_capabilities(device), machine.describe_machine(device)
    found = {"device": device, "capabilities": able, "facts": facts}
except errors.UserError as error:
    found = {"error": str(error)}
print("\\n" + json.dumps(found))
"""


@functools.cache
def machine_here(python: Path) -> dict[str, Any]:
    """Return {"device", "capabilities", "facts"} of `ladder.machine.system` from the measuring Python.

    The answer is cached for the run. Stops asv in one line if there is no answer.
    """
    try:
        run = ask(python, _ASK, cwd=ROOT)
        found = json.loads(run.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        found = {"error": f"the Python that measures failed: {last_line(run.stderr)}"}
    except (OSError, subprocess.SubprocessError) as error:
        found = {"error": f"the Python that measures cannot be asked: {format_error(error)}"}
    if "error" in found:
        stop(found["error"])
    return found


def facts() -> dict[str, Any]:
    return machine_here(interpreter())["facts"]


def load_machine(
    cls: type,
    interactive: bool = False,
    force_interactive: bool = False,
    _path: str | None = None,
    machine_name: str | None = None,
    use_defaults: bool = False,
    **given: str,
) -> Any:
    """Stand in for `Machine.load`: ask nothing, and neither read nor write a file in the user's home."""
    self = cls()
    self.__dict__.update(asvmachines.identify(facts(), RECORDS))
    if force_interactive or given:  # called by `asv machine`
        log.info("The machine is described from its hardware at every run; nothing is stored for it:")
        for key, value in self.__dict__.items():
            log.info(f"  {key}: {value}")
    elif machine_name:
        self.machine = machine_name
    _asked[self.machine] = machine_name
    return self


_asked: dict[str, str | None] = {}  # name of a loaded machine -> the value of --machine
_records: dict[str, dict[str, Any]] = {}  # name of a machine -> its record, until it is written


def save_machine(self: Any, results_dir: str) -> None:
    """Stand in for `Machine.save`, which asv calls before it reads the range of commits.

    Nothing is written before the first result (`file_record`), because the range may be refused. If results could not
    be filed, asv stops in one line: no commit is known, the folder takes no file, or the name is another machine's.
    """
    refuse_unknown_commit()
    try:
        record = asvmachines.choose(facts(), Path(results_dir), _asked.get(self.machine))
        files.refuse_unwritable(Path(results_dir) / record["machine"])
    except UserError as error:
        stop(str(error))
    self.__dict__.update(record)
    _records[record["machine"]] = record


def file_record(result: Any, folder: str) -> None:
    """Write the machine's record under `folder` before the first of its asv `Results` is saved there."""
    name = Path(result._filename).parent.name
    if record := _records.pop(name, None):
        path = Path(folder) / name / "machine.json"
        asv.util.write_json(str(path), record, asv.machine.Machine.api_version)


def note(result: Any, folder: str, choices: dict[str, list[str]] | None = None) -> None:
    """Write our note beside asv's `Results`, just saved under `folder`, if anything was measured for it."""
    measured = list(result.errcode)  # benchmarks of this run only; errcode is not saved
    if not measured:
        return
    asvnotes.add_note(
        Path(folder) / result._filename,
        asvnotes.create_note(
            result.commit_hash,
            result.env_name,
            {
                "driver": facts()["driver"],
                "cudnn": facts()["cudnn"],
                "kernel_release": platform.release(),
            },
            benchmarks=measured,
            choices=choices,
            variables=environment.read_variables(),
        ),
    )
