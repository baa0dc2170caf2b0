"""A budget that several processes make at once is the budget that one of them makes alone."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ladder.base.files import one_at_a_time, unless_held
from ladder.base.plain import Fields
from ladder.parity import budget, reference
from ladder.parity.reference import Reference
from stylegan_lite.config import Workload
from tests.support.small import LEAST

WORKLOAD = Workload.from_dict(LEAST)
SPELLINGS = budget.spellings(WORKLOAD, "bf16", "cuda")
SCARCE = "CUDA out of memory"


class Made:
    """The spellings that were made, in place of a GPU's: which, by which thread, and how many at once."""

    def __init__(self) -> None:
        self.recipes: list[Fields] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self.before: Callable[[Fields], None] = lambda recipe: None

    def errors_of(self, ref: Reference, recipe: Fields, *_: object) -> list[dict[str, float]]:
        with self._lock:
            self.recipes.append(recipe)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            self.before(recipe)
        finally:
            with self._lock:
                self._now -= 1
        size = len(str(recipe)) / 300
        return [
            {"D_main/loss/loss": size, "D_main/gradient/a": 1 / size / 1e3},
            {"D_main/loss/loss": size / 7},
        ]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made()
    monkeypatch.setattr(budget, "_errors_of", found.errors_of)
    monkeypatch.setattr(reference, "resident", lambda tree, *_, **__: tree)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    return found


@pytest.fixture
def ref(tmp_path: Path) -> Reference:
    return Reference(WORKLOAD, "cuda", 4, [], {}, [], tmp_path / "entry")


def asked(ref: Reference, device: str = "cuda") -> budget.Spread:
    return budget.get_spread(ref, "bf16", device, lambda text: None)


def alone(ref: Reference, made: Made) -> dict[str, object]:
    """The content that one process makes without help."""
    runs, left_out = budget.run_spellings(ref, "bf16", "cuda", lambda text: None)
    made.recipes.clear()
    return {"spellings": list(runs), "left_out": left_out, "errors": budget.worst(runs)}


def pieces_of(ref: Reference) -> budget.Pieces:
    """The pieces of this reference's spread, whose file is removed."""
    found = asked(ref)
    (path,) = ref.folder.glob("*.json")
    path.unlink()
    return budget.Pieces(path, found["made_of"])


def assert_only_the_spread_is_there(ref: Reference) -> None:
    left = [path.name for path in ref.folder.rglob("*") if not path.name.startswith(".")]
    assert left == ["spread-bf16-some-gpu.json"]


def test_processes_that_ask_at_once_share_the_spellings(ref: Reference, made: Made) -> None:
    wanted, met, seen = alone(ref, made), threading.Barrier(budget.HELPERS, timeout=60), threading.local()

    def before(recipe: Fields) -> None:
        if not hasattr(seen, "first"):
            seen.first = recipe
            met.wait()  # nobody goes on before three are at work

    made.before, made.most = before, 0
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: asked(ref), range(6)))
    assert len(made.recipes) == len(SPELLINGS) and made.most == budget.HELPERS
    assert all(made.recipes.count(recipe) == SPELLINGS.count(recipe) for recipe in SPELLINGS)
    assert all(each == found[0] for each in found) and wanted.items() <= found[0].items()
    assert found[0]["spellings"][4] == "precision: bf16, run 5"
    assert_only_the_spread_is_there(ref)


@pytest.mark.parametrize("times", [1, 99])
def test_what_a_helper_cannot_make_is_left_to_the_process_that_writes(
    times: int, ref: Reference, made: Made
) -> None:
    """Beside others there may be no memory. A spelling that never runs is left out, with its reason."""

    def before(recipe: Fields) -> None:
        if recipe == SPELLINGS[2] and made.recipes.count(recipe) <= times:
            raise RuntimeError(SCARCE)

    wanted = alone(ref, made)
    made.before = before
    if times > 1:
        wanted = alone(ref, made)
        assert len(wanted["left_out"]) == 1 and SCARCE in wanted["left_out"][0]
    assert wanted.items() <= asked(ref).items()
    assert made.recipes == [*SPELLINGS[:3], *SPELLINGS[2:]]
    assert_only_the_spread_is_there(ref)


def test_pieces_of_a_run_that_was_killed_are_used_and_those_of_other_sources_are_not(
    ref: Reference, made: Made
) -> None:
    wanted, pieces = alone(ref, made), pieces_of(ref)
    pieces.folder.mkdir()
    pieces.put(1, made.errors_of(ref, SPELLINGS[1]))
    budget.Pieces(pieces.spread, {"by": ["other"]}).put(2, [{"D_main/loss/loss": 1e6}])
    made.recipes.clear()
    assert wanted.items() <= asked(ref).items()
    assert SPELLINGS[1] not in made.recipes and SPELLINGS[2] in made.recipes
    assert_only_the_spread_is_there(ref)


def test_a_budget_that_is_there_is_not_made_again(ref: Reference, made: Made) -> None:
    found = asked(ref)
    made.recipes.clear()
    assert asked(ref) == found
    (path,) = ref.folder.glob("*.json")
    # A process may get its slot just after the file was written.
    budget._help(ref, budget.Pieces(path, found["made_of"]), "cuda", lambda text: None, None)
    assert not made.recipes
    assert_only_the_spread_is_there(ref)


def test_cudnn_s_search_is_left_to_a_process_that_has_plans(ref: Reference, made: Made) -> None:
    pieces = pieces_of(ref)
    with contextlib.ExitStack() as others:
        for number in (0, 4):  # plain spellings, which other processes make
            assert others.enter_context(unless_held(pieces.path(number)))
        budget._help(ref, pieces, "cuda", lambda text: None, None)
    assert [number for number in range(7) if pieces.get(number)] == [1, 2, 3, 5]


def test_a_helper_waits_for_no_slot(ref: Reference, made: Made) -> None:
    pieces = pieces_of(ref)
    made.recipes.clear()
    with contextlib.ExitStack() as others:
        for slot in pieces.slots:
            others.enter_context(one_at_a_time(slot))
        budget._help(ref, pieces, "cuda", lambda text: None, None)
    assert not made.recipes


def test_on_a_cpu_nobody_helps(ref: Reference, made: Made) -> None:
    asked(ref, "cpu")
    names = sorted(path.name for path in ref.folder.rglob("*"))
    assert names == [".spread-bf16-cpu.json.lock", "spread-bf16-cpu.json"]
