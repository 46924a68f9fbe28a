"""Tokenising beside the event loop, from several threads, and how long a text must be to be refused unread."""

import asyncio
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kvproxy.demo import model_path
from kvproxy.engine.limits import EngineLimits
from kvproxy.engine.text.async_tokenizer import AsyncTokenizer
from kvproxy.engine.text.tokenizer import ChatTokenizer, max_token_bytes
from kvproxy.errors import ContextTooLong, InvalidRequest, Overloaded
from tests.engine.models import LetterTokenizer
from tests.polling import until_async

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}{% endfor %}"


def trained(
    normalizer: Any = None, before: Any = None, added: AddedToken | None = None, **options: Any
) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer whose longest token covers many blanks."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([before, byte_level]) if before is not None else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([" " * 64, "hello hello hello" * 3], trainer)
    if added is not None:
        tokenizer.add_special_tokens([added])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE, **options)


DEMO: Any = AutoTokenizer.from_pretrained(str(model_path()))
PLAIN = trained()
COMPOSING = trained(normalizers.NFC())
DENSE = ["`" * 90, "\u1fef" * 90, " " * 200, "<|assistant|>" * 9, "\u1112\u1161\u11ab" * 30]
"""Texts that come to few tokens for their bytes."""


@pytest.mark.parametrize("tokenizer", [DEMO, PLAIN, COMPOSING], ids=["demo", "plain", "nfc"])
@given(
    text=st.text(max_size=200)
    | st.sampled_from(["`" * 90, "\u1fef" * 90, " " * 200, "<|assistant|>" * 9, "\u1112\u1161\u11ab" * 30])
)
def test_no_text_has_fewer_tokens_than_its_bytes_allow(tokenizer: Any, text: str) -> None:
    longest = max_token_bytes(tokenizer)
    assert longest is not None
    assert len(tokenizer.encode(text, add_special_tokens=False)) >= len(text.encode()) / longest


def test_composition_never_shortens_more_than_is_counted_for() -> None:
    """Of every character: the longest text that composes to it, each part of it by its own longest spelling."""
    spellings: dict[str, int] = {}
    # Others are written in no way but their own.
    decomposed = (code for code in range(0x110000) if unicodedata.decomposition(chr(code))[:1] not in ("", "<"))
    for code in (*decomposed, *range(0xAC00, 0xD7A4)):
        once = unicodedata.normalize("NFC", chr(code))
        if len(once) == 1:
            spellings[once] = max(spellings.get(once, len(once.encode())), len(chr(code).encode()))

    def longest(parts: str) -> int:
        """Over all ways to spell the beginning of decomposed text as one character."""
        if not parts:
            return 0
        begins = ((unicodedata.normalize("NFC", parts[:end]), end) for end in range(1, len(parts) + 1))
        return max(
            spellings.get(begin, len(begin.encode())) + longest(parts[end:]) for begin, end in begins if len(begin) == 1
        )

    assert len(spellings) > 12_000
    for character, alone in spellings.items():
        size = max(alone, longest(unicodedata.normalize("NFD", character)))
        assert size <= 4 * len(character.encode()), character


@pytest.mark.parametrize(
    "tokenizer",
    [
        trained(normalizers.Strip()),
        trained(normalizers.NFKC()),
        trained(before=pre_tokenizers.WhitespaceSplit()),
        trained(before=pre_tokenizers.Split(" ", "removed")),
        trained(added=AddedToken("<x>", lstrip=True)),
        LetterTokenizer(),
    ],
    ids=["strip", "nfkc", "blanks", "removed", "lstrip", "slow"],
)
def test_where_text_may_be_lost_nothing_is_promised(tokenizer: Any) -> None:
    assert max_token_bytes(tokenizer) is None


@given(st.lists(st.text(max_size=20), max_size=3))
def test_ids_are_those_of_the_template_and_the_tokenizer(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in ["x", *texts]]
    ids = DEMO.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatTokenizer(DEMO, frozenset()).chat(messages) == ids


async def test_a_text_that_can_never_fit_is_refused_without_being_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ChatTokenizer(DEMO, frozenset())
    limits = EngineLimits(2048, 4096, 100_000)
    ours = AsyncTokenizer(tokenizer, lambda at_least: limits.validate_length(at_least, 0, at_least=True))
    monkeypatch.setattr(tokenizer, "_ids", lambda text, **options: pytest.fail("it was tokenised"))
    huge = "word " * 800_000
    with pytest.raises(ContextTooLong, match="at least"):
        await ours.encode(huge)
    with pytest.raises(ContextTooLong, match="4096 tokens in all"):
        await ours.chat([{"role": "user", "content": [{"type": "text", "text": huge}]}])
    ours.close()


async def test_what_the_template_drops_does_not_count() -> None:
    longest = max_token_bytes(PLAIN)
    assert longest is not None
    limits = EngineLimits(300, 50, 50)
    ours = AsyncTokenizer(ChatTokenizer(PLAIN, frozenset()), lambda at_least: limits.validate_length(at_least, 0))
    assert len(await ours.chat([{"role": "user", "content": " " * (longest * 60) + "hello"}])) < 50
    with pytest.raises(ContextTooLong):
        await ours.encode(" " * (longest * 60))
    ours.close()


