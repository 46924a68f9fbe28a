"""Results of promptfoo, and HTTP archives (HAR) of a browser or a proxy."""

import base64
from collections.abc import Iterator

from kvproxy.analyse.log_formats.json_texts import decoded, decoded_object
from kvproxy.analyse.log_formats.log_format import (
    ANSWERED_BY_CACHE,
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    api_of_route,
    decoded_response,
    first_of,
    is_cache_hit,
    is_failed,
    request_of,
)
from kvproxy.analyse.log_formats.log_times import parse_time, seconds_of
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, field, objects


def _read_promptfoo(row: Row) -> Iterator[LoggedRequest]:
    if is_cache_hit(first_of(row.value, "response.cached")):
        raise SkipRow(ANSWERED_BY_CACHE)
    prompt = decoded(first_of(row.value, "prompt.raw"))
    messages: Json = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    body: JsonObject = {"messages": messages}
    if isinstance(provider := first_of(row.value, "provider.id", "provider"), str):
        body["model"] = provider.rpartition(":")[2]
    output = first_of(row.value, "response.output")
    yield request_of(row, body, api=APIS["chat"], response=output if isinstance(output, str) and output else None)


def _read_har(row: Row) -> Iterator[LoggedRequest]:
    request, response = row.value["request"], row.value.get("response")
    if field(request, "method") != "POST":
        raise SkipRow("not a POST request")
    api = api_of_route(str(field(request, "url")))
    if api is None:
        raise SkipRow("not a cached API")
    if is_failed(field(response, "status")):
        raise SkipRow("failed")
    body = decoded_object(field(field(request, "postData"), "text"))
    if not body:
        raise SkipRow("no body")
    headers = {
        str(header.get("name")).lower(): str(header.get("value")) for header in objects(field(request, "headers"))
    }
    yield request_of(
        row,
        body,
        api=api,
        headers=headers,
        time=parse_time(row.value.get("startedDateTime")),
        response=decoded_response(_har_text(field(response, "content"))),
        seconds=seconds_of(row.value.get("time")),
    )


def _har_text(content: Json) -> Json:
    text = field(content, "text")
    if isinstance(text, str) and field(content, "encoding") == "base64":
        return base64.b64decode(text).decode(errors="replace")
    return text


FORMATS = (
    LogFormat("promptfoo", "promptfoo results", ("prompt.raw", "response|provider|vars"), _read_promptfoo),
    LogFormat("har", "HTTP archive (HAR)", ("request.method", "request.url", "startedDateTime"), _read_har),
)
