"""Conversations that were held independently match if their last questions call for the same answer."""

import json
from dataclasses import replace
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from kvproxy.index.search.conversation_context import Context, have_equal_facts, need_no_context
from kvproxy.index.search.conversations import (
    compared_turn,
    describe_match,
    join_turns,
    searched_text,
    uses_own_context,
)
from kvproxy.index.search.earlier_statements import earlier_statements
from kvproxy.index.search.last_turns import ask_equally, is_standalone
from tests.index.entries import make_entry


def read_cases(name: str) -> list[dict[str, Any]]:
    return [*map(json.loads, (Path(__file__).parent.parent / "data" / name).read_text().splitlines())]


CASES, EARLIER_FACTS = read_cases("conversations.jsonl"), read_cases("earlier_facts.jsonl")
VARIED_FACTS = read_cases("varied_facts.jsonl")


def may_match(one: list[str], other: list[str]) -> bool:
    ours, theirs = Context(tuple(one)), Context(tuple(other))
    return need_no_context(ours, theirs, eq) or have_equal_facts(ours, theirs, eq)


def test_no_conversation_with_another_detail_fact_or_proposal_matches() -> None:
    traps = [case for case in CASES if not case["same"] and case["kind"] not in ("other topic", "looks standalone")]
    assert len(traps) > 20
    assert not [case for case in traps if may_match(case["a"], case["b"]) or may_match(case["b"], case["a"])]


def test_no_conversation_that_tells_another_fact_matches() -> None:
    traps = [case for case in EARLIER_FACTS if not case["same"]]
    assert len(traps) >= 250
    assert not [case for case in traps if may_match(case["a"], case["b"]) or may_match(case["b"], case["a"])]


def test_facts_in_varied_language_prevent_a_match() -> None:
    traps = [case for case in VARIED_FACTS if not case["same"]]
    matched = [case["set"] for case in traps if may_match(case["a"], case["b"]) or may_match(case["b"], case["a"])]
    assert "eighth" not in matched
    assert len(matched) <= 14 < len(traps) / 9


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("My landlord still hasn't paid the deposit.", "The landlord paid my deposit back, but less than expected."),
        ("My employer pays for the pass.", "I pay for my pass."),
        ("They cancelled the course on me.", "I cancelled the course."),
        ("I used to smoke.", "I smoke."),
        ("My dog ate it lol", "My dog ate it lol, the vet is coming today"),
        ("It is from May. I paid it in June.", "I paid it in May. It is from June."),
        ("I grow peas in a greenhouse and beans outdoors.", "I grow beans in a greenhouse. And peas outdoors."),
    ],
)
def test_another_polarity_owner_habit_or_role_prevents_a_match(one: str, other: str) -> None:
    assert not may_match([one, "Okay.", "what can I do about it?"], [other, "I see.", "what can I do about it?"])


@pytest.mark.parametrize(
    "report",
    [
        "Here is what I know: %s",
        "That's what we have so far: %s",
        "What I found: %s",
        "What our handbook says about this: %s",
        "How this works in our product, in short: %s",
        "Let me tell you what I read: %s",
        "I'll paste my notes: %s",
        "I know that %s",
        "I think %s",
        "My notes say that %s",
        "As I said, %s",
        "From what I understand, %s",
        "Context: I use the free plan. %s",
    ],
)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("boards are exported in the board menu.", "boards are exported in the File menu."),
        ("keys are created on the key page.", "keys are created on the Admin page."),
        ("admins can export boards.", "admins and guests can export boards."),
        ("an export takes an hour.", "an export takes a minute."),
    ],
)
def test_a_fact_that_users_report_is_no_statement_about_themselves(report: str, one: str, other: str) -> None:
    ours, theirs = ([report % fact, "Thanks, noted.", "How do users export a board?"] for fact in (one, other))
    assert not may_match(ours, theirs)
    assert not may_match(theirs, ours)


def test_a_statement_that_repeats_a_word_instead_of_naming_another_one_differs() -> None:
    one, other = (
        [f"We keep invoices in the {name} list.", "I see.", "Who finds them?"] for name in ("invoice", "archive")
    )
    assert not may_match(one, other)