async def test_half_a_character_is_refused_by_name() -> None:
    ours = AsyncTokenizer(ChatTokenizer(DEMO, frozenset()))
    with pytest.raises(InvalidRequest, match="lone surrogate") as refused:
        await ours.encode("x\ud800", "input")
    assert refused.value.param == "input"
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        await ours.chat([{"role": "user", "content": "x\udfff"}])
    ours.close()


class Slow:
    """A tokenizer in Python that notes how many calls it is in at once."""

    eos_token_id = None
    chat_template = None
    is_fast = False

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, text: str, **options: Any) -> list[int]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        assert self.gate.wait(20)
        time.sleep(0.001)
        self.inside -= 1
        return [len(text)]


async def test_the_loop_goes_on_and_short_texts_overtake_long_ones() -> None:
    slow = Slow()
    made = ChatTokenizer(slow, frozenset())
    made._lock = threading.BoundedSemaphore(9)  # type: ignore[assignment]
    ours = AsyncTokenizer(made)
    slow.gate.clear()
    long = [asyncio.ensure_future(ours.encode("x" * 70_000)) for _ in range(4)]
    await until_async(lambda: slow.inside)
    slow_inside = slow.inside
    slow.gate.set()
    assert await ours.encode("short") == [5]
    assert slow_inside == 1, "long texts take one thread"
    assert await asyncio.gather(*long) == [[70_000]] * 4
    ours.close()


async def test_deeply_nested_tools_are_the_templates_affair() -> None:
    ours = AsyncTokenizer(ChatTokenizer(DEMO, frozenset()))
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    message = {"role": "user", "content": "x"}
    with pytest.raises(InvalidRequest, match="rejects these messages"):
        await ours.chat([message], [deep])
    ours.close()
    with pytest.raises(Overloaded, match="shutting down"):
        await ours.chat([message])


def test_a_slow_tokenizer_encodes_one_text_at_a_time() -> None:
    slow = Slow()
    ours = ChatTokenizer(slow, frozenset())
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ours.encode, ["ab"] * 12)) == [[2]] * 12
    assert slow.most == 1


def test_a_tokenizer_that_cuts_texts_is_safe_for_several_threads() -> None:
    """A tokenizer.json may say that texts are cut; the first call takes that back, which others must not meet."""
    backend = Tokenizer.from_str(DEMO.backend_tokenizer.to_str())
    backend.enable_truncation(5)
    backend.enable_padding(length=9)
    made = PreTrainedTokenizerFast(tokenizer_object=backend)
    made.backend_tokenizer.enable_truncation(5)
    made.backend_tokenizer.enable_padding(length=9)
    ours = ChatTokenizer(made, frozenset())
    assert made.backend_tokenizer.truncation is made.backend_tokenizer.padding is None
    text = "one two three four five six seven " * 50
    want = DEMO.encode(text)
    with ThreadPoolExecutor(4) as threads:
        assert all(ids == want for ids in threads.map(ours.encode, [text] * 40))


async def test_a_call_that_is_cancelled_before_its_turn_is_dropped() -> None:
    slow = Slow()
    ours = AsyncTokenizer(ChatTokenizer(slow, frozenset()))
    slow.gate.clear()
    first, second = (asyncio.ensure_future(ours.encode("x" * 70_000)) for _ in range(2))
    await until_async(lambda: slow.inside)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    slow.gate.set()
    calls = []
    encode = slow.encode
    slow.encode = lambda text, **options: calls.append(text) or encode(text)  # type: ignore[method-assign,func-returns-value]
    assert await first == [70_000]
    assert await ours.encode("y" * 70_000) == [70_000]
    assert [text[0] for text in calls] == ["y"]
    ours.close()


class _Shouting(PreTrainedTokenizerFast):
    """A tokenizer that decodes in a way of its own."""

    def _decode(self, *args: Any, **options: Any) -> str:
        return str(super()._decode(*args, **options)).upper()


def _cleaning() -> PreTrainedTokenizerFast:
    """One that takes away the blanks before punctuation, as tokenizers of the WordPiece kind do."""
    words = {word: number for number, word in enumerate(["[UNK]", "hello", ".", "world"])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=True)


@pytest.mark.parametrize(
    "tokenizer",
    [AutoTokenizer.from_pretrained(model_path()), _Shouting(tokenizer_object=trained().backend_tokenizer), _cleaning()],
    ids=["demo", "its own way", "cleaning"],
)
def test_decoding_is_that_of_transformers(tokenizer: Any) -> None:
    ours = ChatTokenizer(tokenizer, frozenset())

    @given(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    def check(ids: list[int]) -> None:
        assert ours.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)

    check()


def test_cleaning_is_not_lost() -> None:
    assert ChatTokenizer(_cleaning(), frozenset()).decode([1, 2, 3]) == "hello. world"
