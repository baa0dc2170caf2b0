"""Every command: its help, one call that works, and wrong calls, each of which is one line and writes nothing."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from ladder.cli import doctor
from ladder.core import locks, options, text, yamlfile
from ladder.core.errors import UserError
from ladder.engine import pool
from ladder.images import prepare as images
from ladder.machine import system
from ladder.plan import catalog
from ladder.report import recommend, tables
from ladder.results import store
from ladder.studies.commits import checkouts
from ladder.training import sample
from tests.support import committed
from tests.support.commands import SET, call, load_commands, refused
from tests.support.made_up import cpu_run, gpu_run, judged_run
from tests.support.typed import write_run

COMMANDS = load_commands()
NUMBERS = click.types.IntParamType | click.types.FloatParamType
MEASURING = (
    "run",
    "kernels",
    "precision",
    "scale flat",
    "sustain",
    "noise",
    "ablate",
    "map",
    "profile baseline",
    "quality",
)


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sample photographs that are there already, with a note on them. The working folder is an empty one."""
    real = images.prepare_images
    monkeypatch.setattr(
        images, "prepare_images", lambda data, *how, **more: real(data, *how, **more) if data else SET
    )
    monkeypatch.setattr(pool, "Pool", nullcontext)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_examples_a_text_for_every_option_and_every_default(name: str) -> None:
    page = call(name, "--help").output
    assert "Examples:" in page or len(COMMANDS[name].params) < 2
    usual = ("--minutes", "--budget", "--most", "--confirm", "--op", "--rung", "--steps", "--device")
    for each in COMMANDS[name].params:
        if isinstance(each, click.Option):
            assert each.help, each.opts
            takes_one = not each.is_flag and isinstance(each.default, int | float | str)
            if takes_one or each.opts[-1] in usual or each.name == "seed":
                assert each.show_default or "[default: " in each.help, each.opts
            if "--rounds" in each.opts:
                assert each.opts == ["--generations", "--rounds"]
    if name in {each.split()[0] for each in MEASURING} | {"compare", "bench-compare", "upstream"}:
        assert "Exit status: 0 if" in page


def test_the_groups_help_has_each_command_once_in_a_whole_line_below_a_question() -> None:
    lines = call("--help").output.splitlines()
    shown = [line for line in lines if line[2:].split(" ")[0] in COMMANDS]
    assert len(shown) == len(COMMANDS) == len({line.split(maxsplit=1)[1] for line in shown})
    assert [line for line in shown if not line.endswith(".") or line.endswith("...") or len(line) > 80] == []
    assert "Measure:" in lines and "Decide:" in lines


# --- one call that works, of each command that measures nothing -------------------------------------------------------

WORKS = [
    "doctor --device cpu", "doctor --device cpu --json", "list", "show bf16", "show cuda_graphs", "show article-sn",
    "show mistakes", "show item_each_step", "report r.json", "report r.json --json --receipts",
    "recommend r.json", "compare r.json s.json", "merge r.json", "validate RUN",
    "explain bf16 fused_norm RUN --json", "export out --ops bias_act --package mine", "history --results ASV --json",
]  # fmt: skip


@pytest.mark.parametrize("line", WORKS)
def test_a_call_ends_with_0_and_says_something(line: str) -> None:
    for seed, name in enumerate(("r.json", "s.json")):
        write_run(Path(name), judged_run(seed=seed))
    places = {"RUN": committed.RUN, "ASV": committed.folder("results/asv")}
    seen = call(*(places.get(word, word) for word in line.split()))
    assert seen.exit_code == 0 and seen.stdout.strip() and "\x1b" not in seen.output, seen.output
    if "--json" in line:
        json.loads(seen.stdout)


