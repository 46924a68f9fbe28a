"""Lets a policy decide which neighbour of a question is served."""

import contextlib
import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvproxy.index.entry import learning_namespace
from kvproxy.index.errors import CacheStoreError, EmbedderError, PolicyError, policy_error
from kvproxy.index.policies.check_result import check_result
from kvproxy.index.policies.guards import CONTEXT, PASSAGES
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Decision, LearningRecord, Neighbour, Policy, PolicyName, PolicyResult, Verdict
from kvproxy.index.search.conversations import EarlierTurns, compared_turn, last_turn, uses_own_context
from kvproxy.index.search.lookup_result import Candidate, Lookup, LookupRequest, PendingObservation
from kvproxy.index.search.shared_text import SharedText
from kvproxy.index.search.vector_search import VectorSearch
from kvproxy.index.store import Store, StoredQuestion
from kvproxy.index.store.observations import Observations

MAX_REFUSALS = 32
_REFILL_SECONDS = 3600.0
_MAX_BUDGETS = 20_000
_DIGEST_BYTES = 4
_WIDER_SEARCH_FACTOR = 4
_REFUSALS: tuple[Verdict, ...] = ("vetoed", "low probability")


class RefusalBudget:
    """Limits how many similar questions may be refused per entry, because attackers try many questions to find a wrong hit.

    A refusal is a veto or a too low `Decision.score`. An entry that was refused for 32 different questions has exact hits only;
    each hour, one refusal is forgotten. The 20,000 entries with the latest refusals are kept in memory. Thread-safe.

    Args:
        clock: returns monotonic seconds.
        limit: instead of 32 questions; None for no limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, limit: int | None = MAX_REFUSALS) -> None:
        self._clock = clock
        self._limit = limit
        self._refusals: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._lock = threading.Lock()
        # With a random key, an attacker cannot find questions of the same digest.
        self._key = secrets.token_bytes(16)

    def is_spent(self, id: str) -> bool:
        if self._limit is None or id not in self._refusals:
            return False
        return len(self._recent_question_digests(id)[0]) >= self._limit * _DIGEST_BYTES

    def add(self, question: str, ids: Iterable[str]) -> None:
        """Count a question for which the policy refused these entries. An entry counts the same question only once."""
        if self._limit is None:
            return
        digest = hashlib.blake2b(question.encode(), digest_size=_DIGEST_BYTES, key=self._key).digest()
        with self._lock:
            for id in ids:
                digests, updated = self._recent_question_digests(id)
                places = range(0, len(digests), _DIGEST_BYTES)
                if all(digests[place : place + _DIGEST_BYTES] != digest for place in places):
                    digests += digest
                self._refusals[id] = digests, updated
                self._refusals.move_to_end(id)
            while len(self._refusals) > _MAX_BUDGETS:
                self._refusals.popitem(last=False)

    def _recent_question_digests(self, id: str) -> tuple[bytes, float]:
        now = self._clock()
        digests, updated = self._refusals.get(id, (b"", now))
        hours = int((now - updated) / _REFILL_SECONDS)
        return digests[hours * _DIGEST_BYTES :], updated + hours * _REFILL_SECONDS


@contextlib.contextmanager
def naming_failures(policy: Policy) -> Iterator[None]:
    """Convert exceptions of a policy and its verifier to PolicyError, as a guard does itself."""
    try:
        yield
    except (CacheStoreError, EmbedderError, PolicyError):
        raise
    except Exception as error:
        raise policy_error(f"policy {policy.name!r}", error) from error


class Decider:
    """Finds the neighbours of a question, and lets a policy decide which of them is served. Thread-safe.

    Args:
        observations: contain people's verdicts on entries; None ignores verdicts.
        make_policy: creates the policy that a request names; may load a model. None uses `policy` for every request.
        random_number: returns a uniform random number below 1, for exploration.
        embed: see `EarlierTurns`.
        refusal_limit: see `RefusalBudget`.
    """

    def __init__(
        self,
        store: Store,
        vector_search: VectorSearch,
        observations: Observations | None,
        policy: Policy,
        make_policy: Callable[[PolicyName], Policy] | None,
        random_number: Callable[[], float],
        embed: Callable[[str], np.ndarray | None] = lambda text: None,
        refusal_limit: int | None = MAX_REFUSALS,
    ) -> None:
        self._store = store
        self._vector_search = vector_search
        self._observations = observations
        self.policy = policy
        self._make_policy = make_policy
        self.random_number = random_number
        self._embed = embed
        self.refusal_budget = RefusalBudget(limit=refusal_limit)

    def decide(self, request: LookupRequest, vector: np.ndarray) -> Lookup:
        policy = self.policy_by_name(request.policy)
        near = self.search(request, vector, policy.num_neighbours, policy.floor)
        with naming_failures(policy):
            lookup = self.decide_candidates(request, near, policy)
        # `learned` must not learn from decisions of another policy.
        return lookup if policy is self.policy else replace(lookup, observation=None)

    def policy_by_name(self, name: PolicyName | None) -> Policy:
        if name is None or name == self.policy.name or self._make_policy is None:
            return self.policy
        return self._make_policy(name)

    def search(
        self, request: LookupRequest, vector: np.ndarray, limit: int, floor: float = -1.0
    ) -> list[tuple[StoredQuestion, float]]:
        """Return stored questions with their cosines, nearest first; see `VectorSearch.search` for `floor`.

        These are the nearest `limit` questions, and the nearest `limit` questions whose freshness the request allows.
        """

        def nearest(count: int) -> list[tuple[StoredQuestion, float]]:
            neighbours = self._vector_search.search(request.namespace, vector, count, floor)
            # An earlier version or an import may have stored a question with hidden text.
            return [(head, cosine) for head, cosine in neighbours if not has_hidden_text(head.prompt)]

        near = nearest(limit)
        if all(head.freshness in request.allowed_freshness for head, _ in near):
            return near
        kept = {head.id for head, _ in near}
        wider = nearest(_WIDER_SEARCH_FACTOR * limit)
        kept |= set([head.id for head, _ in wider if head.freshness in request.allowed_freshness][:limit])
        return [(head, cosine) for head, cosine in wider if head.id in kept]

    def decide_candidates(
        self,
        request: LookupRequest,
        near: Sequence[tuple[StoredQuestion, float]],
        policy: Policy,
        *,
        with_verdicts: bool = True,
    ) -> Lookup:
        """Decide on neighbours.

        `with_verdicts`: refuse entries that a person rejected, entries farther than these, and those that were refused too often.
        """
        # By rounding, the product of two equal unit vectors can exceed 1.
        in_namespace = [(head, min(cosine, 1.0)) for head, cosine in near if head.namespace == request.namespace]
        decisions = self._exclude(request, in_namespace, policy.floor, with_verdicts=with_verdicts)
        learned = policy if isinstance(policy, LearnedPolicy) else None
        judge = policy if learned is None else learned.checked
        space = learning_namespace(request.namespace)
        # Only the policy `learned` stores what it knows of a namespace, by the digest.
        named = request.namespace_name or "" if learned is None else space
        earlier = EarlierTurns(request.question, judge, request.limits, self._embed, named)
        shared_text = SharedText(last_turn(request.question), judge, request.limits, self._embed, named)
        neighbours: dict[int, Neighbour] = {}
        for place, (head, cosine) in enumerate(in_namespace):
            if place in decisions:
                continue
            # A policy refuses a neighbour below the floor anyway.
            if cosine >= policy.floor and not earlier.matches(head.prompt):
                decisions[place] = Decision("vetoed", CONTEXT)
            elif cosine >= policy.floor and not shared_text.allows(last_turn(head.prompt)):
                decisions[place] = Decision("vetoed", PASSAGES)
            else:
                neighbours[place] = Neighbour(earlier.compared_turn(head.prompt), cosine, head.answer, head.vector)
        eligible, result = list(neighbours), PolicyResult([], None)
        if neighbours:
            question = compared_turn(request.question)
            result = policy.decide(question, list(neighbours.values()), request.limits, named)
            check_result(result, len(neighbours))
        chosen_place = None if result.chosen is None else eligible[result.chosen]
        may_explore = chosen_place is not None and request.explore and request.compare
        explored = may_explore and self.random_number() < result.exploration_share
        if request.explore and request.compare and learned is not None:
            learned.note_decision(space, result, is_hit=chosen_place is not None and not explored)
        decisions |= zip(eligible, result.decisions, strict=True)
        if request.explore:
            refused = (place for place, decision in decisions.items() if decision.verdict in _REFUSALS)
            self.refusal_budget.add(request.question, [in_namespace[place][0].id for place in refused])
        if explored and chosen_place is not None:
            decisions[chosen_place] = replace(decisions[chosen_place], verdict="explored")
        candidates = []
        for place, (head, cosine) in enumerate(in_namespace):
            made = decisions[place]
            values = (made.verdict, made.guard, made.score, made.error)
            candidates.append(Candidate(head.id, head.prompt, cosine, head.answer, *values))
        observation = _pending_observation(result, [candidates[place] for place in eligible])
        chosen = None if chosen_place is None else candidates[chosen_place]
        entry = self._store.get(chosen.id) if chosen is not None and not explored else None
        if entry is not None and chosen_place is not None and uses_own_context(entry, request.question):
            candidates[chosen_place] = replace(candidates[chosen_place], verdict="vetoed", guard=CONTEXT)
            return Lookup(None, tuple(candidates), None, request.namespace, request.question)
        return Lookup(entry, tuple(candidates), chosen, request.namespace, request.question, observation)

    def _exclude(
        self,
        request: LookupRequest,
        near: Sequence[tuple[StoredQuestion, float]],
        floor: float,
        *,
        with_verdicts: bool,
    ) -> dict[int, Decision]:
        """Return the decisions on neighbours that the policy does not judge, by their place; see `decide_candidates`."""
        ids = [head.id for head, cosine in near if cosine >= floor]
        verdicts = self._observations if with_verdicts and ids else None
        rejected = set() if verdicts is None else verdicts.rejected_entries(ids)
        decisions: dict[int, Decision] = {}
        for place, (head, cosine) in enumerate(near):
            if head.id in rejected:
                decisions[place] = Decision("rejected")
            elif head.freshness not in request.allowed_freshness:
                # An entry below the floor is unrelated, whatever its state.
                decisions[place] = Decision("expired" if cosine >= floor else "low similarity")
            elif any(decision.verdict == "rejected" for decision in decisions.values()):
                # A person who rejects an entry wants a fresh answer, rather than the answer to a less similar question.
                decisions[place] = Decision("not compared")
            elif with_verdicts and cosine >= floor and self.refusal_budget.is_spent(head.id):
                decisions[place] = Decision("refusal limit")
        return decisions


def _pending_observation(result: PolicyResult, near: Sequence[Candidate]) -> PendingObservation | None:
    record, accepted = result.record, result.chosen is not None
    if record is None:
        scores = {place: made.score for place, made in enumerate(result.decisions) if made.score is not None}
        place = max(scores, key=scores.__getitem__, default=None) if result.chosen is None else result.chosen
        if place is None:
            return None
        record = LearningRecord(place, None, 0.0)
    share = result.exploration_share if accepted else 1.0
    return PendingObservation(near[record.index], record, tuple(near), accepted, share)
