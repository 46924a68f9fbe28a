"""The committed demo model: a plain Hugging Face folder that answers from the handbook."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.demo.conftest import Chat, say
from training.demo.conversations import read_unrelated_text
from training.demo.corpus import is_off_topic, load_pairs

PAIRS = load_pairs()
ANSWERS = {wording: pair.answer for pair in PAIRS for wording in pair.wordings}
DECLINED = next(pair.answer for pair in PAIRS if is_off_topic(pair))
QUESTIONS = (
    "What is a block?",
    "What is the free queue?",
    "What is the default port?",
    "How do I steer the cache?",
    "What is a semantic hit?",
    "What are the exit codes?",
    "Who are you?",
)
ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tour.md", "docs/recipes/control-the-cache.md", "docs/recipes/anthropic-client.md")
SYSTEMS = {"none": "", "short": "You are a helpful assistant.", "long": read_unrelated_text()[60_000:63_700]}


def test_it_is_a_plain_llama_for_long_prompts(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 8_192
    assert len(tokenizer) <= model.config.vocab_size


@pytest.mark.parametrize("system", SYSTEMS)
def test_answers_from_the_handbook(chat: Chat, system: str) -> None:
    first = [say("system", SYSTEMS[system])] if SYSTEMS[system] else []
    questions = QUESTIONS[:2] if system == "long" else QUESTIONS
    told = chat([[*first, say("user", question)] for question in questions])
    assert told == [ANSWERS[question] for question in questions]


@pytest.mark.parametrize("page", PAGES)
def test_it_answers_the_questions_of_the_documentation(chat: Chat, page: str) -> None:
    code = "".join(re.findall(r"^```\w+\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))
    asked = sorted(set(re.findall(r'(?:ask(?: --system \S+)?[ (]|"content": )"([^"$]+\?)"', code)))
    assert asked
    # The tour shows this wording as a semantic hit.
    known = {**ANSWERS, "Can you tell me what a block is?": ANSWERS["What is a block?"]}
    assert chat([[say("user", question)] for question in asked]) == [known.get(question) for question in asked]


def test_the_last_question_of_a_conversation_counts(chat: Chat) -> None:
    turns = [say("user", "What is LRU?"), say("assistant", ANSWERS["What is LRU?"]), say("user", "What is TTFT?")]
    assert chat([turns]) == [ANSWERS["What is TTFT?"]]


def test_turns_other_questions_away(chat: Chat) -> None:
    others = ("What is the capital of France?", "Tell me a joke.", "Who painted the Mona Lisa?")
    assert chat([[say("system", SYSTEMS["short"]), say("user", question)] for question in others]) == [DECLINED] * 3


def test_most_unseen_wordings_are_answered_right(chat: Chat) -> None:
    unseen = [(wording, pair.answer) for pair in PAIRS for wording in pair.held_out][::6]
    told = chat([[say("user", wording)] for wording, _ in unseen])
    right = sum(answer == wanted for answer, (_, wanted) in zip(told, unseen, strict=True))
    assert right / len(unseen) >= 0.5
