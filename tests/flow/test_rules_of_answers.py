"""Small rules of the flow, one by one: how long an answer keeps, what it costs, what a record of it says, what may be kept."""

import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonObject, dumps, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.apis.sse import EventReader, event
from kvproxy.backends.protocol import Headers, Relayed, Taker
from kvproxy.errors import NotCached, UpstreamBroken
from kvproxy.flow.cached.directives import Directives, first, read_directives
from kvproxy.flow.cached.keep import Shelf
from kvproxy.flow.flight.flights import Flight
from kvproxy.flow.flight.source import Recording, Source, forbids_keeping
from kvproxy.flow.learning.judges import Cached, EqualityJudge, SimilarityJudge
from kvproxy.flow.learning.observer import Observer
from kvproxy.flow.outcome import Answer, Outcome, PrefixUse
from kvproxy.flow.past_texts import texts
from kvproxy.flow.recording import trail
from kvproxy.flow.recording.diagnostics import Diagnostics
from kvproxy.flow.recording.spending import estimate, metered
from kvproxy.index.lookup import Lookup
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import ResponseStore
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import NoJournal
from kvproxy.ruled import Ruled
from kvproxy.settings import CacheSettings
from tests.flow.backends import QuietBackend
from tests.index.entries import make_entry
from tests.requests import api_request

CONTROL = "cache-control"


def under(rule: Ruled, request: ApiRequest) -> ApiRequest:
    """A request for which a rule holds."""
    return replace(request, control=replace(request.control, ruled=rule))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], Directives()),
        ([(CONTROL, "max-age=60")], Directives(60.0)),
        ([(CONTROL, 'MAX-AGE="0"')], Directives(0.0)),
        ([(CONTROL, "max-age=60, s-maxage=5")], Directives(5.0)),
        ([(CONTROL, "s-maxage=x, max-age=60")], Directives(60.0)),
        ([(CONTROL, "max-age=1"), (CONTROL, "max-age=2")], Directives(1.0)),
        *[([(CONTROL, f"max-age={text}")], Directives()) for text in ("-1", "nan", "inf", "x", "")],
        (
            [(CONTROL, "max-age=9, stale-while-revalidate=5,stale-if-error=7")],
            Directives(9.0, 5.0, 7.0),
        ),
        ([(CONTROL, "must-revalidate, stale-if-error=7")], Directives(None, 0.0, 0.0)),
        ([(CONTROL, "proxy-revalidate")], Directives(None, 0.0, 0.0)),
        ([("x-kvproxy-tags", "b, a,,"), ("surrogate-key", "c  a")], Directives(tags=("a", "b", "c"))),
        ([("surrogate-key", f"{'x' * 129} {'y' * 128}")], Directives(tags=("y" * 128,))),
        (
            [("surrogate-key", " ".join(f"{number:02}" for number in range(20)))],
            Directives(tags=tuple(f"{number:02}" for number in range(16))),
        ),
        ([("other", "max-age=60")], Directives()),
    ],
)
def test_what_an_upstream_says_of_its_answer(headers: Headers, said: Directives) -> None:
    assert read_directives(headers) == said


def test_the_first_number_that_was_given() -> None:
    assert (first((None, 0.0, 5.0), 9.0), first((None, None), 9.0)) == (0.0, 9.0)


