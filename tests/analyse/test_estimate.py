"""Estimates equal the results of a live proxy."""

import asyncio
import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from kvproxy.analyse.estimate import Estimate, estimate
from kvproxy.analyse.log_formats.log_format import LoggedRequest
from kvproxy.analyse.log_replay import replay
from kvproxy.analyse.request_log import read_log
from kvproxy.blocks.divergence import reusable_tokens
from kvproxy.commands.formatting import amount_text
from kvproxy.errors import InvalidRequest, SettingsError
from kvproxy.journal.sessions.ledger import BLOCK
from kvproxy.settings import load_settings
from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer
from tests.analyse import logs
from tests.commands.run import NOWHERE, kvproxy, result
from tests.servers import run_proxy

REWORDINGS = Path(__file__).parents[1] / "index" / "data" / "rewordings.jsonl"


def logged(lines: list[logs.Line]) -> list[LoggedRequest]:
    return read_log(Path("log"), "".join(json.dumps(each) + "\n" for each in lines), "m").requests


def estimated(lines: list[logs.Line], data: Path, sizes: list[int], draws: int = 1) -> Estimate:
    return asyncio.run(
        estimate(logged(lines), load_settings(data=data), LocalTokenizer("demo"), 16, sizes, draws=draws)
    )


def test_without_a_network_the_hub_is_not_asked_for_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    says = rf"\(it is not in the local cache, and {NOWHERE} cannot be reached\): correct --tokenizer"
    with pytest.raises(SettingsError, match=says):
        LocalTokenizer("nosuch/model")


def test_the_layers_equal_a_live_replay(tmp_path: Path) -> None:
    lines = logs.agents(4, 4) + [
        logs.line([{"role": "user", "content": text}], "Choose Reset in the settings.")
        for text in ("How do I reset my password?", "How can I reset my password?", "How do I reset my password?")
    ]
    found = estimated(lines, tmp_path / "one", [64])
    shown = logs.live_layers(lines, tmp_path / "two")
    assert (found.exact, found.semantic, found.forwarded) == (shown["exact"], shown["semantic"], shown["forward"])
    assert found.exact >= 2
    assert found.semantic == 1
    assert (found.wrong.compared, found.wrong.wrong) == (1, 0)


@pytest.fixture(scope="module")
def reworded() -> list[logs.Line]:
    """Questions and then their rewordings, so that the policy learns and explores."""
    rows = [json.loads(text) for text in REWORDINGS.read_text().splitlines()[:16]]
    pairs = [(row[name], f"The answer to: {row['a']}") for name in "ab" for row in rows]
    return [logs.line([{"role": "user", "content": asked}], answer) for asked, answer in pairs]


def test_several_draws_give_the_range_and_the_median(tmp_path: Path, reworded: list[logs.Line]) -> None:
    few = reworded[:4] + reworded[16:20]
    requests, settings = logged(few), load_settings(data=tmp_path)
    replays = [asyncio.run(replay(requests, settings, random_number=Random(draw).random)) for draw in range(2)]
    hits = sorted(sum(each.layer == "semantic" for each in one) for one in replays)
    found = estimated(few, tmp_path / "all", [64], draws=2)
    assert (found.semantic_range, found.semantic) == ((hits[0], hits[1]), hits[1])


def test_the_prefix_reuse_equals_a_live_replay(tmp_path: Path) -> None:
    pool = 40
    lines = [each | {"response": None} for each in logs.agents(4, 3)]
    found = estimated(lines, tmp_path, [pool]).prefix_alone
    ((reused, total),) = logs.live_prefix([lines], tmp_path / "live", pool)
    assert found.prompt_tokens == total
    assert found.share(found.points[0].reused) == pytest.approx(reused / total, abs=0.02)


