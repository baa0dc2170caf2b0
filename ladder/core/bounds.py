"""A comparison of the installed packages with the oldest versions that ``pyproject.toml`` declares.

``python -m ladder.core.bounds`` prints these versions as requirements for pip.
"""

from __future__ import annotations

import importlib.metadata
import re

from ladder.core.errors import UserError
from ladder.core.paths import ROOT

PROJECT = ROOT / "pyproject.toml"
_DEPENDENCY = re.compile(r'^ +"([\w.-]+)[>=]=([\d.]+)(?:;[^"]*)?",$', re.MULTILINE)


def read_oldest_versions() -> dict[str, str]:
    """Return the oldest version of each dependency that the project declares to work with, by lower-case name."""
    listed = PROJECT.read_text(encoding="utf-8").split("\ndependencies = [", 1)[1].split("\n]", 1)[0]
    return {name.lower(): version for name, version in _DEPENDENCY.findall(listed)}


def find_version(package: str) -> str | None:
    """Return the version of an installed package, else None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_older(package: str) -> str | None:
    """Return one line if an installed package is older than declared, else None. Also None if it is not installed."""
    if (found := find_version(package)) is None:
        return None
    least = read_oldest_versions()[package.lower()]
    if _parse_version(found) >= _parse_version(least):
        return None
    helps = f"pip install '{package}>={least}'"
    return f"{package} {found} is older than {least}, which this project needs: {helps}"


def refuse_older(package: str) -> None:
    """Raise `UserError` if this package is older than declared."""
    if line := describe_older(package):
        raise UserError(line)


def _parse_version(version: str) -> tuple[int, ...]:
    numbers = [int(each) for each in re.findall(r"\d+", version.split("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in read_oldest_versions().items()), sep="\n")
