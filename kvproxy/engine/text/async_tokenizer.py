import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kvproxy.engine.text.tokenizer import ChatTokenizer, CheckLength, accept_any_length
from kvproxy.errors import Overloaded

T = TypeVar("T")
_NUM_THREADS = 3


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