def test_list_names_everything_and_show_knows_it() -> None:
    listed = json.loads(call("list", "--json").stdout)
    assert set(listed) == {"rungs", "ladders", "workloads"}
    lines = [line.split() for line in call("list").output.splitlines()]
    names = [line[0] for line in lines if line]
    for name in (*catalog.list_rungs(), *catalog.list_ladders(), *catalog.list_workloads()):
        assert names.count(name) >= 1 and call("show", name).exit_code == 0, name
    assert names.index("baseline") < names.index("cuda_graphs") < names.index("fused_act")


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_a_number_of_an_option_is_plain_digits(command: click.Command) -> None:
    """`int` also takes `1_0`, ` 4` and other scripts' digits, and NaN is inside of every range."""
    context = click.Context(command)
    for option in (each for each in command.params if isinstance(each.type, NUMBERS)):
        halves = ("1.5",) if isinstance(option.type, click.types.IntParamType) else ()
        for odd in ("1_0", " 4", "\u0664", "\uff14", "1e", *halves):
            with pytest.raises(click.BadParameter, match="plain digits"):
                option.type_cast_value(context, odd)
        for endless in ("inf", "nan"):
            with pytest.raises(click.BadParameter, match=r"finite number|plain digits|not in the range"):
                option.type_cast_value(context, endless)
        most = option.type.max or 30
        assert option.type_cast_value(context, str(most)) == most


LISTS = {
    "--gpus": lambda text: options.whole_numbers("--gpus", text, 64),
    "--batches": lambda text: options.whole_numbers("--batches", text, 65536),
    "--seeds": sample.parse_seeds,
    "--images": recommend.images_of,
    "--price": recommend.price_of,
}


@pytest.mark.parametrize("option", LISTS)
def test_a_list_of_numbers_is_plain_digits(option: str) -> None:
    assert LISTS[option]("10")
    for odd in ("1_0", "\u0664", "\uff14"):
        with pytest.raises(UserError, match=option):
            LISTS[option](odd)


def test_a_number_in_yaml_is_plain_digits() -> None:
    """YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_0 as 10."""
    path = Path("mine.yaml")
    for odd in ("1_0", "010", "0x10", "0b11", "1:30", "1_0.5", "1:30.5"):
        path.write_text(f"name: mine\nbatch: {odd}\n")
        with pytest.raises(UserError, match=r"mine\.yaml: line 2, column 8: .*plain digits"):
            yamlfile.read_yaml(path)
    path.write_text("a: 10\nb: -3\nc: 0\nd: 2e-3\ne: +1.5\nf: '1_0'\ng: .5\n")
    assert [*yamlfile.read_yaml(path).values()] == [10, -3, 0, 2e-3, 1.5, "1_0", 0.5]


# --- wrong calls ------------------------------------------------------------------------------------------------------

