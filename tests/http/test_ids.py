"""Ids are read many at a time; no two are alike, whoever asks."""

from concurrent.futures import ThreadPoolExecutor

from kvproxy.ids import Ids


def test_no_two_ids_are_alike() -> None:
    ids = Ids()
    with ThreadPoolExecutor(4) as pool:
        made = [id for some in pool.map(lambda _: [ids.new() for _ in range(1000)], range(4)) for id in some]
    made += [Ids().new() for _ in range(10)]
    assert len({*made}) == 4010
    assert {len(id) for id in made} == {32}
    assert {*"".join(made)} == {*"0123456789abcdef"}
