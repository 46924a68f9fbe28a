"""Rules: the first that matches holds, they change without a restart, and a broken file changes nothing."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.flow.prepare.rules import Rules, rule_matches
from kvproxy.http.services import Services
from kvproxy.index.entry import Entry
from kvproxy.settings import load_settings
from kvproxy.settings.rules import RuleSettings
from tests.commands.run import kvproxy, result
from tests.plain_upstream import run_plain_upstream
from tests.requests import api_request, post
from tests.servers import run_proxy, until_stored

EDITS = (
    "edits = [{ name = 'date', action = 'strip', pattern = '(\\d{4}-\\d\\d-\\d\\d)', role = 'user' }, "
    "{ name = 'noise', action = 'strip', pattern = '(#+)', role = 'user' }]"
)
FILE = f"""{EDITS}
[cache]
semantic = false
ttl = 5000

[[rules]]
name = "never"
model = "secret-*"
cache = false

[[rules]]
name = "short"
headers = {{ x-team = "sales*" }}
ttl = 60
tags = ["sales"]

[[rules]]
name = "long"
path = "/v1/chat/*"
tag = "docs"
ttl = 90000

[[rules]]
name = "ours"
headers = {{ x-team = "ours" }}
ignore = ["seed", "vendor.run"]
key_headers = ["X-Region"]
key_fields = ["metadata.project"]
ttl = 7
stale_while_revalidate = 8
stale_if_error = 9
journal_text = "all"
edits = ["date"]