CPU = ("--device", "cpu", "--out", "out")
FILES = {
    "empty": "", "empty.json": "", "empty.yaml": "", "empty.pt": "", "torn.json": '{"a": ',
    "list.json": "[1]", "text.yaml": "hello", "fp3.yaml": "precision: fp3\n", "ladder.yaml": "rungs: [turbo]\n",
    "nan.yaml": "resolution: 32\nchannel_base: .nan\nbatch: 4\n", "mit Leerzeichen/ä ö.json": "x",
    "more.yaml": "resolution: 32\nchannel_base: 1024\nbatch: 4\nbatchsize: 3\n",
    "mit Leerzeichen/ä ö.yaml": "resolution: 31\nchannel_base: 1024\nbatch: 4\n",
    "graphs.yaml": "cuda_graphs: true\nadam: capturable\n", "full/file": "", "text/a.txt": "", "broken/a.png": "",
}  # fmt: skip
WRONG = [
    *itertools.product(("run", "train", "precision", "noise", "map"), ("-w",), ("", " ", "tinny")),
    *itertools.product(("run",), ("-w",), ("text.yaml", "nan.yaml", "more.yaml", "mit Leerzeichen/ä ö.yaml")),
    *itertools.product(("run", "train", "map"), ("--ladder",), ("", "articel", "ladder.yaml", "empty.yaml")),
    *itertools.product(("run", "train"), ("--recipe",), ("", "bf61", "fp3.yaml", "graphs.yaml", "missing.yaml")),
    *itertools.product(("run", "train", "noise", "scale flat"), ("--data",), ("", "missing", "text", "broken")),
    *itertools.product(("run", "train", "kernels", "map"), ("--out",), ("", "empty", "empty/x", "/proc/x")),
    *itertools.product(("precision", "quality", "run --mode leave-one-out"), ("--out",), ("empty/x",)),
    *itertools.product(("run --budget", "sustain --seconds"), ("nan", "-1", "x", "1_0", "", "1e999")),
    *itertools.product(("kernels --minutes", "submit --budget"), ("nan", "inf")),
    *itertools.product(("run --rungs", "sustain", "noise", "profile", "map --rung"), ("bf61", "")),
    *itertools.product(("report", "recommend", "validate"), ("",)),
    *itertools.product(("report", "recommend", "merge"), ("missing.json", "empty.json", "torn.json", "list.json")),
    *itertools.product(("report", "recommend", "merge"), ("mit Leerzeichen/ä ö.json",)),
    *itertools.product(("sample --out out", "train --out out --from"), ("empty.pt", "full")),
    *itertools.product(("convert",), ("missing.pt o.pt", "empty.pt o.pt", "full o.pt", "empty.pt empty.json")),
    *itertools.product(("show",), ("", "turbo", "solo", "full/x.yaml")),
    *itertools.product(("history",), ("--compared missing", "--results missing", "--budget 3", "--threshold nan")),
    ("export", "full", "--ops", "conv2d", "--package", "p"), ("export", "out", "--ops", "conv", "--package", "p"),
    ("run", "--quick", "--budget", "3"), ("run", "--mode", "mistakes", "--ladder", "full"), ("run", "extra"),
    ("run", "--recipe", "x.yaml", "--mode", "solo"), ("run", "--mode", "levers", "--rungs", "wide"),
    ("run", "--without", "bf16", "--mode", "solo"), ("run", "--without", "turbo"), ("run", "--rungs", "cuda_graphs"),
    ("quality", "--by", "parity"), ("quality --bugs", "--by", "eye"),
    ("scale flat", "--gpus", "1", "--scaling", "weak", "--total", "16"),
    ("doctor --roofline", "--gpu h200 --device cpu"),
    ("bench-compare --report x.json", "--rounds 5"), ("bench-compare --report x.json", "-w tiny"),
    ("report", "--publish", "--price 2/h"), ("report", "empty"), ("report", "--csv="), ("compare", "", ""),
    ("compare", "empty.json"), ("explain", "bf16", "bf16"), ("runn",),
    ("kernels", "--op", "nothing"), ("precision", "--only", "fp3"), ("scale", "flat", "--gpus", "0"), ("merge",),
    ("upstream", "full"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_a_wrong_call_is_one_clear_line_and_nothing_is_written(
    wrong: tuple[str, ...], tmp_path: Path
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    words = [part for each in wrong for part in _split(each)]
    measures = words[0] in {each.split()[0] for each in MEASURING} | {"train"}
    seen = call(*words, *(CPU if measures and "--out" not in words else ()))
    lines = seen.stderr.splitlines()
    assert seen.exit_code == 2 and not seen.stdout, seen.output
    assert len(lines) == 1 or (lines[0].startswith("Usage:") and lines[-1].startswith("Error:")), seen.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def _split(part: str) -> list[str]:
    """Return the words of a part of a call. A name with a space, and an empty text, is one word."""
    return [part] if not part.strip() or "Leerzeichen" in part else part.split()


@pytest.mark.parametrize("asked", [*MEASURING, "train"])
def test_a_folder_that_another_run_holds_is_the_only_line(asked: str, tmp_path: Path) -> None:
    name, out = text.make_slug(system.describe_machine("cpu")["name"]), tmp_path / "out"
    folder = out / name if asked == "run" else out
    with locks.folder_lock(folder, "" if folder != out or asked == "train" else name):
        line = refused(*asked.split(), "--device", "cpu", "--out", out)
    assert line.startswith(f"ladder: {folder}: another run is writing here")


@pytest.mark.parametrize("asked", ["run", "kernels", "precision", "scale", "ablate", "map"])
@pytest.mark.parametrize("content", ["", "{}", '{"a": ', json.dumps(gpu_run())])
def test_a_file_that_cannot_be_gone_on_with_is_the_only_line(
    asked: str, content: str, tmp_path: Path
) -> None:
    """Another kind of result, or one of another machine, is among them."""
    path = tmp_path / "bad ü.json"
    path.write_text(content)
    out = [] if asked == "run" else ["--out", tmp_path / "out"]
    assert str(path) in refused(asked, "--device", "cpu", "--resume", path, *out)
    assert [*tmp_path.iterdir()] == [path]


def test_a_run_of_another_machine_or_folder_is_the_only_line(tmp_path: Path) -> None:
    write_run(tmp_path / "r.json", cpu_run() | {"workload": {**cpu_run()["workload"], "name": "tiny"}})
    assert "start a new run" in refused("run", "--device", "cpu", "--resume", tmp_path / "r.json")
    assert "leave out --out" in refused("run", "--resume", "m/r.json", "--out", "there")


def test_outputs_without_a_folder_are_refused_before_minutes_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from ladder.report import explain

    monkeypatch.setattr(checkouts, "commit_of", lambda *_: "a" * 40)
    monkeypatch.setattr(doctor, "ROOT", Path())
    monkeypatch.setattr(explain, "find_sides", lambda *_: ())  # a made-up result has no profiles
    for name in ("file", "results"):
        Path(name).touch()
    write_run(Path("r.json"), gpu_run())
    for asked in (
        "bench-compare --device cpu --out file/x",
        "bench-compare --device cpu --markdown file/x.md",
        "doctor --roofline",
        "report r.json --markdown file/x.md",
        "report r.json --csv /proc/x/y.md",
        "explain a b r.json --markdown file/x.md",
    ):
        assert "cannot be written" in refused(*asked.split()), asked
    assert "written as .png or .svg" in refused("report", "r.json", "--chart", "c.gif")


# --- paths of outputs that a user names -------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("option", ["--csv", "--markdown"])
def test_a_table_does_not_take_the_place_of_its_result(option: str, link: bool) -> None:
    write_run(Path("r.json"), cpu_run())
    before, out = Path("r.json").read_bytes(), "link" if link else "r.json"
    if link:
        Path(out).symlink_to("r.json")
    assert "it is the result that is read" in refused("report", "r.json", option, out)
    assert Path("r.json").read_bytes() == before


def test_a_tilde_that_the_shell_leaves_is_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_run(Path("r.json"), cpu_run())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert call("report", "r.json", "--csv=~/t.csv").exit_code == 0
    assert (tmp_path / "home" / "t.csv").is_file() and not (tmp_path / "~").exists()


def test_a_system_error_nobody_expected_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/some\x1bthing")

    write_run(Path("r.json"), cpu_run())
    monkeypatch.setattr(tables, "print_table", refuse)
    assert call("report", "r.json").stderr == "ladder: /tmp/some\\x1bthing: No space left on device\n"
    monkeypatch.setattr(tables, "print_table", lambda _: (_ for _ in ()).throw(KeyError("ours")))
    assert isinstance(call("report", "r.json").exception, KeyError)  # a fault of ours keeps its traceback


def test_a_file_without_an_end_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_READ", 2**20)
    with pytest.raises(UserError, match="more than 1048576 bytes"):
        store.read("/dev/zero")
