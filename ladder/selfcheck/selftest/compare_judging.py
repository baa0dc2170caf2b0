"""What a trial of bench-compare found (`ladder.selfcheck.selftest.compare_trial`): questions, answers, and a page of
them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ladder.publish.regressions import judging
from ladder.publish.regressions.judging import LEAST_ROUNDS, Times
from ladder.results import record
from ladder.stats import verdicts

PLANTED = "planted"
Result = dict[str, Any]


def questions(result: Result) -> list[tuple[str, str, str, Times]]:
    """(BASE, its second visit, HEAD, their times): what is planted first, then every A/A that has rounds."""
    known = {each["name"]: each for each in result["programs"] if each["status"] == "ok"}
    copies = [each["name"] for each in result["programs"] if each["name"] != PLANTED]
    asked = [(copies[0], copies[1], PLANTED)]
    for place, head in enumerate(
        copies
    ):  # BASE's two visits are interchangeable, so each pair is asked about once
        others = copies[place + 1 :] + copies[:place]
        asked += [(*pair, head) for pair in zip(others[::2], others[1::2], strict=False)]
    medians = {name: record.round_medians(each) for name, each in known.items()}
    return [
        (*names, Times(*(medians[name] for name in names)))
        for names in asked
        if all(n in known for n in names)
    ]


def judge(result: Result) -> None:
    """Fill in the answers, each judged alone, as a comparison of one rung is, and what was not kept."""
    found = []
    for base, twin, head, times in questions(result):
        (verdict,) = judging.decide([times])
        if verdict is None:
            continue
        bounds = verdict.interval and [float(np.expm1(-bound)) for bound in reversed(verdict.interval)]
        found.append(
            {"base": base, "twin": twin, "head": head, "planted": result["share"] if head == PLANTED else None,
             "seen": float(np.expm1(-verdict.effect)), "interval": bounds, "least": verdict.least,
             "rounds": verdict.rounds, "verdict": verdict.verdict}
        )  # fmt: skip
    result["questions"], result["broken"] = found, []
    for each in found:
        if each["planted"] and each["verdict"] != verdicts.SLOWER:
            result["broken"].append(f"{100 * each['planted']:g}% slower was called {each['verdict']}")
        if not each["planted"] and each["verdict"] == verdicts.SLOWER:
            result["broken"].append(f"A/A of {each['base']} and {each['head']} was called slower")
    if not any(each["planted"] for each in found):
        result["broken"].append("the planted slowdown was not judged")


def markdown(result: Result) -> str:
    machine_, same = result["machine"], [each for each in result["questions"] if not each["planted"]]
    where = f"{machine_['gpu'] or machine_['cpu']}, torch {machine_['torch']}, commit {(result['commit'] or '-')[:10]}"
    rung = f"{result['workload']['name']}, {result['rung']}"
    lines = [
        f"# bench-compare tried on {where}: {rung}",
        "",
        "| planted | seen | interval | below this nothing is a difference | rounds | verdict |",
        "|---:|---:|---|---:|---:|---|",
    ]
    for each in (each for each in result["questions"] if each["planted"]):
        between = " to ".join(f"{100 * bound:+.2f}%" for bound in each["interval"] or [])
        row = [
            f"{100 * each['planted']:g}%",
            f"{100 * each['seen']:+.2f}%",
            between,
            f"{100 * each['least']:.2f}%",
        ]
        lines.append("| " + " | ".join([*row, str(each["rounds"]), each["verdict"]]) + " |")
    passed = sum(each["verdict"] != verdicts.SLOWER for each in same)
    copies = len(result["programs"]) - 1
    words = [each["verdict"] for each in same]
    said = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    if same:
        lines += [
            "",
            f"A/A: {passed} of {len(same)} pass ({said}): different questions of {copies} copies of one program,",
        ]
        lines += [f"{copies // 3} without a copy in common. {result['seconds']:.0f} s."]
    else:
        done = f"{result['protocol']['rounds']} rounds of {copies} copies, {result['seconds']:.0f} s"
        lines += ["", f"Nothing is judged before {LEAST_ROUNDS} rounds are there. {done}."]
    notes = [] if result["complete"] else ["incomplete: the same command goes on"]
    notes += (result["gpu"] or {}).get("notes") or []
    return (
        "\n".join([*lines, "", *(f"- {n}" for n in [*notes, *(result["broken"] or ["everything was kept"])])])
        + "\n"
    )
