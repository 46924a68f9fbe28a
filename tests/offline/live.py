"""The same log sent through a real proxy: what was estimated is compared with this."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.offline.logs import Line
from tests.polling import until
from tests.servers import run_app, run_proxy


def layers(lines: Sequence[Line], data: Path, chance: Callable[[], float] | None = None) -> Counter[str]:
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
        with run_proxy(settings) as (url, services), httpx.Client(base_url=url, timeout=60) as client:
            comparer, semantic = services.answerer.comparer, services.answerer.semantic
            coming = services.answerer.cache.pending_writes
            if chance is not None and semantic is not None:
                semantic.decider.random_number = chance
            for each in lines:
                told = client.post("/v1/chat/completions", json=each["body"]).headers["cache-status"]
                found["forward" if "fwd" in told else "semantic" if "semantic" in told else "exact"] += 1
                # A comparison takes less time than a person's next question.
                while comparer is not None and (len(coming) or comparer._queue._unfinished_tasks):  # type: ignore[attr-defined]
                    time.sleep(0.001)
    return found


def prefix(logs: Sequence[Sequence[Line]], data: Path, num_blocks: int) -> Iterator[tuple[int, int]]:
    """Yield the reused and all prompt tokens of each log; each begins with an empty pool."""
    settings = load_settings(data=data, engine={"num_blocks": num_blocks}, cache={"enabled": False})
    with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        for lines in logs:
            # A request that just ended may still hold blocks.
            until(lambda: client.post("/admin/blocks/reset").json()["reset"])
            replies = [client.post("/v1/chat/completions", json=each["body"]) for each in lines]
            usages = [reply.raise_for_status().json()["usage"] for reply in replies]
            reused = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            yield reused, sum(usage["prompt_tokens"] for usage in usages)
