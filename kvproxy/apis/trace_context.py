"""Reads and continues the trace of a request (W3C Trace Context)."""

import os
import re
from dataclasses import dataclass
from typing import Self

TRACE_HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_INVALID_IDS = ("0" * 32, "0" * 16)
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Hexadecimal ids of a trace and of its spans (W3C Trace Context).

    `parent` is the client's span, `span` the proxy's span, and `call` the span of the call to the upstream.
    """

    id: str
    parent: str | None
    span: str
    call: str
    sampled: bool

    @classmethod
    def begin(cls, traceparent: str | None, share: float = 1.0) -> Self:
        """Continue the client's trace, or begin a trace, which is sampled with the probability `share`."""
        span, call = os.urandom(8).hex(), os.urandom(8).hex()
        match = None if traceparent is None else _FORM.fullmatch(traceparent.strip())
        if match is not None and match[1] != "ff" and match[2] != _INVALID_IDS[0] and match[3] != _INVALID_IDS[1]:
            return cls(match[2], match[3], span, call, bool(int(match[4], 16) & _SAMPLED))
        id = os.urandom(16)
        # As OpenTelemetry's TraceIdRatioBased, whose decision is equal in all services.
        return cls(id.hex(), None, span, call, int.from_bytes(id[8:]) < share * 2**64)

    @property
    def header(self) -> str:
        return f"00-{self.id}-{self.call}-{int(self.sampled):02x}"
