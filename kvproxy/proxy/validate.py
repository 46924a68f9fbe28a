"""Checks a request's body before anything is done for it. Fields that are not named here are none of our business."""

from typing import Any

import orjson

from kvproxy.errors import InvalidRequest
from kvproxy.proxy.backend import Endpoint


def parse_body(raw: bytes) -> dict[str, Any]:
    """The body as an object.

    Raises:
        InvalidRequest: it is no JSON object.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body


def check_body(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """Refuse what no server could answer.

    Raises:
        InvalidRequest: the message names the field and what it takes.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is required: a name from /v1/models", param="model")
    if endpoint == "chat":
        _check_messages(body.get("messages"))
    elif not isinstance(body.get("prompt"), str | list) or not body["prompt"]:
        raise InvalidRequest("prompt is required: a text, or a list of token ids", param="prompt")
    for name in ("max_tokens", "max_completion_tokens", "n"):
        _check_integer(body, name, least=1)
    _check_integer(body, "top_logprobs", least=0, most=20)
    _check_number(body, "temperature", 0.0, 2.0)
    _check_number(body, "top_p", 0.0, 1.0)
    _check_integer(body, "seed")
    if not isinstance(body.get("stream", False), bool | None):
        raise InvalidRequest("stream is true or false", param="stream")
    stop = body.get("stop")
    if stop is not None and not isinstance(stop, str):
        strings = isinstance(stop, list) and all(isinstance(text, str) for text in stop)
        if not strings:
            raise InvalidRequest("stop is a text or a list of texts", param="stop")


def check_sampling(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """Refuse what would fail inside the embedded engine, where it takes other requests down with it.

    Raises:
        InvalidRequest: the message names the field and what it takes.
    """
    _check_integer(body, "top_k", least=-1)
    if endpoint == "completions":
        _check_integer(body, "logprobs", least=0, most=20)


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages is required: a list with at least one message", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{number}] must be an object with a role", param=f"messages[{number}]")
        content = message.get("content")
        if not isinstance(content, str | list | None):
            raise InvalidRequest(f"messages[{number}].content is a text or a list", param=f"messages[{number}].content")


def _check_integer(body: dict[str, Any], name: str, least: int | None = None, most: int | None = None) -> None:
    value = body.get(name)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be a whole number, not {value!r}", param=name)
    if least is not None and value < least:
        raise InvalidRequest(f"{name} must be at least {least}, not {value}", param=name)
    if most is not None and value > most:
        raise InvalidRequest(f"{name} must be at most {most}, not {value}", param=name)


def _check_number(body: dict[str, Any], name: str, least: float, most: float) -> None:
    value = body.get(name)
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRequest(f"{name} must be a number from {least:g} to {most:g}, not {value!r}", param=name)
