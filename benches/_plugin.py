"""The plugin of asv for this project: environments that install nothing, and a machine record that knows the GPU.

asv loads this module by asv.conf.json and calls `setup`. It also imports it while it discovers benchmarks, when
the module must do nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fnmatch
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import asv.benchmarks
import asv.commands.check
import asv.commands.rm
import asv.commands.show
import asv.commands.update
import asv.console
import asv.environment
import asv.machine
import asv.repo
import asv.results
import asv.util

from benches import _git, _spawning
from benches._environment import WorkingTree
from benches._hardware import file_record, load_machine, note, save_machine
from benches._interpreter import stop
from benches.series import DEFAULT
from ladder.core import starting, stopping
from ladder.core.errors import one_line
from ladder.core.text import last_line
from ladder.publish.history import notes as asvnotes

WANTED = [DEFAULT]  # runs without --bench


def setup() -> None:
    """Install our replacements in asv. asv calls this hook once, in its own process."""
    starting.check_python()  # an asv from another environment may lack packages that the pages need
    _interruption()
    _commands()
    _git.setup()
    _environments()
    _selection()
    _machines()
    _notes()
    _spawning.setup()


def _interruption() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP end asv with one line, instead of a traceback or of half a site."""
    before, held = sys.excepthook, contextlib.ExitStack()

    def told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            return before(kind, error, trace)
        asv.console.log.flush()
        print("asv: interrupted", file=sys.stderr)
        raise SystemExit(128 + (error.args[0] if error.args else signal.SIGINT))

    sys.excepthook = told
    held.enter_context(stopping.stop_on_sigterm())
    atexit.register(held.close)  # until asv ends: `setup` returns at once


def _commands() -> None:
    """Let a command that cannot be followed end asv with one line and status 2. Status 1 is asv's for "slower"."""
    for command in asv.util.iter_subclasses(asv.commands.Command):
        if own := vars(command).get("run_from_conf_args"):
            command.run_from_conf_args = classmethod(_or_one_line(own.__func__))
    show = asv.commands.show.Show.run.__func__

    def shown(cls: type, conf: Any, commit: str | None = None, **kwargs: Any) -> Any:
        if commit is not None:
            _refuse_without_result(conf, commit, kwargs.get("machine"))
        return show(cls, conf=conf, commit=commit, **kwargs)

    remove = asv.commands.rm.Rm.run.__func__

    def removed(cls: type, conf: Any, patterns: list[str], y: bool = True) -> Any:
        params = {name for result in asv.results.iter_results(conf.results_dir) for name in result.params}
        known = sorted(params | {"benchmark", "commit_hash"})
        for pattern in patterns:
            if "=" in pattern and pattern.partition("=")[0] not in known:
                stop(f"{pattern!a}: no result has such a name; there are {', '.join(known)}")
        return remove(cls, conf, patterns, y)

    asv.commands.show.Show.run, asv.commands.rm.Rm.run = classmethod(shown), classmethod(removed)
    # Two faults of `asv rm`: a result without the named value ends it, and so does `python=`.
    asv.commands.rm.fnmatchcase = lambda value, glob: value is not None and fnmatch.fnmatchcase(value, glob)
    asv.results.Results.env = property(lambda result: SimpleNamespace(python=result.params["python"]))


def _or_one_line(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command so that its errors end asv with one line."""

    @functools.wraps(run)
    def told(cls: type, *args: Any, **kwargs: Any) -> Any:
        said: list[str] = []
        try:
            with _errors_in(said):
                status = run(cls, *args, **kwargs)
            asv.console.log.flush()
            sys.stdout.flush()
            if said and status == 1 and status is not True:  # True is "slower" of `asv continuous`
                stop(one_line(said[-1]))
            return None if isinstance(status, list) else status  # environments of `asv setup`
        except OSError as error:
            if error.errno == errno.EPIPE:  # `| head`
                raise SystemExit(1) from None
            where = starting.shorten_path(error.filename) if error.filename else "standard output"
            stop(f"{where}: {error.strerror or error}")
        except OverflowError as error:  # of a port
            stop(one_line(str(error)))
        except asv.util.UserError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # asv makes this of a measurement's end
                raise error.__context__ from None
            if cls is asv.commands.check.Check:  # findings, which are listed above
                raise
            stop(one_line(str(error) or "it cannot go on; the lines above say why"))
        except asv.repo.NoSuchNameError as error:
            stop(f"unknown commit {str(error)!a}")
        except asv.util.ProcessError as error:
            stop(last_line(error.stderr, str(error)))
        except EOFError:
            print()  # ends the question
            stop("there is no terminal to answer a question: see the command's --help for an option")

    return told


@contextlib.contextmanager
def _errors_in(said: list[str]) -> Iterator[None]:
    """Append to `said` what asv's commands call an error before they return."""
    error = asv.console.log.error

    def heard(line: str) -> None:
        said.append(line)
        error(line)

    asv.console.log.error = heard
    try:
        yield
    finally:
        del asv.console.log.error


def _refuse_without_result(conf: Any, commit: str, machine: str | None) -> None:
    """Stop in one line if no result, or none of this machine, is of the commit. asv would show nothing, status 0."""
    name = commit
    with contextlib.suppress(asv.repo.NoSuchNameError):
        name = asv.repo.get_repo(conf).get_hash_from_name(commit)
    folder = os.path.join(conf.results_dir, machine or "")
    held = {file.partition("-")[0] for _, file, _ in asv.results.iter_results_paths(folder)}
    if held and not any(name.startswith(each) or each.startswith(name) for each in held):
        where = f" on machine {machine}" if machine else ""
        stop(f"no result is of commit {commit!a}{where}; `asv show` without one names those that have any")


def _environments() -> None:
    by_python = asv.environment.get_environment_class
    by_name = asv.environment.get_environment_class_by_name

    def environment_class(conf: Any, python: str) -> type:
        return WorkingTree if python == "same" else by_python(conf, python)

    def environment_class_by_name(name: str) -> type:
        kinds = asv.util.iter_subclasses(asv.environment.Environment)
        known = sorted({kind.tool_name for kind in kinds} - {None})
        if name not in known:
            stop(f"{name!a} is no environment: there are {', '.join(known)}")
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
