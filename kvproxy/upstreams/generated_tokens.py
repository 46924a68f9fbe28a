"""Restores the tokens that vLLM generated for earlier answers of a conversation.

The client sends earlier answers as text. The tokenizer may split an answer into other tokens than the engine generated, so that
the cached prefix ends there. If tokens in the engine's mirror decode to the same text, they replace the tokenizer's tokens.

vLLM renders the prompt (`/render`, with `--enable-scale-out`). The restored prompt is sent in
`kv_transfer_params.prompt_token_ids`. vLLM still parses reasoning and tool calls.
"""

import logging
import time
from array import array
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, field
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.errors import KvproxyError
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.mirror.prefix_match import CachedChains
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt, compute_hashes
from kvproxy.upstreams.prompt_tokenizer import cache_salt

if TYPE_CHECKING:
    from kvproxy.upstreams.mirror.mirror import Mirror

_APIS = ("chat", "messages")
_PARAMETERS = "kv_transfer_params"
_SECONDS = 5.0
_RETRY_SECONDS = 60.0  # After an error, for example if the server has no `/render`.
_MAX_RESTORED_ANSWERS = 8
_MAX_PREFIXES = 128
MAX_PREFIX_TOKENS = 4_000_000
_INCOMPLETE = "\ufffd"  # Ends a detokenized text if the last token ends within a character.
_log = logging.getLogger("kvproxy")


class TokenRestorer:
    def __init__(self, client: UpstreamClient, mirror: "Mirror") -> None:
        self._client = client
        self._mirror = mirror
        # Restored beginnings of prompts, by the last block hash of the beginning before the restore.
        self._prefixes: OrderedDict[int, array[int]] = OrderedDict()
        self._next_try = 0.0

    async def restore(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the tokens of its prompt, in which earlier answers have the tokens that vLLM generated.

        Return the same request if the tokenizer's tokens are equal, if the API or the client's fields do not allow
        restoring, or if vLLM failed within the last minute.
        """
        if request.api.name not in _APIS or request.body.get(_PARAMETERS) or time.monotonic() < self._next_try:
            return request
        try:
            tokens = await self._restored_prompt_tokens(request)
        except (KvproxyError, ValueError) as error:
            self._next_try = time.monotonic() + _RETRY_SECONDS
            _log.warning("%s: the tokens of earlier answers are not restored: %s", self._client.url, error)
            return request
        if tokens is None:
            return request
        body: JsonObject = {**request.body, _PARAMETERS: {"prompt_token_ids": list[Json](tokens)}}
        return replace(request, body=body, raw=dumps(body))

    async def _restored_prompt_tokens(self, request: ApiRequest) -> list[int] | None:
        rendered = await self._post(f"{request.api.path}/render", request.body, request)
        tokenized = HashedPrompt(_token_ids(rendered, "token_ids"), salt=cache_salt(request))
        await compute_hashes(tokenized, [self._mirror])
        prompt = HashedPrompt(self._restore_known_prefix(tokenized), salt=tokenized.salt)
        for _ in range(_MAX_RESTORED_ANSWERS):
            await compute_hashes(prompt, [self._mirror])
            cached = self._mirror.chains_after_prefix(prompt)
            tokens = None if cached is None else await self._restore_next_answer(prompt.tokens, cached, request)
            if tokens is None:
                break
            prompt = HashedPrompt(tokens, salt=prompt.salt)
        if prompt.tokens == tokenized.tokens:
            return None
        self._store_restored_prefix(tokenized, prompt.tokens)
        return prompt.tokens

    def _restore_known_prefix(self, tokenized: HashedPrompt) -> list[int]:
        for size in self._mirror.hash_block_sizes():
            _, numbers = tokenized.block_hashes(self._mirror.hasher, size)
            for index in reversed(range(len(numbers))):
                if (known := self._prefixes.pop(numbers[index], None)) is not None:
                    self._prefixes[numbers[index]] = known
                    return [*known, *tokenized.tokens[(index + 1) * size :]]
        return tokenized.tokens

    def _store_restored_prefix(self, tokenized: HashedPrompt, tokens: list[int]) -> None:
        same = common_prefix_length(tokenized.tokens[::-1], tokens[::-1])
        for size in self._mirror.hash_block_sizes():
            _, numbers = tokenized.block_hashes(self._mirror.hasher, size)
            # The block of `tokenized` with its last restored token.
            last = (len(tokenized.tokens) - same - 1) // size
            if last < len(numbers):
                rest = len(tokenized.tokens) - (last + 1) * size
                self._prefixes[numbers[last]] = array("I", tokens[: len(tokens) - rest])
        while len(self._prefixes) > _MAX_PREFIXES or sum(map(len, self._prefixes.values())) > MAX_PREFIX_TOKENS:
            self._prefixes.popitem(last=False)

    async def _restore_next_answer(
        self, tokens: list[int], cached: CachedChains, request: ApiRequest
    ) -> list[int] | None:
        start, size = cached.prefix_tokens, cached.block_size
        text = await self._detokenize(tokens[start:], request)
        for chain in cached.chains:
            # Most chains differ in their first block.
            low, high, middle = 0, len(chain) // size, 1
            while low < high:
                beginning = await self._detokenize(chain[: middle * size], request)
                is_same = text.startswith(beginning.rstrip(_INCOMPLETE))
                low, high = (middle, high) if is_same else (low, middle - 1)
                middle = (low + high + 1) // 2
            for length in range(low * size, 0, -size):
                for rest in await self._possible_rest_tokens(
                    text, await self._detokenize(chain[:length], request), request
                ):
                    if await self._detokenize([*chain[:length], *rest], request) == text:
                        return [*tokens[:start], *chain[:length], *rest]
        return None

    async def _possible_rest_tokens(self, text: str, beginning: str, request: ApiRequest) -> list[list[int]]:
        if text.startswith(beginning):
            return [await self._tokenize(text[len(beginning) :], request)]
        # The next bytes of an incomplete character may begin with several tokens.
        place = len(beginning.rstrip(_INCOMPLETE))
        character = await self._tokenize(text[place : place + 1], request)
        rest = await self._tokenize(text[place + 1 :], request)
        return [[*character[count:], *rest] for count in range(1, len(character))]

    async def _tokenize(self, text: str, request: ApiRequest) -> list[int]:
        sent: JsonObject = {"model": request.model, "prompt": text, "add_special_tokens": False}
        return _token_ids(await self._post("/tokenize", sent, request), "tokens") if text else []

    async def _detokenize(self, tokens: list[int], request: ApiRequest) -> str:
        sent: JsonObject = {"model": request.model, "tokens": list[Json](tokens)}
        return str(field(await self._post("/detokenize", sent, request), "prompt") or "")

    async def _post(self, path: str, body: JsonObject, request: ApiRequest) -> Json:
        headers = {name: value for name, value in request.headers.items() if name in ("authorization", "x-api-key")}
        status, reply = await self._client.call_json("POST", path, body, headers, seconds=_SECONDS)
        if status != 200:
            raise ValueError(f"{path} answered {status}: start vLLM with --enable-scale-out")
        return reply


def _token_ids(reply: Json, name: str) -> list[int]:
    tokens = field(reply, name)
    if not isinstance(tokens, list) or not tokens:
        raise ValueError("the response has no tokens")
    return [token for token in tokens if isinstance(token, int)]
