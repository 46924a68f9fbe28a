"""Upstreams that serve different models: routes by name and alias, fallbacks, the list of models, and cache keys."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import SettingsError
from kvproxy.http.services import Services
from kvproxy.installation.checks.model_routes import check_model_routes
from kvproxy.installation.checks.servers import CheckWarning
from kvproxy.installation.checks.unpriced_models import unpriced_models
from kvproxy.settings import RoutingSettings, load_settings
from kvproxy.upstreams.form_fields import find_form_field
from kvproxy.upstreams.model_routes import ModelRoutes
from tests.commands.run import result
from tests.polling import until
from tests.servers import run_proxy, run_upstream, until_stored

LARGE, SMALL, CLOUD = "qwen3-32b", "qwen3-0.6b", "gpt-5-mini"


@dataclass
class Scripted:
    """An upstream that answers with its name and the model that it got, or with a status that means failure."""

    name: str
    models: tuple[str, ...]
    status: int = 200
    got: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """Path, model, and key of each request."""

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"object": "list", "data": [self._row(name) for name in self.models]})
        if request.headers["content-type"].startswith("multipart/"):
            value = find_form_field(await request.body(), request.headers["content-type"], "model")
            body: dict[str, Any] = {} if value is None else {"model": (await request.body())[value].decode()}
        else:
            body = await request.json()
        self.got.append((request.url.path, body.get("model"), request.headers.get("authorization")))
        if self.status != 200:
            return JSONResponse({"error": {"message": "no"}}, self.status)
        message = {"role": "assistant", "content": f"{self.name} as {body.get('model')}"}
        whole = {"id": "x", "object": "chat.completion", "created": 1, "model": body.get("model")}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        return JSONResponse(whole | {"choices": choices, "usage": usage})

    def _row(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 7, "owned_by": self.name, "max_model_len": 4096}


@dataclass
class Running:
    url: str
    services: Services
    local: Scripted
    cloud: Scripted
    client: openai.OpenAI

    def ask(self, model: str, text: str = "Where is the key?", **fields: Any) -> tuple[str, str]:
        """Send a chat with the OpenAI SDK; return the answer, and the cache's part of `Cache-Status`."""
        messages: Any = [{"role": "user", "content": text}]
        raw = self.client.chat.completions.with_raw_response.create(model=model, messages=messages, **fields)
        until_stored(self.services)
        status = raw.headers["cache-status"]
        return raw.parse().choices[0].message.content or "", "hit" if "; hit" in status else status

    def error(self, model: str, text: str = "Where is the key?") -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as raised:
            self.ask(model, text)
        return raised.value

    def records(self, count: int = 1, **filters: str) -> list[dict[str, Any]]:
        """Return the matching records, once the journal has written `count` of them."""
        until(lambda: len(self.admin("/log", **filters)) >= count)
        return list(self.admin("/log", **filters))

    def admin(self, path: str, **params: Any) -> Any:
        return httpx.get(f"{self.url}/admin{path}", params=params).raise_for_status().json()


@contextmanager
def running(data: Path, **routing: Any) -> Iterator[Running]:
    local, cloud = Scripted("local", (LARGE, SMALL)), Scripted("cloud", (CLOUD, "gpt-5", "other"))
    with ExitStack() as stack:
        first, second = (stack.enter_context(run_upstream(each.answer)) for each in (local, cloud))
        settings = load_settings(
            data=data,
            upstreams=[
                {"url": first, "models": [LARGE, SMALL], "aliases": {"fast": SMALL}},
                {"url": second, "models": ["gpt-*"], "api_key": "secret"},
            ],
            cache={"semantic": False},
            routing={"health_interval": 60.0} | routing,
        )
        url, services = stack.enter_context(run_proxy(settings))
        client = stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="own", max_retries=0))
        yield Running(url, services, local, cloud, client)


