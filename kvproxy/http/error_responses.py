"""Responses for errors, in the format of the API to which the path belongs."""

import math
import posixpath

from starlette.responses import JSONResponse, Response

from kvproxy.apis import MESSAGES
from kvproxy.apis.api import openai_error
from kvproxy.apis.json import JsonObject
from kvproxy.apis.messages import anthropic_error
from kvproxy.apis.sse import encode_event
from kvproxy.errors import KvproxyError


def error_response(error: KvproxyError, path: str) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(math.ceil(error.retry_after))}
    if not error.is_retryable:
        # The SDKs of OpenAI and Anthropic retry some statuses without this header.
        headers["x-should-retry"] = "false"
    return JSONResponse(error_body(error, path), error.status, headers=headers)


def error_event(error: KvproxyError, path: str) -> bytes:
    return encode_event(error_body(error, path), "error")


def error_body(error: KvproxyError, path: str) -> JsonObject:
    """Return an error in Anthropic's format for `/v1/messages` and the routes below it, otherwise in OpenAI's."""
    return anthropic_error(error) if f"{normalize_path(path)}/".startswith(f"{MESSAGES.path}/") else openai_error(error)


def normalize_path(path: str) -> str:
    """Return the path without repeated slashes and dot segments."""
    return posixpath.normpath("/" + path.lstrip("/"))
