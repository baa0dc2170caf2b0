"""`ladder list`, and `ladder show`: what there is, without measuring anything."""

from __future__ import annotations

import inspect
import json

import click

from ladder import catalog, options


@click.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List rungs, ladders and workloads, a line each."""
    found = {
        "rungs": {name: catalog.load_rung(name).summary for name in _in_ladder_order(catalog.rungs())},
        "ladders": {name: catalog.describe(catalog.LADDERS, name) for name in catalog.ladders()},
        "workloads": {name: catalog.describe(catalog.WORKLOADS, name) for name in catalog.workloads()},
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for kind, entries in found.items():
        click.echo(click.style(kind, bold=True))
        width = max(map(len, entries))
        for name, text in entries.items():
            click.echo(f"  {name:<{width}}  {text}")


@click.command()
@click.argument("rung")
def show(rung: str) -> None:
    """Show what RUNG changes, why it should help, when it does not, and how to know that it is on."""
    found = catalog.load_rung(rung)
    click.echo(click.style(found.title, bold=True))
    click.echo(f"\n{found.text}\n\nReceipt. {inspect.getdoc(found.receipt)}\n")
    change = ", ".join(f"{key}: {json.dumps(value)}" for key, value in found.change.items())
    click.echo(f"Recipe: {change or 'the defaults'}")
    click.echo(f"Needs:  {', '.join(found.needs) or 'nothing beyond PyTorch'}")


def _in_ladder_order(names: list[str]) -> list[str]:
    order = [rung.name for rung in catalog.load_ladder("article").rungs]
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))
