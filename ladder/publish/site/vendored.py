"""The scripts that asv's pages need, stored here by version and hash, so that a site loads nothing from elsewhere.

`assets/manifest.json` gives each file's npm package and version, the package's hash and the file's hash. To update
a script, edit PACKAGES and `npm pack` each package into one folder. Then run `python -m
ladder.publish.site.vendored FOLDER`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError

ASSETS = Path(__file__).resolve().parent / "assets"
MANIFEST = ASSETS / "manifest.json"

# In the order in which a page must load them. jQuery and Bootstrap are newer than those that asv 0.6.6 names.
# The older jQuery runs scripts in the HTML it is given, and the older Bootstrap does not clean tooltips.
PACKAGES = (
    ("jquery", "3.7.1", "dist/jquery.min.js", "LICENSE.txt"),
    ("flot", "0.8.3", "jquery.flot.js", "LICENSE.txt"),
    ("flot", "0.8.3", "jquery.flot.time.js", "LICENSE.txt"),
    ("flot", "0.8.3", "jquery.flot.selection.js", "LICENSE.txt"),
    ("flot", "0.8.3", "jquery.flot.categories.js", "LICENSE.txt"),
    ("flot-orderbars", "1.0.0", "js/jquery.flot.orderBars.js", None),  # the licence is in the file
    ("stupid-table-plugin", "1.1.3", "stupidtable.min.js", "LICENSE"),
    ("bootstrap", "3.4.1", "dist/js/bootstrap.min.js", "LICENSE"),
    ("bootstrap", "3.4.1", "dist/css/bootstrap.min.css", "LICENSE"),
    (
        "bootstrap",
        "3.4.1",
        "dist/fonts/glyphicons-halflings-regular.woff2",
        "LICENSE",
    ),  # used by Bootstrap's style sheet
)


@dataclass(frozen=True)
class Asset:
    """One file of a package."""

    package: str
    version: str
    source: str  # path inside the package
    file: str  # name in `assets`
    sha256: str  # of the file, in base64 as browsers expect it
    license: str
    license_file: str | None
    package_integrity: str  # of the whole package, as npm states it


def load() -> list[Asset]:
    """Return the manifest's files in loading order.

    Raises:
        UserError: a file is missing or does not match the manifest.
    """
    assets = [Asset(**entry) for entry in json.loads(MANIFEST.read_text())]
    for asset in assets:
        path = ASSETS / asset.file
        if not path.is_file() or _sha256(path.read_bytes()) != asset.sha256:
            raise UserError(
                f"{path}: not the file that manifest.json describes; restore it from the repository"
            )
    return assets


def _sha256(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def take(folder: Path) -> None:
    """Copy the files of PACKAGES out of npm's archives in ``folder`` and write the manifest again."""
    entries = []
    for package, version, source, license_file in PACKAGES:
        archive = folder / f"{package}-{version}.tgz"
        if not archive.is_file():
            raise UserError(f"{archive}: missing; make it with `npm pack {package}@{version}`")
        with tarfile.open(archive) as packed:
            content = packed.extractfile(f"package/{source}").read()
            named = f"{package}-{version}-LICENSE.txt" if license_file else None
            if named:
                (ASSETS / named).write_bytes(packed.extractfile(f"package/{license_file}").read())
            said = json.load(packed.extractfile("package/package.json"))
        name = Path(source)
        file = f"{name.stem}-{version}{name.suffix}" if name.suffix in (".js", ".css") else name.name
        (ASSETS / file).write_bytes(content)
        whole = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        made = Asset(
            package,
            version,
            source,
            file,
            _sha256(content),
            said.get("license", "MIT"),
            named,
            f"sha512-{whole}",
        )
        entries.append(made.__dict__)
    MANIFEST.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    take(Path(sys.argv[1]))
