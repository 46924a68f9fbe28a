"""Requests as the tokens that an upstream makes of them: by its own `/tokenize`, or by the model's tokenizer here."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from kvproxy.errors import InvalidRequest, SettingsError, UpstreamUnreachable
from kvproxy.mirror.match import Prompt
from kvproxy.proxy.backend import Call
from kvproxy.proxy.translate import TRANSLATORS
from kvproxy.proxy.upstream import UpstreamBackend

UPSTREAM = "upstream"


class PromptTokenizer(Protocol):
    """Turns requests into tokens and back."""

    async def prompt(self, call: Call) -> Prompt:
        """The tokens of a request, or a KvproxyError where they cannot be told."""

    async def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


def load_tokenizer(name: str, upstreams: Sequence[UpstreamBackend]) -> PromptTokenizer:
    """The tokenizer that a setting names: `upstream`, `demo`, a folder, or a Hugging Face id."""
    return UpstreamTokenizer(upstreams) if name == UPSTREAM else LocalTokenizer(name)


class UpstreamTokenizer:
    """Asks upstreams, in turn until one answers; `/tokenize` and `/detokenize` as vLLM has them."""

    def __init__(self, upstreams: Sequence[UpstreamBackend]) -> None:
        self._upstreams = upstreams

    async def prompt(self, call: Call) -> Prompt:
        whole = _chat_like(call)
        body = {name: whole[name] for name in ("model", "messages", "tools", "prompt") if whole.get(name)}
        if _is_tokens(body.get("prompt")):
            return Prompt(body["prompt"], salt=call.body.get("cache_salt"))
        authorization = {name: value for name, value in call.headers.items() if name == "authorization"}
        answer = await self._ask("/tokenize", body, authorization)
        if not _is_tokens(answer.get("tokens")):
            raise UpstreamUnreachable("the upstream's /tokenize gave no tokens: set forward.tokenizer to the model's")
        return Prompt(answer["tokens"], salt=call.body.get("cache_salt"))

    async def text(self, tokens: Sequence[int]) -> str:
        answer = await self._ask("/detokenize", {"tokens": list(tokens)}, {})
        return str(answer.get("prompt", ""))

    async def _ask(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        message = ""
        for upstream in self._upstreams:
            try:
                reply = await upstream.forward(
                    "POST", path, {"content-type": "application/json"} | headers, orjson.dumps(body)
                )
                data = b"".join([chunk async for chunk in reply.chunks])
                answer = orjson.loads(data) if reply.status == 200 else None
            except (UpstreamUnreachable, orjson.JSONDecodeError) as error:
                message = str(error)
                continue
            if isinstance(answer, dict):
                return answer
            message = f"it answered {reply.status}"
        raise UpstreamUnreachable(f"no upstream could {path[1:]} ({message}): set forward.tokenizer to the model's")


class LocalTokenizer:
    """The model's own tokenizer and chat template, on this machine.

    Raises:
        SettingsError: it cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        from kvproxy.demo import DEMO, model_path
        from kvproxy.engine.tokenizer import ChatTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(model_path() if name == DEMO else name)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"cannot load the tokenizer {name!r} ({error}): see setting forward.tokenizer"
            ) from None
        self._tokenizer = ChatTokenizer(loaded, frozenset())

    async def prompt(self, call: Call) -> Prompt:
        return Prompt(await asyncio.to_thread(self._tokens, call), salt=call.body.get("cache_salt"))

    def _tokens(self, call: Call) -> list[int]:
        body = _chat_like(call)
        if "messages" in body:
            return self._tokenizer.chat(body["messages"], body.get("tools"))
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        if _is_tokens(prompt):
            return list(prompt)  # type: ignore[arg-type]
        raise InvalidRequest("only chats and single prompts can be turned into tokens here")

    async def text(self, tokens: Sequence[int]) -> str:
        return "".join(map(self._tokenizer.token_text, tokens))


def _chat_like(call: Call) -> dict[str, Any]:
    """The body as a chat or a completion; Messages and Responses are read as the chats that they amount to.

    Raises:
        InvalidRequest: it is neither, or has parts that no chat has.
    """
    if call.endpoint in ("chat", "completions"):
        return call.body
    translator = TRANSLATORS.get(call.endpoint)
    if translator is None:
        raise InvalidRequest(f"{call.endpoint} have no prompt that blocks are shared for")
    return translator.to_chat(call.body)


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)
