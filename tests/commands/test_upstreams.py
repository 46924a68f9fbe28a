"""Commands for upstreams: list, drain, reset, doctor, serve."""

import base64
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import SettingsError
from kvproxy.installation.checks.access import check_access
from kvproxy.installation.checks.servers import CheckWarning, check_proxy
from kvproxy.installation.data_folder import locked_folder
from kvproxy.settings import load_settings
from tests.commands.run import NOWHERE, ROOT, Demo, ask, command, kvproxy, result, variables
from tests.commands.upstream import Upstream
from tests.polling import until
from tests.servers import run_proxy, run_upstream


@dataclass
class Two:
    """A proxy in front of two upstreams."""

    url: str
    targets: list[str]
    upstreams: list[Upstream]

    def asked(self) -> list[int]:
        """Requests per upstream since the last call."""
        return [len(upstream.questions()) for upstream in self.upstreams]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    upstreams = [Upstream(), Upstream()]
    with upstreams[0].run() as first, upstreams[1].run() as second:
        data = tmp_path_factory.mktemp("two")
        with run_proxy(load_settings(data=data, upstreams=[first, second], cache={"enabled": False})) as (url, _):
            yield Two(url, [first, second], upstreams)


def test_a_drained_upstream_receives_no_requests(two: Two) -> None:
    (drained,) = result("upstreams", "drain", 1, url=two.url)
    assert (drained["url"], drained["state"]) == (two.targets[0], "draining")
    for number in range(6):
        assert ask(two.url, f"question {number}").is_success
    assert two.asked() == [0, 6]
    assert result("upstreams", "undrain", two.targets[0], url=two.url)[0]["state"] == "up"
    assert "no upstream is available" not in kvproxy("upstreams", "drain", 2, url=two.url).stdout
    for number in range(6):
        assert ask(two.url, f"again {number}").is_success
    assert two.asked() == [6, 0]
    assert [each["state"] for each in result("upstreams", url=two.url)] == ["up", "draining"]
    (last,) = result("upstreams", "drain", 1, url=two.url)
    assert "no upstream is available now, so only stored responses are served" in last["notes"][-1]
    assert last["notes"][-1] in kvproxy("upstreams", "drain", 1, url=two.url).stdout
    refused = ask(two.url, "nobody")
    assert refused.headers["retry-after"] == "1"
    assert (refused.status_code, "draining" in refused.json()["error"]["message"]) == (503, True)
    uncached = httpx.post(f"{two.url}/v1/messages/count_tokens", json={})
    assert (uncached.status_code, uncached.json()["error"]["type"]) == (503, "overloaded_error")
    kvproxy("upstreams", "undrain", 1, url=two.url)
    assert result("upstreams", "undrain", 2, url=two.url)[0]["state"] == "up"
    for name in ("3", "0", "http://other", "a&name=1", ""):
        unknown = kvproxy("upstreams", "drain", name, url=two.url)
        assert (unknown.returncode, unknown.stderr.count("\n")) == (3, 1), name
    assert {each["state"] for each in result("upstreams", url=two.url)} == {"up"}


RESETS = [
    {"engine": "http://a", "reset": True, "message": None},
    {"engine": "http://b", "reset": False, "message": "blocks are in use"},
]


@pytest.mark.parametrize(
    ("done", "printed", "refused"),
    [
        ({"used": 2, "engines": []}, "", "refused: a request uses blocks; try again when it has finished"),
        (
            {"used": None, "engines": RESETS},
            "http://a: the prefix cache is empty\n",
            "http://b: not reset (blocks are in use)",
        ),
    ],
)
def test_a_refused_reset_is_reported_for_each_engine(done: dict[str, Any], printed: str, refused: str) -> None:
    async def answer(request: Request) -> Response:
        return JSONResponse({"reset": False, "pinned": 0} | done)

    with run_upstream(answer) as url:
        told = kvproxy("blocks", "reset", url=url)
        assert (told.returncode, told.stdout, told.stderr) == (1, printed, f"kvproxy: {refused}\n")


