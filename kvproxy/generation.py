"""The interface between the APIs and the embedded engine: requests and their output."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
_GREEDY = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stop conditions, as in vLLM.

    Attributes:
        max_tokens: None for the maximum of the model and the pool; 0 computes the prompt only.
        temperature: values below 1e-5 are greedy, since a division by them would overflow.
        top_p: cumulative probability of the most likely tokens.
        top_k: number of the most likely tokens; 0 and -1 disable it.
        seed: makes sampling repeatable, independently of the batch.
        stop: strings that end the output; they are not part of it.
        logprobs: number of alternatives to report with each token's log-probability; None reports neither.
        n: outputs per prompt.
        ignore_eos: continue after the end token.
        prompt_logprobs: the same for the tokens of the prompt. It disables the prefix cache for the request.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    n: int = 1
    ignore_eos: bool = False
    prompt_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always selected."""
        return self.temperature < _GREEDY


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output.

    Attributes:
        kind: `json_schema`, or `lark` for a grammar in llguidance's form of Lark.
        text: the schema as JSON, or the grammar.
    """

    kind: Literal["json_schema", "lark"]
    text: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt in token ids.

    Attributes:
        id: unique.
        tokens: the prompt.
        salt: requests with different salts never share blocks.
        priority: cached blocks of a higher priority are evicted later.
        tenant: tenants of the same queue priority get equal shares of the engine.
        queue_priority: lower values are scheduled first, across all tenants.
        own_priority: lower values are scheduled first within the tenant.
        adapter: name of the LoRA adapter; None for the base model.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    salt: str | None = None
    priority: int = 0
    tenant: str = ""
    queue_priority: int = 0
    own_priority: int = 0
    grammar: Grammar | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of an output so far. `cached_tokens` includes the `tier_tokens`, which were loaded from a tier."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tier_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the arrival of the request, until it was scheduled, until its first token, and until its last token."""

    queue: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its natural log-probability and alternatives. Tokens of a prompt have a rank, from 1."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model, with arguments as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of output number `index`. The last part has the finish reason and the timing.

    `prompt_logprobs` comes with the first piece, one item for each token of the prompt but the first. `calls` are those that
    the piece completes; their text is not part of `text`.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    usage: Usage
    timing: Timing | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    calls: tuple[ToolCall, ...] = ()
