"""The series that a commit refuses, according to its own `Recipe` and `Workload`, without a worker or torch.

Commits from before a field of the recipe existed refuse the field. A worker would find that out only after
importing everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benches._frozen import Series

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


def refused(code: Path, every: Iterable[Series]) -> dict[str, str]:
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
