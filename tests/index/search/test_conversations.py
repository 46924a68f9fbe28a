"""Conversations match if their answers are equal and each question means the same, in order."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.policy import Limits, Policy
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search import conversations
from kvproxy.index.search.conversation_context import Context
from kvproxy.index.search.conversations import EarlierTurns, join_turns
from tests.index.doubles import HashEmbedder, OverlapVerifier

SAME = (
    ("How do I enable 2FA?", "How can I enable 2FA?"),
    ("Is port 80 open?", "Is port 80 open now?"),
    ("When does the bank open?", "When does the bank open, please?"),
    ("Who beat Brazil?", "Who beat Brazil?"),
)
OTHER = (
    ("How do I enable 2FA?", "How do I disable 2FA?"),
    ("Is port 80 open?", "Is port 443 open?"),
    ("Does it work on Monday?", "Does it work on Sunday?"),
    ("What does it cost in Paris?", "What does it cost in Rome?"),
    ("How do I get from Oslo to Rome?", "How do I get from Rome to Oslo?"),
    ("Does it work?", "Does it not work?"),
    ("Explain it in one sentence.", "Explain it step by step."),
)
EVERYTHING = ThresholdPolicy(-1.0, GUARDS)
"""Serves every neighbour that no guard vetoes."""


def conversation(questions: Sequence[str], last: str = "continue") -> str:
    return join_turns([*(turn for question in questions for turn in (question, "Sure.")), last])


def earlier(turns: Sequence[str], policy: Policy | None = EVERYTHING) -> EarlierTurns:
    embedder = HashEmbedder()
    return EarlierTurns(conversation(turns), policy, Limits(), lambda text: embedder.embed([text])[0])


@given(
    st.lists(st.sampled_from(SAME), max_size=3),
    st.sampled_from(OTHER),
    st.lists(st.sampled_from(SAME), max_size=1),
    st.booleans(),
)
def test_a_vetoed_earlier_turn_prevents_a_match(
    before: list[tuple[str, str]], other: tuple[str, str], after: list[tuple[str, str]], turned: bool
) -> None:
    asked, stored = zip(*before, other, *after, strict=True)
    if turned:
        asked, stored = stored, asked
    assert not earlier(asked).matches(conversation(stored))


@given(st.lists(st.sampled_from(SAME), min_size=1, max_size=4))
def test_reworded_questions_match_in_order_only(turns: list[tuple[str, str]]) -> None:
    asked, stored = zip(*turns, strict=True)
    found = earlier(asked)
    assert found.matches(conversation(stored))
    assert not found.matches(conversation(stored[1:]))
    assert not found.matches(conversation([*stored, stored[0]]))


def test_a_statement_matches_only_if_its_words_are_equal() -> None:
    path = Path(__file__).parent.parent / "data" / "earlier_facts.jsonl"
    kinds = ("nearly equal statement", "passage", "own situation", "data", "preference")
    cases = [case for line in path.read_text().splitlines() if (case := json.loads(line))["kind"] in kinds]
    assert len(cases) > 60
    embedder = HashEmbedder()

    def match(asked: Sequence[str], stored: Sequence[str]) -> bool:
        found = EarlierTurns(join_turns(asked), EVERYTHING, Limits(), lambda text: embedder.embed([text])[0])
        return found.matches(join_turns(stored))

    assert not [case for case in cases if match(case["a"], case["b"]) or match(case["b"], case["a"])]
    assert match(["I am on the Team plan.", "ok", "continue"], ["I'm on the Team plan", "ok", "continue"])


def test_without_a_policy_or_a_vector_only_equal_turns_match() -> None:
    one, other = SAME[0]
    assert earlier([one], None).matches(conversation([one]))
    assert not earlier([one], None).matches(conversation([other]))
    unreadable = EarlierTurns(conversation([one]), EVERYTHING, Limits(), lambda text: None)
    assert not unreadable.matches(conversation([other]))


def test_a_lookup_compares_few_pairs() -> None:
    found = earlier(["Is it open?"])
    stored = [conversation([f"Is it{' ' * number}open?"]) for number in range(2, 9)]
    assert [found.matches(each) for each in stored] == [True] * 5 + [False] * 2
    assert found.matches(stored[0])


def test_a_lookup_compares_the_facts_of_few_long_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[str]()

    def have_equal_facts(ours: Context, theirs: Context, are_alike: object) -> bool:
        compared.append(theirs.last)
        return False

    monkeypatch.setattr(conversations, "have_equal_facts", have_equal_facts)
    found = earlier(["Is it open?"], CheckedPolicy(OverlapVerifier(), 0.9, 0.6))
    for _ in range(20):
        assert not found.matches(join_turns(["Is it far?", "No. " * 1000, "continue"]))
    assert len(compared) == 8
