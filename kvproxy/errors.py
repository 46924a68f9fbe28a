"""Errors that a user can act on, with their HTTP status, OpenAI type and code, and exit code.

Messages name the fix. `apis` writes an error in the form of the API that a request came by.
"""

from typing import ClassVar


class KvproxyError(Exception):
    """Base class of all errors of kvproxy.

    Args:
        message: one sentence that names the cause and the fix.
        param: the invalid field of the request, if any.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1
    retry_after: float | None = None
    """Seconds until the same request may succeed, if known."""
    limit: str | None = None
    """Name of the setting whose limit caused the error, for the metrics."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 425, 429) or (self.status >= 500 and self.status != 501)


class InvalidRequest(KvproxyError):
    """The request is invalid."""

    status = 400
    type = "invalid_request_error"
    exit_code = 2


class ContextTooLong(InvalidRequest):
    """The prompt, or prompt plus max_tokens, does not fit the model or the block pool."""

    code = "context_length_exceeded"


class TooLarge(InvalidRequest):
    """The body exceeds a limit."""

    status = 413
    code = "request_too_large"
    limit = "body"


class HeadersTooLarge(InvalidRequest):
    """The headers exceed a limit."""

    status = 431
    code = "headers_too_large"
    limit = "header_bytes"


class ExpectationFailed(InvalidRequest):
    """The header Expect has a value other than 100-continue."""

    status = 417
    code = "expectation_failed"


class NotSupported(InvalidRequest):
    """The request needs a protocol or a method that this proxy does not have."""

    status = 501
    code = "not_supported"


class TooSlow(InvalidRequest):
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"
    limit = "body_seconds"


class Unkeyable(InvalidRequest):
    """No cache key can be computed for the request."""


class Unauthorized(KvproxyError):
    """A token is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(KvproxyError):
    """The client may not do this, with any credentials."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(KvproxyError):
    """A named thing (entry, block, route) does not exist."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"
    exit_code = 3


class ModelNotFound(NotFound):
    """The request names a model that is not served here."""

    code = "model_not_found"


class NoPrefixCache(KvproxyError):
    """This proxy has no prefix cache, since it forwards to an upstream."""

    status = 409
    type = "invalid_request_error"
    code = "no_prefix_cache"


class NotCached(KvproxyError):
    """`Cache-Control: only-if-cached` without a stored response (RFC 9111, section 5.2.1.7)."""

    status = 504
    type = "invalid_request_error"
    code = "not_cached"

    @property
    def retryable(self) -> bool:
        """False: only an answer to another request could fill the cache."""
        return False


class Overloaded(KvproxyError):
    """The engine cannot take another request now."""

    status = 503
    type = "server_error"
    code = "overloaded"


class ShuttingDown(KvproxyError):
    """The proxy stops, and its drain time is over."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    retry_after = 1.0


class DeadlineExceeded(KvproxyError):
    """The request exceeded its deadline."""

    status = 504
    type = "server_error"
    code = "deadline_exceeded"


class TooMany(KvproxyError):
    """A client exceeded its quota."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class StoreUnavailable(KvproxyError):
    """The store of responses cannot be used now."""

    status = 503
    type = "server_error"
    code = "store_unavailable"


class TierUnavailable(KvproxyError):
    """A tier of the prefix cache cannot be used now."""

    status = 503
    type = "server_error"
    code = "tier_unavailable"


class UpstreamError(KvproxyError):
    """An upstream did not respond. If the request is `unsent`, another upstream may receive it."""

    unsent = False


class UpstreamUnreachable(UpstreamError):
    """The upstream refused the connection, or closed it before a response."""

    status = 502
    type = "server_error"
    code = "upstream_unreachable"


class UpstreamBroken(UpstreamUnreachable):
    """The upstream's response ended early, so the client's response must end early, too."""


class UpstreamTimeout(UpstreamError):
    """The upstream did not answer in time."""

    status = 504
    type = "server_error"
    code = "upstream_timeout"


class ModelUnsupported(KvproxyError):
    """The model cannot share prefix blocks, or cannot be loaded."""

    code = "model_unsupported"


class SettingsError(KvproxyError):
    """A setting has an impossible value."""

    exit_code = 2


class ProxyUnreachable(KvproxyError):
    """No proxy responds at the URL of a command."""

    exit_code = 4
