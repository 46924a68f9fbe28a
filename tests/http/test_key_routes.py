"""The admin routes that change clients: what `kvproxy keys` does, for platforms that create keys by HTTP."""

import contextlib
import errno
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.clients import change_log
from kvproxy.clients.client_keys import add_client, all_clients, operator_changes
from kvproxy.clients.stored_clients import clients_file
from kvproxy.errors import SettingsError
from kvproxy.settings import Settings, load_settings
from tests.commands.run import ROOT, kvproxy, result
from tests.http.conftest import Recorder
from tests.requests import post
from tests.servers import run_front

TOKEN = {"authorization": "Bearer operators"}


@contextlib.contextmanager
def admin(folder: Path, upstream: str, **settings: Any) -> Iterator[tuple[httpx.Client, Settings]]:
    """An operator's client of a running proxy."""
    with (
        run_front(folder, upstream, admin_token="operators", **settings) as (url, services),
        httpx.Client(base_url=url, headers=TOKEN, timeout=60) as client,
    ):
        yield client, services.settings


def status(client: httpx.Client, key: str) -> int:
    return post(str(client.base_url).rstrip("/"), authorization=f"Bearer {key}").status_code


def test_commands_read_the_token_from_a_file(tmp_path: Path, recorder: Recorder) -> None:
    """As with the variable KVPROXY_ADMIN_TOKEN, for the proxy of any URL."""
    (tmp_path / "token").write_text("operators\n")
    with admin(tmp_path / "proxy", recorder.url) as (client, _):
        variables = {"KVPROXY_ADMIN_TOKEN_FILE": str(tmp_path / "token"), "KVPROXY_DATA": str(tmp_path / "here")}
        url = str(client.base_url).rstrip("/")
        assert kvproxy("keys", "ls", "--url", url, **variables).returncode == 0
        assert kvproxy("log", "--url", url, **variables).returncode == 0
        assert kvproxy("keys", "ls", "--url", url, KVPROXY_DATA=str(tmp_path / "here")).returncode != 0


def test_a_platform_manages_keys_over_http(tmp_path: Path, recorder: Recorder) -> None:
    with admin(tmp_path, recorder.url) as (client, settings):
        limits = {"name": "search", "requests_per_minute": "600", "expires": "90d", "models": "m,small-*"}
        created = client.post("/admin/keys", params=limits).json()
        assert (created["name"], created["is_first"], created["key"][:4]) == ("search", True, "kvp-")
        # At once: without a wait for the next reload.
        assert status(client, created["key"]) == 200
        assert status(client, "other") == 401
        (listed,) = client.get("/admin/keys").json()["clients"]
        assert (listed["requests_per_minute"], listed["models"]) == (600, "m,small-*")
        assert listed["expires"] == pytest.approx(time.time() + 90 * 86_400, abs=600)

        changed = client.patch("/admin/keys/search", params={"tokens_per_minute": 5, "unlimited": "models"}).json()
        assert (changed["tokens_per_minute"], changed["models"], changed["requests_per_minute"]) == (5, None, 600)
        new = client.post("/admin/keys/search/rotate", params={"grace": "0s"}).json()["key"]
        assert (status(client, created["key"]), status(client, new) in (200, 429)) == (401, True)
        assert client.post("/admin/keys/search/disable").json()["disabled"] is True
        assert status(client, new) == 403
        assert client.post("/admin/keys/search/enable").json()["disabled"] is False
        assert client.post("/admin/keys/search/reset").json() == {"reset": "search"}
        removed = client.delete("/admin/keys/search").json()
        assert removed["removed"] == "search"
        assert "no client is left, so all requests are rejected" in removed["closed"]
        assert client.get("/admin/keys").json()["closed"] == removed["closed"]
        assert status(client, new) == 401

        changes = client.get("/admin/keys/history").json()
        assert [each["change"].split(":")[0] for each in changes] == [
            "remove client search",
            "reset the counts of client search",
            "enable client search",
            "disable client search",
            "rotate the key of client search",
            "set limits of client search",
            "add client search",
        ]
        assert {each["operator"] for each in changes} == {"admin at 127.0.0.1"}
        assert client.get("/admin/keys/history", params={"limit": 1}).json() == changes[:1]
        assert operator_changes(settings, None) == changes


