"""Errors of traces."""

from kvproxy.errors import InvalidRequest


class TraceError(InvalidRequest):
    """An invalid trace; the message names the line and the fix."""
