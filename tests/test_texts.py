"""Numbers in words."""

from ladder.texts import between


def test_an_interval_that_excludes_nothing_is_not_printed_in_digits():
    """Two rounds of an eager rung gave 0.000-1256803395.677x, over three columns of the chart."""
    assert between((1e-9, 1.2e9)) == "any" and between(None) == ""
    assert between((0.9981, 1.0032)) == "0.998-1.003x" and between((0.5, 4.9)) == "0.500-4.900x"
