"""Workers and asv's benchmarks load nothing that only reads, writes or shows results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = "('msgspec', 'rich', 'jinja2')"
WORKER = "import ladder.engine.worker, ladder.engine.timed_rung, ladder.engine.forkserver"
BENCHES = """
import importlib, pkgutil, benches
for each in pkgutil.walk_packages(benches.__path__, "benches."):
    importlib.import_module(each.name)
import ladder.engine.once, ladder.engine.parts
"""


@pytest.mark.parametrize("imports", [WORKER, BENCHES], ids=["worker", "benches"])
def test_no_heavy_library_is_imported(imports: str) -> None:
    code = f"{imports}\nimport sys\nsys.exit(str([name for name in {HEAVY} if name in sys.modules] or 0) if "
    code += f"any(name in sys.modules for name in {HEAVY}) else 0)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-500:]
