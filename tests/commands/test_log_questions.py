"""The log shows the question of each request, and for a semantic hit the stored question, too."""

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import typer

from kvproxy.exchange import Exchange
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import kvproxy, result
from tests.commands.upstream import proxied, said
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.servers import run_proxy, until_stored

STORED, ASKED = "How do I reset my password?", "How can I reset my password?"


@pytest.mark.parametrize(("text", "shadow"), [("none", False), ("hits", True)])
def test_a_semantic_hit_shows_both_questions(tmp_path: Path, text: str, shadow: bool) -> None:
    with run_plain_upstream() as upstream:
        settings = load_settings(
            data=tmp_path,
            upstream=upstream,
            cache={"policy": "threshold", "min_similarity": 0.85, "shadow": shadow},
            journal={"text": text},
        )
        with run_proxy(settings) as (url, services):
            for question in (STORED, ASKED):
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm"})
                until_stored(services)
            assert ("semantic" in answer.headers["cache-status"]) is not shadow
            services.journal.latest(1)
            done = kvproxy("log", "--json", "--data", tmp_path, url=url)
            table = kvproxy("log", "--data", tmp_path, url=url).stdout.splitlines()
            # The first entry is replaced; a semantic hit has the entry of another question.
            body["messages"] = [{"role": "user", "content": STORED}]
            httpx.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm, no-cache"})
            services.journal.latest(1)
            earlier = kvproxy("log", "--json", "--data", tmp_path, url=url).stdout.splitlines()
            assert [json.loads(line)["question"] for line in earlier][::2] == [STORED, STORED]
            shown = json.loads(kvproxy("log", "show", 2, "--json", "--data", tmp_path, url=url).stdout)
            # The stored response was replaced, so that only the journal can have its question.
            assert shown["stored_question"] == (STORED if text == "hits" else None)
            top = json.loads(kvproxy("log", "top", "--json", "--data", tmp_path, url=url).stdout)
    named = {row["name"]: row["requests"] for row in top}
    assert named == {STORED: 2, ASKED if text == "hits" or shadow else "prompt = 2 (no text recorded)": 1}
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["question"], first["stored_question"]) == (STORED, None)
    assert (second["question"], second["stored_question"]) == (ASKED if text == "hits" else None, STORED)
    assert table[-1].endswith(f"\t{ASKED if text == 'hits' else ''}\t{STORED}")


def test_a_miss_has_the_question_of_the_nearest_stored_response(tmp_path: Path) -> None:
    with run_plain_upstream() as upstream:
        cache = {"policy": "threshold", "min_similarity": 0.999}
        with run_proxy(load_settings(data=tmp_path, upstream=upstream, cache=cache)) as (url, services):
            for question in (STORED, ASKED):
                httpx.post(f"{url}/v1/chat/completions", json=said(question), headers={"cache-control": "confirm"})
            services.journal.latest(1)
            listed = [
                json.loads(line) for line in kvproxy("log", "--json", "--data", tmp_path, url=url).stdout.splitlines()
            ]
            shown = result("log", "show", 2, "--data", tmp_path, url=url)
            table = kvproxy("log", "--data", tmp_path, url=url).stdout
    assert [(row["reason"], row["stored_question"]) for row in (*listed, shown)] == [
        ("miss-new", None),
        ("low-similarity", STORED),
        ("low-similarity", STORED),
    ]
    assert table.splitlines()[-1].endswith(f"\t{ASKED}\t")


def test_followed_requests_have_the_chosen_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        waits = iter(["a", "b"])

        def sleep(seconds: float) -> None:
            question = next(waits, None)
            if question is None:
                raise typer.Exit
            client.post("/v1/chat/completions", json=said(question)).raise_for_status()
            # The log is empty until the journal has written the first record.
            until(lambda: f'"question": "{question}"' in kvproxy("log", "--json", "-n", 1, url=url).stdout)

        monkeypatch.setattr("kvproxy.commands.journal.log.time", SimpleNamespace(sleep=sleep))
        done = kvproxy("log", "-f", "--columns", "status,question", url=url)
        assert (done.stdout.splitlines(), done.stderr) == (["status\tquestion", "200\ta", "200\tb"], ""), done


