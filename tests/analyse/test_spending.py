"""What the requests in transcripts cost by day, project, model, and client, compared with ccusage."""

import csv
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvproxy.analyse.bills.logged_spending import report_spending
from kvproxy.analyse.log_files import find_log_files
from kvproxy.analyse.log_formats.log_format import LoggedRequest
from kvproxy.analyse.transcripts import read_transcripts
from kvproxy.apis import APIS
from kvproxy.journal.sessions import session_matching
from kvproxy.journal.sessions.spending_report import spending_report
from kvproxy.journal.spending import PaidRequest
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import kvproxy

MODELS = ("claude-sonnet-4-5-20250929", "claude-opus-4-5-20251101", "claude-haiku-4-5-20251001")
# By `ccusage daily --offline --json` and `ccusage daily --instances --offline --json` (npm package, 17.2.1): requests' tokens
# (uncached, written, read, output) and US dollars.
CCUSAGE_DAYS = {
    "2026-11-21": (308, 39_649, 281_488, 15_545, 0.36221015),
    "2026-11-22": (295, 33_050, 316_584, 13_631, 0.6015393),
}
CCUSAGE_PROJECTS = {"/home/ann/shop": 0.5380165, "/home/ann/blog": 0.42573295}
CCUSAGE_MODELS = dict(zip(MODELS, (0.18221235, 0.68138825, 0.10014885), strict=True))

TURNS = [
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": "There."},
    {"role": "user", "content": "Why?"},
]


def write_transcripts(folder: Path) -> None:
    """Write two sessions in each of two projects of Claude Code. The second one resumes the first, and repeats its lines."""
    random, number = Random(3), 0
    for project in ("shop", "blog"):
        lines: list[dict[str, Any]] = []
        parent: str | None = None
        for session in ("5e55-1", "5e55-2"):
            lines = [line | {"sessionId": session} for line in lines]
            moment = datetime(2026, 11, 20 + int(session[-1]), 10, tzinfo=UTC)
            common = {"cwd": f"/home/ann/{project}", "sessionId": session, "version": "2.1.197"}
            for _ in range(5):
                number += 1
                moment += timedelta(seconds=random.randint(10, 500))
                line = common | {"uuid": f"u{number}", "parentUuid": parent, "timestamp": _text(moment), "type": "user"}
                lines.append(line | {"message": {"role": "user", "content": f"question {number}"}})
                moment += timedelta(seconds=5)
                usage = {
                    "input_tokens": random.randint(1, 50),
                    "cache_creation_input_tokens": random.randint(0, 8_000),
                    "cache_read_input_tokens": random.randint(0, 60_000),
                    "output_tokens": random.randint(10, 3_000),
                }
                parent, model = f"u{number}", random.choice(MODELS)
                # Each block of an answer has a line with the same usage.
                for block in range(random.randint(1, 3)):
                    answer = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
                    content = [{"type": "text", "text": f"answer {number}, {block}"}]
                    line = common | {"uuid": f"a{number}-{block}", "parentUuid": parent, "timestamp": _text(moment)}
                    message = answer | {"content": content, "usage": usage}
                    lines.append(line | {"type": "assistant", "requestId": f"req_{number}", "message": message})
                    parent = f"a{number}-{block}"
            file = folder / f"-home-ann-{project}" / f"{session}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def spending(folder: Path, *options: str) -> Any:
    return json.loads(kvproxy("estimate", folder, "--json", *options).stdout)


def test_days_projects_and_models_cost_what_ccusage_reports(tmp_path: Path) -> None:
    write_transcripts(tmp_path)
    for row in (days := spending(tmp_path, "--by", "day"))["rows"]:
        uncached, written, read, output, cost = CCUSAGE_DAYS[row["name"]]
        assert (row["written_tokens"], row["reused_tokens"], row["output_tokens"]) == (written, read, output)
        assert row["input_tokens"] == uncached + written + read
        assert row["cost"] == pytest.approx(cost, rel=1e-6)
        assert row["input_cost"] + row["output_cost"] == pytest.approx(row["cost"])
    assert (days["total"]["requests"], len(days["rows"])) == (20, 2)
    for by, expected in (("project", CCUSAGE_PROJECTS), ("model", CCUSAGE_MODELS)):
        rows = spending(tmp_path, "--by", by)["rows"]
        assert {row["name"]: row["cost"] for row in rows} == pytest.approx(expected, rel=1e-6)
        # The most expensive first, and the losses beside it.
        assert [row["name"] for row in rows] == sorted(expected, key=lambda name: -expected[name])
        assert all(0 <= row["lost_cost"] <= row["input_cost"] for row in rows)
        assert all(sum(row["lost_costs"].values()) == pytest.approx(row["lost_cost"]) for row in rows)
    (client,) = spending(tmp_path, "--by", "client")["rows"]
    assert client["name"] == "Claude Code"


