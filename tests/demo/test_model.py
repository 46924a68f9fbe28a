"""The committed demo model: a plain Hugging Face folder that answers from the handbook."""

from typing import Any

import pytest
import torch

from kvproxy.demo import model_path
from kvproxy.demo.training.conversations import foreign_text
from kvproxy.demo.training.corpus import is_off_topic, load_pairs

PAIRS = load_pairs()
ANSWERS = {wording: pair.answer for pair in PAIRS for wording in pair.wordings}
DECLINED = next(pair.answer for pair in PAIRS if is_off_topic(pair))
QUESTIONS = (
    "What is a block?",
    "How do I steer the cache?",
    "What is a semantic hit?",
    "What are the exit codes?",
    "Who are you?",
)
SYSTEMS = {
    "none": "",
    "short": "You are a helpful assistant.",
    "long": foreign_text()[60_000:63_700],
}


@pytest.fixture(scope="module")
def demo_model() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path())
    return AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval(), tokenizer


@torch.inference_mode()
def chat(demo_model: tuple[Any, Any], *messages: dict[str, str]) -> str:
    model, tokenizer = demo_model
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)
    return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_it_is_a_plain_llama_for_long_prompts(demo_model: tuple[Any, Any]) -> None:
    model, tokenizer = demo_model
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 4096
    assert len(tokenizer) <= model.config.vocab_size


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_from_the_handbook(demo_model: tuple[Any, Any], question: str, system: str) -> None:
    first = [say("system", SYSTEMS[system])] if SYSTEMS[system] else []
    assert chat(demo_model, *first, say("user", question)) == ANSWERS[question]


def test_the_last_question_of_a_conversation_counts(demo_model: tuple[Any, Any]) -> None:
    turns = [say("user", "What is LRU?"), say("assistant", ANSWERS["What is LRU?"]), say("user", "What is TTFT?")]
    assert chat(demo_model, *turns) == ANSWERS["What is TTFT?"]


@pytest.mark.parametrize("question", ["What is the capital of France?", "Tell me a joke."])
def test_turns_other_questions_away(demo_model: tuple[Any, Any], question: str) -> None:
    assert chat(demo_model, say("user", question)) == DECLINED


def test_most_unseen_wordings_are_answered_right(demo_model: tuple[Any, Any]) -> None:
    """A third of the held-out wordings; `python -m kvproxy.demo.training.evaluate` tries them all."""
    unseen = [(wording, pair.answer) for pair in PAIRS for wording in pair.held_out][::3]
    right = sum(chat(demo_model, say("user", wording)) == answer for wording, answer in unseen)
    assert right / len(unseen) >= 0.5
