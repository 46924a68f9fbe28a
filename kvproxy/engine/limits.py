"""What an engine can take on, so that a bad request is refused before it meets the others."""

import math
from dataclasses import dataclass

from kvproxy.errors import ContextTooLong, InvalidRequest
from kvproxy.generation import GenerationRequest, SamplingParams

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 32
MAX_STOP_LENGTH = 1024
_WHOLE_NUMBERS = {
    "max_tokens": (0, 2**53),
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "n": (1, MAX_N),
}
_OPTIONAL = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
_NUMBERS = {"temperature": (0, 100), "top_p": (0, 1)}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of a model and its pool.

    Attributes:
        vocab_size: ids that the model knows.
        max_model_len: tokens of the longest sequence that the model takes.
        pool_tokens: tokens that the block pool holds.
    """

    vocab_size: int
    max_model_len: int
    pool_tokens: int

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that model and pool can hold."""
        return min(self.max_model_len, self.pool_tokens)

    def check(self, request: GenerationRequest) -> int:
        """Most tokens that may be generated for a request.

        Raises:
            InvalidRequest: the prompt is empty or has tokens that the model does not know, or a value cannot be computed with.
            ContextTooLong: prompt and answer can never fit.
        """
        check_sampling(request.sampling)
        _check_order(request)
        prompt, asked = len(request.tokens), request.sampling.max_tokens
        if prompt == 0:
            raise InvalidRequest("the prompt has no tokens: send some text")
        self.check_length(prompt, asked)
        # After the length, so that a huge prompt costs nothing.
        if not all(type(token) is int and 0 <= token < self.vocab_size for token in request.tokens):
            raise InvalidRequest(f"the prompt has ids beyond the model's {self.vocab_size} tokens")
        return self.capacity - prompt if asked is None else asked

    def check_length(self, prompt: int, asked: int | None, *, at_least: bool = False) -> None:
        """Refuse a prompt of so many tokens, `at_least` so many, that leaves no room for the tokens asked for.

        Raises:
            ContextTooLong: it can never fit.
        """
        if self.capacity - prompt >= (1 if asked is None else asked):
            return
        limit = "the model" if self.capacity == self.max_model_len else "the block pool (raise num_blocks)"
        size = f"{'at least ' if at_least else ''}{prompt}"
        answer = f" and max_tokens {asked}" if asked else ""
        raise ContextTooLong(f"a prompt of {size} tokens{answer} does not fit {limit}: {self.capacity} tokens in all")


def _check_order(request: GenerationRequest) -> None:
    """Refuse what would fail where requests are ordered and blocks are named, which is done for all requests together."""
    if type(request.priority) is not int or type(request.queue_priority) is not int:
        raise InvalidRequest("priority takes a whole number", param="priority")
    try:
        (request.salt or "").encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest("cache_salt takes a text of whole characters", param="cache_salt") from None


def check_sampling(params: SamplingParams) -> None:
    """Refuse values that the engine cannot compute with.

    Raises:
        InvalidRequest: a value is of the wrong kind or out of its range; the message names the field and what it takes.
    """
    for name, (least, most) in _WHOLE_NUMBERS.items():
        value = getattr(params, name)
        if value is None and name in _OPTIONAL:
            continue
        # A bool is an int to Python, and no number to a client.
        if type(value) is not int or not least <= value <= most:
            raise InvalidRequest(f"{name} takes a whole number from {least} to {most}", param=name)
    for name, (least, most) in _NUMBERS.items():
        value = getattr(params, name)
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise InvalidRequest(f"{name} takes a number from {least} to {most}", param=name)
    texts = params.stop if isinstance(params.stop, tuple) else (None,)
    if len(texts) > MAX_STOP_STRINGS or any(not isinstance(text, str) or len(text) > MAX_STOP_LENGTH for text in texts):
        raise InvalidRequest(
            f"stop takes at most {MAX_STOP_STRINGS} texts of at most {MAX_STOP_LENGTH} characters", param="stop"
        )
