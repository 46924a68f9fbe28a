"""A reload changes the upstreams of a running proxy, without a failed request; an invalid file changes nothing."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.ports import free_port
from tests.processes import serve
from tests.requests import chat, post
from tests.servers import run_proxy, run_upstream

SERVED = {"cache_control": "no-store, no-cache"}


class Upstream:
    """Records the keys that it receives; a stream ends when `may_end` is set."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()
        self.may_end = threading.Event()

    async def answer(self, request: Request) -> Response:
        if request.method != "POST" or request.url.path != "/v1/chat/completions":
            return JSONResponse({}, 404)
        self.keys[request.headers.get("authorization", "")] += 1
        if not (await request.json()).get("stream"):
            return JSONResponse(WHOLE)

        async def parts() -> AsyncIterator[bytes]:
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "one"}}]}\n\n'
            await asyncio.to_thread(self.may_end.wait)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    @property
    def requests(self) -> int:
        return self.keys.total()


@contextlib.contextmanager
def run_upstreams() -> Iterator[tuple[tuple[str, Upstream], tuple[str, Upstream]]]:
    one, other = Upstream(), Upstream()
    with run_upstream(one.answer) as url, run_upstream(other.answer) as second:
        try:
            yield (url, one), (second, other)
        finally:
            one.may_end.set()
            other.may_end.set()


def table(url: str, key: str | None = None, **fields: str) -> str:
    lines = [f'url = "{url}"', *([] if key is None else [f'api_key = "{key}"'])]
    return "\n".join(["[[upstreams]]", *lines, *(f"{name} = {value}" for name, value in fields.items()), ""])


def write(data: Path, *tables: str) -> None:
    (data / "kvproxy.toml").write_text("cache.semantic = false\n" + "".join(tables))


def test_hangups_under_load_fail_no_request(tmp_path: Path) -> None:
    with run_upstreams() as ((one, first), (two, second)):
        write(tmp_path, table(one, "k1"))
        port, log, stop = free_port(), tmp_path / "log", threading.Event()
        command = [sys.executable, "-m", "kvproxy", "serve", "--port", str(port), "--data", str(tmp_path)]
        with serve(command, port, log, env=os.environ) as proxy, ThreadPoolExecutor() as pool:

            def send() -> Counter[int]:
                statuses: Counter[int] = Counter()
                with httpx.Client(timeout=300, headers={"cache-control": SERVED["cache_control"]}) as client:
                    while not stop.is_set():
                        statuses[client.post(f"{proxy.url}/v1/chat/completions", json=chat()).status_code] += 1
                return statuses

            def stream() -> str:
                return httpx.post(f"{proxy.url}/v1/chat/completions", json=chat("s", stream=True), timeout=300).text

            def reload(line: str) -> None:
                seen = log.read_text().count(line)
                os.kill(proxy.process.pid, signal.SIGHUP)
                until(lambda: log.read_text().count(line) > seen)

            streaming = pool.submit(stream)
            until(lambda: first.requests == 1)
            workers = [pool.submit(send) for _ in range(4)]
            until(lambda: first.keys["Bearer k1"] > 20)
            write(tmp_path, table(one, "k2"), table(two, "k3"))
            reload("active: 0 rules, 2 upstreams")
            write(tmp_path, table(one, "k2", weight="-1"))
            reload("the settings were not reloaded: ")
            until(lambda: first.keys["Bearer k2"] > 20)
            write(tmp_path, table(two, "k3"))
            reload("active: 0 rules, 1 upstream")
            served = second.requests
            until(lambda: second.requests > served + 20)
            sent = first.requests
            until(lambda: second.requests > served + 60)
            stop.set()
            statuses = sum((worker.result() for worker in workers), Counter[int]())
            assert not streaming.done()
            first.may_end.set()
            assert streaming.result().endswith("data: [DONE]\n\n")
        assert set(statuses) == {200}
        assert first.requests == sent
        assert set(first.keys) == {"Bearer k1", "Bearer k2"}
        text = log.read_text()
        assert f"the upstream {two} is added" in text
        assert re.search(rf"the upstream {one} is removed; requests in flight: [1-5]$", text, re.MULTILINE)
        assert "Traceback" not in text
        assert "k2" not in text


