"""What can be wrong with a trace."""

from kvproxy.errors import InvalidRequest


class TraceError(InvalidRequest):
    """A trace cannot be read; the message names the line and the fix."""
