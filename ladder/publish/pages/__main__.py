"""Make the generated parts of the documents: `python -m ladder.publish.pages`, which `make docs` runs."""

from __future__ import annotations

import sys

from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.publish.pages import filling, generation, redrawing


def main(arguments: list[str]) -> int:
    """Fill every document, draw all pictures and pages beside results, and print the names of the changed files.

    Return the exit status: 0, or 2 with one line.
    """
    try:
        if arguments:
            raise UserError("this command takes no arguments: tables come from all committed results")
        for path in [
            *filling.fill_documents(ROOT),
            *generation.write_pictures(ROOT),
            *redrawing.redraw_pages(ROOT),
        ]:
            print(path.relative_to(ROOT))
    except UserError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
