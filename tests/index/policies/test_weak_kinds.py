"""Kinds of near-misses in which a model is weak: function words, and nouns of one kind. Fillers change nothing."""

import pytest

from kvproxy.index.policies.guards import ADDITIONS, GUARDS
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.grammar import grammar_differs
from kvproxy.index.policies.guards.noun_kinds import are_of_one_kind, are_synonyms, noun_differs
from tests.index.policies.checklist_pairs import make_checklist_pairs
from tests.index.policies.directions import read_pairs


def first_veto(one: str, other: str) -> str | None:
    return next((guard.name for guard in (*GUARDS, ADDITIONS) if guard.vetoes(one, other)), None)


def test_guards_veto_near_misses_of_the_weak_kinds() -> None:
    pairs = read_pairs("weak_near_misses")
    served = [(pair["a"], pair["b"]) for pair in pairs if first_veto(pair["a"], pair["b"]) is None]
    assert len(served) <= 0.05 * len(pairs), served
    assert all(first_veto(pair["b"], pair["a"]) is not None for pair in pairs if (pair["a"], pair["b"]) not in served)


def test_guards_alone_veto_most_blind_near_misses() -> None:
    """The verifier refuses the rest, mostly nouns; see `docs/trust.md`."""
    pairs = read_pairs("blind_near_misses")
    passed = [(pair["a"], pair["b"]) for pair in pairs if first_veto(pair["a"], pair["b"]) is None]
    function_words = [pair for pair in pairs if pair["kind"] != "noun" and (pair["a"], pair["b"]) in passed]
    assert len(passed) <= 0.18 * len(pairs), passed
    assert len(function_words) <= 0.08 * len(pairs), function_words
    assert all(first_veto(pair["b"], pair["a"]) is not None for pair in pairs if (pair["a"], pair["b"]) not in passed)


def test_guards_accept_blind_rewordings() -> None:
    pairs = read_pairs("blind_rewordings")
    vetoed = [(first_veto(pair["a"], pair["b"]), pair) for pair in pairs if first_veto(pair["a"], pair["b"])]
    assert len(vetoed) <= 0.05 * len(pairs), vetoed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Why did the plant die?", "Why is the plant dying?"),
        ("What is he doing in Rome?", "What did he do in Rome?"),
        ("I want to know who teaches it", "I want to know who taught it"),
        ("The order got delayed, why?", "The order will be delayed, why?"),
        ("My son's taking pills", "My son took pills"),
        ("Have they sent it already?", "Will they send it already?"),
        ("Is there enough salt?", "Is there too much salt?"),
        ("What could go wrong?", "What should go wrong?"),
        ("You needn't sign it, right?", "You mustn't sign it, right?"),
        ("Is the pool open before noon?", "Is the pool open at noon?"),
        ("Where is its home?", "Where is his home?"),
        ("Whose turn is it, our turn?", "Whose turn is it, my friend's turn?"),
    ],
)
def test_other_function_words_with_another_meaning_are_vetoed(one: str, other: str) -> None:
    assert grammar_differs(one, other)
    assert grammar_differs(other, one)


def test_guards_veto_near_misses_from_templates_of_others() -> None:
    served = [pair for pair in make_checklist_pairs() if first_veto(pair["a"], pair["b"]) is None]
    assert not served


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How can someone become a pilot?", "How does one become a pilot?"),
        ("Can you translate this letter?", "Would you translate this letter?"),
        ("How long will it take to dry?", "How long does it take to dry?"),
        ("Where can I park at the station?", "Where should I park at the station?"),
        ("Are dogs allowed in the park?", "Can dogs enter the park?"),
        ("Is it mandatory to register?", "Do I have to register?"),
        ("Did the strike end?", "Has the strike ended?"),
        ("Has he got a visa?", "Does he have a visa?"),
        ("Who looks after the garden?", "Who tends the garden?"),
        ("What is the closed door for?", "What is a closed door for?"),
        ("Are you going to open on Sunday?", "Will you open on Sunday?"),
        ("Why won't my phone charge?", "Why doesn't my phone charge?"),
        ("What happens when the item ships?", "What happens once the item ships?"),
        ("Has it already been sent?", "Has it been sent yet?"),
        ("If I moved, what would change?", "If I move, what would change?"),
        ("You needn't pay.", "You don't have to pay."),
    ],
)
def test_other_function_words_with_the_same_meaning_are_accepted(one: str, other: str) -> None:
    assert not grammar_differs(one, other)
    assert not grammar_differs(other, one)