def test_entries_age_by_the_times_of_the_log(tmp_path: Path) -> None:
    asked = logs.line([{"role": "user", "content": "Where is the log?"}], "In the data folder.")
    days = [asked | {"time": f"2026-11-{day:02d}T10:00:00+00:00"} for day in (1, 1, 20)]
    found = estimated(days, tmp_path, [16])
    assert (found.exact, found.forwarded) == (1, 2)


def test_the_directives_of_logged_requests_apply(tmp_path: Path) -> None:
    asked = logs.line([{"role": "user", "content": "Where is the log?"}], "In the data folder.")
    fresh = asked | {"headers": {"Cache-Control": "no-cache"}}
    litellm = asked | {"body": asked["body"] | {"cache": {"no-cache": True}}}
    unknown = asked | {"headers": {"x-kvproxy-other": "1"}}
    found = estimated([asked, asked, fresh, litellm, unknown], tmp_path, [16])
    assert (found.exact, found.forwarded) == (2, 3)


def test_hits_save_tokens_seconds_and_money(tmp_path: Path) -> None:
    same = logs.line([{"role": "user", "content": logs.words("question", 40)}], "In the data folder.")
    file = logs.write(tmp_path / "log.jsonl", [same, same, same])
    given = ("estimate", file, "--data", tmp_path, "--draws", "1")
    rates = ("--prefill-rate", "100", "--decode-rate", "10")
    found = json.loads(kvproxy(*given, *rates, "--price", "2,20,0.5", "--json").stdout)
    hits = found["exact_savings"]
    assert (hits["requests"], found["currency"]) == (2, "USD")
    prompt, response, cached = hits["prompt_tokens"], hits["response_tokens"], hits["cached_tokens"]
    assert prompt == 2 * found["prefix"]["prompt_tokens"]
    assert response > 0
    # An equal prompt is in the pool, apart from its last block.
    assert 0 < prompt - cached <= 2 * 16
    assert hits["seconds"] == pytest.approx((prompt - cached) / 100 + response / 10)
    assert hits["money"] == pytest.approx((2 * (prompt - cached) + 0.5 * cached + 20 * response) / 1e6)
    shown = kvproxy(*given, *rates, "--price", "2,20,0.5").stdout.splitlines()
    name, *figures = shown[2].split("\t")
    expected = [2, 2 / 3, prompt + response, cached, hits["seconds"], hits["money"]]
    assert (name, list(map(float, figures))) == ("Exact hits", pytest.approx(expected))
    assert any(line.startswith("cached anyway: prompt tokens of hits") for line in shown)
    bound = kvproxy(*given, "--price", "2,20", columns=200).stdout
    assert f"at most {amount_text((2 * prompt + 20 * response) / 1e6)}" in bound
    assert "no price of cached tokens is known" in bound
    assert json.loads(kvproxy(*given, "--json").stdout)["exact_savings"]["money"] is None
    for invalid in ("2", "nan,1", "inf,1", "2,-1"):
        assert "--price takes two to five numbers" in kvproxy(*given, "--price", invalid).stderr
    assert "--blocks takes integers" in kvproxy(*given, "--blocks", "many").stderr


def test_a_wrong_semantic_hit_saves_nothing(tmp_path: Path) -> None:
    answers = ("Choose Reset in the settings.", "Call 555 0100 on Monday; the line is open from 9 to 17.")
    asked = ("How do I reset my password?", "How can I reset my password?")
    lines = [logs.line([{"role": "user", "content": text}], each) for text, each in zip(asked, answers, strict=True)]
    log = logs.write(tmp_path / "log.jsonl", lines)
    given = ("estimate", log, "--data", tmp_path, "--price", "2,20,0.5")
    found = result(*given, "--by", "model")
    hits = found["semantic_savings"]
    assert (found["semantic"], found["wrong"]["wrong"]) == (hits["requests"], hits["wrong"]) == (1, 1)
    assert (hits["prompt_tokens"], hits["response_tokens"], hits["money"], hits["seconds"]) == (0, 0, 0.0, 0.0)
    (group,) = found["groups"]
    assert (group["semantic"], group["wrong"], group["saved_tokens"], group["money"]) == (1, 1, 0, 0.0)
    shown = kvproxy(*given).stdout
    assert "1 of 1 semantic hits differ from the logged response (100.0%, between" in shown
    assert "; these saved nothing\n" in shown


