"""Logs of agent-like conversations, and their results in a real proxy."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy

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


def live_layers(lines: list[Line], data: Path, chance: Callable[[], float] | None = None) -> Counter[str]:
    """Send a log through a proxy whose upstream returns the logged responses; `chance` replaces the policy's random numbers."""
    answers = {json.dumps(each["body"]["messages"]): each["response"] for each in lines}

    async def answer(request: Request) -> JSONResponse:
        said = answers[json.dumps((await request.json())["messages"])]
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
        return JSONResponse(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )

    found = Counter[str]()
    with run_app(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as upstream:
        settings = load_settings(data=data, upstream=upstream, cache={"lookup_timeout": 60.0})
        with run_proxy(settings) as (url, services), httpx.Client(base_url=url, timeout=300) as client:
            comparer, semantic = services.comparer, services.cache.semantic
            coming = services.cache.pending_writes
            if chance is not None and semantic is not None:
                semantic.decider.random_number = chance
            for each in lines:
                told = client.post("/v1/chat/completions", json=each["body"]).headers["cache-status"]
                found["forward" if "fwd" in told else "semantic" if "semantic" in told else "exact"] += 1
                # A comparison takes less time than a person's next question.
                while comparer is not None and (len(coming) or not comparer._idle.is_set()):
                    time.sleep(0.001)
    return found


def live_prefix(logs: list[list[Line]], data: Path, num_blocks: int) -> Iterator[tuple[int, int]]:
    """Yield the reused and all prompt tokens of each log; each begins with an empty pool."""
    settings = load_settings(data=data, engine={"num_blocks": num_blocks}, cache={"enabled": False})
    with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=300) as client:
        for lines in logs:
            # A request that just ended may still hold blocks.
            until(lambda: client.post("/admin/blocks/reset").json()["reset"])
            replies = [client.post("/v1/chat/completions", json=each["body"]) for each in lines]
            usages = [reply.raise_for_status().json()["usage"] for reply in replies]
            reused = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            yield reused, sum(usage["prompt_tokens"] for usage in usages)
