"""Usage without prompts: the tables of consoles, gateways, and spreadsheets."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.run import kvproxy

PRICE = ("--price", "2,10,1,3,4")
"""Of a million input, output, and cached tokens, and of tokens written for five minutes and for an hour."""


def bill(*files: Path, by: str = "model") -> tuple[dict[str, Any], str]:
    """Return the sum of the bill of files, and the notes."""
    done = kvproxy("estimate", *files, "--sessions", "--by", by, *PRICE, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)["total"], done.stderr


def table(folder: Path, text: str, name: str = "usage.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_the_headings_of_a_spreadsheet(tmp_path: Path) -> None:
    text = (
        "Time;Team;Model;Input Tokens;Output-Tokens;CACHED TOKENS;Total Cost (USD)\n"
        "2026-11-01T10:00:00Z;red;m;1,200;100;200;0.1\n"
        "2026-11-01T11:00:00Z;red;m;1000.0;n/a;;0.1\n"
        "2026-11-01T12:00:00Z;blue;m;1.2E+03;100;0;0.1\n"
    )
    total, notes = bill(table(tmp_path, text), by="team")
    assert (total["requests"], total["input_tokens"], total["output_tokens"], total["reused_tokens"]) == (
        3,
        2_200,
        200,
        200,
    )
    assert (total["unreported"], total["incomplete"]) == (0, 2)
    assert total["cost"] == pytest.approx((2_000 * 2 + 200 * 1 + 200 * 10) / 1e6)
    assert "read as usage without prompts in a table: 3 rows, 3 requests\n" in notes
    assert (
        "1 row with unreadable Output-Tokens (line 3): it counts as unknown; write 1200, 12.50, or 2026-11-21\n"
        in notes
    )
    assert (
        "1 row with unreadable Input Tokens (line 4): it counts as unknown; write 1200, 12.50, or 2026-11-21\n" in notes
    )
    assert "not read" not in notes
    # Only the first row has both numbers of tokens.
    assert (total["logged_cost"], total["logged_difference"]) == pytest.approx((0.3, 0.1 - 0.0032))


def test_numbers_whose_separator_is_ambiguous_count_as_unknown(tmp_path: Path) -> None:
    text = (
        "model;input tokens;output tokens;spend\n"
        "m;100.000;20.000;0,035\n"
        "m;1000.0;100.00;1,250\n"
        "m;1,000;100;1,250.50\n"
        "m;1000;100;$1,250,000\n"
        "m;1000;100;1e999\n"
    )
    total, notes = bill(table(tmp_path, text))
    assert (total["input_tokens"], total["output_tokens"]) == (4_000, 400)
    assert total["logged_cost"] == pytest.approx(1_251_250.535)
    for note in ("1 row with unreadable input tokens (line 2)", "2 rows with unreadable spend (lines 3, 6)"):
        assert note in notes, notes


def test_points_separate_thousands_if_a_count_shows_it(tmp_path: Path) -> None:
    text = "model;input tokens;output tokens\nm;1.000.000;20.000\nm;2.500;1.0\n"
    total, notes = bill(table(tmp_path, text))
    assert (total["input_tokens"], total["output_tokens"]) == (1_002_500, 20_001)
    assert "unreadable" not in notes


def test_an_error_names_the_missing_column_of_a_table_of_usage(tmp_path: Path) -> None:
    file = table(tmp_path, "Booking Date;AI Model;Prompt Tokens;Completion Tokens\n01.10.2026;gpt-4o;1000;100\n")
    done = kvproxy("estimate", file, "--sessions", "--by", "model")
    assert done.returncode == 2
    assert "to be a table of usage, it lacks a column model: rename it in the heading\n" in done.stderr
    done = kvproxy("estimate", file)
    assert "rename it in the heading; else name the column of questions" in done.stderr


def test_the_activity_of_openrouter_has_a_bill(tmp_path: Path) -> None:
    text = (
        "Date,Slug,Usage,BYOK Usage,Requests,Prompt Tokens,Completion Tokens,Reasoning Tokens\n"
        "2026-11-01,openai/gpt-5,0.02,0,5,3000,1400,200\n"
    )
    total, notes = bill(table(tmp_path, text))
    assert (total["requests"], total["input_tokens"], total["output_tokens"]) == (5, 3_000, 1_400)
    assert (total["logged_cost"], total["logged_difference"]) == (0.02, 0)
    assert "sound like tokens or money, not read: Reasoning Tokens; docs" in notes
    assert "not read: BYOK Usage" in notes


@pytest.mark.parametrize(
    "sums",
    [
        "Total,,,3000,300",
        ",Grand total:,,3000,300",
        ",,Summe,3000,300",
        ",Gesamt,,3000,300",
        "2026-11-02,,,3000,300",
        ",,,3000,300\n2026-11-03,m,,0,0\n,,Gesamt,3000,300",
    ],
)
def test_a_row_of_sums_does_not_count(sums: str, tmp_path: Path) -> None:
    text = (
        f"date,model,team,input tokens,output tokens\n2026-11-01,m,red,1000,100\n2026-11-02,m,blue,2000,200\n{sums}\n"
    )
    total, notes = bill(table(tmp_path, text))
    assert (total["input_tokens"], total["output_tokens"], total["unpriced"]) == (3_000, 300, 0)
    assert "of sums" in notes


@pytest.mark.parametrize(
    ("total_tokens", "expected"),
    # Helicone counts the cache beside the prompt; the total shows if a row includes it.
    [(8_200, (8_000, 0.015)), (None, (8_000, 0.015)), (9_200, (9_000, 0.017))],
)
def test_rows_of_helicone_have_the_tokens_of_the_cache(
    total_tokens: int | None, expected: tuple[int, float], tmp_path: Path
) -> None:
    prompt = 1_000 if expected[0] == 8_000 else 9_000
    row = {
        "prompt_tokens": prompt,
        "prompt_cache_read_tokens": 5_000,
        "prompt_cache_write_tokens": 2_000,
        "completion_tokens": 200,
        "total_tokens": total_tokens,
        "model": "claude-sonnet-4-5-20250929",
    }
    titles = [name.replace("_", " ").title() for name in row]
    cells = ["" if value is None else str(value) for value in row.values()]
    log = {"request_created_at": "2026-11-01T08:00:00Z", "response_status": 200, "cost": 0.25} | row
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for name, text in (
        ("rows.csv", f"{','.join(titles)}\n{','.join(cells)}\n"),
        ("bodies.jsonl", json.dumps(log | {"request_body": body, "response_body": {"type": "message"}})),
        ("without.jsonl", json.dumps(log | {"request_body": {}})),
    ):
        total, _ = bill(table(tmp_path, text, name))
        assert (total["input_tokens"], total["cost"]) == (expected[0], pytest.approx(expected[1])), name
        assert (total["reused_tokens"], total["written_tokens"]) == (5_000, 2_000), name
        assert total["logged_cost"] == (None if name == "rows.csv" else 0.25)


def test_a_row_that_differs_from_the_sum_counts(tmp_path: Path) -> None:
    head = "date,model,team,input tokens,output tokens\n"
    for rows in (
        "2026-11-01,m,red,1000,100\n2026-11-01,,blue,1000,100\n",
        "2026-11-01,m,red,1000,100\n,m,blue,1000,100\n",
        "2026-11-01,m,red,0,0\n,,blue,0,0\n",
        "2026-11-01,m,red,500,50\n,,blue,1500,150\n",
        ",m,red,500,50\n,m,red,500,50\n,m,blue,1000,100\n",
    ):
        total, notes = bill(table(tmp_path, head + rows))
        counts = [row.split(",")[3:] for row in rows.splitlines()]
        assert [total["input_tokens"], total["output_tokens"]] == [
            sum(int(count) for count in column) for column in zip(*counts, strict=True)
        ]
        assert "of sums" not in notes


def test_the_fast_mode_of_a_report_of_usage_has_its_price(tmp_path: Path) -> None:
    head = "usage_date_utc,model_version,usage_type,usage_input_tokens_no_cache,usage_output_tokens,speed\n"
    rows = (
        "2026-11-01,claude-opus-4-8,standard,1000000,100000,fast\n2026-11-02,claude-opus-4-8,standard,1000000,100000,\n"
    )
    done = kvproxy(
        "estimate", table(tmp_path, head + rows), "--sessions", "--by", "service_tier", "--json", "--data", tmp_path
    )
    assert {row["name"]: row["cost"] for row in json.loads(done.stdout)["rows"]} == {"fast": 15.0, "standard": 7.5}


def test_sums_of_an_unknown_number_of_requests_are_not_counted_as_one(tmp_path: Path) -> None:
    head = "usage_date_utc,model_version,usage_type,usage_input_tokens_no_cache,usage_output_tokens\n"
    rows = (
        "2026-11-01,claude-opus-4-8,night,1000000,100000\n"
        "2026-11-01,claude-opus-4-8,message_batch,1000000,100000\n"
        "2026-11-01,unheard-of,standard,1000000,100000\n"
        ",claude-opus-4-8,standard,1000000,100000\n"
    )
    file = table(tmp_path, head + rows)
    arguments = ("estimate", file, "--sessions", "--by", "service_tier", "--until", "2026-11-05", "--data", tmp_path)
    done = kvproxy(*arguments, "--json")
    report = json.loads(done.stdout)
    costs = {row["name"]: row["cost"] for row in report["rows"]}
    assert (costs, report["undated"]) == ({"night": 7.5, "batch": 3.75, "standard": None}, None)
    assert {row["name"]: row["standard_priced"] for row in report["rows"]} == {"night": 1, "batch": 0, "standard": 0}
    for note in (
        "at the price of the standard tier: at least 1 request of the service tiers night;",
        "not in the money: at least 1 request of models without a price",
        "not in the period: requests without a date",
    ):
        assert note in done.stderr, done.stderr


def test_a_question_with_the_headings_of_a_spreadsheet(tmp_path: Path) -> None:
    file = table(
        tmp_path, 'Question,Model,Input Tokens,Output Tokens,Team\nHi.,m,"1,200",100,red\nHo.,m,"1,2",100,red\n'
    )
    done = kvproxy("estimate", file, "--column", "Question", "--by", "team", "--data", tmp_path, "--json")
    assert [row["name"] for row in json.loads(done.stdout)["groups"]] == ["red"]
    assert "with Model, Input Tokens, Output Tokens, Team: 2 rows, 2 requests, 2 conversations, 1 with a" in done.stderr
    assert (
        "1 row with unreadable Input Tokens (line 3): it counts as unknown; write 1200, 12.50, or 2026-11-21\n"
        in done.stderr
    )
    assert "usage without prompts: kvproxy estimate lists its cost; if a column has" in kvproxy("lint", file).stderr


def test_sums_of_a_day_state_their_number_of_requests_or_none(tmp_path: Path) -> None:
    head = "date,model,n_requests,n_context_tokens_total,n_generated_tokens_total\n"
    total, _ = bill(table(tmp_path, f"{head}2026-05-01,m,420,1250000,98000\n"))
    assert (total["requests"], total["input_tokens"], total["output_tokens"]) == (420, 1_250_000, 98_000)
    total, notes = bill(table(tmp_path, f"{head}2026-05-01,m,,1250000,98000\n"), by="day")
    assert (total["requests"], "UTC days" in notes) == (None, True)


def test_a_group_of_unknown_input_has_no_money_for_it(tmp_path: Path) -> None:
    text = "date,model,requests,input tokens,output tokens\n2026-05-01,m,4,1000,9\n2026-05-01,n,4,,9\n"
    done = kvproxy("estimate", table(tmp_path, text), "--sessions", "--by", "model", *PRICE, "--json")
    costs = {row["name"]: (row["input_cost"], row["uncached_cost"]) for row in json.loads(done.stdout)["rows"]}
    assert costs == {"m": (0.002, 0.002), "n": (None, None)}


def test_a_bill_by_several_fields(tmp_path: Path) -> None:
    text = (
        "date,model,team,requests,input tokens,output tokens\n2026-05-02,m,red,1,1000,0\n2026-05-01,m,red,1,1000,0\n"
        "2026-05-01,n,red,1,4000,0\n2026-05-01,m,,1,2000,0\n"
    )
    arguments = ("estimate", table(tmp_path, text), "--sessions", *PRICE)
    lines = kvproxy(*arguments, "--by", "day, model", "--csv", "--columns", "day,model,requests,cost,currency").stdout
    assert lines.splitlines() == [
        "day,model,requests,cost,currency",
        "2026-05-01,n,1,0.008,USD",
        "2026-05-01,m,2,0.006,USD",
        "2026-05-02,m,1,0.002,USD",
    ]
    report = json.loads(kvproxy(*arguments, "--by", "team,day", "--json").stdout)
    assert report["by"] == "team,day"
    assert [row["groups"] for row in report["rows"]] == [
        {"team": "", "day": "2026-05-01"},
        {"team": "red", "day": "2026-05-01"},
        {"team": "red", "day": "2026-05-02"},
    ]
    shown = kvproxy(*arguments, "--by", "team,day").stdout.splitlines()
    assert [line.split("\t")[:3] for line in (shown[0], shown[1], shown[-1])] == [
        ["team", "day", "requests"],
        ["(no team)", "2026-05-01", "1"],
        ["all", "", "4"],
    ]
    for wrong, says in (("day,hour", "unknown group 'hour': use one or several of day, week"), ("day,day", "twice")):
        refused = kvproxy(*arguments, "--by", wrong)
        assert (refused.returncode, says in refused.stderr) == (2, True), refused


def test_dates_of_spreadsheets(tmp_path: Path) -> None:
    head = "date,model,requests,input tokens,output tokens\n"
    for date in ("2026/9/1", "2026-9-1", "2026.09.01"):
        done = kvproxy("estimate", table(tmp_path, f"{head}{date},m,4,100,9\n"), "--sessions", "--by", "day", "--json")
        report = json.loads(done.stdout)
        assert ([row["name"] for row in report["rows"]], report["has_utc_days"]) == (["2026-09-01"], True), date
    timed = table(tmp_path, "time,model,input tokens,output tokens\n2026/9/1 9:05,m,100,9\n")
    assert bill(timed, by="day")[0]["requests"] == 1
    for rows, days in {
        "10/11/2026,m,4,100,9\n13/11/2026,m,4,100,9\n2026-11-14,m,4,100,9\n": [
            "2026-11-10",
            "2026-11-13",
            "2026-11-14",
        ],
        "10/11/2026,m,4,100,9\n11/13/2026,m,4,100,9\n": ["2026-10-11", "2026-11-13"],
        # The order of these dates is unknown.
        "10/11/2026,m,4,100,9\n11/13/2026,m,4,100,9\n13/11/2026,m,4,100,9\n": [""],
    }.items():
        done = kvproxy("estimate", table(tmp_path, head + rows), "--sessions", "--by", "day", "--json")
        assert [row["name"] for row in json.loads(done.stdout)["rows"]] == days
    _, notes = bill(table(tmp_path, f"{head}9/1/2026,m,4,100,9\n"))
    assert "1 row with unreadable date (line 2): it counts as unknown; write 1200, 12.50, or 2026-11-21\n" in notes


def test_anthropic_counts_the_cache_beside_the_input(tmp_path: Path) -> None:
    head = "usage_date_utc,model_version,api_key,workspace,usage_type,context_window,usage_input_tokens_no_cache,"
    head += "usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,"
    head += "usage_output_tokens,web_search_count,inference_geo,speed\n"
    rows = "2026-07-31,claude-opus-5,ann,w1,standard,≤ 200k,46981000,2528,10,500,34988,0,global,\n"
    total, notes = bill(table(tmp_path, head + rows), by="client")
    assert (total["requests"], total["input_tokens"], total["written_tokens"]) == (None, 46_984_038, 2_538)
    paid = 46_981_000 * 2 + 2_528 * 3 + 10 * 4 + 500 * 1 + 34_988 * 10
    assert total["cost"] == pytest.approx(paid / 1e6)
    assert "read as report of Anthropic's usage in a table: 1 row\n" in notes
    assert "inference_geo" not in notes
    # Inference in the US costs 1.1 times as much.
    regional, notes = bill(table(tmp_path, head + rows + rows.replace(",global,", ",us,")), by="client")
    assert regional["cost"] == pytest.approx(2.1 * paid / 1e6)
    assert "inference_geo" not in notes
    unknown, notes = bill(table(tmp_path, head + rows + rows.replace(",global,", ",moon,")), by="client")
    assert unknown["cost"] == pytest.approx(2 * paid / 1e6)
    assert "the unknown surcharge of Anthropic for the region (inference_geo) of at least 1 request\n" in notes
    text = (
        "date,model,input_tokens,output_tokens,cache_creation_input_tokens,cache_read_input_tokens,request_count\n"
        "2026-06-01,m,3000,600,100,50,20\n"
    )
    total, _ = bill(table(tmp_path, text))
    assert (total["requests"], total["input_tokens"], total["reused_tokens"], total["written_tokens"]) == (
        20,
        3_150,
        50,
        100,
    )


@pytest.mark.parametrize(
    ("names", "total", "expected"),
    [
        ("cache_read_tokens,cache_creation_tokens", "", 1_800),
        ("Cache Read Tokens,Cache Write Tokens", "", 1_800),
        ("cache_read,cache_creation", "1900", 1_800),
        # The total shows that the input has the tokens of the cache.
        ("cache_read_tokens,cache_creation_tokens", "1100", 1_000),
        ("cache_read_input_tokens,cache_creation_input_tokens", "1100", 1_000),
    ],
)
def test_the_tokens_of_the_cache_are_beside_the_input_or_in_it(
    names: str, total: str, expected: int, tmp_path: Path
) -> None:
    text = f"model,input_tokens,output_tokens,{names},total_tokens\nclaude-opus-4-5,1000,100,500,300,{total}\n"
    found, _ = bill(table(tmp_path, text))
    assert (found["input_tokens"], found["reused_tokens"], found["written_tokens"]) == (expected, 500, 300)


def test_the_usage_export_of_opencode(tmp_path: Path) -> None:
    text = (
        "day,user_type,user_id,user_name,provider,model,requests,input_tokens,output_tokens,cache_read_tokens,"
        "cache_write_5m_tokens,cache_write_1h_tokens,cost_micro_cents,cost_usd\n"
        "2026-11-24,member,user_1,ada,opencode,claude-opus-4-5,10,1000,0,5000,300,200,1300000,0.013\n"
    )
    total, notes = bill(table(tmp_path, text))
    assert (total["input_tokens"], total["reused_tokens"], total["written_tokens"]) == (6_500, 5_000, 500)
    assert total["cost"] == pytest.approx((1_000 * 2 + 5_000 * 1 + 300 * 3 + 200 * 4) / 1e6)
    assert "sound like tokens or money" not in notes


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # The writes are beside the other input, or the total shows that they include it.
        ("1200,300,4500,850,6850", (6_000, 4_500, 1_200)),
        ("1200,1000,5000,300,6500", (6_200, 5_000, 200)),
        ("0,150,0,90,240", (150, 0, 0)),
        ("1200,1000,5000,300,9999", (None, 5_000, None)),
    ],
)
def test_the_usage_events_of_cursor(counts: str, expected: tuple[int | None, ...], tmp_path: Path) -> None:
    head = "Date,Kind,Model,Max Mode,Input (w/ Cache Write),Input (w/o Cache Write),Cache Read,Output Tokens,Total Tokens,Cost"
    total, _ = bill(table(tmp_path, f"{head}\n2026-10-01T10:00:00.000Z,Included,m,No,{counts},$0.42\n"))
    assert (total["input_tokens"], total["reused_tokens"], total["written_tokens"]) == expected
    assert (total["requests"], total["logged_cost"]) == (1, 0.42)


def test_the_table_of_openai_has_empty_periods_decimals_and_large_sums(tmp_path: Path) -> None:
    head = "start_time,end_time,model,num_model_requests,input_tokens,input_cached_tokens,output_tokens\n"
    rows = "1773446400,1773532800,,,,,\n1773532800,1773619200,gpt-4o,25.0,90000000.0,1280.0,5640.0\n"
    total, notes = bill(table(tmp_path, head + rows))
    assert (total["requests"], total["input_tokens"], total["unreported"]) == (25, 90_000_000, 0)
    assert total["cost"] == pytest.approx((89_998_720 * 2 + 1_280 * 1 + 5_640 * 10) / 1e6)
    # What the provider's cache saved so far: the price of the input without it, less the price of the input.
    assert total["uncached_cost"] - total["input_cost"] == pytest.approx(1_280 * 1 / 1e6)
    assert "skipped 1 row without a request: 1 no request\n" in notes
    done = kvproxy("estimate", table(tmp_path, head + "1,2,m,1,5,9,1\n"), "--sessions", "--by", "day")
    assert "9 cached tokens are more than the 5 input tokens" in done.stderr


def test_the_client_of_openai_is_the_key(tmp_path: Path) -> None:
    head = "start_time,end_time,model,num_model_requests,input_tokens,output_tokens,user_id,api_key_id\n"
    rows = "1761868800,1761955200,gpt-5,1,100,10,u1,k1\n1761868800,1761955200,gpt-5,1,100,10,u2,\n"
    done = kvproxy("estimate", table(tmp_path, head + rows), "--sessions", "--by", "client", "--json")
    assert {row["name"] for row in json.loads(done.stdout)["rows"]} == {"k1", "u2"}


def test_the_activity_of_openrouter(tmp_path: Path) -> None:
    text = (
        "generation_id,created_at,cost_total,tokens_prompt,tokens_completion,tokens_reasoning,tokens_cached,model_permaslug,"
        "variant,user,api_key_name,app_name\n"
        "gen-1,2026-06-28 03:46:57.713,0.0123,10389,137,30,1000,anthropic/claude-4.5-sonnet-20250929,standard,,ann,App\n"
    )
    total, _ = bill(table(tmp_path, text))
    assert (total["requests"], total["cost"]) == (1, pytest.approx((9_389 * 2 + 1_000 + 137 * 10) / 1e6))
    assert (total["logged_cost"], total["logged_difference"]) == (0.0123, pytest.approx(0.0123 - total["cost"]))
    for by, name in (("client", "ann"), ("project", "App")):
        done = kvproxy("estimate", table(tmp_path, text), "--sessions", "--by", by, "--json")
        assert [row["name"] for row in json.loads(done.stdout)["rows"]] == [name]
    # A free variant does not have the list price of the model.
    file = table(tmp_path, text.replace("anthropic/claude-4.5-sonnet-20250929,standard", "google/gemini-2.5-pro,free"))
    (row,) = json.loads(kvproxy("estimate", file, "--sessions", "--by", "model", "--json").stdout)["rows"]
    assert (row["name"], row["cost"], row["unpriced"]) == ("google/gemini-2.5-pro:free", None, 1)


def test_spend_logs_of_litellm_without_prompts(tmp_path: Path) -> None:
    head = (
        "request_id,call_type,api_key,spend,prompt_tokens,completion_tokens,startTime,endTime,model,metadata,team_id,"
    )
    head += "messages\n"
    rows = (
        "r1,acompletion,88dc28aa,0.01,1000,200,2026-11-01 10:00:00.000,2026-11-01 10:00:02.000,openai/gpt-4o,{},red,{}\n"
        "r2,aembedding,88dc28aa,0.01,500,0,2026-11-01 10:00:00.000,2026-11-01 10:00:02.000,openai/e,{},red,{}\n"
    )
    file = table(tmp_path, head + rows)
    total, notes = bill(file)
    assert (total["requests"], total["output_tokens"], total["incomplete"]) == (2, 200, 0)
    assert total["cost"] == pytest.approx((1_500 * 2 + 200 * 10) / 1e6)
    assert (total["logged_cost"], total["logged_difference"]) == pytest.approx((0.02, 0.015))
    assert "the logs state 0.0200 USD; for requests with both figures, 0.0150 USD more than the prices here" in notes
    done = kvproxy("lint", file)
    assert "kvproxy estimate lists its cost" in done.stderr
    # The spend is rounded, as in exports.
    total, notes = bill(
        table(tmp_path, head + rows.replace(",0.01,1000", ",0.0040000001,1000").replace("0.01", "0.001"))
    )
    assert str(total["logged_difference"]) == "0.0"
    assert "for requests with both figures, the prices here give the same, within rounding" in notes


def test_days_in_two_reports_are_named(tmp_path: Path) -> None:
    head = "date,model,requests,input tokens,output tokens\n"
    first = table(tmp_path, f"{head}2026-05-01,m,4,100,9\n2026-05-02,m,4,100,9\n", "first.csv")
    second = table(tmp_path, f"{head}2026-05-02,m,4,100,9\n2026-05-03,m,4,100,9\n", "second.csv")
    other = table(tmp_path, f"{head}2026-05-01,another,4,100,9\n", "other.csv")
    _, notes = bill(first, second)
    assert (
        f"{first} and {second} have usage of one model, or costs of one item, on 2026-05-02: they count twice" in notes
    )
    _, notes = bill(first, other)
    assert "counts twice" not in notes


def page(start: int, *, has_more: bool) -> dict[str, Any]:
    result = {"object": "organization.usage.completions.result", "model": "m", "num_model_requests": 1}
    result |= {"input_tokens": 10, "output_tokens": 2}
    bucket = {"object": "bucket", "start_time": start, "end_time": start + 86_400, "results": [result]}
    return {"object": "page", "data": [bucket], "has_more": has_more, "next_page": "page_x" if has_more else None}


def test_a_page_without_the_next_one_is_named(tmp_path: Path) -> None:
    first, last, later = page(0, has_more=True), page(86_400, has_more=False), page(172_800, has_more=False)
    one = table(tmp_path, json.dumps(first), "one.json")
    says = "incomplete: {} says that further pages follow it (has_more), and they are not here"
    total, notes = bill(one)
    assert (total["requests"], says.format(one) in notes) == (1, True)
    assert "give them, too, from page=page_x on\n" in notes
    # The second page is missing.
    assert says.format(one) in bill(one, table(tmp_path, json.dumps(later), "three.json"))[1]
    assert "incomplete" not in bill(one, table(tmp_path, json.dumps(last), "two.json"))[1]
    assert "incomplete" not in bill(table(tmp_path, "\n".join(map(json.dumps, (first, last))), "lines.jsonl"))[1]
    lines = table(tmp_path, "\n".join(map(json.dumps, (first, page(86_400, has_more=True)))), "open.jsonl")
    assert bill(lines)[1].count("incomplete") == 1


def test_a_page_of_stored_requests_without_the_next_one_is_named(tmp_path: Path) -> None:
    request = {"id": "chatcmpl-1", "model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    file = table(tmp_path, json.dumps({"object": "list", "data": [request], "has_more": True}), "list.json")
    done = kvproxy("estimate", file, "--json")
    assert json.loads(done.stdout)["log"]["unfinished_pages"] == [str(file)]
    assert f"incomplete: {file} says that further pages follow it (has_more)" in done.stderr
    last = table(tmp_path, json.dumps({"object": "list", "data": [request], "has_more": False}), "last.json")
    assert "incomplete" not in kvproxy("estimate", file, last).stderr


OPENAI_COSTS = {
    "object": "page",
    "data": [
        {"object": "bucket", "start_time": 1, "end_time": 2, "results": []},
        {"object": "bucket", "start_time": 2, "end_time": 3}
        | {"results": [{"object": "organization.costs.result", "amount": {"value": 0.06, "currency": "usd"}}] * 2},
    ],
    "has_more": False,
}
ANTHROPIC_COSTS = {
    "data": [
        {"starting_at": "2026-11-01T00:00:00Z", "ending_at": "2026-11-02T00:00:00Z"}
        | {"results": [{"amount": "123.5", "currency": "USD", "description": None}]}
    ],
    "has_more": False,
}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("costs.json", json.dumps(OPENAI_COSTS), ("(0.12 USD), ", "OpenAI's")),
        (
            "costs.json",
            json.dumps(ANTHROPIC_COSTS),
            ("(1.24 USD), ", "Anthropic's"),
        ),
        (
            "costs.csv",
            "start_time,end_time,amount_value,amount_currency,line_item\n1,2,0.5,usd,gpt-5\n2,3,1,eur,gpt-5\n",
            ("(0.50 USD and 1.00 EUR), ", "OpenAI's"),
        ),
        (
            "costs.csv",
            "usage_date_utc,model,workspace,cost_type,cost_usd\n2026-11-01,Claude Opus 5,w1,token,3.25\n",
            ("(3.25 USD), ", "Anthropic's"),
        ),
        (
            "costs.csv",
            'Date,Spend ($),Team\n2026-11-01,"1,200.50",red\n2026-11-02,n/a,red\n',
            ("a report of costs, ", "LiteLLM's spend logs)"),
        ),
    ],
)
def test_a_report_of_costs_is_named(name: str, text: str, says: tuple[str, str], tmp_path: Path) -> None:
    done = kvproxy("lint", table(tmp_path, text, name))
    assert (done.returncode, done.stdout) == (2, "")
    says_prompts = (
        "which has no prompts: kvproxy estimate lists its amounts, and compares them with a report of usage ("
    )
    assert says_prompts.join(says) in done.stderr
    assert done.stderr.count("\n") == 1


USAGE = (
    "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_output_tokens\n"
    "2026-11-01,claude-opus-4-5,1000000,100000\n2026-11-02,claude-opus-4-5,1000000,0\n"
)
"""7.50 USD on the first day, 5.00 on the second."""
COST_HEAD = "usage_date_utc,model,token_type,cost_usd,list_price_usd,cost_type\n"


@pytest.mark.parametrize(
    ("rows", "parts", "says"),
    [
        (
            "2026-11-01,Claude,x,7.50,7.50,token\n2026-11-02,Claude,x,5.00,5.00,token\n",
            {},
            "12.5000 USD, as the prices here",
        ),
        # Each amount is rounded to cents.
        ("2026-11-01,Claude,x,7.51,7.51,token\n2026-11-02,Claude,x,5.00,5.00,token\n", {}, "within rounding"),
        (
            "2026-11-01,Claude,x,7.50,7.50,token\n2026-11-01,,,0.30,0.30,web_search\n2026-11-02,Claude,x,4.00,5.00,token\n"
            "2026-11-03,Claude,x,2.00,2.00,token\n",
            {"services": {"web_search": 0.3}, "discount": -1, "without_usage": 2, "difference": 1.3},
            "13.8000 USD, 1.3000 more than the prices here: +0.3000 for web_search, -1.0000 of discounts, +2.0000 on days",
        ),
        (
            "2026-11-01,Claude,x,7.51,7.51,token\n2026-11-02,Claude,x,2.50,2.50,token\n",
            {"rest": -2.49, "rest_by_day": {"2026-11-02": -2.5, "2026-11-01": 0.01}},
            "2.4900 less than the prices here: -2.4900 not explained, most on 2026-11-02; compare prices and tiers",
        ),
        (
            "2026-11-02,Claude,x,8.00,8.00,token\n",
            {"without_costs": -7.5, "rest": 3, "difference": -4.5},
            "4.5000 less than the prices here: -7.5000 on days without costs there, +3.0000 not explained; compare prices",
        ),
    ],
)
def test_a_report_of_costs_is_compared_with_the_usage(
    rows: str, parts: dict[str, Any], says: str, tmp_path: Path
) -> None:
    costs, usage = table(tmp_path, COST_HEAD + rows, "costs.csv"), table(tmp_path, USAGE, "usage.csv")
    done = kvproxy("estimate", costs, usage, "--sessions", "--by", "model", "--json", "--data", tmp_path)
    document = json.loads(done.stdout)
    assert document["total"]["cost"] == pytest.approx(12.5)
    found = document["reported"]
    nothing = {"services": {}, "discount": 0, "without_usage": 0, "without_costs": 0, "rest": 0, "left_out": 0}
    for name, value in (nothing | parts).items():
        assert found[name] == pytest.approx(value, abs=1e-9), name
    assert says in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("models", "rows", "parts", "says"),
    [
        # The report has 2.00 of a model without a price, and nothing of Anthropic.
        (
            ("claude-opus-4-5", "gpt-5", "gpt-99"),
            "2026-11-01,gpt-5,x,2.25,,token\n2026-11-01,gpt-99,x,2.00,,token\n",
            {"providers": {"anthropic": -7.5}, "unpriced": 2, "rest": 0, "difference": -5.5},
            "5.5000 less than the prices here: -7.5000 of anthropic without costs there, +2.0000 of models without a price here",
        ),
        (
            ("gpt-5",),
            "2026-11-01,gpt-5,x,2.25,,token\n2026-11-01,Claude Opus 4.5,x,2.00,,token\n",
            {"providers": {"anthropic": 2}, "rest": 0, "difference": 2},
            "2.0000 more than the prices here: +2.0000 of anthropic without usage here",
        ),
        # Requests without a price cannot explain a report of less money.
        (
            ("gpt-5", "gpt-99"),
            "2026-11-01,,x,1.00,,token\n",
            {"providers": {}, "unpriced": 0, "rest": -1.25},
            "-1.2500 not explained; compare prices and tiers",
        ),
        (
            ("gpt-5", "gpt-99"),
            "2026-11-01,,x,5.00,,token\n",
            {"providers": {}, "unpriced": 0, "rest": 2.75},
            "+2.7500 not explained, probably of at least 1 request of models without a price",
        ),
    ],
)
def test_a_comparison_names_what_only_one_report_has(
    models: tuple[str, ...], rows: str, parts: dict[str, Any], says: str, tmp_path: Path
) -> None:
    used = "".join(f"2026-11-01,{model},1000000,100000\n" for model in models)
    usage = table(tmp_path, "date,model,input_tokens,output_tokens\n" + used, "usage.csv")
    costs = table(tmp_path, COST_HEAD + rows, "costs.csv")
    done = kvproxy("estimate", costs, usage, "--sessions", "--by", "model", "--json", "--data", tmp_path)
    found = json.loads(done.stdout)["reported"]
    for name, value in parts.items():
        assert found[name] == pytest.approx(value), name
    assert says in " ".join(done.stderr.split())


def test_a_report_of_costs_without_an_exchange_rate_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal]\ncurrency = "EUR"\n')
    rows = "2026-11-01,Claude,x,7.50,7.50,token\n2026-11-02,Claude,x,5.00,5.00,token\n"
    costs, usage = table(tmp_path, COST_HEAD + rows, "costs.csv"), table(tmp_path, USAGE, "usage.csv")
    done = kvproxy("estimate", costs, usage, "--sessions", "--by", "model", "--json", "--data", tmp_path)
    found = json.loads(done.stdout)["reported"]
    assert (found["reported"], found["difference"], found["left_out"]) == (None, None, 2)
    assert "the report of costs is not compared: 2 amounts in USD, whose rate to EUR is unknown" in " ".join(
        done.stderr.split()
    )


def reported(rows: list[dict[str, Any]]) -> dict[str, tuple[float | None, float | None, float | None]]:
    return {row["name"]: (row["cost"], row["reported_cost"], row["reported_difference"]) for row in rows}


def openai_costs(folder: Path) -> Path:
    """Costs of two days, one of which has no usage in `USAGE`, and of a service."""
    results = [
        {"amount": {"value": value, "currency": "usd"}, "line_item": item, "project_id": project}
        for value, item, project in (
            (1.5, "gpt-5-2025-08-07, input", "p1"),
            (0.5, "gpt-5-2025-08-07, output", "p1"),
            (0.25, "web search tool calls", "p2"),
        )
    ]
    buckets = [
        {"object": "bucket", "start_time": start, "end_time": start + 86_400, "results": results}
        for start in (1_793_491_200, 1_793_577_600)
    ]
    return table(folder, json.dumps({"object": "page", "data": buckets, "has_more": False}), "costs.json")


def test_a_report_of_costs_alone_has_a_bill(tmp_path: Path) -> None:
    arguments = ("estimate", openai_costs(tmp_path), "--sessions", "--data", tmp_path)
    for by, expected in {
        "day": {"2026-11-01": 2.25, "2026-11-02": 2.25},
        "project": {"p1": 4, "p2": 0.5},
        "model": {"gpt-5-2025-08-07": 4, "": 0.5},
        "line_item": {"gpt-5-2025-08-07, input": 3, "gpt-5-2025-08-07, output": 1, "web search tool calls": 0.5},
    }.items():
        done = kvproxy(*arguments, "--by", by, "--json")
        report = json.loads(done.stdout)
        assert reported(report["rows"]) == {name: (None, cost, None) for name, cost in expected.items()}
        assert (report["total"]["requests"], report["total"]["reported_cost"]) == (None, 4.5)
        assert {row["requests"] for row in report["rows"]} == {None}
        assert "the report of costs has no tokens: give the report of usage, too" in done.stderr
    shown = kvproxy(*arguments, "--by", "day,project", "--until", "2026-11-02", "--csv", TZ="UTC").stdout.splitlines()
    assert len(shown) == 3
    assert shown[1].startswith("2026-11-01,p1,,")


@pytest.mark.parametrize(
    "head",
    [
        "Date,MeterCategory,MeterName,ResourceGroup,Quantity,CostInBillingCurrency,BillingCurrency",
        "ChargePeriodStart,ServiceName,ChargeDescription,SubAccountName,PricingQuantity,BilledCost,BillingCurrency",
        "day,category,item,resource group,quantity,cost,currency",
    ],
)
def test_a_table_of_costs_of_a_cloud_has_a_bill(head: str, tmp_path: Path) -> None:
    rows = (
        "10/01/2026,Foundry Models,gpt 4o Inp,rg,6000,15.00,USD\n10/13/2026,Foundry Models,gpt 4o Outp,rg,1,10.00,USD\n"
    )
    if head.startswith("ChargePeriod"):
        rows = rows.replace("10/01/2026", "2026-10-01T00:00:00Z").replace("10/13/2026", "2026-10-13T00:00:00Z")
    for end in ("", "Summe,,,,,25.00,USD\n"):
        file = table(tmp_path, f"{head}\n{rows}{end}", "costs.csv")
        for by, expected in {
            "day": {"2026-10-01": 15, "2026-10-13": 10},
            "line_item": {"gpt 4o Inp": 15, "gpt 4o Outp": 10},
            "project": {"rg": 25},
        }.items():
            done = kvproxy("estimate", file, "--sessions", "--by", by, "--json", "--data", tmp_path)
            found = json.loads(done.stdout)["rows"]
            assert reported(found) == {name: (None, cost, None) for name, cost in expected.items()}


def test_bills_have_weeks_and_months(tmp_path: Path) -> None:
    usage = "date,model,input tokens,output tokens\n"
    # 2026 ends within a week of this year.
    usage += "2026-11-30,m,1000000,0\n2026-12-31,m,3000000,0\n2027-01-01,m,4000000,0\n2026-12-01,m,2000000,0\n"
    costs = COST_HEAD + "2026-12-01,m,x,4.00,,token\n2027-01-01,m,x,1.00,,token\n"
    files = table(tmp_path, usage), table(tmp_path, costs, "costs.csv")
    for by, expected in {
        "month": {"2026-11": (2, None), "2026-12": (10, 4), "2027-01": (8, 1)},
        "week": {"2026-W49": (6, 4), "2026-W53": (14, 1)},
        "model,month": {"m, 2026-11": (2, None), "m, 2026-12": (10, 4), "m, 2027-01": (8, 1)},
    }.items():
        done = kvproxy("estimate", *files, "--sessions", "--by", by, *PRICE, "--json", "--data", tmp_path)
        rows = json.loads(done.stdout)["rows"]
        assert [row["name"] for row in rows] == list(expected)
        assert {row["name"]: (row["cost"], row["reported_cost"]) for row in rows} == expected


def test_each_group_states_how_its_reported_costs_differ(tmp_path: Path) -> None:
    rows = (
        "2026-11-01,Claude Opus 4.5,x,7.00,7.00,token\n2026-11-01,,,0.30,0.30,web_search\n"
        "2026-11-02,Claude Opus 4.5,x,5.00,5.00,token\n2026-11-03,Claude Haiku 4.5,x,2.00,2.00,token\n"
    )
    files = (table(tmp_path, COST_HEAD + rows, "costs.csv"), table(tmp_path, USAGE))
    arguments = ("estimate", *files, "--sessions", "--data", tmp_path, "--json", "--by")
    by_day = json.loads(kvproxy(*arguments, "day").stdout)
    assert reported(by_day["rows"]) == {
        "2026-11-01": (7.5, pytest.approx(7.3), pytest.approx(-0.2)),
        "2026-11-02": (5.0, 5.0, 0),
        "2026-11-03": (None, 2.0, None),
    }
    by_model = json.loads(kvproxy(*arguments, "model").stdout)
    assert reported(by_model["rows"]) == {
        "claude-opus-4-5": (12.5, 12.0, -0.5),
        "Claude Haiku 4.5": (None, 2.0, None),
        "": (None, 0.3, None),
    }
    total = by_model["total"]
    assert (total["reported_cost"], total["reported_difference"]) == pytest.approx((14.3, 1.8))
    first = kvproxy(*arguments, "day", "--until", "2026-11-02", TZ="UTC")
    comparison = json.loads(first.stdout)["reported"]
    assert (comparison["reported"], comparison["difference"]) == pytest.approx((7.3, -0.2))


def test_a_cost_has_the_currency_of_its_column(tmp_path: Path) -> None:
    text = "Date,Model,Input Tokens,Output Tokens,Cost,Currency\n2026-11-01,m,1000,100,{},{}\n"
    total, notes = bill(table(tmp_path, text.format("0.004", "usd")))
    assert (total["logged_cost"], total["logged_difference"]) == pytest.approx((0.004, 0.001))
    assert "not read" not in notes
    total, notes = bill(table(tmp_path, text.format("0.004", "EUR")))
    assert (total["logged_cost"], total["logged_difference"]) == (None, None)
    assert "the logs state money in EUR, which is not compared: the rate to USD is unknown" in notes
    (tmp_path / "kvproxy.toml").write_text('[journal]\ncurrency = "EUR"\nusd_rate = 0.5\n')
    for name, cost in (("EUR", 0.004), ("USD", 0.002)):
        file = table(tmp_path, text.format("0.004", name))
        done = kvproxy("estimate", file, "--sessions", "--by", "model", *PRICE, "--json", "--data", tmp_path)
        assert json.loads(done.stdout)["total"]["logged_cost"] == pytest.approx(cost)
    without = table(tmp_path, text.replace(",Currency", "").replace(",{}\n", "\n").format("0.004"))
    assert "sound like tokens or money, not read: Cost; docs" in bill(without)[1]


@pytest.mark.parametrize(
    ("name", "row", "day"),
    [
        ("daily", {"date": "2026-11-21", "project": "shop"}, "2026-11-21"),
        ("weekly", {"week": "2026-11-16", "project": "shop"}, "2026-W47"),
        ("monthly", {"month": "2026-11", "project": "shop"}, "2026-11"),
        ("sessions", {"sessionId": "s", "lastActivity": "2026-11-21", "projectPath": "shop"}, "2026-11-21"),
    ],
)
def test_a_report_of_ccusage_has_a_bill(name: str, row: dict[str, Any], day: str, tmp_path: Path) -> None:
    counts = {"inputTokens": 100, "outputTokens": 1_000, "cacheCreationTokens": 2_000, "cacheReadTokens": 30_000}
    models = [
        {"modelName": "claude-opus-4-5-20251101", "cost": 0.053, **counts},
        {"modelName": "claude-haiku-4-5-20251001", "cost": 0.0106, **counts},
    ]
    totals = {"inputTokens": 200, "totalCost": 0.0636}
    report = {name: [row | {"totalCost": 0.0636, "modelBreakdowns": models}], "totals": totals}
    file = table(tmp_path, json.dumps(report, indent=2), "ccusage.json")
    done = kvproxy("estimate", file, "--sessions", "--by", "day,project,model", "--json", "--data", tmp_path)
    assert "read as report of ccusage" in done.stderr, done
    assert "UTC days" not in done.stderr
    assert "days of ccusage: those of the time zone in which it ran" in done.stderr
    found = json.loads(done.stdout)
    costs = {tuple(each["groups"].values()): (each["cost"], each["logged_difference"]) for each in found["rows"]}
    # 100 x 5 + 2,000 x 6.25 + 30,000 x 0.5 + 1,000 x 25, and a fifth of it.
    assert costs == {
        (day, "shop", "claude-opus-4-5-20251101"): (pytest.approx(0.053), 0),
        (day, "shop", "claude-haiku-4-5-20251001"): (pytest.approx(0.0106), 0),
    }
    assert (found["total"]["requests"], found["total"]["input_tokens"]) == (None, 64_200)
