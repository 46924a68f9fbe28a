"""Prompts of conversations: all user turns, joined into one text, so that rewordings of earlier turns match, too."""

from collections.abc import Callable, Sequence

import numpy as np

from kvproxy.index.policies.policy import Limits, Neighbour, Policy

SEPARATOR = "⏎"  # A conversation whose text contains this character has exact hits only.
_JOIN = f" {SEPARATOR} "
_MAX_REWORDED_TURNS = 5


def join_turns(turns: Sequence[str]) -> str:
    return _JOIN.join(turns)


def last_turn(question: str) -> str:
    return question.rpartition(_JOIN)[2]


def earlier_turns(question: str) -> list[str]:
    return question.split(_JOIN)[:-1]


class EarlierTurns:
    """Compares the earlier turns of a conversation with the earlier turns of stored conversations.

    Args:
        policy: decides whether two different turns mean the same; None requires equal turns.
        embed: returns the unit vector of a text, `[dim]` float32; None if the models do not support the text.
    """

    def __init__(
        self, question: str, policy: Policy | None, limits: Limits, embed: Callable[[str], np.ndarray | None]
    ) -> None:
        self._turns = earlier_turns(question)
        self._policy = policy
        self._limits = limits
        self._embed = embed
        self._known: dict[tuple[str, str], bool] = {}

    def matches(self, question: str) -> bool:
        """Return whether the earlier turns of a stored `question` are equal, or the policy accepts each difference."""
        stored = earlier_turns(question)
        return len(stored) == len(self._turns) and all(map(self._are_alike, self._turns, stored))

    def _are_alike(self, turn: str, stored: str) -> bool:
        if turn == stored:
            return True
        if (turn, stored) not in self._known:
            self._known[turn, stored] = len(self._known) < _MAX_REWORDED_TURNS and self._decide(turn, stored)
        return self._known[turn, stored]

    def _decide(self, turn: str, stored: str) -> bool:
        if self._policy is None:
            return False
        one, other = self._embed(turn), self._embed(stored)
        if one is None or other is None:
            return False
        return self._policy.decide(turn, [Neighbour(stored, float(one @ other))], self._limits).chosen is not None
