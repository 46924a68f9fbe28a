"""Rules: the first that matches holds, they change without a restart, and a broken file changes nothing."""

import asyncio
import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kvproxy.errors import SettingsError
from kvproxy.http.services import Services
from kvproxy.rules import Rules, matches
from kvproxy.settings import load_settings
from kvproxy.settings.rules import RuleSettings
from kvproxy.settings.toml_lines import line_of
from tests.commands.run import kvproxy, result
from tests.http.test_upstream import PARTS
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.requests import api_request
from tests.servers import run_app, run_proxy, until_stored

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
    with run_plain_upstream() as url:
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
    until_stored(services)
    (entry,) = [entry for entry in services.answerer.store.list_entries() if entry.prompt == question]
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
    body = b'{"model": "secret-1", "messages": [{"role": "user", "content": "Hi"}]}'
    assert "rule       never" in kvproxy("explain", "--file", "-", url=url, stdin=body).stdout


def test_rules_are_read_again_and_a_broken_file_changes_nothing(proxy: tuple[str, Services]) -> None:
    url, services = proxy
    file = services.settings.data / "kvproxy.toml"
    file.write_text(FILE.replace("ttl = 60", "ttl = 70"))
    assert result("reload", url=url) == {"rules": 3, "restart": []}
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


def test_a_rule_can_only_make_similar_questions_stricter(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        "[[rules]]\nname = 'a'\nmin_similarity = 0.9\nmax_error = 0.01\nsemantic = false\n"
    )
    rules = Rules(load_settings(data=tmp_path))
    headers = {"cache-control": "min-similarity=0.95, max-error=0.5, min-probability=0.7"}
    control = rules.apply(api_request({"model": "m"}, headers=headers)).control
    assert (control.limits.min_similarity, control.limits.max_error, control.limits.min_probability) == (
        0.95,
        0.01,
        0.7,
    )
    assert control.rule.semantic is False


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


def rule(**sets: object) -> dict[str, object]:
    return {"name": "r", "headers": {"x-team": "ours"}} | sets


@contextlib.contextmanager
def ruled(tmp_path: Path, upstream: str, *rules: dict[str, object], **more: object) -> Iterator[tuple[str, Services]]:
    cache = {"judge": "none", "ttl": 5000} | more.pop("cache", {})  # type: ignore[operator]
    with run_proxy(load_settings(data=tmp_path, upstream=upstream, rules=rules, cache=cache, **more)) as running:
        yield running


def chat(url: str, body: dict[str, object], **headers: str) -> str:
    named = {"cache-control": "confirm"} | {name.replace("_", "-"): value for name, value in headers.items()}
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=question | body, headers=named).raise_for_status()
    return "hit" if "; hit" in answer.headers["cache-status"] else "miss"


def test_a_rule_says_which_fields_and_headers_make_a_key(upstream: str, tmp_path: Path) -> None:
    sets = rule(ignore=["seed", "vendor.run"], key_headers=["X-Region"], key_fields=["metadata.project"])
    with ruled(tmp_path, upstream, sets, cache={"semantic": False}) as (url, services):
        ours = {"x_team": "ours"}
        assert chat(url, {"seed": 1, "vendor": {"run": 1, "kind": "a"}}, **ours) == "miss"
        assert chat(url, {"seed": 2, "vendor": {"run": 2, "kind": "a"}}, **ours) == "hit"
        assert chat(url, {"vendor": {"kind": "a"}}, **ours) == "hit"
        assert chat(url, {"seed": 1, "vendor": {"run": 1, "kind": "b"}}, **ours) == "miss"
        assert chat(url, {}, x_region="eu-secret", **ours) == "miss"
        assert chat(url, {}, x_region="us", **ours) == "miss"
        assert chat(url, {}, x_region="us", **ours) == "hit"
        assert chat(url, {"metadata": {"project": "a"}}, **ours) == "miss"
        assert chat(url, {"metadata": {"project": "a", "other": 1}}, **ours) == "hit"
        assert chat(url, {"metadata": {"project": "b"}}, **ours) == "miss"
        # Without the rule, such fields make a key and such headers none.
        assert chat(url, {"seed": 3}) == "miss"
        assert chat(url, {"seed": 4}) == "miss"
        assert chat(url, {"seed": 4}, x_region="us") == "hit"
        services.answerer.journal.latest(1)
    # A header of a key may be secret: it stands nowhere in clear.
    assert b"eu-secret" not in b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


