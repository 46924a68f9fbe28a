"""Pairs of questions about a relation in different forms, which exchange or keep the roles of two things.

A line of `exchanged_roles.jsonl` has forms with `{A}` and `{B}`, which mean the same, and fillings. The guard `roles` was written
with the set `first` in view; the sets `second` and `third` were measured before it knew their forms.
"""

import json
from itertools import combinations, product
from pathlib import Path

Pair = dict[str, str]
_FILE = Path(__file__).parents[1] / "data" / "exchanged_roles.jsonl"


def exchanged_roles(name: str) -> list[Pair]:
    return [
        {"a": one, "b": other, "relation": relation}
        for relation, kept, exchanged in _questions(name)
        for one, other in product(kept, exchanged)
    ]


def kept_roles(name: str) -> list[Pair]:
    return [
        {"a": one, "b": other, "relation": relation}
        for relation, kept, _ in _questions(name)
        for one, other in combinations(kept, 2)
    ]


def _questions(name: str) -> list[tuple[str, list[str], list[str]]]:
    """Return the relation, the questions, and the questions with exchanged roles, for each filling of a set."""
    return [
        (line["relation"], _fill(line["forms"], a, b, context), _fill(line["forms"], b, a, context))
        for line in map(json.loads, _FILE.read_text("utf-8").splitlines())
        if line["set"] == name
        for a, b, context in line["fills"]
    ]


def _fill(forms: list[str], a: str, b: str, context: str) -> list[str]:
    return [form.format(A=a, B=b, c=context) for form in forms]
