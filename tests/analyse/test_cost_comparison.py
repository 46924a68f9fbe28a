"""How reports of costs differ from the money of usage: by region, by provider, by service, and by rounding."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.run import kvproxy


def compared(folder: Path, usage: str, costs: str, *more: str) -> tuple[dict[str, Any], str]:
    """Return the bill of a table of usage and a report of costs, and the notes."""
    files = [folder / "usage.csv", folder / ("costs.json" if costs.startswith("{") else "costs.csv")]
    for file, text in zip(files, (usage, costs), strict=True):
        file.write_text(text)
    by = () if "--by" in more else ("--by", "model")
    done = kvproxy("estimate", *files, "--sessions", *by, "--json", "--data", folder, *more)
    assert done.returncode == 0, done
    return json.loads(done.stdout), " ".join(done.stderr.split())


ANTHROPIC = (
    "usage_date_utc,model_version,inference_geo,usage_input_tokens_no_cache,usage_output_tokens\n"
    "2026-11-01,claude-opus-4-6,global,1000000,0\n2026-11-01,claude-opus-4-6,us,1000000,100000\n"
)
"""5.00 USD, and 7.50 USD at 1.1 times the price."""
FOCUS = "ChargePeriodStart,ProviderName,ServiceCategory,ServiceName,ChargeDescription,BilledCost,BillingCurrency\n"
AI = "2026-11-01T00:00:00Z,AWS,AI and Machine Learning,Amazon Bedrock,Claude tokens,100.00,USD\n"
EC2 = "2026-11-01T00:00:00Z,AWS,Compute,Amazon Elastic Compute Cloud,t3.micro,19.98,USD\n"


def test_inference_in_one_region_has_its_price(tmp_path: Path) -> None:
    costs = "usage_date_utc,model,token_type,cost_usd,cost_type\n2026-11-01,Claude Opus 4.6,x,13.25,token\n"
    report, notes = compared(tmp_path, ANTHROPIC, costs)
    assert report["total"]["cost"] == pytest.approx(13.25)
    assert "the report of costs states 13.2500 USD, as the prices here give, within rounding" in notes
    assert "inference_geo" not in notes


@pytest.mark.parametrize(
    ("usage", "rows", "parts", "says"),
    [
        # The cloud bills no usage of the provider's own report.
        (ANTHROPIC, AI + EC2, {"aws": 100, "anthropic": -13.25}, "+100.0000 of aws without usage here"),
        (ANTHROPIC, EC2, {"anthropic": -13.25}, "-13.2500 of anthropic without costs there"),
        # A cloud may bill the models of a table that names no provider.
        (
            "date,model,input tokens,output tokens\n2026-11-01,claude-opus-4-6,20000000,0\n",
            AI + EC2,
            {},
            "19.9800 more than the prices here: +19.9800 for Amazon Elastic Compute Cloud",
        ),
    ],
)
def test_a_cloud_bills_its_own_usage(usage: str, rows: str, parts: dict[str, float], says: str, tmp_path: Path) -> None:
    report, notes = compared(tmp_path, usage, FOCUS + rows)
    found = report["reported"]
    assert found["providers"] == pytest.approx(parts)
    assert found["services"] == pytest.approx({"Amazon Elastic Compute Cloud": 19.98})
    assert found["rest"] == pytest.approx(0)
    assert says in notes


def test_costs_of_openai_without_models_are_no_costs_of_anthropic(tmp_path: Path) -> None:
    result = {"amount": {"value": 2.5, "currency": "usd"}, "line_item": None, "project_id": "p1"}
    bucket = {"object": "bucket", "start_time": 1_793_491_200, "end_time": 1_793_577_600, "results": [result]}
    report, _ = compared(tmp_path, ANTHROPIC, json.dumps({"object": "page", "data": [bucket], "has_more": False}))
    assert report["reported"]["providers"] == pytest.approx({"openai": 2.5, "anthropic": -13.25})


def test_a_tax_is_no_cost_of_tokens(tmp_path: Path) -> None:
    head = "ChargeCategory," + FOCUS
    report, notes = compared(tmp_path, ANTHROPIC, f"{head}Usage,{AI}Tax,{AI.replace('100.00', '19.00')}")
    assert report["reported"]["services"] == {"Tax": 19}
    assert "+19.0000 for Tax" in notes


def test_costs_besides_tokens_are_named_without_usage(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(FOCUS + AI + EC2)
    done = kvproxy("estimate", file, "--sessions", "--by", "day", "--json", "--data", tmp_path)
    note = "the report of costs has other costs than those of tokens: 19.9800 for Amazon Elastic Compute Cloud"
    assert note in " ".join(done.stderr.split())


def test_costs_in_cents_of_another_currency_are_rounded(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal]\ncurrency = "EUR"\nusd_rate = 0.8571\n')
    costs = "usage_date_utc,model,token_type,cost_usd,cost_type\n2026-11-01,Claude Opus 4.6,x,13.{},token\n"
    _, notes = compared(tmp_path, ANTHROPIC, costs.format("25"))
    assert "as the prices here give, within rounding" in notes
    usage = ANTHROPIC.replace("global,1000000,0", "global,1000800,0")
    # 13.254 USD.
    _, notes = compared(tmp_path, usage, costs.format("25"))
    assert "as the prices here give, within rounding" in notes
    _, notes = compared(tmp_path, usage, costs.format("2501"))
    assert "not explained" in notes


@pytest.mark.parametrize(
    ("cost", "tokens", "difference"),
    # At 2 USD per million tokens: 0.006 and 0.014, or 0.01 twice.
    [
        ("0.01", (3_000, 7_000), 0),
        ("0.03", (3_000, 7_000), 0.04),
        ("0.0101", (5_000, 5_000), 0.0002),
        # No rounding of cents.
        ("0.0000004", (500, 500), -0.0019992),
    ],
)
def test_logged_money_in_cents_is_rounded(
    cost: str, tokens: tuple[int, int], difference: float, tmp_path: Path
) -> None:
    file = tmp_path / "usage.csv"
    rows = "".join(f"m,{count},0,{cost},USD\n" for count in tokens)
    file.write_text(f"model,input tokens,output tokens,cost,currency\n{rows}")
    done = kvproxy("estimate", file, "--sessions", "--by", "model", "--price", "2,10", "--json", "--data", tmp_path)
    assert json.loads(done.stdout)["total"]["logged_difference"] == pytest.approx(difference)


def test_other_columns_are_groups(tmp_path: Path) -> None:
    usage = (
        "date,model,Cost Center,input tokens,output tokens\n2026-11-01,m,4711,1000000,0\n2026-08-02,m,,1000000,0\n"
        "2026-07-01,m,4711,2000000,0\n"
    )
    costs = "Date,MeterName,CostInBillingCurrency,BillingCurrency,CostCenter\n2026-08-01,gpt-4o,3.00,USD,4711\n"
    report, notes = compared(tmp_path, usage, costs, "--price", "2,10", "--by", "quarter,column:cost_center")
    found = {row["name"]: (row["cost"], row["reported_cost"]) for row in report["rows"]}
    assert found == {"2026-Q3, 4711": (4, 3), "2026-Q3, ": (2, None), "2026-Q4, 4711": (2, None)}
    assert "not read: Cost Center; --by column:NAME groups by one" in notes
    done = kvproxy("estimate", tmp_path / "usage.csv", "--sessions", "--by", "Cost Center", "--data", tmp_path)
    assert done.returncode == 2
    assert "column:NAME for a column of a table" in " ".join(done.stderr.split())
    done = kvproxy("sessions", "--by", "column:a", "--data", tmp_path)
    assert "column:a is a column of a table" in " ".join(done.stderr.split())


@pytest.mark.parametrize("tier", ["batch", "message_batch"])
def test_costs_have_the_tier_of_their_usage(tier: str, tmp_path: Path) -> None:
    usage = "usage_date_utc,model_version,usage_type,usage_input_tokens_no_cache,usage_output_tokens\n"
    usage += f"2026-11-01,claude-opus-4-6,{tier},1000000,0\n2026-11-01,claude-opus-4-6,standard,1000000,0\n"
    costs = "usage_date_utc,model,usage_type,cost_usd,cost_type\n2026-11-01,Claude Opus 4.6,standard,5.00,token\n"
    costs += f"2026-11-01,Claude Opus 4.6,{tier},2.50,token\n"
    report, _ = compared(tmp_path, usage, costs, "--by", "service_tier")
    found = {row["name"]: (row["cost"], row["reported_cost"]) for row in report["rows"]}
    assert found == {"standard": (5, 5), "batch": (2.5, 2.5)}


def test_a_project_has_one_row_for_its_name_and_its_id(tmp_path: Path) -> None:
    usage = "date,model,project_id,input tokens,output tokens\n2026-11-01,m,proj_a,1000000,0\n"
    costs = "start_time,end_time,amount_value,amount_currency,line_item,project_id,project_name\n"
    costs += '1793491200,1793577600,2.00,usd,"m, input",proj_a,Project A\n'
    report, _ = compared(tmp_path, usage, costs, "--price", "2,10", "--by", "project")
    assert [(row["name"], row["cost"], row["reported_cost"]) for row in report["rows"]] == [("proj_a", 2, 2)]


def test_the_bill_names_web_searches_that_it_excludes(tmp_path: Path) -> None:
    usage = (
        ANTHROPIC.replace("\n", ",web_search_count\n", 1)
        .replace(",0\n", ",0,630\n")
        .replace(",100000\n", ",100000,10\n")
    )
    file = tmp_path / "usage.csv"
    file.write_text(usage)
    done = kvproxy("estimate", file, "--sessions", "--by", "model", "--json", "--data", tmp_path)
    assert json.loads(done.stdout)["web_searches"] == 640
    assert "not in the money: 640 web searches (web_search_requests)" in done.stderr


@pytest.mark.parametrize(
    ("model", "cost"),
    [
        ("claude-opus-4-6", 13.25),
        ("claude-sonnet-4-6", 7.95),
        ("claude-sonnet-4-5-20250929", 7.5),
        ("claude-opus-4-20250514", 37.5),
    ],
)
def test_the_bill_of_another_model_has_the_surcharge_of_the_region_if_the_model_has_one(
    model: str, cost: float, tmp_path: Path
) -> None:
    file = tmp_path / "usage.csv"
    file.write_text(ANTHROPIC)
    arguments = ("estimate", file, "--sessions", "--by", "day", "--data", tmp_path, "--as-model", model, "--json")
    assert json.loads(kvproxy(*arguments).stdout)["total"]["as_model_cost"] == pytest.approx(cost)


def test_the_bill_of_another_model(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    # The second prompt has the price of a long context of Claude Sonnet 4.5.
    rows = "claude-opus-4-6,100000,1000\nclaude-opus-4-6,300000,1000\nunknown,100000,0\n"
    file.write_text(f"model,input tokens,output tokens\n{rows}")
    arguments = ("estimate", file, "--sessions", "--by", "model", "--data", tmp_path)
    done = kvproxy(*arguments, "--as-model", "claude-sonnet-4-5", "--json")
    report = json.loads(done.stdout)
    found = {row["name"]: (row["as_model_cost"], row["as_model_difference"]) for row in report["rows"]}
    other = 0.1 * 3 + 0.001 * 15 + 0.3 * 6 + 0.001 * 22.5
    assert found["claude-opus-4-6"] == pytest.approx((other, other - (0.4 * 5 + 0.002 * 25)))
    assert found["unknown"] == (pytest.approx(0.3), None)
    assert report["total"]["as_model_cost"] == pytest.approx(other + 0.3)
    assert "as claude-sonnet-4-5: the same tokens with the same share of cached input, at today's prices" in done.stderr
    shown = kvproxy(*arguments, "--as-model", "claude-sonnet-4-5", columns=200).stdout
    assert "As claude-sonnet-4-5" in shown
    refused = kvproxy(*arguments, "--as-model", "nobody")
    assert (refused.returncode, "no price of nobody is known" in refused.stderr) == (3, True)


def test_the_days_of_costs_are_those_of_their_provider(tmp_path: Path) -> None:
    """The costs of one provider end a day earlier."""
    usage = (
        "date,model,provider,input tokens,output tokens\n2026-11-01,claude-opus-4-6,anthropic,1000000,0\n"
        "2026-11-02,claude-opus-4-6,anthropic,1000000,0\n2026-11-02,gpt-5,openai,1000000,0\n"
    )
    head = "usage_date_utc,model,token_type,cost_usd,cost_type\n"
    costs = "2026-11-01,claude-opus-4-6,x,5.00,token\n2026-11-02,gpt-5,x,1.25,token\n"
    found = compared(tmp_path, usage, head + costs)[0]["reported"]
    assert (found["without_costs"], found["rest"]) == (pytest.approx(-5), 0)


@pytest.mark.parametrize(
    ("costs", "parts"),
    [
        # 640 searches at 10 USD per 1,000.
        (
            "2026-11-01,,x,7.50,token\n2026-11-02,,x,11.40,token\n",
            "+6.4000 for 640 web searches at Anthropic's list price",
        ),
        (
            "2026-11-01,,x,7.50,token\n2026-11-02,,x,15.00,token\n",
            "+6.4000 for 640 web searches at Anthropic's list price, +3.6000 not explained",
        ),
        ("2026-11-01,,x,7.50,token\n2026-11-02,,x,8.00,token\n", "+3.0000 not explained"),
        (
            "2026-11-01,,x,7.50,token\n2026-11-02,,x,5.00,token\n2026-11-02,,,6.40,web_search\n",
            "+6.4000 for web_search",
        ),
    ],
)
def test_web_searches_explain_money(costs: str, parts: str, tmp_path: Path) -> None:
    usage = (
        "usage_date_utc,model_version,usage_input_tokens_no_cache,usage_output_tokens,web_search_count\n"
        "2026-11-01,claude-opus-4-5,1000000,100000,10\n2026-11-02,claude-opus-4-5,1000000,0,630\n"
    )
    head = "usage_date_utc,model,token_type,cost_usd,cost_type\n"
    reported, notes = compared(tmp_path, usage, head + costs)
    assert f"more than the prices here: {parts}" in notes
    assert ("for 640 web searches" in notes) is (reported["reported"]["web_searches"] > 0)


def test_an_unexplained_difference_names_its_model(tmp_path: Path) -> None:
    usage = (
        "date,model,input tokens,output tokens\n2026-11-01,claude-opus-4-5-20251101,1000000,0\n"
        "2026-11-01,claude-haiku-4-5,1000000,0\n"
    )
    head = "usage_date_utc,model,token_type,cost_usd,cost_type\n"
    costs = "2026-11-01,Claude Opus 4.5,x,5.01,token\n2026-11-01,Claude Haiku 4.5,x,2.00,token\n"
    reported, notes = compared(tmp_path, usage, head + costs)
    assert reported["reported"]["rest_by_model"] == pytest.approx(
        {"claude-haiku-4-5": 1, "claude-opus-4-5-20251101": 0.01}
    )
    assert "+1.0100 not explained, most of claude-haiku-4-5; compare prices" in notes


@pytest.mark.parametrize(("day", "is_named"), [("2026-11-01", True), ("2026-11-02", False)])
def test_requests_without_a_price_explain_only_their_own_day(day: str, is_named: bool, tmp_path: Path) -> None:
    usage = f"date,model,input tokens,output tokens\n2026-11-01,gpt-5,1000000,0\n{day},gpt-99,1000000,0\n"
    costs = "usage_date_utc,model,token_type,cost_usd,cost_type\n2026-11-01,gpt-5,x,3.00,token\n"
    notes = compared(tmp_path, usage, costs)[1]
    assert "+1.7500 not explained" in notes
    assert ("probably of at least 1 request of models without a price (gpt-99)" in notes) == is_named
