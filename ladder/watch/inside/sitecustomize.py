"""Start the watch in a process that `ladder watch` began: Python imports this file before the user's script.

A `sitecustomize` of the user's own environment, which this one hides, is imported after it.
"""

import importlib
import os
import sys

_ours, _here = sys.modules.pop(__name__), os.path.dirname(os.path.abspath(__file__))
importlib.import_module("ladder_watch").begin()
sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _here]
try:
    importlib.import_module(__name__)
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
sys.modules.setdefault(__name__, _ours)
