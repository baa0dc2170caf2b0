"""The options `--html` and `--price` of `ladder report`, and the page that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.starting import shorten_path
from ladder.core.text import clean_line

RESULTS = ROOT / "results"
REPORTS = RESULTS / "reports"
DEFAULT = ".html"  # stands for a file that is named after the result

html_option = click.option(
    "--html",
    "page",
    metavar="[FILE.html]",
    is_flag=False,
    flag_value=DEFAULT,
    help="Write one self-contained page of everything about one machine and workload. [default: in results/reports]",
)
price_option = click.option(
    "--price",
    metavar="PRICE/h",
    help="With --html: the price of an hour of this machine, in any currency: 2.5/h.",
)


def write_page(page: str, paths: Sequence[Path], price: str | None) -> None:
    """Write the page of these files and print its path.

    A value of --html that does not end in .html is the first of the files, as in `--html RESULT.json`.

    Raises:
        UserError: a file is no result, does not belong to the others, or the page cannot be written.
    """
    from ladder.publish.report import inputs as reports
    from ladder.publish.report.page import write_report
    from ladder.report import recommend, tables

    first = Path(page).expanduser()
    into = first if first.suffix.lower() in (".html", ".htm") else None
    files = [*paths] if into or page == DEFAULT else [first, *paths]
    if files and files[0].suffix != ".json" and not files[0].exists():
        raise UserError(
            f"--html {clean_line(page)}: the name of a page ends in .html, and no result has this name"
        )
    tables.refuse_outputs([into] if into else [], files)
    inputs = reports.find_inputs(files, RESULTS, None if price is None else recommend.price_of(price))
    into = into or REPORTS / f"{reports.name_page(inputs.main)}.html"
    write_report(inputs, into)
    click.echo(clean_line(inputs.whose))
    click.echo("\n".join([*inputs.shown.marks, f"page: {shorten_path(into)}"]))
