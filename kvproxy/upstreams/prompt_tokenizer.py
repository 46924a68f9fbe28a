"""Tokenizes requests with the engine's `/tokenize`, or with a tokenizer in this process."""

from collections.abc import Sequence
from typing import TypeAlias

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.apis.json import JsonObject, field
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.errors import InvalidRequest, SettingsError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt

_UPSTREAM = "upstream"
# vLLM's fields that change the tokens of a prompt.
_TOKENIZER_FIELDS = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
)


_INVALID = (400, 413, 422)


class UpstreamTokenizer:
    async def tokenize_request(self, request: ApiRequest, client: UpstreamClient, seconds: float) -> HashedPrompt:
        source = prompt_input(request)
        if isinstance(source, tuple):
            return HashedPrompt(source, salt=cache_salt(request))
        body: JsonObject = {"model": request.model}
        if request.api.name in ("chat", "completions"):
            body |= {name: request.body[name] for name in _TOKENIZER_FIELDS if name in request.body}
        body |= source.chat_fields() if isinstance(source, Conversation) else {"prompt": source}
        authorization = {name: value for name, value in request.headers.items() if name == "authorization"}
        tokens = (await _post(client, "/tokenize", body, authorization, seconds)).get("tokens")
        ids = [token for token in tokens if isinstance(token, int)] if isinstance(tokens, list) else []
        if not ids:
            raise UpstreamUnreachable(
                "the upstream's /tokenize returned no tokens: set forward.tokenizer to the model's tokenizer"
            )
        return HashedPrompt(ids, salt=cache_salt(request))

    async def detokenize(self, tokens: Sequence[int], client: UpstreamClient, seconds: float) -> str:
        reply = await _post(client, "/detokenize", {"tokens": list(tokens)}, {}, seconds)
        return str(reply.get("prompt", ""))


async def _post(
    client: UpstreamClient, path: str, body: JsonObject, headers: dict[str, str], seconds: float
) -> JsonObject:
    kind: type[UpstreamError] = UpstreamUnreachable
    try:
        status, reply = await client.call_json("POST", path, body, headers, seconds=seconds)
    except UpstreamError as error:
        failure = error.message
        kind = UpstreamTimeout if isinstance(error, UpstreamTimeout) else kind
    else:
        if status == 200 and isinstance(reply, dict):
            return reply
        if status in _INVALID or field(field(reply, "error"), "param") == "model":
            raise InvalidRequest(f"{client.url}{path} refuses this prompt with status {status}")
        failure = f"{client.url} answered {status}"
    raise kind(f"{path} failed ({failure}): set forward.tokenizer to the model's tokenizer")


class LocalTokenizer:
    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        from kvproxy.demo import DEMO, model_path
        from kvproxy.engine.text.tokenizer import AsyncTokenizer, ChatTokenizer
        from kvproxy.index.models.hugging_face_hub import must_load_from_cache

        source = str(model_path()) if name == DEMO else name
        try:
            loaded = AutoTokenizer.from_pretrained(source, local_files_only=must_load_from_cache(source))
        except (OSError, ValueError) as error:
            cause = str(error).partition("\n")[0]
            raise SettingsError(
                f"cannot load the tokenizer {name!r} ({cause}): correct --tokenizer, or the setting forward.tokenizer"
            ) from None
        self._tokenizer = AsyncTokenizer(ChatTokenizer(loaded, frozenset()))

    async def tokenize_request(self, request: ApiRequest, client: UpstreamClient, seconds: float) -> HashedPrompt:
        return HashedPrompt(await self.encode(prompt_input(request)), salt=cache_salt(request))

    async def encode(self, source: PromptInput) -> Sequence[int]:
        match source:
            case Conversation():
                return await self._tokenizer.chat(list(source.messages), list(source.tools) or None)
            case str():
                return await self._tokenizer.encode(source)
        return source

    async def encode_output(self, text: str) -> list[int]:
        """Tokenize an output, without the special tokens that the tokenizer adds to a prompt."""
        special, ids = await self._tokenizer.encode(""), await self._tokenizer.encode(text)
        begin = common_prefix_length(special, ids)
        return ids[begin : len(ids) - (len(special) - begin)]

    async def detokenize(self, tokens: Sequence[int], client: UpstreamClient, seconds: float) -> str:
        return await self._tokenizer.decode_with_special_tokens(tokens)


PromptTokenizer: TypeAlias = UpstreamTokenizer | LocalTokenizer


def load_tokenizer(name: str) -> PromptTokenizer:
    """Load the setting `forward.tokenizer`: `upstream`, `demo`, a folder, or a Hugging Face id. Raises SettingsError."""
    return UpstreamTokenizer() if name == _UPSTREAM else LocalTokenizer(name)


def prompt_input(request: ApiRequest) -> PromptInput:
    """Return the prompt of a request. Raises InvalidRequest if it is missing or multimodal."""
    codec = CODECS.get(request.api.name)
    if codec is None:
        raise InvalidRequest(f"requests to {request.api.name} have no prompt with a prefix cache")
    try:
        return codec.decode_prompt(request.body)
    except (KeyError, TypeError, ValueError):
        # Requests to an upstream are not validated before.
        raise InvalidRequest("the prompt of this request is not valid") from None


def cache_salt(request: ApiRequest) -> str | None:
    salt = request.body.get("cache_salt")
    return salt if isinstance(salt, str) else None
