"""Texts with hidden characters have exact hits only."""

from pathlib import Path
from typing import Any

import pytest

from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import open_store
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

PLAIN = "What is the capital of France?"
HIDDEN = ["\U000e0041", "\ufe0f", "\u200b", "\u202e", "\ue000", "\0", "\x1b", "\u0301\u0302\u0303"]


class AsciiEmbedder(HashEmbedder):
    """Ignores all but printable ASCII, as most embedders do."""

    def embed(self, texts: Any) -> Any:
        return super().embed(
            ["".join(each for each in text if each.isascii() and each.isprintable()) for text in texts]
        )


async def is_found(path: Path, stored: str, question: str) -> bool:
    store = open_store(path)
    # An earlier version could store any question with a vector.
    store.put(make_entry(stored, namespace="n"), AsciiEmbedder().embed([stored])[0], AsciiEmbedder.name)
    semantic = SemanticCache(store, AsciiEmbedder(), ThresholdPolicy(0.5, guards=()))
    semantic.rebuild()
    found = await semantic.lookup("n", question)
    semantic.close()
    store.close()
    return found.entry is not None


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda text: " ".join(f"U+{ord(each):04X}" for each in text))
async def test_questions_with_hidden_characters_have_no_semantic_hits(hidden: str, tmp_path: Path) -> None:
    assert await is_found(tmp_path / "plain.db", PLAIN, PLAIN)
    pairs = ((PLAIN + hidden, PLAIN), (PLAIN, PLAIN + hidden), (PLAIN + hidden, PLAIN + hidden))
    for number, (stored, question) in enumerate(pairs):
        assert not await is_found(tmp_path / f"{number}.db", stored, question)


def test_words_of_two_alphabets_are_hidden_text_and_ordinary_texts_are_not() -> None:
    for text in ("Is p\u0430ypal safe?", "What is \u0391BC?"):
        assert has_hidden_text(text)
    for text in ("Où est le cafe\u0301?", "one\r\n\ttwo", "हिन्दी में लिखो", "Что такое API?", "5 μm of α-helix"):
        assert not has_hidden_text(text)
