"""What a lookup makes of a policy's ruling: what is served, what is explored, and what a fresh answer would teach."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvproxy.index.policies.policy import Decision, LearningRecord, Limits, Neighbour, Ruling
from kvproxy.index.search.decider import Decider
from kvproxy.index.search.lookup import Lookup, LookupRequest
from kvproxy.index.search.neighbours import FaissNeighbours
from kvproxy.index.store import SqliteStore
from tests.index.entries import make_entry


class FixedPolicy:
    """A policy with the ruling that a test gives it; what it was asked is noted."""

    name = "ruled"
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
) -> tuple[Lookup, FixedPolicy]:
    policy = FixedPolicy(ruling)
    heads = store.questions(near.split())
    places = [(heads[id], 0.9 - 0.1 * place) for place, id in enumerate(near.split()) if id in heads]
    return decider(store, chance or 0.0).judge(
        LookupRequest("n", "what is it", explore=chance is not None), places, policy
    ), policy


def decider(store: SqliteStore, chance: float) -> Decider:
    policy = FixedPolicy(Ruling([], None))
    return Decider(store, FaissNeighbours(store, "e", 2), None, policy, None, lambda: chance)


ACCEPTED = Ruling([Decision("not compared"), Decision("accepted", score=0.9), Decision("not compared")], 1, chance=0.3)


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
    assert found.observation is not None
    assert (found.observation.accepted, found.observation.chance, found.observation.candidate.id) == (True, 0.3, "b")


def test_without_a_note_the_neighbour_that_came_closest_is_compared(store: SqliteStore) -> None:
    decisions = [
        Decision("low probability", score=0.2),
        Decision("low probability", score=0.7),
        Decision("vetoed", "names"),
    ]
    found, _ = looked_up(store, Ruling(decisions, None), 0.0)
    assert found.observation is not None
    assert (found.observation.candidate.id, found.observation.accepted, found.observation.chance) == ("b", False, 1.0)
    assert found.observation.record == LearningRecord(1, None, 0.0, 0.0)
    assert found.outcome == "low probability"
    nothing, _ = looked_up(store, Ruling([Decision("vetoed", "names")] * 3, None), 0.0)
    assert nothing.observation is None
    assert nothing.outcome == "vetoed"


def test_what_the_policy_notes_is_compared(store: SqliteStore) -> None:
    noted = LearningRecord(2, (1.0,), 0.1, 0.1)
    found, _ = looked_up(store, Ruling([Decision("not compared")] * 3, None, 0.0, noted), 0.0)
    assert found.observation is not None
    assert (found.observation.candidate.id, found.observation.record) == ("c", noted)
    assert found.outcome == "no neighbour"


def test_what_is_expired_or_of_another_namespace_is_not_put_before_the_policy(store: SqliteStore) -> None:
    found, policy = looked_up(store, Ruling([Decision("accepted", score=1.0)], 0), near="old theirs gone a")
    assert policy.asked == ["what is a"]
    assert [(each.id, each.verdict) for each in found.candidates] == [("old", "expired"), ("a", "accepted")]
    assert found.entry is not None
    assert found.entry.id == "a"


def test_an_entry_that_goes_meanwhile_is_not_served(store: SqliteStore) -> None:
    class Removing(FixedPolicy):
        def decide(
            self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
        ) -> Ruling:
            store.delete(["b"])
            return self.ruling

    heads = store.questions(["a", "b", "c"])
    near = [(heads["a"], 0.9), (heads["b"], 0.8), (heads["c"], 0.7)]
    found = decider(store, 0.0).judge(LookupRequest("n", "q", explore=False), near, Removing(ACCEPTED))
    assert found.entry is None
    assert found.similarity is None
