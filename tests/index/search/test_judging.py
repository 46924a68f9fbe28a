"""What a lookup makes of a policy's ruling: what is served, what is explored, and what a fresh answer would teach."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Noted, Ruling
from kvproxy.index.search.lookup import Lookup, judge
from kvproxy.index.store import SqliteStore
from tests.index.entries import make_entry


class RequestRule:
    """A policy with the ruling that a test gives it; what it was asked is noted."""

    name = "request_rule"
    reach = 5
    floor = 0.0
    learns = None

    def __init__(self, ruling: Ruling) -> None:
        self.ruling = ruling
        self.asked: list[str] = []

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> Ruling:
        self.asked = [neighbour.prompt for neighbour in neighbours]
        return self.ruling


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    store = SqliteStore(tmp_path / "r.db")
    for name in "abc":
        store.put(make_entry(f"what is {name}", id=name))
    store.put(make_entry("what is old", id="old", expires=1.0))
    store.put(make_entry("what is theirs", id="theirs", namespace="other"))
    return store


def looked_up(
    store: SqliteStore, ruling: Ruling, chance: float | None = None, near: str = "a b c"
) -> tuple[Lookup, RequestRule]:
    policy = RequestRule(ruling)
    heads = store.questions(near.split())
    places = [(heads[id], 0.9 - 0.1 * place) for place, id in enumerate(near.split()) if id in heads]
    draw = None if chance is None else lambda: chance
    return judge(store, None, policy, "n", "what is it", places, Limits(), draw), policy


ACCEPTED = Ruling([Decision("passed over"), Decision("accepted", score=0.9), Decision("passed over")], 1, chance=0.3)


@pytest.mark.parametrize(("drawn", "explored"), [(0.0, True), (0.29, True), (0.3, False), (0.99, False), (None, False)])
def test_as_large_a_share_is_explored_as_the_policy_says(
    store: SqliteStore, drawn: float | None, explored: bool
) -> None:
    found, _ = looked_up(store, ACCEPTED, drawn)
    assert found.chosen is not None
    assert (found.chosen.id, found.chosen.verdict) == ("b", "explored" if explored else "accepted")
    assert (found.entry is None) is explored
    assert found.outcome == ("explored" if explored else "accepted")
    assert found.similarity == (None if explored else pytest.approx(0.8))
    # The comparison counts as much as it was unlikely, whatever was drawn.
    assert found.judged is not None
    assert (found.judged.accepted, found.judged.chance, found.judged.candidate.id) == (True, 0.3, "b")


def test_without_a_note_the_neighbour_that_came_closest_is_compared(store: SqliteStore) -> None:
    decisions = [Decision("below level", score=0.2), Decision("below level", score=0.7), Decision("vetoed", "names")]
    found, _ = looked_up(store, Ruling(decisions, None), 0.0)
    assert found.judged is not None
    assert (found.judged.candidate.id, found.judged.accepted, found.judged.chance) == ("b", False, 1.0)
    assert found.judged.noted == Noted(1, None, 0.0, 0.0)
    assert found.outcome == "below level"
    nothing, _ = looked_up(store, Ruling([Decision("vetoed", "names")] * 3, None), 0.0)
    assert nothing.judged is None
    assert nothing.outcome == "vetoed"


def test_what_the_policy_notes_is_compared(store: SqliteStore) -> None:
    noted = Noted(2, (1.0,), 0.1, 0.1)
    found, _ = looked_up(store, Ruling([Decision("passed over")] * 3, None, 0.0, noted), 0.0)
    assert found.judged is not None
    assert (found.judged.candidate.id, found.judged.noted) == ("c", noted)
    assert found.outcome == "no neighbour"


def test_what_is_expired_or_of_another_namespace_is_not_put_before_the_policy(store: SqliteStore) -> None:
    found, policy = looked_up(store, Ruling([Decision("accepted", score=1.0)], 0), near="old theirs gone a")
    assert policy.asked == ["what is a"]
    assert [(each.id, each.verdict) for each in found.candidates] == [("old", "expired"), ("a", "accepted")]
    assert found.entry is not None
    assert found.entry.id == "a"


def test_an_entry_that_goes_meanwhile_is_not_served(store: SqliteStore) -> None:
    class DeferredEntry(RequestRule):
        def decide(
            self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
        ) -> Ruling:
            store.delete(["b"])
            return self.ruling

    heads = store.questions(["a", "b", "c"])
    near = [(heads["a"], 0.9), (heads["b"], 0.8), (heads["c"], 0.7)]
    found = judge(store, None, DeferredEntry(ACCEPTED), "n", "q", near, Limits(), None)
    assert found.entry is None
    assert found.similarity is None