@pytest.mark.parametrize("block_size", [16, 64])
def test_savings_of_a_live_proxy_price_hits_as_the_estimate_of_its_log(block_size: int, tmp_path: Path) -> None:
    prices = '[journal.prices."demo"]\ninput = 3\ncached = 0.3\noutput = 15\n'
    (tmp_path / "kvproxy.toml").write_text(prices)
    system = {"role": "system", "content": logs.words("system", 60)}
    asked = [logs.line([system, {"role": "user", "content": f"What is a {word}?"}]) for word in ("block", "chain")]
    lines = [dict(each) for each in asked + asked + asked[:1]]
    settings = load_settings(data=tmp_path, engine={"num_blocks": 256, "block_size": block_size})
    with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=300) as client:
        for each in lines:
            each["response"] = client.post("/v1/chat/completions", json=each["body"]).raise_for_status().json()
    saved = json.loads(kvproxy("savings", "--json", "--data", tmp_path).stdout)
    (exact,) = (row for row in saved["rows"] if row["name"] == "exact")
    file = logs.write(tmp_path / "log.jsonl", lines)
    # With the logged responses, which report the reuse of the first requests, and without them.
    for log in (file, logs.write(tmp_path / "bodies.jsonl", [each | {"response": None} for each in lines])):
        given = ("estimate", log, "--data", tmp_path, "--block-size", block_size)
        hits = json.loads(kvproxy(*given, "--json").stdout)["exact_savings"]
        assert (
            (hits["requests"], hits["prompt_tokens"])
            == (exact["answered"], exact["prompt_tokens"])
            == (3, hits["prompt_tokens"])
        )
        assert hits["cached_tokens"] == exact["cached_tokens"] > 0.5 * hits["prompt_tokens"]
        if log == file:
            assert hits["money"] == pytest.approx(exact["money"])


def test_prefix_reuse_saves_money_too(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl.gz"
    lines = [{**each, "response": None} for each in logs.agents(3, 3)]
    file.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in lines).encode()))
    given = ("estimate", file, "--data", tmp_path, "--blocks", "200", "--price", "2,20,0.5")
    (point,) = json.loads(kvproxy(*given, "--json").stdout)["prefix"]["points"]
    assert (point["blocks"], point["reused"] > 0) == (200, True)
    assert point["money"] == pytest.approx(point["reused"] * 1.5 / 1e6)
    shown = kvproxy(*given).stdout
    assert f"\t{point['money']:.9f}".rstrip("0") + "\t" in shown
    assert "without a logged response: its response tokens are not in tokens, seconds, and money" in shown


def test_the_logged_usage_of_a_hit_counts(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 896}}
    choice = {"message": {"role": "assistant", "content": "In the data folder."}}
    asked = logs.line([{"role": "user", "content": "Where is the log?"}])
    with_usage = {**asked, "response": {"object": "chat.completion", "choices": [choice], "usage": usage}}
    found = estimated([asked, with_usage, with_usage], tmp_path, [16]).exact_savings
    assert (found.requests, found.prompt_tokens, found.response_tokens, found.cached_tokens) == (2, 2000, 400, 1792)


