"""Reads logs with a question and an answer per row: {"question": "...", "answer": "...", "model": "m"}."""

from collections.abc import Iterable

from kvproxy.analyse.log_formats.log_format import LogFormat, LoggedRequest, Row, conversation_requests


def read(row: Row) -> Iterable[LoggedRequest]:
    value = row.value
    turns = [("user", value["question"]), ("assistant", value["answer"])]
    return conversation_requests(row, turns, {"model": value.get("model") or ""})


QUESTIONS = LogFormat("questions", "Question log", ("question", "answer"), read)
