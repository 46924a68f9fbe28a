"""kvproxy sessions and sessions show, with the journal of a stopped proxy."""

import contextlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kvproxy.journal import reader
from kvproxy.journal.sessions import session_reader
from kvproxy.settings.journal import PriceSettings
from tests.commands.run import kvproxy, result
from tests.journal.sessions.requests import SYSTEM, Sessions, assistant, provider, request, user

FIRST = [SYSTEM, user("How does a cache work?")]
SECOND = [*FIRST, assistant("It keeps answers."), user("And a block?")]
PRICE = PriceSettings(input=3, cached=0.3, write_5m=3.75, write_1h=6, output=15)
PROMPT_1, PROMPT_2, OUTPUT = 10_000, 10_200, 1_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A conversation whose second turn comes after ten minutes, and another question."""
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    paid = provider()
    sessions.add(
        request(FIRST, PROMPT_1, 0, 0, written=(PROMPT_1, 0), completion=OUTPUT, **paid),
        request(SECOND, PROMPT_2, 0, 600, written=(PROMPT_2, 0), completion=OUTPUT, **paid),
        request([user("Hi.")], 10, 0, 700, completion=1, **paid),
    )
    sessions.close()
    (tmp_path / "kvproxy.toml").write_text(
        "[journal.prices.m]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n"
    )
    return tmp_path


def test_sessions_are_listed_with_their_losses_and_costs(data: Path) -> None:
    cost = ((PROMPT_1 + PROMPT_2) * 3.75 + 2 * OUTPUT * 15) / 1e6
    latest, found = result("sessions", "--data", data)
    assert (found["turns"], found["prompt_tokens"], found["reused_tokens"]) == (2, PROMPT_1 + PROMPT_2, 0)
    assert found["cost"] == pytest.approx(cost)
    assert found["longest_pause"] == pytest.approx(599)
    assert (found["lost_cost"], latest["lost_cost"]) == (pytest.approx(found["lost"]["expired"] * 3.45 / 1e6), 0)
    assert latest["turns"] == 1
    (top,) = result("log", "top", "--by", "model", "--data", data)
    assert top["cost"] == pytest.approx(found["cost"] + latest["cost"])
    assert [each["id"] for each in result("sessions", "--turns", 2, "--data", data)] == [found["id"]]
    head, *rows = [line.split("\t") for line in kvproxy("sessions", "--data", data).stdout.splitlines()]
    row = dict(zip(head, rows[1], strict=True))
    assert (row["turns"], row["prompt_tokens"], row["share"], row["lost_most_to"]) == ("2", "20200", "0", "expired")
    assert (row["longest_pause"], row["upstreams"]) == ("599", "https://api.example")
    assert float(row["cost"]) == pytest.approx(cost)


def test_the_log_selects_requests_by_the_cause_of_their_lost_tokens(data: Path) -> None:
    def numbers(*options: str) -> list[int]:
        return [row["number"] for row in map(json.loads, lines("log", *options))]

    def lines(*command: str) -> list[str]:
        return kvproxy(*command, "--json", "--data", data).stdout.splitlines()

    assert (numbers("--lost", "expired"), numbers("--lost", "any"), numbers("--lost", "new")) == ([2], [2], [1, 2, 3])
    assert numbers("--lost", "evicted") == []
    assert [row["requests"] for row in result("log", "top", "--by", "model", "--lost", "any", "--data", data)] == [1]
    ((row),) = map(json.loads, lines("log", "--lost", "expired"))
    assert (row["lost"]["expired"], row["lost_cost"]) == (
        row["lost_tokens"],
        pytest.approx(row["lost_tokens"] * 3.45 / 1e6),
    )
    listed = kvproxy("log", "--lost", "expired", "--data", data)
    head, cells = (line.split("\t") for line in listed.stdout.splitlines())
    assert dict(zip(head, cells, strict=True))["lost_to_expired"] == str(row["lost_tokens"])
    assert (
        f"1 listed request lost {row['lost_tokens']:,} tokens to expired, whose reuse would have saved 0.03"
        in listed.stderr
    )
    assert [row["lost_tokens"] for row in map(json.loads, lines("log", "--lost", "new"))] == [0, row["lost_tokens"], 0]
    for condition in ("lost_cost > 0.03", "json_extract(lost, '$.expired') > 9000"):
        assert numbers("--where", condition) == [2]
    refused = kvproxy("log", "--lost", "aged", "--data", data)
    assert (refused.returncode, "use one of any, new, changed" in refused.stderr) == (2, True)


def test_losses_of_a_backend_that_reports_no_reuse_are_counted_as_far_as_they_are_known(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.m]\ninput = 3\ncached = 0.3\noutput = 15\n")
    changed = [{**SYSTEM, "content": f"Today is Monday. {SYSTEM['content']}"}, user("How does a cache work?")]
    with contextlib.closing(Sessions(str(tmp_path / "journal.db"), m=PRICE)) as sessions:
        # Without a cache report: the first is new, the second may have been reused, the third has another beginning.
        for at, messages in enumerate((FIRST, FIRST, changed)):
            sessions.add(request(messages, PROMPT_1, None, at * 10, headers={"x-session-id": "s"}, **provider()))
    *_, unknown, known = (json.loads(line) for line in _lines(tmp_path, "log", "--limit", 0))
    assert (unknown["lost_tokens"], unknown["lost_cost"], set(unknown["lost"])) == (None, None, {"unreported"})
    assert (known["lost_tokens"], known["lost_cost"]) == (
        known["lost"]["changed"],
        pytest.approx(known["lost"]["changed"] * 2.7 / 1e6),
    )
    lost = f"{known['lost_tokens']:,} tokens"
    printed = {cause: kvproxy("log", "--lost", cause, "--data", tmp_path).stderr for cause in ("any", "unreported")}
    assert f"2 listed requests lost at least {lost}, whose reuse would have saved at least 0.0" in printed["any"]
    unreported = sum(row["lost"].get("unreported", 0) for row in (unknown, known))
    assert (
        f"lost {unreported:,} tokens to unreported, whose reuse would have saved an unknown amount"
        in printed["unreported"]
    )
    ledger = result("savings", "--ledger", "--data", tmp_path)
    costs = {row["result"]: row["cost"] for row in ledger["rows"]}
    assert costs == {"new": 0, "unreported": None, "changed": pytest.approx(known["lost_cost"])}
    assert (_bill(tmp_path)["lost_cost"], result("sessions", "--data", tmp_path)[0]["lost_cost"]) == (
        pytest.approx(known["lost_cost"]),
        pytest.approx(known["lost_cost"]),
    )


def _lines(data: Path, *command: object) -> list[str]:
    return kvproxy(*command, "--json", "--data", data).stdout.splitlines()


def _bill(data: Path) -> Any:
    return result("sessions", "--by", "model", "--data", data)["total"]


def test_advice_ranks_what_to_change_first(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        "[journal.prices.m]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n"
    )
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    dated = [{**SYSTEM, "content": f"2026-11-30 {SYSTEM['content']}"}, *FIRST[1:]]
    named: dict[str, Any] = {"headers": {"x-session-id": "s"}, **provider()}
    sessions.add(
        request(FIRST, PROMPT_1, 0, 0, written=(0, PROMPT_1), completion=0, **named),
        request(SECOND, PROMPT_2, PROMPT_1, 900, written=(0, 200), completion=0, **named),
        request(SECOND, PROMPT_2, 0, 6_000, written=(0, PROMPT_2), completion=0, **named),
        request(dated, PROMPT_1, 0, 6_009, written=(PROMPT_1, 0), completion=0, **named),
    )
    sessions.close()
    report = result("savings", "--advice", "--data", tmp_path)
    changed, expired = report["rows"]
    assert (expired["cause"], expired["turns"], expired["place"]) == ("expired", 1, None)
    assert expired["lost_cost"] == pytest.approx(expired["tokens"] * 5.7 / 1e6)
    # The rule keeps no prefix for over an hour.
    assert expired["saved"] < 0.2 * expired["lost_cost"]
    assert (changed["cause"], changed["place"], changed["lost_cost"] > 0) == ("changed", "messages[0] system", True)
    assert ("breakpoints" in expired["remedy"], "kvproxy lint" in changed["remedy"]) == (True, True)
    ledger = {row["result"]: row["cost"] for row in result("savings", "--ledger", "--data", tmp_path)["rows"]}
    assert {row["cause"]: row["lost_cost"] for row in report["rows"]} == pytest.approx(
        {cause: ledger[cause] for cause in ("expired", "changed")}
    )
    more, saved = (2 * PROMPT_2) * 2.25 / 1e6, PROMPT_1 * 3.45 / 1e6
    assert (report["one_hour_cost"], report["one_hour_saved"]) == (pytest.approx(more), pytest.approx(saved))
    shown = kvproxy("savings", "--advice", "--data", tmp_path).stdout
    assert f"saved {saved:.4f} USD" in shown
    refused = kvproxy("savings", "--advice", "--ledger", "--data", tmp_path)
    assert "--ledger has its own groups, so --advice does not apply" in refused.stderr


def test_advice_for_another_order_of_tools_names_the_edit(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    tools = [{"type": "function", "function": {"name": name, "description": f"{name} files. " * 99}} for name in "ab"]
    for at, ordered in enumerate((tools, tools[::-1])):
        named: dict[str, Any] = {"headers": {"x-session-id": "s"}, "body": {"tools": ordered}}
        sessions.add(request(FIRST, 4_000, 0, 9 * at, **named))
    sessions.close()
    assert re.search(r"advice\tchanged: .*sort-tools", kvproxy("sessions", "show", 1, "--data", tmp_path).stdout)
    (row,) = result("savings", "--advice", "--data", tmp_path)["rows"]
    assert (row["place"], "sort-tools" in row["remedy"]) == ("tools (the same 2, in another order)", True)


def test_advice_for_a_provider_without_breakpoints_names_none(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    fields: dict[str, Any] = {"body": {"model": "gpt-4o"}, **provider()}
    sessions.add(request(FIRST, 4_000, 0, 0, **fields), request(SECOND, 4_060, 0, 6_000, **fields))
    sessions.close()
    (row,) = result("savings", "--advice", "--data", tmp_path)["rows"]
    assert (row["cause"], row["tokens"], "breakpoints" in row["remedy"]) == ("expired", 3_968, False)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [("gpt-4o", "prompt_cache_key"), ("claude-sonnet-4-5", "none: the provider dropped"), ("m", "enlarge the pool")],
)
def test_advice_for_an_evicted_prefix_fits_the_provider(model: str, remedy: str, tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    fields: dict[str, Any] = {"body": {"model": model}, **provider()}
    sessions.add(request(FIRST, 8_000, 0, 0, **fields), request(SECOND, 8_060, 0, 60, **fields))
    sessions.close()
    rows = result("savings", "--advice", "--data", tmp_path)["rows"]
    assert [(row["cause"], remedy in row["remedy"]) for row in rows] == [("evicted", True)]


def test_the_words_of_the_first_change_are_quoted(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), text="all", m=PRICE)
    changed = [{**SYSTEM, "content": f"Tuesday {SYSTEM['content']}"}, *SECOND[1:]]
    sessions.add(
        request([{**SYSTEM, "content": f"Monday {SYSTEM['content']}"}, *FIRST[1:]], 1_000, 0, 0),
        request(changed, 1_060, 16, 9),
    )
    sessions.close()
    first, second = result("sessions", "show", 1, "--data", tmp_path)
    assert (first["before"], first["after"]) == (None, None)
    assert (second["region"], second["before"], second["after"]) == ("messages[0] system", "Monday", "Tuesday")
    shown = kvproxy("sessions", "show", 1, "--data", tmp_path).stdout
    assert "'Monday' became 'Tuesday'" in shown


def test_all_changes_of_a_turn_are_listed_after_the_one_that_decides_the_reuse(tmp_path: Path) -> None:
    tools = [{"name": name, "description": f"{name} a file. " * 40, "input_schema": {}} for name in ("read", "write")]
    talk = [user("How does a cache work? " * 9), assistant("It keeps answers. " * 9), user("And a block?")]
    bodies: list[dict[str, Any]] = [
        {"tools": tools, "system": "Be brief. " * 200, "thinking": {"type": "adaptive"}, "messages": talk[:1]},
        {"tools": tools, "system": "Be brief. " * 200, "thinking": {"type": "adaptive"}, "messages": talk},
        {
            **{"tools": tools[::-1], "system": f"Today. {'Be brief. ' * 200}", "temperature": 0.5},
            "messages": [user("What is a cache? " * 9), *talk[1:], assistant("A part."), user("Thanks.")],
        },
    ]
    sessions = Sessions(str(tmp_path / "journal.db"))
    named: dict[str, Any] = {"api": "messages", "headers": {"x-session-id": "s"}, **provider()}
    for at, body in enumerate(bodies):
        sessions.add(request([], 3_000 + at, 0, 9 * at, written=(3_000, 0), body=body, **named))
    sessions.close()
    rows = result("sessions", "show", "s", "--data", tmp_path)
    later = ["system", "messages[0] user", "thinking (removed)"]
    assert [row["later_changes"] for row in rows] == [[], [], later]
    assert rows[2]["region"] == "tools (the same 2, in another order)"
    explained = kvproxy("explain", "--request", rows[2]["request_id"], "--data", tmp_path).stdout
    named_changes = "the system prompt (system), messages[0] of the user, the field thinking (removed)"
    assert f"It also changed {named_changes}." in " ".join(explained.split())


def test_a_pipe_receives_lost_tokens_without_separators(data: Path) -> None:
    lost = result("sessions", "show", 1, "--data", data)[0]["lost"]
    assert max(lost.values()) >= 1_000
    shown = kvproxy("sessions", "show", 1, "--data", data).stdout
    assert all(f"{cause} {tokens}" in shown for cause, tokens in lost.items()), shown


def test_the_log_has_the_written_tokens_of_a_cost(data: Path) -> None:
    lines = kvproxy("log", "--data", data, "--columns", "prompt_tokens,written_5m,written_1h,cost").stdout.splitlines()
    first = [float(cell) for cell in lines[1].split("\t")]
    assert first == pytest.approx([PROMPT_1, PROMPT_1, 0, (PROMPT_1 * 3.75 + OUTPUT * 15) / 1e6])


@pytest.mark.parametrize("most", [1, 5_000])
def test_groups_are_sorted_by_cost_with_unknown_ones_last(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MAX_SAMPLED", most)
    sessions = Sessions(str(tmp_path / "journal.db"))
    cheap, dear, unknown = ([user(text)] for text in ("cheap", "dear", "unknown"))
    for at in range(3):
        sessions.add(request(cheap, 10, 0, at))
    sessions.add(request(dear, 9_000, 0, 5), request(unknown, 50_000, 0, 6, body={"model": "free"}))
    sessions.close()
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.m]\ninput = 3\noutput = 15\n")
    found = {
        order: [(row["computed"], row["cost"] is None) for row in result("log", "top", *order, "--data", tmp_path)]
        for order in ((), ("--cost",), ("--cost", "-n", 1))
    }
    assert found[()][0] == (30, False)
    assert found["--cost",] == [(9_000, False), (30, False), (50_000, True)]
    assert found["--cost", "-n", 1] == [(9_000, False)]
    assert "give one of" in kvproxy("log", "top", "--cost", "--backend", "--data", tmp_path).stderr


def test_groups_of_a_model_without_a_price_have_no_cost(data: Path) -> None:
    (data / "kvproxy.toml").unlink()
    (top,) = result("log", "top", "--by", "model", "--data", data)
    assert (top["cost"], top["unpriced"]) == (None, 3)


def test_requests_are_billed_by_day_project_model_and_client(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    paid, day = provider(), 86_400
    tagged = {"x-kvproxy-tags": "x,project:shop"}
    sessions.add(
        request(FIRST, PROMPT_1, 0, 0, written=(PROMPT_1, 0), completion=OUTPUT, headers=tagged, **paid),
        request(SECOND, PROMPT_2, 0, 600, written=(PROMPT_2, 0), completion=OUTPUT, headers=tagged, **paid),
        request([user("Hi.")], 100, 50, day, completion=1, tenant="client:ann", **paid),
        request([user("Ho.")], 100, 0, day, body={"model": "free"}, **paid),
        request([user("Ha.")], 0, None, day + 1, usage=(None, None), **paid),
        request([user("Hi.")], 100, None, day + 2, layer="exact"),
    )
    sessions.close()
    (tmp_path / "kvproxy.toml").write_text(
        "[journal.prices.m]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n"
    )
    written, output = (PROMPT_1 + PROMPT_2) * 3.75 / 1e6, 2 * OUTPUT * 15 / 1e6
    small = (50 * 3 + 50 * 0.3 + 15) / 1e6

    def rows(by: str) -> dict[str, dict[str, Any]]:
        (report,) = [result("sessions", "--by", by, "--data", tmp_path)]
        assert report["total"]["cost"] == pytest.approx(written + output + small)
        assert (report["total"]["unpriced"], report["total"]["unreported"]) == (1, 1)
        return {row["name"]: row for row in report["rows"]}

    first, second = rows("day").values()
    assert (first["input_cost"], first["output_cost"]) == pytest.approx((written, output))
    # The expired prefix could have been read.
    assert first["lost"]["expired"] == pytest.approx(PROMPT_1, abs=20)
    assert first["lost_cost"] == pytest.approx(PROMPT_1 * 3.45 / 1e6, rel=0.01)
    assert (second["requests"], second["cost"]) == (3, pytest.approx(small))
    assert {name: row["requests"] for name, row in rows("project").items()} == {"shop": 2, "": 3}
    assert rows("model")["free"]["cost"] is None
    assert rows("client")["ann"]["cost"] == pytest.approx(small)
    for layout in ((), ("--csv",), ("--jsonl",)):
        shown = kvproxy("sessions", "--by", "model", *layout, "--data", tmp_path)
        assert "1 request of models without a price" in shown.stderr
        assert "1 request without reported usage" in shown.stderr
    for option in ("--turns", "--limit"):
        refused = kvproxy("sessions", "--by", "day", option, 2, "--data", tmp_path)
        assert (refused.returncode, f"so {option} does not apply" in refused.stderr) == (2, True)
    for name in ("ann", "client:ann"):
        (bill,) = result("sessions", "--by", "model", "--tenant", name, "--data", tmp_path)["rows"]
        assert (bill["requests"], bill["cost"]) == (1, pytest.approx(small))
    assert result("sessions", "--by", "model", "--tenant", "bob", "--data", tmp_path)["rows"] == []
    table = kvproxy("sessions", "--by", "client", "--csv", "--data", tmp_path).stdout.splitlines()
    assert (table[0].startswith("name,requests"), len(table)) == (True, 3)


def test_a_cost_without_unpriced_turns_is_marked(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    sessions.add(request(FIRST, 100, 0, 0), request(SECOND, 200, 0, 600, body={"model": "free"}))
    sessions.close()
    for name, tokens in (("m", [100]), ("free", [200]), ("f", [])):
        given = ("--model", name, "--data", tmp_path)
        # A session with turns for both models is listed whole.
        assert [session["prompt_tokens"] for session in result("sessions", *given)] == [300][: len(tokens)]
        assert [row["input_tokens"] for row in result("sessions", "--by", "model", *given)["rows"]] == tokens
    for model, cost in (("m", "0.00045"), ("*", "0.0012"), ("x", "")):
        (tmp_path / "kvproxy.toml").write_text(f'[journal.prices."{model}"]\ninput = 3\noutput = 15\n')
        piped = kvproxy("sessions", "--columns", "cost", "--data", tmp_path).stdout
        assert [float(text or -1) for text in piped.splitlines()[1:]] == pytest.approx([float(cost or -1)], abs=0.0001)
        shown = kvproxy("sessions", "--data", tmp_path, columns=300).stdout
        assert ("Unpriced turns" in shown) is (model != "*")
        assert ("(priced)" in kvproxy("sessions", "--data", tmp_path, columns=200).stdout) is (model == "m")


def test_names_of_sessions_are_listed_if_there_are_some(data: Path) -> None:
    assert "Name" not in kvproxy("sessions", "--data", data, columns=300).stdout
    sessions = Sessions(str(data / "journal.db"))
    sessions.add(request(SECOND, 200, 0, 900, headers={"x-session-id": "refactoring"}))
    sessions.close()
    assert "refactoring" in kvproxy("sessions", "--data", data, columns=300).stdout


def test_a_session_has_the_cost_of_its_bill_without_a_reported_output(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."*"]\ninput = 3\noutput = 15\n')
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(request(FIRST, 100, 0, 0))
    sessions.add(request(SECOND, 200, 0, 9, usage=(200, None), estimated_usage=(None, 7)))
    sessions.close()
    (session,) = result("sessions", "--data", tmp_path)
    (bill,) = result("sessions", "--by", "model", "--data", tmp_path)["rows"]
    assert (bill["estimated"], session["incomplete_turns"]) == (1, 0)
    assert session["cost"] == pytest.approx(bill["cost"]) == pytest.approx((300 * 3 + 17 * 15) / 1e6)


def test_the_log_lists_the_requests_of_a_session(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    for at, (messages, name) in enumerate([(FIRST, "one"), (FIRST, "two"), (SECOND, "one")]):
        sessions.add(request(messages, 100 * (at + 1), 0, at, headers={"x-session-id": name}))
    sessions.close()
    for options in (("--session", "one"), ("--session", 1), ("--where", "session = 1")):
        rows = [json.loads(line) for line in kvproxy("log", *options, "--json", "--data", tmp_path).stdout.splitlines()]
        assert [(row["session"], row["prompt_tokens"]) for row in rows] == [(1, 100), (1, 300)]
    assert kvproxy("log", "--session", "three", "--json", "--data", tmp_path).stdout == ""
    assert result("log", "show", 2, "--data", tmp_path)["session"] == 2


def test_a_limit_says_that_there_are_more_rows(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_reader, "_BATCH", 1)
    for command in (("sessions",), ("log", "top")):
        every = result(*command, "-n", 0, "--data", data)
        assert result(*command, "-n", 1, "--data", data) == every[:1]
        cut = kvproxy(*command, "-n", 1, "--data", data)
        rows = (cut.stdout.count("\n"), cut.stderr)
        assert rows == (2, "1 row, and there are more: list all with --limit 0\n")
        for limit in (0, len(every)):
            assert kvproxy(*command, "-n", limit, "--data", data).stderr == ""
    assert len(result("sessions", "-n", 0, "--data", data)) == 2


def test_sessions_of_another_day_fit_a_terminal_and_have_whole_times_in_a_pipe(data: Path) -> None:
    with contextlib.closing(sqlite3.connect(data / "journal.db")) as journal, journal:
        journal.execute("update records set time = 1700000000 + number")
        journal.execute("update turns set changed = 1200, unreported = 3000, region = (select min(number) from names)")
    for arguments in (("sessions",), ("sessions", "show", 1), ("log",)):
        shown = re.sub("\x1b\\[[0-9;]*m", "", kvproxy(*arguments, "--data", data, columns=80).stdout)
        assert max(map(len, shown.splitlines())) <= 80, shown
        piped = kvproxy(*arguments, "--data", data).stdout
        assert re.search(r"(^|\t)2023-11-1\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d(\t|$)", piped, re.M), piped


def test_a_session_is_shown_by_turns(data: Path) -> None:
    rows = result("sessions", "show", 1, "--data", data)
    assert [(row["turn"], row["prompt_tokens"]) for row in rows] == [(1, PROMPT_1), (2, PROMPT_2)]
    assert rows[1]["lost"]["expired"] == PROMPT_1
    # Written again for five minutes, instead of read.
    assert [row["lost_cost"] for row in rows] == [0, pytest.approx(PROMPT_1 * (3.75 - 0.3) / 1e6)]
    (lines,) = {
        tuple(json.loads(line))
        for line in kvproxy("sessions", "show", 1, "--jsonl", "--data", data).stdout.splitlines()
    }
    assert list(lines) == list(rows[0])
    shown = kvproxy("sessions", "show", 1, "--data", data).stdout
    assert "\nprompt_tokens\t20200\nreused_tokens\t0\n" in shown
    assert "20,200" in kvproxy("sessions", "show", 1, "--data", data, columns=120).stdout
    assert "expired 10000" in shown
    assert "request" not in shown.split("prompt_tokens")[0]
    assert re.search(r"request\s+2 is turn 2 of session 1\n", kvproxy("sessions", "show", 2, "--data", data).stdout)

    missing = kvproxy("sessions", "show", 99, "--data", data)
    assert (missing.returncode, "no session '99'" in missing.stderr) == (3, True)


def test_a_compacted_history_is_marked(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    for at, messages in enumerate((FIRST, SECOND, [SYSTEM, user("We spoke about caches.")])):
        sessions.add(request(messages, 1_000, 0, at, headers={"x-session-id": "s"}))
    sessions.close()
    head, *rows = [
        line.split("\t") for line in kvproxy("sessions", "show", "s", "--data", tmp_path).stdout.splitlines()[-4:]
    ]
    shown = [dict(zip(head, row, strict=True)) for row in rows]
    assert [(row["turn"], row["first_change"]) for row in shown] == [("1", ""), ("2", ""), ("1", "another history")]


def test_the_listed_id_of_a_late_session_can_be_copied(data: Path) -> None:
    with contextlib.closing(sqlite3.connect(data / "journal.db")) as journal, journal:
        journal.execute("update records set number = number + 5000")
        journal.execute("update turns set number = number + 5000, session = session + 5000, parent = parent + 5000")
    *_, listed = kvproxy("sessions", "--data", data, columns=100).stdout.splitlines()
    assert listed.split()[0] == "5001"
    assert len(result("sessions", "show", listed.split()[0], "--data", data)) == 2


def test_a_narrow_terminal_shows_causes_and_costs(data: Path) -> None:
    listed = kvproxy("sessions", "--data", data, columns=60).stdout
    assert re.search(r"expired +0\.1057 ", listed)
    assert "expired 10,000, new 200" in kvproxy("sessions", "show", 1, "--data", data, columns=60).stdout


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_whole_causes_and_changes_of_turns(tmp_path: Path, width: int) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    changed = [{**SYSTEM, "content": f"{SYSTEM['content']} Today is Monday."}, *SECOND[1:]]
    sessions.add(request(FIRST, PROMPT_1, 0, 0), request(changed, PROMPT_2, 0, 600))
    sessions.close()
    shown = kvproxy("sessions", "show", 1, "--data", tmp_path, columns=width).stdout
    turn = re.sub("\x1b\\[[0-9;]*m", "", shown).split("\nTurn ")[1]
    (row,) = result("sessions", "show", 1, "--data", tmp_path)[1:]
    causes = [f"{cause} {tokens:,}" for cause, tokens in row["lost"].items()]
    words = f"{row['region']} character {row['place']:,} {' '.join(causes)}".split()
    assert set(words) <= {word.removesuffix(",") for word in turn.split()}
    assert "…" not in turn


def test_the_ledger_counts_unread_writes_and_compares_diagnoses(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    paid = provider()
    changed = [SYSTEM, user("How does another cache work?"), *SECOND[2:]]
    sessions.add(
        request(FIRST, PROMPT_1, 0, 0, written=(PROMPT_1, 0), **paid),
        request(SECOND, PROMPT_2, PROMPT_1, 60, written=(200, 0), diagnosis="unchanged", **paid),
        request(changed, PROMPT_2, 0, 90, written=(PROMPT_2, 0), diagnosis="messages_changed", **paid),
        request(SECOND, PROMPT_2, PROMPT_2, 95, written=(0, 0), diagnosis="tools_changed", **paid),
    )
    sessions.journal.record_keep_warm("r95", "none sent: the session was too unlikely to continue")
    sessions.close()
    shown = kvproxy("savings", "--ledger", "--data", tmp_path).stdout
    assert kvproxy("savings", "--ledger", "--by", "client", "--data", tmp_path).returncode == 2
    written = PROMPT_1 + 200 + PROMPT_2
    assert f"{written:,} written to a provider's cache (of which {PROMPT_2:,} were not read so far)" in shown
    assert "The provider and the ledger agree on 2 of 3 compared prompts (66.7%):" in shown
    assert "  tools_changed: 1 turn, 1 different in the ledger" in shown
    tree = kvproxy("sessions", "show", 1, "--data", tmp_path).stdout
    assert "tools_changed (the ledger differs)" in tree
    assert "none sent: the session was too unlikely to continue" in tree


def test_keep_warm_requests_follow_the_turn_that_they_repeat(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    paid, third = provider(), [*SECOND, assistant("A part."), user("And a tier?")]
    kept: dict[str, Any] = {"headers": {"x-kvproxy-tags": "keep-warm"}, "layer": "warming", **paid}
    sessions.add(
        request(FIRST, 1_000, 0, 0, **paid),
        request(SECOND, 2_000, 1_000, 60, **paid),
        request(SECOND, 2_000, 2_000, 350, **kept),
        request(third, 3_000, 2_000, 360, **paid),
        request(third, 3_000, 3_000, 1_560, **kept),
    )
    sessions.close()
    rows = result("sessions", "show", "1", "--data", tmp_path)
    assert [(row["depth"], row["request_id"]) for row in rows] == [
        (0, "r0"),
        (0, "r60"),
        (1, "r350"),
        (0, "r360"),
        (1, "r1560"),
    ]
    shown = kvproxy("sessions", "show", "1", "--data", tmp_path).stdout
    assert [line.split("\t")[0] for line in shown.splitlines()[-5:]] == ["1", "2", "·warming", "3", "·warming"]
    (summary,) = result("sessions", "--data", tmp_path)
    assert summary["longest_pause"] == pytest.approx(299)


def test_warming_requests_count_as_money_only(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        "[journal.prices.m]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n"
    )
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    paid, warming = provider(), {"cache-control": "warming"}
    keep_warm = {**warming, "x-kvproxy-tags": "keep-warm"}
    sessions.add(
        request(FIRST, 1_000, 0, 0, written=(1_000, 0), completion=0, **paid),
        request(SECOND, 2_000, 1_000, 60, written=(1_000, 0), completion=0, **paid),
        request(SECOND, 2_000, 1_900, 350, written=(100, 0), completion=0, headers=keep_warm, **paid),
        request([user("Other.")], 500, 0, 360, written=(500, 0), completion=0, headers=warming, **paid),
    )
    sessions.close()
    ledger = result("savings", "--ledger", "--data", tmp_path)
    assert {row["result"]: (row["tokens"], row["share"]) for row in ledger["rows"]} == {
        "reused": (1_000, pytest.approx(1 / 3)),
        "new": (2_000, pytest.approx(2 / 3)),
    }
    assert (ledger["prompt_tokens"], ledger["warming"], ledger["written_5m"]) == (3_000, 2_500, 2_600)
    shown = kvproxy("savings", "--ledger", "--data", tmp_path).stdout
    assert "not in the rows: 2,500 prompt tokens of requests that warmed the cache" in shown
    saved = result("savings", "--by", "model", "--data", tmp_path)["rows"][0]
    assert (saved["requests"], saved["reused_tokens"]) == (2, 1_000)

    written, read = PRICE.price_of_5m_write / 1e6, PRICE.price_of_reuse / 1e6
    kept_warm = 1_900 * read + 100 * written
    (session,) = result("sessions", "--turns", 1, "--data", tmp_path)
    assert (session["turns"], session["prompt_tokens"], session["reused_tokens"]) == (2, 3_000, 1_000)
    assert session["cost"] == pytest.approx(2_000 * written + 1_000 * read + kept_warm)
    assert result("sessions", "--turns", 3, "--data", tmp_path) == []
    total = result("sessions", "--by", "day", "--data", tmp_path)["total"]
    assert (total["requests"], total["input_tokens"], total["reused_tokens"]) == (2, 3_000, 1_000)
    assert total["cost"] == pytest.approx(session["cost"] + 500 * written)
    assert saved["spent"] == pytest.approx(total["cost"])
    assert total["uncached_cost"] == pytest.approx(3_000 * PRICE.input / 1e6)
    assert (total["proxy_requests"], total["proxy_cost"]) == (2, pytest.approx(kept_warm + 500 * written))
    note = " ".join(kvproxy("sessions", "--by", "model", "--data", tmp_path).stderr.split())
    assert "in the money, and not in the tokens: 0.00" in note
    assert "of 2 requests of the proxy itself, such as keep-warm requests" in note


def test_a_session_shows_the_sum_of_its_costs(data: Path) -> None:
    cost = ((PROMPT_1 + PROMPT_2) * 3.75 + 2 * OUTPUT * 15) / 1e6
    shown = kvproxy("sessions", "show", "1", "--data", data).stdout.splitlines()
    facts = dict(line.split("\t") for line in shown if line.count("\t") == 1)
    assert float(facts["cost"]) == pytest.approx(cost)


def test_a_request_with_several_projects_is_billed_to_the_first_in_all_bills(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    both = {"x-kvproxy-tags": "project:red, project:blue, x"}
    blue = {"x-kvproxy-tags": "project:blue"}
    sessions.add(
        request(FIRST, 100, 0, 0, headers=both, **provider()),
        request([user("Hi.")], 100, 0, 60, headers=blue, **provider()),
        request([user("Ho.")], 100, 0, 70, **provider()),
    )
    sessions.close()
    for command in (("savings", "--by", "project"), ("sessions", "--by", "project")):
        rows = result(*command, "--data", tmp_path)["rows"]
        assert {row["name"]: row["requests"] for row in rows} == {"red": 1, "blue": 1, "": 1}
    for command in (("savings",), ("sessions", "--by", "model")):
        rows = result(*command, "--tag", "project:blue", "--data", tmp_path)["rows"]
        assert sum(row["requests"] for row in rows) == 1, command
    rows = result("savings", "--by", "tag", "--data", tmp_path)["rows"]
    assert {row["name"]: row["requests"] for row in rows} == {"project:red": 1, "project:blue": 1, "x": 1}


def test_a_tag_selects_the_requests_that_a_journal_without_the_others_has(tmp_path: Path) -> None:
    tagged = {"headers": {"x-kvproxy-tags": "x,load"}, "completion": OUTPUT, **provider()}
    other = {"headers": {"x-kvproxy-tags": "x"}, "completion": OUTPUT, **provider()}
    chosen = [
        request(FIRST, PROMPT_1, 0, 0, written=(PROMPT_1, 0), **tagged),
        request(SECOND, PROMPT_2, PROMPT_1, 60, written=(0, PROMPT_2 - PROMPT_1), **tagged),
    ]
    rest = [request([user("Hi.")], 500, 0, 90, written=(0, 500), **other), request([user("Ho.")], 100, 0, 99)]
    for name, requests in (("all", [*chosen, *rest]), ("chosen", chosen)):
        (data := tmp_path / name).mkdir()
        sessions = Sessions(str(data / "journal.db"), m=PRICE)
        sessions.add(*requests)
        sessions.close()
        (data / "kvproxy.toml").write_text(
            "[journal.prices.m]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n"
        )
    commands = [
        *(("savings", "--by", by) for by in ("layer", "tenant", "client", "team", "model", "day")),
        ("savings", "--advice"),
        ("sessions",),
        *(("sessions", "--by", by) for by in ("day", "client,model", "project")),
        ("log", "top"),
    ]
    for command in commands:
        selected = result(*command, "--tag", "load", "--data", tmp_path / "all")
        assert selected == result(*command, "--data", tmp_path / "chosen"), command
        assert selected != result(*command, "--data", tmp_path / "all"), command
    for command in (("savings",), ("savings", "--advice"), ("sessions",), ("sessions", "--by", "day")):
        done = kvproxy(*command, "--tag", "lod", "--data", tmp_path / "all")
        assert (done.returncode, done.stdout) == (0, ""), done
        assert "--advice" in command or "no request has the tag 'lod': there are load, x" in done.stderr


@pytest.mark.parametrize("report", ["--by tag", "--by project", "--ledger", "--bill"])
def test_reports_of_sums_without_tags_refuse_a_tag(tmp_path: Path, report: str) -> None:
    Sessions(str(tmp_path / "journal.db")).close()
    done = kvproxy("savings", *report.split(), "--tag", "load", "--data", tmp_path)
    assert (done.returncode, "tag" in done.stderr, done.stderr.count("\n")) == (2, True, 1), done


def test_tags_and_projects_cost_the_same(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PRICE)
    tagged = {"headers": {"x-kvproxy-tags": "project:shop"}, "completion": OUTPUT, **provider()}
    sessions.add(
        request(FIRST, PROMPT_1, 0, 0, written=(PROMPT_1, 0), **tagged),
        request(SECOND, PROMPT_2, PROMPT_1, 60, written=(0, PROMPT_2 - PROMPT_1), **tagged),
    )
    sessions.close()
    (tmp_path / "kvproxy.toml").write_text(
        "[journal.prices.m]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n"
    )
    (tag,) = result("savings", "--by", "tag", "--data", tmp_path)["rows"]
    (project,) = result("savings", "--by", "project", "--data", tmp_path)["rows"]
    assert (tag["name"], project["name"]) == ("project:shop", "shop")
    for name in ("money", "least_money", "spent"):
        assert tag[name] == pytest.approx(project[name])
    assert tag["spent"] == pytest.approx(
        (PROMPT_1 * 3.75 + PROMPT_1 * 0.3 + (PROMPT_2 - PROMPT_1) * 6 + 2 * OUTPUT * 15) / 1e6
    )


def test_log_show_states_the_cause_of_a_miss_and_its_lost_tokens(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    for at, day in ((0, "Monday"), (9, "Tuesday")):
        sessions.add(request([{"role": "system", "content": f"Today is {day}."}, user("Hi.")], 10, 0, at))
    sessions.close()
    shown = kvproxy("log", "show", 2, "--data", tmp_path).stdout
    facts = dict(line.split("\t") for line in shown.splitlines())
    assert facts["cause"].endswith("- the system prompt (messages[0] system) differs")
    assert "kvproxy explain" not in shown
    assert facts["lost to new"] == "10"
    assert result("log", "show", 2, "--data", tmp_path)["cause"] == facts["cause"]
    assert result("log", "show", 1, "--data", tmp_path)["cause"] is None


def test_a_bill_in_a_pipe_has_the_same_zeros_as_its_csv(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(request([user("Hi.")], 10, 0, 0, written=(5, 0)))
    sessions.close()
    bill = kvproxy("savings", "--bill", "--columns", "written_5m,written_1h", "--data", tmp_path).stdout
    assert bill == "written_5m\twritten_1h\n5\t0\n"
