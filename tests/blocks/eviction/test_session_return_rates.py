"""Return rates: LRU without measurements, and classes ranked by their measured pauses."""

from kvproxy.blocks.eviction.session_policy import ReturnRates

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
    indexes = [rates.index(TOOL, age) for age in (0, 1, 5, 60, 900, 7_200)]
    assert indexes == sorted(indexes, reverse=True)
    assert rates.index(LEFT, 60) < rates.index(TOOL, 600)


def test_a_class_that_returns_later_is_less_useful() -> None:
    rates = measured({TOOL: 10.0, USER: 600.0})
    assert rates.index(USER, 1) < rates.index(TOOL, 5)
    # After a minute, a tool's session is unlikely to return, and a person's session still returns.
    assert rates.index(TOOL, 100) < rates.index(USER, 300)


def test_the_index_looks_ahead_to_the_typical_pause() -> None:
    rates = measured({USER: 100.0})
    assert rates.index(USER, 70) > rates.index(USER, 0) > rates.index(USER, 1_000)


def test_a_class_without_measurements_has_the_rates_of_the_larger_class() -> None:
    rates = measured({("tool", "<16"): 100.0})
    assert rates.index(("tool", "longer"), 70) == rates.index(("tool", "first"), 70)
    assert rates.index(("tool", "longer"), 70) > ReturnRates({}).index(("tool", "longer"), 70)


def test_pauses_that_continue_lower_the_rates() -> None:
    rates = measured({TOOL: 10.0})
    before = rates.index(TOOL, 500)
    rates.update([(TOOL, 5_000.0)] * 100)
    assert rates.index(TOOL, 500) < before


def test_recent_pauses_count_more() -> None:
    rates = measured({TOOL: 1_000.0}, 20_000)
    for _ in range(20_000):
        rates.record(TOOL, 1.0, returned=True)
    rates.update([])
    assert rates.index(TOOL, 0) > 0.3
