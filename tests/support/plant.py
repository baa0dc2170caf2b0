"""Plant one-line bugs one at a time, and run the tests that catch them: `python -m tests.support.plant`.

`planted_bugs.yaml` lists the bugs. A bug counts as caught if one of its tests fails with it and passes without it.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from queue import Queue

import yaml

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
LEFT_OUT = shutil.ignore_patterns(".venv", ".asv", ".*cache*", "__pycache__", ".hypothesis", "runs")
PYTEST = (sys.executable, *"-m pytest -x -q -n 0 --tb=line -rfE -m".split(), "not gpu")


def read_bugs(root: Path) -> list[dict]:
    """Return the entries of a checkout's list, or of ours where it has none."""
    listed = (Path(base, "tests/support/planted_bugs.yaml") for base in (root, ROOT))
    text = next(path for path in listed if path.is_file()).read_text(encoding="utf-8")
    bugs = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [{"expected": "caught", **bug} for bug in bugs]


def list_bad_anchors(root: Path, bugs: list[dict]) -> list[str]:
    """Return a line for each entry that does not fit the checkout."""
    lines, ids = [], [bug["id"] for bug in bugs]
    for bug in bugs:
        file = root / bug["file"]
        count = file.read_text(encoding="utf-8").count(bug["old"]) if file.is_file() else 0
        if count != 1 or "\n" in bug["old"] + bug["new"] or ids.count(bug["id"]) != 1:
            lines.append(f"{bug['id']}: {bug['old']!r} is {count} times in {bug['file']}: {bug['what']}")
        for test in bug["tests"]:
            path, *names = test.partition("[")[0].split("::")
            code = (root / path).read_text(encoding="utf-8") if (root / path).is_file() else ""
            if not code or not all(re.search(rf"(def|class) {name}\b", code) for name in names):
                lines.append(f"{bug['id']}: there is no test {test}")
    return lines


def run_tests(copy: Path, *arguments: str) -> tuple[int, str]:
    """Return pytest's exit status (124: it took too long) and its output."""
    temporary = copy.with_name(f"{copy.name}t")
    temporary.mkdir(exist_ok=True)
    # PYTHONPATH comes before the checkout that an editable installation points to.
    variables = os.environ | {"PYTHONPATH": str(copy), "TMPDIR": str(temporary), "COLUMNS": "300"}
    with tempfile.TemporaryFile(
        "w+", errors="replace"
    ) as said:  # A child that outlives pytest would hold a pipe.
        process = subprocess.Popen(
            [*PYTEST, *arguments], cwd=copy, env=variables, stdout=said, stderr=said, start_new_session=True
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = 124
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said.seek(0)
        return status, said.read()


def judge_bug(copy: Path, bug: dict, number: int) -> tuple[str, str]:
    """Plant a bug in a copy. Return the outcome, and the failed test or pytest's last line."""
    file = copy / bug["file"]
    code, at = file.read_text(encoding="utf-8"), file.stat().st_mtime
    try:
        file.write_text(code.replace(bug["old"], bug["new"]), encoding="utf-8")
        os.utime(file, (at, at + 10 * number))  # Python knows bytecode by whole seconds of its source's time.
        if file.suffix == ".py":
            compile(file.read_text(encoding="utf-8"), file, "exec")
        status, output = run_tests(copy, "--cache-clear", *bug["tests"])
    except SyntaxError as error:
        return "broken", str(error)
    finally:
        file.write_text(code, encoding="utf-8")
        os.utime(file, (at, at))
    last = output.strip().rpartition("\n")[2]
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, re.MULTILINE)
    shown = failed[1] if failed else last if status >= 0 else f"signal {-status}"
    if status == 0:
        return "escapes" if re.search(r"\d passed", last) else "not run", last
    lacks = re.search(r"ModuleNotFoundError: No module named '(\w+)", output)
    if (lacks and find_spec(lacks[1]) is None) or (status in (4, 5) and "skipped" in output):
        return "not run", lacks[0] if lacks else last
    if status > 1 or "ERROR collecting" in output:
        return "timeout" if status == 124 else "broken", shown
    # Beside a file with a failed test, --last-failed does not find tests of other files.
    again = [test for test in bug["tests"] if shown.startswith(test.partition("::")[0])] or bug["tests"]
    return ("fails without it" if run_tests(copy, "--last-failed", *again)[0] else "caught"), shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.plant", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check that each text is in its file once")
    parser.add_argument("--only", metavar="IDS", default=".*", help="ids or patterns, separated by commas")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="copies of the checkout"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="[default: .cache/planted.json]")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="CHECKOUT")
    asked = parser.parse_args()
    root = asked.root.resolve()
    bugs = [b for b in read_bugs(root) if any(re.fullmatch(each, b["id"]) for each in asked.only.split(","))]
    if bad := list_bad_anchors(root, bugs):
        sys.exit("\n".join(bad))
    if asked.check:
        return 0
    copies: Queue[Path] = Queue()

    def judge(numbered: tuple[int, dict]) -> dict:
        copy, begin, bug = copies.get(), time.monotonic(), numbered[1]
        outcome, shown = judge_bug(copy, bug, numbered[0])
        copies.put(copy)
        took = round(time.monotonic() - begin, 1)
        print(f"{outcome:<17}{took:6.1f} s  {bug['id']:<28} {shown[:150]}", flush=True)
        return bug | {"outcome": outcome, "shown_by": shown, "seconds": took}

    with tempfile.TemporaryDirectory(prefix="plant", ignore_cleanup_errors=True) as folder:
        for number in range(min(asked.jobs, len(bugs))):
            copies.put(shutil.copytree(root, Path(folder, str(number)), symlinks=True, ignore=LEFT_OUT))
        with ThreadPoolExecutor(asked.jobs) as pool:
            rows = list(pool.map(judge, enumerate(bugs, 1)))
    out = asked.out or root / ".cache/planted.json"
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    outcomes = [row["outcome"] for row in rows]
    print("; ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)), f"-> {out}")
    others = [row["id"] for row in rows if row["outcome"] not in (row["expected"], "not run")]
    print("not as expected:", ", ".join(others) or "none")
    return bool(others)


if __name__ == "__main__":
    sys.exit(main())
