"""Errors with their HTTP status, OpenAI type and code, and exit code."""

import errno
from pathlib import Path
from typing import ClassVar

_WRONG_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
OTHER_FOLDER = "choose another folder with --data"
"""A remedy of `file_error` for files of the data folder."""
_FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free space, or "),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or "),
}


class KvproxyError(Exception):
    """Base class of all errors. `message` names the cause and the fix.

    `reason` is the reason token (see `journal/reasons.py`), unless the status determines it.

    Args:
        limit: name of the setting whose limit was reached, for the metrics.
        team: the team whose limit it is; None for a limit of the client, or of all clients.
        retry_after: seconds until a retry may succeed, if known.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1
    reason: ClassVar[str | None] = None
    retry_after: float | None = None
    limit: str | None = None
    team: str | None = None

    def __init_subclass__(cls, **attributes: str | float) -> None:
        for name, value in attributes.items():
            assert hasattr(cls, name)
            setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        limit: str | None = None,
        team: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.limit = self.limit if limit is None else limit
        self.team = team
        self.retry_after = self.retry_after if retry_after is None else retry_after

    @property
    def reached_limit(self) -> str | None:
        """The limit that was reached, for records, such as `tokens_per_minute of the team research`."""
        return self.limit if self.team is None else f"{self.limit} of the team {self.team}"

    @property
    def is_retryable(self) -> bool:
        return self.status in (408, 425, 429) or (self.status >= 500 and self.status != 501)


class InvalidRequest(KvproxyError, status=400, type="invalid_request_error", exit_code=2): ...


class InvalidJson(InvalidRequest, code="invalid_json"): ...


class InvalidDirective(InvalidRequest, code="invalid_directive"):
    """An `x-kvproxy-*` header, `Cache-Control`, or LiteLLM's body field `cache` has an unknown name or an invalid value."""


class ContextTooLong(InvalidRequest, code="context_length_exceeded"):
    """The prompt, or prompt plus max_tokens, exceeds the model's context or the KV pool."""


class RequestTooLarge(InvalidRequest, status=413, code="request_too_large", limit="body_bytes"): ...


class UnsupportedEncoding(InvalidRequest, status=415, code="unsupported_encoding"): ...


class UpgradeRequired(InvalidRequest, status=426, code="upgrade_required"): ...


class RequestExceedsQuota(RequestTooLarge, reason="refused-limit"): ...


class HeadersTooLarge(InvalidRequest, status=431, code="headers_too_large", limit="header_bytes"): ...


class ExpectationFailed(InvalidRequest, status=417, code="expectation_failed"): ...


class NotSupported(InvalidRequest, status=501, code="not_supported", reason="refused-invalid"): ...


class RequestTooSlow(InvalidRequest, status=408, code="request_timeout", limit="body_seconds"): ...


class Unauthorized(KvproxyError, status=401, type="authentication_error", code="invalid_api_key"): ...


class MissingKey(Unauthorized, code="missing_api_key"): ...


class Forbidden(KvproxyError, status=403, type="permission_error", code="forbidden"): ...


class KeyDisabled(Forbidden, code="key_disabled", limit="disabled"): ...


class KeyDisabledInFlight(KeyDisabled, reason="error-access"):
    """The client was disabled during the response, which an upstream may bill."""


class KeyRemovedInFlight(Unauthorized, reason="error-access"):
    """The client was removed during the response, which an upstream may bill."""


class NotFound(KvproxyError, status=404, type="invalid_request_error", code="not_found", exit_code=3): ...


class ModelNotFound(NotFound, code="model_not_found", reason="refused-model"): ...


class NoPrefixCache(KvproxyError, status=409, type="invalid_request_error", code="no_prefix_cache"):
    """The proxy has no prefix cache, and no mirror of the upstream's prefix cache."""


class NotCached(KvproxyError, status=504, type="invalid_request_error", code="not_cached", reason="not-cached"):
    """The request has `Cache-Control: only-if-cached` and no response is stored (RFC 9111, section 5.2.1.7)."""

    is_retryable = False


class Overloaded(KvproxyError, status=503, code="overloaded", reason="refused-busy"): ...


class ProxyOverloaded(Overloaded, reason="refused-overload"):
    """The event loop lags (`limits.max_lag`), and too many cache misses wait."""


class UpstreamsDraining(Overloaded):
    """An operator drains all upstreams of a model. `cause` names the model for clients."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}: restore one with kvproxy upstreams undrain", retry_after=1.0)
        self.cause = cause


class ShuttingDown(KvproxyError, status=503, code="shutting_down", retry_after=1.0, reason="error-stopped"):
    """The proxy was stopped, and the request was not complete at the end of `limits.drain_seconds`."""


class DeadlineExceeded(KvproxyError, status=504, code="deadline_exceeded", reason="error-timeout"): ...


class ClientDeadlineExceeded(DeadlineExceeded, reason="disconnected-timeout"):
    """The time that the client allowed has passed. It is no failure of the proxy, like a disconnect at this time."""


class TooManyRequests(KvproxyError, status=429, type="rate_limit_error", code="rate_limit_exceeded"): ...


class BudgetExceeded(TooManyRequests, type="insufficient_quota", code="insufficient_quota"):
    """The client has spent its budget of a day or of a month. A retry does not help soon."""

    is_retryable = False


class StoreUnavailable(KvproxyError, status=503, code="store_unavailable"): ...


class TierUnavailable(KvproxyError, status=503, code="tier_unavailable"): ...


class UpstreamError(KvproxyError, reason="error-upstream"):
    """An upstream did not respond. If it has not received the request (`unsent`), the proxy may use another upstream."""

    unsent = False

    @property
    def is_unprocessed(self) -> bool:
        """Whether the upstream did no work, so that another upstream may get a request with side effects, too."""
        return self.unsent


class UpstreamKeyRefused(UpstreamError, status=502, code="upstream_key_refused"):
    """An upstream refuses the key that the settings give it, which clients cannot change."""

    @property
    def is_unprocessed(self) -> bool:
        return True


class UpstreamUnreachable(UpstreamError, status=502, code="upstream_unreachable"): ...


class UpstreamProtocolError(UpstreamUnreachable, reason="error-broken"):
    """The upstream's response ended early. The proxy ends the client's response at the same point."""


class UpstreamTimeout(UpstreamError, status=504, code="upstream_timeout"): ...


class ModelUnsupported(KvproxyError, code="model_unsupported"):
    """The model cannot share prefix blocks, or cannot be loaded."""


class SettingsError(KvproxyError, exit_code=2): ...


class InvalidSettingsFile(SettingsError, exit_code=2):
    """The file of settings, or the environment beside it, has an error."""


class StorageFailed(SettingsError, exit_code=1):
    """A disk or a database failed, or does not permit the access. The settings that name it may be right."""


class ProxyUnreachable(KvproxyError, exit_code=4):
    """No proxy responds at the URL that a command was given."""


def file_error(action: str, path: Path, error: OSError, instead: str) -> SettingsError:
    """Return the error for a file or a folder that cannot be used; only a wrong path is an error of the settings or options.

    `action` and `instead` are parts of its message, such as `write` and `choose another folder with --data`.
    """
    kind = SettingsError if error.errno in _WRONG_PATH else StorageFailed
    return kind(f"cannot {action} {path} ({error.strerror}): {_FIXES.get(error.errno or 0, '')}{instead}")


def describe_cause(error: Exception) -> str:
    """Return the cause of an error that Python raised for a malformed value, without the name of its class."""
    return f"no field {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)
