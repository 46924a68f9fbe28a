"""Arrays of inputs to embed, sent with the real `openai` client: known inputs come from the cache, the others upstream."""

import asyncio
import base64
import contextlib
import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kvproxy.apis.embeddings import split_tokens, sum_tokens
from kvproxy.clients.client_keys import add_client, spent_and_reserved
from kvproxy.http.services import Services
from kvproxy.operations.keys import list_clients
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.polling import until
from tests.servers import run_front, run_proxy, run_upstream, until_stored, waiting_clients

PRICE = {"input": 1_000_000.0, "output": 0.0}
"""One unit of money per token."""


def tokens_of(given: Any) -> int:
    return len(given.split()) if isinstance(given, str) else len(given)


def vector(given: Any, dimensions: int = 3) -> list[float]:
    """A vector that the input determines, whose numbers float32 represents exactly."""
    seed = sum(json.dumps(given).encode())
    return [seed / 2 + place for place in range(dimensions)]


class BrokenResponse(Response):
    """Ends the connection after a part of the body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body[:20], "more_body": True})


class Embedder:
    """An upstream that counts one token per word, or per token id, and records the inputs that it computes."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.headers: dict[str, str] = {}
        self.change: Callable[[dict[str, Any]], Any] = lambda whole: whole
        self.status = 200
        self.breaks = False
        self.go = threading.Event()
        self.go.set()

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse({"object": "list", "data": []})
        body = await request.json()
        given = body["input"]
        self.asked.append(given)
        await asyncio.to_thread(self.go.wait, 20)
        if self.status != 200:
            return JSONResponse({"error": {"message": "broken"}}, self.status)
        inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        vectors = [vector(each, body.get("dimensions", 3)) for each in inputs]
        if body.get("encoding_format") == "base64":
            packed = [base64.b64encode(struct.pack(f"<{len(each)}f", *each)).decode() for each in vectors]
        else:
            packed = vectors  # type: ignore[assignment]
        data = [{"object": "embedding", "index": place, "embedding": each} for place, each in enumerate(packed)]
        count = sum(map(tokens_of, inputs))
        usage = {"prompt_tokens": count, "total_tokens": count}
        whole = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        response = JSONResponse(self.change(whole), headers=self.headers)
        return BrokenResponse(response.body) if self.breaks else response


@pytest.fixture(scope="module", autouse=True)
def load_openai() -> None:
    global openai
    import openai


@pytest.fixture
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture
def front(embedder: Embedder, tmp_path: Path) -> Iterator[tuple[str, Services]]:
    with (
        run_upstream(embedder.answer) as upstream,
        run_front(tmp_path, upstream, journal={"prices": {"e": PRICE}}) as running,
    ):
        yield running


@pytest.fixture
def url(front: tuple[str, Services]) -> str:
    return front[0]


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        yield client


def embed(client: Any, given: Any, control: str = "", **fields: Any) -> tuple[Any, str]:
    """Return the SDK's response, whose vectors must be right, and `Cache-Status`."""
    headers = {"cache-control": control, **fields.pop("extra_headers", {})}
    raw = client.embeddings.with_raw_response.create(model="e", input=given, extra_headers=headers, **fields)
    response = raw.parse()
    inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    assert [item.index for item in response.data] == list(range(len(inputs)))
    assert [item.object for item in response.data] == ["embedding"] * len(inputs)
    expected = [vector(each, fields.get("dimensions", 3)) for each in inputs]
    if fields.get("encoding_format") != "base64":
        assert [list(item.embedding) for item in response.data] == expected
    return response, raw.headers["cache-status"]


def test_an_array_of_one_input_reaches_the_upstream_unchanged_and_shares_its_hits(
    front: tuple[str, Services], embedder: Embedder
) -> None:
    url, services = front
    answers = []
    for given in (["a b"], "a b", ["a b"]):
        answers.append(httpx.post(f"{url}/v1/embeddings", json={"model": "e", "input": given}))
        until_stored(services)
    assert embedder.asked == [["a b"]]
    assert all(answer.json()["data"] == answers[0].json()["data"] for answer in answers)
    assert ["hit" in answer.headers["cache-status"] for answer in answers] == [False, True, True]


