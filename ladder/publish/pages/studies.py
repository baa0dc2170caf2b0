"""Tables of the other commands' results: kernels, precisions, opponents, floors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ladder.base.text import factor, ms
from ladder.core.records import read_record
from ladder.publish.pages.committed import Committed
from ladder.publish.pages.markdown import absent, link, table, text, under
from ladder.results.types import Plain
from ladder.show.table import render_markdown
from ladder.studies import frame, scale
from ladder.studies.kernelbench.record import NO_AIM, Row, describe_lack, list_reached
from ladder.studies.kernelbench.study import STUDY as KERNELS
from ladder.studies.precision import STUDY as PRECISION
from ladder.studies.roofline import study as rooflines
from ladder.studies.upstream.study import STUDY as UPSTREAM
from ladder.training.canary_file import Canary

LARGE = (128, 129, 256, 257)  # pixels a side; one more behind a transposed convolution
ENOUGH = 0.85  # of a cold copy
COMPARED = ("ours faster", "compile faster", "plain faster", "ambiguous", "less than", "no measurable gain")


def nvidias(committed: Committed, machine: str, workload: str) -> tuple[str, str, str] | None:
    """Return NVIDIA's step on a GPU: its name, ms a step, GPU ms; or None without a result."""
    for name in committed.names(f"upstream/{machine}-{workload}.json"):
        made = UPSTREAM.derive(frame.decode_file(UPSTREAM, committed.read(name)))
        return "NVIDIA's own", ms(made.find_program("upstream").step_ms), ms(made.derive_gpu_ms("upstream"))
    return None


def _linked(result: Plain, name: str, suffix: str = ".md") -> str:
    return link(f"`{result['workload']['name']}`", name.removesuffix(".json") + suffix)


def precision(committed: Committed, machine: str) -> str:
    """Return time, memory, parity and largest batch of each precision, and the ratios to FP32 and TF32."""
    name = f"precision/{machine}.json"
    file = frame.decode_file(PRECISION, committed.read(name))
    (shown,) = PRECISION.list_tables(file)
    rows = [[text(cell) for cell in cells] for cells in shown.format_cells()]
    generations = PRECISION.derive(file).protocol.rounds
    return (
        table([column.title for column in shown.columns], rows, 2)
        + under(f"generations: {generations}", link("page", name.replace(".json", ".md")))
        + "\n"
        + "".join(f"- {text(line)}\n" for line in shown.notes)
    )


def study(kind: str, number: int = 0) -> Callable[[Committed, str], str]:
    """Return the function that gives a table of a study's files, a row's file linked before its cells."""

    def fill(committed: Committed, machine: str) -> str:
        found = frame.load_studies()[kind]
        columns: list[str] = []
        rows: list[list[str]] = []
        for name in committed.names(f"{found.folder}/{machine}-*.json"):
            data = committed.read(name)
            for made in list(found.list_tables(frame.decode_file(found, data)))[number : number + 1]:
                columns = [column.title for column in made.columns]
                rows += [[_linked(data, name), *map(text, cells)] for cells in made.format_cells()]
        return table(["workload", *columns], rows, 2)

    return fill


def scaled(committed: Committed, machine: str) -> str:
    """Return the step of each way on each number of GPUs, one row for each point; runs that were merged, once."""
    read = {name: committed.read(name) for name in committed.names(f"scaled/{machine}-*.json")}
    held = {
        (data["workload"]["name"], run["started"]) for data in read.values() for run in data.get("merged", ())
    }
    rows, titles = [], []
    for name, result in read.items():
        if "merged" in result or (result["workload"]["name"], result["started"]) not in held:
            file = frame.decode_file(scale.STUDY, result)
            shown = scale.make_table(file, is_quoted=True)
            titles = [column.title for column in shown.columns]
            rows += [[_linked(result, name), *map(text, cells)] for cells in shown.format_cells()]
    return table(["workload", *titles], rows, 3)


def roofline(committed: Committed, machine: str) -> str:
    """Return the speed of light beside the traced step, one row for each result."""
    groups = ["convolutions above their floor, ms", "other kernels above their bytes, ms", "nothing runs, ms",
              "overlap of kernels, ms"]  # fmt: skip
    head = ["workload and rung", "speed of light, ms", "traced step, ms", "times the speed of light", *groups]
    rows = []
    for name in committed.names(f"roofline/{machine}-*.json"):
        data = committed.read(name)
        result = rooflines.STUDY.derive(frame.decode_file(rooflines.STUDY, data))
        if result.measured is None:
            continue
        step, light = result.measured.step_ms, result.step["light_ms"]
        parts = rooflines.divide_step(result.measured).values()
        above = [ms(each.ms - each.floor_ms) for each in parts]
        where = f"{data['workload']['name']} {result.rung}"
        rows.append(
            [
                link(f"`{where}`", name.replace(".json", ".md")),
                ms(light),
                ms(step),
                f"{step / light:.2f}",
                *above,
                *[""] * (len(groups) - len(above)),
            ]
        )
    return table(head, rows)


def share(row: Row) -> float:
    """Return the time of a cold copy of the same bytes, divided by ours."""
    return row.share["ours"].median


def large(rows: Sequence[Row]) -> list[Row]:
    """Return the memory-bound ones of the rows of `ladder kernels` with large maps."""
    return [
        row
        for row in rows
        if "ours" in row.share and len(row.shape) == 4 and row.shape[2] in LARGE
        if row.function not in NO_AIM
    ]


