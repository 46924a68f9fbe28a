"""The question of a message is separated from its passages, and equal sentences hide no other question."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.entry import learning_namespace
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.policy import Limits
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.passages import split_message
from kvproxy.index.search.shared_text import SharedText
from kvproxy.library.configured_cache import build_policy
from kvproxy.settings import CacheSettings
from tests.index.doubles import HashEmbedder
from tests.reference.memory_observations import MemoryObservations
from tests.requests import api_request

PASSAGES = "Dogs stay free of charge at the hotel. Cats cost 10 euros per night.\nBreakfast is served from 7 to 10."
QUESTION = "How much do cats cost?"
FORMS = (
    "Context:\nPASSAGES\n\nQuestion: QUESTION",
    "Answer the question based only on the following context:\nPASSAGES\n\nQuestion: QUESTION\n",
    "You are an assistant.\nQuestion: QUESTION \nContext: PASSAGES \nAnswer:",
    "Context is below.\n-----\nPASSAGES\n-----\nGiven the context, answer the query.\nQuery: QUESTION\nAnswer: ",
    "<context>\nPASSAGES\n</context>\n\nQUESTION",
    "<context>PASSAGES</context>\n<user_question>\nQUESTION\n</user_question>\nBe brief.",
    "# Context\nPASSAGES\n\n# Question\nQUESTION",
    "**Context**\nPASSAGES\n\n**Question:** QUESTION",
    # The adapters of dspy.
    "[[ ## context ## ]]\n[1] «PASSAGES»\n\n[[ ## question ## ]]\nQUESTION\n\nRespond with the corresponding output fields,"
    " starting with the field `[[ ## answer ## ]]`, and then ending with the marker for `[[ ## completed ## ]]`.",
    "[[ ## question ## ]]\nQUESTION\n\n[[ ## context ## ]]\nPASSAGES\n\nRespond with a JSON object in the following order of"
    " fields: `answer`.",
    "<context>\nPASSAGES\n</context>\n\n<question>\nQUESTION\n</question>\n\nRespond with the corresponding output fields"
    " wrapped in XML tags `<answer>`.",
    "=== Context ===\nPASSAGES\n=== Question ===\nQUESTION\n=== Answer ===",
    "Kontext:\nPASSAGES\n\nFrage: QUESTION\nAntwort:",
    "Context: PASSAGES Question: QUESTION",
    "QUESTION\n\nContext:\nPASSAGES",
    "I have pasted a page below. QUESTION\n\nPASSAGES\n- a list",
    "[INST] <<SYS>>\nUse the documents.\n<</SYS>>\n\nPASSAGES\n\nQUESTION [/INST]",
    "QUESTION\n\nOn Monday, Ann wrote:\n> PASSAGES",
    "Q: What is the longest river of Europe?\nA: The Volga is the longest river of Europe.\n\nQ: QUESTION\nA:",
    "```python\nprint('How much is it?', 'a long program', 'with many words', 'and more')\n```\nQUESTION",
    '{"context": "Cats cost 10 euros per night. Dogs stay free of charge.", "question": "QUESTION"}',
    "Handbook\n\nPASSAGES PASSAGES PASSAGES PASSAGES PASSAGES PASSAGES PASSAGES PASSAGES\n\nNow this. QUESTION Thanks!",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_question_is_found_beside_passages(form: str) -> None:
    text = form.replace("PASSAGES", PASSAGES).replace("QUESTION", QUESTION)
    split = split_message([text])
    assert split is not None
    assert split.question == QUESTION
    assert split.before + split.question + split.after == text


@pytest.mark.parametrize(
    "form",
    [
        "### Context\n- PASSAGES\n\n### Question\nQUESTION\n\n### Instructions\nAnswer in one paragraph.",
        "## User Query\nQUESTION\n\n## Context\nPASSAGES\n\n## Instructions\nAnswer in one paragraph.",
        "<context>PASSAGES</context>\n<question>QUESTION</question>\n<instructions>Answer in one paragraph.</instructions>",
        "Context: PASSAGES\n\nQuestion: QUESTION\n\nTask: Answer it.\n\nInstructions: Be brief.\n",
        "Question: Is it big?\nAnswer: no\n\nQuestion: QUESTION\nInstructions: Be brief, and answer with yes or no.",
    ],
)
def test_labelled_instructions_after_the_question_are_no_question(form: str) -> None:
    split = split_message([form.replace("PASSAGES", PASSAGES).replace("QUESTION", QUESTION)])
    assert split is not None
    assert split.question == QUESTION


def test_the_wording_of_a_question_matters_to_instructions_that_use_it() -> None:
    split = split_message([f"Context: {PASSAGES}\n\nQuestion: {QUESTION}\n\nTask: Translate the question to German."])
    assert split is not None
    assert split.question == "Translate the question to German."


def test_the_last_of_two_parts_is_the_question() -> None:
    split = split_message([f"Context: {PASSAGES}", QUESTION])
    assert split is not None
    assert split.question == QUESTION


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (f"Summarize the following text:\n\n{PASSAGES}", "Summarize the following text:"),
        (f"Translate the following to German:\n\n{PASSAGES}\nIs that right?", "Translate the following to German:"),
        (f"### Instruction:\nName the animals.\n\n### Input:\n{PASSAGES}\n\n### Response:", "Name the animals."),
    ],
)
def test_data_is_not_the_question(text: str, question: str) -> None:
    split = split_message([text])
    assert split is not None
    assert split.question == question


@pytest.mark.parametrize(
    "text",
    [
        QUESTION,
        f"I have two old cats and a dog with me. {QUESTION}",
        f"Hi, I booked a room at your hotel last week.\n\n{QUESTION}",
        f"Question: {QUESTION}\nAnswer:",
        PASSAGES,
        "",
    ],
)
def test_ordinary_messages_are_not_split(text: str) -> None:
    assert split_message([text]) is None


@given(
    st.lists(
        st.sampled_from(
            ["Question:", "\n", "Context", ": ", "<q>", "</q>", "How?", "A fact is here. ", "```", "> ", '"']
        )
    )
)
def test_a_split_keeps_the_whole_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    split = split_message([text])
    assert split is None or split.before + split.question + split.after == text


@pytest.mark.parametrize(
    "piece", ["A", " ", "\n", "a: ", "Question: a\n", "word ", "<a>b</a>\n", "-", "<", "A fact is here. "]
)
def test_long_texts_take_linear_time(piece: str) -> None:
    def seconds(size: int) -> float:
        text, start = piece * (size // len(piece)), time.process_time()
        split_message([text])
        return time.process_time() - start

    # Quadratic time would take 64 times as long, and hours for the longest texts.
    assert seconds(80_000) < 40 * max(0.01, seconds(10_000))


def text_and_namespace(content: object) -> tuple[str | None, str]:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    key = cache_key(api_request(body), "b", conversations=True).semantic  # type: ignore[arg-type]
    return key.text, key.namespace


def test_passages_are_part_of_the_namespace() -> None:
    form = "Context:\n{}\n\nQuestion: {}"
    text, namespace = text_and_namespace(form.format(PASSAGES * 20, QUESTION))
    assert text == QUESTION
    assert text_and_namespace(form.format(PASSAGES * 20, "Are dogs free?")) == ("Are dogs free?", namespace)
    other = text_and_namespace(form.format(PASSAGES * 21, QUESTION))[1]
    assert other != namespace
    assert learning_namespace(other) == learning_namespace(namespace) != text_and_namespace(QUESTION)[1]
    assert text_and_namespace(form.format(PASSAGES * 20, QUESTION) + "\nAnswer:")[1] != namespace
    assert text_and_namespace(form.format(PASSAGES, "a" * 900))[0] is None
    parts = [{"type": "text", "text": text} for text in (f"Context:\n{PASSAGES}", QUESTION)]
    assert text_and_namespace(parts)[0] == QUESTION


def shared(message: str, policy: ThresholdPolicy | None = ThresholdPolicy(0.5, GUARDS)) -> SharedText:
    embedder = HashEmbedder()
    return SharedText(message, policy, Limits(), lambda text: embedder.embed([text])[0])


FACT = "Employees get 30 vacation days per year. Interns get 20 vacation days per year."


@pytest.mark.parametrize(
    ("message", "stored", "allowed"),
    [
        (f"{FACT} How many do employees get?", f"{FACT} How many do employees get now?", True),
        (f"{FACT} How many do employees get?", f"{FACT} Is it a lot?", False),
        (f"{FACT} How many do employees get?", f"{FACT} Thanks! How many do employees get?", True),
        (f"{FACT} How many do employees get?", FACT, False),
        (f"{FACT} How many do employees get?", f"Hours are fixed. {FACT} How many do they get?", False),
        (f"{FACT} Managers get 40 days. How many is that?", f"{FACT} Workers get 40 days. How many is that?", False),
        (f"{FACT} Rest on Monday and Friday. How many?", f"{FACT} Rest on Monday or Friday. How many?", False),
        (f"{FACT} I've been ill. How many is that?", f"{FACT} I have been ill. How many is that?", True),
        (f"Summarise: {FACT}", f"Translate: {FACT}", False),
        ("How many days do I get? I am new.", "How many days do I get? I am old.", True),
        ("How many days do I get?", "When do I get them?", True),
    ],
)
def test_only_differing_sentences_are_compared(message: str, stored: str, allowed: bool) -> None:
    assert shared(message).allows(stored) is allowed
    assert shared(stored).allows(message) is allowed


@pytest.mark.parametrize(
    "opening",
    [
        "Please tell me:",
        "Quick question:",
        "Question:",
        "Query:",
        "Can you help me with this:",
        "Could you please answer this question:",
        "Hello team, I'd like to know:",
        "One thing I want to ask:",
        "Tell me:\n",
    ],
)
def test_an_opening_with_a_colon_is_no_label(opening: str) -> None:
    question = "how many seats does the Pro plan include?"
    message, stored = f"{opening} {question}", f"Hello, {question} Thanks!"
    assert shared(message).allows(stored)
    assert shared(stored).allows(message)
    assert not shared(f"{opening} {FACT} {question}").allows(f"{FACT} Is it a lot?")


@pytest.mark.parametrize("label", ["Summarise:", "Explain this:", "List:", "Not this:", "Plan 2:", "Review:"])
def test_a_label_that_changes_the_answer_is_compared(label: str) -> None:
    question = "how many seats does the Pro plan include?"
    assert not shared(f"{label} {question}").allows(question)
    assert not shared(question).allows(f"{label} {question}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Exchanges are allowed, refunds are not.", "Refunds are allowed, exchanges are not."),
        ("Ann manages sales; Bob manages support.", "Bob manages sales; Ann manages support."),
        ("Cards are valid in the shop but not online.", "Cards are valid online but not in the shop."),
        ("Plan A: 10 users, 20 GB. Plan B: 20 users, 10 GB.", "Plan A: 20 users, 10 GB. Plan B: 10 users, 20 GB."),
        ("It covers the frame, but never the motor.", "The motor is covered, but never the frame."),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "PASSAGE\nQUESTION",
        "PASSAGE QUESTION",
        "QUESTION\nPASSAGE",
        "QUESTION (context: PASSAGE)",
        "Given that PASSAGE: QUESTION",
    ],
)
def test_statements_beside_a_question_do_not_exchange_words(form: str, one: str, other: str) -> None:
    message, stored, same = (
        form.replace("PASSAGE", passage).replace("QUESTION", question)
        for passage, question in (
            (one, "Who does it?"),
            (other, "Can you tell me who does it?"),
            (one, "Tell me who does it?"),
        )
    )
    assert not shared(message).allows(stored)
    assert not shared(stored).allows(message)
    assert shared(message).allows(same)


def test_what_a_label_announces_does_not_exchange_words() -> None:
    one, other = (f"Observation: {facts}" for facts in ("Ann buys tea, Bob buys milk.", "Bob buys tea, Ann buys milk."))
    assert not shared(one).allows(other)
    assert shared("my card payment was declined").allows("declined: my card payment")


def test_without_a_policy_only_equal_sentences_match() -> None:
    assert not shared(f"{FACT} How many do employees get?", None).allows(f"{FACT} How many do employees get now?")
    assert shared(f"{FACT} How  many?", None).allows(f"{FACT}\nHow many?")


def test_few_stored_messages_are_compared_by_the_policy() -> None:
    compared = shared(f"{FACT} How many do employees get?")
    found = [
        compared.allows(f"{FACT} How many do employees get {word}?")
        for word in ("now", "here", "today", "then", "ever")
    ]
    assert sum(found) <= 3


def test_an_equal_passage_hides_no_other_question() -> None:
    embedder = load_embedder()
    policy = build_policy(CacheSettings(policy="checked"), MemoryObservations(), embedder.name)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (Path(__file__).parents[1] / "data/passages.jsonl").read_text().splitlines()]
    for row in rows[:8]:
        for one, other, is_same in row["pairs"]:
            message, stored = (f"{row['passage']} {question}" for question in (one, other))
            allows = SharedText(message, policy, Limits(), lambda text: embedder.embed([text])[0]).allows(stored)
            assert is_same or not allows, (one, other)