def test_a_bill_of_a_period_has_the_days_of_the_whole_bill(tmp_path: Path) -> None:
    write_transcripts(tmp_path)
    first, second = spending(tmp_path, "--by", "day")["rows"]
    assert spending(tmp_path, "--by", "day", "--since", second["name"])["rows"] == [second]
    assert spending(tmp_path, "--by", "day", "--since", first["name"], "--until", second["name"])["rows"] == [first]
    by_project = spending(tmp_path, "--by", "project", "--since", second["name"])
    assert by_project["total"]["cost"] == pytest.approx(second["cost"])
    undated = {"model": "claude-x", "in": 2_048, "out": 10, "t": 0.0, "api_time": 1.0, "hash_ids": [1, 2]}
    (tmp_path / "trace.json").write_text(json.dumps({"id": "t1", "block_size": 1_024, "requests": [undated]}))
    done = kvproxy("estimate", tmp_path, "--by", "model", "--since", second["name"], "--csv")
    assert "claude-x" not in done.stdout
    assert "not in the period: 1 request without a date" in done.stderr


def test_a_period_is_for_the_cost_of_requests(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"body": {"model": "m", "messages": TURNS[:1]}}))
    write_transcripts(tmp_path / "projects")
    for arguments in ((log, "--by", "model"), (tmp_path / "projects",)):
        done = kvproxy("estimate", *arguments, "--since", "7d")
        assert (done.returncode, "--since, --until, and --as-model are for the cost of requests" in done.stderr) == (
            2,
            True,
        ), done


def test_the_bill_is_csv_or_json_lines(tmp_path: Path) -> None:
    write_transcripts(tmp_path)
    rows = spending(tmp_path, "--by", "day")["rows"]
    done = kvproxy("estimate", tmp_path, "--by", "day", "--csv", "--columns", "name,requests")
    assert list(csv.reader(done.stdout.splitlines())) == [
        ["name", "requests"],
        *([row["name"], str(row["requests"])] for row in rows),
    ]
    done = kvproxy("estimate", tmp_path, "--by", "day", "--jsonl")
    flat = [{name: row[name] for name in row if name != "groups"} | {"currency": "USD"} for row in rows]
    assert [json.loads(line) for line in done.stdout.splitlines()] == flat
    done = kvproxy("estimate", tmp_path, "--by", "day")
    for row, printed in zip(rows, csv.DictReader(done.stdout.splitlines(), delimiter="\t"), strict=False):
        cause = printed["lost_most_to"]
        # The money beside the cause is that of the cause, and not the sum.
        assert float(printed["lost_most_cost"]) == pytest.approx(row["lost_costs"][cause], rel=1e-4)
        assert float(printed["lost_cost"]) == pytest.approx(row["lost_cost"], rel=1e-4)
    assert any(0 < max(row["lost_costs"].values()) < row["lost_cost"] for row in rows)
    done = kvproxy("estimate", tmp_path, "--csv")
    assert (done.returncode, "for the rows of --by" in done.stderr) == (2, True)


def test_the_outputs_of_batches_have_bills_without_prompts(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 4_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 1_000}}
    body = {"object": "chat.completion", "created": 1_795_000_000, "model": "gpt-5", "choices": [], "usage": usage}
    answer = {"custom_id": "a", "id": "b1", "response": {"status_code": 200, "body": body}, "error": None}
    failed = answer | {"id": "b2", "response": {"status_code": 400, "body": {"error": {}}}}
    openai = tmp_path / "openai.jsonl"
    openai.write_text("\n".join(map(json.dumps, [answer, failed, answer | {"id": "b3"}])))
    (row,) = spending(openai, "--sessions", "--by", "day")["rows"]
    uncached, cached, output = GPT_5
    cost = 0.5 * (3_000 * uncached + 1_000 * cached + 100 * output) / 1e6
    assert (row["name"], row["requests"], row["cost"]) == ("2026-11-18", 2, pytest.approx(2 * cost))
    assert (row["lost"], row["lost_cost"]) == ({}, None)
    counts = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 50,
        "output_tokens": 20,
    }
    message = {"type": "message", "model": "claude-opus-5", "content": [], "usage": counts}
    rows = [
        {"custom_id": "a", "result": {"type": "succeeded", "message": message}},
        {"custom_id": "b", "result": {"type": "errored", "error": {}}},
    ]
    anthropic = tmp_path / "anthropic.jsonl"
    anthropic.write_text("\n".join(map(json.dumps, rows)))
    (row,) = spending(anthropic, "--sessions", "--by", "model")["rows"]
    assert (row["name"], row["requests"], row["input_tokens"], row["written_tokens"]) == ("claude-opus-5", 1, 160, 50)
    assert row["cost"] == pytest.approx(0.5 * (10 * 5 + 100 * 0.5 + 50 * 6.25 + 20 * 25) / 1e6)
    # Without prompts, there is nothing to replay.
    done = kvproxy("lint", openai)
    assert (done.returncode, "the output of a batch, which has no prompts" in done.stderr) == (2, True)


