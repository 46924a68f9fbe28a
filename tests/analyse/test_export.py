"""Exports of the journal give the figures of the journal when they are read back."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.request_log import read_log
from kvproxy.analyse.simulate.pool_simulation import lru_hits
from kvproxy.analyse.transcripts import read_transcripts
from kvproxy.analyse.workload_reader import read_workload
from kvproxy.settings.journal import PriceSettings
from tests.analyse import logs
from tests.commands.run import kvproxy, result
from tests.journal.sessions.requests import Sessions, assistant, provider, request, user

SIZES = [8, 20, 40, None]
NUMBERS = ("layer", "prompt_tokens", "completion_tokens", "cost")


def journal(folder: Path) -> Path:
    """Two sessions under one system prompt, whose prompts have 700 and 1,300, and 620 and 1,300 tokens."""
    sessions = Sessions(str(folder / "journal.db"))
    system = {"role": "system", "content": logs.words("secret system", 300)}
    for number, first in enumerate((700, 620)):
        question, answer = user(logs.words(number, 60)), assistant("Done.")
        sessions.add(request([system, question], first, 0, 100 * number, answer=answer))
        messages = [system, question, answer, user(logs.words((number, 2), 200))]
        sessions.add(request(messages, 1_300, first - 4, 100 * number + 10))
    sessions.close()
    return Path(sessions.place)


@pytest.mark.parametrize("format", ["mooncake", "weka"])
@pytest.mark.parametrize("block_size", [16, 64])
def test_a_trace_has_the_hits_of_the_journal_and_no_text(tmp_path: Path, format: str, block_size: int) -> None:
    place = journal(tmp_path)
    file = tmp_path / f"trace.{'json' if format == 'weka' else 'jsonl'}"
    options = ("--format", format, "--block-size", block_size, "--data", tmp_path)
    exported = result("log", "export", file, *options)
    assert (exported["requests"], exported["tokens"]) == (4, 3_920)
    before, after = read_workload(place, block_size=block_size), read_workload(file)
    assert after.block_tokens == block_size
    assert lru_hits(after.chains, SIZES) == lru_hits(before.chains, SIZES)
    assert [each.tokens for each in after.arrivals] == [700, 1_300, 620, 1_300]
    assert [each.output for each in after.arrivals] == [10] * 4
    assert [each.seconds for each in after.arrivals] == pytest.approx([0, 10, 100, 110])
    text = file.read_text()
    assert not any(word in text for word in ("secret", "system", "public", "17900", '"m"'))
    whole = json.loads(text) if format == "weka" else [json.loads(line) for line in text.splitlines()]
    ids = [row["hash_ids"] for row in _requests(whole)]
    # As in the published trace: consecutive ids, and one for the incomplete last block.
    assert len(ids[0]) == -(-700 // block_size)
    assert sorted({id for each in ids for id in each}) == list(range(max(map(max, ids)) + 1))


def _requests(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, list):
        return document
    return [request for agent in document["requests"] for request in agent["requests"]]


def test_the_sessions_of_the_journal_are_the_agents_of_a_trace_of_weka(tmp_path: Path) -> None:
    journal(tmp_path)
    kvproxy("log", "export", tmp_path / "trace.json", "--format", "weka", "--data", tmp_path)
    for stdout in ((), ("-",)):
        piped = kvproxy("log", "export", *stdout, "--format", "weka", "--data", tmp_path)
        assert piped.stdout == (tmp_path / "trace.json").read_text()
        assert "on stdout" in piped.stderr
    traces = read_transcripts([tmp_path / "trace.json"]).traces
    assert [(len(each.requests), each.block_size) for each in traces] == [(2, 64), (2, 64)]


def test_exported_requests_have_the_layers_of_the_live_proxy(tmp_path: Path) -> None:
    prices = "[journal.prices.'*']\ninput = 3\noutput = 15\n"
    (tmp_path / "kvproxy.toml").write_text(f'[journal]\ntext = "all"\n[cache]\nsemantic = false\n{prices}')
    lines = logs.agents(2, 3)
    live = logs.live_layers(lines, tmp_path)
    file = tmp_path / "requests.jsonl"
    exported = result("log", "export", file, "--format", "requests", "--data", tmp_path)
    assert (exported["requests"], exported["without_text"]) == (len(lines), 0)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    shown = [json.loads(line) for line in kvproxy("log", "--json", "--data", tmp_path).stdout.splitlines()]
    for name, field in (("cached_tokens", "reused_tokens"), *((name, name) for name in NUMBERS)):
        assert {row["custom_id"]: row[name] for row in rows} == {row["request_id"]: row[field] for row in shown}
    assert {row["cost"] == 0 for row in rows if row["layer"] == "exact"} == {True}
    assert all(row["cost"] > 0 for row in rows if row["layer"] == "forward")
    log = read_log(file, file.read_text(), "m")
    assert log.format == "requests of kvproxy log export"
    assert [each.body["messages"] for each in log.requests] == [each["body"]["messages"] for each in lines]
    counted = {each.line: each.usage.prompt_tokens for each in log.requests if each.usage is not None}
    assert counted == {at: row["prompt_tokens"] for at, row in enumerate(rows, 1) if row["layer"] == "forward"}
    sessions = result("lint", file, "--sessions", "--data", tmp_path)["sessions"]
    assert sum(session["prompt_tokens"] for session in sessions) == sum(counted.values())
    found = result("estimate", file, "--data", tmp_path)
    assert (found["exact"], found["forwarded"]) == (live["exact"], live["forward"])
    assert (live["exact"] > 0, found["service_tiers"]) == (True, [])


def test_a_bill_of_exported_requests_equals_the_bill_of_the_journal(tmp_path: Path) -> None:
    """Written tokens are counted, hits are not, and the groups are projects and numbered clients."""
    prices = {"input": 3, "cached": 0.3, "write_5m": 3.75, "write_1h": 6, "output": 15}
    lines = [f"{name} = {price}\n" for name, price in prices.items()]
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.m]\n" + "".join(lines))
    sessions = Sessions(str(tmp_path / "journal.db"), "all", m=PriceSettings.model_validate(prices))
    for number, (tenant, project) in enumerate((("client:ann", "shop"), ("client:ben", "blog"))):
        question = [user(logs.words(number, 60))]
        tags = {"x-kvproxy-tags": f"project:{project}"}
        common = {"tenant": tenant, "headers": tags, **provider()}
        paid = request(question, 5_000 + number, 1_000, number, written=(2_000, 1_000), **common)
        sessions.add(paid, request(question, 5_000 + number, None, number + 10, **{**common, "layer": "exact"}))
    sessions.close()
    file = tmp_path / "requests.jsonl"
    result("log", "export", file, "--format", "requests", "--data", tmp_path)
    columns = ("requests", "input_tokens", "reused_tokens", "written_tokens", "output_tokens", "cost", "unreported")

    def bill(*command: object) -> dict[str, list[float]]:
        found = result(*command, "--data", tmp_path)
        return {row["name"]: [row[name] for name in columns] for row in (*found["rows"], found["total"])}

    recorded = {name: pytest.approx(row) for name, row in bill("sessions", "--by", "project").items()}
    assert recorded["shop"] == [1, 5_000, 1_000, 3_000, 10, (1_000 * 3 + 300 + 2_000 * 3.75 + 6_000 + 150) / 1e6, 0]
    assert bill("estimate", file, "--sessions", "--by", "project") == recorded
    assert set(bill("estimate", file, "--sessions", "--by", "client")) == {"tenant-1", "tenant-2", "all"}


def test_exported_requests_keep_namespaces_and_sessions_apart(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), "all")
    names = ("one", "two", "one", "")
    for number, name in enumerate(names):
        headers = {"x-kvproxy-namespace": name, "x-claude-code-session-id": f"of {name}"} if name else {}
        sessions.add(request([user(logs.words(1, 60))], 100, 0, number, headers=headers))
    sessions.close()
    file = tmp_path / "requests.jsonl"
    result("log", "export", file, "--format", "requests", "--data", tmp_path)
    rows = [json.loads(line).get("headers", {}) for line in file.read_text().splitlines()]
    assert [row.get("x-kvproxy-namespace") for row in rows] == ["namespace-1", "namespace-2", "namespace-1", None]
    assert [row.get("x-session-id") for row in rows] == ["of one", "of two", "of one", None]
    found = result("estimate", file, "--data", tmp_path)
    assert (found["exact"], found["forwarded"]) == (1, 3)
    (recorded, exported) = (
        result(*command, "--data", tmp_path) for command in (("sessions",), ("lint", file, "--sessions"))
    )
    assert len(exported["sessions"]) == len(recorded)


def test_the_advice_for_exported_requests_is_that_of_the_journal(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.m]\ninput = 3\ncached = 0.3\noutput = 15\n")
    sessions = Sessions(str(tmp_path / "journal.db"), "all")
    question, answer = user(logs.words(1, 300)), assistant("Done.")
    system, changed = ({"role": "system", "content": f"{day} {logs.words(2, 300)}"} for day in ("Monday", "Tuesday"))
    sessions.add(request([system, question], 5_000, 0, 0, answer=answer, **provider()))
    sessions.add(request([changed, question, answer, user("Why?")], 5_100, 0, 60, **provider()))
    sessions.close()
    file = tmp_path / "requests.jsonl"
    result("log", "export", file, "--format", "requests", "--data", tmp_path)
    (advice,) = result("savings", "--advice", "--data", tmp_path)["rows"]
    assert (advice["cause"], advice["lost_cost"] > 0) == ("changed", True)
    for command in ("lint", "estimate"):
        done = kvproxy(command, file, "--sessions", "--data", tmp_path)
        assert advice["remedy"] in done.stdout
        assert result(command, file, "--sessions", "--data", tmp_path)["advice"] == [advice]


def test_the_losses_of_exported_requests_have_the_causes_of_the_journal(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), "all")
    system = {"role": "system", "content": logs.words(1, 300)}
    # The answer to the first request begins after a second, and ends after ten.
    for number, at in enumerate((0, 0.5, 5)):
        made = request([system, user(f"Question {number}")], 5_000, 0, at, **provider())
        made.ended = made.started + 10.0
        sessions.add(made)
    sessions.close()
    file = tmp_path / "requests.jsonl"
    result("log", "export", file, "--format", "requests", "--data", tmp_path)
    rows = result("savings", "--ledger", "--data", tmp_path)["rows"]
    recorded = {row["result"]: row["tokens"] for row in rows if row["tokens"]}
    assert recorded["concurrent"] == pytest.approx(recorded["evicted"])
    exported = result("lint", file, "--sessions", "--data", tmp_path)["ledger"]
    assert {row["result"]: row["tokens"] for row in exported["rows"] if row["tokens"]} == recorded


def test_a_journal_without_texts_exports_no_requests_and_says_so(tmp_path: Path) -> None:
    journal(tmp_path)
    done = kvproxy("log", "export", tmp_path / "requests.jsonl", "--format", "requests", "--data", tmp_path)
    assert "4 requests without a stored text left out (2 forward, 2 prefix): set journal.text to all\n" in done.stderr
    assert (tmp_path / "requests.jsonl").read_text() == ""


def test_an_export_says_that_semantic_hits_are_missing(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(*(request([user(logs.words(at, 60))], 100, None, at, layer="semantic") for at in range(2)))
    sessions.add(request([user(logs.words(2, 60))], 100, 0, 2))
    sessions.close()
    options = ("log", "export", tmp_path / "requests.jsonl", "--force", "--format", "requests", "--data", tmp_path)
    done = " ".join(kvproxy(*options).stderr.split())
    assert "3 requests without a stored text left out (2 semantic, 1 " in done
    assert "without the semantic hits, estimate counts too few hits" in done
    found = result(*options)
    assert (found["without_text"], found["without_text_by_layer"]["semantic"]) == (3, 2)
