"""Data sets of conversations: ShareGPT, LMSYS-Chat and WildChat, and MT-bench."""

from collections.abc import Iterator

from kvproxy.analyse.log_formats.log_format import LogFormat, LoggedRequest, Row, conversation_requests, request_of
from kvproxy.analyse.log_formats.log_times import parse_time
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, objects
from kvproxy.errors import InvalidRequest

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function_call": "assistant",
    "observation": "tool",
}


def _read_sharegpt(row: Row) -> Iterator[LoggedRequest]:
    turns: list[tuple[str, Json]] = []
    if system := row.value.get("system"):
        turns.append(("system", system))
    for turn in objects(row.value["conversations"]):
        speaker = str(turn.get("from", turn.get("role"))).lower()
        if speaker not in _SHAREGPT_ROLES:
            raise InvalidRequest(f"unknown speaker {speaker!r} in conversations")
        turns.append((_SHAREGPT_ROLES[speaker], turn.get("value", turn.get("content"))))
    yield from conversation_requests(row, turns)


def _read_conversation(row: Row) -> Iterator[LoggedRequest]:
    turns = [(str(turn.get("role")), turn.get("content")) for turn in objects(row.value["conversation"])]
    fields: JsonObject = {"model": row.value["model"]} if isinstance(row.value.get("model"), str) else {}
    yield from conversation_requests(row, turns, fields, parse_time(row.value.get("timestamp")))


def _read_mt_bench(row: Row) -> Iterator[LoggedRequest]:
    turns = row.value["turns"]
    if not isinstance(turns, list) or not turns:
        raise InvalidRequest("turns is not a list of questions")
    # A later turn follows an answer, which the file lacks.
    yield request_of(row, {"messages": [{"role": "user", "content": turns[0]}]}, api=APIS["chat"])


def _refuse_mt_bench_answers(row: Row) -> Iterator[LoggedRequest]:
    raise InvalidRequest("these are answers of MT-bench, which have no prompts: give its question.jsonl")


FORMATS = (
    LogFormat("sharegpt", "ShareGPT conversations", ("conversations",), _read_sharegpt),
    LogFormat("lmsys", "LMSYS conversations", ("conversation",), _read_conversation),
    LogFormat(
        "mt-bench-answers",
        "answers of MT-bench",
        ("question_id", "choices"),
        _refuse_mt_bench_answers,
        has_requests=False,
    ),
    LogFormat("mt-bench", "MT-bench questions (first turns)", ("question_id", "turns"), _read_mt_bench),
)