def kernels(committed: Committed, machine: str) -> str:
    """Return each op's share of a copy, and the comparisons that an alternative wins."""
    found = [name for name in committed.names(f"kernels/{machine}*.json") if _when(committed, name)]
    if not found:
        return absent("ladder kernels")
    name = max(found, key=lambda each: _when(committed, each))
    result = KERNELS.derive(frame.decode_file(KERNELS, committed.read(name)))
    head = ["op", "figures at 128x128 and 256x256", "share of a cold copy", "at least 85%", "comparisons, all sizes",
            "torch.compile faster", "by at most", "plain PyTorch faster", "by at most"]  # fmt: skip
    ops = {row.function for row in result.rows}
    groups = {op: [row for row in result.rows if row.function == op] for op in ops}
    rows = [[f"`{op}`", *_kernel_cells(group)] for op, group in sorted(groups.items())]
    rows.append(["all", *_kernel_cells(result.rows)])
    cases = len({row.case for row in list_reached(result)})
    about = f"{cases} cases", describe_lack(result), link("every shape", name.replace(".json", ".md"))
    return table(head, rows) + under(*about)


def _when(committed: Committed, name: str) -> str:
    result = committed.read(name)
    return result["started"] if result.get("kind") == "kernels" else ""


def _kernel_cells(rows: Sequence[Row]) -> list[str]:
    shares = [share(row) for row in large(rows)]
    between = f"{100 * min(shares):.0f}-{100 * max(shares):.0f}%" if shares else ""
    enough = str(sum(each >= ENOUGH for each in shares)) if shares else ""
    compared = sum(row.verdict in COMPARED for row in rows)
    cells = [str(len(shares)), between, enough, str(compared)]
    for other in ("compile", "plain"):
        won = [row.against[other].times_faster for row in rows if row.verdict == f"{other} faster"]
        cells += [str(len(won)), factor(1 / min(won)) if won else ""]
    return cells


def canary(committed: Committed, machine: str) -> str:
    """Return the distance of each rung's images to the data, and the band of the baseline's seeds."""
    (name,) = committed.names(f"canary/{machine}/*.json")[-1:] or [f"canary/{machine}/*.json"]
    file = read_record(Canary, committed.read(name))
    rows = [[text(rung.title), f"{rung.distance:.0f}", text(file.judge(rung))] for rung in file.rungs]
    low, high = file.band
    return table(["rung", "distance", "verdict"], rows) + under(
        f"{file.seeds} seeds, {file.steps} steps, band {low:.0f}-{high:.0f}",
        link("table", name.replace(".json", ".md")),
    )


STEPS = "rungs.Rung.samples_step_time"


def asv(committed: Committed) -> str:
    """Return the seconds of asv's default set, by machine, in the result files with the most rungs."""
    rows = []
    for folder in sorted({name.split("/")[1] for name in committed.names("asv/*/machine.json")}):
        names = [name for name in committed.names(f"asv/{folder}/*.json") if "machine.json" not in name]
        found = [_rungs_and_seconds(committed.read_asv(name)) for name in names]
        most = max(count for count, _ in found)
        took = sorted(seconds for count, seconds in found if count == most)
        between = "-".join(f"{each:.0f}" for each in sorted({took[0], took[-1]}))
        rows.append(
            [link(f"`{folder}`", f"asv/{folder}"), str(len(found)), str(most), str(len(took)), between]
        )
    return table(["machine", "commits", "most rungs", "commits with so many", "seconds for one commit"], rows)


def _rungs_and_seconds(result: Plain) -> tuple[int, float]:
    columns = {name: column for column, name in enumerate(result["result_columns"])}
    values = result["results"][STEPS][columns["result"]] if STEPS in result["results"] else []
    seconds = [
        each[columns["duration"]] for each in result["results"].values() if len(each) > columns["duration"]
    ]
    return sum(isinstance(each, float) and each == each for each in values), math.fsum(seconds)


def show_attribution(kind: str, shown: slice) -> Callable[[Committed], str]:
    """Return the function that shows some tables of every complete file of a study, with their findings."""

    def fill(committed: Committed) -> str:
        study, parts = frame.load_studies()[kind], []
        for name in committed.names(f"{study.folder}/*.json"):
            file = frame.decode_file(study, committed.read(name))
            machine, workload = file.machine, (file.workload or {})["name"]
            about = f"**{text(machine.gpu or machine.cpu)}**, `{workload}`, ladder `{file.ladder}`"
            tables = [render_markdown(table) for table in list(study.list_tables(file))[shown]]
            source = under(
                link("page", name.replace(".json", ".md")),
                link("chart", name.replace(".json", ".png")),
                link("samples", name),
                *map(text, frame.list_cautions(study, file)),
            )
            parts.append("\n\n".join([about, *tables]) + f"\n{source}")
        return "\n".join(parts) or absent(f"ladder {study.name}")

    return fill


TABLES: dict[str, Callable[..., str]] = {
    "upstream": study("upstream"), "patched": study("upstream", 1),
    "precision": precision, "scaled": scaled, "sustained": study("sustained"),
    "roofline": roofline, "kernels": kernels,
    "canary": canary, "asv": asv,
    "ablated": show_attribution("ablation", slice(2)),  # without stored runs
    "mapped": show_attribution("map", slice(-1)),  # without the times of cells
}  # fmt: skip
