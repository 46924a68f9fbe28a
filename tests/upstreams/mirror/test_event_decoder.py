"""Any bytes are decoded to the declared types, or refused with EventDecodeError."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import (
    ClearedEvent,
    EventBatch,
    EventDecodeError,
    RemovedEvent,
    StoredEvent,
    UnknownEvent,
    decode_batch,
)
from kvproxy.upstreams.mirror.mirror import Mirror
from kvproxy.upstreams.mirror.pool_rows import find_blocks, list_chains, snapshot_pools
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=4),
    ),
    max_leaves=12,
)
names = st.sampled_from([7, -3, 2**64 - 1, b"name", b""])
fields: dict[str, st.SearchStrategy[Any]] = {
    "block_hashes": st.lists(names, min_size=2, max_size=2),
    "parent_block_hash": st.none() | names,
    "token_ids": st.lists(st.integers(0, 9), max_size=6),
    "block_size": st.integers(0, 3),
    "lora_id": st.none(),
    "medium": st.sampled_from([None, "GPU", "CPU"]),
    "lora_name": st.sampled_from([None, "adapter"]),
    "extra_keys": st.none()
    | st.lists(st.none() | st.lists(st.sampled_from(["salt", ["image", -2], b"x"])), min_size=2, max_size=2),
    "group_idx": st.none() | st.integers(0, 2),
    "kv_cache_spec_kind": st.sampled_from([None, "full_attention", "sliding_window"]),
    "kv_cache_spec_sliding_window": st.none() | st.integers(1, 64),
}
REMOVED = ("block_hashes", "medium", "group_idx")


@st.composite
def events(draw: st.DrawFn, wild: bool) -> Any:
    """An event; up to three fields have any value if `wild`."""
    tag = draw(st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Unheard"]))
    content = {name: draw(strategy) for name, strategy in fields.items()}
    if wild:
        for name in draw(st.lists(st.sampled_from(["type", *content]), max_size=3)):
            content[name] = draw(values)
    if draw(st.booleans()):
        return {"type": tag} | content
    ordered = REMOVED if tag == "BlockRemoved" else fields
    return [content.get("type", tag), *(content[name] for name in ordered)]


def decode_and_apply(payload: bytes) -> EventBatch:
    """Decode a batch, apply it, and use every view."""
    batch = decode_batch(payload)
    mirror, prompt = Mirror("tcp://127.0.0.1:1"), HashedPrompt([number % 3 for number in range(24)])
    state = mirror.subscribers[0].state
    for _ in range(2):
        state.apply(batch)
        list_chains(snapshot_pools(state, "engine"))
        find_blocks(snapshot_pools(state, "engine"), "0")
        mirror.match_prefix(prompt)
        mirror.chains_after_prefix(prompt)
        mirror.hashes_match()
        mirror.reuse_limits()
    return batch


@given(st.binary(max_size=60))
@settings(max_examples=40)
def test_any_bytes_are_a_batch_or_refused(payload: bytes) -> None:
    try:
        decode_and_apply(payload)
    except EventDecodeError:
        return


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_any_value_in_any_field_is_decoded_or_refused(data: st.DataObject) -> None:
    raw: Any = [data.draw(st.just(1.5) | values), data.draw(st.lists(events(wild=True), max_size=3) | values), None]
    raw[2] = data.draw(st.none() | st.integers(0, 3) | values)
    if data.draw(st.booleans()):
        raw = dict(zip(("ts", "events", "data_parallel_rank"), raw, strict=True))
    if data.draw(st.booleans()):
        raw = data.draw(values)
    try:
        batch = decode_and_apply(msgpack.packb(raw))
    except EventDecodeError:
        return
    assert type(batch.timestamp) is float
    assert batch.rank is None or type(batch.rank) is int
    for event in batch.events:
        if isinstance(event, StoredEvent | RemovedEvent):
            assert all(type(name) in (int, bytes) for name in event.hashes)
            assert type(event.medium) is str
            assert event.group is None or type(event.group) is int
        if isinstance(event, StoredEvent):
            assert event.block_size >= 0
            assert all(type(token) is int and token >= 0 for token in event.tokens)
            hash(tuple(event.extra_keys or ()))


@given(st.lists(events(wild=False), max_size=4))
@settings(max_examples=20)
def test_well_formed_events_are_decoded(raw: list[Any]) -> None:
    batch = decode_and_apply(msgpack.packb([1.5, raw, 0]))
    assert batch.rank == 0
    names = [one[0] if isinstance(one, list) else one["type"] for one in raw]
    unknown = [event.name for event in batch.events if isinstance(event, UnknownEvent)]
    assert (len(batch.events), unknown) == (len(raw), [name for name in names if name == "Unheard"])


def test_both_encodings_are_equal() -> None:
    content = {
        "block_hashes": [7, b"n"],
        "parent_block_hash": 3,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": 1,
        "medium": None,
        "lora_name": "adapter",
        "extra_keys": [["adapter", "salt"], ["adapter", ["image", -2]]],
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 8,
    }
    removed = {"block_hashes": [7], "medium": "CPU", "group_idx": 1}
    maps = [{"type": "BlockStored"} | content, {"type": "BlockRemoved"} | removed, {"type": "AllBlocksCleared"}]
    arrays = [["BlockStored", *content.values()], ["BlockRemoved", *removed.values()], ["AllBlocksCleared"]]
    extras = [("adapter", "salt"), ("adapter", ("image", -2))]
    stored = StoredEvent([7, b"n"], 3, [1, 2, 3, 4], 2, extras, "GPU", 1, "sliding_window", 8)
    for form in (maps, arrays):
        batch = decode_batch(msgpack.packb([1, form, 2]))
        assert batch == EventBatch(1.0, [stored, RemovedEvent([7], "CPU", 1), ClearedEvent()], 2)
        assert batch.has_reset
    assert not decode_batch(msgpack.packb([1, maps[:2]])).has_reset


def test_sglang_appends_the_salt_to_its_array() -> None:
    # `BlockStoredWithMetadata` of SGLang's kv_events.py, and the names of components after it.
    event = ["BlockStored", [7, 8], None, [1, 2], 1, None, "CPU_PINNED"]
    forms: list[Any] = [[*event, {"cache_salt": "s"}], [*event, ["full", "swa"]], [*event, {"future": 1}], event]
    batch = decode_batch(msgpack.packb([1.0, forms, 0]))
    plain = StoredEvent([7, 8], None, [1, 2], 1, None, "CPU")
    assert batch.events == [replace(plain, extra_keys=[("s",), None]), plain, plain, plain]


@pytest.mark.parametrize("copies", [[1], [1, -1], [1, True], "no", [1, 1.0]])
def test_invalid_numbers_of_remaining_copies_are_refused(copies: Any) -> None:
    event = {"type": "BlockRemoved", "block_hashes": [1, 2], "remaining_copy_counts": copies}
    with pytest.raises(EventDecodeError, match="remaining_copy_counts"):
        decode_batch(msgpack.packb([1.0, [event], 0]))


EVENT = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1], "block_size": 1}


def test_the_error_names_a_field_of_the_wrong_type() -> None:
    for name in ("block_hashes", "block_size", "group_idx", "medium", "extra_keys", "token_ids"):
        with pytest.raises(EventDecodeError, match=name):
            decode_batch(msgpack.packb([1.0, [EVENT | {name: {"another": 7}}], 0]))
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(EventDecodeError):
        decode_batch(msgpack.packb([1.0, [EVENT | {"extra_keys": [deep]}], 0]))


def test_hashes_may_form_a_cycle() -> None:
    state = MirrorState()
    circle = [StoredEvent([1], 2, (), 4), StoredEvent([2], 1, (), 4), StoredEvent([3], 2, (), 4)]
    state.apply(EventBatch(1.0, list(circle), None))
    (chain,) = list_chains(snapshot_pools(state, "engine"))
    assert not chain.complete


def test_hashes_of_lookahead_tokens_differ_from_plain_ones() -> None:
    plain, ahead = decode_batch(msgpack.packb([1.0, [EVENT, EVENT | {"lookahead_token_ids": [[3]]}], 0])).events
    assert isinstance(plain, StoredEvent)
    assert isinstance(ahead, StoredEvent)
    assert ahead.extra_keys != plain.extra_keys


def test_blocks_of_an_adapter_without_a_name_are_not_those_of_the_base_model() -> None:
    """vLLM 0.8 to 0.12 publishes `lora_id` without `lora_name`, and its hashes contain the adapter."""
    forms: list[Any] = [["BlockStored", [7], None, [1, 2], 2, lora, "GPU"] for lora in (3, "adapter", None)]
    batch = decode_batch(msgpack.packb([1.0, forms]))
    assert [event.extra_keys for event in batch.events if isinstance(event, StoredEvent)] == [
        [(3,)],
        [("adapter",)],
        None,
    ]