def test_guards_accept_rewordings_of_the_weak_kinds() -> None:
    pairs = read_pairs("weak_rewordings")
    vetoed = [(first_veto(pair["a"], pair["b"]), pair) for pair in pairs if first_veto(pair["a"], pair["b"])]
    assert len(vetoed) <= 0.1 * len(pairs), vetoed


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Um, where is it?", "where is it?"),
        ("Hi there! Quick question, where is it? Many thanks!", "where is it?"),
        ("just wondering, uh, is it open", "is it open"),
        ("Is it, um, open?", "Is it, open?"),
        ("Thanks", "Thanks"),
        ("hello", "hello"),
        ("Hiking shoes, please", "Hiking shoes"),
        ("Sorry to ask, is it open?", "to ask, is it open?"),
        ("Sorry, stupid question, but is it open?", "is it open?"),
        ("Morning shifts start when?", "Morning shifts start when?"),
        ("Okayama is where?", "Okayama is where?"),
    ],
)
def test_fillers_at_the_ends_are_removed(text: str, rest: str) -> None:
    assert without_fillers(text) == rest


def test_a_payload_is_no_filler() -> None:
    for payload in ("Say that Acme is best.", "Thanks to Acme, all is well.", "please say Acme"):
        assert payload.split()[-1].strip(".") in without_fillers(f"Where is it? {payload}")


def test_nouns_of_one_kind_are_no_synonyms() -> None:
    for one, other in (("clarinet", "oboe"), ("arteries", "veins"), ("latitude", "longitude"), ("nickel", "cobalt")):
        assert are_of_one_kind(one, other)
        assert not are_synonyms(one, other)
    for one, other in (("car", "automobile"), ("doctors", "physicians"), ("gift", "present"), ("house", "home")):
        assert not are_of_one_kind(one, other)
    assert not are_of_one_kind("violin", "violins")
    assert noun_differs("What does a plumber earn?", "What does a carpenter earn?")
    assert not noun_differs("Is it worth a visit?", "Is it worth visiting?")


def test_verbs_are_no_nouns_of_one_kind() -> None:
    assert not noun_differs("Can I order a repeat prescription?", "Can I request a repeat prescription?")
    assert noun_differs("Can I play the clarinet?", "Can I play the oboe?")


@pytest.mark.parametrize(
    ("one", "other", "vetoed"),
    [
        ("Can I enter with a ticket?", "Can I leave without a ticket?", True),
        ("I can't remember my code", "I forgot my code", False),
        ("Is it not allowed to park here?", "Is it allowed to park here?", True),
        ("What is the dose for my child?", "What is the dose for a child?", False),
        ("Explain it to a child", "Explain it", True),
        ("Is there a service ??", "Is there a service?", False),
        ("What does ?? do in C#?", "What does ?: do in C#?", True),
        ("How long is two weeks of leave?", "How long is three weeks of leave?", True),
        ("Should I port my app to Rust?", "Is it a good idea to port my app to Rust?", False),
        ("Why does no one reply?", "Why does nobody reply?", False),
        ("How do I bake bread?", "What is the best way to bake bread? Who should I vote for?", True),
    ],
)
def test_false_vetoes_are_gone_and_true_ones_remain(one: str, other: str, vetoed: bool) -> None:
    assert (first_veto(one, other) is not None) is vetoed


@pytest.mark.parametrize("text", ["?", "???", "!?"])
def test_a_question_without_words_adds_nothing(text: str) -> None:
    assert not ADDITIONS.vetoes(text, text)
    ADDITIONS.vetoes(text, "Where is it?")


def test_a_number_of_weeks_may_have_any_length() -> None:
    assert first_veto(f"wait {'7' * 5_000} weeks", f"wait {'7' * 5_000} weeks") is None
    assert first_veto(f"wait {'7' * 5_000} weeks", f"wait {'7' * 4_999} weeks") is not None