[journal]
text = "beginning"
"""
Proxy = tuple[str, Services]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with run_plain_upstream() as url:
        yield url


@pytest.fixture(scope="module")
def proxy(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    data: Path = tmp_path_factory.mktemp("rules")
    (data / "kvproxy.toml").write_text(FILE)
    with run_proxy(load_settings(data=data, upstream=upstream)) as running:
        yield running


def stored(services: Services, question: str) -> Entry:
    until_stored(services)
    (entry,) = [entry for entry in services.cache.store.list_entries() if entry.prompt == question]
    return entry


def lifetime(services: Services, question: str) -> int:
    entry = stored(services, question)
    return round(entry.expires - entry.created)


SECRET = {"model": "secret-1"}


def test_a_rule_sets_what_holds_for_its_requests_alone(proxy: Proxy) -> None:
    url, services = proxy
    for _ in range(2):
        assert (
            post(url, fields=SECRET).headers["cache-status"] == 'kvproxy; fwd=bypass; detail="not stored: rule never"'
        )
    assert services.journal.latest(1)[0].reason == "bypass-rule"
    post(url, "usual")
    post(url, "sales", x_team="sales-2")
    post(url, "docs", x_kvproxy_tags="docs")
    post(url, "less", x_kvproxy_tags="docs", x_kvproxy_ttl="7")
    assert [lifetime(services, each) for each in ("usual", "sales", "docs", "less")] == [5000, 60, 90_000, 7]
    (tagged,) = httpx.get(f"{url}/admin/cache", params={"tag": "sales"}).json()
    assert tagged["prompt"] == "sales"
    told = post(url, fields=SECRET, path="/admin/explain").json()
    assert (told["rule"], told["semantic"]["reason"]) == ("never", "the rule never takes no stored answer")
    assert post(url, path="/admin/explain").json()["rule"] is None
    body = b'{"model": "secret-1", "messages": [{"role": "user", "content": "Hi"}]}'
    assert "rule       never" in kvproxy("explain", "--file", "-", url=url, stdin=body).stdout


def test_rules_are_read_again_and_a_broken_file_changes_nothing(proxy: Proxy) -> None:
    url, services = proxy
    file = services.settings.data / "kvproxy.toml"
    file.write_text(FILE.replace("ttl = 60", "ttl = 70"))
    assert result("reload", "--data", file.parent, url=url)["rules"] == 4
    post(url, "changed", x_team="sales")
    assert lifetime(services, "changed") == 70
    wrong, unknown = FILE.replace("ttl = 60", "ttl = -1"), FILE.replace("ttl = 60", "tll = 1")
    for broken, line in {wrong: 14, unknown: 14, f"{FILE}x = \n": FILE.count("\n") + 1}.items():
        file.write_text(broken)
        for command in (("reload", "--url", url), ("config", "check", "--data", file.parent)):
            failed = kvproxy(*command)
            assert (failed.returncode, f"line {line}" in failed.stderr) == (2, True)
    post(url, "unchanged", x_team="sales")
    assert lifetime(services, "unchanged") == 70
    file.write_text(FILE)
    assert result("config", "check", "--data", file.parent)["rules"] == ["never", "short", "long", "ours"]
    assert result("reload", url=url)["rules"] == 4


def test_a_rule_sets_stale_times_and_what_the_journal_keeps(proxy: Proxy) -> None:
    url, services = proxy
    long = f"a question of many {'words ' * 60}"
    post(url, f"{long}ours", x_team="ours")
    post(url, f"{long}theirs")
    entry = stored(services, f"{long}ours")
    assert (lifetime(services, entry.prompt), entry.stale_while_revalidate, entry.stale_if_error) == (7, 8, 9)
    services.journal.latest(1)
    with closing(sqlite3.connect(services.settings.data / "journal.db")) as journal, journal:
        kept = journal.execute("select whole from prompts where text like 'a question%' order by number").fetchall()
    assert [whole is not None for (whole,) in kept] == [True, False]


def test_a_rule_says_which_edits_are_made(proxy: Proxy) -> None:
    url, services = proxy
    post(url, "on 2026-11-20 ##", x_team="ours")
    post(url, "on 2026-11-20 ##")
    assert stored(services, "on  ##").tags == ("edit:date",)
    assert stored(services, "on  ").tags == ("edit:date", "edit:noise")


def test_a_rule_decides_how_similar_questions_are_judged(upstream: str, tmp_path: Path) -> None:
    one = "How do I open a port in the firewall of my server?"
    other = "How can I open a port in the firewall of my server?"
    theirs = {"name": "cosine", "headers": {"x-team": "theirs"}, "policy": "threshold", "min_similarity": 0.9999}
    ours = {"name": "checked", "headers": {"x-team": "ours"}, "policy": "checked", "min_probability": 0.9}
    settings = load_settings(data=tmp_path, upstream=upstream, rules=[theirs, ours], cache={"judge": "none"})
    with run_proxy(settings) as (url, _):
        post(url, one, cache_control="confirm")
        told = post(url, other, path="/admin/explain", x_team="ours").json()["semantic"]
        assert (told["policy"], told["min_probability"], told["max_error"]) == ("checked", 0.9, None)
        told = post(url, other, path="/admin/explain", x_team="theirs").json()["semantic"]
        assert (told["policy"], told["min_similarity"]) == ("threshold", 0.9999)
        assert told["neighbours"][0]["verdict"] == "low similarity"
        assert told["neighbours"][0]["score"] is None
        assert "semantic" in post(url, other, x_team="ours").headers["cache-status"]
        assert "hit" not in post(url, other + " ", x_team="theirs").headers["cache-status"]


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


@pytest.mark.parametrize(
    ("model", "tenant", "expected"),
    [(None, None, True), ("x", None, False), ("m*", "client:*", True), ("m*", "ann", True), ("m*", "bob", False)],
)
def test_all_that_a_rule_names_must_match(model: str | None, tenant: str | None, expected: bool) -> None:
    request = api_request({"model": "m1"}, tenant="client:ann")
    assert rule_matches(RuleSettings(name="r", model=model, tenant=tenant), request) == expected


def test_the_file_of_init_says_every_setting_and_sets_none(tmp_path: Path) -> None:
    plain = load_settings(data=tmp_path)
    file = Path(result("init", "--data", tmp_path)["file"])
    assert load_settings(data=tmp_path) == plain
    assert "](" not in file.read_text(), "a comment has a link of Markdown"
    assert "see logs (docs/logs.md#changes-on-the-way)." in file.read_text()
    text, tables = file.read_text().split("# [[clients]]")
    # Each setting with a default is valid without its comment sign, and changes nothing.
    settings = re.sub(r"^#(?=\w+ = )", "", text, flags=re.M)
    file.write_text(settings)
    assert settings.count("\nttl = ") == 1
    assert load_settings(data=tmp_path) == plain
    assert "# [[rules]]" in tables
    assert kvproxy("init", "--data", tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ("policy = 'learned'", "requires cache.policy"),
        ("edits = ['none']", "there is no edit 'none'"),
        ("ignore = ['messages']", "messages is a part of the question"),
        ("key_headers = ['Authorization']", "identifies the tenant"),
        ("stale_if_error = -1", "greater than or equal"),
        ("journal_text = 'some'", "'beginning' or 'all'"),
    ],
)
def test_what_a_rule_cannot_set_is_refused_with_its_line(tmp_path: Path, sets: str, why: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(f"[cache]\npolicy = 'checked'\n\n[[rules]]\nname = 'r'\n{sets}\n")
    with pytest.raises(SettingsError, match=why) as raised:
        load_settings(data=tmp_path)
    assert "line 6" in raised.value.message


def test_the_project_of_the_header_has_precedence_over_that_of_a_rule(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, rules=[{"name": "all", "tags": ["x", "project:frankp"]}])
    rules = Rules(settings)
    tagged = rules.apply(api_request({"model": "m"}, headers={"x-kvproxy-tags": "b,project:red,project:blue"}))
    assert tagged.control.tags == ("project:red", "b", "project:blue", "project:frankp", "x")
    assert rules.apply(api_request({"model": "m"})).control.tags[0] == "project:frankp"


def test_shadow_mode_holds_for_the_requests_of_a_rule(tmp_path: Path) -> None:
    rule = RuleSettings(name="trial", headers={"x-team": "trial"}, shadow=True)
    with run_plain_upstream() as upstream:
        settings = load_settings(
            data=tmp_path,
            upstream=upstream,
            cache={"policy": "threshold", "min_similarity": 0.85, "lookup_timeout": 60},
            rules=[rule.model_dump(exclude_unset=True)],
        )
        with run_proxy(settings) as (url, services):

            def status(question: str, team: str) -> str:
                body = {"model": "plain", "messages": [{"role": "user", "content": question}]}
                headers = {"x-team": team, "cache-control": "confirm"}
                answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers)
                until_stored(services)
                return answer.headers["cache-status"]

            assert "uri-miss" in status("How do I reset my password?", "trial")
            assert result("explain", "How can I reset my password?", "--model", "plain", url=url)["layer"] == "semantic"
            given = ("--model", "plain", "--header", "x-team: trial")
            found = result("explain", "How can I reset my password?", *given, url=url)
            assert (found["layer"], found["semantic"]["shadow"]) == ("none", True)
            shown = kvproxy("explain", "How can I reset my password?", *given, url=url).stdout
            assert "what it would reuse is unknown" in shown
            assert "compute all" not in shown
            assert "uri-miss" in status("How can I reset my password?", "trial")
            services.journal.latest(1)
            (record,) = [
                json.loads(line)
                for line in kvproxy("log", "--reason", "shadow", "--json", url=url).stdout.split("\n")
                if line
            ]
            assert record["stored_question"] == "How do I reset my password?"
            # The response to an equal request needs no neighbours.
            equal = kvproxy("explain", "How do I reset my password?", "--model", "plain", url=url).stdout
            assert "an identical request is stored" in equal
            assert "similarity" not in equal.lower().split("policy")[-1].split("\n", 1)[-1]
            assert "semantic" in status("How could I reset my password?", "sales")
