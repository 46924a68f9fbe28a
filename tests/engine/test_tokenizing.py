"""Tokenising beside the event loop, and from several threads."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kvproxy.demo import model_path
from kvproxy.engine.text.async_tokenizer import AsyncTokenizer
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.errors import InvalidRequest, Overloaded
from tests.polling import until_async

DEMO: Any = AutoTokenizer.from_pretrained(str(model_path()))


@given(st.lists(st.text(max_size=20), max_size=3))
def test_ids_are_those_of_the_template_and_the_tokenizer(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in ["x", *texts]]
    ids = DEMO.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatTokenizer(DEMO, frozenset()).chat(messages) == ids


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
    [AutoTokenizer.from_pretrained(model_path()), _Shouting(tokenizer_object=DEMO.backend_tokenizer), _cleaning()],
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
