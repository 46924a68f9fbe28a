"""PostgreSQL: failures of the server, and several proxies on one database."""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest

from kvproxy.errors import StoreUnavailable
from kvproxy.http.services import build_services
from kvproxy.index.errors import CacheStoreError, SchemaVersionError, first_line
from kvproxy.index.store import Capacity, open_store
from kvproxy.index.store.postgres.database import PostgresDatabase, display_name
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.servers import run_proxy

BODY = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "What is a block?"}]}


def test_a_start_without_the_server_fails_with_the_fix(tmp_path: Path) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/responses"
    with pytest.raises(CacheStoreError, match=r"cannot reach .*127\.0\.0\.1:1/responses.*start PostgreSQL") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="cannot reach"):
        build_services(load_settings(data=tmp_path, store=url))


def test_an_invalid_url_is_an_error() -> None:
    with pytest.raises(CacheStoreError, match="no URL"):
        open_store("postgresql://[")
    with pytest.raises(CacheStoreError, match=r"no URL of PostgreSQL \(\w.*\): see docs"):
        display_name("postgresql://[")
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError(" first\nsecond")) == "first"
    assert display_name("dbname=d") == "postgresql://localhost/d"
    assert display_name("postgres://u:p@h:5/d?sslmode=require") == "postgresql://h:5/d"


@pytest.mark.parametrize(
    ("change", "version"),
    [("update schema_version set version = 99, compatible_since = 2", 99), ("drop table schema_version", 0)],
)
def test_a_database_of_another_schema_is_refused(empty_postgres: str, change: str, version: int) -> None:
    open_store(empty_postgres).close()
    with psycopg.connect(empty_postgres, autocommit=True) as connection:
        connection.execute(f"set search_path = kvproxy; {change}")
    with pytest.raises(SchemaVersionError, match=f"has schema version {version}, .*kvproxy cache export"):
        open_store(empty_postgres)


def test_requests_are_answered_without_the_tables(empty_postgres: str, tmp_path: Path) -> None:
    def alter(change: str) -> None:
        with psycopg.connect(empty_postgres, autocommit=True) as connection:
            connection.execute(f"alter schema {change}")

    with (
        run_plain_upstream() as upstream,
        run_proxy(load_settings(data=tmp_path, store=empty_postgres, upstream=upstream)) as (url, _),
    ):

        def ask() -> str:
            headers = {"cache-control": "confirm"}
            answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, headers=headers, timeout=300)
            assert answer.status_code == 200
            return answer.headers["cache-status"]

        assert "; stored" in ask()
        alter("kvproxy rename to elsewhere")
        try:
            assert "fwd=uri-miss" in ask()
            metrics = httpx.get(f"{url}/metrics").text
            assert "kvproxy_store_up 0.0" in metrics
            # Their number is unknown.
            assert not re.search("^kvproxy_cache_entries", metrics, re.M)
            assert httpx.get(f"{url}/health").json()["status"] == "degraded"
            listing = httpx.get(f"{url}/admin/cache")
            assert (listing.status_code, listing.json()["error"]["code"]) == (503, "store_unavailable")
        finally:
            alter("elsewhere rename to kvproxy")
        assert 'detail="exact"' in ask()
        metrics = httpx.get(f"{url}/metrics").text
        assert "kvproxy_journal_up 1.0" in metrics
        assert re.search("^kvproxy_cache_entries [1-9]", metrics, re.M)


def test_a_full_disk_is_reported_until_a_response_is_stored(empty_postgres: str, open_file: MakeStore) -> None:
    store = open_file(empty_postgres)
    fail = "do $$ begin raise exception 'No space left' using errcode = 'disk_full'; end $$"

    def fill() -> None:
        with store.database.transaction() as run:
            run("insert into tags select tag, id from tags")
            run(fail)

    with pytest.raises(CacheStoreError, match="No space left"):
        fill()
    assert store.count() == 0
    assert store.remove_expired() == []
    failure = store.database.failure()
    assert failure is not None
    assert "No space left" in failure
    store.put(make_entry())
    assert store.database.failure() is None


def test_broken_connections_are_replaced(
    empty_postgres: str, open_file: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 60.0)
    store = open_file(empty_postgres)
    store.put(make_entry())
    with psycopg.connect(empty_postgres, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
    for _ in range(2):  # The second call makes no attempt, because of the retry delay.
        with pytest.raises(CacheStoreError, match="failed"):
            store.count()
    store.database._failed = None
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 0.2)

    def works() -> bool:
        with contextlib.suppress(CacheStoreError):
            return store.count() == 1
        return False

    until(works)


def test_a_restart_of_the_server_costs_one_delay_for_all_connections(
    empty_postgres: str, open_file: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 0.0)
    store = open_file(empty_postgres)
    database = store.database
    assert isinstance(database, PostgresDatabase)
    barrier = threading.Barrier(6)

    def hold() -> None:
        with database.connection():
            barrier.wait()

    with ThreadPoolExecutor(6) as threads:
        for held in [threads.submit(hold) for _ in range(6)]:
            held.result()
    store.put(make_entry())
    with psycopg.connect(empty_postgres, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
    with pytest.raises(CacheStoreError):
        store.put(make_entry("b"))
    assert database.failure() is not None
    # The other closed connections of the pool fail no calls, and a read shows that writes are possible again, too.
    assert store.count() == 1
    assert database.failure() is None


def test_a_statement_fails_if_the_server_answers_none(empty_postgres: str, open_file: MakeStore) -> None:
    store = open_file(empty_postgres)
    store.database.expect_answers(0.3)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(store.database.query, "select pg_sleep(1)")
        while not slow.done():
            assert store.count() == 0
        slow.result()
    with pytest.raises(CacheStoreError, match=r"the server has not answered for 0\.3 s"):
        store.database.query("select pg_sleep(9)")
    assert "has not answered" in (store.database.failure() or "")


def test_concurrent_stores_keep_the_capacity(empty_postgres: str, open_file: MakeStore) -> None:
    def work(name: int) -> None:
        store = open_store(empty_postgres, capacity=Capacity(entries=10))
        for number in range(30):
            store.put(make_entry(f"question {name * number % 17}"))
            store.flush()
        store.close()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    assert open_file(empty_postgres).database.count_intact_responses() == 10


def test_the_command_line_works_with_postgres(empty_postgres: str) -> None:
    store = open_store(empty_postgres)
    for number in range(4):
        store.put(make_entry(f"question {number}", tags=("even",) if number % 2 == 0 else ()))
    store.close()

    assert result("cache", "rm", "--tag", "even", "--yes", "--store", empty_postgres) == {"removed": 2}
    assert result("cache", "stats", "--store", empty_postgres)["entries"] == 2
    added = kvproxy("keys", "add", "ann", "--store", empty_postgres)
    assert "all proxies on postgresql://" in added.stderr
    removed = kvproxy("keys", "rm", "ann", "--store", empty_postgres).stdout
    assert removed.startswith("removed ann from the clients of all proxies on postgresql://")
    away = kvproxy("cache", "ls", "--store", "postgresql://127.0.0.1:1/x")
    assert (away.returncode, len(away.stderr.strip().splitlines())) == (1, 1)
    assert "start PostgreSQL" in away.stderr
