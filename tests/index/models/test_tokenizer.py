"""The tokenizer of the embedder and the verifier gives the ids of the package `tokenizers`."""

import unicodedata
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.minilm.tokenizer import load_tokenizer
from kvproxy.index.models.minilm.weights import packaged_model

WORDS = ("How", "do", "unbelievably", "don't", "naïve", "Ünïcödé", "3,5%", "x" * 101, "[SEP]", "##ing", "😀", "東京")
TEXTS = [
    "",
    " ",
    "How do I reset my password?",
    "don't [MASK] [SEP] x",
    "$10+3=¥13 ~x~ `y`",
    "def f(x):\n    return x**2  # comment\r\n",
    "a" * 150 + " b",
    "hello\u200bworld\x00 tab\t\x1c\x85",
    "👩\u200d👩\u200d👧 emoji 😀",
    "日本語のテキスト 漢字 한국어 豈更車",
    "Ελληνικά ΣΑΣ ς",
    "İstanbul ẞ ŉ",
    "ﬁ ½ ²",
    "קוד עברי हिन्दी ไทย",
]


def is_stable(character: str) -> bool:
    """The tables of `tokenizers` are of an older Unicode version than Python's."""
    return unicodedata.ucd_3_2_0.category(character) == unicodedata.category(character)


@cache
def reference(max_tokens: int) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(packaged_model() / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # As text.
    return tokenizer


def check(text: str, other: str | None = None, max_tokens: int = 64) -> None:
    found = load_tokenizer(packaged_model(), max_tokens).encode(text, other)
    wanted = reference(max_tokens).encode(text, other)
    assert found == (wanted.ids, wanted.type_ids)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_same_ids(text: str) -> None:
    check(text)


@given(st.text(st.characters(exclude_categories=["Cs", "Cn"]).filter(is_stable), max_size=30))
def test_every_character_is_split_in_the_same_way(text: str) -> None:
    check(text)


SENTENCES = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


@given(SENTENCES, SENTENCES, st.integers(8, 40))
def test_pairs_are_truncated_in_the_same_way(one: str, other: str, max_tokens: int) -> None:
    check(one, other, max_tokens)


def test_a_damaged_vocabulary_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(EmbedderError, match="install kvproxy again"):
        load_tokenizer(tmp_path, 64)
