"""Caches token ids of chat segments: only the new segments of a continued chat are tokenized.

A segment begins with an added token such as `<|im_start|>`. A fast tokenizer tokenizes segments independently. The cache
finds added tokens by a regular expression, and ignores those that the tokenizer may not find at the same place.
"""

import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

_MAX_BYTES = 64 * 2**20
_ENTRY_OVERHEAD_BYTES = 400


class SegmentCache:
    """Caches the token ids of recent segments. Thread-safe. `encode` tokenizes a text without adding special tokens."""

    def __init__(self, tokenizer: Any, encode: Callable[[str], list[int]], max_bytes: int = _MAX_BYTES) -> None:
        self._boundary = _boundary_pattern(tokenizer)
        self._tokenizer = tokenizer
        self._encode = encode
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._bytes = 0
        self._ids: OrderedDict[tuple[str, str], array[int]] = OrderedDict()

    def encode(self, text: str, scope: str = "") -> list[int]:
        """Return the token ids of a text. Scopes (tenants) share no entries, to prevent timing attacks."""
        if self._boundary is None:
            return self._encode(text)
        ids: list[int] = []
        # The result has the text before the first boundary, then each boundary and the text after it.
        first, *rest = self._boundary.split(text)
        segments = [first, *map("".join, zip(rest[::2], rest[1::2], strict=True))]
        for segment in filter(None, segments):
            ids.extend(self._segment_ids(scope, segment))
        return ids

    def _segment_ids(self, scope: str, segment: str) -> Iterable[int]:
        key = (scope, segment)
        with self._lock:
            if (cached := self._ids.get(key)) is not None:
                self._ids.move_to_end(key)
                return cached
        ids = array("I", self._encode(segment))
        self._store(key, ids)
        return ids

    def _store(self, key: tuple[str, str], ids: "array[int]") -> None:
        with self._lock:
            if (before := self._ids.pop(key, None)) is not None:
                self._bytes -= _entry_bytes(key, before)
            self._ids[key] = ids
            self._bytes += _entry_bytes(key, ids)
            while self._bytes > self._max_bytes:
                self._bytes -= _entry_bytes(*self._ids.popitem(last=False))

    def add_output(self, prompt: Sequence[int], output: Sequence[int], text: str, scope: str = "") -> None:
        """Make `encode` return the generated tokens of an output, because the tokenizer may split its text differently.

        `output` has no end token, and `text` is its text as the client received it.
        """
        if self._boundary is None or self._boundary.search(text):
            return
        start = next((place for place in reversed(range(len(prompt))) if self._begins_segment(prompt[place])), None)
        if start is not None:
            segment, tokens = self._decode(prompt[start:]) + text, [*prompt[start:], *output]
            if self._decode(tokens) == segment:
                self._store((scope, segment), array("I", tokens))

    def _begins_segment(self, token: int) -> bool:
        assert self._boundary is not None
        return self._boundary.fullmatch(self._tokenizer.convert_ids_to_tokens(token) or "") is not None

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _entry_bytes(key: tuple[str, str], ids: "array[int]") -> int:
    return _ENTRY_OVERHEAD_BYTES + sys.getsizeof(key[1]) + ids.itemsize * len(ids)


def _boundary_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not tokenizer.is_fast or backend is None or backend.encode_special_tokens or tokenizer.split_special_tokens:
        return None
    first = [token for token in tokenizer.added_tokens_decoder.values() if not token.normalized]
    # A pattern of all added tokens is slow: some vocabularies have thousands. Another token that contains a token, or ends
    # with its beginning, may hide it from the tokenizer.
    rendered = _render_sample(tokenizer)
    safe = [
        token.content
        for token in first
        if token.content and token.content in rendered and not token.lstrip and not token.single_word
        if not any(_may_overlap(other.content, token.content) for other in first)
    ]
    return re.compile(f"({'|'.join(map(re.escape, safe))})") if safe else None


def _render_sample(tokenizer: Any) -> str:
    chat = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    try:
        return str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))
    except Exception:
        # Templates raise arbitrary errors; there may be no template.
        return ""


def _may_overlap(other: str, token: str) -> bool:
    ends = any(token.startswith(other[start:]) for start in range(1, len(other)))
    return ends or (other != token and token in other)
