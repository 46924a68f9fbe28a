"""Tables are complete in a pipe; at a terminal, only text columns are truncated. Untrusted text is escaped."""

import csv
import io
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.clients.client_keys import add_client
from kvproxy.commands.formatting import (
    Formatted,
    amount_text,
    escape_controls,
    format_duration,
    format_size,
    json_text,
    local_time,
    logged_time,
    milliseconds,
    money,
    one_line,
    percent,
    raw_text,
    table_time,
)
from kvproxy.commands.tables import (
    Column,
    Layout,
    ListLayout,
    digest_column,
    print_records,
    print_table,
    text_column,
)
from kvproxy.errors import InvalidRequest
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import kvproxy
from tests.commands.test_cache import stored
from tests.index.entries import make_entry
from tests.journal.test_file import finished

COLUMNS = (digest_column("id", 4), "age#", "name", text_column("prompt"))
CELLS = st.text(st.sampled_from("abé漢[%…"), min_size=1, max_size=40)
ROWS = st.lists(st.tuples(CELLS, st.integers(0, 10**7), CELLS, CELLS), min_size=1, max_size=5)


def printed(columns: Sequence[Column | str], rows: list[Any], **options: Any) -> tuple[list[str], str]:
    """The lines of a table, and the note below it."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        print_table([dict(zip(columns, row, strict=True)) for row in rows], **options)
    return out.getvalue().split("\n")[:-1], err.getvalue()


@contextmanager
def terminal(width: int | None = None) -> Iterator[None]:
    """A terminal without colours, or a pipe."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        if width:
            patch.setenv("FORCE_COLOR", "1")
            patch.setenv("NO_COLOR", "1")
            patch.setenv("COLUMNS", str(width))
        yield


@given(ROWS)
def test_a_pipe_receives_complete_cells(rows: list[tuple[object, ...]]) -> None:
    with terminal():
        lines, note = printed(COLUMNS, rows)
    assert note == ""
    assert lines[0].split("\t") == ["id", "age", "name", "prompt"]
    expected = [[id, str(age), name, prompt] for id, age, name, prompt in rows]
    assert [line.split("\t") for line in lines[1:]] == expected


def widest_line(lines: list[str]) -> int:
    return max(cell_len(re.sub(r"\x1b\[\d*m", "", line)) for line in lines)


@given(ROWS, st.integers(20, 200))
def test_a_table_fits_its_terminal(rows: list[tuple[object, ...]], width: int) -> None:
    with terminal(width):
        lines, note = printed(COLUMNS, rows)
    assert widest_line(lines) <= width
    assert not any("\x1b[3" in line for line in lines), "NO_COLOR is set"
    widest = max(cell_len(str(row[3])) for row in rows)
    short = [[str(row[0])[:4], f"{row[1]:,}", str(row[2])] for row in rows]
    needed = sum(max(map(cell_len, column)) for column in zip(("id", "age", "name"), *short, strict=True)) + 6
    room = width - needed
    assert (note == "") == (room >= min(12, max(6, widest)))
    if note:
        return
    for line, cells, row in zip(lines[1:], short, rows, strict=True):
        prompt = str(row[3])
        assert " ".join(line.split()).startswith(" ".join(" ".join(cells).split()))
        assert line.rstrip().endswith(prompt.rstrip() if cell_len(prompt) <= room else "…")


TABLES = [
    "log",
    "log top",
    "sessions",
    "sessions --by day",
    "savings",
    "savings --ledger",
    "cache ls",
    "cache queue",
    "keys ls",
    "prices show",
    "config show",
]


@pytest.mark.parametrize("width", [60, 80])
def test_columns_without_space_are_omitted_after_names_and_the_first_column_take_several_lines(width: int) -> None:
    url = "http://a-long-name.example.internal:8000/v1/with/a/path/that/is/long/too"
    columns = ("upstream", "reused tokens#", "response tokens#", "state of the server", "comment")
    with terminal(width):
        lines, note = printed(columns, [(url, 12, 345, "healthy", "c" * 40)])
    assert widest_line(lines) <= width
    assert lines[-1].split()[1:] == ["12", "345", "healthy"]
    start = next(number for number, line in enumerate(lines) if line.startswith("http"))
    assert "".join(line.split()[0] for line in lines[start:]) == url
    assert " ".join(note.split()) == "not shown: comment (a wider terminal shows them)"


