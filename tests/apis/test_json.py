import tracemalloc

from kvproxy.apis.json import dumps


def test_integers_may_exceed_64_bits() -> None:
    assert dumps({"b": 2**70, "a": 1}, sort_keys=True) == b'{"a":1,"b":1180591620717411303424}'


def test_a_result_has_no_larger_buffer_than_it_needs() -> None:
    tracemalloc.start()
    results = [dumps({"role": "user", "content": str(number)}) for number in range(100)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 200 * len(results)
