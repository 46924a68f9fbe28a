"""Finds the neighbours of a question, and has a policy decide over them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvproxy.index.policies.guards.hidden_text import hides_text
from kvproxy.index.policies.policy import Policy, PolicyName
from kvproxy.index.search.lookup import Lookup, judge
from kvproxy.index.search.lookup_queue import Ask
from kvproxy.index.search.neighbours import Neighbours
from kvproxy.index.store import Store, StoredQuestion
from kvproxy.index.store.observations import Observations

_WIDER = 4
"""How many times as many neighbours are looked at where some of the nearest are past their time: they would hide the others."""


class Decider:
    """Decides over the neighbours of questions. Any thread may use it.

    Args:
        store: the responses.
        neighbours: finds what is near.
        observations: knows what people rejected; None where nothing is remembered.
        policy: decides where a question names no other.
        other: makes the policy that a question names. It is called in the thread that looks up, and may take its time.
        chance: uniform numbers below 1, see `lookup.judge`.
    """

    def __init__(
        self,
        store: Store,
        neighbours: Neighbours,
        observations: Observations | None,
        policy: Policy,
        other: Callable[[PolicyName], Policy] | None,
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._neighbours = neighbours
        self._observations = observations
        self.policy = policy
        self._other = other
        self.chance = chance

    def decide(self, ask: Ask, vector: np.ndarray, besides: str = "") -> Lookup:
        """What is found near a question.

        Args:
            vector: of the question.
            besides: id of an entry that is left out.
        """
        policy = self.named(ask.policy)
        reach = policy.reach if ask.reach is None else ask.reach
        near = self._near(ask, vector, reach, besides)
        chance = self.chance if ask.explore else None
        found = judge(
            self._store,
            self._observations,
            policy,
            ask.namespace,
            ask.question,
            near,
            ask.limits,
            chance,
            served=ask.served,
        )
        # What another policy decides teaches the one that learns nothing, and is not charged to its bound.
        return found if policy is self.policy else replace(found, judged=None)

    def named(self, name: PolicyName | None) -> Policy:
        """The policy that decides where a question names this one; None names none."""
        if name is None or name == self.policy.name or self._other is None:
            return self.policy
        return self._other(name)

    def may_serve(
        self, ask: Ask, vector: np.ndarray | None, known: Callable[[str], np.ndarray | None], question: str
    ) -> bool:
        """Whether the answer to another question is near enough to be served, or nobody knows.

        Args:
            vector: of what is asked.
            known: the vector of a text, where that is at hand.
        """
        other = known(question)
        return other is None or vector is None or float(vector @ other) >= self.named(ask.policy).floor

    def _near(self, ask: Ask, vector: np.ndarray, reach: int, besides: str) -> list[tuple[StoredQuestion, float]]:
        """The nearest entries, those that are past their time too; and as many more that are not."""

        def search(most: int) -> list[tuple[StoredQuestion, float]]:
            found = self._neighbours.search(ask.namespace, vector, most + bool(besides))
            # An entry that was stored before such questions were refused, or by another version.
            shown = [(head, cosine) for head, cosine in found if head.id != besides and not hides_text(head.prompt)]
            return shown[:most]

        near = search(reach)
        if all(head.freshness in ask.served for head, _ in near):
            return near
        nearest = {head.id for head, _ in near}
        wider = search(_WIDER * reach)
        fresh = [head.id for head, _ in wider if head.freshness in ask.served][:reach]
        return [(head, cosine) for head, cosine in wider if head.id in nearest or head.id in fresh]
