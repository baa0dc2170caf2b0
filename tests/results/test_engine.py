"""The engine's number is raised by hand. This notices every change of its modules, so that it is not forgotten.

`python -m tests.results.test_engine` accepts the modules as they are.
"""

import json
import subprocess
import sys
from pathlib import Path

from ladder.core.files import digest_sources, write_file
from ladder.results import code_digest
from tests.cli.test_cli import FAKE

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = ROOT / "tests" / "data" / "engine.json"
CHANGED = """the engine has changed: {}
- If a time may differ by this, raise ENGINE in ladder/results/code_digest.py. Stored runs then lose --resume.
- If not, leave the number as it is.
In both cases run `python -m tests.results.test_engine`, and commit {}."""
TIME = """
import sys
from pathlib import Path
from ladder.engine import worker
rung = worker.Rung(Path(sys.argv[1]), type("Channel", (), {"send": lambda self, message: None})())
rung.do_import(False)
rung.do_build({}, {}, "cpu", 0)
rung.do_prepare()
rung.do_visit(1, 0, 0, True)
rung.do_choices()
rung.do_exit()
print(*[name for name in sys.modules if name.startswith("ladder.")])
"""


def describe_engine(modules):
    """Return the number, and the digest of each module by its tokens, None of one that is not there."""
    files = {name: ROOT / "ladder" / f"{name}.py" for name in modules}
    digests = {
        name: digest_sources(ROOT, [path], by_tokens=True)[: code_digest.DIGITS] if path.is_file() else None
        for name, path in files.items()
    }
    return {"engine": code_digest.ENGINE, "modules": digests}


def test_the_engine_is_the_one_that_its_number_stands_for():
    accepted = json.loads(ACCEPTED.read_text())
    today = describe_engine(accepted["modules"])
    changed = [name for name, value in today["modules"].items() if value != accepted["modules"][name]]
    assert today == accepted, CHANGED.format(", ".join(changed) or "its number", ACCEPTED.relative_to(ROOT))


def test_whatever_a_worker_has_loaded_when_it_has_timed_a_step_is_of_the_engine():
    """A fake step, since nothing that is measured imports the ladder (`test_project.py`)."""
    command = [sys.executable, "-c", TIME, str(FAKE)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    loaded = {name.removeprefix("ladder.").replace(".", "/") for name in output.split()}
    rooms = {name for name in loaded if (ROOT / "ladder" / name).is_dir()}
    assert {"engine/worker", "engine/timed_rung"} <= loaded
    assert loaded - rooms <= json.loads(ACCEPTED.read_text())["modules"].keys()


if __name__ == "__main__":
    engine = describe_engine(json.loads(ACCEPTED.read_text())["modules"])
    engine["modules"] = {name: value for name, value in engine["modules"].items() if value}
    write_file(ACCEPTED, json.dumps(engine, indent=1) + "\n")
