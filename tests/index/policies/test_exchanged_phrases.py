"""Phrases that exchange their modifiers, and givers exchanged with receivers. The second sets were written after the rules."""

import pytest

from kvproxy.index.policies.guards.persons import persons_differ
from kvproxy.index.policies.guards.word_order import has_exchanged_words
from tests.index.policies.directions import Pair, read_pairs


def read(name: str, same: bool) -> list[Pair]:
    return [pair for pair in read_pairs(name) if bool(pair["same"]) is same]


@pytest.mark.parametrize("pair", read("common_heads", same=False), ids=lambda pair: pair["a"])
def test_phrases_with_a_common_noun_may_exchange_their_modifiers(pair: Pair) -> None:
    assert has_exchanged_words(pair["a"], pair["b"])
    assert has_exchanged_words(pair["b"], pair["a"])


def test_most_rewordings_of_phrases_with_a_common_noun_are_kept() -> None:
    pairs = read("common_heads", same=True)
    refused = [pair["b"] for pair in pairs if has_exchanged_words(pair["a"], pair["b"])]
    assert len(pairs) == 24
    # Other guards refuse the pairs of opposites. The other three are symmetric.
    assert refused == [
        "Is the monthly pass more expensive than the yearly pass?",
        "Is the blue bike slower than the red bike?",
        "How far is the train station from the bus station?",
        "Is the outdoor pool colder than the indoor pool?",
        "Can I combine the night pass with the student pass?",
        "Are the winter hours the same as the summer hours?",
    ]


@pytest.mark.parametrize("pair", read("receivers", same=False), ids=lambda pair: pair["a"])
def test_the_user_may_give_or_receive(pair: Pair) -> None:
    assert persons_differ(pair["a"], pair["b"])
    assert persons_differ(pair["b"], pair["a"])


def test_rewordings_keep_giver_and_receiver() -> None:
    pairs = read("receivers", same=True)
    assert len(pairs) == 22
    assert [
        pair for pair in pairs if persons_differ(pair["a"], pair["b"]) or persons_differ(pair["b"], pair["a"])
    ] == []
