"""Real texts as answers: the demo's handbook in all its wordings through a running proxy, judged by similarity, without labels.

python -m tests.benchmarks.handbook [--requests 2000] [--policies learned,checked] [--max-error 0.02]
"""

import argparse
import random
import tempfile
from pathlib import Path

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.servers import run_app, run_proxy
from training.demo.conversations import OPENINGS
from training.demo.corpus import is_off_topic, load_pairs

_FORMS = ("{}", "{lower}", "{opening}{first}")
"""As it is written, in haste, and with an opening; --plain leaves the latter two out."""


def questions(seed: int, forms: tuple[str, ...] = _FORMS) -> list[tuple[str, str]]:
    """Every wording of every question in three forms, with its answer, in a random order."""
    generator = random.Random(seed)
    found = {
        form.format(
            wording,
            lower=wording.lower().rstrip("?."),
            opening=generator.choice(OPENINGS),
            first=wording[0].lower() + wording[1:],
        ): pair.answer
        for pair in load_pairs()
        if not is_off_topic(pair)
        for wording in (*pair.wordings, *pair.held_out)
        for form in forms
    }
    asked = list(found.items())
    generator.shuffle(asked)
    return asked


def replay(policy: str, asked: list[tuple[str, str]], max_error: float) -> list[tuple[bool, bool]]:
    """For each question whether a similar one's answer was served, and whether that was another answer."""
    answers = dict(asked)

    async def chat(request: Request) -> Response:
        question = orjson.loads(await request.body())["messages"][-1]["content"]
        message = {"role": "assistant", "content": answers[question]}
        return JSONResponse({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    outcomes = []
    with (
        run_app(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])) as upstream,
        tempfile.TemporaryDirectory() as folder,
    ):
        cache = {"policy": policy, "max_error": max_error}
        with run_proxy(load_settings(data=Path(folder), upstream=upstream, cache=cache)) as (url, services):
            observer = services.answerer.observer
            assert observer is not None
            with httpx.Client(timeout=60) as client:
                for question, answer in asked:
                    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                    reply = client.post(f"{url}/v1/chat/completions", json=body)
                    said = reply.json()["choices"][0]["message"]["content"]
                    served = "semantic" in reply.headers["cache-status"]
                    outcomes.append((served, served and said != answer))
                figures = client.get(f"{url}/admin/cache/stats").json()["semantic"]
            print(policy, figures["lookups"], figures["compared"], figures["learning"])
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--policies", default="learned,checked")
    parser.add_argument("--max-error", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    asked = questions(options.seed, _FORMS[:1] if options.plain else _FORMS)[: options.requests]
    for policy in options.policies.split(","):
        outcomes = replay(policy, asked, options.max_error)
        for end in range(500, len(outcomes) + 1, 500):
            served = sum(hit for hit, _ in outcomes[:end])
            wrong = sum(bad for _, bad in outcomes[:end])
            late = sum(hit for hit, _ in outcomes[end - 500 : end])
            print(f"{policy}: {end} requests, {served} served, {wrong} wrong; {late} of the last 500")


if __name__ == "__main__":
    main()
