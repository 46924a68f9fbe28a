"""Rules: the first that matches holds, they change without a restart, and a broken file changes nothing."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.errors import SettingsError
from kvproxy.http.services import Services
from kvproxy.rules import Rules, matches
from kvproxy.settings import load_settings
from kvproxy.settings.lines import line_of
from kvproxy.settings.rules import RuleSettings
from tests.backends.fleets import until
from tests.commands.run import kvproxy, result
from tests.http.test_lifetimes import process
from tests.requests import api_request
from tests.servers import run_app, run_proxy

WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
FILE = """
[cache]
semantic = false
ttl = 5000

[[rules]]
name = "never"
model = "secret-*"
cache = false

[[rules]]
name = "short"
headers = { x-team = "sales*" }
ttl = 60
tags = ["sales"]

[[rules]]
name = "long"
path = "/v1/chat/*"
tag = "docs"
ttl = 90000
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    async def answer(request: Request) -> Response:
        return JSONResponse(WHOLE)

    with run_app(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as url:
        yield url


@pytest.fixture
def proxy(upstream: str, tmp_path: Path) -> Iterator[tuple[str, Services]]:
    (tmp_path / "kvproxy.toml").write_text(FILE)
    with run_proxy(load_settings(data=tmp_path, upstream=upstream)) as running:
        yield running


def ask(
    url: str, question: str = "Hi", model: str = "m", path: str = "v1/chat/completions", **headers: str
) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": question}]}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{url}/{path}", json=body, headers=named)


def lifetime(services: Services, question: str) -> int:
    (entry,) = [entry for entry in services.answerer.store.ls() if entry.prompt == question]
    return round(entry.expires - entry.created)


def test_a_rule_sets_what_holds_for_its_requests_alone(proxy: tuple[str, Services]) -> None:
    url, services = proxy
    for _ in range(2):
        assert ask(url, model="secret-1").headers["cache-status"] == "kvproxy; fwd=request"
    ask(url, "usual")
    ask(url, "sales", x_team="sales-2")
    ask(url, "docs", x_kvproxy_tags="docs")
    ask(url, "less", x_kvproxy_tags="docs", x_kvproxy_ttl="7")
    assert [lifetime(services, each) for each in ("usual", "sales", "docs", "less")] == [5000, 60, 90_000, 7]
    (tagged,) = httpx.get(f"{url}/admin/cache", params={"tag": "sales"}).json()
    assert tagged["prompt"] == "sales"


def test_explain_names_the_rule(proxy: tuple[str, Services]) -> None:
    url, _ = proxy
    told = ask(url, model="secret-1", path="admin/explain").json()
    assert (told["rule"], told["semantic"]["reason"]) == ("never", "the rule never takes no stored answer")
    assert ask(url, path="admin/explain").json()["rule"] is None
    assert "rule       never" in kvproxy("explain", "Hi", "--model", "secret-1", "--url", url).stdout


def test_rules_are_read_again_and_a_broken_file_changes_nothing(proxy: tuple[str, Services]) -> None:
    url, services = proxy
    file = services.settings.data / "kvproxy.toml"
    file.write_text(FILE.replace("ttl = 60", "ttl = 70"))
    assert result("reload", url=url) == {"rules": 3}
    ask(url, "changed", x_team="sales")
    assert lifetime(services, "changed") == 70
    wrong, unknown = FILE.replace("ttl = 60", "ttl = -1"), FILE.replace("ttl = 60", "tll = 1")
    for broken, line in {wrong: 14, unknown: 14, f"{FILE}x = \n": 22}.items():
        file.write_text(broken)
        failed = kvproxy("reload", "--url", url)
        assert failed.returncode == 2
        assert f"line {line}" in failed.stderr
        checked = kvproxy("config", "check", "--data", file.parent)
        assert (checked.returncode, f"line {line}" in checked.stderr) == (2, True)
    ask(url, "unchanged", x_team="sales")
    assert lifetime(services, "unchanged") == 70
    file.write_text(FILE)
    assert result("config", "check", "--data", file.parent) == {"rules": ["never", "short", "long"]}


def test_sighup_reads_them_again(upstream: str, tmp_path: Path) -> None:
    with process(tmp_path, upstream, 0.0) as (url, run):
        file = tmp_path / "kvproxy.toml"
        before = file.read_text()
        file.write_text(f"{before}[[rules]]\nname = 'off'\ncache = 'maybe'\n")
        run.send_signal(signal.SIGHUP)
        assert "stored" in ask(url, "one").headers["cache-status"]
        file.write_text(f"{before}[[rules]]\nname = 'off'\ncache = false\n")
        run.send_signal(signal.SIGHUP)
        until(lambda: ask(url, "one").headers["cache-status"] == "kvproxy; fwd=request")


def test_a_rule_can_only_make_similar_questions_stricter(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        "[[rules]]\nname = 'a'\nsimilarity = 0.9\nmax_error = 0.01\nsemantic = false\n"
    )
    rules = Rules(load_settings(data=tmp_path))
    headers = {"cache-control": "similarity=0.95, max-error=0.5, level=0.7"}
    control = rules.apply(api_request({"model": "m"}, headers=headers)).control
    assert (control.limits.similarity, control.limits.max_error, control.limits.level) == (0.95, 0.01, 0.7)
    assert not control.ruled.semantic


TEXT = st.sampled_from(["m", "m1", "x", "client:m", ""])
PATTERN = st.none() | st.sampled_from(["m", "m*", "*", "client:*", "?"])


@given(PATTERN, PATTERN, TEXT, TEXT)
def test_all_that_a_rule_names_must_match(model: str | None, tenant: str | None, asked: str, who: str) -> None:
    from fnmatch import fnmatchcase

    rule = RuleSettings(name="r", model=model, tenant=tenant)
    request = api_request({"model": asked}, tenant=who)
    wanted = (model is None or fnmatchcase(asked, model)) and (
        tenant is None or fnmatchcase(who, tenant) or fnmatchcase(who.removeprefix("client:"), tenant)
    )
    assert matches(rule, request) == wanted


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("rules", 1, "ttl"), 14),
        (("rules", 2, "name"), 18),
        (("rules", 1, "colour"), 11),
        (("cache", "ttl"), 4),
        (("port",), None),
    ],
)
def test_lines_of_settings(place: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(FILE, place) == line


def test_an_error_in_a_flag_names_no_line(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("port = 1\n")
    with pytest.raises(SettingsError) as raised:
        load_settings(data=tmp_path, port=-1)
    assert "line" not in raised.value.message


def test_the_file_of_init_says_every_setting_and_sets_none(tmp_path: Path) -> None:
    plain = load_settings(data=tmp_path)
    file = Path(result("init", "--data", tmp_path)["file"])
    assert load_settings(data=tmp_path) == plain
    text, tables = file.read_text().split("# [[clients]]")
    # What has a default is good when it is put in force, and changes nothing.
    settings = re.sub(r"^#(?=\w+ = )", "", text, flags=re.M)
    file.write_text(settings)
    assert settings.count("\nttl = ") == 1
    assert load_settings(data=tmp_path) == plain
    assert "# [[rules]]" in tables
    assert kvproxy("init", "--data", tmp_path).returncode == 2
