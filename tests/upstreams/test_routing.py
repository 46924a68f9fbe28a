"""Consistent hashing, choice of engines, load and health."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.errors import UpstreamTimeout
from kvproxy.settings import UpstreamServer, UpstreamSettings
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.health import Health
from kvproxy.upstreams.routing import LOAD_SLACK, MISS_COST, EngineCandidate, engine_order, rank_engines

CLIENT = UpstreamClient(UpstreamServer(url="http://127.0.0.1:9"), UpstreamSettings())
names = st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=8, unique=True)


@settings(max_examples=40)
@given(names=names, keys=st.lists(st.binary(max_size=8), min_size=1, max_size=30))
def test_only_the_keys_of_a_removed_engine_move(names: list[str], keys: list[bytes]) -> None:
    for key in keys:
        order = engine_order(dict.fromkeys(names, 1.0), key)
        assert sorted(order) == sorted(names)
        assert engine_order(dict.fromkeys(names[1:], 1.0), key) == [name for name in order if name != names[0]]


def test_keys_are_shared_by_weight() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    owners = Counter(engine_order(weights, str(number).encode())[0] for number in range(8000))
    assert 0.23 < owners["a"] / 8000 < 0.27
    assert 0.48 < owners["c"] / 8000 < 0.52


def test_the_longest_prefix_wins_up_to_a_load() -> None:
    def best(load: float) -> str:
        candidates = [EngineCandidate("a", 0, 0.0), EngineCandidate("b", 800, load), EngineCandidate("c", 400, 0.0)]
        return rank_engines(candidates, 1000)[0].name

    assert best(0.0) == "b"
    # Computed tokens cost more than waiting ones.
    assert best(MISS_COST * 400 - 1) == "b"
    assert best(MISS_COST * 400 + 1) == "c"


@settings(max_examples=40)
@given(loads=st.lists(st.integers(0, 10_000), min_size=2, max_size=6), tokens=st.integers(1, 2000))
def test_without_prefixes_the_load_is_bounded(loads: list[int], tokens: int) -> None:
    candidates = [EngineCandidate(str(number), None, load) for number, load in enumerate(loads)]
    ranked = rank_engines(candidates, tokens)
    most = LOAD_SLACK * (sum(loads) + tokens) / len(loads)
    assert ranked[0].load <= most
    # Above the limit, the next engine in the order of the keys is chosen.
    assert ranked == sorted(candidates, key=lambda each: each.load > most)


def test_ejection_needs_consecutive_failures_and_ends_with_a_success() -> None:
    health = Health(CLIENT, eject_after=2, timeout=1.0, interval=2.0)
    for outcome in ("yes", "no", "yes", "no"):
        health.record_failure("x") if outcome == "no" else health.record_success()
    assert health.available
    health.record_failure("gone")
    health.record_failure("gone")
    assert (health.state, health.ejections, health.error) == ("ejected", 1, "gone")
    health.record_success()
    assert health.state == "up"
    health.draining = True
    assert (health.state, health.available) == ("draining", False)


def test_an_engine_that_never_responded_is_ejected_at_once() -> None:
    health = Health(CLIENT, eject_after=3, timeout=1.0, interval=2.0)
    health.record_failure("nothing there")
    assert (health.state, health.ejections) == ("ejected", 1)
    health.record_success()
    health.record_failure("gone")
    assert health.available


def test_failed_requests_eject_for_a_time_that_doubles_until_a_success() -> None:
    now = 0.0
    health = Health(CLIENT, 2, 1.0, 2.0, lambda: now)
    health.record_success()
    seconds = []
    for _ in range(7):
        while not health.ejected:
            health.record_failed_request("HTTP 500")
        began = now
        while health.ejected:
            now += 1.0
        seconds.append(now - began)
    assert seconds == [10, 20, 40, 80, 160, 300, 300]
    assert health.ejections == 7
    health.record_success()
    health.record_failed_request("HTTP 500")
    assert (health.state, health.failures) == ("up", 1)


async def test_a_request_outweighs_a_probe_without_an_answer_but_not_one_that_was_refused() -> None:
    client = _Probed()
    health = Health(client, 2, 1.0, 2.0)
    for answer, state in ((200, "up"), (None, "up"), (503, "ejected"), (404, "up")):
        client.answer = answer
        for _ in range(3):
            await health.probe()
            health.record_success()
        assert health.state == state


async def test_a_restarted_server_is_not_ejected_for_the_requests_that_its_end_broke() -> None:
    client = _Probed()
    health = Health(client, 2, 1.0, 2.0)
    for answer in (200, None, None):
        client.answer = answer
        await health.probe()
        health.record_failed_request("cut")
    assert health.state == "ejected"
    client.answer = 200
    await health.probe()
    assert (health.state, health.error) == ("up", None)


class _Probed(UpstreamClient):
    """An upstream whose probe gets `answer`, or no response if it is None."""

    answer: int | None = 200

    def __init__(self) -> None:
        super().__init__(UpstreamServer(url="http://u"), UpstreamSettings())

    async def probe(self, path: str, *, seconds: float) -> int:
        if self.answer is None:
            raise UpstreamTimeout("too slow")
        return self.answer
