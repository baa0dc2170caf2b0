"""What every study promises: its files are read strictly, derived alike, and shown in all forms.

`goldens/KIND.json` is a small file of each kind; beside it are what follows from it. After a wanted change,
`python -m tests.studies.test_contract` writes these anew: read their diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core.errors import UserError
from ladder.publish.validation import validate
from ladder.show.table import render_csv, render_text
from ladder.studies import STUDIES, frame

HERE = Path(__file__).parent / "goldens"
KINDS = list(frame.load_studies())


def read(kind: str):
    study = frame.load_studies()[kind]
    return study, frame.decode_file(study, json.loads((HERE / f"{kind}.json").read_text()))


def outputs(kind: str) -> dict[str, str]:
    """Return every golden of a kind by its name."""
    study, file = read(kind)
    derived = json.dumps(frame.write_derived(study, file), indent=1) + "\n"
    tables = list(study.list_tables(file))
    return {
        f"{kind}.derived.json": derived,
        f"{kind}.md": frame.render_page(study, file),
        f"{kind}.csv": render_csv(tables),
        f"{kind}.txt": frame.render_terminal(study, file, 60) + "\n",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_from_a_file_is_what_it_was(kind):
    for name, text in outputs(kind).items():
        assert (HERE / name).read_text() == text, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_validate_and_report_take_it(kind, tmp_path):
    path, page = HERE / f"{kind}.json", tmp_path / "page.md"
    assert validate.problem_of(path) is None
    result = CliRunner().invoke(cli.main, ["report", str(path), "--json", "--markdown", str(page)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((HERE / f"{kind}.derived.json").read_text())
    assert page.read_text() == (HERE / f"{kind}.md").read_text()


COMMANDS = {
    name: frame.load_study(name).kind for name in STUDIES if " " not in name and name != "bench-compare"
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stored_result_is_shown_in_place_of_measuring_and_says_whose_it_is(command, tmp_path):
    kind = COMMANDS[command]
    _, file = read(kind)
    stored = json.loads((HERE / f"{kind}.json").read_text())
    files = {"a": {"started": "2020-01-01T10:00:00+00:00"}, "b": {}, "c": {"kind": "other"}}
    for name, fields in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(stored | fields))
    whose = file.machine.gpu or file.machine.cpu

    def show(*arguments):
        return CliRunner().invoke(cli.main, [command, *arguments], env={"COLUMNS": "60"})

    newest, named = show("--report", "--out", str(tmp_path)), show("--report", str(tmp_path / "b.json"))
    for shown in (newest, named):
        line, _, rest = shown.stdout.partition("\n")
        assert shown.exit_code == 0 and whose in line and rest == (HERE / f"{kind}.txt").read_text(), (
            shown.output
        )
    assert "b.json" in newest.stdout.splitlines()[0]
    as_json = json.loads(show("--report", "--out", str(tmp_path), "--json").stdout)
    assert as_json["started"] == stored["started"] and len([*tmp_path.iterdir()]) == 3  # nothing was written
    (tmp_path / "empty").mkdir()
    for refused in (["--out", str(tmp_path / "empty")], ["--device", "cpu"]):
        assert show("--report", *refused).exit_code == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_never_wraps(kind):
    study, file = read(kind)
    for table in study.list_tables(file):
        assert all(len(line) <= 60 for line in render_text(table, 60).splitlines()[: len(table.rows) + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_is_the_same_for_the_same_file(kind):
    study, file = read(kind)
    first = study.draw(file, "svg")
    assert first is None or (first == study.draw(file, "svg") and study.draw(file, "png")[:4] == b"\x89PNG")


FORGED = {
    "an unknown key": lambda data: data.update(verdict="faster"),
    "a stored conclusion": lambda data: data.update(complete=True),
    "another schema": lambda data: data.update(schema=1),
    "the future": lambda data: data.update(started="2099-01-01T00:00:00+00:00"),
    "another machine's name": lambda data: data["machine"].update(name="nvidia-b200"),
    "a field of no workload": lambda data: data.setdefault("workload", {}).update(html="<script>"),
    "an observation of no case": lambda data: data["observed"].update(forged={}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", FORGED)
def test_what_no_genuine_file_holds_is_refused(kind, what):
    data = json.loads((HERE / f"{kind}.json").read_text())
    FORGED[what](data)
    with pytest.raises(UserError):
        frame.decode_file(frame.load_studies()[kind], data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_a_case_that_was_not_observed_is_incomplete(kind):
    study = frame.load_studies()[kind]
    data = json.loads((HERE / f"{kind}.json").read_text())
    data["observed"].popitem()
    file = frame.decode_file(study, data)
    assert not file.is_complete and "interrupted" in frame.list_cautions(study, file)
    assert not frame.write_derived(study, file)["complete"]


if __name__ == "__main__":
    for each in KINDS:
        for name, text in outputs(each).items():
            (HERE / name).write_text(text)
