"""The causes for which a response is forwarded, but not stored."""

import re
from dataclasses import dataclass
from enum import StrEnum

_MAX_DETAIL = 80
_UNPRINTABLE = re.compile(r"[^ !#-\[\]-~]")  # Outside of the characters of a quoted string in a header.


class Cause(StrEnum):
    """Why a response is not stored. The value stands in `Cache-Status`, records, and metrics; `meaning` explains it."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "Cause":
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.meaning = meaning
        return cause

    REQUEST_NO_STORE = "request-no-store", "The request forbids storing (`Cache-Control: no-store`)."
    RULE = "rule", "The named rule of the operator forbids caching (`cache = false`)."
    NO_STORE = (
        "no-store",
        "The upstream's `Cache-Control: no-store` forbids storing; a rule may override it (`store_despite`).",
    )
    PRIVATE = (
        "private",
        "The upstream's `Cache-Control: private` forbids storing; a rule may override it (`store_despite`).",
    )
    VARY = (
        "vary",
        "The upstream's `Vary` names a request header outside of the cache key; a rule may add it (`key_headers`).",
    )
    LIFETIME = "lifetime", "The time to live is zero seconds."
    STATUS = "status", "The status of the response is not 200."
    COMPRESSED = "compressed", "The upstream compressed the response, although the request accepts only `identity`."
    TOO_LARGE = "too-large", "The response is larger than `cache.max_response_bytes`, or than the store."
    INVALID = "invalid", "The response is not valid JSON, or has another form than the API."
    ERROR = "error", "The response contains an error."
    INCOMPLETE = "incomplete", "The response ended before its end, or its output was cut off or filtered."
    NO_DONE = "no-done", "The stream has neither `[DONE]` nor a finish reason for each choice."
    FALLBACK = "fallback", "Another model answered, because the requested one failed (`routing.fallbacks`)."
    STATE = "state", "The response names something that expires, such as a container."
    EMPTY = "empty", "The response has no output."
    UNMERGEABLE = "unmergeable", "A field of the stream's chunks cannot be merged with certainty."
    REDACTED = "redacted", "The response contains a secret or private data, which redaction would change."
    DUPLICATE = "duplicate", "The response to an equal request in flight was stored first."
    INVALIDATED = "invalidated", "Responses that include this one were removed or expired while it was computed."
    STORE = "store", "The store failed, or was full."


@dataclass(frozen=True, slots=True)
class NotStored:
    """The cause for which a response is not stored.

    Attributes:
        detail: the field, header, or finish reason; empty if the cause has no detail.
    """

    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        """Return a text such as `unmergeable field images`, in characters of a quoted string."""
        if not self.detail:
            return self.cause
        kind = " field" if self.cause is Cause.UNMERGEABLE else ""
        return f"{self.cause}{kind} {_UNPRINTABLE.sub('?', self.detail)[:_MAX_DETAIL]}"


def meaning_of_cause(text: str) -> str:
    """Return the meaning of a cause, given the text of a `NotStored`; empty for an unknown cause."""
    token = text.partition(" ")[0]
    return next((cause.meaning for cause in Cause if cause == token), "")


class UnstorableResponse(ValueError):
    """The response must not be stored."""

    def __init__(self, cause: Cause, detail: str = "") -> None:
        self.not_stored = NotStored(cause, detail)
        super().__init__(str(self.not_stored))


class Unmergeable(UnstorableResponse):
    """The values of a field cannot be merged with certainty."""

    def __init__(self, field: str) -> None:
        super().__init__(Cause.UNMERGEABLE, field)
