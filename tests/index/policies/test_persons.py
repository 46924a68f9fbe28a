"""Questions about the user and about the addressee, which differ unless *you* stands for anybody."""

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
