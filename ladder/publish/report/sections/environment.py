"""The environment of the run: hardware, software, protocol, the GPU's state and the settings of PyTorch."""

from __future__ import annotations

import json

from ladder.base.records import plain
from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.results.run import Result
from ladder.results.types import Plain

PLACE = 90
UNITS = {"gpu_memory_gb": "GPU memory, GiB", "ram_gb": "RAM, GiB", "gpu": "GPU", "cpu": "CPU", "os": "system"}


def section(found: Found) -> Section | None:
    """Return everything that a result says of its circumstances."""
    main = found.main
    folds = [
        html.fold("Workload", _facts(main.workload, "Workload")),
        html.fold("Protocol", _facts(plain(main.protocol), "Protocol")),
    ]
    timed = [rung for rung in main.rungs if rung.status == "ok"]
    for rung in dict.fromkeys([each.name for each in (*timed[:1], *timed[-1:])]):
        folds += _of_rung(main, rung)
    if main.environment:
        folds.append(html.fold("Variables that were set", _facts(main.environment, "Variables")))
    return Section(
        "environment",
        "Environment",
        html.joined([_facts(_machine(main), "Machine and code"), *folds]),
        "Compare times only with results of the same machine and software.",
    )


def _machine(main: Result) -> Plain:
    facts = {UNITS.get(key, key): value for key, value in plain(main.machine).items()}
    code = main.measured_code or {}
    gpu = main.gpu or None
    return facts | {
        "started": main.started,
        "minutes": f"{main.seconds / 60:.1f}",
        "commit": f"{main.commit or 'unknown'}{' with changes' if main.dirty else ''}",
        "measured code": ", ".join(f"{name} {digest}" for name, digest in code.items()),
        "GPU during the run": f"{gpu.state}, {gpu.tenancy}" if gpu else "not watched",
        "visits rejected": gpu.rejected_visits if gpu else None,
    }


def _of_rung(main: Result, name: str) -> list[html.Markup]:
    rung = next(each for each in main.rungs if each.name == name)
    made = [
        (f"Recipe of {html.name(name)}", rung.recipe),
        (f"PyTorch's settings in {html.name(name)}", rung.settings),
    ]
    return [html.fold(title, _facts(fields, title), on_paper=False) for title, fields in made if fields]


def _facts(fields: Plain, label: str) -> html.Markup:
    rows = [["", ""], *([html.name(key), _told(value)] for key, value in fields.items() if value is not None)]
    return html.table(rows, label)


def _told(value: object) -> str:
    return html.plain_line(value if isinstance(value, str) else json.dumps(value))
