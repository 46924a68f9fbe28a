"""Causes of misses, injected one at a time into a real cache and journal: `explain --request` has to name each.

python -m tests.journal.injected [CAUSES] [SEED]    # a thousand by default
"""

import asyncio
import contextlib
import copy
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.exchange import Exchange
from kvproxy.flow.explain import region_loader
from kvproxy.flow.path import RequestPath
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, open_observations, open_store
from kvproxy.journal.journal import StoredJournal, open_journal
from kvproxy.journal.miss_explanation import MissExplanation, explain_in_sentences, explain_miss
from kvproxy.settings import CacheSettings
from kvproxy.settings.journal import JournalSettings
from tests.index.doubles import HashEmbedder
from tests.requests import api_request

PAIRS = (
    ("how do I install version {0} of {2} on my machine", "how do I install version {1} of {2} on my machine"),
    ("how far is {0} kilometers from the red house {2}", "how far is {0} miles from the red house {2}"),
    ("how do I enable the setting called {2} for all", "how do I disable the setting called {2} for all"),
    ("is it allowed to sell {2} apples in the street", "is it not allowed to sell {2} apples in the street"),
    ("what does the word 'fast{0}' mean in this text {2}", "what does the word 'slow{0}' mean in this text {2}"),
    ("when was the tall tower of {2} in Paris opened", "when was the tall tower of {2} in London opened"),
    ("why is the sky over {2} blue in the morning", "when is the sky over {2} blue in the morning"),
)
QUESTIONS = "lamp river stone window garden winter paper silver bridge forest candle harbour".split()
CAPACITY = 30


CHOICE = {"index": 0, "finish_reason": "stop"}
PART = {"type": "output_text", "text": "Yes."}
ANSWERS: dict[ApiName, JsonObject] = {
    "chat": {"choices": [CHOICE | {"message": {"role": "assistant", "content": "Yes."}}], "usage": {}},
    "completions": {"choices": [CHOICE | {"text": "Yes."}], "usage": {}},
    "messages": {"type": "message", "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"},
    "responses": {"status": "completed", "output": [{"type": "message", "role": "assistant", "content": [PART]}]},
}  # type: ignore[dict-item]


class Model:
    """A backend with one answer."""

    name = "model"

    async def send(self, request: ApiRequest) -> RelayedResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield orjson.dumps({"id": "x"} | ANSWERS[request.api.name])

        return RelayedResponse(200, [("content-type", "application/json")], chunks())

    def failure(self) -> str | None:
        return None


class World:
    """A cache and its journal with a simulated time."""

    def __init__(self, folder: Path, generator: random.Random, text: str) -> None:
        self.now = 1_000_000.0
        self.random = generator
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        self.store = open_store(folder / "responses.db", clock=clock, capacity=Capacity(entries=CAPACITY))
        self.observations = open_observations(folder / "responses.db")
        self.semantic = SemanticCache(self.store, HashEmbedder(), ThresholdPolicy(0.9), self.observations)
        self.semantic.rebuild()
        self.cache = ResponseCache(self.store, self.semantic, clock=clock)
        settings = JournalSettings.model_validate({"text": text})
        journal = open_journal(str(folder / "journal.db"), settings, self.store, clock)
        assert isinstance(journal, StoredJournal)
        self.journal = journal
        patient = CacheSettings(lookup_timeout=60)
        self.path = RequestPath(Model(), self.cache, patient, clock, journal=journal)
        self.asked = 0

    async def ask(
        self, body: JsonObject, api: ApiName = "chat", tenant: str = "ann", query: str = "", **headers: str
    ) -> str:
        self.asked += 1
        self.now += 1
        request = api_request(body, api, headers, tenant=tenant, query=query)
        id = f"request-{self.asked}-"
        object.__setattr__(request, "request_id", id)
        exchange = Exchange(api, id, tenant, self.now, request=request)
        answer = await self.path.answer(exchange)
        if not isinstance(answer.body, bytes):
            # On a busy machine an answer is handed on before it is whole.
            async for _ in answer.body:
                pass
            answer.close()
        self.journal.add(exchange)
        # Nobody waits for an answer to be stored.
        await self.cache.pending_writes.wait_for_all()
        # Stored entries receive their vectors after the answer.
        await self.semantic.deferred_embeddings.wait_until_idle()
        return id

    def explain(self, id: str) -> MissExplanation:
        self.journal.flush()
        with contextlib.closing(self.journal.reader()) as reader:
            return explain_miss(reader, reader.find(id), region_loader(reader, self.store), self.store.similarities)

    async def close(self) -> None:
        await self.path.close()
        self.cache.close()
        self.observations.close()
        self.journal.close()


Cause = tuple[str, str, str]
"""The id of the request that missed, the cause that has to be named, and a text that has to be among the sentences."""