def test_only_unknown_inputs_are_computed(client: Any, embedder: Embedder) -> None:
    response, status = embed(client, ["a b", "c", "d"])
    assert (embedder.asked.pop(), response.usage.total_tokens) == (["a b", "c", "d"], 4)
    assert status == 'kvproxy; fwd=uri-miss; detail="inputs 0/3"'
    # Only the index decides, and not the order.
    embedder.change = lambda whole: {**whole, "data": whole["data"][::-1]}
    response, status = embed(client, ["x y z", "d", "w", "a b"])
    assert (embedder.asked.pop(), response.usage.prompt_tokens) == (["x y z", "w"], 4)
    assert status == 'kvproxy; fwd=partial; detail="inputs 2/4"'
    response, status = embed(client, ["w", "c", "x y z"])
    assert (embedder.asked, response.usage.total_tokens, response.model) == ([], 0, "e")
    assert status.startswith("kvproxy; hit; ttl=")
    assert status.endswith('; detail="exact inputs 3/3"')


def test_single_requests_and_arrays_hit_each_other(client: Any, embedder: Embedder) -> None:
    embed(client, "one two")
    assert "; hit" in embed(client, ["one two"])[1]
    response, _ = embed(client, ["three", "one two"])
    # The only missing input is sent like a single request, so its usage is known.
    assert (embedder.asked, response.usage.total_tokens) == (["one two", "three"], 1)
    embed(client, ["four", "five"])
    for given in ("three", "four", "five", ["five"]):
        assert "; hit" in embed(client, given)[1]
    assert embedder.asked[2:] == [["four", "five"]]


