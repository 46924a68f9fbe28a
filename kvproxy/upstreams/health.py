from dataclasses import dataclass


@dataclass(slots=True)
class Health:
    """Health of one engine. `eject_after` consecutive failures eject it, and a success restores it.

    Before the first response, one failure ejects it.
    """

    eject_after: int = 3
    failures: int = 0
    ejections: int = 0
    draining: bool = False
    error: str | None = None
    has_responded: bool = False

    @property
    def ejected(self) -> bool:
        return self.failures >= (self.eject_after if self.has_responded else 1)

    @property
    def available(self) -> bool:
        return not self.ejected and not self.draining

    @property
    def is_healthy(self) -> bool:
        return self.failures == 0 and not self.draining

    @property
    def state(self) -> str:
        if self.draining:
            return "draining"
        return "ejected" if self.ejected else "up"

    def record_success(self) -> None:
        self.failures = 0
        self.error = None
        self.has_responded = True

    def record_failure(self, error: str) -> None:
        was_ejected = self.ejected
        self.failures += 1
        self.error = error
        self.ejections += self.ejected and not was_ejected
