"""A proxy with a deterministic embedder, a given policy, and a given clock, in front of a model."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis import APIS
from kvproxy.apis.json import JsonObject
from kvproxy.flow.compare_responses import ResponseComparer
from kvproxy.flow.path import RequestPath
from kvproxy.flow.prepare.rules import Rules
from kvproxy.http.app import create_app
from kvproxy.http.build_backend import build_backend
from kvproxy.http.client_authentication import Clients
from kvproxy.http.metrics import Metrics
from kvproxy.http.services import Services
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Policy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import open_store
from kvproxy.index.store.observations import Observations
from kvproxy.journal.journal import open_journal
from kvproxy.settings import load_settings
from tests.index.doubles import HashEmbedder, OverlapVerifier
from tests.servers import run_app, run_upstream

QUESTION = "please tell me what the free queue of blocks is"
CLOSE = "please do tell me what the free queue of blocks is"
NEAR = "please tell me what the free queue of the blocks is"
FAR = "please tell me what the free list of blocks might be"


class Model:
    """An upstream whose answers and verdicts a test sets.

    Attributes:
        text: of other answers than those in `answers`; `{}` is the number of the request.
        go: clear while answers wait.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.answers: dict[str, str] = {}
        self.verdict = "They are the SAME."
        self.usage: dict[str, int] | None = None
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []
        self.judged: list[str] = []
        self.go = threading.Event()
        self.go.set()

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = await request.json()
        asked = body["messages"][-1]["content"]
        judges = "First answer:" in asked
        (self.judged if judges else self.asked).append(asked)
        number = len(self.asked)
        await asyncio.to_thread(self.go.wait, 20)
        if self.status != 200:
            return JSONResponse({"error": {"message": "broken"}}, self.status)
        text = self.verdict if judges else self.answers.get(asked, self.text.format(number))
        message = {"role": "assistant", "content": text}
        whole: JsonObject = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        if self.usage is not None:
            whole["usage"] = dict(self.usage)
        if body.get("stream"):
            events = b"".join(APIS["chat"].replay(whole, body))
            return Response(events, media_type="text/event-stream", headers=self.headers)
        return JSONResponse(whole, headers=self.headers)


@contextlib.contextmanager
def proxy(
    path: Path,
    policy: Policy | Callable[[Observations], Policy],
    *,
    clock: Callable[[], float] = time.time,
    text: str = "An answer.",
    rules: Sequence[Mapping[str, Any]] = (),
    **cache: Any,
) -> Iterator[tuple[str, Services, Model]]:
    model = Model(text)
    with run_upstream(model.answer) as upstream:
        settings = load_settings(
            data=path,
            upstream=upstream,
            cache={"judge": "equality"} | cache,
            rules=rules,
            routing={"eject_after": 10_000},
        )
        store = open_store(settings.store_path, clock=clock)
        decides = policy(store.observations) if callable(policy) else policy
        # Above every chance: nothing is explored.
        semantic = SemanticCache(store, HashEmbedder(), decides, store.observations, random_number=lambda: 0.999)
        semantic.rebuild()
        built, metrics = build_backend(settings), Metrics()
        request_path = RequestPath(
            built.backend,
            ResponseCache(store, semantic, clock=clock),
            settings.cache,
            clock,
            comparer=ResponseComparer(semantic, built.backend, settings.cache),
            rules=Rules(settings),
            count_request=metrics.count_exchange,
            journal=open_journal(str(path / "journal.db"), settings.journal, store, clock),
        )
        services = Services(settings, request_path, metrics, built, Clients(settings))
        with run_app(create_app(services)) as url:
            yield url, services, model


def checked(level: float = 0.8) -> CheckedPolicy:
    return CheckedPolicy(OverlapVerifier(), level, 0.6)


def ask(url: str, question: str, control: str = "", **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": control}, timeout=300)


def explain(url: str, question: str, control: str = "") -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    found: dict[str, Any] = httpx.post(f"{url}/admin/explain", json=body, headers={"cache-control": control}).json()
    return found