def test_wrong_changes_have_a_clear_error_and_change_nothing(tmp_path: Path, recorder: Recorder) -> None:
    key = add_client(load_settings(data=tmp_path), "one")
    budgets = {"journal": {"currency": "EUR"}}
    with admin(tmp_path, recorder.url, **budgets) as (client, settings):
        before = clients_file(tmp_path).read_bytes()

        def error(method: str, path: str, status: int, **sent: Any) -> str:
            refused = client.request(method, path, **sent)
            assert refused.status_code == status, refused.text
            return str(refused.json()["error"]["message"])

        def refusal(**parameters: object) -> str:
            return error("POST", "/admin/keys", 400, params=parameters)

        assert "name is missing" in refusal()
        assert "already" in refusal(name="one")
        assert "no name for a client" in refusal(name="a b")
        assert "'budget_per_dya' is unknown: its parameters are name, requests_per_minute" in refusal(
            name="two", budget_per_dya=5
        )
        assert "budget_per_day is empty" in refusal(name="two", budget_per_day="")
        assert "must be an amount" in refusal(name="two", budget_per_day="5 EUR")
        assert "no model has a price in EUR" in refusal(name="two", budget_per_day=5)
        assert "in the past" in refusal(name="two", expires="2020-01-01")
        assert "'30' has no unit: use a form such as 30s, 30m, or 30d" in refusal(name="two", expires=30)
        assert "must be a number of at least 1" in refusal(name="two", requests_per_minute=0)
        assert "the team lab of the client two is no client" in refusal(name="two", team="lab")
        body = {"name": "two", "budget_per_day": 5}
        assert "takes no body: its parameters are name" in error(
            "POST", "/admin/keys", 400, params={"name": "two"}, json=body
        )
        assert "no limit to change" in error("PATCH", "/admin/keys/one", 400)
        assert "no client 'two'" in error("DELETE", "/admin/keys/two", 404)
        assert "no client 'two'" in error("POST", "/admin/keys/two/rotate", 404)
        assert "enabled already" in error("POST", "/admin/keys/one/enable", 400)
        for method, path in (("POST", "/admin/keys"), ("DELETE", "/admin/keys/one"), ("GET", "/admin/keys/history")):
            refused = httpx.request(method, f"{client.base_url}{path}", headers={"authorization": f"Bearer {key}"})
            assert refused.status_code == 401
        assert clients_file(tmp_path).read_bytes() == before
        assert [client.name for client in all_clients(settings)] == ["one"]


def test_a_file_creates_all_of_its_clients_or_none(tmp_path: Path, recorder: Recorder) -> None:
    teams = tmp_path / "teams.csv"
    with admin(tmp_path / "data", recorder.url) as (client, settings):
        for content, message in [
            (b"name,expires\na,90d\nb,2020-01-01\n", "is in the past"),
            (b"name,quota\na,1\n", "unknown column 'quota': the columns are name, requests_per_minute"),
            (b"name\na\n\xff\n", "the file of clients is not UTF-8"),
            (b"", "the first line has no column name"),
        ]:
            refused = client.post("/admin/keys/many", content=content)
            assert (refused.status_code, message in refused.text) == (400, True), refused.text
        assert client.get("/admin/keys").json()["clients"] == []

        teams.write_text('name,requests_per_minute,models\na,600,\nb,,"m,small-*"\n')
        created = client.post("/admin/keys/many", content=teams.read_bytes()).json()
        assert [(each["name"], each["is_first"]) for each in created] == [("a", True), ("b", True)]
        assert [status(client, each["key"]) for each in created] == [200, 200]
        assert [each.models for each in all_clients(settings)] == [(), ("m", "small-*")]
        again = client.post("/admin/keys/many", content=b"name\nc\na\n")
        assert (again.status_code, "there is a client 'a' already" in again.text) == (400, True)

        teams.write_text("\ufeffname\nc\nd\n")
        done = kvproxy("keys", "add-many", teams, "--url", client.base_url, "--token", "operators")
        head, *rows = done.stdout.splitlines()
        assert (done.returncode, head, [row.split(",")[0] for row in rows]) == (0, "name,key", ["c", "d"]), done.stderr
        assert status(client, rows[1].split(",")[1]) == 200
        assert {each["operator"] for each in operator_changes(settings, None)} == {"admin at 127.0.0.1"}


