"""The command `ladder merge`: several runs of one measurement, of a ladder or of `ladder scale`, become one result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from ladder.core import locks, options, text
from ladder.core.errors import UserError


@click.command(
    epilog="""\b
Examples:
  ladder merge a.json b.json                    the table of all generations together; nothing is written
  ladder merge a.json b.json --out whole.json   a result like any other; a.json and b.json are no longer needed
"""
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=options.FILE)
@click.option("--out", metavar="FILE", type=options.FILE, help="Write the result to this file.")
@click.option(
    "--anyway", is_flag=True, help="Also merge generations of another CPU or core count, and of unknown code."
)
@options.json_option
def merge(files: tuple[Path, ...], out: Path | None, anyway: bool, as_json: bool) -> None:
    """Merge several runs into one result, and judge it anew.

    The runs are of `ladder run` or of `ladder scale`; a single FILE is judged again. All runs must agree in GPU,
    software, code, workload, ladder, mode and timed cycles; a run may cover fewer rungs, ways or numbers of GPUs. Code
    agrees if kernels, model, rungs and timing code are equal, at any commit. Samples are kept, and everything else is
    computed again. No file is deleted, and only a single FILE is overwritten.
    """
    from ladder.core.records import write_record
    from ladder.report import output, tables
    from ladder.results import judging
    from ladder.results.combine import merging
    from ladder.studies import frame, scale
    from ladder.studies.scale import joining

    def refuse() -> None:
        if out is not None:
            refuse_out(out, files)

    refuse()
    scaled = [path for path in files if (stored := frame.open_stored(path)) and stored[0] is scale.STUDY]
    if scaled and (others := [path for path in files if path not in scaled]):
        raise UserError(f"{scaled[0]} is of ladder scale, and {others[0]} is not: merge files of one command")
    if scaled:
        points = joining.join([(path, frame.read_file(scale.STUDY, path)) for path in files], anyway)
        result, derived = write_record(points), frame.write_derived(scale.STUDY, points)
    else:
        run = merging.merge(files, anyway)
        whole = judging.derive_result(run)
        result, derived = write_record(run), tables.data_of(whole)
    paths = []
    if out is not None:
        held = text.make_slug(points.machine.name) if scaled else ""  # as its command holds a folder
        write(out, result, refuse, held)
        paths = [out, *(frame.write_pages(scale.STUDY, points, out) if scaled else [])]
    if as_json:
        click.echo(json.dumps(derived, indent=1, allow_nan=False))
    elif scaled:
        click.echo(frame.render_terminal(scale.STUDY, points))
    else:
        tables.print_table(whole)
    if out is None and not as_json:
        click.echo("not written: --out FILE keeps it")
    output.say_files(paths, as_json)


def refuse_out(out: Path, files: tuple[Path, ...]) -> None:
    """Raise UserError for a file that is no result's, or is there already and is none of one FILE alone."""
    from ladder.results import loading

    if problem := loading.name_problem(out):
        raise UserError(f"--out {out}: {problem}")
    if out.exists() and not (len(files) == 1 and out.samefile(files[0])):
        raise UserError(f"--out {out}: is there already; name a new file")


def write(
    out: Path, result: dict[str, object], refuse: Callable[[], None] = lambda: None, held: str = ""
) -> None:
    """Write a result under its lock, so that no run writes there meanwhile. `held`: the lock's name in its folder.

    Raises:
        UserError: the file cannot be written, or `refuse`, called under the lock, raises it.
    """
    from ladder.results import loading, store

    if (size := len(json.dumps(text.fit_texts(result), indent=1)) + 1) > loading.MOST_BYTES:
        raise UserError(
            f"--out {out}: {size} bytes, and a result has at most {loading.MOST_BYTES}: merge fewer"
        )
    with locks.folder_lock(out.parent, held):
        refuse()
        store.write(out, result)
