"""Comparisons of the facts of two answers."""

import json
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.learned.answer_facts import answers_equal, compare_words, embedded_part

_DATA = Path(__file__).parents[2] / "data"


def test_other_wordings_are_not_different_and_changed_facts_rarely_equal() -> None:
    embedder = load_embedder()
    same, changed = Counter[bool | None](), Counter[bool | None]()
    for name in ("answer_wordings.jsonl", "short_answers.jsonl"):
        for row in map(json.loads, (_DATA / name).read_text().splitlines()):
            texts = [*row["same"], *row["changed"]]
            vectors = dict(zip(texts, embedder.embed(texts), strict=True))
            for counts, pairs in (
                (same, combinations(row["same"], 2)),
                (changed, product(row["same"], row["changed"])),
            ):
                for one, other in pairs:
                    counts[answers_equal(one, other, float(vectors[one] @ vectors[other]))] += 1
    assert (same.total(), changed.total()) == (420, 639)
    assert same[False] == 0
    assert same[True] >= 80
    assert changed[True] <= 20
    assert changed[False] >= 165


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Refunds take 2 weeks after we receive the item.", "Refunds take 14 days after we receive the item.", True),
        ("Refunds take 3 weeks after we receive the item.", "Refunds take 14 days after we receive the item.", False),
        ("The warranty lasts 24 months from the purchase.", "The warranty lasts two years from the purchase.", True),
        ("The plan includes twenty-five seats.", "The plan includes 25 seats.", True),
        ("The plan includes twenty-five seats.", "The plan includes 35 seats.", False),
        ("Shipping costs $5.", "Shipping costs 5 dollars.", True),
        ("Shipping costs $5.00.", "Shipping costs 5 euros.", False),
        ("Rent is due on the 1st.", "Rent is due on the first.", True),
        ("Refunds take 14 days after they reach us.", "Your money is back in 30 days.", False),
        ("The app works offline.", "You need no connection to use it.", None),
        ("Write to billing@acme.com.", "Write to sales@acme.com.", None),
    ],
)
def test_quantities_are_compared_in_plain_numbers(one: str, other: str, equal: bool | None) -> None:
    assert answers_equal(one, other, 0.9) is equal
    assert answers_equal(other, one, 0.9) is equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Yes, it does.", "No, it does not.", False),
        ("No.", "Yes: each plan includes phone support.", False),
        ("Yes, the plan includes phone support.", "Yes! Phone support is included in the plan.", True),
    ],
)
def test_yes_and_no_contradict_each_other(one: str, other: str, equal: bool | None) -> None:
    assert answers_equal(one, other, cosine=0.9) is equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("The old one.", "The new one.", None),
        ("The cheap one.", "The dear one.", None),
        ("Ask your manager.", "Ask your landlord.", None),
        ("Ask your old manager first.", "Ask your new landlord first.", None),
        ("Anna handles it.", "Ben handles it.", False),
        ("The capital is Paris.", "Paris is the capital.", True),
        ("Yes, it is possible.", "Yes, that is possible.", True),
    ],
)
def test_a_replaced_word_of_a_short_answer_may_be_its_only_fact(one: str, other: str, equal: bool | None) -> None:
    assert answers_equal(one, other, cosine=0.9) is equal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Stress can cause hair loss in adults.", "Hair loss can cause stress in adults."),
        ("The fee is included in the ticket price.", "The ticket price is included in the fee."),
        ("A visa requires a job offer.", "A visa is required for a job offer."),
    ],
)
def test_answers_that_exchange_two_things_are_not_equal(one: str, other: str) -> None:
    assert answers_equal(one, other, cosine=0.99) is not True


_OPENINGS = (
    *("Sure! {}.", "Certainly, {}.", "Of course! {}.", "Absolutely: {}.", "No problem! {}.", "Great question! {}."),
    *("To do that: {}.", "Happy to help. {}.", "Here is how it works: {}.", "{}."),
)
_CLOSINGS = (" Anything else?", " Let me know if you have any other questions.", " I hope this helps!", "")


@pytest.mark.parametrize("opening", _OPENINGS)
@pytest.mark.parametrize("closing", _CLOSINGS)
def test_polite_phrases_state_no_facts(opening: str, closing: str) -> None:
    one = "open Billing, choose Plan and click Cancel plan; the plan ends with the paid month"
    other = "open Billing, choose Plan and click Cancel plan; the plan ends with the paid year"
    wording = opening.format(one) + closing
    assert answers_equal(wording, f"{one}.", cosine=0.95) is True
    assert answers_equal(wording, f"{other}.", cosine=0.95) is not True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Sure, dogs are allowed in all rooms.", "No, dogs are not allowed in all rooms."),
        ("Absolutely not, dogs are allowed in no room.", "Absolutely, dogs are allowed in each room."),
        ("Certainly.", "No."),
        ("Let me know your account number first.", "Let me know your order number first."),
    ],
)
def test_a_phrase_that_answers_is_compared(one: str, other: str) -> None:
    assert answers_equal(one, other, cosine=0.9) is not True


_REFUND = (
    "Return the unused item within 30 days, open Orders, choose Return, and print the prepaid label for the parcel."
)
_REFUND_REORDERED = (
    "Open Orders, choose Return, and print the prepaid label for the parcel: return the unused item within 30 days."
)
_WEATHER = "Heavy clouds bring rain tonight, tomorrow stays sunny with light winds near the coast."


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (_WEATHER, False),
        (_REFUND_REORDERED, True),
        (_REFUND_REORDERED.replace("30", "14"), None),
        (_REFUND.replace("30", "14"), False),
    ],
)
def test_unrelated_and_similar_words_decide_without_embeddings(other: str, equal: bool | None) -> None:
    verdicts = compare_words(_REFUND, other)
    assert not verdicts.need_cosine
    assert {verdicts.at(cosine) for cosine in (0.1, 0.5, 0.9)} == {equal}


def test_free_rewordings_need_the_cosine() -> None:
    other = "Items that were not used can be sent back for a month: your Orders page has a Return button with a label."
    assert compare_words(_REFUND, other).need_cosine


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Refunds arrive within 14 days.", "It takes up to 14 days.", None),
        ("The API allows 600 requests per minute.", "600 per minute.", None),
        ("Our partner Paddle sends the invoices.", "Paddle does.", None),
        ("The link is valid for 30 minutes.", "500 GB.", False),
        ("Refunds arrive within 14 days.", "Invoices go to the billing address.", False),
    ],
)
def test_a_short_answer_with_the_facts_of_a_longer_one_is_not_different(
    one: str, other: str, equal: bool | None
) -> None:
    assert answers_equal(one, other, 0.3) is equal
    assert answers_equal(other, one, 0.3) is equal


def test_the_beginning_of_a_long_answer_is_embedded() -> None:
    assert embedded_part(_REFUND) == _REFUND
    beginning = embedded_part("word " * 1000)
    assert len(beginning) <= 400
    assert beginning.endswith("word")
    assert len(embedded_part("x" * 1000)) == 400
