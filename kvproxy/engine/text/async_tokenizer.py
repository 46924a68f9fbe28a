"""Tokenizes on threads, for callers on an event loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kvproxy.engine.text.tokenizer import ChatTokenizer, CheckLength, accept_any_length
from kvproxy.engine.text.tool_calls import ToolCallFormat
from kvproxy.errors import Overloaded

T = TypeVar("T")
_NUM_THREADS = 3


class AsyncTokenizer:
    """Runs a tokenizer on its own threads; see `ChatTokenizer`. After `close`, calls raise `Overloaded`.

    Args:
        validate_length: receives the fewest tokens that a prompt can have, and raises an error if they cannot fit.
    """

    def __init__(self, tokenizer: ChatTokenizer, validate_length: CheckLength = accept_any_length) -> None:
        self._tokenizer = tokenizer
        self._validate_length = validate_length
        self._closed = False
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "kvproxy-tokenize")

    async def encode(self, text: str, param: str = "prompt") -> list[int]:
        return await self._run(lambda: self._tokenizer.encode(text, param, self._validate_length))

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None, scope: str = ""
    ) -> list[int]:
        return await self._run(lambda: self._tokenizer.chat(messages, tools, self._validate_length, scope))

    async def keep_answer(self, prompt: Sequence[int], answer: Sequence[int], text: str, scope: str) -> None:
        await self._run(lambda: self._tokenizer.keep_answer(prompt, answer, text, scope))

    async def tool_call_format(self) -> ToolCallFormat | None:
        return await self._run(lambda: self._tokenizer.tool_call_format)

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._run(lambda: self._tokenizer.decode(ids))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        return await self._run(lambda: [self._tokenizer.token_text(token) for token in ids])

    async def _run(self, function: Callable[[], T]) -> T:
        if self._closed:
            raise Overloaded("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
