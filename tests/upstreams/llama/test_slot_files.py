"""Slot files against a model, across restarts of the proxy."""

import itertools
import tempfile
from array import array
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.privacy.encryption import Cipher
from kvproxy.upstreams.llama.slot_files import SlotFiles

URL = "http://127.0.0.1:8080"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "touch", "evict", "reopen"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=4),
        st.integers(1, 9),
        st.sampled_from(["one", "two"]),
    ),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=25, deadline=None)
def test_slot_files_behave_like_a_list(steps: list[tuple[str, list[int], int, str]]) -> None:
    ticks = itertools.count(1)
    clock = lambda: float(next(ticks))  # noqa: E731
    model: list[tuple[str, tuple[int, ...], int]] = []  # the least recently used first
    with tempfile.TemporaryDirectory() as folder:
        files = SlotFiles(Path(folder) / "slots.db", URL, clock)
        for what, tokens, size, identity in steps:
            key = tuple(tokens)
            file = next((each for each in files.list_restorable(identity) if each.tokens == array("i", tokens)), None)
            match what:
                case "save":
                    files.commit(files.allocate_name(identity), identity, array("i", tokens), len(tokens), size)
                    gone = [each for each in model if each[0] == identity and key[: len(each[1])] == each[1]]
                    model = [each for each in model if each not in gone] + [(identity, key, size)]
                case "touch" if file is not None:
                    files.touch(file.name)
                    model.sort(key=lambda each: each[:2] == (identity, key))
                case "evict":
                    files.evict(size * 2)
                    for each in list(model):
                        if sum(one[2] for one in model) > size * 2:
                            model.remove(each)
                case "reopen":
                    files.close()
                    files = SlotFiles(Path(folder) / "slots.db", URL, clock)
            for name in ("one", "two"):
                expected = [array("i", each[1]) for each in reversed(model) if each[0] == name]
                assert [each.tokens for each in files.list_restorable(name)] == expected
        files.close()


def test_prefixes_are_encrypted_with_a_key(tmp_path: Path) -> None:
    path, secret = tmp_path / "slots.db", array("i", [77_777] * 20)

    def opened(*keys: bytes) -> SlotFiles:
        return SlotFiles(path, URL, cipher=Cipher(keys) if keys else None)

    files = opened(b"1" * 32)
    name = files.allocate_name("one")
    files.commit(name, "one", secret, 20, 10)
    files.close()
    assert secret.tobytes() not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    for keys, found in (((b"1" * 32,), [secret]), ((b"2" * 32, b"1" * 32), [secret]), ((b"2" * 32,), [])):
        files = opened(*keys)
        assert [file.tokens for file in files.list_restorable("one")] == found
        files.close()
