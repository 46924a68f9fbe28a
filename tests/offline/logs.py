"""Logs of agent-like conversations, made for tests."""

import json
import random
from pathlib import Path
from typing import Any

Line = dict[str, Any]
_WORDS = (
    "block cache prompt engine token answer index model server request prefix chain pool queue memory disk redis"
    " policy guard vector search header stream client tenant upstream journal record batch layer kernel page"
).split()
MODEL = "demo"


def words(seed: object, count: int) -> str:
    """Return the random words of a seed."""
    chance = random.Random(f"{seed}")
    return " ".join(chance.choice(_WORDS) for _ in range(count))


def line(messages: list[Line], answer: str | None = None, **fields: Any) -> Line:
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0, **fields}
    return {"path": "/v1/chat/completions", "body": body} | ({} if answer is None else {"response": answer})


def agents(conversations: int, turns: int, seed: int = 0, head: str = "") -> list[Line]:
    """Return mixed turns of conversations under one system prompt, some twice; `{n}` in `head` is a random number."""
    chance = random.Random(seed)
    system = words("system", 120)
    histories: list[list[Line]] = [[] for _ in range(conversations)]
    found: list[Line] = []
    while any(len(history) < 2 * turns for history in histories):
        number = chance.choice([n for n, history in enumerate(histories) if len(history) < 2 * turns])
        history = histories[number]
        history.append({"role": "user", "content": words((seed, number, len(history)), 30)})
        answer = words((seed, number, len(history), "answer"), 20)
        first = {"role": "system", "content": head.format(n=chance.randrange(10**6)) + system}
        found.append(line([first, *history], answer))
        history.append({"role": "assistant", "content": answer})
        if chance.random() < 0.2:
            found.append(chance.choice(found[-20:]))
    return found


def write(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path
