"""Whether an engine gets requests: it is ejected after failures in a row, and returns with the first success."""

from dataclasses import dataclass


@dataclass(slots=True)
class Health:
    """One engine's health.

    Attributes:
        eject_after: failures in a row that eject it.
        failures: failures since the last success.
        ejections: how often it was ejected.
        draining: an operator wants it to get no new requests.
        error: what went wrong last, None after a success.
        answered: whether it ever answered. One that never did is ejected after its first failure.
    """

    eject_after: int = 3
    failures: int = 0
    ejections: int = 0
    draining: bool = False
    error: str | None = None
    answered: bool = False

    @property
    def ejected(self) -> bool:
        return self.failures >= (self.eject_after if self.answered else 1)

    @property
    def available(self) -> bool:
        """Whether it gets new requests."""
        return not self.ejected and not self.draining

    @property
    def sound(self) -> bool:
        """Whether it gets new requests, and answered when it was asked last."""
        return self.failures == 0 and not self.draining

    @property
    def state(self) -> str:
        """`draining`, `ejected` or `up`."""
        if self.draining:
            return "draining"
        return "ejected" if self.ejected else "up"

    def succeeded(self) -> None:
        """It answered a request or a probe."""
        self.failures = 0
        self.error = None
        self.answered = True

    def failed(self, error: str) -> None:
        """It did not answer."""
        before = self.ejected
        self.failures += 1
        self.error = error
        self.ejections += self.ejected and not before
