"""The state of a namespace: classes of answers, exploration, and updates by observations."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.learned.answer_classes import (
    ClassAssignment,
    assign_class,
    run_comparisons,
    text_digest,
)
from kvproxy.index.policies.learned.change_history import ChangeHistory, CommonChange
from kvproxy.index.policies.learned.class_evidence import ClassEvidence
from kvproxy.index.policies.learned.error_model import ErrorModelPrior, compute_features
from kvproxy.index.policies.learned.learner import Learner
from kvproxy.index.policies.learned.serving_level import ServingLevel
from kvproxy.index.policies.policy import Neighbour
from kvproxy.index.store.observations import Observation

CLASSES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from("xyz"), max_size=3), st.booleans()))


def assign(judged: int, classes: list[str], truths: list[bool | None], pairs: bool = True) -> ClassAssignment:
    """Assign a fresh answer; `truths` has the results for each neighbour, `pairs` for all pairs of neighbours."""
    return run_comparisons(
        assign_class(judged, classes), lambda place, other: truths[place] if other is None else pairs
    )


@given(CLASSES, st.integers(0, 11))
def test_comparisons_start_with_the_judged_answer_then_its_class_then_others(classes: list[str], judged: int) -> None:
    judged %= len(classes)
    places: list[int] = []

    def differ(place: int, other: int | None) -> bool:
        assert other is None
        places.append(place)
        return False

    run_comparisons(assign_class(judged, classes), differ)
    own = [place for place in places if classes[place] == classes[judged]]
    others = [place for place in places if classes[place] != classes[judged]]
    assert places == own + others
    assert places[0] == judged
    assert len(own) == min(2, classes.count(classes[judged]))
    assert len(others) == min(8, len(set(classes)) - 1)
    assert all(classes.index(classes[place]) == place for place in others)
    assert len(set(places)) == len(places)


@given(CLASSES, st.sampled_from("abcde"))
def test_a_fresh_answer_joins_the_class_of_an_equal_answer(classes: list[str], truth: str) -> None:
    assignment = assign(0, classes, [name == truth for name in classes])
    assert assignment.right == (classes[0] == truth)
    assert assignment.joined == (truth if truth in classes else None)
    assert not assignment.is_outlier
    assert not assignment.merged


def test_classes_that_one_fresh_answer_equals_become_one() -> None:
    merged = assign(0, ["a", "b", "c", "a"], [True, True, False, True])
    assert (merged.right, merged.joined, merged.merged) == (True, "a", ("b",))
    # The nearest answer is wrong, but two others are equal.
    others = assign(0, ["a", "b", "c", "d"], [False, True, True, None])
    assert (others.right, others.joined, others.merged) == (False, "b", ("c",))
    # The stored answers must equal each other, too.
    assert assign(0, ["a", "b"], [True, True], pairs=False).merged == ()


def test_an_undecided_comparison_changes_nothing() -> None:
    assert assign(0, ["a", "b"], [None, False]) == ClassAssignment(None, None)
    assert assign(0, ["a", "a"], [None, True]) == ClassAssignment(True, "a")
    assert assign(0, ["a", "b"], [None, True]) == ClassAssignment(None, "b")


def test_an_answer_that_differs_from_its_class_is_odd() -> None:
    odd = assign(0, ["a", "a", "b"], [False, True, False])
    assert (odd.is_outlier, odd.joined) == (True, "a")
    assert not assign(0, ["a", "a", "b"], [False, False, True]).is_outlier


def test_a_digest_ignores_case_and_punctuation() -> None:
    assert text_digest("It's **so**.") == text_digest("it s SO")
    assert text_digest("2 apples") != text_digest("3 apples")


def test_a_class_that_keeps_differing_is_obsolete_until_answers_join_it() -> None:
    errors = ClassEvidence(odds={"b": 30.0, "c": 29.0})
    assert (errors.is_obsolete("b"), errors.is_obsolete("c")) == (True, False)
    for _ in range(5):
        errors.add_comparison("a", 0.05, right=False)
    assert errors.is_obsolete("a")
    for _ in range(8):
        errors.add_member("a")
    assert not errors.is_obsolete("a")
    # Right answers clear a class after one error.
    errors = ClassEvidence()
    errors.add_comparison("a", 0.01, right=False)
    assert errors.change_probability("a") > 0.05
    for _ in range(3):
        errors.add_comparison("a", 0.01, right=True)
    assert errors.change_probability("a") < 0.01


def test_a_class_whose_fresh_answers_agree_on_a_new_one_is_succeeded_by_it() -> None:
    evidence = ClassEvidence()
    evidence.confirm("old", 100)
    evidence.changes.add_hits([("old", 4)], 105)
    evidence.changes.add_hits([("old", 4)], 115)
    explained = (0.0, 0.0)
    for number in range(4):
        joined = {"joined": "new", "is_new": number == 0, "clock": 120 + number, "counted_error": 0.02}
        explained = evidence.add_comparison("old", 0.02, right=False, **joined)  # type: ignore[arg-type]
        if explained[0]:
            break
        assert not evidence.is_obsolete("old")
    assert evidence.current_class("old") == "new"
    assert (evidence.is_obsolete("old"), evidence.is_obsolete("new")) == (True, False)
    assert explained[0] >= 2, "the change explains the wrong comparisons"
    assert evidence.changes.found_wrong == pytest.approx(4, rel=0.1)
    # The successor is served after it was confirmed.
    assert evidence.change_probability("new", 130) >= 0.5
    assert ClassEvidence.from_document(json.loads(json.dumps(evidence.document()))) == evidence
    evidence.add_comparison("new", 0.02, right=True, clock=130)
    assert evidence.change_probability("new", 130) == 0
    again = ClassEvidence.from_document(json.loads(json.dumps(evidence.document())))
    assert again == evidence


def test_changes_at_the_same_time_count_as_one_and_hits_before_it_are_right() -> None:
    together, alone = ClassEvidence(), ClassEvidence()
    for number in range(20):
        together.confirm(f"a{number}", 50 + number)
        alone.confirm(f"a{number}", 1000 * number)
        alone.changes.add_hits([(f"a{number}", 3)], 1000 * number + 40)
        alone.confirm("unchanged", 1000 * number + 45)
        for late in (50, 52, 54):
            alone.add_comparison(f"a{number}", 0.02, right=False, clock=1000 * number + late)
    for clock, count in ((69, 5), (90, 3)):
        together.changes.add_hits([(f"a{number}", count) for number in range(20)], clock)
    for clock in (100, 150, 200):
        for number in range(20):
            together.add_comparison(f"a{number}", 0.02, right=False, clock=clock + number)
    for number in range(20):
        assert together.is_obsolete(f"a{number}")
        assert alone.is_obsolete(f"a{number}")
    assert together.changes.num_changes == pytest.approx(1, abs=0.2)
    assert alone.changes.num_changes == pytest.approx(20, rel=0.05)
    assert alone.changes.found_wrong == pytest.approx(20 * 3 * 40 / 50, rel=0.1)
    assert together.changes.found_wrong == 60, "all answers were right at the last confirmation of any"
    assert ClassEvidence.from_document(json.loads(json.dumps(together.document()))) == together


def test_a_change_that_is_found_late_belongs_to_the_changes_at_the_same_time() -> None:
    evidence = ClassEvidence()
    names = [f"a{number}" for number in range(20)]
    for number, name in enumerate([*names, "rare"]):
        evidence.confirm(name, 50 + number)
    evidence.changes.add_hits([(name, 3) for name in (*names, "rare")], 90)
    evidence.add_comparison("rare", 0.02, right=False, clock=95)
    for clock in (100, 150, 200):
        for number, name in enumerate(names):
            evidence.add_comparison(name, 0.02, right=False, clock=clock + number)
    found, number_of_changes = evidence.changes.found_wrong, evidence.changes.num_changes
    for clock in range(300, 1000):
        evidence.confirm(f"new{clock % 20}", clock)
    assert not evidence.is_obsolete("rare")
    for clock in (1000, 1001):
        evidence.add_comparison("rare", 0.02, right=False, clock=clock)
    assert evidence.is_obsolete("rare")
    assert evidence.changes.found_wrong == pytest.approx(found + 3)
    assert evidence.changes.num_changes < number_of_changes + 0.1
    assert ClassEvidence.from_document(json.loads(json.dumps(evidence.document()))) == evidence


def test_single_changes_stay_single_when_the_confirmations_of_their_time_are_forgotten() -> None:
    evidence = ClassEvidence()
    for clock in (0, 900):
        for number in range(40):
            evidence.confirm(f"unchanged{number}", clock + number)
            if not clock:
                evidence.confirm(f"a{number % 10}", clock + number)
    evidence.changes.add_hits([(f"a{number}", 10) for number in range(10)], 100)
    for number in range(10):
        for clock in (950, 960, 970):
            evidence.add_comparison(f"a{number}", 0.02, right=False, clock=clock + number)
    found = evidence.changes.found_wrong
    assert found == pytest.approx(10 * 10 * 70 / 920, rel=0.2)
    for clock in range(1000, 1600):
        evidence.confirm(f"unchanged{clock % 40}", clock)
    for clock in (1700, 1701, 1702):
        evidence.add_comparison("unchanged0", 0.02, right=False, clock=clock)
    assert evidence.is_obsolete("unchanged0")
    assert evidence.changes.found_wrong == pytest.approx(found)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["hit", "confirm", "wait"])), max_size=40))
def test_hits_before_a_confirmation_were_right(steps: list[tuple[str, str]]) -> None:
    history, events = ChangeHistory(), list[tuple[str, str]]()
    for name in "abc":
        history.confirm(name, 0)
    for clock, (name, event) in enumerate(steps, 1):
        events.append((name, event))
        if event == "hit":
            history.add_hits([(name, 1)], clock)
        elif event == "confirm":
            history.confirm(name, clock)
    ages = 0
    for name in "abc":
        confirmed = max((at for at, event in enumerate(events, 1) if event == (name, "confirm")), default=0)
        ages += sum(at - confirmed for at, event in enumerate(events, 1) if event == (name, "hit") and at > confirmed)
    assert history.unseen_wrong == pytest.approx(history.rate * ages)


def confirmed_classes(number: int) -> ClassEvidence:
    evidence = ClassEvidence()
    for clock in range(2 * number):
        evidence.confirm(f"a{clock % number}", clock)
    return evidence


def test_a_few_comparisons_reveal_that_all_answers_changed() -> None:
    evidence = confirmed_classes(30)
    evidence.changes.add_hits([(f"a{name}", 1) for name in range(30)], 61)
    found = evidence.changes.found_wrong, evidence.wrong_by_change[0]
    for name in range(4):
        evidence.add_comparison(f"a{name}", 0.05, right=False, joined=f"b{name}", is_new=True, clock=62 + name)
    assert evidence.change_probability("a9", 65) > 0.5
    assert evidence.changes.found_wrong == found[0]
    assert evidence.wrong_by_change[0] > found[1] + 10, "hits that were served meanwhile were probably wrong"
    assert evidence.change_probability("b0", 65) == 0, "it is new"
    for name in range(4, 8):
        evidence.add_comparison(f"a{name}", 0.05, right=False, joined=f"b{name}", is_new=True, clock=62 + name)
    assert evidence.changes.common.last > 0
    # A class that has not changed returns when it is confirmed.
    assert evidence.change_probability("a9", 70) >= 0.9
    evidence.add_comparison("a9", 0.05, right=True, clock=70)
    assert evidence.change_probability("a9", 70) < 0.01
    assert (
        0 < evidence.change_probability("never confirmed", 200) < evidence.change_probability("never confirmed", 70) < 1
    )
    # Others are obsolete at the second contradiction, which shows the new answer.
    for _ in range(2):
        assert not evidence.is_obsolete("a8")
        evidence.add_comparison("a8", 0.05, right=False, joined="b8", is_new=not evidence.contradictions, clock=71)
    assert evidence.is_obsolete("a8")
    assert ClassEvidence.from_document(json.loads(json.dumps(evidence.document()))) == evidence


def test_differences_of_one_class_or_among_equal_answers_are_no_change_of_all() -> None:
    evidence = confirmed_classes(30)
    for clock in range(70, 75):
        evidence.add_comparison("a0", 0.05, right=False, clock=clock)
    assert evidence.change_probability("a9", 75) < 0.02
    generator, evidence, worst = random.Random(0), confirmed_classes(30), list[float]()
    for clock in range(70, 2000):
        error = generator.uniform(0.0, 0.4)
        right = generator.random() >= error
        evidence.add_comparison(f"a{generator.randrange(30)}", error, right=right, clock=clock)
        worst.append(evidence.changes.common.probability(0, clock))
    assert evidence.changes.common.last == 0
    assert np.mean(np.array(worst) > 0.01) < 0.1


def test_a_class_that_was_never_confirmed_raises_no_suspicion() -> None:
    evidence = ClassEvidence()
    evidence.add_comparison("first", 0.05, right=False, joined="second", is_new=True, clock=1)
    assert evidence.changes.common == CommonChange()


def test_a_suspicion_fades_while_only_a_few_new_classes_are_compared() -> None:
    evidence = confirmed_classes(1)
    evidence.add_comparison("a0", 0.05, right=False, clock=70)
    assert evidence.changes.common.odds > CommonChange().odds
    for clock in range(71, 300):
        evidence.add_comparison(f"new{clock % 10}", 0.05, right=True, clock=clock)
    assert evidence.changes.common.odds == CommonChange().odds
    for name in range(4):
        evidence.add_comparison(f"new{name}", 0.05, right=False, clock=300 + name)
    assert evidence.change_probability("new5", 310) > 0.5


def test_a_suspicion_ends_if_only_new_classes_are_compared() -> None:
    evidence = confirmed_classes(30)
    evidence.add_comparison("a0", 0.05, right=False, clock=70)
    assert evidence.changes.common.odds > CommonChange().odds
    for clock in range(70, 300):
        evidence.confirm(f"new{clock}", clock)
    assert evidence.changes.common.odds == CommonChange().odds
    assert len(evidence.changes.common.started) <= 200
    for name in range(5):
        evidence.add_comparison(f"new{100 + name}", 0.05, right=False, clock=301 + name)
    assert evidence.change_probability("new150", 310) > 0.5


def test_answers_age_at_the_rate_of_changes() -> None:
    evidence = ClassEvidence()
    evidence.confirm("a", 0)
    young, old = evidence.change_probability("a", 10), evidence.change_probability("a", 500)
    assert 0 < young < old
    assert evidence.change_probability("unknown", 500) == 0
    for number in range(20):
        for _ in range(5):
            evidence.add_comparison(f"b{number}", 0.02, right=False, counted_error=0.02)
    assert evidence.change_probability("a", 500) > 10 * old
    evidence.confirm("a", 500)
    assert evidence.change_probability("a", 500) == 0


@given(STEPS)
def test_the_last_comparison_across_a_guard_decides_about_its_veto(steps: list[tuple[str, list[str], bool]]) -> None:
    errors, last = ClassEvidence(), dict[tuple[str, str], bool]()
    for name, guards, right in steps:
        errors.update_guards(name, guards, right)
        last |= {(name, guard): right for guard in guards}
    for name in "ab":
        standing = [guard for guard in "xyz" if not last.get((name, guard), False)]
        assert errors.first_unlifted_guard(name, "xyz") == next(iter(standing), None)
        assert errors.first_unlifted_guard(name, []) is None


def observation(right: bool = True, **more: object) -> Observation:
    features = tuple(compute_features([0.95, 0.9, 0.5], ["a", "a", "z"], "q r", ["q r", "q", "z"]).tolist())
    return Observation("e", right, "answer", True, 0.0, "n", "a", features, 0.01, 1.0, **more)  # type: ignore[arg-type]


def test_hits_are_charged_the_changes_that_are_expected_at_their_age() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    evidence = learner.class_evidence
    evidence.confirm("a", 0)
    evidence.changes.add_hits([("a", 100)], clock=200)
    assert evidence.changes.expected_wrong == pytest.approx(100 * 200 * evidence.changes.rate)
    fresh = learner.level
    fresh.wrong = fresh.expected = 50.0
    fresh.served, fresh.risk = 2000, 18.0
    planned = fresh.planned_risk()
    fresh.wrong_by_change = 6.0
    certain = fresh.planned_risk()
    assert 0 < certain < planned
    fresh.change_variance = 4.0
    uncertain = fresh.planned_risk()
    assert 0 < uncertain < certain
    fresh.num_changes = 9.0
    assert uncertain < fresh.planned_risk() < certain, "many changes are a better estimate"
    meeting_none = fresh.planned_risk()
    fresh.expected_by_change = 8.0
    assert 0 < fresh.planned_risk() < meeting_none, "the next hits will meet changes, too"


@given(st.integers(0, 3000), st.floats(0.0, 200.0), st.floats(0.0, 60.0))
def test_after_any_changes_hits_with_small_errors_return_and_repay_the_allowance(
    served: int, by_change: float, num_changes: float
) -> None:
    level = ServingLevel(0.02, served, wrong=50.0, expected=50.0, num_changes=num_changes)
    unchanged = level.planned_risk()
    level.wrong_by_change = level.expected_by_change = by_change
    assert 0 < level.planned_risk() <= unchanged


def test_junk_answers_count_little_until_another_answer_equals_them() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    for number in range(1000):
        is_junk = number % 40 == 39
        name = f"j{number}" if is_junk else "a"
        learner.add(observation(not is_junk, number=number, joined=name, is_new=is_junk))
    assert 0.01 < learner.error_model.junk_share <= 0.03
    assert learner.error_model.error_probability(np.array(observation().features)) < 0.01
    pending = len(learner.surprises.single)
    assert learner.level.wrong < pending + 5, "2 at the start, and 25 junk answers"
    junk = Learner.from_json(learner.to_json(), 0.02)
    assert junk is not None
    learner.add(observation(number=1001, joined="j999"))
    again = Learner.from_json(learner.to_json(), 0.02)
    assert again is not None
    assert again.surprises == learner.surprises
    for number in range(1002, 1400):
        for each in (learner, junk):
            each.add(observation(number=number))
    assert learner.level.wrong > junk.level.wrong + 0.5, "another answer equals one of them"


@given(st.floats(0.0, 0.9), st.floats(0.0, 0.9), st.floats(0.0005, 0.03))
def test_a_single_answer_is_the_less_probably_junk_the_larger_the_error(one: float, other: float, share: float) -> None:
    def junk_probability(error: float) -> float:
        model = ErrorModelPrior().error_model()
        model.num_junk = share * model.num_predictable
        return model.add_single(error)

    small, large = sorted((one, other))
    assert 0 <= junk_probability(large) <= junk_probability(small) <= 1


def test_rare_answers_after_larger_errors_are_no_junk() -> None:
    learner, generator = Learner.new(ErrorModelPrior(), 0.02), random.Random(0)
    near = compute_features([0.84, 0.83, 0.76, 0.75], ["a", "a", "b", "a"], "q r s", ["q r", "q", "s", "z"])
    features = tuple(near.tolist())
    error = learner.error_model.error_probability(near, "a")
    assert 0.02 < error < 0.12
    for number in range(1500):
        is_wrong = generator.random() < error
        is_rare = is_wrong and generator.random() < 0.3
        rare = {"joined": f"r{number}" if is_rare else "b" if is_wrong else "a", "is_new": is_rare}
        learner.add(replace(observation(not is_wrong, number=number, **rare), features=features))
    assert learner.error_model.junk_share < 0.005
    assert learner.level.wrong > 0.6 * learner.level.expected


@given(st.floats(0.001, 0.05), st.integers(1, 4))
def test_an_answer_that_other_questions_had_before_is_an_error_rather_than_a_change(error: float, count: int) -> None:
    confused, changed = ClassEvidence(), ClassEvidence()
    for evidence in (confused, changed):
        evidence.confirm("other", 5)
        evidence.confirm("a", 10)
        explained = (0.0, 0.0)
        for number in range(20, 20 + count):
            joined = "other" if evidence is confused else "new"
            evidence.confirm(joined, number)
            is_new = evidence is changed and number == 20
            known = {"joined": joined, "is_new": is_new, "clock": number, "counted_error": error}
            explained = evidence.add_comparison("a", error, right=False, **known)  # type: ignore[arg-type]
        if evidence is confused:
            assert explained == (0.0, 0.0), "the differences remain errors of the score"
    if count == 1:
        assert confused.change_probability("a", 30) < 0.02 < changed.change_probability("a", 30)
    assert confused.changes.common.odds < max(changed.changes.common.odds, 0.001)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_each_further_hit_adds_its_age_to_the_risk_of_a_class_until_it_is_confirmed(ages: list[int]) -> None:
    evidence, ages = ClassEvidence(), sorted(ages)
    evidence.confirm("a", 100)
    for count, age in enumerate(ages, 1):
        risk = evidence.risk_of_changes("a", 100 + age)
        assert risk == pytest.approx(evidence.changes.rate * sum(ages[:count]))
        assert risk >= evidence.change_probability("a", 100 + age) - 1e-9
        evidence.changes.add_hits([("a", 1)], 100 + age)
    evidence.confirm("a", 600)
    assert evidence.risk_of_changes("a", 600) == 0.0


def test_the_error_model_does_not_learn_from_a_change() -> None:
    changed, mistaken = (Learner.new(ErrorModelPrior(), 0.02) for _ in range(2))
    for number in range(200):
        for learner in (changed, mistaken):
            learner.add(observation(number=number))
    features = np.array(observation().features)
    before = changed.error_model.error_probability(features, "a")
    for number in range(200, 206):
        changed.add(observation(False, number=number, joined="b", is_new=number == 200))
    assert changed.class_evidence.is_obsolete("a")
    assert changed.error_model.error_probability(features, "other") == pytest.approx(before, rel=0.2)
    # One wrong answer among right ones is a mistake.
    mistaken.add(observation(False, number=200, joined="b"))
    assert mistaken.error_model.error_probability(features, "a") == pytest.approx(before)
    for number in range(201, 206):
        mistaken.add(observation(number=number))
    assert mistaken.error_model.error_probability(features, "a") > before


def test_the_nearest_question_of_a_succeeded_class_counts_as_near() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    learner.class_evidence.successors["old"] = "new"
    estimate = learner.estimate(
        "q", [Neighbour("q", 0.95, "old"), Neighbour("r", 0.9, "old"), Neighbour("s", 0.5, "new")]
    )
    assert estimate is not None
    assert (estimate.index, estimate.similarity) == (2, 0.95)


def test_checked_may_serve_within_the_bound() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    for seen, wrong, error, allowed in ((0, 0, 0.5 / 50, True), (50, 1, 1.5 / 100, True), (50, 2, 2.5 / 100, False)):
        learner.num_checked, learner.num_checked_wrong = seen, wrong
        assert learner.checked_error == pytest.approx(error)
        assert learner.may_serve_checked is allowed
    # Once the policy is ready, `checked` needs 30 comparisons and half of the allowed errors.
    learner.level.error_limit, learner.level.expected = 0.01, 8.0
    for seen, wrong, allowed in ((29, 0, False), (30, 0, True), (50, 1, False)):
        learner.num_checked, learner.num_checked_wrong = seen, wrong
        assert learner.may_serve_checked is allowed
    # In a new namespace, it may also use the allowance of `learned`.
    learner = Learner.new(ErrorModelPrior(), 0.02)
    learner.level.risk = 1e6
    for observed, allowed in ((49, True), (50, False)):
        learner.num_comparisons = observed
        assert learner.may_serve_checked is allowed


def test_checked_returns_after_it_has_proved_itself_while_suspended() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    learner.add(observation(right=False, checked=True, number=1))
    learner.add(observation(checked=True, number=2))
    assert not learner.may_serve_checked
    for number in range(3, 60):
        learner.add(observation(checked=True, number=number))
    assert learner.may_serve_checked


def test_questions_of_an_obsolete_class_say_nothing_about_the_score_of_other_classes() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    for number in range(200):
        learner.add(observation(number=number, joined="a"))
    counts = learner.level.wrong, learner.level.expected
    for number in range(200, 230):
        # The nearest neighbours have an obsolete class, so an answer of another class seemed wrong with 50%.
        learner.add(replace(observation(False, number=number, joined="b"), error=0.51))
    learner.add(observation(number=230, joined="a"))
    assert learner.level.wrong == pytest.approx(counts[0], rel=0.01)
    assert learner.level.expected == pytest.approx(counts[1], abs=0.2)


def test_hits_of_checked_are_charged_its_present_error() -> None:
    learner = Learner.new(ErrorModelPrior(), 0.02)
    learner.add(observation(served=450, served_by_checked=450))
    for _ in range(60):
        learner.add(observation())
    assert not learner.may_serve_checked, "the allowance is spent"
    for _ in range(200):
        learner.add(observation(checked=True))
    assert learner.may_serve_checked
    again = Learner.from_json(learner.to_json(), 0.02)
    assert again is not None
    assert again.level.total_risk == learner.level.total_risk > 0


def test_a_saved_state_keeps_its_level() -> None:
    learner, generator = Learner.new(ErrorModelPrior(), 0.1), random.Random(1)
    for number in range(400):
        learner.add(observation(right=generator.random() > generator.uniform(0.0, 0.1) / 50, number=number))
    learner.level.update()
    taught = Learner.from_json(learner.to_json(), 0.1)
    assert taught is not None
    # Each observation moves the level.
    for each in (taught, learner):
        each.add(observation(number=400))
        each.level.update()
    state = learner.to_json()
    again, stricter = Learner.from_json(state, 0.1), Learner.from_json(state, 0.01)
    assert again is not None
    assert stricter is not None
    for each in (taught, again):
        assert each.level.error_limit == learner.level.error_limit
        assert each.level.error_factor == learner.level.error_factor
    assert again.last_number == 400
    assert 0 <= stricter.level.error_limit < learner.level.error_limit
    for changed in (('"margin"', '"another"'), ('"version": 10', '"version": 9')):
        assert Learner.from_json(state.replace(*changed), 0.1) is None
