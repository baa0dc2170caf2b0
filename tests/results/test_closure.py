"""Which files a module is made of, found in a package that is written for it."""

from pathlib import Path

import pytest

from ladder.results import closure

SOURCES = {
    "__init__": "",
    "a": "import os\nimport ladder.b\nfrom elsewhere import ladder\n",
    "b": "def later():\n    from ladder import c as other, VALUE\n",
    "c": "from . import a\nfrom .below import d\n",
    "below/__init__": "from ladder.e import *\n",
    "below/d": "from ..f import name\n",
    "e": "",
    "f": "",
    "apart": "import ladder.a\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        path = tmp_path / "ladder" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_all_that_is_imported_counts_wherever_that_is_and_nothing_else(root: Path) -> None:
    def names(*modules: str) -> list[str]:
        found = closure.files(root, modules)
        return [path.relative_to(root / "ladder").with_suffix("").as_posix() for path in found]

    whole = ["__init__", "a", "b", "below/__init__", "below/d", "c", "e", "f"]
    assert names("ladder.a") == names("ladder.c", "ladder.b") == whole
    assert names("ladder.f") == ["__init__", "f"]
    assert names("ladder.below") == ["__init__", "below/__init__", "e"]
    assert names("ladder.nothing", "elsewhere") == []
