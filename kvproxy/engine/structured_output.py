"""Structured outputs: llguidance computes the tokens that a grammar allows next."""

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvproxy.apis.codecs.generation import Grammar
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.engine.text.tool_calls import COMPACT_JSON
from kvproxy.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_CACHED_GRAMMARS = 64


def allowed_tokens(matchers: "Sequence[LLMatcher | None]", vocabulary: int) -> torch.Tensor:
    """Return the mask `[rows, vocabulary]` of the tokens that each row's grammar allows next. None allows all tokens."""
    bitmask = np.full((len(matchers), -(-vocabulary // 32)), -1, np.int32)
    for row, matcher in zip(bitmask, matchers, strict=True):
        if matcher is not None:
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    mask = np.unpackbits(bitmask.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return torch.from_numpy(mask.view(np.bool_))


class GrammarCompiler:
    """Compiles grammars for a model's tokenizer, and caches them. Thread-safe."""

    def __init__(self, tokenizer: ChatTokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = Lock()
        self._llguidance_tokenizer: LLTokenizer | None = None
        self._compile_cached = lru_cache(_CACHED_GRAMMARS)(self._compile)

    def create_matcher(self, grammar: Grammar) -> "LLMatcher":
        """Return a new matcher for one output. The first call for a grammar takes up to a second."""
        with self._lock:
            return self._compile_cached(grammar).deep_copy()

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        from llguidance import LLMatcher

        if self._llguidance_tokenizer is None:
            self._llguidance_tokenizer = self._tokenizer.to_llguidance(self._vocabulary)
        param = "response_format" if grammar.kind == "json_schema" else "tools"
        try:
            text = (
                LLMatcher.grammar_from_json_schema(grammar.text, overrides=COMPACT_JSON)  # type: ignore[arg-type]
                if grammar.kind == "json_schema"
                else LLMatcher.grammar_from_lark(grammar.text)
            )
        except ValueError as error:
            raise InvalidRequest(f"the schema is invalid: {error}", param=param) from None
        matcher = LLMatcher(self._llguidance_tokenizer, text, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()[0]
            raise InvalidRequest(f"the schema is not supported: {reason}", param=param)
        return matcher
