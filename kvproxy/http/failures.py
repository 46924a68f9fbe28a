"""Errors as HTTP responses."""

import math

from starlette.responses import JSONResponse, Response

from kvproxy.apis.api import openai_error
from kvproxy.apis.json import JsonObject
from kvproxy.errors import KvproxyError


def failed(error: KvproxyError, body: JsonObject | None = None) -> Response:
    """The response to an error; `body` has it in an API's form, by default OpenAI's."""
    headers = {} if error.retry_after is None else {"retry-after": str(math.ceil(error.retry_after))}
    if not error.retryable:
        # The SDKs of OpenAI and Anthropic retry some statuses without this header.
        headers["x-should-retry"] = "false"
    return JSONResponse(openai_error(error) if body is None else body, error.status, headers=headers)
