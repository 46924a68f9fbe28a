"""Prompts of conversations: all turns, joined into one text, so that a conversation that was held independently matches, too."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.policy import Limits, Neighbour, Policy
from kvproxy.index.search.conversation_context import (
    MAX_TURNS_OF_FREE_WORDING,
    Context,
    have_equal_facts,
    have_other_words,
    need_no_context,
    share_sentences,
    shared_wording,
    uses_words,
    words_only_in,
)
from kvproxy.index.search.earlier_statements import states_facts
from kvproxy.index.search.last_turns import ask_equally, is_standalone, neutral_references

SEPARATOR = "⏎"  # A conversation whose text contains this character has exact hits only.
_JOIN = f" {SEPARATOR} "
_MAX_REWORDED_TURNS = 5
_MAX_TURN_BYTES = 800
_MAX_CONTEXTS = 3
_MAX_COMPARED_CHARACTERS = 32_768  # Of stored conversations in one lookup: about 50 ms.
_MAX_TOPIC_BYTES = 300
_MIN_CONTEXT_COSINE, _MIN_CONTEXT_PROBABILITY = 0.7, 0.1


def join_turns(turns: Sequence[str]) -> str:
    """Join the turns of the user and of the assistant, alternately; the last one is the question."""
    return _JOIN.join(turns)


def last_turn(question: str) -> str:
    return question.rpartition(_JOIN)[2]


def compared_turn(question: str) -> str:
    """Return the last turn for a comparison with the last turn of a conversation whose earlier turns match."""
    last = last_turn(question)
    return last if last == question else neutral_references(last)


def earlier_turns(question: str) -> list[str]:
    return question.split(_JOIN)[:-1]


def searched_text(question: str) -> str:
    """Return the text whose vector finds a conversation: the last turn, after the first one if it refers to earlier turns."""
    *earlier, last = question.split(_JOIN)[::2]
    if not earlier or is_standalone(last):
        return last
    topic = without_fillers(earlier[0])
    return f"{topic} {last}" if len(topic.encode()) <= _MAX_TOPIC_BYTES else last


class EarlierTurns:
    """Compares the earlier turns of a conversation with the earlier turns of stored conversations.

    Args:
        policy: decides whether two different turns mean the same; None requires equal turns.
        embed: returns the unit vector of a text, `[dim]` float32; None if the models do not support the text.
    """

    def __init__(
        self,
        question: str,
        policy: Policy | None,
        limits: Limits,
        embed: Callable[[str], np.ndarray | None],
        namespace: str = "",
    ) -> None:
        self._context = Context(tuple(question.split(_JOIN)))
        self._policy = policy
        self._limits = limits
        self._embed = embed
        self._namespace = namespace
        self._known: dict[tuple[str, str], bool] = {}
        self._num_contexts = 0
        self._num_characters = 0

    def matches(self, question: str) -> bool:
        """Return whether the earlier turns of a stored `question` call for the same answer.

        They are equal, or have equal answers and questions of the same meaning, or neither last turn needs them and they state
        the same, or they state the same facts (see `conversation_context`).
        """
        stored = Context(tuple(question.split(_JOIN)))
        ours, theirs = self._context.turns[:-1], stored.turns[:-1]
        if ours == theirs:
            return True
        if self._policy is None:
            return False
        if (
            len(ours) == len(theirs)
            and ours[1::2] == theirs[1::2]
            and all(map(self._are_alike, ours[::2], theirs[::2]))
        ):
            return True
        self._num_characters += sum(map(len, stored.turns))
        if self._num_characters > _MAX_COMPARED_CHARACTERS:
            return False
        return need_no_context(self._context, stored, self._are_alike) or self._has_equal_context(stored)

    def compared_turn(self, question: str) -> str:
        """Return the last turn of a stored `question` that matches; ours if both ask equally after equal replies."""
        stored = last_turn(question)
        if stored != question and self._policy is not None and ask_equally(self._context.last, stored):
            return neutral_references(self._context.last)
        return compared_turn(question)

    def _are_alike(self, turn: str, stored: str) -> bool:
        if turn == stored:
            return True
        if (turn, stored) not in self._known:
            self._known[turn, stored] = len(self._known) < _MAX_REWORDED_TURNS and self._decide(turn, stored)
        return self._known[turn, stored]

    def _decide(self, turn: str, stored: str) -> bool:
        assert self._policy is not None
        if any(len(text.encode("utf-8", "replace")) > _MAX_TURN_BYTES for text in (turn, stored)):
            return False
        # The policy compares questions: one changed word may be a fact of a statement.
        if (states_facts(turn) or states_facts(stored)) and have_other_words(turn, stored):
            return False
        cosine = self._cosine(turn, stored)
        if cosine is None:
            return False
        near = [Neighbour(stored, cosine)]
        return self._policy.decide(turn, near, self._limits, self._namespace).chosen is not None

    def _cosine(self, text: str, other: str) -> float | None:
        one, two = self._embed(text), self._embed(other)
        return None if one is None or two is None else float(one @ two)

    def _has_equal_context(self, stored: Context) -> bool:
        if len(stored.turns) == 1 or len(self._context.turns) == 1 or not isinstance(self._policy, CheckedPolicy):
            return False
        if self._num_contexts >= _MAX_CONTEXTS:
            return False
        if not have_equal_facts(self._context, stored, self._are_alike):
            return False
        self._num_contexts += 1
        if max(len(self._context.turns), len(stored.turns)) > MAX_TURNS_OF_FREE_WORDING:
            return share_sentences(self._context, stored)
        wording, stored_wording = shared_wording(self._context, stored)
        cosine = self._cosine(wording, stored_wording) if wording and stored_wording else None
        if cosine is None or cosine < _MIN_CONTEXT_COSINE:
            return False
        return self._policy.probability(wording, stored_wording, cosine) >= _MIN_CONTEXT_PROBABILITY


def describe_match(question: str, stored: str) -> str:
    """Return why `EarlierTurns` accept a stored conversation whose earlier turns differ, as the end of a sentence."""
    ours, theirs = (tuple(text.split(_JOIN)) for text in (question, stored))
    if need_no_context(Context(ours), Context(theirs), are_alike=lambda one, other: True):
        return "neither question needs its earlier turns"
    if len(ours) == len(theirs) and ours[1:-1:2] == theirs[1:-1:2]:
        return "the earlier questions mean the same"
    return "the earlier turns state the same facts"


def uses_own_context(entry: Entry, question: str) -> bool:
    """Whether an entry's response has words of its own conversation that are not in the conversation with `question`.

    Then its earlier turns may have changed the response, although its question seems to need none.
    """
    stored, asked = (Context(tuple(text.split(_JOIN))) for text in (entry.prompt, question))
    if stored.turns[:-1] == asked.turns[:-1] or len(stored.turns) == 1:
        return False
    return uses_words(_response_text(entry.response), words_only_in(stored, asked))


def _response_text(response: bytes) -> str:
    """Return the texts of a response: its strings with spaces, because ids and names of models have none."""
    texts, values = list[str](), [json.loads(response)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and " " in value:
            texts.append(value)
    return " ".join(texts)
