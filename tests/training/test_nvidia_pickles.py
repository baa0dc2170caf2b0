"""Network pickles that want to do something: nothing of them runs, each is one line, and no file is left."""

from __future__ import annotations

import io
import os
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ladder.core.errors import UserError
from ladder.training.nvidia import pickles
from ladder.training.nvidia.convert import convert_file
from tests.support import nvidia_networks as theirs
from tests.support.commands import refused, succeed

torch.set_num_threads(1)


class Call:
    """Pickled as a call of anything."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


def writes(path: Path) -> Call:
    return Call(os.system, f"touch {path}")


def storage_of(content: object) -> bytes:
    """The bytes of a storage in torch's old format, whose first pickle is something else."""
    return pickle.dumps(content)


def in_a_zip(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def load_from_bytes(content: bytes) -> Call:
    return Call(torch.storage._load_from_bytes, content)


def rebuilt(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Call:
    storage = torch.storage.TypedStorage(
        wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
    )
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, OrderedDict())


def hostile(mark: Path) -> dict[str, object]:
    """Contents of a pickle by name. Each would make the file `mark`, or take memory that is not its own."""
    made = theirs.networks()
    return {
        "os.system": writes(mark),
        "os.system inside a network": {**made, "G": writes(mark)},
        "os.system in the settings": {**made, "training_set_kwargs": writes(mark)},
        "eval": Call(eval, f"open({str(mark)!r}, 'w')"),
        "getattr": Call(getattr, {}, "pop"),
        "torch.load": Call(torch.load, str(mark)),
        "a storage that runs code": {**made, "G": load_from_bytes(storage_of(writes(mark)))},
        "a storage that runs code, zipped": {**made, "G": load_from_bytes(in_a_zip(writes(mark)))},
        "a storage that is no storage": {**made, "G": load_from_bytes(in_a_zip({"a": 1}))},
        "a tensor beyond its storage": {**made, "G": rebuilt((5,), (1,))},
        "a tensor behind its storage": {**made, "G": rebuilt((1,), (1,), offset=4)},
        "a tensor that repeats a storage": {**made, "G": rebuilt((2**40,), (0,))},
        "a tensor of negative size": {**made, "G": rebuilt((-1,), (1,))},
        "an object array": {**made, "G": np.array([{}], dtype=object)[:1]},
    }


NAMES = [*hostile(Path("x"))]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_hostile_pickle_runs(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    content = hostile(mark)[name]
    said = refused("convert", theirs.write(tmp_path / "bad.pkl", content), tmp_path / "out.pt")
    assert said.startswith("ladder: ") and "bad.pkl" in said
    assert [path.name for path in tmp_path.iterdir()] == ["bad.pkl"]


def test_source_code_in_a_pickle_is_dropped_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setattr(theirs.Module, "source", f"open({str(mark)!r}, 'w').write('run')")
    path = theirs.write(tmp_path / "a.pkl", theirs.networks())
    found = pickles.read_pickle(path)
    assert found["G"].class_name == "Generator" and not hasattr(found["G"], "module_src")
    assert b"write('run')" in path.read_bytes()
    succeed("convert", path, tmp_path / "out.pt")
    assert b"write('run')" not in (tmp_path / "out.pt").read_bytes() and not mark.exists()


def test_a_pickle_that_is_no_network_at_all(tmp_path: Path) -> None:
    for name, content in (
        ("text", b"hello"),
        ("empty", b""),
        ("cut", theirs.dumped(theirs.networks())[:5000]),
    ):
        (tmp_path / name).write_bytes(content)
        assert "no network pickle" in refused("convert", tmp_path / name, tmp_path / "out.pt")
    theirs.write(tmp_path / "number", 5)
    assert "no network pickle, no state dicts" in refused("convert", tmp_path / "number", tmp_path / "out.pt")


def test_a_checkpoint_with_code_is_refused(tmp_path: Path) -> None:
    torch.save({"G": writes(tmp_path / "mark")}, tmp_path / "bad.pt")
    said = refused("convert", tmp_path / "bad.pt", tmp_path / "out.pt")
    assert "refused, and nothing of it was run" in said and not (tmp_path / "mark").exists()


def _global(module: str, name: str) -> bytes:
    return b"c" + f"{module}\n{name}\n".encode()


def test_a_tensorflow_pickle_is_named(tmp_path: Path) -> None:
    (tmp_path / "tf.pkl").write_bytes(_global("dnnlib.tflib.network", "Network") + b".")
    assert "a TensorFlow pickle: NVIDIA's legacy.py" in refused(
        "convert", tmp_path / "tf.pkl", tmp_path / "out.pt"
    )


@pytest.mark.parametrize("target", [*pickles.NAMES], ids=[name for _, name in pickles.NAMES])
def test_no_class_of_the_table_can_be_changed(target: tuple[str, str], tmp_path: Path) -> None:
    """BUILD with a pair as state sets attributes, also of a class."""
    before = {k: dict(vars(v)) for k, v in pickles.NAMES.items()}
    key = b"\x8c\x08__call__" + _global("builtins", "set")
    state = b"N}" + key + b"s\x86"  # a pair: no state, and "__call__" for `set`
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04" + _global(*target) + state + b"b.")
    with pytest.raises(UserError, match=r"a\.pkl: (refused|damaged)"):
        pickles.read_pickle(tmp_path / "a.pkl")
    assert {k: dict(vars(v)) for k, v in pickles.NAMES.items()} == before


def test_a_persistent_reference_and_deep_nesting_are_refused(tmp_path: Path) -> None:
    for content in (b"Psomething\n.", b"(" * 200_000 + b"t" * 200_000 + b"."):
        (tmp_path / "a.pkl").write_bytes(content)
        assert "a.pkl" in refused("convert", tmp_path / "a.pkl", tmp_path / "out.pt")


def test_a_pickle_with_wrong_bytes_is_refused_in_one_line_or_converted(tmp_path: Path) -> None:
    """Bytes are changed, lost and added; 3,000 such files raised nothing else."""
    smallest = theirs.networks(channels={4: 2, 8: 2}, z=2, w=2, layers=1)
    whole, draw, refusals = theirs.dumped(smallest), random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 3, 20])):
            at = draw.randrange(len(damaged))
            damaged[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        (tmp_path / "a.pkl").write_bytes(damaged)
        try:
            convert_file(tmp_path / "a.pkl")
        except UserError as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > 30