def test_columns_that_tell_rows_apart_stay_longest() -> None:
    columns = ("model", "tier?", "source?", "above#", "input#", "written#", "output#")
    rows = [
        ("gpt-4o-mini", tier, "list", 0, 0.15, None, output) for tier, output in (("batch", 0.3), ("priority", 1.0))
    ]

    def header(width: int) -> list[str]:
        with terminal(width):
            return re.sub(r"\x1b\[\d*m", "", printed(columns, rows)[0][0]).split()

    assert header(62) == ["model", "tier", "source", "above", "input", "written", "output"]
    assert header(51) == ["model", "tier", "source", "above", "input", "output"]
    assert header(50) == ["model", "tier", "above", "input", "output"]
    with terminal(30):
        lines, note = printed(("model", "tier", *columns[3:]), [(row[0], *row[1:2], *row[3:]) for row in rows])
    assert re.sub(r"\x1b\[\d*m", "", lines[0]).split() == ["model", "tier", "output"]
    assert " ".join(note.split()) == "not shown: above, input (a wider terminal shows them)"


def test_line_ends_and_markup_are_printed_literally() -> None:
    rows = [("a", None, "b\tc", "one\n\n two\u2028three [red]x[/red]")]
    with terminal():
        assert printed(COLUMNS, rows)[0][1] == "a\t\tb c\tone two three [red]x[/red]"
    with terminal(80):
        assert "[red]x[/red]" in printed(COLUMNS, rows)[0][1]


def test_two_text_columns_fit_a_terminal() -> None:
    columns = (
        "time",
        "reason",
        "ms#",
        digest_column("request", 8),
        text_column("question"),
        text_column("stored question"),
    )
    with terminal(80):
        lines, _ = printed(
            columns, [("12:00:00", "miss-dissimilar", "1,234.5", "a" * 32, "question " * 9, "question " * 9)]
        )
    assert max(map(cell_len, lines[1:])) <= 80, lines


TENANT = digest_column("tenant", 16, optional=True)
WIDE = ("time", "layer", "model?", TENANT, "tokens#?", "ms#", text_column("question"))
ROW = ("12:00:00", "semantic", "a-model/with-a-long-name", "t" * 32, 1_234, "12.5", "What is a block? " * 9)


def test_optional_columns_are_left_out_until_the_table_fits() -> None:
    def header(width: int, layout: Layout = Layout()) -> tuple[list[str], str]:
        with terminal(width):
            lines, note = printed(WIDE, [ROW], layout=layout)
        return re.sub(r"\x1b\[\d*m", "", lines[0]).split(), note

    everything = ["time", "layer", "model", "tenant", "tokens", "ms", "question"]
    assert header(200) == (everything, "")
    for width in range(50, 140):
        shown, note = header(width)
        hidden = ", ".join(name for name in everything if name not in shown)
        assert " ".join(note.split()) == (f"not shown: {hidden} (--wide shows all columns)" if hidden else "")
    assert header(80)[0] == ["time", "layer", "model", "ms", "question"]
    assert header(60)[0] == ["time", "layer", "ms", "question"]
    assert header(60, Layout(wide=True)) == (everything, "")
    assert header(60, Layout(columns="Tokens,time")) == (["tokens", "time"], "")


def test_columns_are_selected_by_name_in_a_pipe() -> None:
    with terminal():
        assert printed(WIDE, [ROW], layout=Layout(columns="ms, layer"))[0] == ["ms\tlayer", "12.5\tsemantic"]
    with pytest.raises(InvalidRequest, match="no column 'nope': use some of time, layer, model"):
        printed(WIDE, [ROW], layout=Layout(columns="ms,nope"))


def has_controls(text: str) -> bool:
    bidirectional = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    return any(
        ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or letter in bidirectional for letter in text.replace("\n", "")
    )


@given(st.text(alphabet="\x1b]0;owned\x07\x9b2J\x7f\x08\n\t\u2028\u202e\u2066\u200fé漢\U0001f600"))
def test_control_characters_are_escaped(text: str) -> None:
    assert not has_controls(escape_controls(text))
    assert not has_controls(one_line(text))
    assert "\n" not in one_line(text)
    assert json.loads(json_text({text: [text]})) == {text: [text]}
    assert not has_controls(json_text({text: [text]}))


