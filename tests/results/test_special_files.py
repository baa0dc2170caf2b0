"""Pipes that lie among result files: whoever reads a folder passes them by, and never opens one.

An opened pipe waits for a writer for ever, or takes away what its writer meant for another reader.
"""

import os
import threading
from contextlib import contextmanager, suppress

import pytest

from ladder.base import yamlfile
from ladder.base.errors import UserError
from ladder.cli import expecting
from ladder.publish.history import machines, notes, screening
from ladder.publish.report import found
from ladder.report import tables
from ladder.results import loading, ranking, store
from ladder.results.combine import merging, series
from ladder.studies.claims import run as claims
from ladder.studies.claims import schema as claims_schema
from ladder.studies.roofline import rates


@contextmanager
def watched(pipe):
    """Make a pipe. Yield the list of its openings. Each reader gets an empty file, so that no mistake hangs a test."""
    os.mkfifo(pipe)
    opened, over = [], threading.Event()

    def write_nothing():
        while not over.wait(0.002):
            with suppress(OSError):  # nobody reads
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                opened.append(pipe.name)

    thread = threading.Thread(target=write_nothing)
    thread.start()
    try:
        yield opened
    finally:
        over.set()
        thread.join()


def refused(read):
    with pytest.raises(UserError):
        read()
    return True


# The name of a pipe that matches a reader's pattern, and what the reader makes of its folder.
READERS = {
    "report, compare": ("m/r.json", lambda at, pipe: refused(lambda: tables.collect([at]))),
    "report --html": ("m/r.json", lambda at, pipe: refused(lambda: found._best(at))),
    "recommend, list": ("m/r.json", lambda at, pipe: ranking.stored(at, ["m"]) == []),
    "ablate": ("m/r.json", lambda at, pipe: series.readable(at / "m") == []),
    "run": ("m/tiny-a-2.json", lambda at, pipe: expecting.visit_seconds(at / "m", "tiny") is None),
    "merge": ("m/r.json", lambda at, pipe: refused(lambda: merging.merge((pipe,), False))),
    "save": ("m/r.json", lambda at, pipe: not store.same_run(pipe, {})),
    "validate": ("m/r.json", lambda at, pipe: refused(lambda: _stranger(pipe))),
    "history": ("m/r.json", lambda at, pipe: screening._comparisons(at, []) == []),
    "notes of asv": ("notes/r.json", lambda at, pipe: list(notes.every(at)) == []),
    "machines of asv": ("m/machine.json", lambda at, pipe: machines._stored(at) == {}),
    "roofline": ("roofline/m-a.json", lambda at, pipe: rates.load("m", at / "roofline").known == {}),
    "roofline --gpu": ("roofline/a.json", lambda at, pipe: "m" not in rates.known_gpus(at / "roofline")),
    "tunings": ("kernels/a-tuning.json", lambda at, pipe: rates.load("m", at / "roofline").known == {}),
    "claims": ("m/r.json", lambda at, pipe: refused(lambda: claims_schema.load(pipe))),
    "kernels of a step": ("m/article-full-2.json", lambda at, pipe: claims.kernels_per_step("m", at) is None),
    "precision": ("m.json", lambda at, pipe: claims.precision_claims("m", at) == []),
    "recipe": ("r.yaml", lambda at, pipe: refused(lambda: yamlfile.read(pipe))),
}


def _stranger(pipe):
    try:
        loading.read_bytes(pipe)
    except ValueError as error:
        raise UserError(str(error)) from None


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_among_results_is_passed_by(reader, tmp_path):
    name, read = READERS[reader]
    pipe = tmp_path / name
    pipe.parent.mkdir(exist_ok=True)
    with watched(pipe) as opened:
        assert read(tmp_path, pipe)
    assert not opened


def test_a_file_of_results_that_is_a_pipe_is_one_line(tmp_path):
    with watched(tmp_path / "r.json"), pytest.raises(UserError) as caught:
        store.load(tmp_path / "r.json")
    assert str(caught.value) == f"{tmp_path / 'r.json'}: not a result file: not a regular file"