@pytest.mark.parametrize(
    ("settings", "ruled", "asked", "said", "seconds"),
    [
        ({}, None, None, None, 100),
        ({}, None, None, 20, 20),
        ({}, 30, None, 20, 30),
        ({}, 30, 40, None, 30),
        ({}, 30, 10, None, 10),
        ({}, None, 40, None, 40),
        ({}, None, 400, None, 100),
        ({}, None, 40, 20, 20),
        ({"max_ttl": 50}, None, None, None, 50),
        ({"max_ttl": 50}, None, None, 70, 50),
        ({"max_ttl": 50}, 70, None, None, 70),
        ({"max_ttl": 500}, None, 400, None, 400),
        ({"max_ttl": 500}, 30, 40, None, 40),
        ({}, None, 0, None, 0),
    ],
)
def test_how_long_an_answer_is_served(
    settings: dict[str, Any],
    ruled: float | None,
    asked: float | None,
    said: float | None,
    seconds: float,
    tmp_path: Path,
) -> None:
    cache = ResponseCache(ResponseStore(tmp_path / "r.db"), None)
    shelf = Shelf(cache, CacheSettings(ttl=100, **settings), "b", lambda: 0.0, None, NoJournal())
    headers = {} if asked is None else {"x-kvproxy-ttl": str(asked)}
    request = api_request({"model": "m"}, headers=headers)
    assert shelf.lifetime(under(Ruled(ttl=ruled), request), Directives(said)) == seconds
    cache.close()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, 0),
        ({"messages": [{"role": "user", "content": "12345678"}]}, 1 + 2),
        ({"prompt": "12345"}, 2),
        ({"prompt": "ééé"}, 2),
        ({"prompt": [1, 2, 3]}, 3),
        ({"input": ["1234", "1234"], "instructions": "1234", "system": "1234"}, 4),
        ({"tools": [{"name": "f"}], "model": "m" * 100, "max_tokens": 5}, 1),
        ({"messages": [{"content": [{"image_url": {"url": "data:image/png;base64,xxxx"}}]}]}, 1000),
        ({"messages": [{"content": [{"source": {"data": "x" * 9999}}]}]}, 1000),
        ({"prompt": None}, 0),
    ],
)
def test_a_prompt_is_estimated_before_it_is_sent(body: JsonObject, tokens: int) -> None:
    assert estimate(body) == tokens


class Account:
    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def reserve(self, tokens: int) -> None:
        self.log.append(("reserve", tokens))

    def settle(self, tokens: int) -> None:
        self.log.append(("settle", tokens))

    def cached(self, tokens: int) -> None:
        self.log.append(("cached", tokens))


class Upstream(QuietBackend):
    """Sends given parts."""

    name = "u"

    def __init__(self, parts: list[bytes], status: int = 200, *, stream: bool = False, broken: bool = False) -> None:
        self.parts = parts
        self.status = status
        self.stream = stream
        self.broken = broken
        self.closed = 0

    async def send(self, request: ApiRequest) -> Relayed:
        if self.broken:
            raise UpstreamBroken("broken")

        async def body() -> AsyncIterator[bytes]:
            for part in self.parts:
                yield part

        async def close() -> None:
            self.closed += 1

        kind = "text/event-stream" if self.stream else "application/json"
        return Relayed(self.status, [("content-type", kind)], body(), close)


@pytest.mark.parametrize(
    ("upstream", "change", "cost"),
    [
        # An event says about a token; the prompt counts as estimated.
        (Upstream([b"data: 1\n\ndata: 2\n\n", b"data: 3\n\n"], stream=True), {}, 2 + 3),
        (Upstream([b"x" * 9, b"x" * 4]), {}, 2 + 2 + 1),
        (Upstream([b"x" * 400], 404), {}, 0),
        (Upstream([b"x" * 400], 399), {}, 2 + 100),
        (Upstream([b"x" * 400]), {"usage": (7, 5)}, 12),
        (Upstream([b"x" * 400]), {"usage": (0, 0)}, 102),
        (Upstream([b"x" * 400]), {"prefix": PrefixUse(30, 20)}, 130),
    ],
)
async def test_what_an_answer_costs_its_client(upstream: Upstream, change: dict[str, Any], cost: int) -> None:
    account = Account()
    source = await metered(api_request({"prompt": "12345"}, "completions"), account, upstream, 1000)
    assert account.log == [("reserve", 2)]
    async for _ in source.chunks:
        pass
    for name, value in change.items():
        setattr(source, name, value)
    await source.close()
    assert (account.log[1:], upstream.closed) == ([("settle", cost)], 1)


async def test_what_nobody_answers_costs_nothing() -> None:
    account = Account()
    with pytest.raises(UpstreamBroken):
        await metered(api_request({"prompt": "12345"}, "completions"), account, Upstream([], broken=True), 1000)
    assert account.log == [("reserve", 2), ("settle", 0)]


@pytest.mark.parametrize(
    ("headers", "forbidden"),
    [
        ([], False),
        ([(CONTROL, "max-age=5, No-Store")], True),
        ([(CONTROL, 'private="x"')], True),
        ([(CONTROL, "no-cache, public")], False),
        ([("vary", "*")], True),
        ([("vary", "Accept, x-mine")], True),
        ([("vary", "x-other")], False),
        ([("vary", "accept-encoding, authorization")], False),
        ([("vary", "x-ruled")], False),
        ([("x-cache-control", "no-store")], False),
    ],
)
def test_which_answers_an_upstream_forbids_to_keep(headers: Headers, forbidden: bool) -> None:
    given = {"x-mine": "1", "accept": "x", "authorization": "k", "x-ruled": "2"}
    request = api_request({"model": "m"}, headers=given)
    assert forbids_keeping(headers, under(Ruled(key_headers=("x-ruled",)), request)) is forbidden


