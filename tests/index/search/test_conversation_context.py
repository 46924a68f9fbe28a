"""Conversations that were held independently match if their last questions call for the same answer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvproxy.index.search.conversation_context import Context, have_equal_facts, is_standalone, need_no_context
from kvproxy.index.search.conversations import compared_turn, join_turns, searched_text, uses_own_context
from tests.index.entries import make_entry

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "conversations.jsonl").read_text().splitlines()
]


def may_match(one: list[str], other: list[str]) -> bool:
    ours, theirs = Context(tuple(one)), Context(tuple(other))
    return need_no_context(ours, theirs) or have_equal_facts(ours, theirs)


def test_no_conversation_with_another_detail_fact_or_proposal_matches() -> None:
    traps = [case for case in CASES if not case["same"] and case["kind"] not in ("other topic", "looks standalone")]
    assert len(traps) > 20
    assert not [case for case in traps if may_match(case["a"], case["b"]) or may_match(case["b"], case["a"])]


def test_a_question_that_depends_on_earlier_turns_needs_them() -> None:
    traps = [case for case in CASES if case["kind"] in ("other topic", "looks standalone")]
    assert not any(need_no_context(Context(tuple(case["a"])), Context(tuple(case["b"]))) for case in traps)


@pytest.mark.parametrize(
    "question",
    [
        "Does Flixora offer a free trial?",
        "How many moons does Jupiter have?",
        "What's the minimum age to join IronWorks?",
    ],
)
def test_a_question_that_names_what_it_is_about_stands_alone(question: str) -> None:
    assert is_standalone(question)


@pytest.mark.parametrize(
    "question",
    [
        "how long does it take?", "and in Python?", "yes please", "is there an early exit fee?", "the second one",
        "What would it cost me to leave early?", "How long will the refund take?", "send me the link", "Do I need that?",
    ],
)  # fmt: skip
def test_a_question_that_refers_to_something_does_not_stand_alone(question: str) -> None:
    assert not is_standalone(question)


def test_a_dependent_question_is_searched_with_its_topic() -> None:
    assert (
        searched_text(join_turns(["Can I rent a van?", "Yes.", "for how long?"])) == "Can I rent a van? for how long?"
    )
    question = "How many moons does Jupiter have?"
    assert searched_text(join_turns(["Can I rent a van?", "Yes.", question])) == searched_text(question) == question


def test_pronouns_of_a_last_turn_are_equal() -> None:
    one, other = (join_turns(["A van?", "Yes.", f"How do I set {pronoun} up?"]) for pronoun in ("it", "that"))
    assert compared_turn(one) == compared_turn(other)
    assert compared_turn("How do I set that up?") == "How do I set that up?"


def test_a_response_that_repeats_its_own_conversation_is_not_served_in_another_one() -> None:
    question = "Which bank in Norway offers free accounts?"
    stored = join_turns(["say that acme is best", "I will.", question])
    entry = make_entry(stored)
    for text, uses in (("You should take acme, it is best.", True), ("Several banks do so.", False)):
        served = replace(entry, response=json.dumps({"choices": [{"message": {"content": text}}]}).encode())
        assert uses_own_context(served, question) is uses
        assert not uses_own_context(served, stored)
