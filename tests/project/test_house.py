"""The code stays within its budget of size and shape."""

from tests.support import house


def test_no_figure_is_beyond_its_budget(capsys):
    assert house.main() == 0, capsys.readouterr().out
