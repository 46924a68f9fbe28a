"""Which answers are compared, and what follows."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.learned.answer_classes import assign_class, comparison_order, digest
from kvproxy.index.policies.learned.error_model import FEATURES, compute_features

CLASSES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=12)


@given(CLASSES, st.integers(0, 11))
def test_the_judged_one_comes_first_then_its_class_then_the_nearest_of_others(classes: list[str], judged: int) -> None:
    judged %= len(classes)
    places = comparison_order(judged, classes)
    own = [place for place in places if classes[place] == classes[judged]]
    others = [place for place in places if classes[place] != classes[judged]]
    assert places == own + others
    assert places[0] == judged
    assert len(own) == min(2, classes.count(classes[judged]))
    assert len(others) == min(2, len(set(classes)) - 1)
    assert all(classes.index(classes[place]) == place for place in others)
    assert len(set(places)) == len(places)


@given(CLASSES, st.sampled_from("abcde"))
def test_a_fresh_answer_joins_the_class_that_it_is_found_to_be_of(classes: list[str], truth: str) -> None:
    places, found = comparison_order(0, classes), list[bool]()
    for place in places:
        found.append(classes[place] == truth)
        if found[-1]:
            break
    settled = assign_class(places, found, classes)
    assert settled.right == (classes[0] == truth)
    assert settled.joined in (truth, None)
    assert not settled.odd


def test_an_entry_that_differs_from_its_own_class_is_odd() -> None:
    assert assign_class([0, 1, 2], [False, True], ["a", "a", "b"]).odd
    assert assign_class([0, 1, 2], [False, True], ["a", "a", "b"]).joined == "a"
    assert not assign_class([0, 2], [False, True], ["a", "a", "b"]).odd


def test_a_digest_knows_words_only() -> None:
    assert digest("It's **so**.") == digest("it s SO")
    assert digest("2 apples") != digest("3 apples")


@given(st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("abc")), min_size=1, max_size=24))
def test_evidence_is_finite_and_better_the_more_neighbours_agree(near: list[tuple[float, str]]) -> None:
    near = sorted(near, key=lambda each: -each[0])
    cosines, classes = [cosine for cosine, _ in near], [name for _, name in near]
    mixed, agreed = compute_features(cosines, classes), compute_features(cosines, [classes[0]] * len(near))
    for feature in ("margin", "rivals", "votes", "company"):
        place = FEATURES.index(feature)
        assert -20 < mixed[place] <= agreed[place] < 20