def test_an_entry_equals_that_of_a_single_request(front: tuple[str, Services], client: Any) -> None:
    _, services = front
    embed(client, ["a", "b"], extra_headers={"x-kvproxy-tags": "docs", "x-kvproxy-ttl": "600"})
    embed(client, "c", extra_headers={"x-kvproxy-tags": "docs", "x-kvproxy-ttl": "600"})
    until_stored(services)
    entries = {json.loads(entry.request)["input"]: entry for entry in services.cache.store.list_entries(limit=10)}
    assert set(entries) == {"a", "b", "c"}
    for name in ("a", "b"):
        array, single = entries[name], entries["c"]
        for field in ("tenant", "model", "endpoint", "semantic", "tags", "backend", "stale_if_error"):
            assert getattr(array, field) == getattr(single, field), field
        assert array.expires - array.created == single.expires - single.created == 600
        assert array.prompt == name
        assert json.loads(array.request) == {**json.loads(single.request), "input": name}
        parsed, expected = json.loads(array.response), json.loads(single.response)
        assert parsed["data"][0]["index"] == 0
        assert parsed.keys() == expected.keys()
        assert (array.prompt_tokens, single.prompt_tokens) == (1, 1)
        # The upstream reported only the sum.
        assert parsed["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_duplicates_are_computed_once(client: Any, embedder: Embedder) -> None:
    response, status = embed(client, ["a", "b", "a", "a"])
    assert (embedder.asked.pop(), response.usage.total_tokens) == (["a", "b"], 2)
    assert status == 'kvproxy; fwd=uri-miss; detail="inputs 0/4"'
    assert 'detail="exact inputs 2/2"' in embed(client, ["b", "b"])[1]
    embed(client, ["c", "c"])
    assert embedder.asked == ["c"]


@pytest.mark.parametrize(
    "fields", [{"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 2}, {}, {"user": "u"}]
)
def test_fields_separate_entries_as_in_single_requests(client: Any, embedder: Embedder, fields: dict[str, Any]) -> None:
    embed(client, ["a", "b"], encoding_format="float", dimensions=5)
    first, _ = embed(client, ["a", "b"], **fields)
    mixed, _ = embed(client, ["b", "c", "a"], **fields)
    assert embedder.asked[1:] == [["a", "b"], "c"]
    assert [mixed.data[2].embedding, mixed.data[0].embedding] == [item.embedding for item in first.data]


def test_the_default_format_is_equal_to_none(url: str, embedder: Embedder) -> None:
    body = {"model": "e", "input": ["a", "b"]}
    formats = ({}, {"encoding_format": "float"}, {"encoding_format": None}, {"encoding_format": "base64"})
    answers = [httpx.post(f"{url}/v1/embeddings", json=body | form) for form in formats]
    assert [answer.headers["cache-status"].startswith("kvproxy; hit") for answer in answers] == [
        False,
        True,
        True,
        True,
    ]
    assert answers[1].json()["data"] == answers[0].json()["data"]
    assert len(embedder.asked) == 1


@pytest.mark.parametrize(("first", "second"), [("float", "base64"), ("base64", "float")])
def test_a_request_hits_the_other_format(url: str, embedder: Embedder, first: str, second: str) -> None:
    def post(given: Any, form: str) -> httpx.Response:
        return httpx.post(f"{url}/v1/embeddings", json={"model": "e", "input": given, "encoding_format": form})

    post("a", first)
    expected = post("a", second).json()["data"]
    assert embedder.asked == ["a"]
    single, mixed = post("a", second), post(["b", "a"], second)
    assert embedder.asked == ["a", "b"]
    assert single.headers["cache-status"].startswith("kvproxy; hit")
    assert mixed.headers["cache-status"].startswith('kvproxy; fwd=partial; detail="inputs 1/2"')
    assert single.json()["data"] == expected
    numbers = vector("a") if second == "float" else base64.b64encode(struct.pack("<3f", *vector("a"))).decode()
    assert [item["embedding"] for item in (expected[0], mixed.json()["data"][1])] == [numbers, numbers]


def test_more_precise_numbers_are_not_converted(url: str, embedder: Embedder) -> None:
    embedder.change = lambda whole: {**whole, "data": [{"object": "embedding", "index": 0, "embedding": [1 / 3]}]}
    for form in ("float", "base64", "float"):
        answer = httpx.post(f"{url}/v1/embeddings", json={"model": "e", "input": "a", "encoding_format": form})
        assert answer.json()["data"][0]["embedding"] == [1 / 3]
    assert embedder.asked == ["a", "a"]


def test_token_ids(client: Any, embedder: Embedder) -> None:
    embed(client, [[1, 2], [3]])
    embed(client, [3])
    embed(client, [[4, 5], [3], [6]])
    embed(client, [1, 2])
    assert embedder.asked == [[[1, 2], [3]], [[4, 5], [6]]]


@pytest.mark.parametrize("given", [[], [["a"]], ["a", [1]], [[]], [{"text": "a"}], ["a", 1], [True, 1]])
def test_other_arrays_are_forwarded_unchanged(url: str, embedder: Embedder, given: list[Any]) -> None:
    embedder.status = 400
    httpx.post(f"{url}/v1/embeddings", json={"model": "e", "input": "a"})
    answer = httpx.post(f"{url}/v1/embeddings", json={"model": "e", "input": given})
    assert (answer.status_code, embedder.asked[1:]) == (400, [given])


def test_arrays_with_other_fields_are_cached_as_a_whole(client: Any, embedder: Embedder) -> None:
    for given in (["a", "b"], ["b"], ["a", "b"]):
        embed(client, given, extra_body={"late_chunking": True})
    assert embedder.asked == [["a", "b"], ["b"]]


@pytest.mark.parametrize("fallbacks", [{}, {"e": ["other"]}])
def test_an_array_never_mixes_a_model_and_its_fallback(
    tmp_path: Path, embedder: Embedder, fallbacks: dict[str, list[str]]
) -> None:
    with run_upstream(embedder.answer) as upstream:
        settings = load_settings(
            data=tmp_path,
            upstreams=[{"url": upstream, "models": ["e", "other"]}],
            routing={"fallbacks": fallbacks},
            cache={"semantic": False},
        )
        with run_proxy(settings) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            embed(client, ["a", "b"])
            embed(client, ["b", "c"])
            assert embedder.asked[1] == (["b", "c"] if fallbacks else "c")


def test_a_rule_turns_the_lookup_of_inputs_off(tmp_path: Path, embedder: Embedder) -> None:
    rules = [{"name": "off", "model": "e", "cache": False}]
    with (
        run_upstream(embedder.answer) as upstream,
        run_front(tmp_path, upstream, rules=rules) as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        embed(client, ["a", "a"])
        assert embed(client, ["a", "a"])[1] == 'kvproxy; fwd=bypass; detail="not stored: rule off"'
        assert embedder.asked == [["a", "a"]] * 2


def test_errors_pass_as_a_whole(client: Any, embedder: Embedder) -> None:
    embed(client, ["a"])
    embedder.status = 400
    with pytest.raises(openai.BadRequestError, match="broken"):
        embed(client, ["a", "b", "c"])
    embedder.status = 200
    embed(client, ["a", "b"])
    assert embedder.asked == [["a"], ["b", "c"], "b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: {**whole, "data": whole["data"][1:]},
        lambda whole: {**whole, "data": [{**item, "index": 0} for item in whole["data"]]},
        lambda whole: {"error": {"message": "no"}},
        lambda whole: [],
    ],
)
def test_a_response_without_one_embedding_per_input_is_an_error(
    url: str, client: Any, embedder: Embedder, change: Callable[[Mapping[str, Any]], Any]
) -> None:
    embed(client, "a")
    embedder.change = change
    # An unchanged request gets the upstream's response.
    alone = httpx.post(f"{url}/v1/embeddings", json={"model": "e", "input": ["b", "c"]})
    assert alone.status_code == 200
    assert 'detail="inputs 0/2 not stored:' in alone.headers["cache-status"]
    with pytest.raises(openai.InternalServerError, match="not one embedding for each of 2 inputs"):
        embed(client, ["b", "a", "c"])
    embedder.change = lambda whole: whole
    embed(client, ["b", "a", "c"])


def test_a_single_input_with_several_embeddings_is_not_stored(client: Any, embedder: Embedder) -> None:
    embedder.change = lambda whole: {**whole, "data": whole["data"] * 2}
    raw = client.embeddings.with_raw_response.create(model="e", input="a")
    assert raw.headers["cache-status"].endswith('detail="not stored: invalid"')
    embedder.change = lambda whole: whole
    embed(client, ["a", "b"])
    assert embedder.asked[1] == ["a", "b"]


def test_directives_apply_to_each_input(client: Any, embedder: Embedder) -> None:
    embed(client, ["a", "b"], "no-store")
    with pytest.raises(openai.InternalServerError, match="only-if-cached"):
        embed(client, ["a", "b"], "only-if-cached")
    embed(client, ["a", "b"])
    assert "; hit" in embed(client, ["b", "a"], "only-if-cached")[1]
    _, status = embed(client, ["a", "c"], "max-age=0")
    assert status.startswith("kvproxy; fwd=request; ")
    _, status = embed(client, ["a", "b"], "no-cache")
    assert "fwd=request" in status
    _, status = embed(client, ["d", "e"], "confirm")
    assert status == 'kvproxy; fwd=uri-miss; stored; detail="inputs 0/2"'
    assert embedder.asked == [["a", "b"], ["a", "b"], ["a", "c"], ["a", "b"], ["d", "e"]]


def test_tenants_share_no_inputs(url: str, client: Any, embedder: Embedder) -> None:
    embed(client, ["a", "b"])
    with openai.OpenAI(base_url=f"{url}/v1", api_key="other", max_retries=0) as other:
        embed(other, ["b", "c"])
    assert embedder.asked == [["a", "b"], ["b", "c"]]


def test_a_large_array_is_joined(client: Any, embedder: Embedder) -> None:
    inputs = [f"text {number}" for number in range(300)]
    embed(client, inputs[::3], dimensions=200)
    embed(client, inputs, dimensions=200)
    response, status = embed(client, inputs[::-1], dimensions=200)
    assert [len(asked) for asked in embedder.asked] == [100, 200]
    assert 'inputs 300/300"' in status
    assert len(response.data) == 300


@contextlib.contextmanager
def paid(path: Path, embedder: Embedder) -> Iterator[tuple[Services, Any]]:
    """A proxy with a client, whose budget counts money, and its SDK."""
    with (
        run_upstream(embedder.answer) as upstream,
        run_front(path, upstream, journal={"prices": {"e": PRICE}}) as (url, services),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
        key = add_client(services.settings, "indexer", budget_per_day=1_000, tokens_per_minute=1_000)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            yield services, client


def test_all_reports_count_what_was_computed_and_what_was_saved(tmp_path: Path, embedder: Embedder) -> None:
    data = tmp_path
    (data / "kvproxy.toml").write_text("[journal.prices.e]\ninput = 1_000_000\noutput = 0\n")
    with paid(data, embedder) as (services, client):
        embed(client, "one two")
        embed(client, ["one two", "three"])
        embed(client, ["x", "y z"])
        embed(client, ["x", "w", "v", "one two"], extra_headers={"x-kvproxy-tags": "project:docs"})
        embed(client, ["y z", "x"])
        embed(client, ["three", "one two", "three"])
        until(lambda: services.journal.read(lambda reader: reader.newest_number(), 0) == 6)
        until(lambda: spent_and_reserved(services.settings)[0]["indexer"].today == 8.0)
        metrics = services.metrics.render().decode()
        (listed,) = list_clients(services.settings)
        reported = httpx.get(f"{str(client.base_url).removesuffix('/v1/')}/metrics").text
    assert embedder.asked == ["one two", "three", ["x", "y z"], ["w", "v"]]
    # The budget, the quota, and the list of keys: 2 + 1 + 3 + 2 tokens at 1.
    assert (listed.tokens, listed.spent, listed.spent_today, listed.requests) == (8, 8.0, 8.0, 6)
    assert 'kvproxy_client_tokens_total{client="indexer"} 8.0' in metrics
    assert 'kvproxy_inputs_total{result="cached"} 8.0' in metrics
    assert 'kvproxy_inputs_total{result="missing"} 5.0' in metrics
    rows = [json.loads(line) for line in kvproxy("log", "--data", data, "--json").stdout.splitlines()]
    names = ("layer", "inputs", "inputs_cached", "inputs_cached_tokens", "prompt_tokens", "cost", "reason")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("forward", None, None, None, 2, 2.0, "miss-new"),
        ("forward", 2, 1, 2, 1, 1.0, "miss-new"),
        ("forward", 2, 0, 0, 3, 3.0, "miss-inputs"),
        # The 3 tokens of `x` and `y z` are split in proportion to their lengths.
        ("forward", 4, 2, 3, 2, 2.0, "miss-inputs"),
        ("exact", 2, 2, 3, 3, 0.0, "hit-exact"),
        ("exact", 3, 3, 4, 4, 0.0, "hit-exact"),
    ]
    total = result("savings", "--data", data)["total"]
    assert (total["requests"], total["answered"], total["partial_hits"]) == (6, 2, 2)
    assert (total["spent"], total["money"], total["hit_money"], total["least_money"]) == (8.0, 12.0, 12.0, 12.0)
    assert (total["prompt_tokens"], total["completion_tokens"], total["unreported_hits"]) == (12, 0, 0)
    layers = {row["name"]: row for row in result("savings", "--data", data)["rows"]}
    assert {name: (row["requests"], row["prompt_tokens"], row["money"]) for name, row in layers.items()} == {
        "forward": (4, 5, 5.0),
        "exact": (2, 7, 7.0),
    }
    assert 'kvproxy_savings_money{layer="forward"} 5.0' in reported
    assert 'kvproxy_savings_spent{layer="forward"} 8.0' in reported
    for by in ("client", "model", "tenant", "day", "team"):
        (row,) = result("savings", "--by", by, "--data", data)["rows"]
        assert (row["spent"], row["money"], row["partial_hits"], row["prompt_tokens"]) == (8.0, 12.0, 2, 12), by
    projects = {row["name"]: row for row in result("savings", "--by", "project", "--data", data)["rows"]}
    docs = projects["docs"]
    assert (docs["spent"], docs["money"], docs["prompt_tokens"], docs["unreported_hits"]) == (2.0, 3.0, 3, 0)
    assert (projects[""]["spent"], projects[""]["money"]) == (6.0, 9.0)
    bill = result("savings", "--bill", "--data", data)["total"]
    assert (bill["input_tokens"], bill["output_tokens"], bill["cost"], bill["saved"]) == (8, 0, 8.0, 12.0)
    assert (bill["requests"], bill["hits"], bill["unreported_hits"]) == (6, 2, 0)
    (spending,) = result("sessions", "--by", "model", "--data", data)["rows"]
    assert (spending["cost"], spending["input_tokens"]) == (8.0, 8)
    (top,) = result("log", "top", "--by", "model", "--data", data)
    assert (top["requests"], top["cached"], top["computed"], top["cost"]) == (6, 2, 8, 8.0)
    explained = kvproxy("explain", "--request", rows[3]["request_id"], "--data", data).stdout
    assert "Of 4 inputs, 2 were stored." in explained
    shown = kvproxy("savings", "--data", data).stdout
    assert "2 requests of arrays had some inputs from the cache" in shown
    assert "the tokens of each are an estimated share" in " ".join(shown.split())
    assert "without reported tokens" not in shown
    assert "2/4" in kvproxy("log", "--data", data, columns=160).stdout


def test_hits_on_inputs_without_a_usage_save_unknown_tokens(tmp_path: Path, embedder: Embedder) -> None:
    embedder.change = lambda whole: {name: value for name, value in whole.items() if name != "usage"}
    with paid(tmp_path, embedder) as (services, client):
        for given in (["x", "y z"], ["x", "w", "v"], ["w", "x"]):
            embed(client, given)
        until(lambda: services.journal.read(lambda reader: reader.newest_number(), 0) == 3)
    total = result("savings", "--data", tmp_path)["total"]
    assert (total["partial_hits"], total["unreported_hits"], total["prompt_tokens"]) == (1, 2, None)
    shown = " ".join(kvproxy("savings", "--data", tmp_path).stdout.split())
    assert "2 hits without reported tokens, also of inputs of arrays: tokens and money do not include them" in shown


@pytest.mark.parametrize("tokens", [0, 1, 7, 2_490, None])
def test_the_tokens_of_inputs_add_up_to_those_of_their_array(tokens: int | None) -> None:
    inputs = ["", "a", "\ud800", "longer text", *["text"] * 411]
    split = split_tokens(tokens, inputs)
    assert len(split) == len(inputs)
    assert sum_tokens(split) == tokens
    assert split_tokens(6, [[1, 2, 3, 4], [5, 6]]) == [4, 2]


def test_explain_counts_the_stored_inputs(front: tuple[str, Services], client: Any, tmp_path: Path) -> None:
    url, _ = front
    embed(client, ["a", "b"])
    headers = {"authorization": "Bearer k"}

    def explain(given: Any) -> dict[str, Any]:
        body = {"model": "e", "input": given, "encoding_format": "base64"}
        answer = httpx.post(f"{url}/admin/explain?api=embeddings", json=body, headers=headers)
        explained: dict[str, Any] = answer.raise_for_status().json()
        return explained

    assert [(found["layer"], found["inputs"]) for found in map(explain, (["b", "a"], ["a", "c", "a"], ["d"], "a"))] == [
        ("exact", {"count": 2, "cached": 2, "stale": None}),
        ("none", {"count": 3, "cached": 2, "stale": None}),
        ("none", {"count": 1, "cached": 0, "stale": None}),
        ("exact", None),
    ]
    for given, sentence in (
        (["a", "b"], "The response cache would answer: 2 inputs of the array, all stored."),
        (["a", "c"], "The response cache has 1 of 2 inputs of the array; the upstream would compute the others."),
        (["c", "d"], "The response cache has 0 of 2 inputs of the array; the upstream would compute them."),
    ):
        file = tmp_path / "request.json"
        file.write_text(json.dumps({"model": "e", "input": given, "encoding_format": "base64"}))
        arguments = ("explain", "--file", file, "--api", "embeddings", "--api-key", "k")
        assert sentence in kvproxy(*arguments, url=url).stdout


def test_equal_arrays_in_flight_are_computed_once(front: tuple[str, Services], client: Any, embedder: Embedder) -> None:
    _, services = front
    embed(client, ["a"])
    embedder.go.clear()
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(embed, client, given) for given in (["a", "b", "c"], ["b", "c", "a"], ["b", "c"])]
        until(lambda: waiting_clients(services) == 3)
        embedder.go.set()
        statuses = [answer.result()[1] for answer in answers]
    assert embedder.asked == [["a"], ["b", "c"]]
    assert sum("collapsed" in status for status in statuses) == 2


def test_a_client_that_disconnects_cancels_its_missing_inputs(
    front: tuple[str, Services], client: Any, embedder: Embedder
) -> None:
    _, services = front
    embed(client, ["a"])
    embedder.go.clear()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).embeddings.create(model="e", input=["a", "b"])
    until(lambda: len(services.path.requests_in_flight) == 0)
    embedder.go.set()


def test_stored_inputs_expire_one_by_one(tmp_path: Path, embedder: Embedder) -> None:
    now = [1_000_000.0]
    with (
        run_upstream(embedder.answer) as upstream,
        run_proxy(load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False}), clock=lambda: now[0]) as (
            url,
            _,
        ),
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        embed(client, ["a"], extra_headers={"x-kvproxy-ttl": "100"})
        embed(client, ["b"], extra_headers={"x-kvproxy-ttl": "300"})
        now[0] += 50
        _, status = embed(client, ["b", "a"])
        assert "; ttl=50; " in status
        now[0] += 100
        embed(client, ["b", "a"])
        assert embedder.asked == [["a"], ["b"], "a"]


