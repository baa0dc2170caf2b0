"""`python -m ladder.claims.page [RESULT.json]`: writes what a result says of each claim into docs/claims.md.

Behind every `<!-- claim: NAME -->` of the page stands one quoted line, ours and why, and behind `<!-- result -->` the
chart. They come from the file alone, so the page says nothing that no file holds; tests/studies/claims/test_claims.py
holds the two against each other. Without a file named, the newest of results/claims that may be quoted.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.results import store as results
from ladder.studies.claims import registry, report

PAGE, RESULTS = ROOT / "docs" / "claims.md", ROOT / "results" / "claims"
CLAIM = re.compile(r"^<!-- claim: (.+?) -->\n(?:>.*\n)?", re.MULTILINE)
RESULT = re.compile(r"^<!-- result -->\n(?:(?!\n).*\n)*", re.MULTILINE)


def filled(text: str, result: dict[str, Any], stem: str) -> str:
    """The page with this result's lines in it; `stem` is the name of its files."""
    rows = {row["name"]: row for row in result["claims"]}

    def line(found: re.Match[str]) -> str:
        claim, row = registry.BY_NAME[found[1]], rows.get(found[1])
        head = f"<!-- claim: {claim.name} -->\n"
        if row is None:
            return head
        _, _, article, ours, interval, verdict, why = report.cells(row, result)
        ours = f"**{ours}**" + (f" ({interval})" if interval else "")
        against = f" for the article's {article}" if claim.figure else ""
        return f"{head}> {ours}{against}, {verdict}: {report.escaped(why)}\n"

    machine = result["machine"]["gpu"] or result["machine"]["cpu"]
    chart = (
        f"<!-- result -->\n![The article's claims on one {machine}](../results/charts/{stem}-claims.png)\n"
        f"*One {machine}: [table, times and occupancy](../results/claims/{stem}.md),"
        f" [samples](../results/claims/{stem}.json). Quoted lines below are from that file.*\n"
    )
    return RESULT.sub(lambda _: chart, CLAIM.sub(line, text))


def quotable(path: Path) -> dict[str, Any] | None:
    """The result of a file, unless it says of itself that it must not be quoted."""
    data = results.parse(path.read_bytes())
    rules = data["protocol"]
    return None if rules["smoke"] or rules["quick"] or data["dirty"] or not data["complete"] else data


def newest(folder: Path = RESULTS) -> Path | None:
    found = [(data["started"], path) for path in folder.glob("*.json") if (data := quotable(path))]
    return max(found)[1] if found else None


def main(arguments: list[str]) -> int:
    try:
        path = Path(arguments[0]) if arguments else newest()
        if path is None:
            raise UserError("no result in results/claims may be quoted; `ladder kernels --claims` makes one")
        result = quotable(path)
        if result is None:
            raise UserError(
                f"{path}: smoke tests, quick or half runs and those of changed code are not to be quoted"
            )
        text = filled(PAGE.read_text(encoding="utf-8"), result, path.stem)
        with files.replacing(PAGE) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (UserError, OSError, ValueError, KeyError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
