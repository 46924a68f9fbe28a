"""Time to tokenize a known chat again, and equality with tokenizing from the beginning after random edits.

python -m tests.benchmarks.tokenizing [--tokenizer NAME] [--tokens 40000] [--edits 10000]

The tokenizer is the demo model's by default; NAME is a folder or a Hugging Face id with a chat template.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import transformers

from kvproxy.demo import model_path
from kvproxy.engine.text.tokenizer import ChatTokenizer
from tests.benchmarks.options import read_options

Chat = list[dict[str, Any]]
WORDS = Path(__file__).resolve().parents[2].joinpath("training/demo/handbook.md").read_text().split(" ")
ODD = (" ", "  ", "\n\n", "\t", "é", "e\u0301", "中文", "👩‍👩‍👧", "\u00a0", "\u200b", "ﬁ", "a" * 40, "1234567890", "")


def text(draw: random.Random, special: list[str], words: int) -> str:
    """Return words, odd characters, and sometimes the text of a special token or a part of it."""
    parts = draw.choices(WORDS, k=draw.randrange(1, words))
    for _ in range(draw.randrange(4)):
        token = draw.choice(special)
        part = token[draw.randrange(len(token)) :] if draw.random() < 0.5 else token[: draw.randrange(len(token) + 1)]
        parts.insert(draw.randrange(len(parts) + 1), draw.choice((*ODD, part, token)))
    return draw.choice((" ", "")).join(parts)


def edits(draw: random.Random, special: list[str], count: int, turns: int = 12, words: int = 60) -> Iterator[Chat]:
    """Return chats that each differ from the one before by one edit."""
    chat: Chat = []
    for _ in range(count):
        place = draw.randrange(len(chat) + 1)
        kind = draw.choice(("append", "append", "append", "insert", "change", "remove", "cut"))
        if kind in ("append", "insert") or place == len(chat):
            place = place if kind == "insert" else len(chat)
            chat.insert(place, {"role": draw.choice(("user", "assistant")), "content": text(draw, special, words)})
        elif kind == "change":
            content = chat[place]["content"]
            start, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
            chat[place] = {**chat[place], "content": content[:start] + text(draw, special, 3) + content[end:]}
        elif kind == "remove":
            del chat[place]
        if kind == "cut" or len(chat) > turns:
            del chat[draw.randrange(len(chat)) :]
        chat = chat or [{"role": "user", "content": text(draw, special, words)}]
        # Templates require alternating roles.
        yield [{**turn, "role": ("user", "assistant")[number % 2]} for number, turn in enumerate(chat)]


def wrong_edits(tokenizer: Any, count: int, seed: int = 0) -> int:
    """Return how often the ids of an edited chat differ from tokenizing it from the beginning."""
    ours = ChatTokenizer(tokenizer, frozenset())
    special = [token.content for token in tokenizer.added_tokens_decoder.values()][:50]
    wrong = 0
    for chat in edits(random.Random(seed), special, count):
        whole = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        wrong += ours.chat(chat) != tokenizer.encode(whole, add_special_tokens=False)
    return wrong


def times(tokenizer: Any, tokens: int, rounds: int = 5) -> tuple[int, float, float]:
    """Return the tokens of a chat, the seconds to tokenize it from the beginning, and to continue it by a turn."""
    draw, chat = random.Random(0), list[dict[str, Any]]()
    length = 0
    while length < tokens:
        for role in ("user", "assistant"):
            chat.append({"role": role, "content": " ".join(draw.choices(WORDS, k=300))})
        length += len(tokenizer.encode(chat[-1]["content"])) + len(tokenizer.encode(chat[-2]["content"]))
    cold, warm = [], []
    for number in range(rounds):
        whole = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        began = time.perf_counter()
        length = len(tokenizer.encode(whole, add_special_tokens=False))
        cold.append(time.perf_counter() - began)
        ours = ChatTokenizer(tokenizer, frozenset())
        ours.chat(chat[:-1])
        last = {"role": "user", "content": f"{number} {' '.join(draw.choices(WORDS, k=100))}"}
        began = time.perf_counter()
        ours.chat([*chat, last] if chat[-1]["role"] == "assistant" else chat)
        warm.append(time.perf_counter() - began)
    return length, median(cold), median(warm)


def main() -> None:
    given = read_options(__doc__, tokenizer=str(model_path()), tokens=40_000, edits=10_000)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(given.tokenizer)
    tokens, cold, warm = times(tokenizer, given.tokens)
    print(
        f"{tokens:,} tokens: {1000 * cold:.1f} ms from the beginning, {1000 * warm:.1f} ms continued ({warm / cold:.1%})"
    )
    print(f"{given.edits:,} edits: {wrong_edits(tokenizer, given.edits)} with other ids")


if __name__ == "__main__":
    main()