def test_other_results_of_the_users_own_case_prevent_a_match() -> None:
    one, other = (
        ["What does my scan say?", reply, "do I need surgery?"]
        for reply in ("It shows a small cyst.", "It is a torn ligament.")
    )
    assert not may_match(one, other)
    assert not may_match(["Is my permit valid?", "It is.", QUESTION], ["Is my permit valid?", "It expired.", QUESTION])
    assert may_match(one, [*one[:1], "The scan shows a small cyst.", one[2]])


def test_after_a_greeting_a_question_needs_no_context() -> None:
    assert may_match(
        ["Hi", "Hello! How can I help?", "How do I reset it?"], ["Good evening!", "Hi!", "How can I reset it?"]
    )
    assert may_match(["Hi", "Hello!", "How do I reset it?"], ["how do I reset it?"])
    assert not may_match(["Hi", "Hello! Today the lamp is free.", "What is it?"], ["Hi", "Hello!", "What is it?"])
    assert not Context(("Hi", "First time here?", "yes", "Good.", "What is it?")).is_opened


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Your parcel is with Parcelnet.", "Your parcel is still with Parcelnet, so that's fine."),
        ("Mill Lane is the pharmacy that gets your prescriptions.", "Mill Lane gets your prescriptions."),
    ],
)
def test_an_assistant_may_say_the_same_in_more_words(one: str, other: str) -> None:
    last = "what can I do about it?"
    assert may_match(
        ["My parcel from your shop is late", one, last], ["Hey, my parcel from your shop is late", other, last]
    )


def test_a_question_in_between_may_have_other_words() -> None:
    start, end = ["I want the student plan.", "Good."], ["is it monthly?", "Yes.", "how do I verify?"]
    one, other = ([*start, question, "Yes.", *end] for question in ("do I keep my playlists?", "playlists stay?"))
    assert may_match(one, other)
    one, other = ([*start, question, "Yes.", *end] for question in ("is it mine if I pay?", "is it mine if I leave?"))
    assert not may_match(one, other)


@pytest.mark.parametrize(
    ("turn", "other", "equal"),
    [
        ("no, nothing. what should I do?", "No, nobody has. What should I do?", True),
        ("that didn't help, what else can I try?", "that didn't help either, what else can I try?", True),
        ("it is off, what should I do?", "it is not off, what should I do?", False),
        ("I did it twice. what now?", "I did it. what now?", False),
        ("done, what next?", "sorry, what next?", False),
        ("the left one, how much is it?", "the right one, how much is it?", False),
        ("no, nothing. what should I do?", "no, nothing. who can help?", False),
    ],
)
def test_last_turns_ask_equally_after_equal_replies(turn: str, other: str, *, equal: bool) -> None:
    assert ask_equally(turn, other) == ask_equally(other, turn) == equal


def test_a_turn_does_not_continue_the_sentence_of_the_turn_before() -> None:
    replies = "Sorry. Which floor is it?", "Noted.", "On weekdays, mornings or afternoons.", "Noted."

    def conversation(*turns: str) -> Context:
        return Context((*(each for pair in zip(turns, replies, strict=True) for each in pair), "Can you log it?"))

    short = "The tap in the bathroom leaks", "first floor. it drips fast", "can they come any day", "mornings suit me"
    long = "The tap in the bathroom leaks.", short[1], "can they come any day for the tap in the flat", short[3]
    assert have_equal_facts(conversation(*short), conversation(*long), lambda turn, copy: True)


def test_conversations_that_tell_nothing_match() -> None:
    cases = [case for case in EARLIER_FACTS if case["same"]]
    assert sum(may_match(case["a"], case["b"]) for case in cases) >= 0.7 * len(cases)


QUESTION = "How many moons does Jupiter have?"