def test_a_block_id_never_selects_another_route(demo: Demo) -> None:
    for id in ("stats", "queue", "chains"):
        done = kvproxy("blocks", "show", id, url=demo[0])
        assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.parametrize("answer", [Response("<html>"), JSONResponse({"detail": "Not Found"}, 404)])
def test_a_server_that_is_not_a_kvproxy_is_reported(answer: Response) -> None:
    async def page(request: Request) -> Response:
        return answer

    with run_upstream(page) as url:
        for arguments in (("blocks", "stats"), ("blocks", "pins"), ("reload",), ("explain", "x", "--model", "m")):
            done = kvproxy(*arguments, url=url)
            told = f"kvproxy: the server at {url} is not a kvproxy: correct --url\n"
            assert (done.returncode, done.stderr) == (1, told)
        assert kvproxy("cache", "ls", url=url).returncode == 4
        checks = {check["check"]: check for check in json.loads(kvproxy("doctor", "--json", url=url).stdout)}
        assert "is not kvproxy" in checks["proxy"]["detail"]


BASIC = "Basic " + base64.b64encode(b"user:SECRET").decode()


async def guarded_models(request: Request) -> Response:
    """An upstream that requires one header."""
    if request.headers.get("authorization") != BASIC:
        return JSONResponse({"error": {"message": "who are you?"}}, 401)
    return JSONResponse({"data": [{"id": "a"}, {"id": "b"}]})


def doctor(*upstreams: str, **environment: str) -> tuple[int, list[tuple[bool, str]], str]:
    """Return the exit code, the result and the detail of each upstream's check, and the output."""
    flags = [flag for upstream in upstreams for flag in ("--upstream", upstream)]
    done = kvproxy("doctor", "--json", *flags, **environment)
    checks = [check for check in json.loads(done.stdout) if check["check"] == "upstream"]
    return done.returncode, [(check["ok"], check["detail"]) for check in checks], done.stdout


def test_doctor_checks_each_upstream(tmp_path: Path) -> None:
    with Upstream().run() as good, run_upstream(guarded_models) as guarded:
        code, told, _ = doctor(good, NOWHERE)
        assert (code, [ok for ok, _ in told]) == (1, [True, False])
        assert told[0][1] == f"{good} answers, and serves m"
        assert f"nothing answers at {NOWHERE}: start the server" in told[1][1]
        code, told, printed = doctor(guarded.replace("://", "://user:SECRET@"))
        assert (code, told) == (0, [(True, f"{guarded} answers, and serves a, b")])
        assert "SECRET" not in printed
        assert doctor(guarded)[1] == [(True, f"{guarded} answers, and requires a key from each client")]
        code, told, printed = doctor(guarded, KVPROXY_FORWARD__API_KEY="SECRET")
        assert (code, "refuses the key" in told[0][1], "SECRET" in printed) == (1, True, False)


