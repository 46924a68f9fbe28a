"""What an engine has still to do, as far as we sent it there: prompts to compute, and answers under way."""

from dataclasses import dataclass, field

DECODE = 128
"""Tokens of prefill that an answer under way counts for: it shares every step until it ends."""


@dataclass(slots=True)
class Load:
    """One engine's load, in tokens."""

    tokens: float = 0.0
    requests: int = 0

    def add(self, uncached: int) -> "Ticket":
        """A request with so many tokens to compute went there."""
        self.tokens += uncached + DECODE
        self.requests += 1
        return Ticket(self, uncached)


@dataclass(slots=True)
class Ticket:
    """One request's part of a load."""

    _load: Load
    _prefill: float
    _open: bool = field(default=True)

    def begun(self) -> None:
        """Its answer has begun, so its prompt is computed."""
        self._load.tokens -= self._prefill
        self._prefill = 0.0

    def ended(self) -> None:
        """It is over; calling again does nothing."""
        if self._open:
            self._open = False
            self.begun()
            self._load.tokens -= DECODE
            self._load.requests -= 1
