"""Compares only what differs between two messages that share sentences, because equal passages hide another question.

A vector and the verifier's probability hardly depend on one differing question beside long equal passages. And a word that
differs between the questions may occur in the passages of both, so that no guard finds it.
"""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

import numpy as np

from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, NEGATION, REQUEST_VERBS, words
from kvproxy.index.policies.policy import Limits, Neighbour, Policy
from kvproxy.index.policies.wording import are_equal_wordings
from kvproxy.index.search.earlier_statements import (
    SMALL_TALK,
    has_content,
    is_question,
    statements_of,
    states_facts,
)
from kvproxy.index.search.statement_roles import exchange_order

_UNIT_END = re.compile(r"(?<=[.?!;:。？！：])[\"'”’)\]}]*,?\s+|\n+|(?<=>)(?=\w)|(?=</)|(?<=\",) ")
_LABEL = re.compile(r"\W*[\w ]{1,20}:\s")
# Words of an opening such as `Please tell me:`. `Explain:` and `List:` ask for other answers.
_OPENING_WORDS = ((FUNCTION_WORDS | SMALL_TALK) - REQUEST_VERBS - NEGATION) | frozenset(
    "tell help answer query following want need i'd".split()
)
_MIN_SHARED_BYTES = 40
_MAX_DECISIONS = 3


class SharedText:
    """Decides on the differing sentences of stored messages that share sentences with a message.

    Args:
        policy: decides on the differing sentences; None requires equal ones.
        embed: returns the unit vector of a text, `[dim]` float32; None if the models do not support the text.
    """

    def __init__(
        self,
        message: str,
        policy: Policy | None,
        limits: Limits,
        embed: Callable[[str], np.ndarray | None],
        namespace: str = "",
    ) -> None:
        self._units = _units(message)
        self._statements = _statements(message)
        self._policy = policy
        self._limits = limits
        self._embed = embed
        self._namespace = namespace
        self._num_decisions = 0

    def allows(self, stored: str) -> bool:
        """Whether the stored message shares too little to hide a difference, or its differing sentences mean the same.

        Statements beside the questions must not exchange words.
        """
        if exchange_order(self._statements, _statements(stored)):
            return False
        stored_units = _units(stored)
        if max(len(self._units), len(stored_units)) == 1:
            return True
        rests = differing_sentences(self._units, stored_units)
        return rests is None or rests[0] == rests[1] or self._are_alike(*rests)

    def _are_alike(self, rest: str, stored: str) -> bool:
        if not (rest and stored) or self._policy is None or self._num_decisions >= _MAX_DECISIONS:
            return False
        # The policy compares questions: one changed word, such as `and` or `or`, may be a fact of a statement.
        if states_facts(rest) or states_facts(stored):
            return are_equal_wordings(rest, stored)
        self._num_decisions += 1
        one, other = self._embed(rest), self._embed(stored)
        if one is None or other is None:
            return False
        near = [Neighbour(stored, float(one @ other))]
        return self._policy.decide(rest, near, self._limits, self._namespace).chosen is not None


def differing_sentences(units: Sequence[str], others: Sequence[str]) -> tuple[str, str] | None:
    """Return what remains of two messages without their equal sentences; None if these are short.

    Differences in several places are returned as one that no policy accepts: an empty text beside another.
    """
    places = SequenceMatcher(None, units, others, autojunk=False).get_opcodes()
    shared = sum(
        len(unit.encode("utf-8", "replace")) for tag, i, j, *_ in places if tag == "equal" for unit in units[i:j]
    )
    if shared < _MIN_SHARED_BYTES:
        return None
    changes = [(" ".join(units[i:j]), " ".join(others[k:m])) for tag, i, j, k, m in places if tag != "equal"]
    if len(changes) > 1:
        return "", " ".join(other for _, other in changes) or " ".join(one for one, _ in changes)
    return changes[0] if changes else ("", "")


@lru_cache(maxsize=512)
def _statements(message: str) -> str:
    """Return the statements beside a question or after a label; empty for other texts, which may ask by a statement."""
    tells = _LABEL.match(message) is not None or any(map(is_question, _units(message)))
    return "\n".join(statements_of(message)) if tells else ""


@lru_cache(maxsize=512)
def _units(message: str) -> tuple[str, ...]:
    """Return the sentences, lines, and labels of a message, without small talk and openings."""
    found = (" ".join(unit.split()) for unit in _UNIT_END.split(without_fillers(message)))
    return tuple(unit for unit in found if unit and has_content(unit) and not _is_opening(unit)) or (message,)


def _is_opening(unit: str) -> bool:
    return unit.endswith(":") and _OPENING_WORDS.issuperset(words(unit)) and not any(map(str.isdigit, unit))
