"""Checks of single fields of a request."""

from typing import Any

from kvproxy.errors import InvalidRequest


def check_common(body: dict[str, Any], *, least_tokens: int = 1) -> None:
    """What every API that generates text has in common.

    Args:
        body: the request.
        least_tokens: how few tokens an answer may be limited to.

    Raises:
        InvalidRequest: the message names the field and what it takes.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is required: a name from /v1/models", param="model")
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        check_integer(body, name, least=least_tokens)
    check_integer(body, "n", least=1)
    check_number(body, "temperature", 0.0, 2.0)
    check_number(body, "top_p", 0.0, 1.0)
    check_integer(body, "seed")
    if not isinstance(body.get("stream", False), bool | None):
        raise InvalidRequest("stream is true or false", param="stream")
    check_texts(body, "stop")


def check_texts(body: dict[str, Any], name: str) -> None:
    """A text or a list of texts."""
    value = body.get(name)
    texts = value if isinstance(value, list) else [value]
    if value is not None and not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name} is a text or a list of texts", param=name)


def check_integer(body: dict[str, Any], name: str, least: int | None = None, most: int | None = None) -> None:
    """A whole number in a range, where it is given."""
    value = body.get(name)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be a whole number, not {value!r}", param=name)
    if least is not None and value < least:
        raise InvalidRequest(f"{name} must be at least {least}, not {value}", param=name)
    if most is not None and value > most:
        raise InvalidRequest(f"{name} must be at most {most}, not {value}", param=name)


def check_number(body: dict[str, Any], name: str, least: float, most: float) -> None:
    """A number in a range, where it is given."""
    value = body.get(name)
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRequest(f"{name} must be a number from {least:g} to {most:g}, not {value!r}", param=name)
