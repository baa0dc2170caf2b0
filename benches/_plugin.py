"""The plugin of asv for this project: environments that install nothing, and a machine record that knows the GPU.

asv loads this module by asv.conf.json and calls `setup`. It also imports it while it discovers benchmarks, when
the module must do nothing.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import asv.benchmarks
import asv.commands.update
import asv.console
import asv.environment
import asv.machine
import asv.results

from benches import _git, _spawning
from benches._environment import WorkingTree
from benches._hardware import file_record, load_machine, note, save_machine
from benches._interpreter import stop
from benches.series import DEFAULT
from ladder.base import starting
from ladder.publish.history import notes as asvnotes

WANTED = [DEFAULT]  # runs without --bench


def setup() -> None:
    """Install our replacements in asv. asv calls this hook once, in its own process."""
    starting.watch()  # an asv from another environment may lack packages that the pages need
    _interruption()
    _git.setup()
    _environments()
    _selection()
    _machines()
    _notes()
    _spawning.setup()


def _interruption() -> None:
    """Let Ctrl-C outside a measurement, as in `asv publish`, end asv with one line instead of a traceback."""
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            return before(kind, error, trace)
        asv.console.log.flush()
        print("asv: interrupted", file=sys.stderr)
        raise SystemExit(130)

    sys.excepthook = told


def _environments() -> None:
    by_python = asv.environment.get_environment_class
    by_name = asv.environment.get_environment_class_by_name

    def environment_class(conf: Any, python: str) -> type:
        return WorkingTree if python == "same" else by_python(conf, python)

    def environment_class_by_name(name: str) -> type:
        return WorkingTree if name == "existing" else by_name(name)

    asv.environment.get_environment_class = environment_class
    asv.environment.get_environment_class_by_name = environment_class_by_name


def _selection() -> None:
    start, discover = asv.benchmarks.Benchmarks.__init__, asv.benchmarks.Benchmarks.discover.__func__

    def __init__(self: Any, conf: Any, benchmarks: Any, regex: Any = None) -> None:
        for each in [regex] if isinstance(regex, str) else regex or []:
            try:
                re.compile(each)
            except re.error as error:
                stop(f"{each!a} is no regular expression: {error}; a name's brackets are written \\( and \\)")
        start(self, conf, benchmarks, regex=regex)

    def discover_wanted(cls: type, *args: Any, regex: Any = None, **kwargs: Any) -> Any:
        found = discover(cls, *args, regex=regex or WANTED, **kwargs)
        _spawning.selection.update(found.benchmark_selection)
        return found

    asv.benchmarks.Benchmarks.__init__ = __init__
    asv.benchmarks.Benchmarks.discover = classmethod(discover_wanted)


def _machines() -> None:
    asv.machine.Machine.load = classmethod(load_machine)
    asv.machine.Machine.save = save_machine
    # The record in the user's home belongs to other projects, and `asv update` would rewrite it.
    asv.machine.MachineCollection.update = classmethod(lambda cls, _path=None: None)


def _notes() -> None:
    save = asv.results.Results.save

    def save_with_note(self: Any, result_dir: str) -> None:
        file_record(self, result_dir)
        save(self, result_dir)
        note(self, result_dir, _spawning.choices(self.env_name))

    asv.results.Results.save = _or_stop(save_with_note)
    # asv takes every .json file below its results for a result, and warns of folders without a machine record.
    for module in (asv.results, asv.commands.update):
        module.os = SimpleNamespace(**{**vars(os), "walk": _walk_past_notes})


def _or_stop(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return `save` so that a full disk or an unwritable folder ends asv with one line."""

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:
        try:
            return save(*args, **kwargs)
        except OSError as error:
            stop(f"results/asv cannot be written: {error.strerror or error}")

    return saved


def _walk_past_notes(top: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
    for folder, names, files in os.walk(top, *args, **kwargs):
        names[:] = [name for name in names if name != asvnotes.FOLDER]
        yield folder, names, files
