"""A request to the embedded engine and the parts of its output, independent of an API's format."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
_GREEDY = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stop conditions, as in vLLM.

    Attributes:
        max_tokens: None allows the model's default, or as many as the model and the KV pool; 0 computes only the prompt.
        temperature: values below 1e-5 select the most likely token.
        top_k: 0 and -1 disable the limit.
        stop: strings that end the output, which does not include them.
        logprobs, prompt_logprobs: number of alternatives per output or prompt token; None reports no log-probabilities. With
            `prompt_logprobs`, the prefix cache is not used.
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
        return self.temperature < _GREEDY


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output: a JSON schema, or a grammar in llguidance's Lark syntax."""

    kind: Literal["json_schema", "lark"]
    text: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt in token ids, and how to compute its completions.

    Attributes:
        salt: requests with different salts share no KV blocks.
        priority: KV blocks of a higher priority are evicted later.
        tenant: tenants get equal shares of the engine.
        queue_priority, tenant_priority: lower values run first, among all requests, or among those of the tenant.
        adapter: name of the LoRA adapter; None for the base model.
        session: the client's session, for KV events.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    salt: str | None = None
    priority: int = 0
    tenant: str = ""
    queue_priority: int = 0
    tenant_priority: int = 0
    grammar: Grammar | None = None
    adapter: str | None = None
    session: str | None = None

    @property
    def has_tools(self) -> bool:
        return self.grammar is not None and self.grammar.kind == "lark"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a response. `cached_tokens` came from the prefix cache; `tier_tokens` of them came from tiers."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tier_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from arrival until scheduling, the first token, and the last token."""

    queue: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities of a token and of the most likely tokens (`top`: id, text, log-probability).

    `rank` counts from 1 for the most likely token; None for output tokens.
    """

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of the choice number `index`. Only the last part has a finish reason and timing.

    Attributes:
        text: without tool calls and reasoning.
        calls: tool calls that end in this part.
        prompt_logprobs: all prompt tokens except the first; only in the first part.
        stop_string: the stop string that ended the text; only in the last part.
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
    reasoning: str = ""
    stop_string: str | None = None
