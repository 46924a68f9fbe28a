"""Clients, removals, and pins are effective on all proxies, and their changes are recorded."""

import json
import time
from pathlib import Path

import httpx
import pytest

from kvproxy.clients.client_keys import add_client, all_clients, remove_client, rotate_key
from kvproxy.clients.shared_state import HEARTBEAT_SECONDS
from kvproxy.clients.stored_clients import clients_file
from kvproxy.index.errors import CacheStoreError
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.fleet.proxies import Proxy, run_proxies
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.postgres_server import run_postgres


def statuses(proxies: list[Proxy], key: str) -> list[int]:
    return [proxy.ask(key).status_code for proxy in proxies]


def test_clients_are_known_and_revoked_everywhere(empty_postgres: str, tmp_path: Path) -> None:
    operator = load_settings(data=tmp_path / "operator", store=empty_postgres)
    key = add_client(operator, "one", requests_per_minute=100)
    assert not clients_file(operator.data).exists()
    with run_plain_upstream() as upstream, run_proxies(tmp_path, empty_postgres, upstream) as proxies:
        assert statuses(proxies, key) == [200] * 3
        assert statuses(proxies, "other") == [401] * 3
        new = rotate_key(operator, "one", grace=0)
        # Each proxy reads the clients at its next heartbeat.
        until(lambda: (statuses(proxies, key), statuses(proxies, new)) == ([401] * 3, [200] * 3))
        remove_client(operator, "one")
        until(lambda: statuses(proxies, new) == [401] * 3)
    assert 2 * HEARTBEAT_SECONDS <= 2
    # Without any client, a proxy stays closed.
    with run_proxies(tmp_path, empty_postgres, upstream, count=1) as proxies:
        assert proxies[0].ask().status_code == 401
    arguments = ("keys", "history", "--data", str(operator.data), "--limit", "0")
    changes = result(*arguments, KVPROXY_STORE=empty_postgres)
    assert changes == result(*arguments, "--store", empty_postgres)
    assert [each["change"] for each in changes] == [
        "remove client one: requests_per_minute 100",
        "rotate the key of client one: the old key is revoked",
        "add client one: requests_per_minute 100",
    ]
    assert all("@" in each["operator"] and time.time() - each["changed"] < 60 for each in changes)


def test_a_drained_upstream_is_drained_everywhere(empty_postgres: str, tmp_path: Path) -> None:
    with run_plain_upstream() as one, run_plain_upstream() as two:

        def states(proxies: list[Proxy]) -> list[list[str]]:
            listed = [httpx.get(f"{proxy.url}/admin/upstreams").json() for proxy in proxies]
            return [[upstream["state"] for upstream in found] for found in listed]

        with run_proxies(tmp_path, empty_postgres, [one, two], count=2) as proxies:
            drained = result("upstreams", "drain", one, url=proxies[1].url)[0]
            assert (drained["state"], drained["notes"]) == ("draining", [])
            until(lambda: states(proxies) == [["draining", "up"]] * 2)
            doctor = kvproxy("doctor", "--url", proxies[0].url, KVPROXY_UPSTREAM=two, KVPROXY_DATA=str(tmp_path / "p0"))
            assert f"{one}: drained by an operator" in doctor.stdout + doctor.stderr
        # After a restart, too; and undrain at any proxy ends it everywhere.
        with run_proxies(tmp_path, empty_postgres, [one, two], count=2) as proxies:
            assert states(proxies) == [["draining", "up"]] * 2
            result("upstreams", "undrain", one, url=proxies[0].url)
            until(lambda: states(proxies) == [["up", "up"]] * 2)
            shared = proxies[0].services.shared
            assert shared is not None
            changes = [each["change"] for each in shared.changes(None)]
            assert changes == [f"undrain upstream {one}", f"drain upstream {one}"]


def test_a_drain_without_the_database_says_so(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **named: object) -> None:
        raise CacheStoreError("the store failed")

    with run_plain_upstream() as upstream, run_proxies(tmp_path, empty_postgres, upstream, count=1) as (proxy,):
        assert proxy.services.shared is not None
        monkeypatch.setattr(proxy.services.shared, "set_drained", fail)
        answer = httpx.post(f"{proxy.url}/admin/upstreams/drain", params={"name": "1"}).json()
        assert answer["state"] == "draining"
        assert answer["notes"][0].startswith("only this proxy was changed: the store failed; the other proxies follow")


