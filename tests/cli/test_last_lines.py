"""The last lines of a command: where its result is, and the command that goes on with it."""

from pathlib import Path

import click
from click.testing import CliRunner

from ladder.report import output as ending


def ended(
    tmp_path: Path, *arguments: str, again: bool = True, drop: tuple[str, ...] = (), as_json: bool = False
):
    @click.command("measure")
    @click.argument("clone", required=False)
    @click.option("-w", "--workload")
    @click.option("--op", "ops", multiple=True)
    @click.option("--quick", is_flag=True)
    @click.option("--inspect/--no-inspect", default=True)
    @click.option("--rounds", default=3)
    @click.option("--resume")
    @click.option("--json", "as_json", is_flag=True)
    def measure(**_: object) -> None:
        click.echo("a table")
        ending.say_files([Path("out") / "my result.json", Path("out") / "chart.png"], as_json, again, drop)

    return CliRunner().invoke(measure, [*arguments, *["--json"] * as_json], prog_name="ladder measure")


def test_the_result_is_said_last_and_then_how_to_go_on(tmp_path: Path) -> None:
    lines = ended(tmp_path).stdout.splitlines()
    assert lines == [
        "a table",
        "out/chart.png",
        "result: out/my result.json",
        "go on:  ladder measure --resume 'out/my result.json'",
    ]
    assert ended(tmp_path, again=False).stdout.splitlines()[-1] == "result: out/my result.json"


def test_beside_json_it_goes_to_stderr(tmp_path: Path) -> None:
    said = ended(tmp_path, as_json=True)
    assert said.stdout == "a table\n" and said.stderr.startswith("result: out/my result.json\ngo on:  ladder")


def test_what_was_asked_for_is_asked_again(tmp_path: Path) -> None:
    """But for what the file says; a default is left out, and an earlier file replaced."""
    given = "../clone -w mine.yaml --op a --op b --quick --no-inspect --resume old.json".split()
    line = ended(tmp_path, *given, drop=("quick",)).stdout.splitlines()[-1]
    assert line == (
        "go on:  ladder measure --resume 'out/my result.json' ../clone --workload mine.yaml --op a --op b --no-inspect"
    )
