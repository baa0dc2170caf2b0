"""`ladder ablate` on a GPU: captured and eager subsets of a small ladder, in one process and in fresh ones."""

import json
from pathlib import Path

import pytest
import yaml

from ladder.engine import inspection
from ladder.publish.validation import validate
from tests.support.commands import call
from tests.support.small import LEAST

LADDER = {"rungs": ["baseline", "set_to_none", "cuda_graphs", "data_loading"]}


@pytest.mark.gpu
def test_a_ladder_is_taken_apart_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: {})
    files = {"least": LEAST, "three": LADDER}
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    workload, ladder = (str(tmp_path / f"{name}.yaml") for name in files)
    said = call("ablate", "-w", workload, "--ladder", ladder, "--device", "cuda", "--out", tmp_path / "out")
    assert said.exit_code == 0, said.output
    (path,) = (tmp_path / "out").glob("*.json")
    found = json.loads(path.read_text())
    assert found["complete"] and found["protocol"]["clock"] == "gpu" and len(found["subsets"]) == 8
    assert all(len(row["once"]["gpu_ms"]) == 2 for row in found["subsets"])
    assert not [note for note in found["protocol"]["notes"] if "numbers of kernels" in note]
    assert validate.check(found) is None