def test_requests_are_listed_in_the_order_of_their_arrival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    journal.add(Exchange("chat", "early", arrived=1_000.0, status=200))
    for id, arrived in (("short", 1_002.0), ("long", 1_001.0)):
        journal.add(Exchange("chat", id, arrived=arrived, status=200))
    journal.flush()
    shown = kvproxy("log", "--json", "-n", 2, "--data", tmp_path).stdout.splitlines()
    assert [json.loads(line)["request_id"] for line in shown] == ["long", "short"]
    waits = iter(["later"])

    def sleep(seconds: float) -> None:
        if (id := next(waits, None)) is None:
            raise typer.Exit
        # It arrived before the listed requests.
        journal.add(Exchange("chat", id, arrived=999.0, status=200))
        journal.flush()

    monkeypatch.setattr("kvproxy.commands.journal.log.time", SimpleNamespace(sleep=sleep))
    followed = kvproxy("log", "-f", "--json", "-n", 2, "--data", tmp_path).stdout.splitlines()
    assert [json.loads(line)["request_id"] for line in followed] == ["long", "short", "later"]
    journal.close()


def test_equal_questions_of_different_requests_are_told_apart(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        for fields in ({}, {}, {"temperature": 0}, {"temperature": 0, "seed": 1}):
            client.post("/v1/chat/completions", json=said("What is a block?", **fields)).raise_for_status()
        client.post("/v1/chat/completions", json=said("Hi.")).raise_for_status()
        # The text is known when the response is stored.
        until(lambda: [row["name"] for row in result("log", "top", url=url)].count("Hi.") == 1)
        until(lambda: len(result("log", "top", url=url)) == 4)
        chosen = kvproxy("log", "--columns", "reason,status,total_ms", "-n", 1, url=url).stdout.splitlines()
        assert chosen[0].split("\t") == ["reason", "status", "total_ms"]
        assert re.fullmatch(r"prefix-\d+%\t200\t[\d.]+", chosen[1]), chosen
        narrow = kvproxy("log", "top", "--backend", url=url, columns=80)
        lines = re.sub(r"\x1b\[[\d;]*m", "", narrow.stdout).splitlines()
        assert (max(map(len, lines)) <= 80, "Backend seconds" in lines[0]) == (True, True), lines
        rows = [(row["requests"], row["name"], row["differs_in"]) for row in result("log", "top", url=url)]
        assert rows[0] == (2, "What is a block?", [])
        assert (1, "What is a block?", ["temperature"]) in rows
        assert (1, "What is a block?", ["seed", "temperature"]) in rows
        assert (1, "Hi.", []) in rows
        shown = kvproxy("log", "top", url=url).stdout
        assert "\tseed, temperature\n" in shown
        # Groups of another kind have no such column.
        assert "Differs in" not in kvproxy("log", "top", "--by", "tenant", url=url).stdout


def test_the_times_of_a_record_add_up(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/chat/completions", json=said("a"), headers={"x-request-id": "one"}).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 1)
        shown = result("log", "show", "one", url=url)
        steps = [shown[name] for name in ("exact_ms", "backend_ms", "decode_ms")]
        assert sum(steps) == pytest.approx(shown["total_ms"], abs=0.01)
        assert re.search(r"^decode_ms\t\d", kvproxy("log", "show", "one", url=url).stdout, re.M)


def test_records_with_a_reason_of_another_version_are_read(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/chat/completions", json=said("a"), headers={"x-request-id": "one"}).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 1)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database, database:
        database.execute("update names set name = 'miss-weather' where name like 'prefix-%' or name = 'miss-new'")
    with proxied(tmp_path) as url:
        assert json.loads(kvproxy("log", "--json", url=url).stdout)["reason"] == "miss-weather"
        shown = kvproxy("log", "show", "one", url=url).stdout
        assert "Another version of kvproxy recorded this reason (`miss-weather`)." in shown
        top = json.loads(kvproxy("log", "top", "--by", "reason", "--json", url=url).stdout)
        assert [(row["name"], row["requests"]) for row in top] == [("miss-weather", 1)]


def test_refused_requests_are_named_beside_the_savings(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.headers["authorization"] = "Bearer 1"
        for question in ("a", "a"):
            client.post("/v1/chat/completions", json=said(question), headers={"cache-control": "confirm"})
        headers = {"cache-control": "min-similarity=7"}
        assert client.post("/v1/chat/completions", json=said("a"), headers=headers).status_code == 400
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 3)
        found = result("savings", url=url)
        assert (found["total"]["requests"], found["refused"]) == (2, 1)
        by_tenant = kvproxy("savings", "--by", "tenant", url=url).stdout
        assert "1 refused request not counted" in by_tenant
        assert "A digest is a client without a name" in by_tenant
        day = datetime.now(UTC).date().isoformat()
        for command in (("savings", "--since", "1s"), ("savings", "--ledger", "--since", "1s")):
            assert f"All requests since {day} 00:00 UTC count" in kvproxy(*command, url=url).stdout
            assert result(*command, url=url)["first_day"] == day
        assert result("savings", url=url)["first_day"] is None
        assert kvproxy("savings", "--by", "tag", url=url).stderr.startswith("no request has a tag")
        ledger = kvproxy("savings", "--ledger", url=url).stdout
        assert "No price is known" in ledger
        assert "USD" not in ledger
        assert [row["requests"] for row in result("log", "top", "--by", "tenant", url=url)] == [3]


@pytest.mark.parametrize("body", [{"model": "m"}, {"model": "m", "messages": None}, {"model": "m", "messages": [None]}])
def test_a_request_without_messages_has_no_question(tmp_path: Path, body: dict[str, object]) -> None:
    settings = load_settings(data=tmp_path, upstream="http://127.0.0.1:9", journal={"text": "all"})
    with run_proxy(settings) as (url, services):
        assert not httpx.post(f"{url}/v1/chat/completions", json=body).is_success
        services.journal.latest(1)
        (row,) = [json.loads(line) for line in kvproxy("log", "--json", url=url).stdout.splitlines()]
        table = kvproxy("log", "--columns", "layer,question", url=url).stdout.splitlines()
    assert row["question"] is None
    assert table[1:] == [f"{row['layer']}\t"]


def test_an_unknown_column_and_a_stopped_proxy_have_a_hint(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/chat/completions", json=said("a")).raise_for_status()
        wrong = kvproxy("log", "--where", "latency > 5", url=url)
        assert (wrong.returncode, "no such column: latency" in wrong.stderr) == (2, True)
        assert "over the fields number, time, request_id" in wrong.stderr
    for arguments in (("log",), ("log", "top"), ("savings",), ("sessions",), ("explain", "--request", "x")):
        # The journal of the default data folder would be that of another proxy.
        done = kvproxy(*arguments, "--url", url, KVPROXY_DATA=str(tmp_path))
        assert (done.returncode, done.stdout) == (4, ""), arguments
        assert f"no proxy answers at {url}" in done.stderr


def test_an_unreachable_store_is_one_line(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/chat/completions", json=said("a")).raise_for_status()
    file = tmp_path / "kvproxy.toml"
    file.write_text('store = "postgresql://127.0.0.1:9/x"\n')
    shared = kvproxy("savings", "--data", tmp_path)
    assert (shared.returncode, shared.stderr.count("\n")) == (1, 1), shared
    file.write_text('store = "postgresql://127.0.0.1:9/x"\njournal.store = "file"\n')
    for arguments in (("savings",), ("cache", "ls"), ("keys", "add", "ann")):
        done = kvproxy(*arguments, "--data", tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert done.stderr.startswith("kvproxy: cannot reach the store postgresql://127.0.0.1:9/x"), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_client_has_the_same_name_in_each_table(tmp_path: Path) -> None:
    key = result("keys", "add", "ann", "--data", tmp_path)["key"]
    with proxied(tmp_path) as url, httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:
        client.post("/v1/chat/completions", json=said("a"), headers={"cache-control": "confirm"}).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 1)
        for arguments in (
            ("log",), ("log", "top", "--by", "tenant"), ("savings", "--by", "tenant"), ("sessions",), ("sessions", "show", 1),
            ("cache", "ls"), ("cache", "usage"), ("explain", "a", "--api-key", key), ("explain", "--request", 1),
        ):  # fmt: skip
            shown = kvproxy(*arguments, url=url).stdout
            assert re.search(r"(^|\t|  )ann(\t|$)", shown, re.M), shown
            assert "client:ann" not in shown, arguments
        by_day = kvproxy("log", "top", "--by", "day", url=url)
        assert (by_day.stdout.count("\n"), by_day.stderr) == (2, "the days are UTC days\n")
        assert [row["tenant"] for row in result("sessions", url=url)] == ["client:ann"]


def test_the_money_of_some_models_is_no_bound_of_all_hits(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."m"]\ninput = 2.5\noutput = 10\n')
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        for model, count in (("m", 2), ("free", 3)):
            for _ in range(count):
                body = said("a") | {"model": model}
                client.post("/v1/chat/completions", json=body, headers={"cache-control": "confirm"}).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 5)
        help_of_money = re.search("# HELP kvproxy_savings_money (.*)", httpx.get(f"{url}/metrics").text)
        assert help_of_money is not None
        assert "excludes models without a price" in help_of_money[1]
        wide = kvproxy("savings", "--data", tmp_path, columns=160).stdout
        assert re.search(r"\nexact .* [\d.]+ \(priced\) ", wide), wide
        shown = kvproxy("savings", "--data", tmp_path).stdout
        assert "Not in the money: 2 hits and 1 reused token of models without a price.\n" in shown
        rows = {row["name"]: row for row in result("savings", "--by", "model", "--data", tmp_path)["rows"]}
        assert (rows["m"]["unpriced_hits"], rows["free"]["unpriced_hits"]) == (0, 2)
        assert "(priced)" not in kvproxy("savings", "--by", "model", "--data", tmp_path).stdout.split("\nall")[0]


def test_requests_are_selected_by_dates_in_files_and_over_http(tmp_path: Path) -> None:
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/chat/completions", json=said("a")).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 1)
        for period, count in (
            (("--since", "yesterday"), 1),
            (("--since", "2020-01-01", "--until", "2020-02-01"), 0),
            (("--until", "yesterday"), 0),
            (("--since", "2020-01-01T12:00"), 1),
        ):
            assert len(kvproxy("log", "--jsonl", *period, url=url).stdout.splitlines()) == count
            assert len(result("sessions", *period, url=url)) == count
            parameters = dict(zip((each.removeprefix("--") for each in period[::2]), period[1::2], strict=True))
            assert len(client.get("/admin/log", params=parameters).json()) == count
        for command in (("savings",), ("savings", "--ledger")):
            found = result(*command, "--since", "2026-01-02T12:00Z", "--until", "2026-01-04T00:00Z", url=url)
            assert (found["first_day"], found["last_day"], found["rows"]) == ("2026-01-02", "2026-01-03", [])
        wrong = kvproxy("log", "--since", "soon", url=url)
        assert (wrong.returncode, "such as 90s, 7d, 2026-11-28" in wrong.stderr) == (2, True)


def test_a_pipe_receives_all_rows_and_a_terminal_a_note(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    for number in range(25):
        journal.add(Exchange("chat", f"r{number}", arrived=1_000.0 + number, status=200))
    journal.flush()
    journal.close()
    given = ("log", "--data", tmp_path)
    for form in ((), ("--csv",), ("--json",)):
        piped = kvproxy(*given, *form)
        assert (len(piped.stdout.splitlines()), piped.stderr) == (25 + (form != ("--json",)), "")
    shown = kvproxy(*given, columns=100)
    assert (len(shown.stdout.splitlines()), shown.stderr) == (
        21,
        "20 rows, and there are more: list all with --limit 0\n",
    )
    cut = kvproxy(*given, "-n", 3, "--csv", "--columns", "request_id,total_ms")
    assert cut.stdout.splitlines()[::3] == ["request_id,total_ms", "r24,"]
    assert cut.stderr == ""
    assert kvproxy(*given, "-n", 3).stderr == "3 rows, and there are more: list all with --limit 0\n"


def test_an_unknown_column_of_data_is_explained_in_one_sentence(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    journal.add(Exchange("chat", "a" * 32, arrived=1_000.0, status=200))
    journal.close()
    for name, told in (
        (
            "tokens",
            "the column tokens is only in tables, computed from other fields: use prompt_tokens,completion_tokens",
        ),
        ("total-m", "there is no column 'total_m': did you mean total_ms?"),
    ):
        done = kvproxy("log", "--json", "--columns", f"time,{name}", "--data", tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kvproxy: {told}\n")
    assert kvproxy("log", "--columns", "time,tokens", "--data", tmp_path).returncode == 0
