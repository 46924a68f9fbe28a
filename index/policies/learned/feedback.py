"""What a fresh answer teaches: which class of answers it is of, and whether the cached one would have been right.

All of it happens off the request path.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.policies.learned.answer_classes import Settled, digest, rivals, settle
from kvproxy.index.policies.policy import Learns, Overall, Status
from kvproxy.index.search.lookup import Judged, Lookup
from kvproxy.index.store import ClassifiedAnswer, Store
from kvproxy.index.store.observations import Observation, Observations

Compare = Callable[[str], Awaitable[bool | None]]
"""Whether the answer of the entry with an id is the same as a fresh one; None where that cannot be told."""

_KEPT = 10_000  # Observations that are kept in the log where nothing learns from them.

Unindex = Callable[[Sequence[str]], object]


@dataclass(frozen=True, slots=True)
class Learned:
    """What a fresh answer has shown.

    Attributes:
        right: what was judged would have been right.
        joined: the class of the fresh answer.
    """

    right: bool
    joined: str


class Learning:
    """Keeps the classes of answers, and observations of what was right; a policy that learns is handed them.

    Args:
        store: the responses.
        embed: returns the vector of a text.
        cached_vector: returns it if the text was embedded recently.
        embedder: name of the embedder.
        observations: where they are kept.
        policy: what learns from them; None where the policy does not.
        unindex: keeps entries for equal requests only; on a thread.
    """

    def __init__(
        self,
        store: Store,
        embed: Callable[[str], Awaitable[np.ndarray]],
        cached_vector: Callable[[str], np.ndarray | None],
        embedder: str,
        observations: Observations,
        policy: Learns | None,
        unindex: Unindex,
    ) -> None:
        self._store = store
        self._embed = embed
        self._cached_vector = cached_vector
        self._embedder = embedder
        self._observations = observations
        self._policy = policy
        self._unindex = unindex

    def served(self, lookup: Lookup) -> None:
        """A lookup's entry was served; what the policy keeps its bound by. Costs nothing."""
        if self._policy is not None and lookup.judged is not None:
            self._policy.served(lookup.namespace, lookup.judged.noted.risk)

    async def alike(self, cached: str, said: str, fresh: str) -> float:
        """Cosine of two answers.

        Args:
            cached: id of the entry of the one, whose vector is there if it was compared before.
            said: what it says.
            fresh: the other answer.
        """
        vector = await self._embed(fresh)
        kept = await asyncio.to_thread(self._store.answer_vectors, [cached], self._embedder)
        other = kept[cached] if cached in kept else await self._embed(said)
        return float(vector @ other)

    async def learned(
        self, lookup: Lookup, fresh: Entry, answer: str, same: Compare, *, served: bool = False
    ) -> Learned | None:
        """Learn from a fresh answer to a question that was looked up: its class, and whether what was judged was right.

        Durable when this returns. Off the request path: it compares the answer with a few others.

        Args:
            lookup: of the question.
            fresh: its entry, as stored.
            answer: the text of its answer.
            same: compares the answer of a stored entry with this one; None where that cannot be told.
            served: the answer of the lookup was found right, and its request forwarded all the same by the caller's own choice
                (shadow mode), so that nothing was left to chance.

        Returns:
            What was found; None where nothing could be compared.
        """
        found = await self._compared(lookup.judged, same) if lookup.judged is not None else None
        return await asyncio.to_thread(self._settle, lookup, fresh, answer, found, served)

    def _settle(self, lookup: Lookup, fresh: Entry, answer: str, found: Settled | None, served: bool) -> Learned | None:
        """What follows from comparisons, in one job: whoever waits for a thread waits once."""
        judged, text = lookup.judged, digest(answer)
        known = self._store.answer_class(fresh.namespace, text)
        joined = known or (found.joined if found is not None else None) or fresh.id
        # An answer is embedded when it is compared with another one by its vector, and many never are.
        vector = self._cached_vector(answer)
        self._store.classify(ClassifiedAnswer(fresh.id, fresh.namespace, joined, text, vector, self._embedder))
        if judged is None or found is None:
            return None
        if found.odd:
            # It goes on answering equal requests; for others the rest of its class does.
            self._unindex([judged.candidate.id])
        seen = Observation(
            judged.candidate.id,
            found.right,
            "answer",
            judged.accepted,
            time.time(),
            lookup.namespace,
            judged.candidate.answer,
            judged.noted.features,
            judged.noted.error,
            1.0 if served else judged.chance,
            self._vetoes(lookup.question, judged.candidate.prompt),
            joined,
            judged.noted.checked,
            digest(lookup.question) == digest(judged.candidate.prompt),
        )
        self._keep([seen])
        return Learned(found.right, joined)

    async def _compared(self, judged: Judged, same: Compare) -> Settled | None:
        classes = [candidate.answer for candidate in judged.near]
        places, found = rivals(judged.noted.place, classes), list[bool]()
        for place in places:
            verdict = await same(judged.near[place].id)
            if verdict is None:
                break
            found.append(verdict)
            if verdict:
                break
        return settle(places, found, classes) if found else None

    async def feedback(self, entry: Entry, right: bool, lookup: Lookup | None) -> None:
        """A person's verdict on an entry, which leaves its class if it is wrong.

        Args:
            lookup: of the question that it was served for, where that is known.
        """
        verdict = Observation.verdict(entry.id, right, entry.namespace)
        judged = None if lookup is None else lookup.judged
        if lookup is not None and judged is not None and judged.candidate.id == entry.id:
            verdict = replace(
                verdict,
                answer=judged.candidate.answer,
                features=judged.noted.features,
                error=judged.noted.error,
                vetoes=self._vetoes(lookup.question, entry.prompt),
                accepted=judged.accepted,
            )
        if not right:
            await asyncio.to_thread(self._store.reset_classes, [entry.id])
        await asyncio.to_thread(self._keep, [verdict])

    def _vetoes(self, question: str, cached: str) -> tuple[str, ...]:
        return () if self._policy is None else self._policy.vetoes(question, cached)

    def _keep(self, observations: Sequence[Observation]) -> None:
        if self._policy is None:
            self._observations.add(observations)
        else:
            self._policy.learn(observations)

    async def status(self, namespace: str) -> Status | None:
        """What a namespace has learned; None where the policy does not learn."""
        return None if self._policy is None else await asyncio.to_thread(self._policy.status, namespace)

    def overall(self) -> Overall | None:
        """What the namespaces that were asked in since the start have learned; None where the policy does not learn."""
        return None if self._policy is None else Overall.of(list(self._policy.statuses().values()))

    def flush(self) -> None:
        """Keep what was served since the last observations, take in what other proxies have learned, and shorten the log."""
        if self._policy is not None:
            self._policy.flush()
        self._observations.prune(_KEPT)
