"""Observations in SQLite and PostgreSQL agree with a list."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproxy.index.store import open_observations
from kvproxy.index.store.observations import Observation, Observations
from tests.postgres_server import empty
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
    st.integers(0, 5),
    st.lists(st.sampled_from("xyz"), max_size=2).map(tuple),
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=2).map(tuple),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 5)), max_size=2).map(tuple),
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
    for number, step in enumerate(steps):
        if isinstance(step, int):
            assert durable.prune(step) == model.prune(step)
        elif isinstance(step, tuple):
            for log in (model, durable):
                log.save_snapshot(*step, f"state {number}")
        else:
            model.add(step)
            durable.add(step)
    durable.close()
    again = open_(again=True)
    for namespace in ("n", "m", "other"):
        assert again.list_since(namespace, 0, 1000) == model.list_since(namespace, 0, 1000)
        assert again.list_since(namespace, 3, 2) == model.list_since(namespace, 3, 2)
        assert again.snapshot(namespace) == model.snapshot(namespace)
        assert again.last_pruned_number(namespace) == model.last_pruned_number(namespace)
    assert again.rejected_entries(["a", "b", "c", "d"]) == model.rejected_entries(["a", "b", "c", "d"])
    assert again.summary() == model.summary()
    again.close()
