"""Finds the neighbours of a question, and has a policy decide over them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvproxy.index.policies.guards.hidden_text import hides_text
from kvproxy.index.policies.policy import Policy, PolicyName
from kvproxy.index.search.lookup import Lookup, LookupRequest, judge
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

    def decide(self, request: LookupRequest, vector: np.ndarray, excluded: str = "") -> Lookup:
        """What is found near a question.

        Args:
            vector: of the question.
            excluded: id of an entry that is left out.
        """
        policy = self.named(request.policy)
        near = self._near(request, vector, policy.reach, excluded)
        chance = self.chance if request.explore else None
        found = judge(
            self._store,
            self._observations,
            policy,
            request.namespace,
            request.question,
            near,
            request.limits,
            chance,
            served=request.served,
        )
        # What another policy decides teaches the one that learns nothing, and is not charged to its bound.
        return found if policy is self.policy else replace(found, judged=None)

    def named(self, name: PolicyName | None) -> Policy:
        """The policy that decides where a question names this one; None names none."""
        if name is None or name == self.policy.name or self._other is None:
            return self.policy
        return self._other(name)

    def _near(
        self, request: LookupRequest, vector: np.ndarray, reach: int, excluded: str
    ) -> list[tuple[StoredQuestion, float]]:
        """The nearest entries, those that are past their time too; and as many more that are not."""

        def search(most: int) -> list[tuple[StoredQuestion, float]]:
            found = self._neighbours.search(request.namespace, vector, most + bool(excluded))
            # An entry that was stored before such questions were refused, or by another version.
            shown = [(head, cosine) for head, cosine in found if head.id != excluded and not hides_text(head.prompt)]
            return shown[:most]

        near = search(reach)
        if all(head.freshness in request.served for head, _ in near):
            return near
        nearest = {head.id for head, _ in near}
        wider = search(_WIDER * reach)
        fresh = [head.id for head, _ in wider if head.freshness in request.served][:reach]
        return [(head, cosine) for head, cosine in wider if head.id in nearest or head.id in fresh]
