"""Prompt lookup: guesses an answer's next tokens from what followed the same few tokens earlier in its own text.

No draft model. The engine computes the guesses together with the token before them and samples each position as it
would without them; a guess that was not drawn is dropped with those behind it. So every token is drawn from the model's
own distribution, with the same random numbers in the same order: answers are those that they would be without guesses.
"""

from collections.abc import Sequence


class PromptLookup:
    """Where each run of `size` tokens was last seen in one growing sequence."""

    def __init__(self, size: int = 3) -> None:
        self._size = size
        self._seen: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that followed the latest earlier place of the last `size` ones; none if there is none."""
        size = self._size
        # The sequence's end itself is left out: it is what is looked for.
        for start in range(self._indexed, len(tokens) - size):
            self._seen[tuple(tokens[start : start + size])] = start + size
        self._indexed = max(self._indexed, len(tokens) - size)
        at = self._seen.get(tuple(tokens[-size:])) if len(tokens) >= size else None
        return [] if at is None else list(tokens[at : at + count])
