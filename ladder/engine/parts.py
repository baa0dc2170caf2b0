"""Parts of a training step timed alone, in the calling process: each phase, and data loading. For benches.

The calling process is fresh and has the code under test in front of its path; the clock is this module's. Times of
parts do not add up to a step: launched alone, a phase overlaps with nothing, and a loader competes with nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ladder.core.errors import raise_if_environment
from ladder.core.locks import device_lock
from ladder.core.plain import Plain
from ladder.core.protocol import PHASES
from ladder.engine import worker
from ladder.engine.channel import Nobody
from ladder.engine.pool import WorkerFailure
from ladder.engine.timed_rung import Invalid, Rung
from ladder.machine import system

WINDOW = 10  # runs of a phase that are timed together
SAMPLES = 6
_FEED = [
    "workload",
    "recipe",
    "real",
    "seed",
]  # of stylegan_lite.step.data.DataFeed; others must have defaults


def time_phases(
    workload: Plain,
    recipe: Plain,
    device: str,
    *,
    samples: int = SAMPLES,
    window: int = WINDOW,
    seed: int = 0,
) -> Plain:
    """Return the seconds of one run of each phase, on a batch that stands still.

    Returns samples_s (phase -> `samples` values, each the mean of `window` runs), recipe and choices. The recipe is
    without `whole_step_graph`, which launches phases together.

    Raises:
        WorkerFailure: as a worker's; "n/a" if the measured code cannot run a phase alone.
    """
    rung = Rung(None, Nobody())
    with device_lock(system.device_key(device)):
        try:
            with _convert_failures("import", rung):
                rung.do_import(torch=device == "cuda")
            with _convert_failures("build", rung):
                built = rung.do_build(workload, recipe, device, seed)
            if not hasattr(rung.step, "run_phase"):
                raise WorkerFailure("n/a", "this commit cannot run a phase alone")
            with _convert_failures("prepare", rung):
                rung.do_prepare()
            with _convert_failures("phases", rung):
                took: dict[str, list[float]] = {phase: [] for phase in PHASES}
                for _ in range(samples):  # in turns, so that a drift of the clock favours no phase
                    for phase, seconds in took.items():
                        rung.step.run_phase(phase)
                        run = functools.partial(rung.step.run_phase, phase)
                        seconds.append(_time_calls(run, window, rung.synchronize) / window)
                if broken := rung.step.check_finite():
                    raise Invalid(broken)
            return {"samples_s": took, "recipe": built["recipe"], **rung.do_choices()}
        finally:
            rung.do_exit()


def time_loading(
    workload: Plain, recipe: Plain, device: str, *, epochs: int = SAMPLES, seed: int = 0
) -> Plain:
    """Return the seconds for one image, from its file to the batch on the device, with no other work.

    A sample is an epoch, so it contains all that begins anew with each (workers that do not persist). One epoch comes
    first, which drains the batches that idle workers have ready. The workload's "data" is a folder of images.

    Returns samples_s and recipe. Raises `WorkerFailure`, as `time_phases`.
    """
    rung = Rung(None, Nobody())
    rung.device = device
    with _convert_failures("import", rung):
        rung.do_import(torch=False)
    with device_lock(system.device_key(device)):
        with _convert_failures("build", rung):
            feed, known = _make_feed(workload, recipe, device, seed)
        try:
            with _convert_failures("loading", rung):
                feed.prepare()
                batch = workload["batch"]
                batches = len(feed.dataset) // batch

                def load_batch() -> None:
                    feed.next()
                    feed.prefetch()

                took = [_time_calls(load_batch, batches, rung.synchronize) for _ in range(1 + epochs)]
            return {"samples_s": [each / (batches * batch) for each in took[1:]], "recipe": known}
        finally:
            feed.close()


def _make_feed(workload: Plain, recipe: Plain, device: str, seed: int) -> tuple[Any, Plain]:
    """Return the measured code's data feed into a buffer of one batch, and the recipe as that code understands it."""
    import torch

    try:
        from stylegan_lite.config import Recipe, Workload

        # Of commits before the step had a folder of its own, the feed is a module beside it.
        folder = "stylegan_lite" + ".step" * hasattr(
            importlib.import_module("stylegan_lite.step"), "__path__"
        )
        DataFeed: Any = importlib.import_module(f"{folder}.data").DataFeed
    except ImportError as error:
        raise WorkerFailure("n/a", f"this commit has no data feed: {error}") from None
    parameters = inspect.signature(DataFeed).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty]
    if required != _FEED or not hasattr(DataFeed, "prefetch"):
        raise WorkerFailure("n/a", "this commit's data feed takes other arguments")
    what, how = Workload.from_dict(workload), Recipe.from_dict(recipe)
    how.refuse_on(device)
    side = what.resolution
    real = torch.zeros(what.batch, 3, side, side, device=device)
    return DataFeed(what, how, real, seed), how.to_dict()


def _time_calls(function: Callable[[], object], times: int, synchronize: Callable[[], None]) -> float:
    synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        function()
    synchronize()
    return time.perf_counter() - begin


@contextmanager
def _convert_failures(did: str, rung: Rung) -> Iterator[None]:
    """Turn an exception into the failure that a worker would have replied with."""
    try:
        yield
    except WorkerFailure:
        raise
    except Exception as error:
        raise_if_environment(error)
        reply = worker.make_failure(error, did, rung)
        if reply["status"] == "failed":
            sys.excepthook(type(error), error, error.__traceback__)
        raise WorkerFailure(reply["status"], reply["reason"], reply) from error
