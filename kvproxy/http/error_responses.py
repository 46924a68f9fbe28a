import math

from starlette.responses import JSONResponse, Response

from kvproxy.apis.api import openai_error
from kvproxy.apis.json import JsonObject
from kvproxy.errors import KvproxyError


def error_response(error: KvproxyError, body: JsonObject | None = None) -> Response:
    """Return the response for an error. `body` is the error in an API's format; None uses OpenAI's."""
    headers = {} if error.retry_after is None else {"retry-after": str(math.ceil(error.retry_after))}
    if not error.is_retryable:
        # The SDKs of OpenAI and Anthropic retry some statuses without this header.
        headers["x-should-retry"] = "false"
    return JSONResponse(openai_error(error) if body is None else body, error.status, headers=headers)