def test_an_empty_text_is_shown_as_a_dash() -> None:
    assert one_line("") == one_line(None) == "-"


def test_a_moment_beyond_the_calendar_stays_a_number() -> None:
    assert local_time(1e300) == "1e+300"
    assert local_time(0)[:3] in ("197", "196")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16361, "16361"),
        (Formatted("9,127.0", 9127.04), "9127.04"),
        (percent(0.9134), "0.9134"),
        (money(0.0000123), "0.0000123"),
        (format_duration(138), "138"),
        (format_size(2048), "2048"),
        (milliseconds(None), ""),
        (1e-12, "0"),
        (-1e-12, "0"),
        (2.0, "2"),
        ("1,234 blocks", "1,234 blocks"),
        (None, ""),
        ("-", "-"),
        (True, "true"),
    ],
)
def test_numbers_are_raw_and_unknown_values_empty_in_a_pipe(value: object, text: str) -> None:
    assert raw_text(value) == text


RECORDS = [
    {"id": 1, "text": 'a "b", c\nd \x1b[1m', "ms": 0.25, "tags": ["x", "y"], "cached": True, "none": None},
    {"id": 2, "text": "", "ms": None, "tags": [], "cached": False, "none": None},
]


def recorded(layout: ListLayout) -> str:
    with redirect_stdout(io.StringIO()) as out:
        print_records(RECORDS, layout)
    return out.getvalue()


def test_csv_has_the_fields_of_json_and_empty_cells_for_unknown_values() -> None:
    rows = list(csv.DictReader(io.StringIO(recorded(ListLayout(csv=True)), newline="")))
    assert rows[0] == {
        "id": "1",
        "text": 'a "b", c\nd \\x1b[1m',
        "ms": "0.25",
        "tags": '["x", "y"]',
        "cached": "true",
        "none": "",
    }
    assert [(row["ms"], row["tags"], row["cached"]) for row in rows[1:]] == [("", "[]", "false")]
    assert recorded(ListLayout(csv=True, columns="ms,ID")) == "ms,id\n0.25,1\n,2\n"
    with pytest.raises(InvalidRequest, match="no column 'nope': use some of id, text, ms, tags, cached, none"):
        recorded(ListLayout(csv=True, columns="nope"))


def test_json_lines_have_the_objects_of_json() -> None:
    assert [json.loads(line) for line in recorded(ListLayout(jsonl=True)).splitlines()] == RECORDS
    assert "\x1b" not in recorded(ListLayout(jsonl=True))


def test_csv_without_rows_has_a_head_line(tmp_path: Path) -> None:
    stored(tmp_path / "responses.db")
    open_stored_journal(tmp_path / "journal.db", JournalSettings()).close()
    store = ("--store", tmp_path / "responses.db")
    for command, field in (
        (("cache", "ls", *store), "id"),
        (("cache", "usage", *store), "entries"),
        (("cache", "queue", *store), "priority"),
        (("keys", "ls", "--data", tmp_path), "left_today"),
        (("keys", "history", "--data", tmp_path), "change"),
        (("log", "--data", tmp_path), "stored_question"),
        (("log", "top", "--data", tmp_path), "computed"),
        (("sessions", "--data", tmp_path), "turns"),
        (("sessions", "--by", "day", "--data", tmp_path), "cost"),
        (("savings", "--data", tmp_path), "spent"),
    ):
        done = kvproxy(*command, "--csv")
        (head,) = done.stdout.splitlines()
        assert (done.returncode, field in head.split(",")) == (0, True), command
        assert kvproxy(*command, "--csv", "--columns", field).stdout == f"{field}\n"
        assert kvproxy(*command, "--jsonl").stdout == ""


def test_only_similar_options_are_suggested(tmp_path: Path) -> None:
    for option, suggestion in (
        ("--csvv", ". Did you mean --csv?"),
        ("--colums", ". Did you mean --columns?"),
        ("--sort", ""),
        ("--limit", ""),
    ):
        done = kvproxy("keys", "ls", option, "1")
        assert re.search(rf"No such option: {option}{re.escape(suggestion)} \(\S.* keys ls --help", done.stderr), (
            done.stderr
        )
    assert "Did you mean --url http://HOST:PORT?" in kvproxy("ask", "--port", "7200", "What is a block?").stderr
    assert "start several proxies with the setting shared_port" in kvproxy("serve", "--workers", "2").stderr
    assert "Did you mean --budget-per-day or --budget-per-month?" in kvproxy("keys", "add", "a", "--budget", "5").stderr