def fresh(world: World, api: ApiName = "chat") -> JsonObject:
    """A request that was never made before, in a namespace of its own."""
    draw = world.random
    words = " ".join(draw.choices(QUESTIONS, k=6)) + f" {draw.getrandbits(40):x}?"
    system = f"You are helper {draw.getrandbits(40):x}. Today is 2026-11-{draw.randint(10, 19)}. Be brief."
    common: JsonObject = {"model": "m", "temperature": 0.5, "seed": 7, "max_tokens": 50}
    hello = {"role": "user", "content": f"Hello from {draw.getrandbits(32):x}"}
    turns = [hello, {"role": "assistant", "content": "Hi"}]
    asked = {"role": "user", "content": words}
    if api == "completions":
        return {**common, "prompt": f"{system} {words}"}
    if api == "messages":
        return {**common, "system": system, "messages": [*turns, asked]}
    if api == "responses":
        return {"model": "m", "temperature": 0.5, "seed": 7, "instructions": system, "input": [*turns, asked]}
    return {**common, "messages": [{"role": "system", "content": system}, *turns, asked]}


def changes(body: dict[str, Any], draw: random.Random) -> dict[str, tuple[dict[str, Any], str]]:
    """Return changed requests and the expected text, by cause."""
    found: dict[str, tuple[dict[str, Any], str]] = {}

    def put(cause: str, said: str, **fields: Any) -> None:
        found[cause] = ({**body, **fields}, said)

    put("model", "another model was asked: m then, m2 now", model="m2")
    put("temperature", "the field temperature", temperature=0.25)
    put("seed", "the field seed, at character", seed=draw.getrandbits(20) + 8)
    for name, value in {
        "top_p": 0.9, "stop": ["x"], "logit_bias": {"5": 1}, "extra_field": [draw.random()],
        "response_format": {"type": "json_object"}, "metadata_of_ours": {"a": draw.getrandbits(20)},
    }.items():  # fmt: skip
        put(name, f"the field {name} is new", **{name: value})
    put("tools", "the tools are new", tools=[{"type": "function", "function": {"name": f"f{draw.getrandbits(20)}"}}])
    if "max_tokens" in body:
        put("max_tokens", "the field max_tokens", max_tokens=51)
    for name in ("system", "instructions"):
        if name in body:
            changed, said = redated(body[name])
            put(name, said, **{name: changed})
    for name in ("messages", "input"):
        for place, item in enumerate(body.get(name, [])[:-1]):
            items = copy.deepcopy(body[name])
            region = f"{name}[{place}] {item['role']}"
            if item["role"] == "system":
                items[place]["content"], said = redated(item["content"])
            else:
                items[place]["content"] += " there"
                said = f"{name}[{place}] of the {item['role']}, at character"
            put(region, said, **{name: items})
    if "prompt" in body:
        put("prompt", "the prompt, at character", prompt=body["prompt"] + " now")
    return found


def redated(text: str) -> tuple[str, str]:
    place = text.index("2026-11-") + 8
    old = text[place - 8 : place + 3]
    new = f"2026-12-{text[place : place + 2]}."
    return text.replace(old, new), f"at character {place - 8}: '{old}' became '{new}'"


async def changed_field(world: World) -> Cause:
    api: ApiName = world.random.choice(["chat", "completions", "messages", "responses"])
    body = fresh(world, api)
    cause, (other, said) = world.random.choice(list(changes(body, world.random).items()))
    await world.ask(body, api)
    return await world.ask(other, api), cause, said


async def changed_question(world: World) -> Cause:
    body: dict[str, Any] = fresh(world)
    await world.ask(body)
    other = copy.deepcopy(body)
    other["messages"][-1]["content"] = f"something else {world.random.getrandbits(40):x} entirely"
    said = world.random.choice(["messages[3] of the user, at character", "is below `cache.min_similarity`"])
    return await world.ask(other), "low-similarity", said


async def reworded(world: World) -> Cause:
    """With another setting, too: neither the equal request nor a similar one is found in the namespace."""
    body: dict[str, Any] = fresh(world)
    await world.ask(body)
    other = copy.deepcopy(body)
    other["messages"][-1]["content"] = f"please, {body['messages'][-1]['content']}"
    setting, value = world.random.choice([("temperature", 0.25), ("max_tokens", 51), ("tools", None)])
    other |= {setting: value or [{"type": "function", "function": {"name": "f"}}]}
    said = "sent with other settings" if setting != "tools" else "the tools are new"
    return await world.ask(other), setting, said


async def evicted(world: World) -> Cause:
    body = fresh(world)
    await world.ask(body)
    await asyncio.gather(*(world.ask(fresh(world)) for _ in range(3 * CAPACITY)))
    return await world.ask(body), "evicted", "it was evicted"