def test_a_rule_decides_how_similar_questions_are_judged(upstream: str, tmp_path: Path) -> None:
    one = "How do I open a port in the firewall of my server?"
    other = "How can I open a port in the firewall of my server?"
    strict = rule(name="cosine", headers={"x-team": "theirs"}, policy="threshold", min_similarity=0.9999)
    loose = rule(name="checked", policy="checked", min_probability=0.9)
    with ruled(tmp_path, upstream, loose, strict) as (url, _):
        ask(url, one, cache_control="confirm")
        told = ask(url, other, path="admin/explain", x_team="ours").json()["semantic"]
        assert (told["policy"], told["min_probability"], told["max_error"]) == ("checked", 0.9, None)
        told = ask(url, other, path="admin/explain", x_team="theirs").json()["semantic"]
        assert (told["policy"], told["min_similarity"]) == ("threshold", 0.9999)
        assert told["neighbours"][0]["verdict"] == "low similarity"
        assert told["neighbours"][0]["score"] is None
        assert "semantic" in ask(url, other, x_team="ours").headers["cache-status"]
        assert "hit" not in ask(url, other + " ", x_team="theirs").headers["cache-status"]


def test_a_rule_sets_stale_times_and_what_the_journal_keeps(upstream: str, tmp_path: Path) -> None:
    sets = rule(ttl=7, stale_while_revalidate=8, stale_if_error=9, journal_text="all")
    with ruled(tmp_path, upstream, sets, journal={"text": "beginning"}) as (url, services):
        long = f"a question of many {'words ' * 60}"
        ask(url, f"{long} ours", x_team="ours")
        ask(url, f"{long} theirs")
        (entry,) = [each for each in services.answerer.store.list_entries() if each.prompt.endswith("ours")]
        times = (round(entry.expires - entry.created), entry.stale_while_revalidate, entry.stale_if_error)
        assert times == (7, 8, 9)
        services.answerer.journal.latest(1)
        with sqlite3.connect(tmp_path / "journal.db") as journal:
            kept = journal.execute("select text, whole from prompts order by number").fetchall()
    assert [(text.startswith("a question"), whole is not None) for text, whole in kept] == [(True, True), (True, False)]


def test_a_rule_says_which_edits_are_made(upstream: str, tmp_path: Path) -> None:
    edits = [
        {"name": "date", "action": "strip", "pattern": r"(\d{4}-\d\d-\d\d)", "role": "user"},
        {"name": "noise", "action": "strip", "pattern": "(#+)", "role": "user"},
    ]
    with ruled(tmp_path, upstream, rule(edits=["date"]), edits=edits, cache={"semantic": False}) as (url, services):
        ask(url, "on 2026-11-20 ##", x_team="ours")
        ask(url, "on 2026-11-20 ##")
        until_stored(services)
        assert {entry.prompt: entry.tags for entry in services.answerer.store.list_entries()} == {
            "on  ##": ("edit:date",),
            "on  ": ("edit:date", "edit:noise"),
        }


@pytest.mark.parametrize(
    ("sets", "line", "why"),
    [
        ("policy = 'learned'", 6, "requires cache.policy"),
        ("edits = ['none']", 6, "there is no edit 'none'"),
        ("ignore = ['messages']", 6, "messages is a part of the question"),
        ("key_headers = ['Authorization']", 6, "identifies the tenant"),
        ("stale_if_error = -1", 6, "greater than or equal"),
        ("journal_text = 'some'", 6, "'beginning' or 'all'"),
    ],
)
def test_what_a_rule_cannot_set_is_refused_with_its_line(tmp_path: Path, sets: str, line: int, why: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(f"[cache]\npolicy = 'checked'\n\n[[rules]]\nname = 'r'\n{sets}\n")
    with pytest.raises(SettingsError, match=why) as raised:
        load_settings(data=tmp_path)
    assert f"line {line}" in raised.value.message


def test_a_reload_harms_no_stream_under_way_and_holds_for_the_next_request(tmp_path: Path) -> None:
    go = threading.Event()
    parts = [b"data: " + json.dumps(part).encode() + b"\n\n" for part in PARTS] + [b"data: [DONE]\n\n"]

    async def slow(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield parts[0]
            await asyncio.to_thread(go.wait, 20)
            for part in parts[1:]:
                yield part

        return StreamingResponse(events(), media_type="text/event-stream")

    file = tmp_path / "kvproxy.toml"
    file.write_text("[[rules]]\nname = 'long'\nttl = 70000\n")
    app = Starlette(routes=[Route("/v1/chat/completions", slow, methods=["POST"])])
    with run_app(app) as upstream, run_proxy(load_settings(data=tmp_path, upstream=upstream)) as (url, services):
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "one"}]}
        with httpx.Client(base_url=url) as client:
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                chunks = answer.iter_raw()
                begun = next(chunks)
                file.write_text("[[rules]]\nname = 'never'\ncache = false\n")
                assert result("reload", url=url) == {"rules": 1, "restart": []}
                go.set()
                assert b"".join([begun, *chunks]) == b"".join(parts)
            # What was under way keeps its rule; the next request has the new one.
            until(lambda: lifetime(services, "one") == 70_000)
            again = client.post("/v1/chat/completions", json=body)
    assert again.headers["cache-status"] == "kvproxy; fwd=request"