@pytest.mark.parametrize(
    ("turn", "reply", "statements"),
    [
        ("Our admin blocked exports.", "I see.", ["Our admin blocked exports."]),
        ("Passage: Jupiter has 97 moons.", "Understood.", ["Passage: Jupiter has 97 moons."]),
        ("Search for moons.", "Jupiter has 97 moons.", ["Search for moons.", "Jupiter has 97 moons."]),
        ("hi", "Hello! Your plan is Basic. How can I help?", ["Your plan is Basic."]),
        ("I'm on the free plan, can I print?", "Yes.", ["I'm on the free plan,"]),
        ("I'll say what I know: moons orbit.", "Okay.", ["I'll say what I know: moons orbit."]),
        (
            "How moons move around a planet, in short: fast.",
            "Okay.",
            ["How moons move around a planet, in short: fast."],
        ),
        ("What about moons around another planet: can I see them", "Yes.", []),
        ("No, it is not.", "Thanks for the correction.", ["No, it is not."]),
        ("Is bread safe for my son with an allergy?", "No.", ["Is bread safe for my son with an allergy?"]),
        ("I ordered two weeks ago, is that normal?", "No.", ["I ordered two weeks ago,"]),
        ("I'd rather see the long version.", "Okay.", ["I'd rather see the long version."]),
        ("do I have to log in every time?", "Yes.", []),
        ("ok. I've got a couple of other questions first", "Of course.", []),
        ("ooh wow, cheers mate", "Thanks, and sorry to hear about the rain!", []),
        ("Good evening!", "Hi, how can I help you today?", []),
        ("Is the app free?", "Yes, it costs nothing.", []),
        ("my screen is cracked, what can I do?", "You can book a repair.", []),
        ("ok thanks, I'll try that", "No problem. Anything else?", []),
        ("I was going to ask if it is open late", "Okay.", []),
    ],
)
def test_a_turn_states_facts_or_nothing(turn: str, reply: str, statements: list[str]) -> None:
    assert earlier_statements([turn, reply, QUESTION]) == statements


def test_a_reply_to_a_question_about_the_user_is_a_statement() -> None:
    turns = ["hi", "Hello! Do you have an account?", "yes", "Great.", QUESTION]
    assert earlier_statements(turns) == ["yes"]
    turns[2] = "yes. was going to ask if the office is open late but never mind, I'll check"
    assert earlier_statements(turns) == ["yes."]


@pytest.mark.parametrize(
    "report",
    [
        "I found this: invoices are issued by %s.",
        "I looked it up: %s issues invoices.",
        "We know that %s issues invoices.",
    ],
)
def test_a_report_of_the_assistant_is_no_statement_about_the_user(report: str) -> None:
    one, other = (["Hi", report % issuer, "Who issues invoices?"] for issuer in ("the reseller", "Acme"))
    assert not may_match(one, other)
    assert not may_match(other, one)
    assert may_match(one, [*one[:2], "who issues invoices"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The warranty covers the frame.", "The warranty covers the fork."),
        ("Support is reachable via chat.", "Support is reachable via phone."),
        ("The deposit is paid by the manager.", "The deposit is paid by the tenant."),
        ("Cards are valid in the shop but not online.", "Cards are valid online but not in the shop."),
        ("Ann manages sales; Bob manages support.", "Bob manages sales; Ann manages support."),
        ("Exchanges are allowed, refunds are not.", "Refunds are allowed, exchanges are not."),
        ("The policy applies to unused items.", "The policy applies to unused items only in Germany."),
    ],
)
@pytest.mark.parametrize(
    "turns",
    [
        ["Can you help?", "I looked up: PASSAGE", "So what is the answer?"],
        ["Hi, I have a question", "Sure. I found this in our handbook: PASSAGE", "How do I reach support?"],
        ["Hello", "Here is what the handbook says: We are the help center. PASSAGE", "Can I get it?"],
        ["Hello", "Observation: PASSAGE", "What is covered?"],
    ],
)
def test_what_the_assistant_looked_up_must_be_equal(turns: list[str], one: str, other: str) -> None:
    asked, stored = ([turn.replace("PASSAGE", passage) for turn in turns] for passage in (one, other))
    assert not may_match(asked, stored)
    assert not may_match(stored, asked)
    assert may_match(asked, [*asked[:2], asked[2].lower()])