def test_requests_go_to_the_upstream_of_their_model_or_alias(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:
        assert proxy.ask(LARGE)[0] == f"local as {LARGE}"
        assert proxy.ask(CLOUD)[0] == f"cloud as {CLOUD}"
        # An alias shares responses with its model, and only with it.
        assert proxy.ask("fast")[0] == f"local as {SMALL}"
        assert proxy.ask(SMALL) == (f"local as {SMALL}", "hit")
        assert proxy.ask("fast") == (f"local as {SMALL}", "hit")
        assert proxy.ask(LARGE) == (f"local as {LARGE}", "hit")
        path = "/v1/chat/completions"
        assert [each[:2] for each in proxy.local.got] == [(path, LARGE), (path, SMALL)]
        assert proxy.cloud.got == [(path, CLOUD, "Bearer secret")]
        # Uncached APIs go by the model in their body, too.
        proxy.client.post("/images/generations", body={"model": CLOUD, "prompt": "x"}, cast_to=object)
        proxy.client.post("/rerank", body={"model": "fast"}, cast_to=object)
        assert proxy.cloud.got[-1][:2] == ("/v1/images/generations", CLOUD)
        assert proxy.local.got[-1][:2] == ("/v1/rerank", SMALL)
        assert [row["model"] for row in proxy.records(2, tag="alias:fast")] == [SMALL] * 2
        # The proxy requests the lists itself.
        assert len(proxy.client.models.list().data) > 3
        first, second = proxy.admin("/upstreams")
        assert (first["sent"], second["sent"]) == (3, 2)
        assert (first["models"], first["aliases"], second["models"]) == ([LARGE, SMALL], {"fast": SMALL}, ["gpt-*"])
        # The upstream serves more models than it lists.
        assert result("explain", "x", "--model", "gpt-unlisted", url=proxy.url)["layer"] == "none"


UNREADABLE = [
    *(b'{"model": "%s", "temperature": NaN}', b'{"model": "%s", "top_p": Infinity}', b'{"model": "%s",}', b'{"mo'),
    *(b'\xef\xbb\xbf{"model": "%s"}', b'{"model": "%s", "user": "\xe9"}', b'{"model": "%s", "user": "\\ud800"}'),
    *(b'{"model": "%s"}'.decode().encode("utf-16"), b'{"model": "%s", "a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
]


def test_forms_go_to_the_upstream_of_their_model(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:

        def send(path: str, **fields: str) -> httpx.Response:
            audio = b'\r\n\r\nname="model"\x00\r\n--' * 100
            return httpx.post(f"{proxy.url}{path}", data=fields, files={"file": ("a.wav", audio)}, timeout=300)

        assert send("/v1/audio/transcriptions", model=CLOUD).is_success
        assert send("/v1/audio/transcriptions", model="fast", language="en").is_success
        assert proxy.cloud.got == [("/v1/audio/transcriptions", CLOUD, "Bearer secret")]
        assert proxy.local.got == [("/v1/audio/transcriptions", SMALL, None)]
        unknown = send("/v1/audio/transcriptions", model="unknown")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        # Files have no model.
        assert send("/v1/files", purpose="batch").is_success
        assert [path for path, _, _ in proxy.local.got] == ["/v1/audio/transcriptions", "/v1/files"]


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=b", 'Multipart/Form-Data; charset=utf-8; boundary="b"']
)
def test_a_field_of_a_form_is_found_by_its_name(kind: str) -> None:
    head, tail = b"--b\r\nContent-Type: text/plain\r\ncontent-disposition: form-data; ", b"\r\n\r\nm 1\r\n--b--\r\n"
    for name, found in ((b'name="model"', True), (b"name=model", True), (b'name="model_2"', False)):
        body = head + name + tail
        value = find_form_field(body, kind, "model")
        assert (value is not None and body[value] == b"m 1") is found
    for broken in (b"", b"--b", head, head + b'name="model"' + tail[:7], b"x" * 100):
        assert find_form_field(broken, kind, "model") is None
    assert find_form_field(head + b'name="model"' + tail, "application/json", "model") is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/v1/rerank"])
def test_unreadable_json_goes_to_no_upstream(tmp_path: Path, path: str) -> None:
    """Its model is unknown: another model would answer, with the key of another upstream."""
    with running(tmp_path) as proxy:
        for model in (CLOUD, "fast"):
            for body in UNREADABLE:
                content = body.replace(b"%s", model.encode())
                refused = httpx.post(proxy.url + path, content=content, headers={"content-type": "application/json"})
                error = refused.json()["error"]
                assert (refused.status_code, error["type"]) == (400, "invalid_request_error"), body[:50]
                assert error["message"].startswith("the body is not valid JSON")
                assert "line 1 column" in error["message"]
        assert proxy.local.got == proxy.cloud.got == []
        if path == "/v1/chat/completions":
            assert {row["reason"] for row in proxy.records(len(UNREADABLE))} == {"refused-invalid"}


def test_a_wildcard_alias_names_the_model_of_all_names_that_no_upstream_serves() -> None:
    servers = load_settings(
        upstreams=[
            {"url": "http://a", "models": ["demo"], "aliases": {"*": "demo", "fast": "demo"}},
            {"url": "http://b", "models": ["gpt-*"]},
        ]
    ).servers
    routes = ModelRoutes(servers, RoutingSettings())
    found = {name: routes.find(name).model for name in ("demo", "fast", "gpt-5", "claude")}
    assert found == {"demo": "demo", "fast": "demo", "gpt-5": "gpt-5", "claude": "demo"}
    assert routes.names() == ["fast", "demo", "gpt-*"]


def test_models_of_all_upstreams_are_listed_and_others_refused(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:
        listed = {model.id: model for model in proxy.client.models.list()}
        assert listed.keys() == {LARGE, SMALL, "fast", CLOUD, "gpt-5"}
        assert listed["fast"].owned_by == "local"
        assert proxy.client.models.retrieve("fast").created == 7
        error = proxy.error("qwen3-32")
        assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
        for name in (LARGE, SMALL, "fast", "gpt-*", f"did you mean '{LARGE}'"):
            assert name in error.message
        with pytest.raises(openai.NotFoundError):
            proxy.client.models.retrieve("nothing")
        answer = httpx.post(f"{proxy.url}/v1/messages", json={"model": "claude", "max_tokens": 1, "messages": []})
        assert answer.json()["error"]["type"] == "not_found_error"
        assert httpx.post(f"{proxy.url}/v1/chat/completions", json={"messages": []}).status_code == 400
        assert not proxy.local.got
        assert not proxy.cloud.got
        assert proxy.records(reason="refused-model")[0]["layer"] == "refused"
        body = {"model": "fast", "messages": [{"role": "user", "content": "x"}]}
        found = httpx.post(f"{proxy.url}/admin/explain", params={"api": "chat"}, json=body).json()
        assert (found["route"]["requested"], found["route"]["model"]) == ("fast", SMALL)


def test_a_fallback_answers_for_a_failing_model_and_is_not_stored_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kvproxy.access")
    with running(tmp_path, fallbacks={LARGE: [CLOUD, "fast"]}) as proxy:
        for status in (429, 500, 503):
            proxy.local.status = status
            answer, cache = proxy.ask(LARGE)
            assert answer == f"cloud as {CLOUD}"
            assert f"not stored: fallback {CLOUD}" in cache
        # The answer to the model itself is another one.
        proxy.local.status = 200
        assert proxy.ask(LARGE)[0] == f"local as {LARGE}"
        assert proxy.ask(LARGE)[1] == "hit"
        row = proxy.records(tag=f"fallback:{LARGE}")[0]
        assert (row["model"], row["status"]) == (CLOUD, 200)
        logged = {record.fields["request_id"]: record.fields for record in caplog.records if hasattr(record, "fields")}
        assert logged[row["request_id"]]["model"] == CLOUD

        # The last fallback's error is the client's, and an invalid request has no fallback.
        proxy.local.status, proxy.cloud.status = 500, 429
        count = len(proxy.cloud.got)
        assert proxy.error(LARGE, "new").status_code == 500
        assert len(proxy.cloud.got) == count + 1
        proxy.local.status = 400
        assert proxy.error(LARGE, "newer").status_code == 400
        assert len(proxy.cloud.got) == count + 1


def test_an_unreachable_upstream_has_a_fallback(tmp_path: Path) -> None:
    cloud = Scripted("cloud", (CLOUD,))
    with run_upstream(cloud.answer) as url:
        settings = load_settings(
            data=tmp_path,
            upstreams=[{"url": "http://127.0.0.1:9", "models": [LARGE]}, {"url": url, "models": [CLOUD]}],
            routing={"fallbacks": {"qwen*": [CLOUD]}, "health_interval": 60.0},
            cache={"enabled": False},
        )
        with run_proxy(settings) as (proxy, _):
            body = {"model": LARGE, "messages": [{"role": "user", "content": "x"}]}
            assert httpx.post(f"{proxy}/v1/chat/completions", json=body).json()["model"] == CLOUD
            # The upstream may have stored the response before it failed, so only unsent requests are sent again.
            assert httpx.post(f"{proxy}/v1/chat/completions", json=body | {"store": True}).json()["model"] == CLOUD
            assert httpx.get(f"{proxy}/v1/models").json()["data"][0]["id"] == LARGE


def test_an_added_upstream_of_another_model_keeps_stored_responses(tmp_path: Path) -> None:
    local, cloud = Scripted("local", (LARGE,)), Scripted("cloud", (CLOUD,))
    body = {"model": LARGE, "messages": [{"role": "user", "content": "x"}], "temperature": 0}
    with run_upstream(local.answer) as first, run_upstream(cloud.answer) as second:
        for upstreams in ([{"url": first}], [{"url": first, "models": [LARGE]}, {"url": second}]):
            settings = load_settings(data=tmp_path, upstreams=upstreams, cache={"semantic": False})
            with run_proxy(settings) as (proxy, services):
                assert httpx.post(f"{proxy}/v1/chat/completions", json=body).status_code == 200
                until_stored(services)
                if len(upstreams) == 2:
                    # An upstream without models serves all others.
                    answer = httpx.post(f"{proxy}/v1/chat/completions", json=body | {"model": "any"})
                    assert answer.json()["choices"][0]["message"]["content"] == "cloud as any"
    assert len(local.got) == 1


def test_contradictory_models_are_refused(tmp_path: Path) -> None:
    one, two = "http://127.0.0.1:1", "http://127.0.0.1:2"

    def problem(upstreams: list[dict[str, Any]], **routing: Any) -> str:
        with pytest.raises(SettingsError) as raised:
            load_settings(data=tmp_path, upstreams=upstreams, routing=routing)
        return raised.value.message

    both = [{"url": one, "models": ["a"], "aliases": {"x": "a"}}, {"url": two, "models": ["b"], "aliases": {"x": "b"}}]
    assert "the alias x names a and b" in problem(both)
    assert "add it to the models of" in problem([{"url": one, "models": ["a"], "aliases": {"x": "b"}}])
    assert "a is a model, too" in problem([{"url": one, "models": ["a", "b"], "aliases": {"a": "b"}}])
    assert "x is an alias and the model of an alias" in problem([{"url": one, "aliases": {"x": "a", "y": "x"}}])
    assert "no upstream serves c" in problem([{"url": one, "models": ["a"]}], fallbacks={"a": ["c"]})
    assert "no comma" in problem([{"url": one, "models": ["a,b"]}])


def test_config_check_warns_of_names_that_match_no_model(tmp_path: Path) -> None:
    digest = "0" * 64

    def warnings(upstream: str) -> list[str]:
        (tmp_path / "kvproxy.toml").write_text(
            f'''[[upstreams]]
url = "http://127.0.0.1:1"
{upstream}
[[upstreams]]
url = "http://127.0.0.1:2"
models = ["gpt-*"]
[routing.fallbacks]
qwen-bgi = ["gpt-5"]
"qwen-*" = ["gpt-5"]
fast = ["gpt-5"]
[[clients]]
name = "one"
key_sha256 = "{digest}"
models = ["qwn-*", "gpt-5", "fast"]
[[rules]]
name = "never"
model = "fast"
[[rules]]
name = "some"
model = "gpt-5*"
'''
        )
        found: list[str] = result("config", "check", "--data", tmp_path)["warnings"]
        return found

    assert warnings('models = ["qwen-big"]\naliases = { fast = "qwen-big" }') == [
        "routing.fallbacks has qwen-bgi, which matches no model of an upstream: did you mean qwen-big?",
        "the client one may use qwn-*, which matches no model of an upstream: did you mean qwen-big?",
        "the rule never never applies: fast matches no model of an upstream: it is an alias, so name its model qwen-big",
    ]
    # It may serve all models.
    assert warnings("") == []


def test_models_without_a_price_are_a_warning_if_clients_have_budgets(tmp_path: Path) -> None:
    digests = [str(number) * 64 for number in range(3)]
    team = {"name": "team", "key_sha256": digests[0], "budget_per_day": 5}
    anna = {"name": "anna", "key_sha256": digests[1], "team": "team", "models": ["fast"]}
    free = {"name": "free", "key_sha256": digests[2]}
    local = Scripted("local", ("own-1", SMALL))
    with run_upstream(local.answer) as url:

        def warnings(clients: list[dict[str, Any]], **settings: Any) -> str:
            upstreams = [
                {"url": url, "models": ["own-1", SMALL], "aliases": {"fast": SMALL}},
                {"url": "https://api.invalid", "models": ["gpt-4o"]},
            ]
            found = load_settings(data=tmp_path, upstreams=upstreams, clients=clients, **settings)
            return "; ".join(
                unpriced_models(found, found.clients, {url: ["own-1", SMALL], "https://api.invalid": ["tts"]})
            )

        assert warnings([free]) == ""
        assert warnings([free, team, anna]) == (
            f"no price is known for own-1, {SMALL}, so clients with a budget get 403 for it (team, anna): set"
            ' [journal.prices."own-1"], with input = 0 and output = 0 for a free model'
        )
        priced = {"prices": {"own-*": {"input": 0, "output": 0}, SMALL: {"input": 1}}}
        assert warnings([free, team, anna], journal=priced) == ""
        settings = load_settings(data=tmp_path, upstreams=[url], clients=[team])
        with pytest.raises(CheckWarning, match="no price is known for own-1"):
            check_model_routes(settings)
    (tmp_path / "kvproxy.toml").write_text(
        f'''[[upstreams]]
url = "http://127.0.0.1:1"
models = ["own-1"]
[[clients]]
name = "team"
key_sha256 = "{digests[0]}"
budget_per_day = 5
'''
    )
    (warning,) = result("config", "check", "--data", tmp_path)["warnings"]
    assert "no price is known for own-1, so clients with a budget get 403" in warning


def test_doctor_compares_configured_and_listed_models(tmp_path: Path) -> None:
    local, cloud = Scripted("local", (LARGE,)), Scripted("cloud", (CLOUD,))
    with run_upstream(local.answer) as first, run_upstream(cloud.answer) as second:

        def check(*models: list[str], **settings: Any) -> str:
            upstreams = [{"url": url, "models": each} for url, each in zip((first, second), models, strict=False)]
            return check_model_routes(load_settings(data=tmp_path, upstreams=upstreams, **settings))

        assert check([LARGE], ["gpt-*"]) == f"{LARGE}: {first}; gpt-*: {second}"
        with pytest.raises(CheckWarning, match=rf"{first} does not list gpt-\*.*{second} does not list claude-\*"):
            check(["gpt-*"], ["claude-*"])
        assert check([LARGE]) == f"{LARGE}: {first}"
        assert check([]) == "all models go to the only upstream"
        with pytest.raises(CheckWarning, match=f"{first} does not list {SMALL}"):
            check([SMALL])
        # The upstream lists its models, so that a name that it may serve is known to be wrong.
        typo = LARGE[:-1]
        with pytest.raises(CheckWarning, match=f"routing.fallbacks has {typo}, .*: did you mean {LARGE}"):
            check([], routing={"fallbacks": {typo: [LARGE]}})
        with pytest.raises(CheckWarning, match=f"does not list {SMALL}"):
            check([LARGE, SMALL], [])
        with pytest.raises(CheckWarning, match="list different models"):
            check([], [])
