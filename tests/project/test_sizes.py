"""The size of every file of code: a reader sees a file of at most 400 lines as a whole."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 400
PLACES = ("kernels", "stylegan_lite", "ladder", "benches", "tests")


def too_long(root: Path) -> dict[str, int]:
    """Return the lines of each module and test under a root that has more than 400 of them, by path."""
    lines = {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for place in PLACES
        for path in (root / place).rglob("*.py")
    }
    return {path: count for path, count in lines.items() if count > MOST}


def test_no_file_of_code_has_more_than_400_lines() -> None:
    assert too_long(ROOT) == {}


def test_one_line_more_is_seen(tmp_path: Path) -> None:
    for place, count in (("ladder/base", MOST), ("tests/base", MOST + 1)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.py").write_text("x = 1\n" * count)
    assert too_long(tmp_path) == {"tests/base/a.py": MOST + 1}