def test_commands_manage_keys_at_a_url(tmp_path: Path, recorder: Recorder) -> None:
    with admin(tmp_path, recorder.url) as (client, _):
        remote = ("--url", client.base_url, "--token", "operators")
        added = kvproxy("keys", "add", "one", "--expires", "2040-01-02", "--stored-bytes", "1GiB", *remote)
        assert (added.returncode, "rejects requests without a key" in added.stderr) == (0, True), added.stderr
        assert status(client, added.stdout.strip()) == 200
        changed = result("keys", "set", "one", "--budget-per-day", "2.5", *remote)
        limits = {name: value for name, value in changed.items() if value is not None}
        assert limits.pop("expires") == pytest.approx(2_209_075_200, abs=86_400)
        assert limits == {"name": "one", "stored_bytes": 2**30, "budget_per_day": 2.5}
        assert result("keys", "disable", "one", *remote) == {"disabled": "one"}
        assert result("keys", "rm", "one", *remote)["removed"] == "one"
        assert [each["change"].split()[0] for each in result("keys", "history", *remote)] == [
            *("remove", "disable", "set", "add"),
        ]
        assert kvproxy("keys", "rm", "one", *remote).returncode == 3
        assert kvproxy("keys", "rm", "one", *remote, "--data", tmp_path).returncode == 2


WRITER = """
import sys
from pathlib import Path
from kvproxy.clients.client_keys import add_client, set_limits
from kvproxy.settings import load_settings

data, store, name = sys.argv[1:]
settings = load_settings(data=Path(data), **({"store": store} if store else {}))
print("ready", flush=True)
sys.stdin.readline()
for number in range(6):
    add_client(settings, f"{name}-{number}")
    set_limits(settings, f"{name}-{number}", {"requests_per_minute": 9})
"""


@pytest.mark.parametrize("shared", [False, True], ids=["file", "postgres"])
def test_concurrent_writers_lose_no_change(
    shared: bool, tmp_path: Path, recorder: Recorder, request: pytest.FixtureRequest
) -> None:
    """Two commands and two requests change clients at the same time."""
    store = request.getfixturevalue("empty_postgres") if shared else ""
    with admin(tmp_path, recorder.url, **({"store": store} if shared else {})) as (client, settings):
        writers = [
            subprocess.Popen(
                # Hosts of commands have data folders of their own.
                [sys.executable, "-c", WRITER, str(tmp_path / name if shared else tmp_path), store, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for name in ("a", "b")
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"

        def add(name: str) -> list[int]:
            added = [client.post("/admin/keys", params={"name": f"{name}-{number}"}) for number in range(6)]
            kept = [client.patch(f"/admin/keys/{name}-{n}", params={"requests_per_minute": 9}) for n in range(6)]
            return [each.status_code for each in (*added, *kept)]

        with ThreadPoolExecutor(2) as threads:
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("\n")
                writer.stdin.flush()
            assert list(threads.map(add, ("c", "d"))) == [[200] * 12] * 2
        assert [writer.communicate(timeout=300) and writer.returncode for writer in writers] == [0, 0]
        names = {f"{name}-{number}" for name in "abcd" for number in range(6)}
        assert {each.name: each.requests_per_minute for each in all_clients(settings)} == dict.fromkeys(names, 9)
        assert len(operator_changes(settings, None)) == 2 * len(names)


def test_a_change_that_cannot_be_recorded_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: otherwise, a client would exist without a known key."""
    settings = load_settings(data=tmp_path)
    add_client(settings, "one")

    def fail(log: change_log.ChangeLog) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(change_log.ChangeLog, "_is_complete", fail)
        with pytest.raises(SettingsError, match=r"changes\.jsonl \(No space left"):
            add_client(settings, "two")
    assert [client.name for client in all_clients(settings)] == ["one"]
    add_client(settings, "two")


def test_a_cut_line_of_the_changes_hides_no_later_change(tmp_path: Path) -> None:
    change_log.record_change(tmp_path, "me", "before")
    with change_log.changes_file(tmp_path).open("ab") as file:
        file.write(b'{"changed": 1')
    change_log.record_change(tmp_path, "me", "after")
    assert [each["change"] for each in change_log.recorded_changes(tmp_path, None)] == ["after", "before"]
