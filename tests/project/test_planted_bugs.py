"""The list of planted bugs stays anchored: the text of each is in its file once, and its tests exist."""

from tests.support import plant


def test_every_planted_bug_has_its_place_and_its_tests() -> None:
    assert plant.list_bad_anchors(plant.ROOT, plant.read_bugs(plant.ROOT)) == []
