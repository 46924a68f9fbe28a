"""Tokenising beside the event loop, from several threads."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvproxy.demo import model_path
from kvproxy.engine.request_validation import EngineLimits
from kvproxy.engine.text.detokenizer import Detokenizer
from kvproxy.engine.text.tokenizer import AsyncTokenizer, ChatTokenizer
from kvproxy.errors import ContextTooLong, InvalidRequest, Overloaded


@pytest.fixture(scope="module")
def demo_tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(model_path()))


@given(texts=st.lists(st.text(max_size=20), max_size=3))
def test_ids_are_those_of_the_template_and_the_tokenizer(demo_tokenizer: Any, texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in ["x", *texts]]
    ids = demo_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatTokenizer(demo_tokenizer, frozenset()).chat(messages) == ids


async def test_a_text_that_can_never_fit_is_refused_without_being_tokenised(
    monkeypatch: pytest.MonkeyPatch, demo_tokenizer: Any
) -> None:
    tokenizer = ChatTokenizer(demo_tokenizer, frozenset())
    limits = EngineLimits(2048, 4096, 100_000)
    ours = AsyncTokenizer(tokenizer, lambda min_tokens: limits.validate_length(min_tokens, 0, is_minimum=True))
    monkeypatch.setattr(tokenizer, "_token_ids", lambda text, **options: pytest.fail("it was tokenised"))
    huge = "word " * 800_000
    with pytest.raises(ContextTooLong, match="at least"):
        await ours.encode(huge)
    with pytest.raises(ContextTooLong, match="4096 tokens in all"):
        await ours.chat([{"role": "user", "content": [{"type": "text", "text": huge}]}])
    ours.close()


async def test_half_a_character_is_refused_by_name(demo_tokenizer: Any) -> None:
    ours = AsyncTokenizer(ChatTokenizer(demo_tokenizer, frozenset()))
    with pytest.raises(InvalidRequest, match="lone surrogate") as refused:
        await ours.encode("x\ud800", "input")
    assert refused.value.param == "input"
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        await ours.chat([{"role": "user", "content": "x\udfff"}])
    ours.close()


class Slow:
    eos_token_id = None
    chat_template = None
    is_fast = False

    def __init__(self) -> None:
        self.inside = self.most = 0

    def encode(self, text: str, **options: Any) -> list[int]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.001)
        self.inside -= 1
        return [len(text)]


async def test_deeply_nested_tools_are_the_templates_affair(demo_tokenizer: Any) -> None:
    ours = AsyncTokenizer(ChatTokenizer(demo_tokenizer, frozenset()))
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


def test_a_tokenizer_that_cuts_texts_is_safe_for_several_threads(demo_tokenizer: Any) -> None:
    backend = Tokenizer.from_str(demo_tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(5)
    backend.enable_padding(length=9)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    made.backend_tokenizer.enable_truncation(5)
    made.backend_tokenizer.enable_padding(length=9)
    ours = ChatTokenizer(made, frozenset())
    assert made.backend_tokenizer.truncation is made.backend_tokenizer.padding is None
    text = "one two three four five six seven " * 50
    want = demo_tokenizer.encode(text)
    with ThreadPoolExecutor(4) as threads:
        assert all(ids == want for ids in threads.map(ours.encode, [text] * 40))


def decode_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=30))
def test_text_arrives_whole_whatever_its_bytes(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.finish() == text


def test_without_stop_strings_no_letter_waits_for_the_next() -> None:
    detokenizer = Detokenizer(decode_bytes)
    assert [detokenizer.push(byte) for byte in "aé".encode()] == ["a", "", "é"]
    assert detokenizer.finish() == ""


@given(st.text("ab", max_size=30), st.text("ab", min_size=1, max_size=4))
def test_nothing_of_a_stop_string_is_sent(text: str, stop: str) -> None:
    detokenizer = Detokenizer(decode_bytes, [stop])
    sent = ""
    for byte in text.encode():
        sent += detokenizer.push(byte)
        if detokenizer.stop_string is not None:
            break
    assert sent + detokenizer.finish() == text.split(stop)[0]
