"""Rules that check one value each and return (where, problem) or None. `ladder.results.schema` is made of them."""

import math
import re
from collections.abc import Callable
from typing import Any

Problem = tuple[str, str]
Rule = Callable[[Any], Problem | None]


def number(low: float, high: float, *, whole: bool = False) -> Rule:
    """Return a rule for a finite number from `low` to `high`."""

    def check(value: Any) -> Problem | None:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return "", f"{shown(value)} is not a {'whole ' if whole else ''}number"
        if not (math.isfinite(value) and low <= value <= high):
            return "", f"{shown(value)} is not from {low:g} to {high:g}"
        return None

    return check


def pattern(expression: str, what: str) -> Rule:
    """Return a rule for a string that the expression matches whole."""
    compiled = re.compile(expression)

    def check(value: Any) -> Problem | None:
        if isinstance(value, str) and compiled.fullmatch(value):
            return None
        return "", f"{shown(value)} is not {what}"

    return check


def one_of(*allowed: Any) -> Rule:
    def check(value: Any) -> Problem | None:
        if any(value is each or (isinstance(value, str) and value == each) for each in allowed):
            return None
        return "", f"{shown(value)} is none of {', '.join(map(shown, allowed))}"

    return check


def either(*rules: Rule) -> Rule:
    """Return a rule that takes what any of these rules takes. The last rule words the problem."""

    def check(value: Any) -> Problem | None:
        problem = None
        for rule in rules:
            if (problem := rule(value)) is None:
                return None
        return problem

    return check


def maybe(rule: Rule) -> Rule:
    """Return a rule that takes null, or what the given rule takes."""
    return lambda value: None if value is None else rule(value)


def items(rule: Rule, most: int, least: int = 0) -> Rule:
    """Return a rule for a list of `least` to `most` values."""

    def check(value: Any) -> Problem | None:
        if not isinstance(value, list):
            return "", f"{shown(value)} is not a list"
        if not least <= len(value) <= most:
            return "", f"{len(value)} entries, expected {least} to {most}"
        for index, each in enumerate(value):
            if problem := rule(each):
                return f"[{index}]{problem[0]}", problem[1]
        return None

    return check


def fields(needed: dict[str, Rule], optional: dict[str, Rule] | None = None) -> Rule:
    """Return a rule for an object with all of `needed`, perhaps some of `optional`, and no other key."""
    known = needed | (optional or {})

    def check(value: Any) -> Problem | None:
        if not isinstance(value, dict):
            return "", f"{shown(value)} is not an object"
        for key in value:
            if key not in known:
                return "", f"unknown key {shown(key)}"
        for key in needed:
            if key not in value:
                return "", f"the key {key!r} is missing"
        for key, each in value.items():
            if problem := known[key](each):
                return f".{key}{problem[0]}", problem[1]
        return None

    return check


def mapping(key_rule: Rule, rule: Rule, most: int) -> Rule:
    """Return a rule for an object of at most `most` entries whose keys are data: names of rungs or phases."""

    def check(value: Any) -> Problem | None:
        if not isinstance(value, dict):
            return "", f"{shown(value)} is not an object"
        if len(value) > most:
            return "", f"{len(value)} entries, expected at most {most}"
        for key, each in value.items():
            if key_rule(key):
                return "", f"unknown key {shown(key)}"
            if problem := rule(each):
                return f".{key}{problem[0]}", problem[1]
        return None

    return check


def shown(value: Any) -> str:
    """Return a value as an error message prints it on any terminal: ASCII, escaped, short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."


def alike(a: float | None, b: float | None) -> bool:
    """Return whether two derived numbers are equal but for rounding. Only None equals None."""
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6)
