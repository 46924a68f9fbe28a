"""The trace that a request belongs to (W3C Trace Context)."""

import os
import re
from dataclasses import dataclass
from typing import Self

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NOBODY = ("0" * 32, "0" * 16)
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Ids of a trace and of our spans in it, as hexadecimal digits.

    Attributes:
        id: of the trace, the client's where it has one.
        parent: the client's span; None where the trace begins here.
        span: our span of the request.
        call: our span of the call to the upstream; the upstream continues from it.
        sampled: whether spans are wanted.
    """

    id: str
    parent: str | None
    span: str
    call: str
    sampled: bool

    @classmethod
    def begin(cls, traceparent: str | None, share: float = 1.0) -> Self:
        """Continue a client's trace; begin one where it sent none, or none that can be read.

        Args:
            traceparent: the client's header.
            share: of the traces that begin here, those of which spans are wanted.
        """
        span, call = os.urandom(8).hex(), os.urandom(8).hex()
        found = None if traceparent is None else _FORM.fullmatch(traceparent.strip())
        if found is not None and found[1] != "ff" and found[2] != _NOBODY[0] and found[3] != _NOBODY[1]:
            return cls(found[2], found[3], span, call, bool(int(found[4], 16) & _SAMPLED))
        id = os.urandom(16)
        # As OpenTelemetry's TraceIdRatioBased decides: every service that samples so decides alike.
        return cls(id.hex(), None, span, call, int.from_bytes(id[8:]) < share * 2**64)

    @property
    def header(self) -> str:
        """What the upstream is told."""
        return f"00-{self.id}-{self.call}-{int(self.sampled):02x}"
