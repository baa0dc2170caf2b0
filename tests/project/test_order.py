"""The order of the packages: a room imports only those before it, also inside functions, and in no circle."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Lowest first. Whoever adds a package enters it here.
ORDER = (
    "core",
    "machine",
    "images",
    "stats",
    "receipts",
    "watch",
    "rungs",
    "plan",
    "results",
    "results.combine",
    "parity",
    "engine",
    "show",
    "report",
    "training",
    "studies.base",
    "studies.frame",
    "studies.batch_search",
    "studies.upstream.source",
    "studies.kernelbench",
    "studies.penalty",
    "studies.precision",
    "publish.export",
    "studies.upstream",
    "studies.sustain",
    "studies.host",
    "studies.scale",
    "studies.roofline",
    "studies.profile",
    "studies.noise",
    "studies.ablate",
    "studies.map",
    "studies.quality",
    "studies.mistakes",
    "studies.bugs",
    "studies.levers",
    "studies.commits",
    "publish.validation",
    "publish.report",
    "publish.history",
    "publish.fleet",
    "publish.gallery",
    "publish.pages",
    "publish.site",
    "cli",
)
PACKAGES = ("kernels", "stylegan_lite", "ladder", "benches")  # the same for the top level
Edge = tuple[str, str, int]


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of the four packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def edges(root: Path) -> list[Edge]:
    """(importing module, imported module, line) of every import, wherever in a file it stands."""
    known = modules(root)
    found = []
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.append((name, full if full in known else node.module, node.lineno))
            elif isinstance(node, ast.Import):
                found += [(name, alias.name, node.lineno) for alias in node.names]
    return [each for each in found if each[1] in known and each[0] != each[1]]


def room_of(name: str) -> str | None:
    """The longest entry of `ORDER` that a module lies in, or None: the root, and the doors' own `__init__`."""
    inside = name.removeprefix("ladder.")
    rooms = [room for room in ORDER if f"{inside}.".startswith(f"{room}.")]
    return max(rooms, key=len) if rooms else None


def upward(found: list[Edge]) -> list[str]:
    """One line for each import that runs against the order."""
    lines = []
    for name, imported, line in found:
        tops = [PACKAGES.index(each.partition(".")[0]) for each in (name, imported)]
        if tops[0] < tops[1]:
            lines.append(f"{name}:{line} imports {imported}, a package above")
        if not (name.startswith("ladder.") and imported.startswith("ladder.")):
            continue
        here, there = room_of(name), room_of(imported)
        if here and there and ORDER.index(there) > ORDER.index(here):
            lines.append(f"{name}:{line} imports {imported}: {there} comes after {here}")
    return lines


def circles(found: list[Edge]) -> list[list[str]]:
    """Modules of `ladder` that import each other, directly or by way of others."""
    below: dict[str, set[str]] = {}
    for name, imported, _ in found:
        if name.startswith("ladder") and imported.startswith("ladder"):
            below.setdefault(name, set()).add(imported)
    reached: dict[str, set[str]] = {}
    for name in below:
        seen: set[str] = set()
        waiting = [*below[name]]
        while waiting:
            if (each := waiting.pop()) not in seen:
                seen.add(each)
                waiting += below.get(each, ())
        reached[name] = seen
    inside = {frozenset(o for o in seen if name in reached.get(o, ())) for name, seen in reached.items()}
    return [sorted(each) for each in inside if len(each) > 1]


def test_imports_run_down_the_order_of_packages() -> None:
    assert upward(edges(ROOT)) == []


def test_no_modules_import_each_other() -> None:
    assert circles(edges(ROOT)) == []


def test_every_package_has_its_place_in_the_order() -> None:
    names = [name for name in modules(ROOT) if name.startswith("ladder.")]
    doors = {
        "ladder.studies",
        "ladder.publish",
        "ladder.__main__",
        "ladder.ladders",
        "ladder.workloads",
    }
    assert [name for name in names if room_of(name) is None and name not in doors] == []
