"""A client has one quota on all proxies, also after a restart and without the database."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from kvproxy.clients.client_keys import add_client, key_digest, remove_client, reset_counts, spent_and_reserved
from kvproxy.clients.shared_state import MAX_BUSY_SECONDS, SharedState
from kvproxy.clients.spent_money import SpentMoney
from kvproxy.errors import StoreUnavailable, TooManyRequests
from kvproxy.index.errors import CacheStoreError, InvalidValue
from kvproxy.index.store import open_postgres
from kvproxy.journal.journal import StoredJournal
from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings
from tests.fleet.proxies import Proxy, run_proxies
from tests.nginx_server import fleet_site, needs_nginx, run_nginx
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import PostgresServer, empty, run_postgres
from tests.processes import answers
from tests.servers import until_stored

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with run_postgres() as found:
        yield found


def client(**limits: int) -> dict[str, Any]:
    """Return the settings of a client whose key is `key`."""
    return {"clients": [{"name": "one", "key_sha256": key_digest("key"), **limits}]}


def send_all(proxies: list[Proxy], requests: int) -> list[httpx.Response]:
    """Send requests to all proxies in turn, 12 at once."""
    with ThreadPoolExecutor(12) as threads:
        return list(threads.map(lambda number: proxies[number % len(proxies)].ask("key"), range(requests)))


def ask_all(proxies: list[Proxy], requests: int) -> Counter[int]:
    return Counter(answer.status_code for answer in send_all(proxies, requests))


@needs_nginx
def test_three_proxies_behind_nginx_grant_one_quota_and_keep_it(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a late answer is no outage, in which each proxy would grant its share.
    monkeypatch.setattr("kvproxy.index.store.postgres.database._POOL_TIMEOUT", 60.0)
    monkeypatch.setattr("kvproxy.clients.shared_state.QUOTA_SECONDS", 60.0)
    monkeypatch.setattr("kvproxy.clients.shared_state._MAX_SILENCE", 60.0)
    limits, port = client(requests_per_minute=40), free_port()
    with run_plain_upstream() as upstream:
        with (
            run_proxies(tmp_path, empty_postgres, upstream, **limits) as proxies,
            run_nginx(tmp_path, fleet_site([proxy.url for proxy in proxies], port)),
        ):
            front = Proxy(f"http://127.0.0.1:{port}", proxies[0].services)
            until(lambda: answers(f"{front.url}/health"))
            began = time.monotonic()
            responses = send_all([front], 60)
            refilled = (time.monotonic() - began) * 40 / 60
            refused = [response for response in responses if response.status_code == 429]
            assert 40 <= len(responses) - len(refused) <= 40 + refilled + 3
            assert {response.headers["x-ratelimit-remaining-requests"] for response in refused} == {"0"}
        with run_proxies(tmp_path, empty_postgres, upstream, count=1, **limits) as proxies:
            granted = ask_all(proxies, 20)[200]
            assert granted <= (time.monotonic() - began) * 40 / 60 + 3


def test_all_proxies_count_the_tokens_of_responses(empty_postgres: str, tmp_path: Path) -> None:
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=2, **client(tokens_per_minute=60)) as proxies,
    ):
        # The response has 16 tokens, and the estimate of the request is lower.
        for number in range(3):
            assert proxies[number % 2].ask("key", f"{number}").status_code == 200

        def remaining() -> int:
            return int(proxies[0].ask("key", "0").headers["x-ratelimit-remaining-tokens"])

        assert proxies[1].ask("key", "x" * 120).status_code == 429
        assert remaining() < 60


def test_all_proxies_spend_one_budget(empty_postgres: str, tmp_path: Path) -> None:
    # Each response has 7 tokens.
    prices = {"journal": {"prices": {"m": {"input": 0.0, "output": 1e6}}}}
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=2, **client(budget_per_month=14), **prices) as proxies,
    ):
        settings = proxies[0].services.settings

        def spent() -> float:
            return sum(money.this_month for money in spent_and_reserved(settings)[0].values())

        for number in range(2):
            assert proxies[number].ask("key", f"{number}").status_code == 200
            until(lambda count=number + 1: spent() == pytest.approx(count * 7), 60)
        assert [proxy.ask("key", "more").status_code for proxy in proxies] == [429, 429]
        reset_counts(settings, "one")
        assert spent() == 0
        assert proxies[1].ask("key", "more").status_code == 200


def test_the_money_of_an_outage_counts_for_all_proxies_without_a_request(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 0.5)
    # Each response has 7 tokens.
    prices = {"journal": {"prices": {"m": {"input": 0.0, "output": 1e6}}}}
    empty(server.url)
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, server.url, upstream, count=2, **client(budget_per_day=1_000), **prices) as proxies,
    ):
        settings = proxies[0].services.settings
        assert proxies[0].ask("key", "before").status_code == 200
        until(lambda: "one" in spent_and_reserved(settings)[0])
        server.kill()
        assert [proxy.ask("key", f"during {proxy.url}").status_code for proxy in proxies] == [200, 200]
        server.restart()
        until(lambda: money_of_one(settings) == pytest.approx(21), 60)


def test_other_proxies_count_the_reservations_of_an_outage(empty_postgres: str) -> None:
    with closing(open_postgres(empty_postgres)) as database:
        tables, limited = (
            SharedState(database).spending,
            ClientSettings(name="a", key_sha256="0" * 64, budget_per_day=1),
        )

        async def spend() -> None:
            one, other = SpentMoney(tables, {}), SpentMoney(tables, {})
            kept = await one.reserve(limited, 0.5)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(one, "_reserve", fail)
                lost = await one.reserve(limited, 0.5)
            assert one.unwritten() == ({}, {"a": 0.5})
            for _ in range(2):
                await one._renew([kept, lost])
            assert one.unwritten() == ({}, {})
            with pytest.raises(TooManyRequests, match="reserved"):
                await other.reserve(limited, 0.1)
            for reservation in (kept, lost):
                one.charge("a", 0.1, reservation)
            await one.close()
            await other.reserve(limited, 0.1)

        asyncio.run(spend())


def fail(*arguments: object) -> None:
    raise CacheStoreError("no database")


def money_of_one(settings: Settings) -> float | None:
    """Return the money that the client has spent today, or None while the database does not answer."""
    try:
        return spent_and_reserved(settings)[0]["one"].today
    except StoreUnavailable:
        return None


def test_without_the_database_each_proxy_grants_its_share(
    server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 0.5)
    limits = client(requests_per_minute=30)
    empty(server.url)
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, server.url, upstream, count=2, **limits) as proxies,
    ):
        until(lambda: all(proxy.services.shared and proxy.services.shared.proxies == 2 for proxy in proxies))
        assert ask_all(proxies, 10)[200] == 10
        # A crash of the server loses the counts that are not flushed.
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("checkpoint")
        server.kill()
        began = time.monotonic()
        granted = ask_all(proxies, 40)[200]
        assert 15 <= granted <= 23 + (time.monotonic() - began) / 2
        until(lambda: "grants 1/2 of each quota" in caplog.text)
        server.restart()
        until(lambda: caplog.text.count("share their quotas again") == 2)
        # The shared quota is charged for the requests of the outage, also for those of the other proxy.
        granted = ask_all(proxies[:1], 30)[200]
        assert granted <= (time.monotonic() - began) / 2 + 5
    assert caplog.text.count("grants 1/2 of each quota") <= 2


def test_a_frozen_database_holds_no_request(server: PostgresServer, tmp_path: Path) -> None:
    clients = client(requests_per_minute=600, budget_per_day=1)
    prices = {"prices": {"m": {"input": 1.0, "output": 1.0}}}

    def ask(number: int) -> httpx.Response:
        body = {**BODY, "max_tokens": 1, "messages": [{"role": "user", "content": f"Hi {number % 5}"}]}
        headers = {"authorization": "Bearer key", "cache-control": "confirm"}
        return httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=30)

    empty(server.url)
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, server.url, upstream, count=1, **clients, journal=prices) as (proxy,),
        ThreadPoolExecutor(8) as threads,
    ):
        # Several connections to the database are open.
        assert {response.status_code for response in threads.map(ask, range(20))} == {200}
        with server.stopped():
            responses = list(threads.map(ask, range(40)))
            assert {response.status_code for response in responses} == {200}
            assert "; stored" not in responses[-1].headers["cache-status"]
            assert httpx.get(f"{proxy.url}/ready").status_code == 200
            assert httpx.get(f"{proxy.url}/health").json()["status"] == "degraded"
        until(lambda: "; hit" in ask(0).headers["cache-status"])


def test_a_debt_is_bounded_and_ends_with_its_client_or_by_a_reset(empty_postgres: str, tmp_path: Path) -> None:
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=1) as (proxy,),
    ):
        services = proxy.services
        settings = services.settings

        def overdraw(key: str) -> None:
            until(lambda: services.clients.requires_key and services.clients.identify([("x-api-key", key)]) is not None)
            found = services.clients.identify([("x-api-key", key)])
            assert found is not None
            assert services.shared is not None
            asyncio.run(services.shared.take_units("bob", "tokens", 1e12, into_debt=True))
            assert services.quotas.get(found).tokens is not None
            refused = proxy.ask(key, "over")
            assert refused.status_code == 429
            assert 3600 <= int(refused.headers["retry-after"]) <= 3720

        key = add_client(settings, "bob", tokens_per_minute=1000)
        overdraw(key)
        reset_counts(settings, "bob")
        until(lambda: proxy.ask(key, "after the reset").status_code == 200)
        overdraw(key)
        remove_client(settings, "bob")
        until(lambda: proxy.ask(key, "removed").status_code == 401)
        key = add_client(settings, "bob", tokens_per_minute=1000)
        until(lambda: proxy.ask(key, "another key").status_code == 200)


def test_a_quota_far_in_the_future_is_repaired_at_the_start(empty_postgres: str) -> None:
    with closing(open_postgres(empty_postgres)) as database:
        shared = SharedState(database)
        asyncio.run(shared.take_units("bob", "tokens", 1.0, into_debt=True))
        database.query("update quotas set full_at = 1e300")
        again = SharedState(database)
        _, seconds = asyncio.run(again.take_units("bob", "tokens", 1.0, into_debt=False))
        assert 3600 <= seconds <= MAX_BUSY_SECONDS


def test_a_database_clock_that_is_set_back_blocks_no_client_and_keeps_no_lease(empty_postgres: str) -> None:
    """What the database wrote before an hour was taken from its clock is an hour in the future."""
    with closing(open_postgres(empty_postgres)) as database:
        dead, alive = SharedState(database), SharedState(database)

        async def jump() -> float:
            await dead.send_heartbeat()
            await alive.send_heartbeat()
            await dead.acquire_lease("key")
            await dead.take_units("bob", "tokens", 50.0, into_debt=False)
            database.query("update clock set seen = seen + 3600")
            database.query("update proxies set seen = seen + 3600")
            database.query("update leases set acquired = acquired + 3600")
            database.query("update quotas set full_at = full_at + 3600")
            await alive.send_heartbeat()
            await alive.send_heartbeat()
            assert alive.proxies == 1
            await asyncio.wait_for(alive.acquire_lease("key"), 60)
            taken, seconds = await alive.take_units("bob", "tokens", 1.0, into_debt=False)
            assert taken
            return seconds

        # The time since the last heartbeat is not known to the database, so it is added.
        assert 0 < asyncio.run(jump()) < 600


def test_totals_beyond_64_bits_lose_no_record_and_are_no_outage(empty_postgres: str, tmp_path: Path) -> None:
    """An entry of an earlier version may have any number of tokens."""
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=1) as (proxy,),
    ):
        services = proxy.services
        assert proxy.ask("", "counted").status_code == 200
        until_stored(services)
        store = services.cache.store
        store.database.query(f"update responses set prompt_tokens = {2**53 - 1}, hits = {2**53}")
        assert proxy.ask("", "counted").status_code == 200
        assert store.stats().prompt_tokens_saved > 2**63
        assert next(iter(store.usage("tenant"))).hits >= 2**53
        assert store.database.health.failure is None
        with pytest.raises(InvalidValue):
            store.database.query("select 9223372036854775807::bigint + 1")
        assert store.database.health.failure is None
        assert isinstance(services.journal, StoredJournal)
        hit, _ = services.journal.latest(2)
        assert (hit.layer, hit.prompt_tokens, services.journal.lost) == ("exact", None, 0)
