"""Tokenizes on threads, for callers on an event loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kvproxy.engine.text.tokenizer import ChatTokenizer, CheckLength, accept_any_length
from kvproxy.engine.text.tool_calls import ToolCallFormat
from kvproxy.errors import Overloaded

T = TypeVar("T")
_LONG_TEXT = 64 << 10
"""Characters from which on a text is queued behind other long texts, so that it does not delay short ones."""


class AsyncTokenizer:
    """Runs a tokenizer on its own threads. Every call raises `Overloaded` after `close`.

    Args:
        tokenizer: see its methods for errors.
        validate_length: receives a lower bound of the prompt's tokens, and raises an error if they cannot fit.
    """

    def __init__(self, tokenizer: ChatTokenizer, validate_length: CheckLength = accept_any_length) -> None:
        self._tokenizer = tokenizer
        self._validate_length = validate_length
        self._closed = False
        self._short = ThreadPoolExecutor(2, "kvproxy-tokenize")
        self._long = ThreadPoolExecutor(1, "kvproxy-tokenize-long")

    async def encode(self, text: str, param: str = "prompt") -> list[int]:
        """Return the token ids of a raw prompt.

        Raises:
            InvalidRequest: the text is not valid Unicode; names the field `param`.
            ContextTooLong: the text cannot fit.
        """
        return await self._run(len(text), lambda: self._tokenizer.encode(text, param, self._validate_length))

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Return the token ids of a conversation, up to the assistant's turn.

        Raises:
            InvalidRequest: the model has no chat template, or the template rejects the messages.
            ContextTooLong: the conversation cannot fit.
        """
        return await self._run(
            _num_characters(messages) + _num_characters(tools),
            lambda: self._tokenizer.chat(messages, tools, self._validate_length),
        )

    async def tool_call_format(self) -> ToolCallFormat | None:
        """Return how the chat template writes tool calls, None if it is not supported."""
        return await self._run(0, lambda: self._tokenizer.tool_call_format)

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return await self._run(len(ids), lambda: self._tokenizer.decode(ids))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, special tokens included."""
        return await self._run(len(ids), lambda: [self._tokenizer.token_text(token) for token in ids])

    async def _run(self, size: int, function: Callable[[], T]) -> T:
        if self._closed:
            raise Overloaded("the server is shutting down")
        threads = self._long if size >= _LONG_TEXT else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, function)

    def close(self) -> None:
        """Stop the threads and cancel queued calls."""
        self._closed = True
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def _num_characters(value: Any) -> int:
    """Return the approximate number of characters of a JSON value."""
    size, pending = 0, [value]
    # Without recursion, because clients choose the depth of nesting.
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, (list, tuple)):
            pending += part
        else:
            size += 1
    return size
