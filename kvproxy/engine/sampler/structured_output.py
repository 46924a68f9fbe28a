"""Answers that follow a grammar: which tokens may come next, by llguidance."""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 64
"""Grammars that are kept ready; a large schema takes a second to make."""
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line: with any whitespace allowed, a small model writes newlines until its tokens are used up."""


class GrammarMatcher:
    """How far one answer has come in its grammar."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self._forced: deque[int] = deque()

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> None:
        """Note the token that was chosen.

        Raises:
            RuntimeError: the grammar does not allow it, or has become too large to follow.
        """
        # An end token is refused where it was not expected, which only a request that ignores it can bring about.
        if not self._matcher.consume_token(token):
            raise RuntimeError(f"the grammar cannot be followed: {self._matcher.get_error()}")
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()

    def fork(self) -> "GrammarMatcher":
        """Another answer that has come as far."""
        return GrammarMatcher(self._matcher.deep_copy())

    def forced(self) -> int | None:
        """The only token that may come next; None where there are several."""
        if not self._forced:
            # Several at a time, such as a property's name: their number in the vocabulary is looked up once.
            self._forced.extend(self._matcher.compute_ff_tokens())
        return self._forced[0] if self._forced else None

    def allows(self, token: int) -> bool:
        """Whether a token may come next where none is forced; a fraction of the work of `fill`."""
        return self._matcher.validate_tokens([token]) == 1

    def fill(self, row: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> None:
        """Write the tokens that may come next, a bit each."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def allowed_tokens(matchers: Sequence[GrammarMatcher | None], vocabulary: int) -> torch.Tensor:
    """Which tokens may come next in each row, `[rows, vocabulary]`; all of them in rows without a matcher."""
    words = -(-vocabulary // 32)
    bits = np.full((len(matchers), words), -1, np.int32)
    for row, matcher in zip(bits, matchers, strict=True):
        if matcher is not None:
            matcher.fill(row)
    mask = np.unpackbits(bits.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return torch.from_numpy(mask.view(np.bool_))


class GrammarCompiler:
    """Grammars for the tokens of one model, safe across threads.

    Args:
        tokenizer: the model's.
        vocabulary: ids that the model's logits have.
    """

    def __init__(self, tokenizer: ChatTokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = Lock()
        self._own: LLTokenizer | None = None
        self._ready = lru_cache(_KEPT)(self._compile)

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the beginning of an answer. The first one of a model takes a second, of a grammar milliseconds.

        Raises:
            InvalidRequest: the grammar says what cannot be followed, or the model's tokenizer is of no known kind.
        """
        with self._lock:
            return self._ready(grammar).fork()

    def _compile(self, grammar: Grammar) -> GrammarMatcher:
        from llguidance import LLMatcher

        if self._own is None:
            self._own = self._tokenizer.for_grammars(self._vocabulary)
        param = "response_format" if grammar.kind == "json_schema" else "tools"
        try:
            text = (
                LLMatcher.grammar_from_json_schema(grammar.text, overrides=_COMPACT)  # type: ignore[arg-type]
                if grammar.kind == "json_schema"
                else LLMatcher.grammar_from_lark(grammar.text)
            )
        except ValueError as error:
            raise InvalidRequest(f"the schema cannot be read: {error}", param=param) from None
        made = LLMatcher(self._own, text, log_level=0)
        if made.is_error():
            reason = made.get_error().strip().splitlines()[0]
            raise InvalidRequest(f"the schema cannot be followed: {reason}", param=param)
        return GrammarMatcher(made)
