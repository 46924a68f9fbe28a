"""Property: `explain` predicts what the proxy does, for random settings, rules, directives, stored states, and clocks."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from kvproxy.apis.json import JsonObject, objects
from kvproxy.backends.protocol import Forwarder, RelayedResponse
from kvproxy.errors import KvproxyError, NotCached, UpstreamUnreachable
from kvproxy.exchange import Exchange
from kvproxy.flow.explain import explain
from kvproxy.flow.path import RequestPath
from kvproxy.flow.prepare.rules import Rules
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import open_store
from kvproxy.settings import load_settings
from tests.flow.proxies import CLOSE, FAR, NEAR, QUESTION, ask, checked, proxy
from tests.flow.proxies import explain as explain_question
from tests.index.doubles import HashEmbedder
from tests.polling import until
from tests.requests import api_request

REQUESTS = int(os.environ.get("KVPROXY_PREDICTIONS", "150"))
PER_WORLD = 25
CONTROLS = (
    *("", "", "", "", "", "", "", "", "no-cache", "no-store", "only-if-cached", "confirm", "warming"),
    *("max-age=0", "max-age=30", "max-age=500", "max-stale=100", "min-fresh=50", "stale-if-error=20"),
    *(
        "max-age=30, only-if-cached",
        "no-cache, only-if-cached",
        "max-age=200, stale-if-error=100",
        "min-similarity=0.999",
    ),
)


class RandomBackend:
    """A backend that may refuse, fail, or answer with cache directives."""

    name = "random"
    forwarder: Forwarder | None = None

    def __init__(self) -> None:
        self.state = "works"
        self.headers: list[tuple[str, str]] = []

    async def send(self, request: object) -> RelayedResponse:
        if self.state == "unreachable":
            raise UpstreamUnreachable("refused")
        message = {"role": "assistant", "content": "An answer."}
        whole = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

        async def chunks() -> AsyncIterator[bytes]:
            yield orjson.dumps(whole if self.state != "error" else {"error": {"message": "broken"}})

        headers = [("content-type", "application/json"), *self.headers]
        return RelayedResponse(500 if self.state == "error" else 200, headers, chunks())

    def failure(self) -> str | None:
        return "all are down" if self.state == "unreachable" else None


class NoPrefixReport:
    async def explain(self, request: object) -> None:
        return None


def random_settings(draw: random.Random) -> dict[str, Any]:
    cache: dict[str, Any] = {
        "enabled": draw.random() < 0.9,
        "shadow": draw.random() < 0.15,
        "sampled_requests": draw.choice(["fresh", "replay"]),
        "shared": draw.random() < 0.3,
        "ttl": draw.choice([50, 200, 1000]),
        "stale_while_revalidate": draw.choice([0, 0, 50]),
        "stale_if_error": draw.choice([0, 100, 300]),
    }
    choices: dict[str, list[object]] = {
        "cache": [False],
        "semantic": [False],
        "sampled_requests": ["fresh", "replay"],
        "policy": ["checked"],
        "ttl": [10, 200],
        "stale_while_revalidate": [40],
        "min_similarity": [0.99],
        "repair_history": [True],
    }
    names = draw.sample(sorted(choices), draw.choice([0, 0, 1, 2]))
    rule = {"name": "random", "model": draw.choice(["m", "*"])} | {name: draw.choice(choices[name]) for name in names}
    edit = {"name": "dates", "action": "strip", "role": "system", "pattern": r"(Today is \S+\.)"}
    return {"cache": cache, "rules": [rule] if names else [], "edits": [edit] if draw.random() < 0.3 else []}


def random_fields(draw: random.Random) -> JsonObject:
    """Return the fields of a request apart from its question, so that several questions have one namespace."""
    system = [{"role": "system", "content": f"Today is 2026-11-{draw.randint(1, 2)}."}] if draw.random() < 0.3 else []
    fields: JsonObject = {"model": draw.choice(["m", "n"]), "messages": system}
    fields |= draw.choice([{}, {}, {}, {"temperature": 0}, {"temperature": 0.7}, {"temperature": 0.7, "seed": 1}])
    return fields | draw.choice([{}, {}, {}, {"stream": True}, {"n": 2}, {"tools": [{"type": "function"}]}])


def random_headers(draw: random.Random) -> dict[str, str]:
    headers = {"cache-control": draw.choice(CONTROLS)}
    return headers | draw.choice(
        [{}, {}, {}, {"authorization": "b"}, {"x-kvproxy-ttl": "30"}, {"x-kvproxy-timeout": "60"}]
    )


async def run_world(folder: Path, seed: int) -> Counter[str]:
    """Predict and answer random requests of one proxy; return the number of each outcome."""
    draw, backend, counts = random.Random(seed), RandomBackend(), Counter[str]()
    now = 1_000_000.0
    settings = load_settings(data=folder, upstream="http://127.0.0.1:9", **random_settings(draw))
    store = open_store(folder / "responses.db", clock=lambda: now)
    # Above every chance: nothing is explored.
    semantic = SemanticCache(store, HashEmbedder(), checked(), store.observations, random_number=lambda: 0.999)
    cache = ResponseCache(store, semantic, clock=lambda: now)
    caching = settings.cache.model_copy(update={"lookup_timeout": 60.0})
    path = RequestPath(backend, cache, caching, lambda: now, rules=Rules(settings))  # type: ignore[arg-type]
    namespaces = [random_fields(draw) for _ in range(2)]
    for _ in range(PER_WORLD):
        now += draw.choice([0, 0, 1, 1, 5, 15, 60, 250])
        backend.state = draw.choice([*["works"] * 5, "error", "unreachable"])
        backend.headers = [("cache-control", draw.choice([*[""] * 6, "max-age=40", "no-store", "must-revalidate"]))]
        fields, headers = draw.choice(namespaces), random_headers(draw)
        question = {"role": "user", "content": draw.choice([QUESTION, QUESTION, CLOSE, NEAR, FAR, "Another question?"])}
        body = fields | {"messages": [*objects(fields["messages"]), question]}
        request = api_request(body, headers=headers)
        report = await explain(path, NoPrefixReport(), await path.edit(request))  # type: ignore[arg-type]
        exchange = Exchange("chat", "id", request.tenant, request=request)
        outcome = await answer(path, exchange)
        by_error = backend.state == "error" and exchange.hit is not None and exchange.hit.stale == "stale-if-error"
        predicted = report.layer
        if not by_error:
            # Whether the backend answers with an error is not known before.
            assert predicted == outcome, (seed, body, headers, backend.state, report, exchange.bypass_reason)
        else:
            assert predicted == "none"
        if predicted == "exact":
            assert exchange.hit is not None
            assert report.exact.id == exchange.hit.id
        served = [neighbour.id for neighbour in report.semantic.neighbours if neighbour.served]
        if predicted == "semantic":
            assert exchange.hit is not None
            assert served == [exchange.hit.id]
        counts[f"{outcome} after an error" if by_error else outcome] += 1
        await settle(path)
    await path.close()
    cache.close()
    return counts


async def answer(path: RequestPath, exchange: Exchange) -> str:
    """Answer a request, and return the layer in the words of `explain`."""
    try:
        await path.prepare(exchange)
        response = await path.answer(exchange)
    except NotCached:
        return "refused"
    except KvproxyError:
        return "none"
    if not isinstance(response.body, bytes):
        async for _ in response.body:
            pass
        response.close()
    path.finish(exchange)
    return "none" if exchange.hit is None else exchange.layer


async def settle(path: RequestPath) -> None:
    """Wait for renewals, writes, and embeddings."""
    while renewals := path.renewals.in_flight:
        await asyncio.wait(renewals)
    await path.cache.pending_writes.wait_for_all()
    if path.cache.semantic is not None:
        await path.cache.semantic.deferred_embeddings.wait_until_idle()


async def test_explain_predicts_the_answer_to_random_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.flow.layers.renewal._RETRY_SECONDS", 0.0)
    outcomes = Counter[str]()
    for seed in range(-(-REQUESTS // PER_WORLD)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes += await run_world(folder, seed)
    assert outcomes.total() >= REQUESTS
    assert {"exact", "semantic", "none", "refused"} <= outcomes.keys()
    print(dict(outcomes))


def test_explain_predicts_the_answers_of_a_live_proxy(tmp_path: Path) -> None:
    draw, now = random.Random(1), 1_000_000.0
    with proxy(tmp_path, checked(), clock=lambda: now, ttl=100, stale_while_revalidate=100) as (url, services, _):
        for _ in range(40):
            now += draw.choice([0, 0, 60, 150])
            question, control = draw.choice([QUESTION, CLOSE, NEAR, FAR]), draw.choice(CONTROLS)
            predicted = explain_question(url, question, control)["layer"]
            response = ask(url, question, control)
            served = response.headers.get("cache-status", "")
            layer = "none" if "; hit" not in served else "semantic" if "semantic" in served else "exact"
            assert ("refused" if response.status_code == 504 else layer) == predicted, (question, control, served)
            until(lambda: len(services.cache.pending_writes) + len(services.path.renewals.in_flight) == 0)


def test_explain_names_a_request_in_flight(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, services, model):
        model.go.clear()
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(ask, url, QUESTION)
            until(lambda: len(services.path.requests_in_flight) == 1)
            assert explain_question(url, QUESTION)["layer"] == "shared"
            assert explain_question(url, QUESTION, "no-cache")["layer"] == "none"
            model.go.set()
            assert answered.result().status_code == 200
