"""A chunk is read completely, or not at all."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.tiers.chunk_format import ALIGNMENT, ChunkName, payload_offset, read_payload, write_header

names = st.builds(
    ChunkName,
    st.binary(min_size=32, max_size=32),
    st.sampled_from([16, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
)


def encode(name: ChunkName, payload: bytes) -> bytearray:
    buffer = bytearray(payload_offset(name)) + payload
    write_header(memoryview(buffer), name)
    return buffer


@given(names, st.binary(max_size=200))
def test_a_payload_round_trips(name: ChunkName, payload: bytes) -> None:
    assert payload_offset(name) % ALIGNMENT == 0
    assert read_payload(encode(name, payload), name) == payload


@given(names, st.binary(max_size=200), st.data())
def test_any_flipped_bit_is_detected(name: ChunkName, payload: bytes, data: st.DataObject) -> None:
    buffer = encode(name, payload)
    at = data.draw(st.integers(0, len(buffer) - 1))
    buffer[at] ^= 1 << data.draw(st.integers(0, 7))
    assert read_payload(buffer, name) is None


@given(names, st.binary(max_size=200), st.data())
def test_any_other_length_is_detected(name: ChunkName, payload: bytes, data: st.DataObject) -> None:
    buffer = encode(name, payload)
    assert read_payload(buffer[: data.draw(st.integers(0, len(buffer) - 1))], name) is None
    assert read_payload(buffer + data.draw(st.binary(min_size=1, max_size=70)), name) is None


@given(names, names, st.binary(max_size=50))
def test_a_chunk_serves_its_own_name_only(name: ChunkName, other: ChunkName, payload: bytes) -> None:
    buffer = encode(name, payload)
    for wrong in (
        replace(name, fingerprint=other.fingerprint),
        replace(name, digest=other.digest),
        replace(name, tokens=other.tokens),
    ):
        if wrong != name:
            assert read_payload(buffer, wrong) is None
