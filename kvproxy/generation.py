"""What an API asks of the embedded engine, and what comes back piece by piece. Both sides of the seam import this file alone."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
_GREEDY = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    Attributes:
        max_tokens: most tokens to generate; None is as many as fit the model and the pool, 0 computes the prompt only.
        temperature: 0 is greedy, and so is what lies below 1e-5: dividing by it would overflow.
        top_p: draw from the most likely tokens whose probabilities add up to this.
        top_k: draw from that many most likely tokens; 0 and -1 are all.
        seed: makes the draws repeatable, whatever else runs at the time.
        stop: strings that end the answer; they are not part of it.
        logprobs: report each token's log-probability and this many alternatives; None is neither.
        n: answers to generate for the prompt.
        ignore_eos: go on after the model's end token.
        prompt_logprobs: report the log-probability of each token of the prompt too, and this many alternatives. The
            whole prompt is computed then, whatever is cached.
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
        """Whether the likeliest token is taken, without a random number."""
        return self.temperature < _GREEDY


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like: every token is chosen among those that can still lead to such a text.

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
        sampling: how to answer it.
        salt: requests with different salts never share blocks.
        priority: what the request leaves cached outlives what those of a lower one left.
        tenant: whose request it is; tenants of the same queue priority get equal shares of the engine.
        queue_priority: lower is served first, whoever asks.
        own_priority: lower is served first among the tenant's own requests.
        grammar: what the answer must look like; None for anything.
        adapter: name of the LoRA adapter that computes it; None for the model as it is.
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
    """Tokens of one answer so far.

    Attributes:
        prompt_tokens, completion_tokens: taken in and generated.
        cached_tokens: of the prompt, not computed: from the pool or from a tier.
        tier_tokens: of these, those that came from a tier.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tier_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one answer since its request came: until it got blocks, until its first token, until its last."""

    queue: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability (natural log), and the most likely alternatives; a prompt's has its rank from 1 too."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model makes: a tool's name, and its arguments as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of answer number `index`; the last piece carries the finish reason and the answer's timing.

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