def test_a_reload_applies_keys_weights_and_timeouts_and_keeps_the_health(tmp_path: Path) -> None:
    with run_upstreams() as ((one, first), (two, _)):
        write(tmp_path, table(one, "k1"), table(two))
        with run_proxy(load_settings(data=tmp_path)) as (url, services):
            fleet = services.built.fleet
            assert fleet is not None
            engine = fleet.engines[one]
            result("upstreams", "drain", two, url=url)
            write(tmp_path, table(one, "k2", weight="3.0", first_byte_timeout="7"), table(two, weight="2.0"))
            done = result("reload", url=url)
            assert done == {"rules": 0, "upstreams": [one, two], "restart": [], "notes": []}
            post(url, **SERVED)
            assert first.keys == {"Bearer k2": 1}
            assert (fleet.engines[one], engine.weight, engine.client.first_byte_timeout) == (engine, 3.0, 7.0)
            assert fleet.engines[two].health.draining


def test_an_upstream_with_other_events_is_replaced_and_stays_drained(tmp_path: Path) -> None:
    with run_upstreams() as ((one, _), (two, _)):
        write(tmp_path, table(one), table(two))
        with run_proxy(load_settings(data=tmp_path)) as (url, services):
            fleet = services.built.fleet
            assert fleet is not None
            replaced = fleet.engines[two]
            result("upstreams", "drain", two, url=url)
            write(tmp_path, table(one), table(two, kv_events='"tcp://127.0.0.1:9"'))
            result("reload", url=url)
            assert fleet.engines[two] is not replaced
            assert fleet.engines[two].health.draining


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("api_key_env = 'KVPROXY_TEST_MISSING_KEY'", "the variable KVPROXY_TEST_MISSING_KEY has no key"),
        ("kv_events = 'ftp://a:1'", "kv_events"),
        ("weight = 0", "line 4"),
    ],
)
def test_an_invalid_file_changes_nothing(tmp_path: Path, broken: str, error: str) -> None:
    with run_upstreams() as ((one, first), (two, second)):
        write(tmp_path, table(one, "k1"))
        with run_proxy(load_settings(data=tmp_path)) as (url, services):
            write(tmp_path, f'[[upstreams]]\nurl = "{two}"\n{broken}\n', table(one, "k2"), '[[rules]]\nname = "r"\n')
            refused = kvproxy("reload", url=url)
            assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
            assert "the settings were not changed: " in refused.stderr
            assert error in refused.stderr
            post(url, **SERVED)
            assert (first.keys, second.requests, len(services.rules)) == ({"Bearer k1": 1}, 0, 0)


