"""Tables are complete in a pipe; at a terminal, only text columns are truncated."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvproxy.commands.tables import digest, print_table, text

COLUMNS = (digest("id", 4), "age#", "name", text("prompt"))
CELLS = st.text(st.sampled_from("abé漢[%…"), min_size=1, max_size=40)
ROWS = st.lists(st.tuples(CELLS, st.integers(0, 10**7), CELLS, CELLS), min_size=1, max_size=5)


@pytest.fixture
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        yield patch


def printed(rows: list[tuple[object, ...]]) -> list[str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        print_table(COLUMNS, rows, empty="there is none")
    assert err.getvalue() == ""
    return out.getvalue().split("\n")[:-1]


@given(ROWS)
def test_a_pipe_receives_complete_cells(rows: list[tuple[object, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FORCE_COLOR", raising=False)
        lines = printed(rows)
    assert lines[0].split("\t") == ["id", "age", "name", "prompt"]
    assert [line.split("\t") for line in lines[1:]] == [
        [id, f"{age:,}", name, prompt] for id, age, name, prompt in rows
    ]


@given(ROWS, st.integers(20, 200))
def test_a_terminal_truncates_text_columns_only(rows: list[tuple[object, ...]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", str(width))
        lines = printed(rows)
    widest = max(cell_len(str(row[3])) for row in rows)
    short = [[str(row[0])[:4], f"{row[1]:,}", str(row[2])] for row in rows]
    needed = sum(max(map(cell_len, column)) for column in zip(("id", "age", "name"), *short, strict=True)) + 6
    room = max(min(20, max(6, widest)), width - needed)
    for line, cells, row in zip(lines[1:], short, rows, strict=True):
        prompt = str(row[3])
        assert " ".join(line.split()).startswith(" ".join(" ".join(cells).split()))
        assert line.rstrip().endswith(prompt.rstrip() if cell_len(prompt) <= room else "…")
    assert max(map(cell_len, lines[1:])) <= max(width, needed + room)


def test_line_ends_and_markup_are_printed_literally(environment: pytest.MonkeyPatch) -> None:
    rows: list[tuple[object, ...]] = [("a", None, "b\tc", "one\n\n two\u2028three [red]x[/red]")]
    assert printed(rows)[1] == "a\t-\tb c\tone two three [red]x[/red]"
    environment.setenv("FORCE_COLOR", "1")
    environment.setenv("COLUMNS", "80")
    assert "[red]x[/red]" in printed(rows)[1]


def test_an_empty_table_prints_a_note_on_stderr() -> None:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        print_table(COLUMNS, [], empty="there is none")
    assert (out.getvalue(), err.getvalue()) == ("", "there is none\n")


def test_no_color_disables_colours(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FORCE_COLOR", "1")
    environment.setenv("NO_COLOR", "1")
    with redirect_stdout(io.StringIO()) as out:
        print_table(("state",), [("free",)])
    assert "\x1b[3" not in out.getvalue()


WIDE = ("time", "layer", "model?", digest("tenant", 16, optional=True), "tokens#?", "ms#", text("question"))
ROW = ("12:00:00", "semantic", "a-model/with-a-long-name", "t" * 32, 1_234, "12.5", "What is a block? " * 9)


def test_optional_columns_are_left_out_until_the_table_fits(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FORCE_COLOR", "1")
    environment.setenv("NO_COLOR", "1")

    def lines(width: int, *, wide: bool = False) -> tuple[list[str], str]:
        environment.setenv("COLUMNS", str(width))
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            print_table(WIDE, [ROW], wide=wide)
        header = re.sub(r"\x1b\[\d*m", "", out.getvalue().split("\n")[0])
        return header.split(), err.getvalue()

    everything = ["time", "layer", "model", "tenant", "tokens", "ms", "question"]
    assert lines(200) == (everything, "")
    for width in range(50, 140):
        header, note = lines(width)
        left_out = [name for name in everything if name not in header]
        assert note == (f"not shown: {', '.join(left_out)} (--wide shows all columns)\n" if left_out else "")
    assert lines(80)[0] == ["time", "layer", "model", "ms", "question"]
    assert lines(60)[0] == ["time", "layer", "ms", "question"]
    assert lines(60, wide=True) == (everything, "")