def test_two_counts_of_tokens_are_told_apart(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 20}
    choice = {"message": {"role": "assistant", "content": "In the data folder."}, "finish_reason": "stop"}
    asked = logs.line([{"role": "user", "content": logs.words("question", 40)}])
    with_usage = {**asked, "response": {"object": "chat.completion", "choices": [choice], "usage": usage}}
    file = logs.write(tmp_path / "log.jsonl", [with_usage, with_usage])
    given = ("estimate", file, "--data", tmp_path, "--draws", "1", "--price", "2,20,0.5")
    found = json.loads(kvproxy(*given, "--json").stdout)
    counted = found["prefix"]["prompt_tokens"]
    assert (found["exact_savings"]["prompt_tokens"], found["reported_tokens"]) == (1000, 1000)
    assert 0 < counted < 1000
    assert f"which counts {counted:,} where the responses report 1,000 (--tokenizer)" in kvproxy(*given).stdout
    # The second prompt reuses whole blocks of the first one; 1.5 USD is the discount of a million reported tokens.
    point = max(found["prefix_alone"]["points"], key=lambda point: point["reused"])
    assert found["token_scale"] == pytest.approx(1000 / counted)
    assert point["money"] == pytest.approx(point["reused"] * 1000 / counted * 1.5 / 1e6)
    assert point["reused"] > 0
    # Without usage, the tokenizer counts all tokens.
    plain = estimated([asked, asked], tmp_path, [16])
    assert (plain.reported_tokens, plain.prefix.prompt_tokens) == (None, counted)


def test_pools_save_no_money_below_the_minimum_of_the_provider(tmp_path: Path) -> None:
    def asked(words: int) -> list[logs.Line]:
        system = {"role": "system", "content": logs.words("system", words)}
        return [
            logs.line([system, {"role": "user", "content": f"question {number}"}], model="gpt-4o")
            for number in range(3)
        ]

    def report(name: str, lines: list[logs.Line]) -> tuple[dict[str, Any], str]:
        given = ("estimate", logs.write(tmp_path / name, lines), "--data", tmp_path)
        return json.loads(kvproxy(*given, "--json").stdout), kvproxy(*given).stdout

    short, text = report("short.jsonl", asked(40))
    assert 0 < short["prefix"]["unlimited"] < 3 * 1_024
    assert {point["money"] for point in short["prefix"]["points"]} == {0.0}
    assert text.splitlines()[-1].startswith("money of pools excludes reused prefixes below the provider's minimum")
    assert [line.split("\t")[3] for line in text.splitlines() if line.startswith("unlimited")] == ["0"]
    # Claude 3.5 Sonnet has the same minimum; a longer prompt is above it.
    long, text = report("long.jsonl", asked(1_000))
    point = long["prefix"]["points"][-1]
    assert point["discounted"] == point["reused"] > 1_024
    assert point["money"] == pytest.approx(point["reused"] * 1.25 / 1e6)
    assert "money of pools" not in text


def test_a_usage_without_cached_tokens_has_whole_blocks_as_in_savings(tmp_path: Path) -> None:
    # The server's tokenizer is another one.
    usage = {"prompt_tokens": 300, "completion_tokens": 20}
    choice = {"message": {"role": "assistant", "content": "In the data folder."}, "finish_reason": "stop"}
    asked = logs.line([{"role": "user", "content": logs.words("question", 90)}])
    with_usage = {**asked, "response": {"object": "chat.completion", "choices": [choice], "usage": usage}}
    found = estimated([with_usage, with_usage], tmp_path, [64])
    assert found.prefix.prompt_tokens != 300
    assert (found.exact, found.exact_savings.cached_tokens) == (1, reusable_tokens(300, 300, BLOCK)) == (1, 288)


