"""Request logs of engines: SGLang's JSON lines. vLLM's text lines are read in `vllm_log.py`."""

from collections.abc import Iterator

from kvproxy.analyse.log_formats.json_texts import decoded_object
from kvproxy.analyse.log_formats.log_format import LogFormat, LoggedRequest, Row, SkipRow, known_fields, request_of
from kvproxy.analyse.log_formats.log_times import parse_time
from kvproxy.apis import APIS
from kvproxy.apis.json import JsonObject, field
from kvproxy.errors import InvalidRequest


def _read_sglang(row: Row) -> Iterator[LoggedRequest]:
    value = row.value
    event = str(value.get("event", "request.finished"))
    if "out" not in value and not event.endswith("received"):
        raise SkipRow("no request")
    request = decoded_object(value["obj"]) or {}
    prompt = request.get("text") or request.get("input_ids")
    messages = request.get("messages")
    if not prompt and not messages:
        raise InvalidRequest("the log has no prompts: start SGLang with --log-requests-level 2 or higher")
    sampling = request.get("sampling_params")
    body: JsonObject = known_fields(sampling, APIS["completions"]) if isinstance(sampling, dict) else {}
    text = field(value.get("out"), "text")
    yield request_of(
        row,
        body | ({"messages": messages} if messages else {"prompt": prompt}),
        api=APIS["chat" if messages else "completions"],
        time=parse_time(value.get("timestamp")),
        response=text if isinstance(text, str) and text else None,
        is_engine=True,
    )


FORMATS = (LogFormat("sglang", "SGLang request log", ("obj", "event|rid|out|obj.rid"), _read_sglang),)
