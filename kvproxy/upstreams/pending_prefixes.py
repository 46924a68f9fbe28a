"""The prompts that an engine computes: its KV events will name their blocks, and requests with the same prefix can follow."""

import time
from collections import deque
from collections.abc import Callable, Sequence

MAX_BLOCKS = 100_000
"""Maximum blocks of pending prompts of one engine. The oldest prompts are forgotten first."""
COMPUTE_SECONDS = 60.0
EVENT_SECONDS = 2.0
"""Time from the first chunk of a response until the KV events of its prompt arrive at the latest."""


class PendingPrompt:
    """A prompt in computation, as the hashes of its blocks."""

    def __init__(self, hashes: Sequence[int], expires: float, clock: Callable[[], float]) -> None:
        self.hashes = hashes
        self.expires = expires
        self._clock = clock

    def expect_events(self) -> None:
        """Expire soon, because the engine has computed the prompt."""
        self.expires = min(self.expires, self._clock() + EVENT_SECONDS)

    def fail(self) -> None:
        """Expire now, because the engine did not compute the prompt. No effect after `expect_events`."""
        if self.expires > self._clock() + EVENT_SECONDS:
            self.expires = 0.0


class PendingPrefixes:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._prompts: deque[PendingPrompt] = deque()
        # Several prompts may have a block: if one fails, another still computes it.
        self._by_hash: dict[int, list[PendingPrompt]] = {}
        self._num_blocks = 0

    def add(self, hashes: Sequence[int]) -> PendingPrompt:
        self._forget_expired()
        prompt = PendingPrompt(hashes, self._clock() + COMPUTE_SECONDS, self._clock)
        self._prompts.append(prompt)
        self._num_blocks += len(hashes)
        for digest in hashes:
            self._by_hash.setdefault(digest, []).append(prompt)
        while self._num_blocks > MAX_BLOCKS:
            self._forget(self._prompts.popleft())
        return prompt

    def prefix_length(self, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks that are in computation."""
        now = self._clock()
        for length, digest in enumerate(hashes):
            if all(prompt.expires <= now for prompt in self._by_hash.get(digest, ())):
                return length
        return len(hashes)

    def _forget_expired(self) -> None:
        now = self._clock()
        # A prompt behind one that is still computed waits for its turn.
        while self._prompts and self._prompts[0].expires <= now:
            self._forget(self._prompts.popleft())

    def _forget(self, prompt: PendingPrompt) -> None:
        self._num_blocks -= len(prompt.hashes)
        for digest in prompt.hashes:
            prompts = self._by_hash[digest]
            prompts.remove(prompt)
            if not prompts:
                del self._by_hash[digest]
