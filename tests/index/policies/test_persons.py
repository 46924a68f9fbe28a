"""Questions about the user and about the addressee, which differ unless *you* stands for anybody."""

import pytest

from kvproxy.index.policies.guards.persons import persons_differ
from tests.index.policies.directions import read_pairs


def test_most_exchanges_of_the_user_and_the_addressee_are_found() -> None:
    pairs = [pair for pair in read_pairs("persons") if not pair["same"]]
    missed = [pair for pair in pairs if not persons_differ(pair["a"], pair["b"])]
    assert len(pairs) == 115
    assert len(missed) <= 1, missed
    assert all(persons_differ(pair["b"], pair["a"]) for pair in pairs if pair not in missed)


def test_you_may_stand_for_anybody() -> None:
    pairs = [pair for pair in read_pairs("persons") if pair["same"]]
    assert [pair["a"] for pair in pairs if persons_differ(pair["a"], pair["b"])] == [
        "Can I drink the tap water in Lisbon?"
    ]


def test_exchanges_in_subordinate_clauses_are_found() -> None:
    pairs = [pair for pair in read_pairs("subordinate_persons") if not pair["same"]]
    missed = [pair["b"] for pair in pairs if not persons_differ(pair["a"], pair["b"])]
    assert len(pairs) == 105
    assert len(missed) <= 6, missed
    assert all(persons_differ(pair["b"], pair["a"]) for pair in pairs if pair["b"] not in missed)


def test_you_may_stand_for_anybody_in_subordinate_clauses() -> None:
    pairs = [pair for pair in read_pairs("subordinate_persons") if pair["same"]]
    assert [pair["a"] for pair in pairs if persons_differ(pair["a"], pair["b"])] == [
        "Do I pay tax if I win a lottery?",
        "Does a battery age faster if I charge it overnight?",
        "Is a visa needed if I only change planes?",
        "What happens if I send money to a wrong account?",
    ]


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("Do I get my money back if I cancel the trip?", "Do I get my money back if you cancel the trip?", True),
        ("Is my deposit refunded when I cancel?", "Is my deposit refunded when you cancel?", True),
        ("What happens when I cancel the order?", "What happens when you cancel the order?", True),
        ("Who pays the shipping when I send it back?", "Who pays the shipping when you send it back?", True),
        ("What happens if I lose my passport?", "What happens if you lose my passport?", True),
        ("What happens if I lose my passport?", "What happens if you lose your passport?", False),
        ("Do I get a refund if I miss the flight?", "Do I get a refund if we miss the flight?", False),
        ("Do I get a refund if I was overcharged?", "Do I get a refund if you overcharged me?", False),
    ],
)
def test_subordinate_clauses_differ_by_their_subject(one: str, other: str, differs: bool) -> None:
    assert persons_differ(one, other) is persons_differ(other, one) is differs
