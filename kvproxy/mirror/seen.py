"""Which batches of a publisher's run were applied, remembered by their fingerprints."""

import xxhash

WINDOW = 10_000
"""Fingerprints kept: as many as vLLM's replay buffer holds by default."""


class Seen:
    """The last batches that were applied, by number."""

    def __init__(self) -> None:
        self._fingerprints: dict[int, int] = {}

    def add(self, number: int, payload: bytes) -> None:
        """A batch was applied."""
        self._fingerprints[number] = xxhash.xxh3_64_intdigest(payload)
        self._fingerprints.pop(number - WINDOW, None)

    def same(self, number: int, payload: bytes) -> bool | None:
        """Whether the batch applied under a number had this content; None where it is not remembered."""
        known = self._fingerprints.get(number)
        return None if known is None else known == xxhash.xxh3_64_intdigest(payload)

    def clear(self) -> None:
        """Forget all of them."""
        self._fingerprints.clear()
