"""Files on the shelf, against a model: what is of use, within a size, also after the proxy has started again."""

import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.encryption import Cipher
from kvproxy.upstreams.llama.packed_tokens import pack
from kvproxy.upstreams.llama.slot_files import Shelf

URL = "http://127.0.0.1:8080"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "touch", "pin", "unpin", "evict", "reopen"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=4),
        st.integers(1, 9),
        st.sampled_from(["one", "two"]),
    ),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_a_shelf_is_what_a_plain_list_is(steps: list[tuple[str, list[int], int, str]]) -> None:
    ticks = itertools.count(1)
    clock = lambda: float(next(ticks))  # noqa: E731
    model: list[tuple[str, tuple[int, ...], int]] = []  # the least recently used first
    pins: dict[str, tuple[str, tuple[int, ...]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder) / "slots.db", URL, clock)
        for what, tokens, size, identity in steps:
            key = tuple(tokens)
            file = next((each for each in shelf.of(identity) if each.tokens == pack(tokens)), None)
            match what:
                case "save":
                    shelf.end(shelf.begin(identity), identity, pack(tokens), len(tokens), size)
                    gone = [each for each in model if each[0] == identity and key[: len(each[1])] == each[1]]
                    model = [each for each in model if each not in gone] + [(identity, key, size)]
                    for name, pinned in list(pins.items()):
                        if pinned in [each[:2] for each in gone]:
                            pins[name] = (identity, key)
                case "touch" if file is not None:
                    shelf.touch(file.name)
                    model.sort(key=lambda each: each[:2] == (identity, key))
                case "pin" if file is not None:
                    shelf.pin("p", file.name, None)
                    pins["p"] = (identity, key)
                case "unpin":
                    assert shelf.unpin("p") == (pins.pop("p", None) is not None)
                case "evict":
                    shelf.evict(size * 2)
                    for each in list(model):
                        if sum(one[2] for one in model) > size * 2 and each[:2] not in pins.values():
                            model.remove(each)
                case "reopen":
                    shelf.close()
                    shelf = Shelf(Path(folder) / "slots.db", URL, clock)
            for name in ("one", "two"):
                expected = [pack(each[1]) for each in reversed(model) if each[0] == name]
                assert [each.tokens for each in shelf.of(name)] == expected
            assert [pin.name for pin in shelf.pins()] == list(pins)
        shelf.close()


def test_names_are_used_again_and_never_for_another_model(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "slots.db", URL)
    first = shelf.begin("one")
    assert shelf.begin("one") != first
    shelf.end(first, "one", pack([1]), 1, 10)
    shelf.drop(first)
    assert shelf.size == 10
    assert shelf.begin("two") != first
    assert shelf.begin("one") == first
    # It is being written, and is nobody else's.
    assert shelf.begin("one") != first
    shelf.close()


def test_pins_run_out(tmp_path: Path) -> None:
    now = [0.0]
    shelf = Shelf(tmp_path / "slots.db", URL, lambda: now[0])
    name = shelf.begin("one")
    shelf.end(name, "one", pack([1]), 1, 10)
    shelf.pin("p", name, 5.0)
    shelf.evict(0)
    assert [file.name for file in shelf.of("one")] == [name]
    now[0] = 6.0
    assert shelf.pins() == []
    shelf.evict(0)
    assert shelf.of("one") == []
    shelf.close()


def test_prefixes_are_encrypted_where_there_is_a_key(tmp_path: Path) -> None:
    path, secret = tmp_path / "slots.db", pack([77_777] * 20)

    def opened(*keys: bytes) -> Shelf:
        return Shelf(path, URL, cipher=Cipher(keys) if keys else None)

    shelf = opened(b"1" * 32)
    name = shelf.begin("one")
    shelf.end(name, "one", secret, 20, 10)
    shelf.close()
    assert secret not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    for keys, found in (((b"1" * 32,), [secret]), ((b"2" * 32, b"1" * 32), [secret]), ((b"2" * 32,), [])):
        shelf = opened(*keys)
        assert [file.tokens for file in shelf.of("one")] == found
        shelf.close()
