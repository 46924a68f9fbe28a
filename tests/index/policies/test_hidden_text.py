"""Texts with characters that a reader does not see match exactly or not at all, whatever the settings."""

from pathlib import Path
from typing import Any

import pytest

from kvproxy.index.policies.guards.hidden_text import hides_text
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import NewEntry, SqliteStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

PLAIN = "What is the capital of France?"
HIDDEN = ["\U000e0041", "\ufe0f", "\u200b", "\u202e", "\ue000", "\0", "\x1b", "\u0301\u0302\u0303"]


class Deaf(HashEmbedder):
    """Reads nothing but letters and blanks of ASCII, as most embedders do."""

    def embed(self, texts: Any) -> Any:
        return super().embed(
            ["".join(each for each in text if each.isascii() and each.isprintable()) for text in texts]
        )


def cache(store: SqliteStore) -> SemanticCache:
    return SemanticCache(store, Deaf(), ThresholdPolicy(0.5, guards=()))


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
async def test_hidden_characters_neither_find_nor_are_found(hidden: str, tmp_path: Path) -> None:
    for number, (stored, asked) in enumerate(
        ((PLAIN + hidden, PLAIN), (PLAIN, PLAIN + hidden), (PLAIN + hidden, PLAIN + hidden))
    ):
        store = SqliteStore(tmp_path / f"{number}.db")
        entry = make_entry(key="k", namespace="n", prompt=stored)
        # As an earlier version would have stored it.
        store.put_many([NewEntry(entry, Deaf().embed([stored])[0], Deaf().name)])
        semantic = cache(store)
        semantic.rebuild()
        found = await semantic.lookup("n", asked)
        assert found.entry is None


async def test_the_same_question_without_hidden_characters_is_found(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "responses.db")
    store.put_many([NewEntry(make_entry(key="k", namespace="n", prompt=PLAIN), Deaf().embed([PLAIN])[0], Deaf().name)])
    semantic = cache(store)
    semantic.rebuild()
    assert (await semantic.lookup("n", PLAIN)).entry is not None


@pytest.mark.parametrize("text", ["Is p\u0430ypal safe?", "What is \u0391BC?"])
def test_words_of_two_alphabets_are_hidden_text(text: str) -> None:
    assert hides_text(text)


@pytest.mark.parametrize(
    "text", ["Où est le cafe\u0301?", "one\r\n\ttwo", "हिन्दी में लिखो", "Что такое API?", "5 μm of α-helix"]
)
def test_ordinary_writing_is_not_hidden(text: str) -> None:
    assert not hides_text(text)