def test_doctor_knows_the_folder_of_a_running_proxy_by_its_other_paths(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    settings: dict[str, Any] = {"data": tmp_path / "data", "cache": {"semantic": False}}
    with Upstream().run() as upstream, run_proxy(load_settings(upstream=upstream, **settings)) as (url, _):
        for path in (tmp_path / "link", tmp_path / "data" / ".." / "data"):
            assert "give --data" not in check_proxy(url, None, path)
        with pytest.raises(CheckWarning, match="give --data"):
            check_proxy(url, None, tmp_path)


@pytest.mark.parametrize(
    ("host", "token", "is_warning", "detail"),
    [
        ("127.0.0.1", None, False, "127.0.0.1, this machine only"),
        ("0.0.0.0", None, True, "0.0.0.0: without admin_token, the dashboard"),
        ("0.0.0.0", "secret", False, "0.0.0.0, with an admin_token"),
    ],
)
def test_doctor_warns_of_a_missing_admin_token_beyond_loopback(
    tmp_path: Path, host: str, token: str | None, is_warning: bool, detail: str
) -> None:
    settings = load_settings(data=tmp_path, host=host, admin_token=token, access={"open": True})
    # A proxy may listen at another address than that in its settings.
    for lock in (contextlib.nullcontext(), locked_folder(tmp_path, f"http://{host}:1", None)):
        with lock, pytest.raises(CheckWarning) if is_warning else contextlib.nullcontext() as raised:
            text = check_access(settings)
        assert (str(raised.value) if raised is not None else text).startswith(detail)
    with pytest.raises(SettingsError, match="kvproxy keys add NAME"):
        check_access(load_settings(data=tmp_path, host="0.0.0.0"))


def test_doctor_reports_a_proxy_whose_upstream_is_down(tmp_path: Path) -> None:
    routing = {"health_interval": 0.05, "eject_after": 1}
    rest = {"cache": {"semantic": False}, "routing": routing, "admin_token": "secret"}
    settings = load_settings(data=tmp_path, upstream=NOWHERE, **rest)
    with run_proxy(settings) as (url, _):
        until(lambda: not httpx.get(f"{url}/ready").is_success)
        done = kvproxy("doctor", "--json", "--data", tmp_path, url=url)
        (proxy,) = [check for check in json.loads(done.stdout) if check["check"] == "proxy"]
        assert (done.returncode, proxy["ok"]) == (1, False)
        assert proxy["detail"].endswith("is not ready: no upstream is available (give --token to see the cause)")
        public = httpx.get(f"{url}/ready")
        assert public.json()["error"] == "no upstream is available"
        assert NOWHERE not in public.text
        told = kvproxy("doctor", "--data", tmp_path, "--token", "secret", url=url)
        assert f"is not ready: cannot reach the upstream {NOWHERE}" in told.stdout
        listed = kvproxy("upstreams", "--token", "secret", url=url).stdout
        assert listed.startswith("#\turl\t")
        assert f"\n1\t{NOWHERE}\t" in listed
        assert f"\ncannot reach the upstream {NOWHERE}" in listed


def test_serve_reads_the_settings_of_its_data_folder(demo: Demo, tmp_path: Path) -> None:
    port = demo[0].rsplit(":", 1)[1]
    (tmp_path / "kvproxy.toml").write_text(f"port = {port}")
    done = kvproxy("serve", KVPROXY_DATA=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "choose another with --port" in done.stderr


def test_serve_prints_its_url_as_json_without_secrets(tmp_path: Path) -> None:
    arguments = command("serve", "--json", "--port", 0, "--data", tmp_path, "--no-semantic")
    environment = variables("", {"KVPROXY_UPSTREAM": "http://user:SECRET@127.0.0.1:9"})
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert (ready["model"], ready["upstreams"]) == (None, [NOWHERE])
    url = ready["url"]
    with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=3)) as client:
        seen = [ask(url, "x").text]
        seen += [client.get(path).text for path in ("/health", "/ready", "/metrics", "/admin/upstreams", "/v1/models")]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    for text in (json.dumps(ready), out, err, *seen):
        assert "SECRET" not in text
        assert BASIC.removeprefix("Basic ") not in text
    assert "127.0.0.1:9" in seen[0]
    assert os.path.exists(tmp_path / "responses.db")


def test_one_command_drains_an_upstream_at_all_proxies_of_a_fleet(two: Two, tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstreams=two.targets, cache={"enabled": False})
    with run_proxy(settings) as (other, _):
        name = two.targets[1]
        drained = result("upstreams", "drain", name, "--also", other, url=two.url)
        assert [(row["url"], row["state"]) for row in drained] == 2 * [(name, "draining")]
        shown = kvproxy("upstreams", "drain", name, "--also", other, url=two.url).stdout
        assert shown == 2 * f"{name} is draining: 0 requests in flight\n"
        done = kvproxy("upstreams", "undrain", name, "--also", NOWHERE, "--also", other, url=two.url)
        assert (done.returncode, done.stderr.startswith(f"{NOWHERE}: ")) == (4, True)
        for url in (two.url, other):
            assert [row["state"] for row in result("upstreams", url=url) if row["url"] == name] == ["up"]
