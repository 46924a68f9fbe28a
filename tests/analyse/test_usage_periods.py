"""Sums of months, weeks, and quarters in tables of usage, and sums whose period is unknown."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.run import kvproxy

PRO = "gemini-2.5-pro"
"""Costs 1.25 and 10 dollars per million tokens, and 2.5 and 15 in prompts above 200,000 tokens."""


def bill(folder: Path, text: str, *options: str) -> tuple[dict[str, tuple[Any, float]], str]:
    """Return the requests and the cost by group of the bill of a table, and the notes."""
    file = folder / "usage.csv"
    file.write_text(text)
    done = kvproxy("estimate", file, "--sessions", "--by", *options, "--json", "--data", folder)
    assert done.returncode == 0, done
    rows = json.loads(done.stdout)["rows"]
    return {row["name"]: (row["requests"], round(row["cost"], 6)) for row in rows}, done.stderr


@pytest.mark.parametrize(
    ("heading", "cells", "names"),
    [
        ("month", ("2026-09", "2026-10"), ("2026-09", "2026-10")),
        ("Monat", ("09.2026", "10.2026"), ("2026-09", "2026-10")),
        ("invoice_month", ("202609", "202610"), ("2026-09", "2026-10")),
        ("Month", ("Sep-26", "Oct-26"), ("2026-09", "2026-10")),
        # The beginning of a month, as SQL truncates it, and the end, as spreadsheets have it.
        ("month", ("2026-09-01 00:00:00", "2026-10-31"), ("2026-09", "2026-10")),
        ("Period", ("Sep 2026", "October 2026"), ("2026-09", "2026-10")),
        ("Zeitraum", ("Sept. 2026", "Dezember 2026"), ("2026-09", "2026-12")),
        ("week", ("2026-W36", "2026-W37"), ("2026-W36", "2026-W37")),
        ("Woche", ("KW 36 2026", "KW 37/2026"), ("2026-W36", "2026-W37")),
        ("week", ("2026-08-31", "2026-09-07"), ("2026-W36", "2026-W37")),
        ("Quarter", ("Q3 2026", "2026-Q4"), ("2026-Q3", "2026-Q4")),
        ("date", ("2026-09-01 00:00:00 UTC", "20260902"), ("2026-09-01", "2026-09-02")),
        ("Datum", ("01.09.2026", "15.09.2026"), ("2026-09-01", "2026-09-15")),
    ],
)
def test_a_row_of_a_period_is_a_sum_of_short_prompts(
    heading: str, cells: tuple[str, str], names: tuple[str, str], tmp_path: Path
) -> None:
    text = (
        f"{heading};model;input tokens;output tokens\n{cells[0]};{PRO};1000000;100000\n{cells[1]};{PRO};300000;10000\n"
    )
    rows, notes = bill(tmp_path, text, "day")
    assert rows == {names[0]: (None, 2.25), names[1]: (None, 0.475)}
    assert "at the price of short prompts: 2 sums of requests of unknown length" in notes
    assert "unreadable" not in notes


@pytest.mark.parametrize("heading", ["Requests", "count", "calls", "Total Requests"])
def test_a_sum_of_counted_requests_has_the_price_of_their_mean_length(heading: str, tmp_path: Path) -> None:
    text = f"model,{heading},input_tokens,output_tokens\n{PRO},10,1000000,100000\n{PRO},1,300000,10000\n"
    rows, notes = bill(tmp_path, text, "model")
    # 2.25 for ten requests, and 0.9 for a long one.
    assert rows == {PRO: (11, 3.15)}
    assert "at the price" not in notes


def test_a_row_with_more_tokens_than_a_prompt_shows_that_undated_rows_are_sums(tmp_path: Path) -> None:
    text = f"model,input_tokens,output_tokens\n{PRO},4000000,100000\n{PRO},300000,10000\n"
    rows, notes = bill(tmp_path, text, "model")
    assert rows == {PRO: (None, 6.475)}
    assert "at the price of short prompts: 2 sums" in notes


def test_a_count_of_one_does_not_make_a_prompt_of_an_impossible_length(tmp_path: Path) -> None:
    rows, notes = bill(tmp_path, f"model,requests,input_tokens,output_tokens\n{PRO},1,4000000,0\n", "model")
    assert rows == {PRO: (1, 5.0)}
    assert "at the price of short prompts: 1 sum of" in notes


def test_a_note_counts_undated_rows_with_the_price_of_a_long_prompt(tmp_path: Path) -> None:
    text = f"model,input_tokens,output_tokens\n{PRO},300000,10000\n{PRO},1000,10\ngpt-5-mini,300000,10000\n"
    rows, notes = bill(tmp_path, text, "model")
    assert rows[PRO] == (2, round(0.75 + 0.15 + 0.00125 + 0.0001, 6))
    assert (
        "at the price of a long prompt: 1 row without a time and a number of requests; if they are sums, add" in notes
    )
    timed, notes = bill(
        tmp_path, f"time,model,input_tokens,output_tokens\n2026-09-01T10:00:00Z,{PRO},300000,0\n", "model"
    )
    assert timed == {PRO: (1, 0.75)}
    assert "at the price" not in notes


def test_an_unreadable_date_makes_no_prompt_of_a_sum(tmp_path: Path) -> None:
    text = f"month,model,input_tokens,output_tokens\nFY26-P09,{PRO},300000,0\n"
    rows, notes = bill(tmp_path, text, "month")
    # The group is the cell itself.
    assert rows == {"FY26-P09": (None, 0.375)}
    assert "1 row with unreadable month (line 2)" in notes


def test_sums_are_in_the_smallest_period_that_has_them(tmp_path: Path) -> None:
    text = f"week,model,input_tokens,output_tokens\n2026-W40,{PRO},1000000,0\n2026-W41,{PRO},2000000,0\n"
    assert bill(tmp_path, text, "month")[0] == {"2026-W40": (None, 1.25), "2026-10": (None, 2.5)}
    assert bill(tmp_path, text, "quarter")[0] == {"2026-W40": (None, 1.25), "2026-Q4": (None, 2.5)}


def test_a_note_counts_sums_that_are_partly_in_the_period(tmp_path: Path) -> None:
    text = f"month,model,input_tokens,output_tokens\n2026-09,{PRO},1000000,0\n2026-10,{PRO},2000000,0\n"
    rows, notes = bill(tmp_path, text, "month", "--since", "2026-09-15", "--until", "2026-12-01")
    assert rows == {"2026-10": (None, 2.5)}
    assert "partly in the period: 1 sum; the start of each decides whether it counts" in notes


def test_costs_of_months_are_compared_with_days(tmp_path: Path) -> None:
    usage, costs = tmp_path / "usage.csv", tmp_path / "costs.csv"
    usage.write_text(f"date,model,input_tokens,output_tokens\n2026-09-03,{PRO},1000000,0\n2026-09-04,{PRO},1000000,0\n")
    costs.write_text("Month,Amount,Currency\nSep 2026,3.00,USD\n")
    done = kvproxy("estimate", usage, costs, "--sessions", "--by", "month", "--json", "--data", tmp_path)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["name"], row["reported_cost"], row["reported_difference"]) == ("2026-09", 3.0, 0.5)
    assert "states 3.0000 USD, 0.5000 more than the prices here: +0.5000 not explained" in done.stderr
    done = kvproxy("estimate", usage, costs, "--sessions", "--by", "day", "--json", "--data", tmp_path)
    reported = {row["name"]: row["reported_cost"] for row in json.loads(done.stdout)["rows"]}
    assert reported == {"2026-09": 3.0, "2026-09-03": None, "2026-09-04": None}


def test_a_note_names_the_days_of_a_month_that_another_file_has(tmp_path: Path) -> None:
    for name, heading, cell in (("months.csv", "month", "2026-09"), ("days.csv", "date", "2026-09-30")):
        (tmp_path / name).write_text(f"{heading},model,input_tokens,output_tokens\n{cell},{PRO},1000,0\n")
    done = kvproxy("estimate", tmp_path, "--sessions", "--by", "month", "--json", "--data", tmp_path)
    assert "2026-09-30" in done.stderr, done


def test_a_column_of_cached_input_is_a_part_of_the_input(tmp_path: Path) -> None:
    text = "date,model,requests,input_tokens,output_tokens,cached_input\n2026-09-07,gpt-4o,10,100000,1000,60000\n"
    # 40,000 x 2.5 + 60,000 x 1.25 + 1,000 x 10; all input at the full price would be 0.26.
    assert bill(tmp_path, text, "day")[0] == {"2026-09-07": (10, 0.185)}


@pytest.mark.parametrize(
    ("heads", "cells", "name"),
    [
        ("Year,Month", "2026,10", "2026-10"),
        ("Month,Year", "October,2026", "2026-10"),
        ("Jahr,Monat", "2026,9", "2026-09"),
        ("year,quarter", "2026,3", "2026-Q3"),
        ("Year,Quarter", "2026,Q3", "2026-Q3"),
        ("Year,Week", "2026,36", "2026-W36"),
        ("Year,Month,Day", "2026,9,7", "2026-09-07"),
        # The month has its year.
        ("Year,Month", "2026,2026-09", "2026-09"),
    ],
)
def test_the_year_has_a_column_of_its_own(heads: str, cells: str, name: str, tmp_path: Path) -> None:
    rows, notes = bill(tmp_path, f"{heads},model,input tokens,output tokens\n{cells},{PRO},1000000,100000\n", "day")
    assert rows == {name: (None, 2.25)}
    assert "unreadable" not in notes