def test_a_large_response_is_stored_by_input(tmp_path: Path, embedder: Embedder) -> None:
    inputs, cache = [f"text {number}" for number in range(40)], {"semantic": False, "max_response_bytes": 20_000}
    with (
        run_upstream(embedder.answer) as upstream,
        run_proxy(load_settings(data=tmp_path, upstream=upstream, cache=cache)) as (url, services),
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        # An embedding of 3,000 numbers has 16,000 bytes.
        embed(client, inputs[:10], dimensions=3_000)
        assert "; hit" in embed(client, inputs[:10], dimensions=3_000)[1]
        embed(client, inputs[10:], dimensions=3_000)
        until(lambda: [row.not_stored for row in services.journal.latest(1)] == ["too-large"])
        with pytest.raises(openai.InternalServerError, match="over 320,000 bytes: send fewer inputs"):
            embed(client, inputs, dimensions=3_000)


def test_embeddings_without_usage_have_no_tokens_of_output(tmp_path: Path, embedder: Embedder) -> None:
    embedder.change = lambda whole: {**whole, "usage": None}
    with paid(tmp_path, embedder) as (services, client):
        embed(client, ["one two", "three four"], dimensions=200)
        until(lambda: len(services.journal.latest(1)) == 1)
        (record,) = services.journal.latest(1)
        assert (record.estimated_prompt_tokens, record.estimated_completion_tokens) == (17, 0)
        until(lambda: list_clients(services.settings)[0].tokens == 17)


@pytest.mark.parametrize("known", [[], ["a"]])
def test_budget_and_journal_count_a_response_that_breaks_off(tmp_path: Path, known: list[str]) -> None:
    embedder = Embedder()
    with paid(tmp_path, embedder) as (services, client):
        embed(client, ["a"])
        embedder.breaks = True
        with pytest.raises((openai.APIError, json.JSONDecodeError)):
            client.embeddings.create(model="e", input=[*known, "b b b", "c c c"])
        until(lambda: len(services.journal.latest(2)) == 2)
        newest = services.journal.latest(1)[0]
        assert (newest.reason, newest.estimated_prompt_tokens) == ("error-broken", 13)
        until(lambda: spent_and_reserved(services.settings)[0]["indexer"].today == 14.0)
        assert list_clients(services.settings)[0].spent == 14.0