def test_the_reported_length_decides_the_price_of_a_hit_as_in_the_bill(tmp_path: Path) -> None:
    """Above 272,000 tokens, the model has another price; the tokenizer counts other tokens."""
    usage = {"prompt_tokens": 300_000, "completion_tokens": 1_000, "prompt_tokens_details": {"cached_tokens": 0}}
    choice = {"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
    asked = logs.line([{"role": "user", "content": "hello"}], model="gpt-5.4")
    response = {"object": "chat.completion", "choices": [choice], "usage": usage}
    file = logs.write(tmp_path / "log.jsonl", [{**asked, "time": "2026-11-01T10:00:00Z", "response": response}] * 2)
    given = ("estimate", file, "--data", tmp_path, "--json")
    hits = json.loads(kvproxy(*given).stdout)["exact_savings"]
    bill = json.loads(kvproxy(*given, "--sessions", "--by", "model").stdout)
    assert hits["requests"] == 1
    assert hits["money"] == pytest.approx(bill["total"]["cost"] / 2)


def test_inference_in_one_region_has_its_price_in_hits_and_sessions(tmp_path: Path) -> None:
    def report(region: str) -> tuple[float, float]:
        usage = {"input_tokens": 5_000, "output_tokens": 100, "inference_geo": region}
        body = {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
        answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi."}]}
        response = answer | {"id": "msg_1", "model": body["model"], "stop_reason": "end_turn", "usage": usage}
        row = {"path": "/v1/messages", "body": body, "response": response}
        given = ("estimate", logs.write(tmp_path / f"{region}.jsonl", [row, row]), "--data", tmp_path, "--json")
        hits = json.loads(kvproxy(*given).stdout)["exact_savings"]["money"]
        return hits, json.loads(kvproxy(*given, "--sessions").stdout)["cost"]

    everywhere, us = report("global"), report("us")
    assert min(everywhere) > 0
    assert us == pytest.approx([1.1 * money for money in everywhere])


@pytest.mark.parametrize(("model", "tokens", "cached"), [("gpt-4o", 900, 0), ("gpt-4o", 2_000, 1_984), ("m", 900, 896)])
def test_a_provider_caches_no_prefix_below_its_minimum(model: str, tokens: int, cached: int, tmp_path: Path) -> None:
    usage = {"prompt_tokens": tokens, "completion_tokens": 100}
    choice = {"message": {"role": "assistant", "content": "In the data folder."}, "finish_reason": "stop"}
    asked = logs.line([{"role": "user", "content": "Where is the log?"}], model=model)
    row = {**asked, "response": {"object": "chat.completion", "choices": [choice], "usage": usage}}
    file = logs.write(tmp_path / "log.jsonl", [row, row])
    given = ("estimate", file, "--data", tmp_path, "--price", "2.5,10,1.25", "--json")
    found = json.loads(kvproxy(*given).stdout)["exact_savings"]
    assert (found["requests"], found["cached_tokens"]) == (1, cached)
    assert found["money"] == pytest.approx((2.5 * (tokens - cached) + 1.25 * cached + 1_000) / 1e6)
    minimum = f'[journal.prices."{model}"]\ninput = 2.5\ncached = 1.25\noutput = 10\nleast_cached_tokens = 64\n'
    (tmp_path / "kvproxy.toml").write_text(minimum)
    found = json.loads(kvproxy("estimate", file, "--data", tmp_path, "--json").stdout)["exact_savings"]
    assert found["cached_tokens"] == reusable_tokens(tokens, tokens, BLOCK)


def test_a_plain_log_of_the_messages_api_has_hits(tmp_path: Path) -> None:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "user", "content": "Where is it?"}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Here."}]}
    usage = {"input_tokens": 12, "output_tokens": 3}
    response = message | {"id": "msg_1", "model": body["model"], "stop_reason": "end_turn", "usage": usage}
    row = {"timestamp": "2026-11-29T10:00:00Z", "request": body, "response": response}
    file = logs.write(tmp_path / "log.jsonl", [row, row, row])
    done = kvproxy("estimate", file, "--data", tmp_path, "--json")
    hits = json.loads(done.stdout)["exact_savings"]
    assert (hits["requests"], hits["prompt_tokens"], hits["response_tokens"]) == (2, 24, 6)
    assert "another API" not in done.stderr
    # The proxy stores no response of another API.
    file = logs.write(tmp_path / "routed.jsonl", [row | {"path": "/v1/chat/completions"}] * 3)
    done = kvproxy("estimate", file, "--data", tmp_path, "--json")
    found = json.loads(done.stdout)
    assert (found["exact"], found["log"]["responses_of_other_apis"]) == (0, {"messages": 3})
    assert "3 responses of another API than the request (messages): they are not stored" in done.stderr


def test_hits_of_models_without_a_price_are_not_in_the_money(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."m"]\ninput = 3\noutput = 15\n')
    question = [{"role": "user", "content": logs.words("question", 40)}]
    lines = [logs.line(question, "In the data folder.", model=model) for model in ("m", "free") for _ in range(2)]
    file = logs.write(tmp_path / "log.jsonl", lines)
    hits = json.loads(kvproxy("estimate", file, "--data", tmp_path, "--json").stdout)["exact_savings"]
    assert (hits["requests"], hits["unpriced"]) == (2, 1)
    shown = kvproxy("estimate", file, "--data", tmp_path, columns=160).stdout
    assert f"  at most {amount_text(hits['money'])} (priced)" in shown
    assert "not in the saved money: 1 hit of models without a price\n" in shown
    assert "no price of cached tokens is known" in shown


def test_hits_have_the_price_of_their_day(tmp_path: Path) -> None:
    price = "input = 3\ncached = 3\noutput = 3\n"
    (tmp_path / "kvproxy.toml").write_text(
        f"[journal.prices.m]\n{price}[journal.prices.m.changes.2026-11-20]\n{price.replace('3', '6')}"
    )
    line = logs.line([{"role": "user", "content": "Where?"}], "Here.", model="m")
    money = []
    for day in ("2026-11-19", "2026-11-20"):
        rows = [line | {"time": f"{day}T12:00:0{second}Z"} for second in range(2)]
        file = logs.write(tmp_path / "log.jsonl", rows)
        hits = json.loads(kvproxy("estimate", file, "--data", tmp_path, "--json").stdout)["exact_savings"]
        money.append(hits["money"])
    assert money[1] == pytest.approx(2 * money[0])
    assert money[0] > 0


def test_lines_of_a_batch_have_the_price_of_batches(tmp_path: Path) -> None:
    """Both of OpenAI and of Anthropic, also if the settings have the price."""
    question = [{"role": "user", "content": logs.words("question", 40)}]
    for model, api in (("gpt-5", "chat/completions"), ("claude-opus-4-5", "messages")):
        (tmp_path / "kvproxy.toml").write_text(f'[journal.prices."{model}"]\ninput = 100\noutput = 100\n')
        body = {"model": model, "messages": question, "max_tokens": 9}
        plain = {"url": f"/v1/{api}", "body": body}
        batches = [{"custom_id": "1", "method": "POST", **plain}]
        batches += [{"custom_id": "1", "params": body}] if api == "messages" else []

        def money(row: dict[str, object]) -> float:
            file = logs.write(tmp_path / "log.jsonl", [row, row])
            found = json.loads(kvproxy("estimate", file, "--data", tmp_path, "--json").stdout)
            assert found["service_tiers"] == (["batch"] if "custom_id" in row else [])
            return float(found["exact_savings"]["money"])

        standard = money(plain)
        assert standard > 0
        assert [money(row) for row in batches] == pytest.approx([standard / 2] * len(batches))
    assert "money: batch prices apply" in kvproxy("estimate", tmp_path / "log.jsonl").stdout


@pytest.mark.parametrize(
    ("tier", "requested", "share"),
    [({}, None, 1), ({"service_tier": None}, "flex", 1), ({"service_tier": "flex"}, None, 0.5)],
)
def test_lines_of_log_export_have_the_price_of_the_recorded_tier(
    tmp_path: Path, tier: dict[str, Any], requested: str | None, share: float
) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."gpt-5"]\ninput = 100\noutput = 100\n')
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": logs.words("question", 40)}]}
    live = {"url": "/v1/chat/completions", "body": body}
    own = live | {"custom_id": "1", "method": "POST", "layer": "forward", "cost": 0.1, **tier}
    own["body"] = body | ({"service_tier": requested} if requested else {})

    def money(row: dict[str, Any]) -> float:
        file = logs.write(tmp_path / "log.jsonl", [row | {"time": second} for second in (1, 2)])
        return float(result("estimate", file, "--data", tmp_path)["exact_savings"]["money"])

    assert money(own) == pytest.approx(share * money(live))
    assert money(live) > 0


