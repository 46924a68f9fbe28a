"""The result of a lookup from the result of a policy."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Decision, LearningRecord, Limits, Neighbour, Policy, PolicyResult
from kvproxy.index.search.decider import MAX_REFUSALS, Decider, RefusalBudget
from kvproxy.index.search.lookup_result import Lookup, LookupRequest
from kvproxy.index.search.vector_search import FaissSearch
from kvproxy.index.store import Store
from tests.index.entries import make_entry
from tests.reference.memory_observations import MemoryObservations


class FixedPolicy:
    """Returns a fixed result, and records the neighbours."""

    name = "fixed"
    num_neighbours = 5
    floor = 0.0

    def __init__(self, result: PolicyResult) -> None:
        self.result = result
        self.prompts: list[str] = []

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> PolicyResult:
        self.prompts = [neighbour.prompt for neighbour in neighbours]
        return self.result


@pytest.fixture(autouse=True)
def entries(store: Store) -> None:
    for name in "abc":
        store.put(make_entry(f"what is {name}", id=name))
    store.put(make_entry("what is old", id="old", expires=1.0))
    store.put(make_entry("what is theirs", id="theirs", namespace="other"))


def looked_up(
    store: Store, policy: Policy, chance: float | None = 0.0, near: str = "a b c", *, compare: bool = True
) -> Lookup:
    """Let a policy decide about entries; `chance` None disables exploration."""
    decider = Decider(store, FaissSearch(store, "e", 2), None, policy, None, lambda: chance or 0.0)
    heads = store.questions(near.split())
    found = [(heads[id], 0.9 - 0.1 * place) for place, id in enumerate(near.split()) if id in heads]
    request = LookupRequest("n", "what is it", explore=chance is not None, compare=compare)
    return decider.decide_candidates(request, found, policy)


ACCEPTED = PolicyResult(
    [Decision("not compared"), Decision("accepted", score=0.9), Decision("not compared")], 1, exploration_share=0.3
)


class NotedDecisions(LearnedPolicy):
    """Returns a fixed result, and records whether hits are counted."""

    def __init__(self) -> None:
        super().__init__(MemoryObservations(), None, 0.02, 0.0)
        self.hits: list[bool] = []

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> PolicyResult:
        return ACCEPTED

    def note_decision(self, namespace: str, result: PolicyResult, *, is_hit: bool) -> None:
        self.hits.append(is_hit)


def test_the_learned_policy_counts_hits_and_explored_requests_but_no_explanations(store: Store) -> None:
    policy = NotedDecisions()
    for chance in (0.99, 0.0, None):
        looked_up(store, policy, chance)
    assert policy.hits == [True, False]


def test_without_a_comparison_nothing_is_explored(store: Store) -> None:
    found = looked_up(store, FixedPolicy(ACCEPTED), 0.0, compare=False)
    assert (found.entry is not None, found.outcome) == (True, "accepted")


@pytest.mark.parametrize(("drawn", "explored"), [(0.0, True), (0.29, True), (0.3, False), (0.99, False), (None, False)])
def test_the_policy_defines_the_explored_share(store: Store, drawn: float | None, explored: bool) -> None:
    found = looked_up(store, FixedPolicy(ACCEPTED), drawn)
    assert found.chosen is not None
    assert (found.chosen.id, found.chosen.verdict) == ("b", "explored" if explored else "accepted")
    assert (found.entry is None) is explored
    assert found.outcome == ("explored" if explored else "accepted")
    assert found.similarity == (None if explored else pytest.approx(0.8))
    assert found.observation is not None
    assert (found.observation.accepted, found.observation.comparison_probability, found.observation.candidate.id) == (
        True,
        0.3,
        "b",
    )


def test_the_record_of_the_policy_or_else_the_highest_score_is_observed(store: Store) -> None:
    decisions = [
        Decision("low probability", score=0.2),
        Decision("low probability", score=0.7),
        Decision("vetoed", "names"),
    ]
    found = looked_up(store, FixedPolicy(PolicyResult(decisions, None)))
    assert found.observation is not None
    assert (found.observation.candidate.id, found.observation.accepted, found.observation.comparison_probability) == (
        "b",
        False,
        1.0,
    )
    assert found.observation.record == LearningRecord(1, None, 0.0, 0.0)
    assert found.outcome == "low probability"
    nothing = looked_up(store, FixedPolicy(PolicyResult([Decision("vetoed", "names")] * 3, None)))
    assert (nothing.observation, nothing.outcome) == (None, "vetoed")
    noted = LearningRecord(2, (1.0,), 0.1, 0.1)
    found = looked_up(store, FixedPolicy(PolicyResult([Decision("not compared")] * 3, None, 0.0, noted)))
    assert found.observation is not None
    assert (found.observation.candidate.id, found.observation.record) == ("c", noted)
    assert found.outcome == "no neighbour"


def test_the_policy_sees_no_expired_entries_and_no_other_namespaces(store: Store) -> None:
    policy = FixedPolicy(PolicyResult([Decision("accepted", score=1.0)], 0))
    found = looked_up(store, policy, None, near="old theirs gone a")
    assert policy.prompts == ["what is a"]
    assert [(each.id, each.verdict) for each in found.candidates] == [("old", "expired"), ("a", "accepted")]
    assert found.entry is not None
    assert found.entry.id == "a"


def test_an_expired_entry_below_the_floor_is_not_similar(store: Store) -> None:
    policy = FixedPolicy(PolicyResult([Decision("low similarity")], None))
    policy.floor = 0.95
    found = looked_up(store, policy, None, near="old a")
    assert [each.verdict for each in found.candidates] == ["low similarity", "low similarity"]
    assert found.outcome == "low similarity"


def test_an_entry_removed_during_the_lookup_is_not_served(store: Store) -> None:
    class Removing(FixedPolicy):
        def decide(
            self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
        ) -> PolicyResult:
            store.delete(["b"])
            return self.result

    found = looked_up(store, Removing(ACCEPTED), None)
    assert (found.entry, found.similarity) == (None, None)


VETOED = PolicyResult([Decision("vetoed", "numbers"), Decision("low similarity")], None)


def decider_with(store: Store, policy: FixedPolicy) -> tuple[Decider, Callable[..., Lookup]]:
    decider = Decider(store, FaissSearch(store, "e", 2), None, policy, None, lambda: 0.5)
    heads = store.questions(["a", "b"])

    numbers = itertools.count()

    def ask(question: str | None = None, *, explore: bool = True) -> Lookup:
        request = LookupRequest("n", question or f"what is {next(numbers)}", explore=explore)
        return decider.decide_candidates(request, [(heads["a"], 0.9), (heads["b"], 0.8)], policy)

    return decider, ask


def test_an_entry_near_which_too_many_questions_were_refused_has_exact_hits_only(store: Store) -> None:
    policy = FixedPolicy(VETOED)
    decider, ask = decider_with(store, policy)
    now = 0.0
    decider.refusal_budget = RefusalBudget(lambda: now)
    for _ in range(MAX_REFUSALS):
        assert ask().candidates[0].verdict == "vetoed"
    policy.result = PolicyResult([Decision("accepted")], 0)
    found = ask()
    assert [each.verdict for each in found.candidates] == ["refusal limit", "accepted"]
    assert policy.prompts == ["what is b"]
    now = 3600.0
    policy.result = PolicyResult([Decision("accepted"), Decision("not compared")], 0)
    found = ask()
    assert found.entry is not None
    assert found.entry.id == "a"


def test_explain_repetitions_and_far_neighbours_use_up_no_refusals(store: Store) -> None:
    policy = FixedPolicy(VETOED)
    decider, ask = decider_with(store, policy)
    for _ in range(MAX_REFUSALS + 1):
        assert ask(explore=False).candidates[0].verdict == "vetoed"
        assert ask("what is it").candidates[0].verdict == "vetoed"
    for _ in range(MAX_REFUSALS - 1):
        assert ask().candidates[0].verdict == "vetoed"
    assert decider.refusal_budget.is_spent("a")
    assert not decider.refusal_budget.is_spent("b")


def test_the_refusal_budget_forgets_the_entry_with_the_oldest_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.search.decider._MAX_BUDGETS", 2)
    budget = RefusalBudget(lambda: 0.0)
    for number in range(MAX_REFUSALS):
        budget.add(f"{number}", ["a", "b"])
    budget.add("one more", ["a", "c"])
    assert (budget.is_spent("a"), budget.is_spent("b")) == (True, False)
