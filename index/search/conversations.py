"""Questions of conversations: their earlier user turns and the last turn, joined to one text."""

from collections.abc import Callable, Sequence

import numpy as np

from kvproxy.index.policies.policy import Limits, Neighbour, Policy

SEPARATOR = "⏎"
"""Stands between two turns, with a space before and after it. A turn that contains it has exact hits only."""
_JOIN = f" {SEPARATOR} "
_MAX_COMPARED = 5
"""Pairs of reworded turns that a lookup compares; each takes a vector and a run of the verifier."""


def join_turns(turns: Sequence[str]) -> str:
    return _JOIN.join(turns)


def last_turn(question: str) -> str:
    return question.rpartition(_JOIN)[2]


def earlier_turns(question: str) -> list[str]:
    return question.split(_JOIN)[:-1]


class EarlierTurns:
    """Compares the earlier turns of a question with those of its neighbours.

    Args:
        embed: returns the vector of a text, `[dim]` float32 of length 1; None if the text has none.
        policy: decides about two turns as about two questions; None requires equal turns.
    """

    def __init__(
        self, question: str, policy: Policy | None, limits: Limits, embed: Callable[[str], np.ndarray | None]
    ) -> None:
        self._turns = earlier_turns(question)
        self._policy = policy
        self._limits = limits
        self._embed = embed
        self._known: dict[tuple[str, str], float] = {}

    def probability(self, question: str) -> float:
        """Return the probability that all earlier turns of a stored question have the same meaning; 0 for a refusal."""
        stored = earlier_turns(question)
        if len(stored) != len(self._turns):
            return 0.0
        product = 1.0
        for pair in zip(self._turns, stored, strict=True):
            product *= self._compare(*pair) if pair[0] != pair[1] else 1.0
            if not product:
                break
        return product

    def _compare(self, turn: str, stored: str) -> float:
        if (turn, stored) not in self._known:
            if len(self._known) >= _MAX_COMPARED:
                return 0.0
            self._known[turn, stored] = self._decide(turn, stored)
        return self._known[turn, stored]

    def _decide(self, turn: str, stored: str) -> float:
        one, other = (self._embed(text) if self._policy is not None else None for text in (turn, stored))
        if one is None or other is None or self._policy is None:
            return 0.0
        ruling = self._policy.decide(turn, [Neighbour(stored, float(one @ other))], self._limits)
        return 0.0 if ruling.chosen is None else ruling.decisions[0].score or 0.0