def test_the_edits_and_rules_of_the_settings_apply(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        '[[edits]]\nname = "ids"\naction = "strip"\npattern = "Session (.*?) "\n\n'
        '[[rules]]\nname = "tools"\nmodel = "tools"\nedits = []\n'
    )

    def exact_hits(model: str) -> int:
        question = {"role": "user", "content": "What are your hours?"}
        systems = [{"role": "system", "content": f"Session {number} You help."} for number in range(3)]
        lines = [logs.line([system, question], model=model) for system in systems]
        return estimated(lines, tmp_path, [20]).exact

    assert (exact_hits("m"), exact_hits("tools")) == (2, 0)


def test_lines_without_a_json_object_are_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "a"}\n[1, 2]\n# a comment\n')
    notes = kvproxy("estimate", log, "--data", tmp_path).stderr
    assert "skipped 2 rows without a request: 1 not a JSON object (line 2), 1 comment\n" in notes


def test_records_of_the_journal_are_no_requests() -> None:
    with pytest.raises(InvalidRequest, match="line 1: the prompt is a number: kvproxy log prints no whole prompts"):
        logged([{"model": "m", "prompt": 7, "status": 200}])


def test_the_columns_beside_a_question_are_read(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    row = 'Where is it?,gpt-4o,red,"1,000",100,7\n'
    table.write_text("prompt,model,team,input_tokens,output_tokens,score\n" + 2 * row)
    done = kvproxy("estimate", table, "--column", "prompt", "--json")
    found = json.loads(done.stdout)
    hits = found["exact_savings"]
    assert (hits["requests"], hits["prompt_tokens"], hits["response_tokens"]) == (1, 1_000, 100)
    assert hits["money"] > 0
    assert found["log"]["format"] == "the column prompt, with model, team, input_tokens, output_tokens"
    assert "not read: score\n" in done.stderr
    (group,) = json.loads(kvproxy("estimate", table, "--column", "prompt", "--by", "team", "--json").stdout)["groups"]
    assert (group["name"], group["exact"], group["saved_tokens"]) == ("red", 1, 1_100)


def test_each_api_key_of_a_log_has_a_cache_of_its_own(tmp_path: Path) -> None:
    common = {"call_type": "acompletion", "spend": 0.1, "startTime": "2026-11-01T09:00:00Z", "model": "m"}
    message = {"role": "user", "content": "Where is it?"}
    rows = [common | {"api_key": key, "messages": [message], "request_id": key + at} for at in "ab" for key in "xy"]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))
    for setting, hits in (("", 2), ("[cache]\nshared = true\n", 3)):
        (tmp_path / "kvproxy.toml").write_text(setting)
        assert result("estimate", log, "--data", tmp_path)["exact"] == hits
    assert "2 API keys: requests of different keys share no responses" in kvproxy("estimate", log).stdout


def test_pools_with_equal_reuse_are_one_row(tmp_path: Path) -> None:
    """Each prompt differs from its beginning, so no pool reuses anything."""
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps({"model": "m", "prompt": f"{number} " * 90}) for number in range(4)))
    rows = [
        [line.split("\t")[0] for line in done.stdout.split("\npool\t")[1].splitlines() if line.count("\t") == 4]
        for done in (kvproxy("estimate", log, *sizes) for sizes in ((), ("--blocks", "2,4")))
    ]
    assert (len(rows[0]), rows[1]) == (2, ["32", "64", "unlimited"])