def test_the_log_shows_layer_tokens_and_cost_in_80_columns(tmp_path: Path) -> None:
    data, prices = tmp_path, {"KVPROXY_JOURNAL__PRICES": '{"*": {"input": 100.0}}'}
    journal = open_stored_journal(data / "journal.db", JournalSettings())
    journal.add(finished("How can I reset my password, and where?", "a" * 32, arrived=time.time()))
    journal.close()
    done = kvproxy("log", "--data", data, columns=80, **prices)
    head = re.sub(r"\x1b\[\d*m", "", done.stdout.splitlines()[0]).split()
    assert head[:7] == ["Time", "Layer", "Reason", "Tokens", "Cost", "ms", "Request"], done
    assert head[-1] == "Question"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which all names and numbers are long."""
    data, name = tmp_path_factory.mktemp("data"), "a-provider/with-a-model-name-of-many-words"
    entries = [make_entry(f"{number} " + "why " * 50, model=name, created=time.time()) for number in range(3)]
    stored(data / "responses.db", *entries)
    add_client(load_settings(data=data), "a-client-with-a-long-name", budget_per_day=1e6, requests_per_minute=10**6)
    journal = open_stored_journal(data / "journal.db", JournalSettings())
    for number in range(6):
        tags = f"project:a-project-with-a-long-name-{number},another-tag-with-a-long-name"
        usage = {"usage": (10**6, 10**5), "prefix": PrefixReuse(10**6, 10**5)}
        tenant = "client:a-client-with-a-long-name" if number % 2 else "public"
        question, hit = "why " * 50 + str(number // 2), bool(number % 2)
        exchange = finished(question, f"{number}" * 32, hit=hit, tenant=tenant, tags=tags, arrived=time.time(), **usage)
        journal.add(exchange)
    journal.close()
    (data / "log.jsonl").write_text("\n".join(json.dumps({"model": name, "prompt": "why " * 40}) for _ in range(9)))
    (data / "kvproxy.toml").write_text(
        '[journal.prices."*"]\ninput = 100.0\noutput = 999.0\n[journal]\nprice_list = "none"'
    )
    return data


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    "command",
    [
        *TABLES,
        "log top --by client",
        "sessions --by model",
        "savings --by tag",
        "savings --by client",
        "savings --by model",
        "cache usage --by model",
        "keys history",
        "config show --changed",
        "lint FOLDER/log.jsonl",
        "estimate FOLDER/log.jsonl",
    ],
)
def test_every_table_fits_narrow_terminals(folder: Path, command: str, width: int) -> None:
    done = kvproxy(*command.replace("FOLDER", str(folder)).split(), "--data", folder, columns=width)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert len(lines) > 1
    # Paths stay on one line.
    assert widest_line([line for line in lines if str(folder) not in line]) <= width, done.stdout


@pytest.mark.parametrize(
    "command",
    [
        *TABLES,
        "cache usage",
        "keys history",
        "log top --by client",
        "savings --by client",
        "savings --bill",
    ],
)
def test_a_pipe_can_select_each_field_of_json(folder: Path, command: str) -> None:
    given = (*command.split(), "--data", folder)
    fields = list(json.loads(kvproxy(*given, "--jsonl").stdout.splitlines()[0]))
    lines = kvproxy(*given, "--columns", ",".join(fields)).stdout.splitlines()
    assert lines[0].split("\t") == fields
    assert len(lines[1].split("\t")) == len(fields)


COMPUTED = {
    "log": {"tokens"},
    "sessions": {"share", "lost_most_to"},
    "sessions --by day": {"cached_share", "lost_most_to", "lost_most_cost"},
    "savings --ledger": {"meaning"},
    "cache ls": {"age"},
    "cache queue": {"age", "expires_in", "tokens"},
}
"""Columns of tables that are computed from the fields of JSON, by command."""


@pytest.mark.parametrize(
    "command",
    [
        *TABLES,
        "log top --by client",
        "savings --by client",
        "savings --bill",
        "cache usage --by model",
        "keys history",
        "estimate FOLDER/log.jsonl --by model",
    ],
)
def test_the_columns_of_a_pipe_have_the_names_of_csv(folder: Path, command: str) -> None:
    given = (*command.replace("FOLDER", str(folder)).split(), "--data", folder)
    fields = kvproxy(*given, "--csv").stdout.splitlines()[0].split(",")
    columns = piped_columns(*given)
    assert set(columns) - set(fields) == COMPUTED.get(command, set())
    if "name" in fields:
        assert columns[:2][-1 if "id" in columns else 0] == "name"


def piped_columns(*command: object) -> list[str]:
    return kvproxy(*command).stdout.splitlines()[0].split("\t")


def test_the_columns_of_a_pipe_do_not_depend_on_its_rows(tmp_path: Path) -> None:
    plain, rich = make_entry("a", created=time.time()), make_entry("b", created=time.time(), tenant="client:ann")
    stores = [stored(tmp_path / name, entry) for name, entry in (("a.db", plain), ("b.db", rich))]
    assert kvproxy("cache", "pin", rich.id, "--store", stores[1]).returncode == 0
    heads = [piped_columns("cache", "ls", "--store", store) for store in stores]
    assert heads[0] == heads[1]
    assert {"tenant", "pinned"} <= {*heads[0]}
    for store, pinned, tenant in zip(stores, ("false", "true"), ("public", "ann"), strict=True):
        lines = kvproxy("cache", "ls", "--columns", "pinned,tenant,tags", "--store", store).stdout.splitlines()
        assert lines[1:] == [f"{pinned}\t{tenant}\t"]
    shown = kvproxy("cache", "ls", "--store", stores[0], columns=120).stdout
    assert "Pinned" not in shown
    assert "Tenant" not in shown
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    journal.add(finished("How?", "a" * 32, arrived=time.time()))
    journal.close()
    assert "stored_question" in piped_columns("log", "--data", tmp_path)
    assert "differs_in" in piped_columns("log", "top", "--data", tmp_path)
    # Only groups of prompts have it.
    assert "differs_in" not in piped_columns("log", "top", "--by", "reason", "--data", tmp_path)
    assert {"spent", "money", "least_money"} <= {*piped_columns("savings", "--data", tmp_path)}
    assert "Stored question" not in kvproxy("log", "--data", tmp_path, columns=200).stdout


def test_the_log_shows_the_fields_that_a_condition_names(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    journal.add(finished("How?", "a" * 32, arrived=time.time()))
    journal.close()
    command = "log", "--data", tmp_path, "--where"
    added = ["status", "reached_limit"]
    assert piped_columns(*command, "reached_limit is null and STATUS <> 404 and 'near' <> model")[-2:] == added


def test_small_amounts_have_two_significant_digits() -> None:
    amounts = (0.0, 0.00035, 0.000021, -0.00035, 0.0012, 12.5, 1e-12, 1234.5)
    shown = ["0.0000", "0.00035", "0.000021", "-0.00035", "0.0012", "12.5000", "0.0000", "1,234.5000"]
    assert list(map(money, amounts)) == shown


def test_sums_of_money_have_no_rounding_errors() -> None:
    sums = [0.1 + 0.2, 0.9642700000000002, 1.1 + 2.2, 2.25e-07, 1_790_000_000.123456]
    assert json.loads(json_text({"rows": [{"cost": money} for money in sums]})) == {
        "rows": [{"cost": money} for money in (0.3, 0.96427, 3.3, 2.25e-07, 1_790_000_000.123456)]
    }
    # The sum of a budget and the sum of a list, in another order.
    assert amount_text(0.02325) == amount_text(0.0077 + 0.01555) == amount_text(0.023250000000000003)


def test_times_of_a_log_may_be_relative() -> None:
    assert (logged_time(16_589), logged_time(0)) == ("+4:36:29", "+0:00:00")
    assert logged_time(1.7e9) == table_time(1.7e9)


def test_a_forced_terminal_has_the_times_of_a_terminal() -> None:
    now = time.time()
    with terminal():
        assert "T" in local_time(now)
    with terminal(60):
        assert len(table_time(now)) == len("10:02:03")
