"""The start of asv's benchmark processes: none for a series that is n/a or already measured.

asv starts an interpreter for each combination of parameters, 0.2 s on two cores before our code runs. Without a
GPU four of five combinations are n/a. Method `setup` of a benchmark class decides that from the machine alone, so
asv's own process calls it. The commit is asked once which series it refuses. If the class allows it,
asv's process also hands out numbers that an earlier process left (`_measure`). Each process gets its series' name,
for the note of its tuning choices, and the series after it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from benches import SamplesBenchmark
from benches._frozen import Series
from benches._measure import HANDOVER, NEXT, SERIES_NAME, NotKept, only_kept
from ladder.publish.history import notes

selection: dict[
    str, list[int] | None
] = {}  # set by _plugin: indices of the selected parameters, by benchmark

_handovers: dict[str, Path] = {}  # by name of environment: the folder that its processes share for one commit


def combination(name: str) -> tuple[str, type, tuple[str, ...]]:
    """Return benchmark, class and parameters of asv's name of one process: "rungs.Rung.samples_step_time-5"."""
    benchmark, _, index = name.partition("-")
    module, kind, _ = benchmark.split(".")
    cls = getattr(importlib.import_module(f"benches.{module}"), kind)
    return benchmark, cls, next(itertools.islice(itertools.product(*cls.params), int(index), None))


def not_applicable(name: str, handover: Path) -> bool:
    """Return whether the machine described in `handover` cannot run the benchmark.

    Other errors are left to the process itself.
    """
    try:
        _, cls, params = combination(name)
        with _set({HANDOVER: str(handover)}):
            cls().setup(*params)
    except NotImplementedError:
        return True
    except Exception:
        return False
    return False


def at_hand(name: str, handover: Path) -> str | None:
    """Return the number that an earlier process of this commit left, in the format of asv's processes, or None."""
    benchmark, cls, params = combination(name)
    if not getattr(cls, "one_visit", False) or not (handover / "machine.json").is_file():
        return None
    method, instance = benchmark.rpartition(".")[2], cls()
    with _set({HANDOVER: str(handover), SERIES_NAME: _series(benchmark, params)}), only_kept():
        try:
            instance.setup(*params)
            value = getattr(instance, method)(*params)
        except SkipNotImplemented:
            return "NaN"
        except NotKept:
            return None
    return json.dumps({"samples": value, "number": 1} if SamplesBenchmark.name_regex.match(method) else value)


def following(name: str) -> list[tuple[str, ...]]:
    """Return the parameters that asv asks of this benchmark after those of `name`."""
    benchmark, cls, _ = combination(name)
    place = int(name.partition("-")[2])
    every = list(itertools.product(*cls.params))
    return [every[other] for other in selection.get(benchmark) or [] if other > place]


def choices(environment: str) -> dict[str, list[str]] | None:
    """Return the lines of tuning choices by series that this environment's processes left, or None."""
    folder = _handovers.get(environment)
    return (notes.collect_choices(folder) if folder else {}) or None


def setup() -> None:
    """Replace asv's spawner with ours. The plugin calls this once, in asv's own process."""
    import asv.runner

    from benches._environment import handover

    class Spawner(asv.runner.Spawner):
        def __init__(self, env: Any, benchmark_dir: str) -> None:
            super().__init__(env, benchmark_dir)
            self.handover = _handovers[env.name] = handover(env)
            self.code, self.refused = getattr(env, "code", None), {}

        def refuses(self, cls: type, params: tuple[str, ...]) -> bool:
            """Return whether the commit refuses this series. The commit is asked once per class."""
            among = getattr(cls, "among", {})
            if self.code is None or (one := among.get(params[:2])) is None:
                return False
            if cls not in self.refused:
                self.refused[cls] = find_refused(Path(self.code), among.values())
            return one.fingerprint in self.refused[cls]

        def run(self, name: str, **kwargs: Any) -> tuple[str, int]:
            if (self.handover / "machine.json").is_file() and not_applicable(name, self.handover):
                Path(kwargs["result_file_name"]).write_text("NaN")
                return "", 0
            try:
                benchmark, cls, params = combination(name)
            except Exception:  # a benchmark that is not ours
                return super().run(name, **kwargs)
            if self.refuses(cls, params):
                Path(kwargs["result_file_name"]).write_text("NaN")
                return "", 0
            if kwargs["profile_path"] == "None" and (found := at_hand(name, self.handover)) is not None:
                Path(kwargs["result_file_name"]).write_text(found)
                return "", 0
            after = [other for other in following(name) if not self.refuses(cls, other)]
            told = {SERIES_NAME: _series(benchmark, params), NEXT: json.dumps(after)}
            with _set(told):
                return super().run(name, **kwargs)

    asv.runner.Spawner = Spawner


def _series(benchmark: str, params: tuple[str, ...]) -> str:
    return notes.name_series(benchmark, params)


@contextlib.contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- what a commit refuses: one from before a field of the recipe existed refuses the field ------------------------

ASK = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # for what the commit's code prints
sys.path.insert(0, sys.argv[1])
import stylegan_lite
if not os.path.realpath(stylegan_lite.__file__).startswith(os.path.realpath(sys.argv[1]) + os.sep):
    sys.exit("no package of its own")
found = {}
for name, (workload, recipe) in json.load(sys.stdin).items():
    try:
        stylegan_lite.Workload.from_dict(workload)
        stylegan_lite.Recipe.from_dict(recipe)
    except stylegan_lite.ConfigError as error:
        found[name] = str(error)
json.dump(found, answers)
answers.flush()
"""


def find_refused(code: Path, every: Iterable[Series]) -> dict[str, str]:
    """Return fingerprint -> the error line with which the checkout at `code` refuses that series.

    Returns {} if the checkout cannot be asked; then its answer to a worker counts.
    """
    asked = {each.fingerprint: [each.workload, each.recipe] for each in every}
    command = [sys.executable, "-I", "-c", ASK, str(code)]
    try:
        run = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=60)
        return json.loads(run.stdout) if run.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