def test_the_output_of_a_batch_has_the_responses_of_its_input(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 4_000, "completion_tokens": 100}
    message = {"role": "assistant", "content": "Yes, until nine."}
    body = {"object": "chat.completion", "created": 1_795_000_000, "model": "gpt-5", "usage": usage}
    body |= {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    sent = {"model": "gpt-5", "messages": [{"role": "user", "content": "Are you open on Sundays?"}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": sent}
    answer = {"id": "b1", "response": {"status_code": 200, "body": body}, "error": None}
    requests.write_text("\n".join(json.dumps(line | {"custom_id": id}) for id in "ab"))
    answers.write_text("\n".join(json.dumps(answer | {"custom_id": id}) for id in "ba"))
    found = json.loads(kvproxy("estimate", requests, answers, "--json", "--data", tmp_path).stdout)
    # The second request is a hit on the first one.
    assert (found["requests"], found["exact_savings"]["response_tokens"]) == (2, 100)
    done = kvproxy("estimate", requests, answers, "--sessions", "--by", "day", "--json", "--data", tmp_path)
    total = json.loads(done.stdout)["total"]
    assert (total["requests"], total["unreported"], total["output_tokens"]) == (2, 0, 200)
    alone = kvproxy("lint", answers, answers, "--data", tmp_path)
    assert (alone.returncode, "which has no prompts: give the input file of the batch, too" in alone.stderr) == (
        2,
        True,
    )
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(answer | {"custom_id": "c"}))
    done = kvproxy("estimate", requests, other, "--data", tmp_path)
    assert "1 of outputs of batches without their input" in done.stderr
    both = kvproxy("lint", answers, other, "--data", tmp_path)
    assert (both.returncode, "outputs of batches, which have no prompts: give the input" in both.stderr) == (2, True)


def test_a_report_of_openais_usage_has_a_bill(tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    head = (
        "start_time,end_time,project_id,model,batch,num_model_requests,input_tokens,input_cached_tokens,output_tokens"
    )
    rows = [
        "1795000000,1795086400,p1,gpt-5,False,20,84000,40000,1200",
        "1795000000,1795086400,p2,gpt-5,True,10,84000,,5",
    ]
    file.write_text("\n".join([head, *rows]))
    bills = {row["name"]: row for row in spending(file, "--sessions", "--by", "project")["rows"]}
    uncached, cached, output = GPT_5
    cost = (44_000 * uncached + 40_000 * cached + 1_200 * output) / 1e6
    assert (bills["p1"]["requests"], bills["p1"]["cost"]) == (20, pytest.approx(cost))
    cost = 0.5 * (84_000 * uncached + 5 * output) / 1e6
    assert (bills["p2"]["requests"], bills["p2"]["cost"], bills["p2"]["lost_cost"]) == (10, pytest.approx(cost), None)
    tiers = {row["name"]: row["cost"] for row in spending(file, "--sessions", "--by", "service_tier")["rows"]}
    assert tiers == {"standard": bills["p1"]["cost"], "batch": bills["p2"]["cost"]}
    done = kvproxy("lint", file)
    assert (done.returncode, "this is a report of usage, which has no requests" in done.stderr) == (2, True)


def test_unknown_tokens_are_no_zero(tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    head = "start_time,end_time,project_id,model,num_model_requests,input_tokens,input_cached_tokens,output_tokens"
    rows = ["1795000000,1795086400,p1,gpt-5,20,84000,,", "1795000000,1795086400,p2,gpt-5,10,84000,0,0"]
    file.write_text("\n".join([head, *rows]))
    report = spending(file, "--sessions", "--by", "project")
    bills = {row["name"]: row for row in report["rows"]}
    names = ("reused_tokens", "written_tokens", "output_tokens", "output_cost", "incomplete")
    assert [bills["p1"][name] for name in names] == [None, None, None, None, 20]
    assert [bills["p2"][name] for name in names] == [0, None, 0, 0.0, 0]
    assert bills["p1"]["cost"] == pytest.approx(84_000 * GPT_5[0] / 1e6)
    assert (report["total"]["output_tokens"], report["total"]["incomplete"]) == (0, 20)
    done = kvproxy("estimate", file, "--sessions", "--by", "project")
    assert "not in the tokens and the money: the unknown input or output of 20 requests\n" in done.stderr
    # Cached and output tokens are empty in the table, too.
    (first,) = (line.split("\t") for line in done.stdout.splitlines() if line.startswith("p1\t"))
    assert first[:6] == ["p1", "20", "84000", "", "", ""]


def test_an_unknown_output_is_no_free_output(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    body = {"model": "gpt-5", "messages": TURNS[:1], "max_tokens": 9}
    usages: list[dict[str, int]] = [{"prompt_tokens": 3_000}, {"prompt_tokens": 2_000, "completion_tokens": 10}]
    rows = [{"body": body | {"user": f"{at}"}, "response": {"usage": usage}} for at, usage in enumerate(usages)]
    log.write_text("\n".join(map(json.dumps, rows)))
    sessions = spending(log, "--sessions")["sessions"]
    names = ("completion_tokens", "cost", "unpriced_turns", "incomplete_turns")
    known = (2_000 * GPT_5[0] + 10 * GPT_5[2]) / 1e6
    found = {session["prompt_tokens"]: [session[name] for name in names] for session in sessions}
    assert found == {3_000: [None, None, 0, 1], 2_000: [10, pytest.approx(known), 0, 0]}
    prices = ModelPrices(JournalSettings())
    assert PaidRequest(0.0, "gpt-5", "", "", 3_000, None).cost(prices) is None
    # Nothing is known about the requests of a group.
    unknown = spending_report([PaidRequest(0.0, "gpt-5", "", "", None, None)], "model", prices, "USD").total
    assert (unknown.unreported, unknown.input_tokens, unknown.output_tokens, unknown.cost) == (1, None, None, None)


OPENAI_BUCKET = {
    "object": "bucket",
    "start_time": 1_761_868_800,
    "end_time": 1_761_955_200,
    "results": [
        {"object": "organization.usage.completions.result", "model": "gpt-5", "num_model_requests": 21}
        | {"input_tokens": 84_000, "input_cached_tokens": 40_000, "output_tokens": 1_200, "project_id": "p1"},
        {"object": "organization.usage.completions.result", "model": "gpt-5", "num_model_requests": 8, "batch": True}
        | {"input_tokens": 84_000, "input_cached_tokens": 0, "output_tokens": 5, "user_id": "u1"},
    ],
}
ANTHROPIC_BUCKET = {
    "starting_at": "2025-10-31T00:00:00Z",
    "ending_at": "2025-11-01T00:00:00Z",
    "results": [
        {"uncached_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 20, "workspace_id": "w1"}
        | {"cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 20}}
        | {"model": "claude-opus-4-5", "service_tier": "standard", "context_window": "0-200k", "api_key_id": "k1"},
        {"uncached_input_tokens": 40, "cache_read_input_tokens": 0, "output_tokens": 0, "workspace_id": "w1"}
        | {"cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}}
        | {"model": "claude-opus-4-5", "service_tier": "batch", "context_window": "0-200k", "api_key_id": "k2"},
    ],
}


@pytest.mark.parametrize("form", ["page", "lines"])
def test_the_admin_apis_report_bills(tmp_path: Path, form: str) -> None:
    def bill(bucket: dict[str, Any], by: str) -> dict[str, Any]:
        file = tmp_path / "usage.json"
        page = {"data": [bucket], "has_more": False, "next_page": None}
        file.write_text(json.dumps(page, indent=1) if form == "page" else f"{json.dumps(page)}\n{json.dumps(page)}\n")
        return {row["name"]: row for row in spending(file, "--sessions", "--by", by)["rows"]}

    pages = 1 if form == "page" else 2
    uncached, cached, output = GPT_5
    (day,) = bill(OPENAI_BUCKET, "day").values()
    cost = (44_000 * uncached + 40_000 * cached + 1_200 * output) / 1e6 + (84_000 * uncached + 5 * output) / 2e6
    assert (day["name"], day["requests"], day["cost"]) == ("2025-10-31", pages * 29, pytest.approx(pages * cost))
    assert set(bill(OPENAI_BUCKET, "project")) == {"p1", ""}
    assert set(bill(OPENAI_BUCKET, "client")) == {"u1", ""}
    (day,) = bill(ANTHROPIC_BUCKET, "day").values()
    # The report has no numbers of requests.
    assert (day["name"], day["requests"], day["input_tokens"], day["written_tokens"]) == (
        "2025-10-31",
        None,
        pages * 200,
        pages * 50,
    )
    cost = (10 * 5 + 100 * 0.5 + 30 * 6.25 + 20 * 10 + 20 * 25 + 0.5 * 40 * 5) / 1e6
    assert day["cost"] == pytest.approx(pages * cost)
    assert set(bill(ANTHROPIC_BUCKET, "client")) == {"k1", "k2"}
    done = kvproxy("lint", tmp_path / "usage.json")
    assert (done.returncode, "this is a report of usage, which has no requests" in done.stderr) == (2, True)


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_days_of_reports_of_usage_stay_utc_days(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    minute = OPENAI_BUCKET | {"end_time": OPENAI_BUCKET["start_time"] + 60}
    file.write_text(json.dumps({"data": [OPENAI_BUCKET]}))
    options = ("estimate", file, "--sessions", "--by", "day")
    done = kvproxy(*options, "--csv")
    assert [row["name"] for row in csv.DictReader(done.stdout.splitlines())] == ["2025-10-31"]
    assert "read as report of OpenAI's usage: 1 row, 29 requests\n" in done.stderr
    assert ("UTC days" in done.stderr, "local days" in done.stderr) == (True, False)
    # A minute has a local day, in the zone of its time and not of today.
    file.write_text(json.dumps({"data": [minute]}))
    done = kvproxy(*options, "--csv")
    assert [row["name"] for row in csv.DictReader(done.stdout.splitlines())] == ["2025-10-30"]
    assert "local days (EDT)" in done.stderr


def test_a_bill_in_another_currency_names_it(tmp_path: Path) -> None:
    write_transcripts(tmp_path)
    (tmp_path / "kvproxy.toml").write_text('[journal]\ncurrency = "EUR"\nusd_rate = 0.5\n')
    dollars = spending(tmp_path, "--by", "client")["total"]["cost"]
    done = kvproxy("estimate", tmp_path, "--by", "client", "--data", tmp_path, "--csv")
    (row,) = csv.DictReader(done.stdout.splitlines())
    assert float(row["cost"]) == pytest.approx(dollars / 2)
    assert "money in EUR\n" in done.stderr


def test_codex_costs_what_ccusage_reports(tmp_path: Path) -> None:
    """By `ccusage codex daily --offline --json` (npm package, 20.0.24), of a session that Codex 0.171 recorded."""

    def line(second: int, kind: str, **payload: Any) -> str:
        return json.dumps({"timestamp": f"2026-11-29T08:18:{second:02}.000Z", "type": kind, "payload": payload})

    def tokens(second: int, last: tuple[int, ...], total: tuple[int, ...]) -> str:
        names = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")
        info = {
            f"{name}_token_usage": dict(zip(names, each, strict=True))
            for name, each in (("last", last), ("total", total))
        }
        return line(second, "event_msg", type="token_count", info=info)

    lines = [
        line(8, "session_meta", id="0199", cwd="/work"),
        line(8, "turn_context", model="gpt-5.6"),
        line(8, "response_item", type="message", role="user", content=[{"type": "input_text", "text": "Hi."}]),
        tokens(9, (9_848, 0, 9_848, 69), (9_848, 0, 9_848, 69)),
        tokens(10, (9_962, 9_848, 114, 76), (19_810, 9_848, 9_962, 145)),
    ]
    (tmp_path / "rollout-2026.jsonl").write_text("\n".join(lines))
    (row,) = spending(tmp_path, "--by", "model")["rows"]
    assert (row["written_tokens"], row["reused_tokens"], row["output_tokens"]) == (9_962, 9_848, 145)
    assert row["cost"] == pytest.approx(0.0566492)


def test_a_model_without_a_price_has_no_money_and_a_given_price_counts(tmp_path: Path) -> None:
    write_transcripts(tmp_path)
    for file in tmp_path.rglob("*.jsonl"):
        file.write_text(file.read_text().replace(MODELS[0], "my-own-model"))
    rows = {row["name"]: row for row in spending(tmp_path, "--by", "model")["rows"]}
    own, known = rows.pop("my-own-model"), rows
    assert (own["cost"], own["input_cost"], own["lost_cost"], own["unpriced"]) == (None, None, None, own["requests"])
    assert all(row["cost"] and not row["unpriced"] for row in known.values())
    # The table has an empty cell, and names the requests.
    lines = kvproxy("estimate", tmp_path, "--by", "model").stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("my-own-model"))
    assert line.split("\t")[6:9] == ["", "", ""]
    total = spending(tmp_path, "--by", "model", "--price", "2,10,1,2,2")["total"]
    uncached = total["input_tokens"] - total["reused_tokens"]
    assert total["cost"] == pytest.approx((2 * uncached + total["reused_tokens"] + 10 * total["output_tokens"]) / 1e6)


def test_requests_without_a_date_have_no_day(tmp_path: Path) -> None:
    """Traces count from their own start, and a log may have no times."""
    row = {"t": 11.0, "model": "claude-x", "in": 768, "out": 9, "hash_ids": list(range(12)), "api_time": 1.0}
    (tmp_path / "trace.json").write_text(json.dumps({"id": "t1", "block_size": 64, "requests": [row]}))
    (day,) = spending(tmp_path, "--by", "day")["rows"]
    assert (day["name"], day["requests"]) == ("", 1)
    log = tmp_path / "log.jsonl"
    usage = {"prompt_tokens": 9, "completion_tokens": 1}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    log.write_text(json.dumps({"body": body, "response": {"choices": [], "usage": usage}}))
    done = kvproxy("estimate", log, "--sessions", "--by", "day", columns=120)
    assert "(no day)" in done.stdout
    assert "1970" not in done.stdout


_LOGGED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Where is it?"}],
    "response": {"choices": [], "usage": {"prompt_tokens": 3_000, "completion_tokens": 9}},
}
_LITELLM: dict[str, Any] = {"call_type": "acompletion", "spend": 0.1, "startTime": "2026-11-01T09:00:00Z", **_LOGGED}
_KEY = {"user_api_key_alias": "ann", "user_api_key_team_alias": "red"}
_SPAN = {"gen_ai.request.model": "m", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Where?"}
_SPAN_USAGE = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "There."} | {
    "gen_ai.usage.input_tokens": 3_000
}
_LANGFUSE: dict[str, Any] = {
    "type": "GENERATION",
    "traceId": "t",
    "startTime": "2026-11-01T09:00:00Z",
    "model": "m",
} | {
    "input": _LOGGED["messages"],
    "output": "There.",
    "usageDetails": {"input": 3_000, "output": 9},
}


@pytest.mark.parametrize(
    ("row", "labels"),
    [
        (_LITELLM | {"metadata": _KEY, "request_tags": ["project:shop"]}, ("red", "ann", "shop")),
        (_LITELLM | {"metadata": json.dumps(_KEY), "request_tags": '["project:shop"]'}, ("red", "ann", "shop")),
        # Ids, if the key and the team have no alias.
        (_LITELLM | {"api_key": "ab" * 32, "team_id": "t1", "user": "u"}, ("t1", "ab" * 6, "")),
        (
            {
                "request_created_at": "2026-11-01T09:00:00Z",
                "request_body": _LOGGED,
                "response_body": _LOGGED["response"],
            }
            | {"request_user_id": "ann", "request_properties": {"team": "red", "project": "shop"}},
            ("red", "ann", "shop"),
        ),
        (
            {"trace_id": "t", "ai_model": "m", "request": _LOGGED, "response": _LOGGED["response"]}
            | {"metadata": {"_user": "ann", "team": "red", "project": "shop"}},
            ("red", "ann", "shop"),
        ),
        (_LANGFUSE | {"userId": "ann", "tags": ["project:shop"], "metadata": {"team": "red"}}, ("red", "ann", "shop")),
        # The CSV of Langfuse's pages.
        (
            _LANGFUSE | {"userId": "ann", "traceTags": '["project:shop"]', "metadata": '{"team": "red"}'},
            ("red", "ann", "shop"),
        ),
        (
            {
                "resourceSpans": [
                    {
                        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
                        "scopeSpans": [{"spans": [{"attributes": _SPAN | _SPAN_USAGE | {"user.id": "ann"}}]}],
                    }
                ]
            },
            ("", "ann", "shop"),
        ),
        (
            {"body": _LOGGED | {"user": "ann"}, "response": _LOGGED["response"], "team": "red"}
            | {"headers": {"x-kvproxy-tags": "nightly, project:shop"}},
            ("red", "ann", "shop"),
        ),
    ],
)
def test_the_bill_has_the_teams_clients_and_projects_of_a_log(
    tmp_path: Path, row: dict[str, Any], labels: tuple[str, ...]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(row))
    found = [spending(log, "--sessions", "--by", by)["rows"] for by in ("team", "client", "project")]
    assert tuple(row["name"] for (row,) in found) == labels


def test_an_engine_behind_a_gateway_has_no_minimum(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    usage = {"prompt_tokens": 600, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}
    rows = [
        _LITELLM
        | {"model": f"{provider}/qwen", "custom_llm_provider": provider, "request_id": f"{provider} {number}"}
        | {"response": {"choices": [], "usage": usage}}
        for provider in ("hosted_vllm", "openai")
        for number in range(2)
    ]
    causes = []
    for pair in (rows[:2], rows[2:]):
        log.write_text("\n".join(map(json.dumps, pair)))
        (bill,) = spending(log, "--sessions", "--by", "model")["rows"]
        causes.append(set(bill["lost"]) - {"new"})
    assert causes == [{"evicted"}, {"minimum"}]


def test_models_share_no_prefix(tmp_path: Path) -> None:
    """The first session of a model is new; a session that switches its model sends the same text again."""
    system = {"role": "system", "content": "You answer questions about the shop. " * 400}
    rows = [
        {"call_type": "acompletion", "spend": 0.1, "startTime": f"2026-11-{day}T09:00:00Z", "session_id": session}
        | {"model": model, "messages": [system, *turns], "response": {"choices": [], "usage": usage}}
        for day, session, model, turns in (
            ("01", "a", "gpt-4o", TURNS[:1]),
            ("20", "b", "gemini-2.5-pro", [{"role": "user", "content": "Who is it?"}]),
            ("21", "a", "gpt-4o-mini", TURNS),
        )
        for usage in ({"prompt_tokens": 3_000, "completion_tokens": 9},)
    ]
    log = tmp_path / "litellm.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))
    by_model = {row["name"]: row for row in spending(log, "--sessions", "--by", "model")["rows"]}
    assert by_model["gemini-2.5-pro"]["lost"] == {"new": 3_000}
    assert by_model["gemini-2.5-pro"]["lost_cost"] == 0
    assert by_model["gpt-4o-mini"]["lost"]["changed"] == 2_944  # Whole steps of 128 tokens.
    (change,) = json.loads(kvproxy("lint", log, "--sessions", "--json").stdout)["changed"]
    assert (change["region"], change["turns"]) == ("model", 1)


def test_models_of_a_trace_share_no_prefix(tmp_path: Path) -> None:
    ids = list(range(12))
    rows = [
        {"t": second, "model": model, "in": 768, "out": 9, "hash_ids": ids, "api_time": 1.0}
        for second, model in ((0, "claude-x"), (9, "claude-y"), (20, "claude-x"))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"id": "t1", "block_size": 64, "requests": rows}))
    by_model = {row["name"]: row for row in spending(tmp_path, "--by", "model")["rows"]}
    assert by_model["claude-y"]["lost"] == {"changed": 768}
    assert by_model["claude-x"]["reused_tokens"] == 768


def test_a_log_without_sessions_has_savings_by_group(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    usage = {"prompt_tokens": 3_000, "completion_tokens": 1_000}
    choice = {"index": 0, "finish_reason": "stop", "message": TURNS[1]}
    rows = [
        {"body": {"model": model, "messages": TURNS[:1], "max_tokens": 9}, "team": team, "time": 1_795_000_000 + at}
        | {"response": {"object": "chat.completion", "choices": [choice], "usage": usage}}
        for at, (model, team) in enumerate([("gpt-5", "red"), ("gpt-5", "red"), ("gpt-5", "blue"), ("m", "blue")])
    ]
    log.write_text("\n".join(map(json.dumps, rows)))
    done = kvproxy("estimate", log, "--by", "team", "--csv")
    counts = {
        row["name"]: (row["requests"], row["exact"], row["saved_tokens"], float(row["money"]))
        for row in csv.DictReader(done.stdout.splitlines())
    }
    assert set(counts) == {"red", "blue"}
    assert [value[:3] for value in counts.values()] == [("2", "1", "4000")] * 2
    whole = spending(log, "--by", "model")
    groups = {group["name"]: group for group in whole["groups"]}
    assert (groups["gpt-5"]["exact"], groups["m"]["exact"], groups["m"]["money"]) == (2, 0, None)
    assert groups["gpt-5"]["money"] == pytest.approx(whole["exact_savings"]["money"])
    assert sum(value[3] for value in counts.values()) == pytest.approx(whole["exact_savings"]["money"])
    assert "Saved USD" in kvproxy("estimate", log, "--by", "team", columns=160).stdout
    piped = kvproxy("estimate", "-", "--by", "team", "--csv", stdin=log.read_bytes())
    assert piped.stdout == done.stdout


SUM_OF_A_DAY = "date,model,input_tokens,cached_tokens,output_tokens,requests\n2026-11-20,gpt-5,1000000,400000,0,9\n"


@pytest.mark.parametrize(
    ("text", "by", "options"),
    [
        (
            SUM_OF_A_DAY,
            "model",
            (),
        ),
        (
            SUM_OF_A_DAY,
            "day",
            ("--by", "day"),
        ),
        ("date,line_item,amount,currency\n2026-11-20,gpt-5,0.80,USD\n", "line_item", ("--since", "2026-11-20")),
    ],
)
def test_a_file_without_prompts_has_a_bill(text: str, by: str, options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "export.csv"
    file.write_text(text)
    bills = []
    for given in ((file,), (tmp_path,), (file, "--sessions"), ("-",)):
        done = kvproxy("estimate", *given, *options, "--json", "--data", tmp_path, stdin=text.encode())
        assert done.returncode == 0, done
        assert f"no prompts to replay, so this is what was spent, by {by}" in done.stderr or "--sessions" in given
        bills.append(json.loads(done.stdout))
    assert all(bill == bills[0] for bill in bills)
    (row,) = bills[0]["rows"]
    assert (bills[0]["by"], row["cost"] or row["reported_cost"]) == (by, pytest.approx(0.8))
    assert ("the provider's cache saved 0.4500 USD, 36.0% of the 1.2500 USD" in done.stderr) is (
        row["cost"] is not None
    )


def test_a_file_without_prompts_has_no_replay(tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    file.write_text("model,input_tokens,output_tokens\ngpt-5,10,0\n")
    done = kvproxy("estimate", file, "--blocks", "64", "--data", tmp_path)
    assert (done.returncode, "--blocks cannot be used with files without prompts" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("usage.csv", SUM_OF_A_DAY, None),
        ("usage.csv", SUM_OF_A_DAY.replace("400000", "n/a"), "1 cell unread"),
        ("usage.csv", SUM_OF_A_DAY + "2026-11-21,gpt-5,1,9,0,1\n", "1 row unread"),
        ("usage.csv", SUM_OF_A_DAY.replace("date", "audio cost,date").replace("2026", "3,2026"), "unread: audio cost"),
        ("usage.csv", SUM_OF_A_DAY.replace("gpt-5", "gpt-99"), "9 requests without money"),
        ("costs.csv", "date,amount,currency\n2026-11-20,0.80,USD\n2026-11-20,1.80,EUR\n", "1 amount in EUR"),
        ("costs.csv", "date,amount,currency\n2026-11-20,0.80,USD\n2026-11-20,n/a,USD\n", "1 cell unread"),
        ("log.jsonl", '{"model": "gpt-5", "messages": [{"role": "user", "content": "Hi."}]}\n{"a":\n', "1 row unread"),
    ],
)
def test_strict_fails_if_something_is_left_out(name: str, text: str, says: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert kvproxy("estimate", tmp_path / name, "--data", tmp_path).returncode == 0
    done = kvproxy("estimate", tmp_path / name, "--strict", "--data", tmp_path)
    assert (done.returncode, bool(done.stdout)) == ((2, False) if says else (0, True)), done
    assert (says or "") in done.stderr


def test_strict_fails_if_a_file_of_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "usage.csv").write_text(SUM_OF_A_DAY)
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    done = kvproxy("estimate", tmp_path, "--strict", "--data", tmp_path / "data")
    assert (done.returncode, "--strict: left out notes.csv" in done.stderr) == (2, True), done


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    done = kvproxy("estimate", tmp_path / "projects", "--by", "day")
    assert (done.returncode, f"no file {tmp_path / 'projects'}" in done.stderr) == (3, True), done


GPT_5 = (1.25, 0.125, 10.0)
"""List prices of gpt-5 per million tokens: input, cached, output."""


@pytest.mark.parametrize(
    ("request_tier", "response_tier", "factor"),
    [
        (None, None, 1.0),
        (None, "flex", 0.5),
        ("flex", "flex", 0.5),
        (None, "priority", 2.0),
        # The provider served the request in another tier, or the log has rebuilt the response.
        ("priority", "default", 1.0),
        ("flex", None, 0.5),
    ],
)
def test_requests_have_the_price_of_their_service_tier(
    request_tier: str | None, response_tier: str | None, factor: float, tmp_path: Path
) -> None:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Where?"}], "service_tier": request_tier}
    usage = {
        "prompt_tokens": 4_000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 1_000},
    }
    response = {"object": "chat.completion", "choices": [], "usage": usage, "service_tier": response_tier}
    row = {"time": "2026-11-20T22:00:00Z", "url": "/v1/chat/completions", "body": body, "response": response}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(row))
    uncached, cached, output = GPT_5
    cost = factor * (3_000 * uncached + 1_000 * cached) / 1e6
    (bill,) = spending(log, "--sessions", "--by", "model")["rows"]
    assert bill["input_cost"] == pytest.approx(cost)
    assert bill["output_cost"] == pytest.approx(factor * 100 * output / 1e6)
    report = json.loads(kvproxy("estimate", log, "--sessions", "--json").stdout)
    assert (report["cost"], report["uncached"]) == pytest.approx((cost, factor * 4_000 * uncached / 1e6))


@pytest.mark.parametrize(
    ("model", "usage", "factor"),
    [
        ("claude-opus-4-5-20251101", {"service_tier": "batch"}, 0.5),
        ("claude-opus-5", {"speed": "fast"}, 2.0),
        ("claude-opus-5", {"service_tier": "standard", "speed": "standard"}, 1.0),
    ],
)
def test_transcripts_have_the_price_of_their_service_tier(
    model: str, usage: dict[str, str], factor: float, tmp_path: Path
) -> None:
    write_transcripts(tmp_path)
    for file in tmp_path.rglob("*.jsonl"):
        text = file.read_text()
        for each in MODELS:
            text = text.replace(each, model)
        file.write_text(text)
    standard = spending(tmp_path, "--by", "client")["total"]
    for file in tmp_path.rglob("*.jsonl"):
        file.write_text(file.read_text().replace('"usage": {', f'"usage": {json.dumps(usage)[:-1]}, '))
    total = spending(tmp_path, "--by", "client")["total"]
    for name in ("input_cost", "output_cost", "lost_cost"):
        assert total[name] == pytest.approx(factor * standard[name])


def test_a_tier_without_a_price_is_named(tmp_path: Path) -> None:
    write_transcripts(tmp_path)
    for file in tmp_path.rglob("*.jsonl"):
        file.write_text(file.read_text().replace('"usage": {', '"usage": {"service_tier": "priority", '))
    done = kvproxy("estimate", tmp_path, "--by", "day")
    assert "at the price of the standard tier: 20 requests of the service tiers priority; set service" in done.stderr


def test_the_requests_of_a_client_do_not_depend_on_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_transcripts(tmp_path / "home" / "claude")
    start = datetime(2026, 11, 21, 10, tzinfo=UTC)
    requests = read_transcripts(find_log_files({tmp_path / "home": Path("home")}).transcripts).requests
    others = [
        LoggedRequest(
            0,
            APIS["responses"],
            {"model": "gpt-5.6", "input": [{"role": "user", "content": f"{number} {place}"} for place in range(9)]},
            time=start.timestamp() + 100 * number,
            response={
                "usage": {"input_tokens": 2_000, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 0}}
            },
            client="Codex",
        )
        for number in range(50)
    ]
    # As many prompts as a large folder has.
    monkeypatch.setattr(session_matching, "_MAX_HASHES", 60)
    settings = JournalSettings()
    (alone,) = report_spending(requests, [], "client", settings).rows
    both = sorted([*requests, *others], key=lambda request: request.time or 0.0)
    rows = {row.name: row for row in report_spending(both, [], "client", settings).rows}
    assert rows["Claude Code"] == alone
    assert alone.lost_cost is not None
    assert alone.lost_cost > 0


def test_the_invocations_of_bedrock_have_a_bill(tmp_path: Path) -> None:
    row = {
        "schemaType": "ModelInvocationLog",
        "timestamp": "2026-11-01T12:00:00Z",
        "identity": {"arn": "arn:aws:sts::123456789012:assumed-role/app/session"},
        "operation": "InvokeModel",
        "modelId": "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-20250514-v1:0",
        "input": {"inputTokenCount": 1_000, "cacheReadInputTokenCount": 8_000, "cacheWriteInputTokenCount": 2_000},
        "output": {"outputTokenCount": 100},
    }
    file = tmp_path / "invocations.jsonl"
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {"errorCode": "ValidationException"}) + "\n")
    done = kvproxy("estimate", file, "--sessions", "--by", "client", "--json", "--data", tmp_path)
    (client,) = json.loads(done.stdout)["rows"]
    assert (client["name"], client["input_tokens"], client["reused_tokens"], client["output_tokens"]) == (
        "app/session",
        11_000,
        8_000,
        100,
    )
    assert client["cost"] == pytest.approx((1_000 * 3 + 8_000 * 0.3 + 2_000 * 3.75 + 100 * 15) / 1e6)
