"""Start the watch in a process that `ladder watch` began; Python imports this file before the user's script.

A `sitecustomize` of the user's own environment, which this one hides, runs as ever.
"""

import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
import ladder_watch  # noqa: E402

sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _here]
_ours = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _ours)
ladder_watch.begin()
