"""Commands find the proxy by the settings; a data folder allows one proxy."""

import json
import tarfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.errors import SettingsError
from kvproxy.http.services import Services
from kvproxy.index.store import EntryFilter
from kvproxy.installation.data_folder import demo_folder, locked_folder
from kvproxy.settings import load_settings
from tests.commands.run import NOWHERE, Demo, kvproxy, result
from tests.commands.test_cache import SERVABLE, stored
from tests.index.entries import make_entry
from tests.requests import post
from tests.servers import run_front, run_proxy, run_upstream


def test_commands_find_the_proxy_that_uses_the_data_folder(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('port = 1\nadmin_token = "s3cret-token"\n')
    with locked_folder(tmp_path, demo[0].replace("127.0.0.1", "0.0.0.0")):
        assert result("blocks", "stats", "--data", tmp_path, url="")["num_blocks"] == 512
    gone = kvproxy("blocks", "stats", "--data", tmp_path, url="")
    last = demo[0].replace("127.0.0.1", "0.0.0.0")
    assert f"no proxy runs for the data folder {tmp_path}, whose last proxy was at {last}" in gone.stderr
    assert ", and none answers at http://127.0.0.1:1: start one" in gone.stderr
    never = kvproxy("blocks", "stats", "--data", tmp_path / "other", url="", KVPROXY_PORT="1")
    assert "no proxy answers at http://127.0.0.1:1: start one" in never.stderr


def test_keys_and_doctor_follow_the_running_proxy_or_name_its_folder(tmp_path: Path) -> None:
    used, other = tmp_path / "used", tmp_path / "other"
    settings = load_settings(data=used, upstream="http://127.0.0.1:9", cache={"semantic": False})
    with run_proxy(settings) as (url, _):
        elsewhere = kvproxy("keys", "add", "ann", url=url)
        assert (elsewhere.returncode, elsewhere.stdout) == (2, "")
        assert f"the proxy at {url} uses {used} on another machine: give --data" in elsewhere.stderr
        with locked_folder(used, url):
            added = kvproxy("keys", "add", "ann", url=url)
            assert f"data folder of the running proxy: {used}\n" in added.stderr
            assert f"a proxy of {used} rejects requests without a key" in added.stderr
            assert [each["name"] for each in result("keys", "ls", url=url)] == ["ann"]
            assert [each["name"] for each in result("keys", "ls", "--url", url)] == ["ann"]
            assert "give one of --url" in kvproxy("keys", "ls", "--url", url, "--data", tmp_path).stderr
            assert kvproxy("keys", "rm", "ann", url=url).stdout == f"removed ann from the clients of {used}\n"
            assert result("keys", "add", "bob", "--data", other, url=url)["name"] == "bob"
        checked = kvproxy("doctor", "--data", other, url=url).stdout
        assert f"with the data folder {used}, which the other checks did not check: give --data {used}" in checked
        assert "with the data folder" not in kvproxy("doctor", "--data", used, url=url).stdout


def test_doctor_checks_the_folder_of_a_running_demonstration(tmp_path: Path) -> None:
    used = demo_folder(tmp_path / "kvproxy")
    settings = load_settings(data=used, upstream="http://127.0.0.1:9", cache={"semantic": False})
    with run_proxy(settings) as (url, _), locked_folder(used, url):
        checks = {check["check"]: check["detail"] for check in _doctor(XDG_DATA_HOME=str(tmp_path))}
        assert checks["data"].startswith(f"{used}, ")
        assert f"answers at {url}" in checks["proxy"]
        assert "did not check" not in checks["proxy"]


def _doctor(**environment: str) -> Any:
    return json.loads(kvproxy("doctor", "--json", url="", **environment).stdout)


def test_a_relative_data_folder_is_the_same_in_every_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(data=Path("used"), upstream="http://127.0.0.1:9", cache={"semantic": False})
    with run_proxy(settings) as (url, _):
        assert httpx.get(f"{url}/health").json()["data"] == str(tmp_path / "used")
        assert "with the data folder" not in kvproxy("doctor", "--data", "used", url=url).stdout
        monkeypatch.chdir(tmp_path.parent)
        assert "with the data folder" not in kvproxy("doctor", "--data", tmp_path / "used", url=url).stdout


def test_commands_need_an_address_if_the_port_is_any(tmp_path: Path) -> None:
    done = kvproxy("blocks", "stats", url="", KVPROXY_DATA=str(tmp_path), KVPROXY_PORT="0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "give --url" in done.stderr


def test_import_makes_the_store_that_is_named(tmp_path: Path) -> None:
    exported = tmp_path / "export.jsonl"
    exported.write_text("")
    assert kvproxy("cache", "import", exported, "--store", tmp_path / "new.db", url="").returncode == 0
    assert (tmp_path / "new.db").is_file()
    missing = kvproxy("cache", "ls", "--store", tmp_path / "missing.db", url="")
    assert missing.returncode == 3
    assert missing.stderr == f"kvproxy: there is no store {tmp_path / 'missing.db'}: check the path\n"
    empty = kvproxy("cache", "ls", "--data", tmp_path, url="")
    assert empty.stderr.endswith("responses.db: kvproxy serve writes one; --data names its folder\n")


def test_a_reload_names_the_settings_that_need_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "kvproxy.toml"
    file.write_text("port = 8484\n[cache]\nttl = 60.0\n")
    settings = load_settings(data=tmp_path, upstream=NOWHERE, cache={"semantic": False})
    with run_proxy(settings) as (url, _):
        assert result("reload", url=url)["restart"] == []
        file.write_text('port = 8585\n[cache]\nttl = 61.0\n[[rules]]\nname = "r"\n')
        assert result("reload", url=url)["restart"] == ["cache.ttl", "port"]
        told = kvproxy("reload", url=url).stdout
        assert told.startswith("loaded 1 rule and 1 upstream\n")
        assert "restart the proxy for the changed settings: cache.ttl, port" in told


def test_a_named_proxy_serves_commands_while_the_settings_are_invalid(tmp_path: Path) -> None:
    with run_proxy(load_settings(data=tmp_path, upstream=NOWHERE, cache={"semantic": False})) as (url, _):
        result("keys", "add", "a", "--data", tmp_path)
        (tmp_path / "kvproxy.toml").write_text("bogus = 1\n")
        folder = {"url": NOWHERE, "KVPROXY_DATA": str(tmp_path)}
        refused = kvproxy("keys", "disable", "a", **folder)
        assert refused.returncode == 2
        assert "there is no such setting" in refused.stderr
        assert (
            "this command needs no valid settings with the --url of a running proxy, and its --token" in refused.stderr
        )
        assert result("keys", "disable", "a", "--url", url, **folder) == {"disabled": "a"}
        assert kvproxy("log", "--url", url, **folder).returncode == 0


def test_commands_work_without_an_invalid_file(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", tmp_path / "backup.tar"
    with run_front(data, NOWHERE) as (url, _):
        post(url)
    result("keys", "add", "a", "--data", data)
    (data / "kvproxy.toml").write_text("bogus = 1\n")
    folder = {"url": "", "KVPROXY_DATA": str(data)}
    for command, printed in ((("log",), "error"), (("keys", "ls"), "a"), (("backup", archive), "journal.db")):
        refused = kvproxy(*command, **folder)
        assert refused.returncode == 2
        assert "kvproxy.toml, line 1" in refused.stderr
        assert "to ignore the file, set KVPROXY_CONFIG=/dev/null" in refused.stderr
        done = kvproxy(*command, **folder, KVPROXY_CONFIG="/dev/null")
        assert (done.returncode, printed in done.stdout) == (0, True), done.stderr
    with tarfile.open(archive) as saved:
        assert "kvproxy.toml" in saved.getnames()
    assert "KVPROXY_CONFIG=/dev/null" not in kvproxy("serve", **folder).stderr


def test_a_reload_with_another_admin_token_names_the_fix(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstream=NOWHERE, admin_token="running-token", cache={"semantic": False})
    with run_proxy(settings) as (url, _):
        refused = kvproxy("reload", "--token", "edited-token", url=url)
    assert (refused.returncode, "another admin token than the running proxy" in refused.stderr) == (1, True)
    assert "give the former one with --token, or send SIGHUP" in refused.stderr


def test_commands_take_the_admin_token_from_the_settings_of_the_proxy_only(tmp_path: Path) -> None:
    more: dict[str, Any] = {"admin_token": "s3cret-token", "cache": {"semantic": False}}
    with run_proxy(load_settings(data=tmp_path, upstream=NOWHERE, **more)) as (url, _):
        for port, code in ((9, 1), (urlsplit(url).port, 0)):
            (tmp_path / "kvproxy.toml").write_text(f'port = {port}\nadmin_token = "s3cret-token"\n')
            assert kvproxy("upstreams", "--data", tmp_path, "--url", url, url="").returncode == code
        assert kvproxy("upstreams", "--data", tmp_path, url="").returncode == 0
        # The next error: the token was accepted.
        assert "had a hit" in kvproxy("warm", "--cache", "--data", tmp_path, url="").stderr
        elsewhere = kvproxy("warm", "--cache", "--from", url, "--data", tmp_path)
        assert "had a hit" in elsewhere.stderr
        asked: list[str | None] = []

        async def answer(request: Request) -> Response:
            asked.append(request.headers.get("x-kvproxy-admin-token"))
            return Response("[]", headers={"x-total-count": "0"})

        with run_upstream(answer) as other:
            assert kvproxy("warm", "--cache", "--from", other, "--data", tmp_path, url="").returncode == 3
        assert asked == [None]


def test_commands_that_read_the_journal_name_a_missing_or_wrong_token(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstream=NOWHERE, admin_token="s3cret-token", cache={"semantic": False})
    with run_proxy(settings) as (url, _):
        for name in (("log",), ("log", "top"), ("log", "--where", "total_ms > 1"), ("log", "--plot", "-")):
            for token, problem in (((), "this needs the admin token"), (("--token", "no"), "is not the admin token")):
                done = kvproxy(*name, "--url", url, *token)
                assert (done.returncode, problem in done.stderr) == (1, True), (name, done.stderr)
            assert kvproxy(*name, "--url", url, "--token", "s3cret-token").returncode == 0


def entry_count(services: Services) -> int:
    return len(services.cache.store.list_entries(EntryFilter()))


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
def test_a_named_data_folder_excludes_the_proxy_of_another_folder(tmp_path: Path, way: str) -> None:
    used, other, file = tmp_path / "used", tmp_path / "other", tmp_path / "kvproxy.toml"
    for folder in (used, other):
        folder.mkdir()
        stored(folder / "responses.db", make_entry("a question", created=time.time(), response=SERVABLE))
    with run_front(used, NOWHERE) as (url, services):
        more = {"KVPROXY_PORT": str(urlsplit(url).port)}
        if way == "file":
            file.write_text(f'data = "{other}"\n')
            more["KVPROXY_CONFIG"] = str(file)
        elif way == "variable":
            more["KVPROXY_DATA"] = str(other)
        named = ("--data", other) if way == "flag" else ()
        assert len(result("cache", "ls", *named, url="", **more)) == 1
        assert kvproxy("cache", "rm", "--all", "--yes", *named, url="", **more).stdout == "removed 1 response\n"
        assert result("cache", "ls", *named, url="", **more) == []
        assert entry_count(services) == 1
        no_journal = kvproxy("log", *named, url="", **more)
        assert (no_journal.returncode, str(other) in no_journal.stderr) == (3, True), no_journal
        for command in (("upstreams",), ("top", "--once"), ("reload",)):
            done = kvproxy(*command, *named, url="", **more)
            assert (done.returncode, f"no proxy uses the data folder {other}: " in done.stderr) == (4, True), done
            assert f"the proxy at {url} uses {used}" in done.stderr


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_a_named_store_excludes_the_proxy_of_another_store(tmp_path: Path, way: str) -> None:
    other = tmp_path / "other.db"
    for file in (tmp_path / "responses.db", other):
        stored(file, make_entry("a question", created=time.time(), response=SERVABLE))
    with run_front(tmp_path, NOWHERE) as (url, services):
        more = {"KVPROXY_PORT": str(urlsplit(url).port), "KVPROXY_DATA": str(tmp_path)}
        named = ("--store", other) if way == "flag" else ()
        changed = more if named else more | {"KVPROXY_STORE": str(other)}
        assert kvproxy("cache", "rm", "--all", "--yes", *named, url="", **changed).returncode == 0
        assert entry_count(services) == 1
        assert kvproxy("cache", "rm", "--all", "--yes", url="", **more).returncode == 0
        assert entry_count(services) == 0


def test_one_proxy_to_a_data_folder(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "http://127.0.0.1:1234"):
        other = locked_folder(tmp_path, "http://127.0.0.1:1235")
        with pytest.raises(SettingsError, match=r"process \d+ at http://127.0.0.1:1234"), other:
            pass
        second = kvproxy("serve", "--upstream", "http://127.0.0.1:9", "--no-semantic", "--port", 0, "--data", tmp_path)
        assert (second.returncode, second.stderr.count("\n")) == (2, 1)
        assert "http://127.0.0.1:1234" in second.stderr
        assert "--data" in second.stderr
    with locked_folder(tmp_path, "http://127.0.0.1:1236"):
        assert json.loads((tmp_path / "serve.lock").read_text())["url"] == "http://127.0.0.1:1236"
