"""The learned policy: all proxies on one log have the same state, also after a crash, and the rules of a decision."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.policies.learned import learned_policy as learned
from kvproxy.index.policies.learned.error_model import ErrorModelPrior, compute_features
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.learned.learner import Learner
from kvproxy.index.policies.policy import Decision, LearningRecord, Limits, Neighbour, PolicyResult
from kvproxy.index.store import open_observations
from kvproxy.index.store.observations import Observation, Observations
from tests.reference.memory_observations import MemoryObservations


def observation(generator: random.Random, namespace: str = "n") -> Observation:
    """Return a random observation. Near answers are right more often."""
    near = sorted((generator.uniform(0.3, 1.0) for _ in range(8)), reverse=True)
    classes = [generator.choice("aab") for _ in near]
    right = generator.random() < near[0]
    error = generator.uniform(0.0, 0.2)
    vetoes = ("names",) if generator.random() < 0.2 else ()
    return Observation(
        "e",
        right,
        "answer",
        True,
        0.0,
        namespace,
        classes[0],
        tuple(compute_features(near, classes, "q", ["q"] * len(near)).tolist()),
        error,
        generator.uniform(0.1, 1.0),
        vetoes,
        generator.choice("ab"),
        generator.random() < 0.2,
        repeat=generator.random() < 0.3,
    )


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[[], Observations]]:
    """Open one file again and again, as several proxies do."""
    with ExitStack() as opened:

        def open_it() -> Observations:
            log = open_observations(tmp_path / "o.db")
            opened.callback(log.close)
            return log

        yield open_it


def memory_policy() -> LearnedPolicy:
    return LearnedPolicy(MemoryObservations(), None, 0.05, 0.5)


def test_all_proxies_on_one_log_have_the_same_state(open_log: Callable[[], Observations]) -> None:
    generator = random.Random(3)
    first, second = (LearnedPolicy(open_log(), None, 0.05, 0.5) for _ in range(2))
    second.learner("n")
    for number in range(450):
        (first if number % 2 else second).learn([observation(generator)])
        if number % 7 == 0:
            first.record_served("n", 0.01)
    first.flush()
    second.flush()
    third = LearnedPolicy(open_log(), None, 0.05, 0.5)
    assert len({policy.learner("n").to_json() for policy in (first, second, third)}) == 1
    assert first.status("n") == third.status("n")
    assert (first.status("n").observations, first.status("n").served) == (450, 65)


def test_a_pruned_log_stays_short_and_gives_the_same_state(open_log: Callable[[], Observations]) -> None:
    whole = memory_policy()
    generator, pruned = random.Random(4), 0
    for _ in range(6):
        # As after kill -9: the previous log was not closed.
        log = open_log()
        policy = LearnedPolicy(log, None, 0.05, 0.5)
        for _ in range(60):
            each = observation(generator)
            policy.learn([each])
            whole.learn([each])
        assert policy.learner("n").to_json() == whole.learner("n").to_json()
        pruned += log.prune(0)
        assert len(log.list_since("n", 0, 10_000)) <= 240
    assert pruned >= 150
    assert log.summary()["observed"] == 360


def test_a_proxy_behind_the_pruned_log_continues_from_the_snapshot(open_log: Callable[[], Observations]) -> None:
    generator = random.Random(5)
    log = open_log()
    behind, ahead = (LearnedPolicy(open_log(), None, 0.05, 0.5) for _ in range(2))
    behind.learn([observation(generator) for _ in range(10)])
    for _ in range(25):
        ahead.learn([observation(generator) for _ in range(10)])
    assert log.prune(0) > 0
    behind.learn([observation(generator)])
    ahead.flush()
    assert behind.learner("n").to_json() == ahead.learner("n").to_json()
    assert behind.status("n").observations == 261


def test_learning_restarts_after_a_snapshot_of_another_version(open_log: Callable[[], Observations]) -> None:
    log, generator = open_log(), random.Random(6)
    log.add([observation(generator) for _ in range(30)])
    log.save_snapshot("n", 20, Learner.new(ErrorModelPrior(), 0.02).to_json().replace('"version": 4', '"version": 3'))
    log.prune(0)
    assert LearnedPolicy(log, None, 0.02, 0.5).learner("n").num_comparisons == 10


def test_learning_continues_after_a_snapshot_from_before_deleted_observations(
    open_log: Callable[[], Observations], caplog: pytest.LogCaptureFixture
) -> None:
    log, generator = open_log(), random.Random(6)
    log.add([observation(generator) for _ in range(20)])
    before = LearnedPolicy(log, None, 0.02, 0.5).learner("n")
    log.add([observation(generator) for _ in range(30)])
    log.save_snapshot("n", 40, before.to_json())
    log.prune(0)
    learner = LearnedPolicy(log, None, 0.02, 0.5).learner("n")
    assert (learner.num_comparisons, learner.last_number) == (30, 50)
    assert "from before observation 21, but observations are deleted up to 40" in caplog.text


def test_an_evicted_namespace_returns_with_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, log = random.Random(8), MemoryObservations()
    whole, bounded = memory_policy(), LearnedPolicy(log, None, 0.05, 0.5)
    names = [f"n{number}" for number in range(9)]
    for _ in range(150):
        each = observation(generator, generator.choice(names))
        whole.learn([each])
        whole.learner("n0")
        with monkeypatch.context() as patch:
            patch.setattr(learned, "_MAX_LEARNERS", 3)
            bounded.learn([each])
            # A namespace in use is not evicted.
            assert bounded.learner("n0") is bounded.learner("n0")
            assert len(bounded.statuses()) <= 3
        log.prune(0)
    for name in names:
        assert bounded.learner(name).to_json() == whole.learner(name).to_json()


@pytest.mark.parametrize("other", [0.88, 0.5])
def test_across_a_lifted_guard_only_small_errors_are_served(other: float) -> None:
    policy = LearnedPolicy(MemoryObservations(), None, 0.02, 0.5)
    learner, is_small = policy.learner("n"), other < 0.6
    learner.level.error_limit, learner.level.error_factor = 0.25, 1.0
    near = [Neighbour("port 80", 0.95, "a"), Neighbour("port 81", 0.94, "a")]
    near += [*[Neighbour("port", other, "a" if is_small else "b")] * 3, Neighbour("x", 0.5, "b")]
    estimate = learner.estimate("port 8080", near)
    assert estimate is not None
    assert (estimate.error <= 0.25, estimate.error <= 0.04) == (True, is_small)
    assert policy.decide("port 8080", near, namespace="n").decisions[0].guard == "numbers"
    learner.class_evidence.update_guards("a", policy.vetoes("port 8080", "port 80"), right=True)
    assert (policy.decide("port 8080", near, namespace="n").decisions[0].verdict == "accepted") is is_small
    assert policy.decide("port 80", near, namespace="n").decisions[0].verdict == "accepted"


def test_namespaces_learn_separately_and_share_the_prior() -> None:
    policy = LearnedPolicy(MemoryObservations(), None, 0.02, 0.5)
    generator = random.Random(1)
    policy.learn([observation(generator, "n") for _ in range(300)])
    fresh = policy.learner("m")
    assert (fresh.num_comparisons, fresh.level.error_limit) == (0, 0.0)
    shipped = ErrorModelPrior().error_model().weights
    assert not np.allclose(fresh.error_model.weights, shipped)
    assert not np.allclose(fresh.error_model.weights, policy.learner("n").error_model.weights)
    assert set(policy.statuses()) == {"n", "m"}


class Refusing:
    """A policy that refuses every neighbour."""

    level, num_neighbours = 0.9, 5

    def decide(self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> PolicyResult:
        return PolicyResult([Decision("low probability", score=0.1) for _ in neighbours], None)


def things_in_stock() -> list[Neighbour]:
    """Return neighbours for which the shipped weights estimate a small error."""
    near = [Neighbour(f"Is the {thing} in stock?", 0.65, "a") for thing in ("helmet", "saddle", "pedal")]
    return [*near, Neighbour("What is the capital of France?", 0.05, "b")]


def test_in_a_new_namespace_checked_must_agree() -> None:
    policy = LearnedPolicy(MemoryObservations(), Refusing(), 0.02, 0.5)  # type: ignore[arg-type]
    learner, near = policy.learner("n"), things_in_stock()
    learner.level.error_limit, learner.level.error_factor = 0.02, 1.0
    estimate = learner.estimate("Is the lamp in stock?", near)
    assert estimate is not None
    assert estimate.error < 0.002
    assert policy.decide("Is the lamp in stock?", near, namespace="n").chosen is None
    learner.level.expected = 10.0
    assert policy.decide("Is the lamp in stock?", near, namespace="n").chosen == 0
    # Easy traffic has small errors, whose sum rises slowly.
    learner.level.expected, learner.level.num_compared = 1.0, 99.0
    assert policy.decide("Is the lamp in stock?", near, namespace="n").chosen is None
    learner.level.num_compared = 100.0
    assert policy.decide("Is the lamp in stock?", near, namespace="n").chosen == 0


def test_in_a_new_namespace_a_hit_has_the_error_of_checked() -> None:
    policy = LearnedPolicy(MemoryObservations(), Accepting(), 0.02, 0.5)  # type: ignore[arg-type]
    learner, near = policy.learner("n"), things_in_stock()
    learner.level.error_limit, learner.level.error_factor = 0.02, 1.0
    estimate = learner.estimate("Is the lamp in stock?", near)
    assert estimate is not None
    assert estimate.error < 0.002
    record = policy.decide("Is the lamp in stock?", near, namespace="n").record
    assert record is not None
    assert (record.checked, record.risk) == (True, learner.checked_error)
    assert record.risk > 0.009


class Accepting(Refusing):
    def decide(self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> PolicyResult:
        decisions = [Decision("accepted", score=0.99) for _ in neighbours]
        return PolicyResult(decisions, 0 if neighbours else None)


def test_checked_serves_no_answer_that_the_score_doubts() -> None:
    policy = LearnedPolicy(MemoryObservations(), Accepting(), 0.02, 0.5)  # type: ignore[arg-type]
    question, thing = "Is the lamp in stock?", "Is the {} in stock?"
    near = [Neighbour(thing.format("helmet"), 0.8, "a")]
    assert policy.decide(question, near, namespace="n").chosen == 0
    # As near are questions with another answer.
    near += [Neighbour(thing.format(other), 0.8, "b") for other in ("saddle", "pedal", "chain", "bell")]
    estimate = policy.learner("n").estimate(question, near)
    assert estimate is not None
    assert estimate.score_error > 0.1
    assert policy.decide(question, near, namespace="n").chosen == 0, "the estimates are unproven"
    learner = policy.learner("n")
    learner.level.expected, learner.level.error_limit, learner.num_checked, learner.num_equal = 10.0, 0.01, 100.0, 50
    result = policy.decide(question, near, namespace="n")
    assert (result.chosen, result.decisions[0].verdict) == (None, "uncertain")
    assert result.record is not None
    assert not policy.is_accepted_by_checked(question, near[0], result.record)
    assert policy.is_accepted_by_checked(question, near[0], replace(result.record, checked=None))
    assert [decision.verdict for decision in result.decisions[1:]] == ["uncertain"] * 4, (
        "nor one of a less probable class"
    )


def test_checked_serves_no_answer_that_has_changed() -> None:
    policy = LearnedPolicy(MemoryObservations(), Accepting(), 0.02, 0.5)  # type: ignore[arg-type]
    learner, question = policy.learner("n"), "Is the lamp in stock?"
    near = [Neighbour(question, 0.99, "old"), Neighbour("Is a lamp in stock?", 0.9, "new")]
    assert policy.decide(question, near, namespace="n").chosen == 0
    learner.num_comparisons = learner.num_equal = 40
    learner.class_evidence.odds["old"] = 100.0
    assert policy.decide(question, near, namespace="n").chosen == 1
    # One unexpected difference is enough, unless the answers of the model differ in any case.
    learner.class_evidence.odds["old"] = 0.5
    assert policy.decide(question, near[:1], namespace="n").chosen is None
    learner.num_equal, learner.num_checked, learner.num_checked_wrong = 0, 1.0, 1.0
    assert policy.decide(question, near[:1], namespace="n").chosen == 0


def served_in_a_row(policy: LearnedPolicy, error: float = 0.01) -> int:
    """Return how many hits are served before one is explored for certain; a forwarded request with `error` came before."""
    near = [Neighbour("a b", 0.95, "a"), Neighbour("a c", 0.94, "a"), Neighbour("x", 0.4, "b")]
    policy.note_decision("n", PolicyResult([], None, record=LearningRecord(0, (), error)), is_hit=False)
    for count in range(100):
        result = policy.decide("a b", near, namespace="n")
        assert result.chosen == 0
        if result.exploration_share == 1.0:
            return count
        policy.note_decision("n", result, is_hit=True)
    raise AssertionError("no hit is explored")


def test_every_few_hits_a_comparison_can_show_a_change_of_all_answers() -> None:
    policy = LearnedPolicy(MemoryObservations(), None, 0.02, 0.5)
    learner = policy.learner("n")
    learner.level.error_limit, learner.level.error_factor, learner.level.expected = 0.1, 1.0, 5000.0
    calm = served_in_a_row(policy)
    assert 5 <= calm <= 10
    assert served_in_a_row(policy, error=0.5) == 0, "a comparison that was to differ shows nothing"
    assert served_in_a_row(policy) == calm
    learner.class_evidence.changes.common.odds *= 3
    assert 1 <= served_in_a_row(policy) < calm, "after an unexpected difference, more hits are explored"
