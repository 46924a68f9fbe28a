"""Session-aware eviction: LRU without knowledge of sessions, and earlier eviction of blocks that rarely return."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.blocks.eviction import LRU
from kvproxy.blocks.eviction.session_policy import CacheUse, ReturnRates, SessionPolicy


@given(st.lists(st.integers(0, 9), max_size=60))
def test_the_order_is_lru_without_uses(keys: list[int]) -> None:
    policy, lru = SessionPolicy[int](8), LRU(8)
    idle: set[int] = set()
    for key in keys:
        if key == 9 and idle:
            evicted = policy.pop()
            assert evicted == lru.pop()
            idle.discard(evicted)
            continue
        for each in (policy, lru):
            if key in idle:
                each.remove(key)
            each.add(key)
        idle.add(key)


class Traffic:
    """Requests of a policy, one at a time and a minute apart."""

    def __init__(self) -> None:
        self.policy = SessionPolicy[str](1_000)
        self.idle: set[str] = set()
        self.seconds = 0.0

    def send(
        self, chain: str, client: str = "ann", seconds: float = 60.0, *, awaits_user: bool = False, response: str = ""
    ) -> None:
        """Send a prompt, whose blocks are the prefixes of a string."""
        self.seconds += seconds
        blocks = [chain[: end + 1] for end in range(len(chain))]
        for block in blocks:
            if block in self.idle:
                self.policy.remove(block)
        self.policy.begin(blocks, CacheUse(self.seconds, client, awaits_user))
        blocks = [*blocks, *(chain + response[: end + 1] for end in range(len(response)))]
        self.policy.end(blocks, CacheUse(self.seconds, client, awaits_user))
        for block in reversed(blocks):
            self.policy.add(block)
        self.idle |= set(blocks)

    def evict(self, count: int) -> list[str]:
        evicted = [self.policy.pop() for _ in range(count)]
        self.idle -= set(evicted)
        return evicted


def test_blocks_that_a_session_dropped_are_evicted_first() -> None:
    traffic = Traffic()
    traffic.send("qqqq", "bob")
    traffic.send("abcd")
    traffic.send("abcxyz")
    assert traffic.evict(2) == ["abcd", "qqqq"]
    traffic = Traffic()
    traffic.send("qqqq", "bob")
    # The client sends another response back.
    traffic.send("abc", response="d")
    traffic.send("abcx")
    assert traffic.evict(2) == ["abcd", "qqqq"]


def test_requests_that_never_finish_leave_nothing_behind() -> None:
    policy = SessionPolicy[int](10)
    for number in range(1_000):
        policy.begin(range(10 * number, 10 * number + 10), CacheUse(float(number)))
        # Prompts without blocks of their own.
        policy.begin(range(3), CacheUse(float(number)))
        policy.begin((), CacheUse(float(number)))
    assert len(policy._sessions) <= 50


def test_sessions_that_clients_left_are_evicted_before_older_ones() -> None:
    traffic = Traffic()
    traffic.send("qqqq", "bob")
    for start in "abcdef":
        traffic.send(start + "123")
    evicted = traffic.evict(5 * 4)
    assert [block for block in evicted if len(block) == 4] == ["a123", "b123", "c123", "d123", "e123"]
    assert traffic.evict(1) == ["qqqq"]


def test_clients_who_return_keep_the_order_lru() -> None:
    traffic = Traffic()
    traffic.send("qqqq", "bob")
    for start in "ababababab":
        traffic.send(start + "123")
    traffic.send("c123")
    assert traffic.evict(5) == ["qqqq", "qqq", "qq", "q", "a123"]


def test_a_session_whose_user_must_answer_counts_as_older() -> None:
    traffic = Traffic()
    for length in range(1, 13):
        traffic.send("u" * length, "bob", 600.0, awaits_user=True)
        for turn in (2, 1, 0):
            traffic.send("t" * (3 * length - turn), "ann", 1.0)
    traffic.send("u" * 14, "bob", 1.0, awaits_user=True)
    assert traffic.evict(1) == ["u" * 14]


def test_a_shared_beginning_outlives_the_sessions_that_clients_left() -> None:
    traffic = Traffic()
    for start in "abcdef":
        traffic.send("s" + start)
    assert "s" not in traffic.evict(6)
    assert traffic.evict(1) == ["s"]


TOOL, USER, LEFT = ("tool",), ("user",), ("left",)


def measured(pauses: dict[tuple[str, ...], float], count: int = 50) -> ReturnRates:
    rates = ReturnRates({})
    for _ in range(count):
        for pause, seconds in pauses.items():
            rates.record(pause, seconds, returned=True)
    rates.update([])
    return rates


def test_an_older_block_is_less_useful_without_measurements() -> None:
    rates = ReturnRates({"left": 0.05})
    indexes = [rates.gittins_index(TOOL, age) for age in (0, 1, 5, 60, 900, 7_200)]
    assert indexes == sorted(indexes, reverse=True)
    assert rates.gittins_index(LEFT, 60) < rates.gittins_index(TOOL, 600)


def test_a_class_that_returns_later_is_less_useful() -> None:
    rates = measured({TOOL: 10.0, USER: 600.0})
    assert rates.gittins_index(USER, 1) < rates.gittins_index(TOOL, 5)
    # After a minute, a tool's session is unlikely to return, and a person's session still returns.
    assert rates.gittins_index(TOOL, 100) < rates.gittins_index(USER, 300)


def test_the_index_looks_ahead_to_the_typical_pause() -> None:
    rates = measured({USER: 100.0})
    assert rates.gittins_index(USER, 70) > rates.gittins_index(USER, 0) > rates.gittins_index(USER, 1_000)


def test_a_class_without_measurements_has_the_rates_of_the_larger_class() -> None:
    rates = measured({("tool", "<16"): 100.0})
    assert rates.gittins_index(("tool", "longer"), 70) == rates.gittins_index(("tool", "first"), 70)
    assert rates.gittins_index(("tool", "longer"), 70) > ReturnRates({}).gittins_index(("tool", "longer"), 70)


def test_pauses_that_continue_lower_the_rates() -> None:
    rates = measured({TOOL: 10.0})
    before = rates.gittins_index(TOOL, 500)
    rates.update([(TOOL, 5_000.0)] * 100)
    assert rates.gittins_index(TOOL, 500) < before


def test_recent_pauses_count_more() -> None:
    rates = measured({TOOL: 1_000.0}, 20_000)
    for _ in range(20_000):
        rates.record(TOOL, 1.0, returned=True)
    rates.update([])
    assert rates.gittins_index(TOOL, 0) > 0.3
