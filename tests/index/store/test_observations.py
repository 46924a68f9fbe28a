"""Observations in SQLite and PostgreSQL agree with a list."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.observations import Observation, Observations
from kvproxy.index.store.opening import open_observations
from tests.index.conftest import empty
from tests.reference.memory_observations import MemoryObservations

OBSERVATION = st.builds(
    Observation,
    st.sampled_from("abc"),
    st.booleans(),
    st.sampled_from(["answer", "user", "served"]),
    st.booleans(),
    st.just(1.0),
    st.sampled_from(["n", "m"]),
    st.sampled_from(["", "x"]),
    st.one_of(st.none(), st.lists(st.floats(-3, 3), max_size=3).map(tuple)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.floats(0.01, 1),
    st.lists(st.sampled_from(["names", "numbers"]), max_size=2).map(tuple),
    st.sampled_from(["", "x"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
    st.floats(0, 1),
)
# Add observations, save a snapshot of a namespace, or prune.
SAVES = st.tuples(st.sampled_from(["n", "m"]), st.integers(0, 30))
STEPS = st.lists(st.one_of(st.lists(OBSERVATION, max_size=8), SAVES, st.integers(0, 12)), max_size=10)
Steps = list[list[Observation] | tuple[str, int] | int]


Open = Callable[..., Observations]


@pytest.fixture(params=["sqlite", "postgres"])
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens empty observations, or the last ones with `again=True`."""
    names = itertools.count()
    last = ""

    def make(*, again: bool = False) -> Observations:
        nonlocal last
        if request.param == "postgres":
            last = request.getfixturevalue("postgres")
            if not again:
                empty(last)
        elif not again:
            last = str(tmp_path / f"{next(names)}.db")
        return open_observations(last)

    return make


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_observations_agree_with_a_list(open_: Open, steps: Steps) -> None:
    model, durable = MemoryObservations(), open_()
    for step in steps:
        if isinstance(step, int):
            assert durable.prune(step) == model.prune(step)
        elif isinstance(step, tuple):
            for log in (model, durable):
                log.save(*step, "state")
        else:
            model.add(step)
            durable.add(step)
    durable.close()
    again = open_(again=True)
    for namespace in ("n", "m", "other"):
        assert again.since(namespace, 0, 1000) == model.since(namespace, 0, 1000)
        assert again.since(namespace, 3, 2) == model.since(namespace, 3, 2)
        assert again.pruned(namespace) == model.pruned(namespace)
    assert again.rejected(["a", "b", "c", "d"]) == model.rejected(["a", "b", "c", "d"])
    assert again.summary() == model.summary()
    again.close()


def test_prune_deletes_comparisons_and_keeps_verdicts(open_: Open) -> None:
    observations = open_()
    observations.add([Observation.verdict("a", right=False)])
    observations.add([Observation("b", True, "answer", False, 1.0, "n")] * 150)
    assert observations.prune(30) == 120  # The namespace has no snapshot.
    assert len(observations.since("n", 0, 1000)) == 30
    assert observations.rejected(["a", "b"]) == {"a"}
    observations.add([Observation.verdict("a", right=True)])
    assert observations.rejected(["a", "b"]) == set()
    observations.close()


def test_prune_keeps_the_totals_of_what_snapshots_include(open_: Open) -> None:
    observations = open_()
    observations.add([Observation("b", False, "answer", True, 1.0, name) for name in "nmnm" * 50])
    observations.save("n", 150, "state")
    observations.save("m", 0, "state")
    before = observations.summary()
    assert observations.prune(0) == 75
    assert observations.prune(0) == 0
    assert (observations.pruned("n"), observations.pruned("m")) == (150, 0)
    assert [seen.number for seen in observations.since("n", 0, 1000)] == list(range(151, 200, 2))
    assert len(observations.since("m", 0, 1000)) == 100
    assert observations.summary() == before
    assert before["accepted_wrong"] == 200
    # Numbers are never reused.
    observations.save("m", 200, "state")
    observations.prune(0)
    observations.add([Observation("b", True, "answer", True, 1.0, "m")])
    assert [seen.number for seen in observations.since("m", 200, 10)] == [201]
    observations.close()


def test_an_earlier_snapshot_never_replaces_a_later_one(open_: Open) -> None:
    observations = open_()
    assert observations.snapshot("n") is None
    observations.save("n", 7, "seven")
    observations.save("n", 5, "five")
    assert observations.snapshot("n") == "seven"
    observations.save("n", 7, "seven again")
    assert observations.snapshot("n") == "seven again"
    observations.close()


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "r.db").write_bytes(b"nonsense " * 500)
    with pytest.raises(CacheStoreError, match="damaged"):
        open_observations(tmp_path / "r.db")
