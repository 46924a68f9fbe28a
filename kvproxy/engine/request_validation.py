"""Rejects requests that the engine cannot serve."""

from dataclasses import dataclass

from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams
from kvproxy.errors import ContextTooLong, InvalidRequest

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 32
MAX_STOP_LENGTH = 1024
_INTEGERS = {
    "max_tokens": (0, 2**53),
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "n": (1, 128),
}
_OPTIONAL = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
_NUMBERS = {"temperature": (0, 100), "top_p": (0, 1)}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    vocab_size: int
    max_model_len: int
    pool_tokens: int
    default_max_tokens: int | None = None

    @property
    def token_capacity(self) -> int:
        return min(self.max_model_len, self.pool_tokens)

    def validate(self, request: GenerationRequest) -> int:
        """Return the maximum number of output tokens of a request.

        Raises:
            InvalidRequest: a value is out of range.
            ContextTooLong: prompt and output exceed the limit of the model or the block pool.
        """
        validate_sampling(request.sampling)
        _validate_scheduling(request)
        num_prompt_tokens, max_tokens = len(request.tokens), request.sampling.max_tokens
        if num_prompt_tokens == 0:
            raise InvalidRequest("the prompt has no tokens: send some text")
        self.validate_length(num_prompt_tokens, max_tokens)
        # Checked after the length, because it reads every token.
        if not all(type(token) is int and 0 <= token < self.vocab_size for token in request.tokens):
            raise InvalidRequest(f"the prompt has token ids outside the model's vocabulary of {self.vocab_size}")
        if max_tokens is not None:
            return max_tokens
        available = self.token_capacity - num_prompt_tokens
        return available if self.default_max_tokens is None else min(available, self.default_max_tokens)

    def validate_length(self, num_prompt_tokens: int, max_tokens: int | None, *, is_minimum: bool = False) -> None:
        """Raise ContextTooLong if a prompt and its output of `max_tokens` (None: one token) exceed `capacity`.

        With `is_minimum`, the prompt may have more than `num_prompt_tokens` tokens.
        """
        if self.token_capacity - num_prompt_tokens >= (1 if max_tokens is None else max_tokens):
            return
        limit = "the model" if self.token_capacity == self.max_model_len else "the block pool (raise num_blocks)"
        size = f"{'at least ' if is_minimum else ''}{num_prompt_tokens}"
        output = f" and max_tokens {max_tokens}" if max_tokens else ""
        raise ContextTooLong(
            f"a prompt of {size} tokens{output} does not fit {limit}: {self.token_capacity} tokens in all"
        )


def _validate_scheduling(request: GenerationRequest) -> None:
    if type(request.priority) is not int or type(request.queue_priority) is not int:
        raise InvalidRequest("priority must be an integer", param="priority")
    try:
        (request.salt or "").encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest("cache_salt must be a valid Unicode string", param="cache_salt") from None


def validate_sampling(params: SamplingParams) -> None:
    for name, (least, most) in (_INTEGERS | _NUMBERS).items():
        value = getattr(params, name)
        is_valid_type = type(value) is int or (name in _NUMBERS and type(value) is float)
        if (value is not None or name not in _OPTIONAL) and not (is_valid_type and least <= value <= most):
            kind = "a number" if name in _NUMBERS else "an integer"
            raise InvalidRequest(f"{name} must be {kind} from {least} to {most}", param=name)
    texts = params.stop if isinstance(params.stop, tuple) else (None,)
    if len(texts) > MAX_STOP_STRINGS or any(not isinstance(text, str) or len(text) > MAX_STOP_LENGTH for text in texts):
        raise InvalidRequest(
            f"stop must be at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_LENGTH} characters", param="stop"
        )