def test_changes_without_the_database_reach_all_proxies_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.store.postgres.database._RETRY_DELAY", 0.2)
    prices = {"prices": {"m": {"input": 0.0, "output": 0.0}}}
    with run_postgres() as server, run_plain_upstream() as one, run_plain_upstream() as two:
        operator = load_settings(data=tmp_path / "operator", store=server.url)
        key, other = add_client(operator, "one", budget_per_day=5.0), add_client(operator, "two")
        with run_proxies(tmp_path, server.url, [one, two], count=2, journal=prices) as proxies:
            assert statuses(proxies, key) == [200] * 2
            server.kill()
            at_first = ("--url", proxies[0].url)
            direct = kvproxy("keys", "disable", "one", "--store", server.url)
            assert (direct.returncode, "changes it in its memory with --url" in direct.stderr) == (1, True)
            disabled = kvproxy("keys", "disable", "one", *at_first)
            assert (disabled.returncode, "only this proxy was changed, in its memory" in disabled.stderr) == (0, True)
            assert (statuses(proxies, key), statuses(proxies, other)) == ([403, 200], [200, 200])
            assert kvproxy("keys", "disable", "one", *at_first).returncode == 2
            assert kvproxy("keys", "disable", "nobody", *at_first).returncode == 3
            kvproxy("keys", "disable", "two", *at_first)
            assert kvproxy("keys", "enable", "two", *at_first).returncode == 0
            listed = kvproxy("keys", "ls", "--json", *at_first)
            assert "those in the memory of the proxy" in listed.stderr
            clients = {client["name"]: client for client in json.loads(listed.stdout)}
            assert (clients["one"]["disabled"], clients["two"]["disabled"]) == (True, False)
            assert (clients["one"]["left_today"], clients["one"]["requests"]) == (5.0, None)
            drained = result("upstreams", "drain", one, url=proxies[1].url)[0]
            assert "only this proxy was changed" in drained["notes"][0]
            server.restart()
            until(lambda: statuses(proxies, key) == [403, 403])
            until(lambda: [result("upstreams", url=each.url)[0]["state"] for each in proxies] == ["draining"] * 2)
            assert statuses(proxies, other) == [200, 200]
            assert kvproxy("keys", "enable", "one", *at_first).returncode == 0
            until(lambda: statuses(proxies, key) == [200, 200])
            changes = [each["change"] for each in result("keys", "history", *at_first)]
            assert sorted(changes[:3]) == ["disable client one", f"drain upstream {one}", "enable client one"]


def test_a_team_has_one_quota_on_all_proxies(empty_postgres: str, tmp_path: Path) -> None:
    operator = load_settings(data=tmp_path / "operator", store=empty_postgres)
    add_client(operator, "team", requests_per_minute=5)
    keys = [add_client(operator, name, team="team") for name in ("one", "two")]
    with run_plain_upstream() as upstream, run_proxies(tmp_path, empty_postgres, upstream, count=2) as proxies:
        answers = [proxy.ask(key) for _ in range(3) for proxy in proxies for key in keys]
        refused = [answer for answer in answers if answer.status_code != 200]
        # The quota refills by a request in 12 seconds.
        assert 0 < len(refused) <= 7
        assert all("of the team team is reached" in answer.json()["error"]["message"] for answer in refused)


def test_a_file_of_clients_stays_valid(empty_postgres: str, tmp_path: Path) -> None:
    """A proxy had it before its store moved to PostgreSQL."""
    file, shared = load_settings(data=tmp_path), load_settings(data=tmp_path, store=empty_postgres)
    add_client(file, "old")
    add_client(shared, "new")
    assert [client.name for client in all_clients(shared)] == ["old", "new"]
    rotate_key(shared, "old", grace=0)
    for name in ("old", "new"):
        remove_client(shared, name)
    assert all_clients(shared) == all_clients(file) == ()


def test_removals_and_pins_are_recorded(empty_postgres: str, tmp_path: Path) -> None:
    with run_plain_upstream() as upstream, run_proxies(tmp_path, empty_postgres, upstream, count=2) as proxies:
        one, two = proxies
        assert one.ask().status_code == 200
        until(lambda: "hit" in two.ask().headers["cache-status"])
        (entry,) = httpx.get(f"{two.url}/admin/cache").json()
        httpx.post(f"{one.url}/admin/cache/{entry['id']}/pin")
        assert httpx.get(f"{two.url}/admin/cache/{entry['id']}").json()["pinned"]
        result("cache", "rm", entry["id"], "--store", empty_postgres)
        assert "hit" not in one.ask().headers["cache-status"]
        until(lambda: httpx.get(f"{two.url}/admin/cache").json())
        httpx.delete(f"{two.url}/admin/cache", params={"all": "true"})
        shared = one.services.shared
        assert shared is not None
        removed, by_id, pinned = shared.changes(9)
    assert (pinned["operator"], pinned["change"]) == ("admin at 127.0.0.1", f"pinned {entry['id']}")
    assert by_id["change"] == f"removed 1 response: id={entry['id']}"
    assert "@" in by_id["operator"]
    assert removed["change"] == "removed 1 response: all"
