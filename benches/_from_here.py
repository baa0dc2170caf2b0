"""The loader of the plugin for `asv.virtualenv.conf.json`.

asv looks for plugins from the folder of that file, which is this folder, but `benches` is a package of the folder
above.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def setup() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    importlib.import_module("benches._plugin").setup()
