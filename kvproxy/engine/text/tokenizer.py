"""Converts chats to tokens, and tokens to text, with a Hugging Face tokenizer."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property, partial
from threading import Lock
from typing import Any, TypeVar

from kvproxy.engine.text.reasoning import ReasoningFormat, find_reasoning_format
from kvproxy.engine.text.segment_cache import SegmentCache
from kvproxy.engine.text.tool_calls import ToolCallFormat, learn_tool_call_format
from kvproxy.errors import InvalidRequest, Overloaded

T = TypeVar("T")
_NUM_THREADS = 3
_MAX_TOKEN_CHARACTERS = 512  # no token of any vocabulary has more characters

# Receives the minimum number of tokens of a prompt, and raises an error if it is too large.
CheckLength = Callable[[int], None]


def accept_any_length(min_tokens: int) -> None: ...


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template. Thread-safe. The tokens `eos_ids` end an output."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_ids = eos_ids
        # Fast tokenizers are thread-safe if truncation and padding do not change, which the first call may do.
        self._lock = nullcontext() if tokenizer.is_fast else Lock()
        self._token_ids("")
        self._segments = SegmentCache(tokenizer, partial(self._token_ids, add_special_tokens=False))

    def encode(self, text: str, param: str = "prompt", validate_length: CheckLength = accept_any_length) -> list[int]:
        """Return the token ids of a prompt, without the chat template. `param` is the request field to name in errors."""
        self._check_text(text, param, validate_length)
        return self._token_ids(text)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        validate_length: CheckLength = accept_any_length,
        scope: str = "",
    ) -> list[int]:
        """Return the token ids of a conversation, up to the beginning of the assistant's next turn.

        Raises InvalidRequest if the chat template is missing or rejects the messages.
        """
        text = self._render(messages, tools)
        # The template may drop text, so check it after rendering.
        self._check_text(text, "messages", validate_length)
        return self._segments.encode(text, scope)

    def add_output(self, prompt: Sequence[int], output: Sequence[int], text: str, scope: str = "") -> None:
        """Make `chat` return the generated tokens for later conversations that begin with the prompt and `text`."""
        end = len(output)
        while end and output[end - 1] in self.eos_ids:
            end -= 1
        self._segments.add_output(prompt, output[:end], text, scope)

    def _render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> str:
        if self._tokenizer.chat_template is None:
            raise InvalidRequest(
                "this model has no chat template: send the prompt to /v1/completions, or serve an instruct model",
                param="messages",
            )
        flat, schemas = [_flatten_content(message) for message in messages], list(tools) if tools else None
        try:
            text: str = self._tokenizer.apply_chat_template(
                flat, tools=schemas, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            reason = f"the model's chat template rejects these messages: {error}"
            raise InvalidRequest(reason, param="messages") from None
        return text

    def _check_text(self, text: str, param: str, validate_length: CheckLength) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{param} contains a lone surrogate: send valid Unicode", param=param) from None
        validate_length(-(-len(text) // _MAX_TOKEN_CHARACTERS))

    def _token_ids(self, text: str, **options: Any) -> list[int]:
        with self._lock:
            ids: list[int] = self._tokenizer.encode(text, **options)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @cached_property
    def tool_call_format(self) -> ToolCallFormat | None:
        if self._tokenizer.chat_template is None:
            return None

        def render(
            messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], add_generation_prompt: bool
        ) -> str:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools), add_generation_prompt=add_generation_prompt, tokenize=False
            )
            return text

        added = self._tokenizer.added_tokens_decoder.items()
        return learn_tool_call_format(render, {token.content: number for number, token in added if token.special})

    @cached_property
    def reasoning_format(self) -> ReasoningFormat | None:
        added = self._tokenizer.added_tokens_decoder.items()
        return find_reasoning_format({token.content: number for number, token in added if not token.special})

    def to_llguidance(self, vocabulary: int) -> Any:
        from llguidance.hf import from_tokenizer

        if not self._tokenizer.is_fast:
            raise InvalidRequest(
                "this model's tokenizer is written in Python and does not support schemas: remove the schema",
                param="response_format",
            )
        return from_tokenizer(self._tokenizer, vocabulary, sorted(self.eos_ids) or None)

    def token_text(self, token: int) -> str:
        text: str = self._tokenizer.decode([token])
        return text


def _flatten_content(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message | {"content": content or ""}
    if any(part.get("type") != "text" for part in content):
        raise InvalidRequest(
            "the embedded engine takes text only: send text parts, or use --upstream", param="messages"
        )
    return message | {"content": "".join(part["text"] for part in content)}


class AsyncTokenizer:
    """Calls the methods of a `ChatTokenizer` on a thread pool. After `close`, calls raise Overloaded."""

    def __init__(self, tokenizer: ChatTokenizer, validate_length: CheckLength = accept_any_length) -> None:
        self._tokenizer = tokenizer
        self._validate_length = validate_length
        self._closed = False
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "kvproxy-tokenize")

    async def encode(self, text: str, param: str = "prompt") -> list[int]:
        return await self.run(lambda tokenizer: tokenizer.encode(text, param, self._validate_length))

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None, scope: str = ""
    ) -> list[int]:
        return await self.run(lambda tokenizer: tokenizer.chat(messages, tools, self._validate_length, scope))

    async def decode_with_special_tokens(self, ids: Sequence[int]) -> str:
        return await self.run(lambda tokenizer: "".join(map(tokenizer.token_text, ids)))

    async def run(self, call: Callable[[ChatTokenizer], T]) -> T:
        if self._closed:
            raise Overloaded("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, self._tokenizer)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
