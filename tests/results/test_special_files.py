"""Pipes among result files: readers pass them by and never open one, since its writer may never come."""

import os
import threading

import pytest

from ladder.core import yamlfile
from ladder.core.errors import UserError
from ladder.publish.history import notes
from ladder.results import loading, ranking
from ladder.studies import frame, noise
from ladder.studies.roofline import study


def reject(read):
    with pytest.raises(UserError, match="not a regular file"):
        read()
    return True


# A reader: the name of a pipe that its pattern matches, and what it makes of the folder.
READERS = {
    "report, list, merge": ("m/r.json", lambda at, pipe: ranking.stored(at, ["m"]) == []),
    "strangers' files": ("m/r.json", lambda at, pipe: reject(lambda: frame.read_file(noise.STUDY, pipe))),
    "notes of asv": ("notes/r.json", lambda at, pipe: notes.read_note(at / "r.json") is None),
    "roofline": ("roofline/m-a.json", lambda at, pipe: study.load_rates("m", at / "roofline").known == {}),
    "recipe": ("r.yaml", lambda at, pipe: reject(lambda: yamlfile.read_yaml(pipe))),
    "a file by name": ("r.json", lambda at, pipe: reject(lambda: loading.load_run(pipe))),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_among_results_is_passed_by(reader, tmp_path):
    name, read = READERS[reader]
    pipe = tmp_path / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    keeper = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(keeper, b"{}")
    release = threading.Timer(60, os.close, [keeper])  # with the fault: a line, not a hang
    release.start()
    assert read(tmp_path, pipe)
    release.cancel()
    assert os.read(keeper, 9) == b"{}"  # nobody took it
    os.close(keeper)
