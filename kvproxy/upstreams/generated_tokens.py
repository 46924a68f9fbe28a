"""Keeps the tokens that vLLM generated in the prompts of later turns.

The text of an answer may have other tokens than the engine generated, and then the engine reuses nothing after them. The mirror
has the cached tokens after the first difference. If they have the same text, they replace the tokens of the text.

vLLM renders the request itself (`/render` with `--enable-scale-out`), so the prompt is the same. It takes the tokens in
`kv_transfer_params.prompt_token_ids`, and still applies its parsers of reasoning and tool calls.
"""

import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvproxy.apis.json import Json, JsonObject, dumps, field
from kvproxy.apis.request import ApiRequest
from kvproxy.errors import KvproxyError
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.match import compute_hashes
from kvproxy.upstreams.client import UpstreamClient

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

_APIS = ("chat", "messages")
_PARAMETERS = "kv_transfer_params"
_SECONDS = 5.0
_RETRY_SECONDS = 60.0
"""Pause after an error, such as of a server without the route."""
_MAX_ANSWERS = 8
"""Differences that are repaired in one request."""
_MAX_BYTES = 64 * 2**20
_INCOMPLETE = "\ufffd"
"""Decoded from the beginning of a character."""
_log = logging.getLogger("kvproxy")


class GeneratedTokens:
    """Prompts of one engine with generated tokens."""

    def __init__(self, client: UpstreamClient, mirror: "Mirror", max_bytes: int = _MAX_BYTES) -> None:
        self._client = client
        self._mirror = mirror
        self._max_bytes = max_bytes
        self._bytes = 0
        self._prefixes: OrderedDict[int, array[int]] = OrderedDict()
        """Restored prefixes, by the hash of the last block of the same prefix without generated tokens."""
        self._next_try = 0.0

    async def restored(self, request: ApiRequest) -> ApiRequest:
        """Return a chat request with its prompt's tokens; the request itself if the tokens of its text are cached."""
        if request.api.name not in _APIS or request.body.get(_PARAMETERS) or time.monotonic() < self._next_try:
            return request
        try:
            tokens = await self._restored_tokens(request)
        except (KvproxyError, ValueError) as error:
            self._next_try = time.monotonic() + _RETRY_SECONDS
            _log.warning("%s: the tokens of earlier answers are not restored: %s", self._client.url, error)
            return request
        if tokens is None:
            return request
        body: JsonObject = {**request.body, _PARAMETERS: {"prompt_token_ids": list[Json](tokens)}}
        return replace(request, body=body, raw=dumps(body))

    async def _restored_tokens(self, request: ApiRequest) -> Sequence[int] | None:
        headers = {name: value for name, value in request.headers.items() if name in ("authorization", "x-api-key")}
        rendered = await self._post(f"{request.api.path}/render", request.body, headers)
        salt = request.body.get("cache_salt")
        plain = HashedPrompt(_token_ids(rendered, "token_ids"), salt=salt if isinstance(salt, str) else None)
        await compute_hashes(plain, [self._mirror])
        start, prompt = self._with_known_prefix(plain)
        for _ in range(_MAX_ANSWERS):
            following = self._mirror.tokens_after(prompt)
            spliced = (
                None if following is None else await self._spliced(prompt.tokens, *following, request.model, headers)
            )
            if spliced is None:
                break
            prompt = HashedPrompt(spliced, salt=prompt.salt)
            await compute_hashes(prompt, [self._mirror])
        if prompt.tokens == plain.tokens:
            return None
        self._keep_prefix(plain, prompt.tokens, start)
        return prompt.tokens

    def _with_known_prefix(self, plain: HashedPrompt) -> tuple[int | None, HashedPrompt]:
        """Return the key of the longest restored prefix, and the prompt with it."""
        for hasher, size in self._mirror.hash_schemes():
            numbers = plain.block_hashes(hasher, size).numbers
            for index in reversed(range(len(numbers))):
                if (known := self._prefixes.get(numbers[index])) is not None:
                    rest = plain.tokens[(index + 1) * size :]
                    return numbers[index], HashedPrompt([*known, *rest], salt=plain.salt)
        return None, plain

    def _keep_prefix(self, plain: HashedPrompt, tokens: Sequence[int], replaced: int | None) -> None:
        """Keep the tokens up to the first block of the prompt after which both have the same tokens."""
        pairs = zip(reversed(plain.tokens), reversed(tokens), strict=False)
        same = next((count for count, (one, other) in enumerate(pairs) if one != other), len(plain.tokens))
        for hasher, size in self._mirror.hash_schemes():
            count = -(-(len(plain.tokens) - same) // size)
            if 0 < count <= len(plain.tokens) // size:
                if replaced is not None and (before := self._prefixes.pop(replaced, None)) is not None:
                    self._bytes -= len(before) * before.itemsize
                prefix = array("I", tokens[: len(tokens) - (len(plain.tokens) - count * size)])
                self._prefixes[plain.block_hashes(hasher, size).numbers[count - 1]] = prefix
                self._bytes += len(prefix) * prefix.itemsize
                while self._bytes > self._max_bytes:
                    _, oldest = self._prefixes.popitem(last=False)
                    self._bytes -= len(oldest) * oldest.itemsize
                return

    async def _spliced(
        self, tokens: list[int], start: int, chains: list[list[int]], size: int, model: str, headers: dict[str, str]
    ) -> list[int] | None:
        """Return the tokens with the longest chain of cached blocks after `start` that has the same text; None without one."""
        text = await self._text(tokens[start:], model, headers)
        for chain in chains:
            end = await self._same_end(text, chain, size, model, headers)
            for length in range(end, 0, -size):
                cached = chain[:length]
                for rest in await self._rests(text, await self._text(cached, model, headers), model, headers):
                    if await self._text([*cached, *rest], model, headers) == text:
                        return [*tokens[:start], *cached, *rest]
        return None

    async def _rests(self, text: str, beginning: str, model: str, headers: dict[str, str]) -> list[list[int]]:
        """Return the possible tokens of a text after its beginning, which may end within a character."""
        if text.startswith(beginning):
            return [await self._tokens(text[len(beginning) :], model, headers)]
        place = len(beginning.rstrip(_INCOMPLETE))
        character = await self._tokens(text[place : place + 1], model, headers)
        rest = await self._tokens(text[place + 1 :], model, headers)
        return [[*character[count:], *rest] for count in range(1, len(character))]

    async def _same_end(self, text: str, chain: list[int], size: int, model: str, headers: dict[str, str]) -> int:
        """Return the length of the longest beginning of a chain whose text begins `text`."""
        low, high, middle = 0, len(chain) // size, 1
        while low < high:
            beginning = await self._text(chain[: middle * size], model, headers)
            if text.startswith(beginning.rstrip(_INCOMPLETE)):
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low * size

    async def _tokens(self, text: str, model: str, headers: dict[str, str]) -> list[int]:
        sent: JsonObject = {"model": model, "prompt": text, "add_special_tokens": False}
        return _token_ids(await self._post("/tokenize", sent, headers), "tokens") if text else []

    async def _text(self, tokens: list[int], model: str, headers: dict[str, str]) -> str:
        sent: JsonObject = {"model": model, "tokens": list[Json](tokens)}
        return str(field(await self._post("/detokenize", sent, headers), "prompt") or "")

    async def _post(self, path: str, body: JsonObject, headers: dict[str, str]) -> Json:
        status, reply = await self._client.call("POST", path, body, headers, seconds=_SECONDS)
        if status != 200:
            raise ValueError(f"{path} answered {status}: start vLLM with --enable-scale-out")
        return reply


def _token_ids(reply: Json, name: str) -> list[int]:
    found = field(reply, name)
    tokens = [token for token in found if isinstance(token, int)] if isinstance(found, list) else []
    if not tokens:
        raise ValueError("the response has no tokens")
    return tokens
