"""Compares fresh answers with stored ones, so that the policy learns."""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from kvproxy.index.entry import Entry, learning_namespace
from kvproxy.index.policies.learned.answer_classes import (
    ClassAssignment,
    assign_class,
    text_digest,
)
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import LearningStatus, LearningSummary, Neighbour
from kvproxy.index.search.conversations import compared_turn, earlier_turns
from kvproxy.index.search.lookup_result import Lookup, PendingObservation
from kvproxy.index.store import Store
from kvproxy.index.store.observations import Audit, Observation, Observations

Recording = Generator[tuple[str, str], bool | None, Observation | None]
"""Yields pairs of entries' ids, of which the second may be the fresh entry, and receives whether their answers are equal.

A result is None if the comparison is undecided.
"""
_MAX_OBSERVATIONS = 10_000


class FeedbackRecorder:
    """Compares fresh answers with stored answers, and stores the results, from which `policy` learns, if given.

    `unindex` deletes the vectors of the entries with given ids; it is called on a worker thread.
    """

    def __init__(
        self,
        store: Store,
        observations: Observations,
        policy: LearnedPolicy | None,
        unindex: Callable[[Sequence[str]], object],
    ) -> None:
        self._store = store
        self._observations = observations
        self._policy = policy
        self._unindex = unindex

    def record_served(self, lookup: Lookup) -> None:
        if self._policy is not None and lookup.observation is not None:
            record = lookup.observation.record
            answer_class = lookup.chosen.answer if lookup.chosen is not None else ""
            space = learning_namespace(lookup.namespace)
            self._policy.record_served(space, record.risk, by_checked=bool(record.checked), answer_class=answer_class)

    def record_response(
        self,
        lookup: Lookup,
        fresh_entry: Entry,
        answer_text: str,
        *,
        was_to_be_served: bool = False,
        audits: Sequence[Audit] = (),
    ) -> Recording:
        """Compare a fresh response with the candidates of its lookup, and store the result; None if there was no candidate.

        It reads and writes the store, so run it on worker threads.

        Args:
            was_to_be_served: a hit was forwarded, but not for exploration (for instance in shadow mode).
            audits: comparisons of facts that the model judged, too; the comparisons of this response may add some.
        """
        pending, assignment = lookup.observation, None
        if pending is not None:
            assignment = yield from self._compare(pending, fresh_entry.id, lookup.namespace)
        return self._store_result(lookup, fresh_entry, answer_text, assignment, was_to_be_served, audits)

    def _store_result(
        self,
        lookup: Lookup,
        fresh_entry: Entry,
        answer_text: str,
        assignment: ClassAssignment | None,
        was_to_be_served: bool,
        audits: Sequence[Audit],
    ) -> Observation | None:
        pending, digest = lookup.observation, text_digest(answer_text)
        known = self._store.answer_class(fresh_entry.namespace, digest)
        equal = [] if assignment is None else [name for name in (assignment.joined, *assignment.merged) if name]
        equal += [known] if known is not None else []
        right = None if assignment is None else assignment.right
        if pending is not None and right is None:
            own = pending.candidate.answer
            right = True if own in equal else None
            if right is None and self._questions_are_surely_equal(lookup.question, pending):
                # No fact differs, so these are two wordings of one answer. It proves nothing about the policy `checked`.
                equal.append(own)
        joined, *merged = dict.fromkeys(equal or [fresh_entry.id])
        self._store.set_answer_class(fresh_entry.id, fresh_entry.namespace, joined, digest)
        self._store.merge_answer_classes(fresh_entry.namespace, merged, joined)
        if pending is None or assignment is None:
            return None
        if assignment.is_outlier:
            self._unindex([pending.candidate.id])
        observation = Observation(
            pending.candidate.id,
            bool(right),
            "undecided" if right is None else "answer",
            pending.accepted,
            time.time(),
            learning_namespace(lookup.namespace),
            pending.candidate.answer,
            pending.record.features,
            pending.record.error,
            1.0 if was_to_be_served else pending.comparison_probability,
            () if right is None else self._vetoes(lookup.question, pending.candidate.prompt),
            joined,
            self._is_checked(lookup.question, pending),
            text_digest(lookup.question) == text_digest(pending.candidate.prompt),
            merged=tuple(merged),
            audits=tuple(audits),
            is_new=joined == fresh_entry.id,
        )
        self._add(observation)
        return observation

    def _compare(
        self, pending: PendingObservation, fresh_id: str, namespace: str
    ) -> Generator[tuple[str, str], bool | None, ClassAssignment]:
        classes, ids = (
            [candidate.answer for candidate in pending.candidates],
            [candidate.id for candidate in pending.candidates],
        )
        if self._policy is not None:
            suspects = self._policy.suspected_successors(learning_namespace(namespace), pending.candidate.answer)
            classes, ids = [*classes, *suspects], [*ids, *suspects]
        comparisons = assign_class(pending.record.index, classes, len(pending.candidates))
        equal: bool | None = None
        while True:
            try:
                place, other = comparisons.send(equal)
            except StopIteration as end:
                assignment: ClassAssignment = end.value
                return assignment
            equal = yield ids[place], fresh_id if other is None else ids[other]

    async def record_verdict(self, entry: Entry, right: bool, lookup: Lookup | None) -> None:
        """Store a person's verdict on an entry. A rejected entry leaves its class of equal answers.

        `lookup` is the semantic lookup of the question that the entry answered; None if the question is unknown.
        """
        verdict = Observation.from_verdict(entry.id, right, entry.namespace)
        pending = None if lookup is None else lookup.observation
        if lookup is not None and pending is not None and pending.candidate.id == entry.id:
            verdict = replace(
                verdict,
                answer=pending.candidate.answer,
                features=pending.record.features,
                error=pending.record.error,
                vetoes=self._vetoes(lookup.question, entry.prompt),
                accepted=pending.accepted,
            )
        if not right:
            await asyncio.to_thread(self._store.reset_answer_classes, [entry.id])
        await asyncio.to_thread(self._add, verdict)

    def _is_checked(self, question: str, pending: PendingObservation) -> bool:
        if self._policy is None:
            return bool(pending.record.checked)
        candidate = pending.candidate
        neighbour = Neighbour(compared_turn(candidate.prompt), candidate.similarity, candidate.answer)
        return self._policy.is_accepted_by_checked(compared_turn(question), neighbour, pending.record)

    def _questions_are_surely_equal(self, question: str, pending: PendingObservation) -> bool:
        candidate = pending.candidate
        if earlier_turns(question) != earlier_turns(candidate.prompt):
            return False
        neighbour = Neighbour(compared_turn(candidate.prompt), candidate.similarity, candidate.answer)
        return self._policy is not None and self._policy.are_surely_equal(compared_turn(question), neighbour)

    def _vetoes(self, question: str, cached_question: str) -> tuple[str, ...]:
        return (
            () if self._policy is None else self._policy.vetoes(compared_turn(question), compared_turn(cached_question))
        )

    def _add(self, observation: Observation) -> None:
        (self._observations.add if self._policy is None else self._policy.learn)([observation])

    def status(self, namespace: str) -> LearningStatus | None:
        """Return the status of a namespace. It may read the store, and waits while a comparison is stored."""
        return None if self._policy is None else self._policy.status(learning_namespace(namespace))

    def warning(self, namespace: str) -> str | None:
        return None if self._policy is None else self._policy.warning(learning_namespace(namespace))

    def summary(self) -> LearningSummary | None:
        return None if self._policy is None else LearningSummary.from_statuses(list(self._policy.statuses().values()))

    def flush(self) -> None:
        """Store the counts of hits, read the observations of other proxies, and delete old observations."""
        if self._policy is not None:
            self._policy.flush()
        self._observations.prune(_MAX_OBSERVATIONS)
