"""Measures the share of exact answers of the demo model: `python -m training.demo.evaluate`."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kvproxy.demo import model_path
from training.demo.conversations import read_unrelated_text
from training.demo.corpus import Pair, is_off_topic, load_pairs

BATCH = 32
TRAINED_WORDINGS = 200


def print_accuracy(folder: Path) -> None:
    """Print the share of exact greedy answers of a model, by kind of question and system prompt."""
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
    kinds["trained"] = chance.sample(kinds["trained"], TRAINED_WORDINGS)
    text = read_unrelated_text()
    start = chance.randrange(len(text) // 2)
    systems = {
        "no system prompt": "",
        "short system prompt": "You are a helpful assistant.",
        "1,000-token system prompt": tokenizer.decode(tokenizer.encode(text[start : start + 10_000])[:1000]),
    }
    for name, system in systems.items():
        first = [{"role": "system", "content": system}] if system else []
        for kind, questions in kinds.items():
            found = replies(model, tokenizer, [[*first, {"role": "user", "content": text}] for text, _ in questions])
            right = sum(reply == answer for reply, (_, answer) in zip(found, questions, strict=True))
            print(f"{kind:10} {name:26} {right / len(questions):.3f}", flush=True)


def _questions(pairs: list[Pair], *, trained: bool, off_topic: bool) -> list[tuple[str, str]]:
    return [
        (wording, pair.answer)
        for pair in pairs
        if is_off_topic(pair) == off_topic
        for wording in (pair.wordings if trained else pair.held_out)
    ]


@torch.inference_mode()
def replies(model: Any, tokenizer: Any, conversations: Sequence[list[dict[str, str]]]) -> list[str]:
    found: list[str] = []
    for start in range(0, len(conversations), BATCH):
        prompt = tokenizer.apply_chat_template(
            list(conversations[start : start + BATCH]),
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            padding=True,
            tokenizer_kwargs={"padding_side": "left"},
        )
        ids = model.generate(**prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)
        found += tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return found


if __name__ == "__main__":
    print_accuracy(Path(sys.argv[1]) if len(sys.argv) > 1 else model_path())