def test_a_file_with_a_changed_key_is_read_without_a_reload(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k1\n")
    with run_upstreams() as ((one, first), _):
        write(tmp_path, table(one, api_key_file=f'"{key}"'), "[routing]\nmetrics_interval = 0.01\n")
        with run_proxy(load_settings(data=tmp_path)) as (url, _):
            post(url, **SERVED)
            key.write_text("")
            post(url, **SERVED)
            assert first.keys == {"Bearer k1": 2}
            key.write_text("k2")
            until(lambda: post(url, **SERVED).status_code == 200 and first.keys["Bearer k2"] > 0)


def test_a_reload_changes_the_models_of_upstreams(tmp_path: Path) -> None:
    with run_upstreams() as ((one, first), (two, second)):
        write(tmp_path, table(one))
        with run_proxy(load_settings(data=tmp_path)) as (url, services):
            write(tmp_path, table(one, models='["a"]'), table(two, models='["b"]'))
            assert result("reload", url=url)["upstreams"] == [one, two]
            assert post(url, fields={"model": "b"}, **SERVED).status_code == 200
            assert post(url, fields={"model": "c"}, **SERVED).status_code == 404
            assert (first.requests, second.requests) == (0, 1)
            route = services.built.fleet.routes.find("b")  # type: ignore[union-attr]
            write(tmp_path, table(one, models='["a", "b"]'))
            result("reload", url=url)
            # A request that found its route before the reload.
            assert [engine.url for engine in services.built.fleet.engines_of(route)] == [one]  # type: ignore[union-attr]
            assert post(url, fields={"model": "b"}, **SERVED).status_code == 200
            assert (first.requests, second.requests) == (1, 1)
            page = httpx.get(f"{url}/metrics").text
            assert re.findall(r'kvproxy_upstream_up\{upstream="(.*?)"', page) == [one]


def test_another_list_of_upstreams_has_other_stored_responses(tmp_path: Path) -> None:
    with run_upstreams() as ((one, _), (two, _)):
        write(tmp_path, table(one))
        with run_proxy(load_settings(data=tmp_path)) as (url, _):
            post(url, cache_control="confirm")
            write(tmp_path, table(one), table(two))
            (note,) = result("reload", url=url)["notes"]
            assert f'no longer found, unless routing.name is "upstream:{one}"' in note
            assert "miss" in post(url, cache_control="no-store").headers["cache-status"]
            write(tmp_path, table(one), table(two), f'[routing]\nname = "upstream:{one}"\n')
            result("reload", url=url)
            assert "; hit" in post(url).headers["cache-status"]


def test_a_reload_keeps_the_flags_of_the_command_line(tmp_path: Path) -> None:
    with run_upstreams() as ((one, _), (two, _)), run_proxy(load_settings(data=tmp_path, upstream=one)) as (url, _):
        (tmp_path / "kvproxy.toml").write_text('[[rules]]\nname = "r"\n')
        assert result("reload", url=url)["upstreams"] == [one]
        (tmp_path / "kvproxy.toml").write_text(f'upstream = "{two}"\n')
        assert result("reload", url=url)["upstreams"] == [one]


def test_a_reload_changes_the_clients_of_the_settings(tmp_path: Path) -> None:
    digest = result("keys", "add", "a", "--data", tmp_path / "other")
    with run_upstreams() as ((one, _), _):
        write(tmp_path, table(one))
        with run_proxy(load_settings(data=tmp_path)) as (url, _):
            assert post(url, **SERVED).status_code == 200
            stored = (tmp_path / "other" / "clients.json").read_text()
            sha = re.search(r"[0-9a-f]{64}", stored)
            assert sha is not None
            write(tmp_path, table(one), f'[[clients]]\nname = "a"\nkey_sha256 = "{sha[0]}"\nrequests_per_minute = 1\n')
            result("reload", url=url)
            assert post(url, **SERVED).status_code == 401
            headers = {"authorization": f"Bearer {digest['key']}"}
            assert [post(url, **SERVED, **headers).status_code for _ in range(2)] == [200, 429]


def test_a_reload_changes_the_tokens_and_the_prices(tmp_path: Path) -> None:
    def settings(token: str, price: str) -> None:
        write(tmp_path, f'admin_token = "{token}"\nmetrics_token = "metrics-of-{token}"\n', table(one), price)

    def statuses(url: str) -> list[int]:
        return [
            httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {token}"}).status_code
            for token in ("first-token", "metrics-of-first-token", "second-token", "metrics-of-second-token")
        ]

    with run_upstreams() as ((one, _), _):
        settings("first-token", "")
        with (
            run_proxy(load_settings(data=tmp_path)) as (url, services),
            httpx.Client(base_url=url, headers={"origin": url}) as session,
        ):
            entered = session.post("/admin/session", headers={"x-kvproxy-admin-token": "first-token"})
            proof = {"x-kvproxy-session": entered.json()["session"]}
            assert session.get("/admin/upstreams", headers=proof).status_code == 200
            assert statuses(url) == [200, 200, 401, 401]
            assert services.spent.prices.get("m") is None
            settings("second-token", '[journal.prices."m"]\ninput = 2.0\noutput = 4.0\n')
            done = result("reload", "--token", "first-token", url=url)
            assert done["restart"] == []
            assert statuses(url) == [401, 401, 200, 200]
            assert session.get("/admin/upstreams", headers=proof).status_code == 401
            assert services.spent.prices["m"].output == services.settings.journal.prices["m"].output == 4.0
            # A budget needs a price.
            headers = {"authorization": "Bearer second-token"}
            key = httpx.post(f"{url}/admin/keys", params={"name": "a", "budget_per_day": 1}, headers=headers).json()
            answer = post(url, **SERVED, authorization=f"Bearer {key['key']}")
            assert answer.status_code == 200


def test_all_upstreams_cannot_be_removed_without_a_restart(tmp_path: Path) -> None:
    with run_upstreams() as ((one, _), _):
        write(tmp_path, table(one))
        with run_proxy(load_settings(data=tmp_path)) as (url, _):
            write(tmp_path)
            done = result("reload", url=url)
            assert (done["upstreams"], done["restart"]) == ([one], ["upstreams"])
