"""Requests as the tokens that an engine makes of them: by its own `/tokenize`, or by the model's tokenizer here."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import orjson

from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.apis.json import Json, JsonObject, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.errors import InvalidRequest, SettingsError, UpstreamError, UpstreamUnreachable
from kvproxy.mirror.prompt import Prompt
from kvproxy.upstreams.client import Upstream

UPSTREAM = "upstream"
_SHAPING = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
)
"""Fields of chats and completions that change a prompt's tokens, by vLLM's names."""


class PromptTokenizer(Protocol):
    """Turns requests into tokens and back."""

    async def prompt(self, request: ApiRequest, ask: Sequence[Upstream], seconds: float) -> Prompt:
        """The tokens of a request.

        Args:
            ask: upstreams that may be asked, in this order until one answers.
            seconds: how long to wait for each.

        Raises:
            KvproxyError: they cannot be told.
        """

    async def text(self, tokens: Sequence[int], ask: Sequence[Upstream], seconds: float) -> str:
        """The text of tokens; raises a KvproxyError where nobody can tell."""


def load_tokenizer(name: str) -> PromptTokenizer:
    """The tokenizer that a setting names: `upstream`, `demo`, a folder, or a Hugging Face id.

    Raises:
        SettingsError: it cannot be loaded.
    """
    return UpstreamTokenizer() if name == UPSTREAM else LocalTokenizer(name)


class UpstreamTokenizer:
    """Asks upstreams; `/tokenize` and `/detokenize` as vLLM has them."""

    async def prompt(self, request: ApiRequest, ask: Sequence[Upstream], seconds: float) -> Prompt:
        form = prompt_form(request)
        if isinstance(form, tuple):
            return Prompt(form, salt=_salt(request))
        body: JsonObject = {"model": request.model}
        if request.api.name in ("chat", "completions"):
            body |= {name: request.body[name] for name in _SHAPING if name in request.body}
        if isinstance(form, Conversation):
            body["messages"] = list(form.messages)
            if form.tools:
                body["tools"] = list(form.tools)
        else:
            body["prompt"] = form
        authorization = {name: value for name, value in request.headers.items() if name == "authorization"}
        tokens = (await _ask(ask, "/tokenize", body, authorization, seconds)).get("tokens")
        ids = [token for token in tokens if isinstance(token, int)] if isinstance(tokens, list) else []
        if not ids:
            raise UpstreamUnreachable("the upstream's /tokenize gave no tokens: set forward.tokenizer to the model's")
        return Prompt(ids, salt=_salt(request))

    async def text(self, tokens: Sequence[int], ask: Sequence[Upstream], seconds: float) -> str:
        answer = await _ask(ask, "/detokenize", {"tokens": list(tokens)}, {}, seconds)
        return str(answer.get("prompt", ""))


async def _ask(
    upstreams: Sequence[Upstream], path: str, body: JsonObject, headers: dict[str, str], seconds: float
) -> JsonObject:
    message = "none is up"
    for upstream in upstreams:
        try:
            async with asyncio.timeout(seconds):
                sent = {"content-type": "application/json", **headers}
                reply = await upstream.forward("POST", path, sent, orjson.dumps(body))
                data = await reply.body()
            answer: Json = loads(data) if reply.status == 200 else None
        except TimeoutError:
            message = f"{upstream.url} gave no answer in {seconds:g} s"
        except (UpstreamError, ValueError) as error:
            message = str(error)
        else:
            if isinstance(answer, dict):
                return answer
            message = f"{upstream.url} answered {reply.status}"
    raise UpstreamUnreachable(f"no upstream could {path[1:]} ({message}): set forward.tokenizer to the model's")


class LocalTokenizer:
    """The model's own tokenizer and chat template, on this machine, on threads of their own.

    Raises:
        SettingsError: it cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        from kvproxy.demo import DEMO, model_path
        from kvproxy.engine.text.async_tokenizer import AsyncTokenizer
        from kvproxy.engine.text.tokenizer import ChatTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(model_path() if name == DEMO else name)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"cannot load the tokenizer {name!r} ({error}): see setting forward.tokenizer"
            ) from None
        self._tokenizer = AsyncTokenizer(ChatTokenizer(loaded, frozenset()))

    async def prompt(self, request: ApiRequest, ask: Sequence[Upstream], seconds: float) -> Prompt:
        return Prompt(await self.tokens(prompt_form(request)), salt=_salt(request))

    async def tokens(self, form: PromptInput) -> Sequence[int]:
        """The tokens of a prompt; raises a KvproxyError where the tokenizer or the template refuses it."""
        match form:
            case Conversation():
                return await self._tokenizer.chat(list(form.messages), list(form.tools) or None)
            case str():
                return await self._tokenizer.encode(form)
        return form

    async def words(self, text: str) -> list[int]:
        """A text as a model writes it, without what a prompt begins and ends with."""
        around, ids = await self._tokenizer.encode(""), await self._tokenizer.encode(text)
        begin = next(
            (place for place, (one, other) in enumerate(zip(around, ids, strict=False)) if one != other), len(around)
        )
        return ids[begin : len(ids) - (len(around) - begin)]

    async def text(self, tokens: Sequence[int], ask: Sequence[Upstream], seconds: float) -> str:
        return "".join(await self._tokenizer.token_texts(list(tokens)))


def prompt_form(request: ApiRequest) -> PromptInput:
    """The prompt of a request; Messages and Responses are read as the chats that they amount to.

    Raises:
        InvalidRequest: it has none, or parts that are no text.
    """
    codec = CODECS.get(request.api.name)
    if codec is None:
        raise InvalidRequest(f"{request.api.name} have no prompt that blocks are shared for")
    try:
        return codec.decode_prompt(request.body)
    except (KeyError, TypeError, ValueError):
        # An upstream's requests are not checked here before.
        raise InvalidRequest("the prompt of this request cannot be read here") from None


def _salt(request: ApiRequest) -> str | None:
    salt = request.body.get("cache_salt")
    return salt if isinstance(salt, str) else None
