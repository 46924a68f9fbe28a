"""A tokenizer for callers on an event loop: it works on threads of its own, and refuses what can never fit."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.engine.text.tool_calls import ToolCallFormat
from kvproxy.errors import Overloaded

T = TypeVar("T")
_LONG = 64 << 10
"""Characters from which on a text has to wait behind other long ones, so that short ones never do."""


class AsyncTokenizer:
    """Tokenises beside the event loop.

    A fast tokenizer lets Python go on while it encodes, so a text of 4 MB holds nobody up; a slow one encodes one text
    at a time. A call that is cancelled before its turn is dropped. Every call raises Overloaded once it is closed.

    Args:
        tokenizer: does the work; its methods tell what each call raises.
        check_length: refuses a prompt that has at least so many tokens; by default none is refused.
    """

    def __init__(self, tokenizer: ChatTokenizer, check_length: Callable[[int], None] = lambda at_least: None) -> None:
        self._tokenizer = tokenizer
        self._check = check_length
        self._closed = False
        self._short = ThreadPoolExecutor(2, "kvproxy-tokenize")
        self._long = ThreadPoolExecutor(1, "kvproxy-tokenize-long")

    async def encode(self, text: str, param: str = "prompt") -> list[int]:
        """Ids of a raw prompt.

        Raises:
            InvalidRequest: the text is not valid Unicode; the error names the field `param`.
            ContextTooLong: so long a text can never fit.
        """
        return await self._run(len(text), lambda: self._tokenizer.encode(text, param, self._check))

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation up to where the assistant speaks.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
            ContextTooLong: so long a conversation can never fit.
        """
        return await self._run(
            _size(messages) + _size(tools), lambda: self._tokenizer.chat(messages, tools, self._check)
        )

    async def call_form(self) -> ToolCallFormat | None:
        """How the chat template writes calls of tools; None where it cannot."""
        return await self._run(0, lambda: self._tokenizer.call_form)

    async def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return await self._run(len(ids), lambda: self._tokenizer.decode(ids))

    async def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, special tokens included."""
        return await self._run(len(ids), lambda: [self._tokenizer.token_text(token) for token in ids])

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        if self._closed:
            raise Overloaded("the server is shutting down")
        threads = self._long if size >= _LONG else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """End the threads; calls that wait are cancelled."""
        self._closed = True
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def _size(value: Any) -> int:
    """About the characters of a JSON value: enough to tell a long one."""
    size, left = 0, [value]
    # Not by recursion: a client chooses how deep its tools are nested.
    while left:
        part = left.pop()
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, dict):
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
        else:
            size += 1
    return size
