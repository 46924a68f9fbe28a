"""How often the demo model answers right: on the wordings it was trained on, on held-out ones, and off topic.

python -m training.demo.evaluate
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvproxy.demo import model_path
from training.demo.conversations import foreign_text
from training.demo.corpus import Pair, is_off_topic, load_pairs

BATCH = 32
Question = tuple[str, str]
"""A question and its right answer."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Share of exactly right answers, by kind of question and by system prompt."""

    rates: dict[tuple[str, str], float]

    def table(self) -> str:
        """One line a figure."""
        return "\n".join(f"{kind:10} {system:26} {rate:.3f}" for (kind, system), rate in self.rates.items())


def evaluate(folder: Path, sample: int = 200) -> StreamReport:
    """Greedy answers compared to the handbook's, to the letter.

    Args:
        folder: the model.
        sample: trained wordings to try; held-out wordings are all tried.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chance = random.Random(7)
    pairs = load_pairs()
    kinds = {
        "trained": _questions(pairs, trained=True, off_topic=False),
        "held out": _questions(pairs, trained=False, off_topic=False),
        "off topic": _questions(pairs, trained=False, off_topic=True),
    }
    kinds["trained"] = chance.sample(kinds["trained"], min(sample, len(kinds["trained"])))
    text = foreign_text()
    start = chance.randrange(len(text) // 2)
    systems = {
        "no system prompt": "",
        "short system prompt": "You are a helpful assistant.",
        "1,000-token system prompt": tokenizer.decode(tokenizer.encode(text[start : start + 10_000])[:1000]),
    }
    rates = {
        (kind, name): _rate(model, tokenizer, questions, system)
        for name, system in systems.items()
        for kind, questions in kinds.items()
    }
    return StreamReport(rates)


def _questions(pairs: list[Pair], *, trained: bool, off_topic: bool) -> list[Question]:
    return [
        (wording, pair.answer)
        for pair in pairs
        if is_off_topic(pair) == off_topic
        for wording in (pair.wordings if trained else pair.held_out)
    ]


def _rate(model: Any, tokenizer: Any, questions: list[Question], system: str) -> float:
    told = answers(model, tokenizer, [question for question, _ in questions], system)
    return sum(one == expected for one, (_, expected) in zip(told, questions, strict=True)) / len(questions)


def answers(model: Any, tokenizer: Any, questions: Sequence[str], system: str = "") -> list[str]:
    """The model's greedy answer to each question, asked alone after a system prompt."""
    first = [{"role": "system", "content": system}] if system else []
    return replies(model, tokenizer, [[*first, {"role": "user", "content": question}] for question in questions])


@torch.inference_mode()
def replies(model: Any, tokenizer: Any, conversations: Sequence[list[dict[str, str]]]) -> list[str]:
    """The model's greedy reply to each conversation; some are computed together, padded on the left."""
    told: list[str] = []
    for at in range(0, len(conversations), BATCH):
        prompt = tokenizer.apply_chat_template(
            list(conversations[at : at + BATCH]),
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            padding=True,
            tokenizer_kwargs={"padding_side": "left"},
        )
        ids = model.generate(**prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)
        told += tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return told


if __name__ == "__main__":
    print(evaluate(Path(sys.argv[1]) if len(sys.argv) > 1 else model_path()).table())
