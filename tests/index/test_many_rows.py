"""Many rows by few statements are the same rows, in the same order, as one statement for each."""

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.store.sql_writer import _INSERT, _INSERT_TAG, _INSERT_VECTOR
from kvproxy.index.store.sqlite.many_rows import _INSERT as PLAIN
from kvproxy.index.store.sqlite.many_rows import execute_many

TABLE = "create table things (number integer primary key autoincrement, name text, size real, body blob)"
ADD = "insert into things (name, size, body) values (:name, :size, :body)"
ROWS = st.lists(
    st.tuples(st.text(max_size=3), st.none() | st.floats(allow_nan=False), st.binary(max_size=3)), max_size=200
)


@given(ROWS)
def test_rows_are_the_same_as_one_by_one(rows: list[tuple[str, float | None, bytes]]) -> None:
    values = [{"name": name, "size": size, "body": body, "more": 1} for name, size, body in rows]
    found = []
    for add in (execute_many, lambda connection, sql, values: connection.executemany(sql, values)):
        connection = sqlite3.connect(":memory:")
        connection.execute(TABLE)
        add(connection, ADD, values)
        found.append(connection.execute("select * from things").fetchall())
        connection.close()
    assert found[0] == found[1]


def test_what_is_no_plain_insert_is_run_once_for_each() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(TABLE)
    execute_many(connection, ADD, [{"name": name, "size": 1, "body": b""} for name in "abc"])
    change = "update things set size = :size where name = :name"
    execute_many(connection, change, [{"name": "a", "size": 5}, {"name": "c", "size": 7}])
    assert connection.execute("select size from things").fetchall() == [(5,), (1,), (7,)]
    connection.close()


def test_the_inserts_of_a_store_are_plain_ones() -> None:
    assert all(PLAIN.fullmatch(sql) for sql in (_INSERT, _INSERT_TAG, _INSERT_VECTOR))