async def vetoed(world: World) -> Cause:
    draw = world.random
    body: dict[str, Any] = fresh(world)
    one, other = draw.choice(PAIRS)
    numbers = draw.sample(range(2, 900), 2)
    # Words that no other case has, so that no two cases ask the same question.
    word = "".join(draw.choices("bcdfghklmnprstvw", k=12))
    cached, asked = (text.format(*numbers, word) for text in (one, other))
    guard = next(guard.name for guard in GUARDS if guard.vetoes(asked, cached))
    body["messages"][-1]["content"] = cached
    await world.ask(body)
    again = copy.deepcopy(body)
    again["messages"][-1]["content"] = asked
    world.semantic.decider.policy = ThresholdPolicy(0.1)
    try:
        return await world.ask(again), f"veto-{guard}", f"The guard `{guard}`"
    finally:
        world.semantic.decider.policy = ThresholdPolicy(0.9)


async def uncacheable(world: World) -> Cause:
    body = {**fresh(world), "stream": True, "prompt_logprobs": 1}
    await world.ask(body)
    return await world.ask(body), "uncacheable", "The cache is off"


async def nothing_like_it(world: World) -> Cause:
    other = f"m{world.random.getrandbits(40)}"
    body = {**fresh(world, "completions"), "model": other, "user_field": other}
    return await world.ask(body), "new", "The journal has no equal request"


Injected = Callable[[World], Awaitable[Cause]]


def repeated(
    cause: str,
    said: str,
    first: dict[str, Any] | None = None,
    then: dict[str, Any] | None = None,
    *,
    api: ApiName = "chat",
    between: Callable[[World], object] = lambda _: None,
) -> Injected:
    """The same request twice, with other headers or by another client, or after something happened."""

    async def inject(world: World) -> Cause:
        body = fresh(world, api)
        await world.ask(body, api, **(first or {}))
        between(world)
        return await world.ask(body, api, **(then or {})), cause, said

    return inject


def wait(world: World) -> None:
    world.now += world.random.uniform(61, 5_000)


def expire(world: World) -> None:
    wait(world)
    world.cache.maintain()


async def removed(world: World) -> Cause:
    body = fresh(world)
    # One field more is a similar request, and the equal one explains the miss.
    await world.ask(body | {"seed": 8})
    equal = await world.ask(body, **{"x-kvproxy-tags": "doomed"})
    await world.cache.remove([entry.id for entry in world.store.list_entries() if "doomed" in entry.tags])
    return await world.ask(body), "removed", f"The last equal request is {equal},"


SHORT = {"x-kvproxy-ttl": "60"}
VERSION = "anthropic-version"
INJECT: dict[str, tuple[int, Injected]] = {
    "field": (30, changed_field),
    "question": (3, changed_question),
    "tenant": (6, repeated("tenant", "another tenant asked it: ann then, bob now", then={"tenant": "bob"})),
    "query": (2, repeated("query", "the field query", {"query": "version=1"}, {"query": "version=2"})),
    "version": (
        2,
        repeated(f"header {VERSION}", f"the field header {VERSION}", {VERSION: "1"}, {VERSION: "2"}, api="messages"),
    ),
    "expired": (6, repeated("expired", "it expired", SHORT, between=wait)),
    "expired and removed": (6, repeated("expired", "it expired", SHORT, between=expire)),
    "reworded": (3, reworded),
    "evicted": (1, evicted),
    "removed": (6, removed),
    "vetoed": (12, vetoed),
    "old": (
        2,
        repeated("old", "older than the request's `max-age`", then={"cache-control": "max-age=60"}, between=wait),
    ),
    "fresh": (2, repeated("asked-fresh", "demanded a fresh response", then={"cache-control": "no-cache"})),
    "unstored": (
        2,
        repeated("unstored", "its response was not stored (request-no-store)", {"cache-control": "no-store"}),
    ),
    "uncacheable": (1, uncacheable),
    "new": (1, nothing_like_it),
}
"""Weight of each cause."""


async def inject(folder: Path, count: int, seed: int, text: str = "all") -> tuple[Counter[str], list[str]]:
    """Inject `count` causes, and return the number of each cause, and the causes that the journal did not name."""
    generator = random.Random(seed)
    world, causes, wrong = World(folder, generator, text), Counter[str](), []
    kinds, weights = list(INJECT), [weight for weight, _ in INJECT.values()]
    try:
        for number in range(count):
            # Each kind comes once before any is drawn.
            kind = kinds[number] if number < len(kinds) else generator.choices(kinds, weights)[0]
            id, cause, said = await INJECT[kind][1](world)
            found = world.explain(id)
            causes[cause] += 1
            told = "\n".join(explain_in_sentences(found, str))
            if found.cause != cause or (said not in told and text == "all"):
                wrong.append(f"{kind}: {cause!r} and {said!r}, not {found.cause!r}: {told}")
    finally:
        await world.close()
    return causes, wrong


def main() -> None:
    count, seed = map(int, (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        causes, wrong = asyncio.run(inject(Path(folder), count, seed))
    for cause, times in sorted(causes.items()):
        print(f"{times:5} {cause}")
    print(f"{count} causes of {len(causes)} kinds, {count - len(wrong)} named")
    print("\n".join(wrong[:10]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
