"""Redacted texts are never stored, and questions that differ in them never match."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.entry_redaction import RedactionFailed, redact_entry
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Store, open_store
from kvproxy.index.store.export import export_lines, import_into, read_lines
from kvproxy.library import AsyncCache
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

MAIL = re.compile(r"\w+@\w+\.\w+")
CARD = re.compile(r"\b\d{16}\b")


def redact(text: str) -> str:
    return CARD.sub("[card]", MAIL.sub("[mail]", text))


TEXTS = st.sampled_from(["a@b.c", "see a@b.c.", "plain", "", "4111111111111111", "ünï", "\ud800"])
JSON: Any = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers() | st.just(4111111111111111) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, TEXTS)
def test_a_redacted_entry_contains_nothing_to_redact(request: Any, response: Any, prompt: str) -> None:
    entry = make_entry(prompt, request=json.dumps(request).encode(), response=json.dumps(response).encode())
    kept = redact_entry(entry, redact)
    hidden = any(redact(text) != text for text in re.findall(r'"([^"]*)"', json.dumps(response)))
    assert (kept is None) == hidden
    if kept is None:
        return
    stored = kept.request.decode("utf-8", "surrogatepass") + kept.prompt
    assert redact(stored) == stored
    # Everything else is unchanged, and only an unchanged question has semantic hits.
    assert json.loads(kept.response) == response
    assert kept.semantic == (redact(prompt) == prompt)
    if redact(json.dumps(request)) == json.dumps(request):
        assert json.loads(kept.request.decode("utf-8", "surrogatepass")) == request
    assert (kept.key, kept.id, kept.namespace) == (entry.key, entry.id, entry.namespace)


def test_a_duplicate_name_cannot_hide_a_value() -> None:
    kept = redact_entry(make_entry(request=b'{"user": "a@b.c", "user": "fine"}'), redact)
    assert kept is not None
    assert kept.request == b'{"user":"fine"}'


def test_invalid_json_is_not_stored() -> None:
    with pytest.raises(RedactionFailed, match="not stored") as raised:
        redact_entry(make_entry(request=b"a@b.c {"), redact)
    assert "a@b.c" not in str(raised.value)


async def test_questions_that_differ_in_the_redacted_part_never_match(tmp_path: Path, store: Store) -> None:
    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.5))
    async with AsyncCache(ResponseCache(store, semantic, redact=redact)) as cache:
        assert await cache.set("what does the customer with mail a@b.c owe us", "nothing")
        assert await cache.set("what does the customer owe us", "it depends")
        # A redacted question has exact hits only.
        assert await cache.get("what does the customer with mail x@y.z owe us") is None
        assert await cache.get("what does the customer with mail [mail] owe us") is not None
        equal = await cache.get("what does the customer with mail a@b.c owe us")
        assert equal is not None
        assert equal.answer == "nothing"
        near = await cache.get("what does the customer with mail owe us")
        assert near is not None
        assert near.answer == "it depends"
        assert await cache._cache.is_unchanged_by_redaction("what is a block")
        assert not await cache._cache.is_unchanged_by_redaction("who is a@b.c")
    assert not any(b"a@b.c" in file.read_bytes() for file in tmp_path.iterdir())


async def test_an_answer_with_text_to_redact_is_not_stored(store: Store) -> None:
    async with AsyncCache(ResponseCache(store, None, redact=redact)) as cache:
        assert not await cache.set("who asked", "It was a@b.c")
        assert await cache.get("who asked") is None
        assert await cache._cache.insert_many([make_entry("one"), make_entry("two", response=b'{"x": "a@b.c"}')]) == 1
        assert [entry.prompt for entry in store.entries()] == ["one"]


def test_imports_are_redacted(open_file: MakeStore) -> None:
    old, new = open_file("old.db"), open_file("new.db")
    old.put(make_entry("who is a@b.c", key="1"))
    old.put(make_entry("fine", key="2", response=b'{"x": "a@b.c"}'))
    lines = b"".join(export_lines(old))
    assert import_into(new, read_lines(lines), redact) == 1
    (entry,) = new.entries()
    assert (entry.prompt, entry.semantic) == ("who is [mail]", False)


async def test_nothing_is_stored_or_compared_if_redaction_fails(store: Store) -> None:
    def broken(text: str) -> str:
        raise RedactionFailed("it failed")

    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.5))
    async with AsyncCache(ResponseCache(store, semantic, redact=broken)) as cache:
        with pytest.raises(RedactionFailed):
            await cache.set("what is a block", "sixteen tokens")
        with pytest.raises(RedactionFailed):
            await cache.get("what is a block")
        assert store.count() == 0


async def test_a_slow_redactor_does_not_block_the_event_loop(tmp_path: Path) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(text: str) -> str:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(300)
        return text

    async with AsyncCache(ResponseCache(open_store(tmp_path / "r.db"), None, redact=slow)) as cache:
        kept = asyncio.create_task(cache.set("q", "a"))
        # This would block if the redactor ran on the event loop.
        await asyncio.wait_for(began.wait(), 60)
        go_on.set()
        assert await kept
