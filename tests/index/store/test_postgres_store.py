"""PostgreSQL: failures of the server, and several proxies on one database."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from kvproxy.errors import SettingsError
from kvproxy.http.services import Services, build
from kvproxy.index.errors import CacheStoreError, SchemaVersionError, first_line
from kvproxy.index.store import Capacity, open_store
from kvproxy.index.store.postgres.database import display_name
from kvproxy.index.store.postgres.store import PostgresStore
from kvproxy.settings import load_settings
from tests.index.entries import make_entry
from tests.servers import run_proxy

BODY = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "What is a block?"}]}


def test_a_start_without_the_server_fails_with_the_fix(tmp_path: Path) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/responses"
    with pytest.raises(CacheStoreError, match=r"cannot reach .*127\.0\.0\.1:1/responses.*start PostgreSQL") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot reach"):
        build(load_settings(data=tmp_path, store=url))


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
    ("change", "version"), [("update schema_version set version = 99", 99), ("drop table schema_version", 0)]
)
def test_a_database_of_another_schema_is_refused(empty_postgres: str, change: str, version: int) -> None:
    PostgresStore(empty_postgres).close()
    with psycopg.connect(empty_postgres, autocommit=True) as connection:
        connection.execute(f"set search_path = kvproxy; {change}")
    with pytest.raises(SchemaVersionError, match=f"has schema version {version}, .*kvproxy cache export"):
        PostgresStore(empty_postgres)


@pytest.fixture
def two(empty_postgres: str, tmp_path: Path) -> Iterator[list[tuple[str, Services]]]:
    engine = {"num_blocks": 128}
    settings = [load_settings(data=tmp_path / name, store=empty_postgres, engine=engine) for name in "ab"]
    with run_proxy(settings[0]) as one, run_proxy(settings[1]) as other:
        yield [one, other]


def test_proxies_share_responses_and_survive_the_loss_of_the_store(
    two: list[tuple[str, Services]], empty_postgres: str
) -> None:
    (one, _), (other, _) = two

    def ask(url: str, question: str = "What is a block?") -> httpx.Response:
        body = BODY | {"messages": [{"role": "user", "content": question}]}
        headers = {"x-kvproxy-tags": "t", "cache-control": "confirm"}
        return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)

    assert "stored" in ask(one).headers["cache-status"]
    assert 'detail="exact"' in ask(other).headers["cache-status"]
    assert "semantic" in ask(other, "what is a block?").headers["cache-status"]
    (entry,) = httpx.get(f"{other}/admin/cache").json()
    assert (entry["tags"], entry["tenant"], entry["hits"]) == (["t"], "public", 2)
    assert httpx.delete(f"{other}/admin/cache", params={"tag": "t"}).json() == {"removed": 1}
    assert "stored" in ask(one).headers["cache-status"]
    # Requests are answered without the tables.
    with psycopg.connect(empty_postgres, autocommit=True) as connection:
        connection.execute("alter schema kvproxy rename to elsewhere")
    try:
        answer = ask(one)
        assert answer.status_code == 200
        assert "fwd=uri-miss" in answer.headers["cache-status"]
        assert httpx.get(f"{one}/metrics").status_code == 200
        listing = httpx.get(f"{one}/admin/cache")
        assert (listing.status_code, listing.json()["error"]["code"]) == (503, "store_unavailable")
    finally:
        with psycopg.connect(empty_postgres, autocommit=True) as connection:
            connection.execute("alter schema elsewhere rename to kvproxy")
    assert 'detail="exact"' in ask(one).headers["cache-status"]


def test_broken_connections_are_replaced(empty_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 60.0)
    store = PostgresStore(empty_postgres)
    store.put(make_entry())
    with psycopg.connect(empty_postgres, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
    with pytest.raises(CacheStoreError, match="failed"):
        store.count()
    with pytest.raises(CacheStoreError, match="failed"):
        store.count()  # No second attempt during the retry delay.
    # End the retry delay.
    store.database._failed = None
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 0.2)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.25)
        try:
            assert store.count() == 1
            break
        except CacheStoreError:
            continue
    assert store.count() == 1
    store.close()


def test_concurrent_stores_keep_the_capacity(empty_postgres: str) -> None:
    errors: list[Exception] = []

    def work(name: int) -> None:
        try:
            store = PostgresStore(empty_postgres, capacity=Capacity(entries=10))
            for number in range(30):
                store.put(make_entry(f"question {name * number % 17}"))
                store.flush()
            store.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = PostgresStore(empty_postgres)
    assert store.check() == 10
    store.close()


def test_the_command_line_works_with_postgres(empty_postgres: str) -> None:
    store = PostgresStore(empty_postgres)
    for number in range(4):
        store.put(make_entry(f"question {number}", tags=("even",) if number % 2 == 0 else ()))
    store.close()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvproxy.commands", "cache", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("rm", "--tag", "even", "--yes", "--store", empty_postgres, "--json")
    assert json.loads(done.stdout) == {"removed": 2}
    assert json.loads(run("stats", "--store", empty_postgres, "--json").stdout)["entries"] == 2
    away = run("ls", "--store", "postgresql://127.0.0.1:1/x")
    assert (away.returncode, len(away.stderr.strip().splitlines())) == (1, 1)
    assert "start PostgreSQL" in away.stderr
