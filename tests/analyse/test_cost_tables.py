"""Tables of costs: their amounts, currencies, and dates, and what is left out of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.run import kvproxy


def costs_of(folder: Path, text: str, *arguments: str, by: str = "line_item") -> tuple[dict[str, Any], str]:
    """Return the reported costs by group, and the notes."""
    file = folder / "costs.csv"
    file.write_text(text)
    done = kvproxy("estimate", file, "--sessions", "--by", by, "--json", "--data", folder, *arguments)
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    return {row["name"]: row["reported_cost"] for row in report["rows"]}, " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "head",
    [
        "date,line_item,amount,currency",
        "date,description,amount,currency",
        "Date,Item,Amount,Currency",
        "DATE,Vendor,Cost,CURRENCY",
    ],
)
def test_an_amount_of_a_table_is_in_whole_units(head: str, tmp_path: Path) -> None:
    rows = '2026-10-01,gpt-4o input,5.00,usd\n2026-10-20,gpt-4o input,"1,850.00",USD \n'
    assert costs_of(tmp_path, f"{head}\n{rows}")[0] == {"gpt-4o input": 1_855}


def test_an_amount_of_anthropics_api_is_in_hundredths(tmp_path: Path) -> None:
    result = {"amount": "123.5", "currency": "USD", "cost_type": "tokens", "token_type": None, "context_window": None}
    # Its results, as jq prints them one by one.
    assert costs_of(tmp_path, json.dumps(result) + "\n")[0] == {"": 1.235}


def test_a_currency_is_stated_and_not_assumed(tmp_path: Path) -> None:
    rows = "2026-10-01,a,5.00,EUR\n2026-10-02,b,5.00,\n2026-10-03,c,$7.00,\n"
    for head in ("date,item,cost,currency", "Date,item,Spend,Currency"):
        costs, notes = costs_of(tmp_path, f"{head}\n{rows}")
        assert costs == {"c": 7}
        assert "left out: 1 amount in EUR, whose rate to USD is unknown" in notes
        assert ", 1 amount without a currency" in notes
    assert costs_of(tmp_path, "date,item,cost\n2026-10-01,a,$3.50\n2026-10-01,a,1.50 USD\n")[0] == {"a": 5}


def test_the_cost_of_a_request_states_its_currency(tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    file.write_text("date,model,input tokens,output tokens,cost\n2026-10-01,m,1,1,$3.50\n2026-10-01,m,1,1,4.50\n")
    done = kvproxy("estimate", file, "--sessions", "--by", "model", "--json", "--data", tmp_path)
    assert json.loads(done.stdout)["total"]["logged_cost"] == 3.5
    assert "not read: cost; docs/logs.md lists the known headings, and a cost needs its currency" in done.stderr


def test_decimal_commas(tmp_path: Path) -> None:
    head = "Date;Item;Cost;Currency\n"
    rows = "2026-10-01;a;3,50;USD\n2026-10-01;b;25,4875;USD\n2026-10-01;c;0,035 $;USD\n"
    costs, notes = costs_of(tmp_path, head + rows)
    assert costs == {"a": 3.5, "b": 25.4875, "c": 0.035}
    assert "unreadable" not in notes
    # In this column, a point separates thousands, and a comma decimals.
    costs, _ = costs_of(tmp_path, head + rows + "2026-10-01;d;1.250;USD\n2026-10-01;e;1,250;USD\n;;1280,2725;\n")
    assert (costs["d"], costs["e"], len(costs)) == (1_250, 1.25, 5)
    costs, notes = costs_of(tmp_path, head + rows + "2026-10-01;d;1.25;USD\n2026-10-01;e;1,250;USD\n")
    assert (costs["d"], "e" in costs) == (1.25, False)
    assert "1 row with unreadable Cost (line 6)" in notes


def test_commas_before_thousands_beside_decimal_points(tmp_path: Path) -> None:
    rows = '2026-10-01,a,"$12,000"\n2026-10-01,b,$13500.00\n2026-10-01,c,"1,500,000 USD"\n'
    costs, notes = costs_of(tmp_path, "Date,Item,Cost\n" + rows)
    assert costs == {"a": 12_000, "b": 13_500, "c": 1_500_000}
    assert "unreadable" not in notes
    _, notes = costs_of(tmp_path, 'Date,Item,Cost\n2026-10-01,a,"$12,000"\n')
    assert "1 row with unreadable Cost (line 2)" in notes


def test_a_row_with_more_cells_than_headings_is_named(tmp_path: Path) -> None:
    costs, notes = costs_of(tmp_path, "Date,Item,Cost,Currency\n2026-10-01,a,12,000,USD\n2026-10-01,b,5.00,USD\n")
    assert costs == {"b": 5}
    assert "line 2: the row has more than 4 cells: put texts that contain ',' into double quotes" in notes


def test_costs_of_another_currency_alone_stay_in_it(tmp_path: Path) -> None:
    text = "Datum;Posten;Betrag;Währung\n01.11.2026;a;1.234,56;EUR\n02.11.2026;a;2.469,12;EUR\n"
    costs, notes = costs_of(tmp_path, text, by="day")
    assert costs == {"2026-11-01": 1_234.56, "2026-11-02": 2_469.12}
    assert "not compared" not in notes
    report = json.loads(kvproxy("estimate", tmp_path / "costs.csv", "--sessions", "--by", "day", "--json").stdout)
    assert (report["currency"], report["total"]["reported_cost"]) == ("EUR", 3_703.68)


@pytest.mark.parametrize("date", ["Date", "ChargePeriodStart", "UsageDateTime"])
def test_a_table_of_costs_without_readable_dates(date: str, tmp_path: Path) -> None:
    rows = "".join(f"10/0{day}/2026,gpt-4o input,{day}.00,USD\n" for day in (1, 2, 3))
    text = f"{date},MeterName,CostInBillingCurrency,BillingCurrency\n{rows}"
    costs, notes = costs_of(tmp_path, text, by="day")
    assert costs == {"": 6}
    assert f"3 rows with unreadable {date} (lines 2, 3, 4): it counts as unknown" in notes
    costs, notes = costs_of(tmp_path, text, "--since", "2026-10-02", by="day")
    assert costs == {}
    assert "not in the period: 3 amounts of the report of costs without a date" in notes
    assert "the report of costs is not compared: no amount is in the period" in notes
    costs, notes = costs_of(tmp_path, text + "10/13/2026,gpt-4o input,4.00,USD\n", by="day")
    assert (costs["2026-10-13"], costs["2026-10-02"]) == (4, 2)
    assert "unreadable" not in notes


def test_a_log_with_prompts_is_no_report_of_costs(tmp_path: Path) -> None:
    row = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "cost_usd": 0.01}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    done = kvproxy("estimate", tmp_path / "log.jsonl")
    assert done.returncode == 0, done
    assert "read as requests: 1 row" in done.stderr


def test_a_table_of_costs_needs_no_item(tmp_path: Path) -> None:
    text = "date,team,amount,currency\n2026-10-01,red,5.00,USD\n2026-10-01,blue,6.00,USD\n"
    assert costs_of(tmp_path, text, by="team")[0] == {"red": 5, "blue": 6}


@pytest.mark.parametrize(
    ("head", "lacking"), [("date,item,cost", "currency"), ("item,name,amount", "date and currency"), ("a,b,c", None)]
)
def test_an_error_names_the_missing_column_of_a_table_of_costs(head: str, lacking: str | None, tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(f"{head}\n2026-10-01,x,5\n")
    done = kvproxy("estimate", file, "--sessions", "--by", "day")
    assert done.returncode == 2
    wanted = f"to be a table of costs, it lacks a column {lacking}\n"
    assert (wanted in done.stderr) == (lacking is not None)
    assert ("rename its headings: a table of usage has date, model, input_tokens" in done.stderr) == (lacking is None)
    assert "--column" not in done.stderr


def test_copies_of_a_report_count_once(tmp_path: Path) -> None:
    head = "date,item,cost,currency\n"
    rows = "2026-10-01,a,5.00,USD\n2026-10-02,a,6.00,USD\n"
    names = {
        "first.csv": head + rows,
        "copy.csv": head + rows,
        "next.csv": head + rows[22:] + rows[22:].replace("02", "03"),
    }
    files = [tmp_path / name for name in names]
    for file, text in zip(files, names.values(), strict=True):
        file.write_text(text)

    def costs(*given: Path) -> tuple[float, str]:
        done = kvproxy("estimate", *given, "--sessions", "--by", "day", "--json", "--data", tmp_path)
        return json.loads(done.stdout)["total"]["reported_cost"], " ".join(done.stderr.split())

    total, notes = costs(files[0], files[1])
    assert (total, f"left out {files[1]}: the same report as {files[0]}" in notes) == (11, True)
    total, notes = costs(files[0], files[2])
    assert (total, "costs of one item, on 2026-10-02: they count twice if these reports" in notes) == (23, True)


@pytest.mark.parametrize(
    "heading",
    ["Cost (EUR)", "Cost [€]", "Cost EUR", "cost_eur", "Total Cost in EUR", "Kosten (EUR)", "Spend (€)", "Amount, EUR"],
)
def test_a_heading_has_the_currency(heading: str, tmp_path: Path) -> None:
    text = f'Date,Service,"{heading}"\n2026-10-01,a,3.10\n2026-10-02,a,4.20\n2026-10-02,b,\n'
    costs, notes = costs_of(tmp_path, text)
    assert costs == {"a": 7.3}
    assert "money in EUR" in notes


def test_another_word_in_brackets_is_no_currency(tmp_path: Path) -> None:
    assert costs_of(tmp_path, "Date,Item,Cost (MTD),Cost (USD)\n2026-10-01,a,9,3.50\n")[0] == {"a": 3.5}


def test_of_two_columns_of_money_the_unread_one_is_named(tmp_path: Path) -> None:
    text = "ChargePeriodStart,ServiceName,BilledCost,EffectiveCost,BillingCurrency\n2026-10-01T00:00:00Z,a,3,2,USD\n"
    costs, notes = costs_of(tmp_path, text, by="day")
    assert costs == {"2026-10-01": 3}
    assert "the amounts are those of BilledCost; other columns of money, not read: EffectiveCost" in notes
    # The same money in two currencies.
    notes = costs_of(tmp_path, "date,item,Cost (USD),Cost (EUR)\n2026-10-01,a,3,2\n")[1]
    assert "the amounts are those of Cost; other columns of money, not read: Cost (EUR)" in notes


@pytest.mark.parametrize("total", ["", "Gesamt;16,20 €;18,40 €\n"])
def test_months_may_be_columns(total: str, tmp_path: Path) -> None:
    text = f"Model;Sep 2026;Oct 2026\ngpt-5-mini;3,10 €;4,20 €\ngpt-5;13,10 €;14,20 €\n{total}"
    assert costs_of(tmp_path, text, by="month")[0] == pytest.approx({"2026-09": 16.2, "2026-10": 18.4})
    assert costs_of(tmp_path, text, by="model")[0] == pytest.approx({"gpt-5": 27.3, "gpt-5-mini": 7.3})
    days = "Project,Currency,2026-10-01,2026-10-02\nred,USD,1.5,\nblue,USD,2.5,3\n"
    assert costs_of(tmp_path, days, by="day")[0] == {"2026-10-01": 4, "2026-10-02": 3}


def test_months_as_columns_need_a_currency(tmp_path: Path) -> None:
    file = tmp_path / "pivot.csv"
    file.write_text("Model,2026-09,2026-10\na,1,2\n")
    done = kvproxy("estimate", file, "--data", tmp_path)
    assert (done.returncode, "to be a table of costs, it lacks a column currency" in done.stderr) == (2, True)


def test_a_cost_center_is_no_money(tmp_path: Path) -> None:
    text = "Date,MeterName,CostInBillingCurrency,BillingCurrencyCode,CostCenter\n11/21/2026,gpt-5 input,0.10,EUR,4711\n"
    costs, notes = costs_of(tmp_path, text)
    assert (costs, "other columns of money" in notes) == ({"gpt-5 input": 0.1}, False)


def test_a_report_of_aws(tmp_path: Path) -> None:
    text = (
        "lineItem/ProductCode,lineItem/UsageType,lineItem/UsageStartDate,lineItem/UnblendedCost,lineItem/CurrencyCode\n"
        "AmazonBedrock,Claude-input-tokens,2026-10-01T00:00:00Z,1.50,USD\nAmazonEC2,BoxUsage,2026-10-01T00:00:00Z,2.50,USD\n"
    )
    costs, notes = costs_of(tmp_path, text)
    assert costs == {"Claude-input-tokens": 1.5, "BoxUsage": 2.5}
    assert "other costs than those of tokens: 2.5000 for AmazonEC2" in notes
    head = "Service,Amazon Bedrock($),EC2($),Total costs($)"
    explorer = f"{head}\nService total,3.5,2.5,6\n2026-10-01,1.5,1,2.5\n2026-10-02,2,1.5,3.5\n"
    assert costs_of(tmp_path, explorer)[0] == {"Amazon Bedrock": 3.5, "EC2": 2.5}
    assert costs_of(tmp_path, explorer, by="day")[0] == {"2026-10-01": 2.5, "2026-10-02": 3.5}


def test_a_report_of_google_cloud(tmp_path: Path) -> None:
    text = (
        "Service description,SKU description,Cost type,Usage start date,Usage amount,Cost ($)\n"
        "Vertex AI,Gemini 2.5 Pro Text Input,Usage,2026-10-01,1000,1.25\nCompute Engine,E2,Usage,2026-10-01,9,4.25\n"
    )
    costs, notes = costs_of(tmp_path, text)
    assert costs == {"Gemini 2.5 Pro Text Input": 1.25, "E2": 4.25}
    assert "other costs than those of tokens: 4.2500 for Compute Engine" in notes
    assert "other columns of money" not in notes


def test_a_terminal_shows_no_empty_columns_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    file.write_text("date,line_item,amount,currency\n2026-10-01,a,2.50,USD\n")
    for options, is_shown in (((), True), (("--wide",), False)):
        shown = kvproxy("estimate", file, *options, "--data", tmp_path, columns=160).stdout
        assert ("Requests" in shown, "Lost USD" in shown, "Reported USD" in shown) == (False, is_shown, True)
