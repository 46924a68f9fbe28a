"""Kept token ids of segments equal the ids of the whole text."""

from collections.abc import Callable
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from kvproxy.demo import model_path
from kvproxy.engine.text.segment_cache import SegmentCache
from kvproxy.engine.text.tokenizer import ChatTokenizer
from tests.benchmarks.tokenizing import WORDS, wrong_edits

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}<|assistant|>"
SPECIAL = ("<|user|>", "<|assistant|>", "</s>")


def _trained(pre_tokenizer: Any, normalizer: Any = None, *added: AddedToken) -> Any:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteFallback()
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", *bytes_], show_progress=False)
    tokenizer.train_from_iterator(WORDS[:4_000], trainer)
    tokenizer.add_tokens([*added] or [AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE, unk_token="<unk>")


def _flagged(**flags: bool) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False, **flags) for text in SPECIAL[:2]] + [
        AddedToken(SPECIAL[2], special=True, normalized=False)
    ]


KINDS: dict[str, Callable[[], Any]] = {
    "demo": lambda: transformers.AutoTokenizer.from_pretrained(str(model_path())),
    "metaspace first": lambda: _trained(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace always": lambda: _trained(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "byte level with a prefix": lambda: _trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "prepended": lambda: _trained(
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.NFKC(), normalizers.Strip()]),
    ),
    "stripping": lambda: _trained(pre_tokenizers.Metaspace(), None, *_flagged(lstrip=True, rstrip=True)),
    "right-stripping": lambda: _trained(pre_tokenizers.Metaspace(), None, *_flagged(rstrip=True)),
    "whole words": lambda: _trained(pre_tokenizers.Metaspace(), None, *_flagged(single_word=True)),
    "overlapping": lambda: _trained(
        pre_tokenizers.Metaspace(),
        None,
        *_flagged(),
        AddedToken("a<|", special=True, normalized=False),
        AddedToken("<|user|>x", special=True, normalized=False),
        AddedToken("e", normalized=False),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_edited_chats_have_the_ids_of_the_whole_text(kind: str) -> None:
    assert wrong_edits(KINDS[kind](), 60, seed=len(kind)) == 0


def _cache(max_bytes: int = 10**6) -> tuple[SegmentCache, list[str]]:
    tokenizer, encoded = KINDS["demo"](), list[str]()

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

    return SegmentCache(tokenizer, encode, max_bytes), encoded


def test_only_new_segments_are_tokenized() -> None:
    cache, encoded = _cache()
    cache.encode("<|user|>one<|end|><|assistant|>")
    assert encoded == ["<|user|>one", "<|end|>", "<|assistant|>"]
    encoded.clear()
    cache.encode("<|user|>one<|end|><|assistant|>two<|end|><|assistant|>")
    assert encoded == ["<|assistant|>two"]


def test_scopes_share_no_segments() -> None:
    cache, encoded = _cache()
    cache.encode("<|user|>secret", "one")
    cache.encode("<|user|>secret", "two")
    assert encoded == ["<|user|>secret"] * 2


def test_old_segments_are_dropped_at_the_limit() -> None:
    cache, encoded = _cache(max_bytes=1_000)
    for text in ("<|user|>one", "<|user|>two", "<|user|>one", "<|user|>three", "<|user|>one", "<|user|>two"):
        cache.encode(text)
    assert encoded == ["<|user|>one", "<|user|>two", "<|user|>three", "<|user|>two"]


def test_a_tokenizer_that_splits_special_tokens_tokenizes_whole_texts() -> None:
    tokenizer = KINDS["demo"]()
    tokenizer.split_special_tokens = True
    texts = list[str]()
    cache = SegmentCache(tokenizer, lambda text: texts.append(text) or [1])  # type: ignore[func-returns-value]
    assert cache.encode("<|user|>a<|end|>") == [1]
    assert texts == ["<|user|>a<|end|>"]


def test_chats_use_the_segments() -> None:
    ours = ChatTokenizer(KINDS["demo"](), frozenset())
    chat = [{"role": "user", "content": "one"}]
    assert ours.chat(chat) == ours.chat(chat, scope="x") == ours.chat(chat)


def _other_tokens(tokenizer: ChatTokenizer, text: str) -> list[int]:
    return [token for character in text for token in tokenizer.encode(character)]


def test_the_generated_tokens_of_an_answer_stay_in_the_next_turn() -> None:
    ours = ChatTokenizer(KINDS["demo"](), frozenset([0]))
    chat = [{"role": "user", "content": "one"}]
    prompt, answer = ours.chat(chat), _other_tokens(ours, "a block of tokens")
    ours.add_output(prompt, [*answer, 0], "a block of tokens")
    chat += [{"role": "assistant", "content": "a block of tokens"}, {"role": "user", "content": "two"}]
    kept = ours.chat(chat)
    assert kept[: len(prompt) + len(answer)] == [*prompt, *answer]
    assert ours.decode(kept) == ours.decode(ours.chat(chat, scope="other"))
    assert kept != ours.chat(chat, scope="other")


def test_tokens_of_another_text_are_not_kept() -> None:
    ours = ChatTokenizer(KINDS["demo"](), frozenset([0]))
    chat = [{"role": "user", "content": "one"}]
    prompt, answer = ours.chat(chat), ours.encode("a block of tokens")
    for text in ("a block", "a block of tokens<|end|>"):
        ours.add_output(prompt, answer, text)
        continued = [*chat, {"role": "assistant", "content": text}]
        assert ours.chat(continued) == ours.chat(continued, scope="other")