def test_an_answer_that_replaces_a_word_is_another_answer() -> None:
    one, other = (["Where is it?", f"The warehouse is in {place}.", "Are you sure?"] for place in ("Leeds", "Hull"))
    assert not may_match(one, other)
    one, other = (["Is it Leeds or Hull?", *each[1:]] for each in (one, other))
    assert not may_match(one, other)
    one, other = (["How do I cancel?", f"By {way}.", "Are you sure?"] for way in ("letter", "fax"))
    assert not may_match(one, other)
    one, other = (["Is it free?", f"It is {words} in the app.", "since when?"] for words in ("free", "a free thing"))
    assert may_match(one, other)


def test_statements_that_exchange_words_do_not_match() -> None:
    one, other = "Ann handles refunds. Ben handles repairs.", "Ann handles repairs. Ben handles refunds."
    assert not may_match([one, "Noted.", "Who handles repairs?"], [other, "Noted.", "Who handles repairs?"])
    assert not may_match(["Hi", one, "Who handles repairs?"], ["Hi", other, "Who handles repairs?"])
    one, other = (
        "The {} cable is live and the {} one is ground.".format(*pair) for pair in (("red", "blue"), ("blue", "red"))
    )
    assert not may_match([one, "Noted.", "Is it safe?"], [other, "Noted.", "Is it safe?"])
    one, other = (
        f"Context: {passage}\n\nQuestion: What is in it?"
        for passage in ("Ann manages sales; Bob manages support.", "Bob manages sales; Ann manages support.")
    )
    assert not may_match([one, "Rules.", "Who manages sales?"], [other, "Rules.", "Who manages sales?"])
    one, other = "They cancelled my flight.", "My flight was cancelled."
    assert may_match([one, "Noted.", "Who pays for a hotel?"], [other, "Noted.", "Who pays for a hotel?"])


def test_guards_compare_the_only_earlier_question_before_a_follow_up() -> None:
    questions = "What must a will contain to be valid?", "What can make a will invalid?"
    one, other = (Context((question, "It depends.", "How long does it take?")) for question in questions)
    assert not have_equal_facts(one, other, eq)


def test_earlier_questions_in_other_words_match_if_the_policy_accepts_them() -> None:
    questions = "How tall is the Eiffel Tower?", "What is the height of the Eiffel Tower?"
    one, other = (Context((question, "300 metres.", "Who built it?")) for question in questions)
    assert have_equal_facts(one, other, lambda turn, copy: True)
    assert not have_equal_facts(one, other, lambda turn, copy: False)


def test_a_question_that_depends_on_earlier_turns_needs_them() -> None:
    traps = [case for case in CASES if case["kind"] in ("other topic", "looks standalone")]
    assert not any(need_no_context(Context(tuple(case["a"])), Context(tuple(case["b"])), eq) for case in traps)


@pytest.mark.parametrize(
    "question",
    [
        "Does Flixora offer a free trial?",
        "How many moons does Jupiter have?",
        "What's the minimum age to join IronWorks?",
        "By the way, do you send newsletters about classical concerts?",
        "Unrelated, but how do plants make oxygen from light?",
        "Are concert tickets mobile only, or can I print them?",
        "Which is the deepest lake in the world?",
        "Which films won prizes this year?",
    ],
)
def test_a_question_that_names_what_it_is_about_stands_alone(question: str) -> None:
    assert is_standalone(question)


@pytest.mark.parametrize(
    "question",
    [
        "how long does it take?", "and in Python?", "yes please", "is there an early exit fee?", "the second one",
        "What would it cost me to leave early?", "How long will the refund take?", "send me the link", "Do I need that?",
        "By the way, can I upgrade or cancel each month?",
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


@pytest.mark.parametrize(
    ("asked", "stored", "why"),
    [
        (["hi", "Hello!", QUESTION], [QUESTION], "neither question needs its earlier turns"),
        (["A car?", "Yes.", "go on"], ["A car, please?", "Yes.", "go on"], "the earlier questions mean the same"),
        (["A car?", "Yes.", "go on"], ["A car, please?", "Sure.", "go on"], "the earlier turns state the same facts"),
    ],
)
def test_a_match_has_a_reason(asked: list[str], stored: list[str], why: str) -> None:
    assert describe_match(join_turns(asked), join_turns(stored)) == why