async def test_an_answer_is_kept_up_to_its_limit() -> None:
    body = dumps({"a": "x" * 100})
    for limit, kept in ((len(body), True), (len(body) - 1, False)):
        recording = Recording(APIS["chat"], False, limit)
        assert not any(recording.push(body[start : start + 10]) for start in range(0, len(body), 10))
        assert (await recording.whole() is not None) is kept
    for odd in (b"[1]", b"{", b""):
        recording = Recording(APIS["chat"], False, 100)
        recording.push(odd)
        assert await recording.whole() is None


def test_what_never_ends_an_event_does_not_pile_up() -> None:
    recording = Recording(APIS["chat"], True, 1000)
    for _ in range(100):
        recording.listen(b"x" * 100)
    assert len(recording._reader) <= 1100


async def nothing() -> None: ...


def flight(source: Source | None, **fields: Any) -> Flight:
    """A flight as it is at some moment; nothing flies."""
    made = object.__new__(Flight)
    coming = SimpleNamespace(id="e")
    for name, value in {"source": source, "ended": True, "error": None, "_coming": coming}.items():
        setattr(made, name, fields.get(name, value))
    return made


def source(**fields: Any) -> Source:
    async def chunks() -> AsyncIterator[bytes]:
        yield b""

    made = Source(200, [], chunks(), Recording(APIS["chat"], False, 1), nothing, opened=5.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def drafted() -> Draft:
    draft = Draft("chat", "r", "t", None, 0.0)
    draft.began = 3.0
    return draft


def test_a_record_tells_who_answered() -> None:
    draft = drafted()
    trail.forwarded(draft, Outcome("forward", status=201), flight(source(taker=Taker("http://u", 64, print))))
    assert (draft.layer, draft.status, draft.opened, draft.upstream) == ("forward", 201, 5.0, "http://u")
    draft = drafted()
    draft.began = 7.0
    trail.forwarded(draft, Outcome("forward", collapsed=True), flight(source()))
    assert (draft.layer, draft.status, draft.opened, draft.upstream) == ("shared", 200, 7.0, None)
    draft = drafted()
    trail.renewed(draft, flight(source(status=503)))
    assert (draft.layer, draft.status, draft.opened, draft.first, draft.entry) == ("renewed", 503, 5.0, 5.0, "e")
    draft = drafted()
    trail.renewed(draft, flight(None))
    assert (draft.layer, draft.opened, draft.entry) == ("renewed", 0.0, None)
    for match, layer in ((None, "exact"), ("m", "semantic")):
        draft, entry = drafted(), make_entry()
        trail.hit(draft, Outcome("exact", match=match), entry)  # type: ignore[arg-type]
        assert (draft.layer, draft.status, draft.hit is entry) == (layer, 200, True)


def test_a_record_tells_what_was_reused_and_how_it_ended() -> None:
    draft = drafted()
    trail.ended(draft, flight(source(prefix=PrefixUse(30, 20), usage=(31, 7), taker=Taker("u", 64, print))))
    assert (draft.prompt_tokens, draft.reused_tokens, draft.completion_tokens) == (30, 20, 7)
    assert (draft.predicted_tokens, draft.entry, draft.left, draft.failure) == (64, "e", False, None)
    draft = drafted()
    trail.ended(draft, flight(source(usage=(31, 7))))
    assert (draft.prompt_tokens, draft.reused_tokens, draft.completion_tokens) == (31, None, 7)
    broken = UpstreamBroken("x")
    draft = drafted()
    trail.ended(draft, flight(None, error=broken))
    assert (draft.failure, draft.left, draft.entry) == ("error-broken", False, None)
    draft = drafted()
    # Its client left before it ended.
    trail.ended(draft, flight(source(), ended=False, error=broken))
    assert (draft.failure, draft.left) == (None, True)
    raised = (
        (NotCached("x"), 504, "not-cached"),
        (ValueError(), 500, "error-internal"),
        (KeyboardInterrupt(), 499, "gone-waiting"),
    )
    for error, status, reason in raised:
        draft = drafted()
        trail.failed(draft, error)
        assert (draft.status, draft.failure) == (status, reason)


SYSTEM, TURNS = "s" * 98, [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]


def told(
    diagnostics: Diagnostics, name: ApiName, body: JsonObject, id: str, tokens: int = 1000, tenant: str = "t"
) -> Any:
    request = ApiRequest(APIS[name], body, b"", {}, tenant, "r")
    answer = dumps({"id": id, "usage": {"input_tokens": tokens}})
    return loads(diagnostics.whole(request, answer))


def message(previous: str | None, **fields: Any) -> JsonObject:
    return {
        "model": "m",
        "system": SYSTEM,
        "messages": TURNS,
        "diagnostics": {"previous_message_id": previous},
        **fields,
    }  # type: ignore[dict-item]


def test_what_messages_are_told_of_what_was_missed() -> None:
    diagnostics = Diagnostics()
    assert told(diagnostics, "messages", message(None), "1")["diagnostics"] is None

    def reason(body: JsonObject, **fields: Any) -> Any:
        found = told(diagnostics, "messages", body, "2", **fields)["diagnostics"]
        return None if found is None else found["cache_miss_reason"]

    assert reason(message("1")) is None
    assert reason(message("other")) == reason(message("1"), tenant="u") == {"type": "previous_message_not_found"}
    # Bytes before the first part that differs are the share that was found: of a model, tools, a system and two turns.
    sizes = [len(dumps(part)) for part in ("m", None, SYSTEM, *TURNS)]
    changed = [*TURNS[:1], {"role": "user", "content": "2wo"}]
    for change, cause, passed in (
        ({"model": "n"}, "model_changed", 0),
        ({"tools": [{}]}, "tools_changed", sizes[0]),
        ({"system": "S" * 98}, "system_changed", sum(sizes[:2])),
        ({"messages": [changed[1], TURNS[1]]}, "messages_changed", sum(sizes[:3])),
        ({"messages": changed}, "messages_changed", sum(sizes[:4])),
    ):
        now = message("1", **change)
        whole = sum(len(dumps(part)) for part in (now["model"], now.get("tools"), now["system"], *now["messages"]))  # type: ignore[misc]
        assert reason(now) == {"type": cause, "cache_missed_input_tokens": round(1000 * (1 - passed / whole))}
    assert reason(message("1", thinking={"type": "disabled"})) == {"type": "unavailable"}
    assert reason(message("1", messages=[*TURNS, *TURNS])) is None


def test_what_responses_are_told() -> None:
    diagnostics = Diagnostics()

    def found(asked: str | None, **fields: Any) -> Any:
        options = {} if asked is None else {"prompt_cache_options": {"comparison_response_id": asked}}
        body = {"model": "m", "input": "x", **options, **fields}
        return told(diagnostics, "responses", body, fields.pop("id", "1")).get("prompt_cache_diagnostics", "nothing")

    assert found(None) == "nothing"
    assert found("1") == {"type": "cache_hit"}
    assert found("2") == {"type": "comparison_response_not_found"}
    assert found("1", model="n") == {"type": "cache_miss", "reason": "model_changed", "cache_missed_tokens": 1000}
    for fields, cause in (
        ({"text": {"format": {"type": "json_object"}}}, "text_format_changed"),
        ({"text": {"verbosity": "low"}}, "verbosity_changed"),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
        ({"instructions": "i"}, "input_changed"),
        ({"input": "y"}, "input_changed"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key_changed"),
        ({"service_tier": "flex"}, "service_tier_changed"),
    ):
        assert found("1", **fields)["reason"] == cause
        assert 0 < found("1", **fields)["cache_missed_tokens"] < 1000


def test_the_first_of_equal_answers_is_compared_with_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.flow.recording.diagnostics._MOST", 2)
    diagnostics = Diagnostics()
    told(diagnostics, "messages", message(None), "1")
    told(diagnostics, "messages", message(None, model="n"), "1")
    assert told(diagnostics, "messages", message("1"), "1")["diagnostics"] is None
    for id in ("2", "3"):
        told(diagnostics, "messages", message(None), id)
    assert told(diagnostics, "messages", message("2"), "2")["diagnostics"] is None
    assert "not_found" in str(told(diagnostics, "messages", message("1"), "2"))


def test_a_stream_is_told_in_its_first_event() -> None:
    diagnostics = Diagnostics()
    told(diagnostics, "messages", message(None), "1")
    request = ApiRequest(APIS["messages"], message("1", model="n"), b"", {}, "t", "r")
    start: JsonObject = {"type": "message_start", "message": {"id": "2", "usage": {"input_tokens": 10}}}
    events = EventReader().push(diagnostics.replayed(request, event(start, "message_start") + event(b"{}", "ping")))
    assert [each.name for each in events] == [b"message_start", b"ping"]
    first: Any = loads(events[0].data)
    assert first["message"]["diagnostics"]["cache_miss_reason"]["cache_missed_input_tokens"] == 10
    assert events[1].data == b"{}"
    assert diagnostics.whole(request, b"[1]") == b"[1]"
    assert diagnostics.whole(request, b'{"id": 5}') == b'{"id": 5}'
    asking = ({"diagnostics": {}}, {"diagnostics": None}, {})
    assert [diagnostics.wants(api_request(body, "messages")) for body in asking] == [True, False, False]  # type: ignore[arg-type]
    assert diagnostics.wants(api_request({}, "responses"))
    assert not diagnostics.wants(api_request({"diagnostics": {}}, "chat"))


class Semantic:
    """What an observer asks of a semantic cache, as far as it only collects."""

    lookups = SimpleNamespace(busy=False, overloaded=False)
    learning = None
    behind = SimpleNamespace(dropped=2)


async def test_comparisons_beyond_those_that_may_wait_are_dropped_and_counted() -> None:
    observer = Observer(Semantic(), EqualityJudge())  # type: ignore[arg-type]
    assert observer.is_idle
    assert observer.results() == {"dropped": 2}
    lookup = Lookup(None, ())
    for _ in range(64 + 5):
        observer.compare(api_request({}), make_entry(), lookup)
    assert observer.counts == {"dropped": 5}
    assert observer.results() == {"dropped": 7}
    assert not observer.is_idle
    await observer.idle()
    assert observer.is_idle
    await observer.close()


async def test_answers_are_the_same_but_for_case_spaces_and_punctuation() -> None:
    asked = api_request({"model": "m"})
    judge = EqualityJudge()
    assert await judge.same(asked, "q", Cached("e", "It's  SO."), "it s so")
    assert not await judge.same(asked, "q", Cached("e", "It is 2."), "It is 3.")
    cosines = {"near": 0.9, "far": 0.89}

    async def cosine(cached: Cached, fresh: str) -> float:
        return cosines[fresh]

    alike = SimilarityJudge(cosine, 0.9)
    assert [await alike.same(asked, "q", Cached("e", "x"), fresh) for fresh in ("X!", "near", "far")] == [
        True,
        True,
        False,
    ]


def test_what_prompts_of_the_past_held(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "why"}]}
    store = ResponseStore(tmp_path / "r.db")
    store.put(make_entry("a", id="a", request=dumps(body), tenant="t", backend="b"))  # type: ignore[arg-type]
    store.put(make_entry("b", id="b", endpoint="library"))

    class Reader:
        def whole(self, prompt: int) -> bytes | None:
            return zlib.compress(b'{"x": 1}') if prompt == 1 else None

        def stored(self, prompt: int) -> tuple[str, float] | None:
            return {2: ("a", 9.0), 3: ("gone", 9.0), 4: ("b", 9.0)}.get(prompt)

    find: Any = texts(Reader(), store)  # type: ignore[arg-type]
    assert find(1) == {"x": 1}
    found = find(2)
    assert (found["api"], found["tenant"], found["backend"], found["model"]) == ("chat", "t", "b", "m")
    assert found["messages[0] user"] == {"role": "user", "content": "why"}
    assert [find(prompt) for prompt in (3, 4, 5)] == [None] * 3
    assert texts(Reader(), None)(2) is None  # type: ignore[arg-type]
    store.close()


def test_an_outcome_claims_nothing_that_it_is_not_told() -> None:
    outcome = Outcome("forward")
    assert (outcome.skipped, outcome.stored, outcome.collapsed, outcome.stale, outcome.forwarded) == (False,) * 3 + (
        None,
    ) * 2
    assert (outcome.entry, outcome.match, outcome.prefix, outcome.status) == (None, None, None, 200)
    assert (outcome.age, outcome.ttl, outcome.tokens) == (0, 0, 0)
    assert PrefixUse(3, 2).tier_tokens == 0
    assert Answer(200, [], b"", outcome).again is None
