"""The quoted lines of docs/claims.md: what a result says of each claim, made from its file alone."""

from __future__ import annotations

from ladder.base.text import escaped
from ladder.studies.claims import registry, report
from ladder.studies.claims.schema import Claims


def quote(name: str, result: Claims) -> str:
    """Return the quoted line of one claim: ours, the interval, the article's figure, the verdict and the reason.

    Returns an empty text where the result lacks the claim.
    """
    row = next((each for each in result.claims if each.name == name), None)
    if row is None:
        return ""
    _, _, article, ours, interval, verdict, why = report.cells(row, result)
    ours = f"**{ours}**" + (f" ({interval})" if interval else "")
    against = f" for the article's {article}" if registry.BY_NAME[name].figure else ""
    return f"> {ours}{against}, {verdict}: {escaped(why)}"


def is_quotable(result: Claims) -> bool:
    """Return whether a result may be quoted: whole, of committed code, neither quick nor a smoke test."""
    rules = result.protocol
    return not (rules.smoke or rules.quick or result.dirty or not result.complete)
