"""One answer on its way: its tokens and blocks, how it samples, and what it has sent."""

from collections.abc import Callable, Sequence
from time import perf_counter as now

import torch

from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.models.lora import LoraAdapter
from kvproxy.engine.sampler.sampler import Sample, UniformStream, score_tokens
from kvproxy.engine.sampler.structured_output import GrammarMatcher
from kvproxy.engine.text.detokenizer import Detokenizer
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.errors import KvproxyError
from kvproxy.generation import Delta, FinishReason, GenerationRequest, Timing, TokenLogprob, Usage


class NgramProposer:
    """Where each run of `size` tokens was last seen in one growing sequence."""

    def __init__(self, size: int = 3) -> None:
        self._size = size
        self._seen: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that followed the latest earlier place of the last `size` ones; none if there is none."""
        size = self._size
        # The sequence's end itself is left out: it is what is looked for.
        for start in range(self._indexed, len(tokens) - size):
            self._seen[tuple(tokens[start : start + size])] = start + size
        self._indexed = max(self._indexed, len(tokens) - size)
        at = self._seen.get(tuple(tokens[-size:])) if len(tokens) >= size else None
        return [] if at is None else list(tokens[at : at + count])


Emit = Callable[[Delta], None]
Fail = Callable[[KvproxyError], None]


def ignore(error: KvproxyError) -> None:
    """Nobody is told of a failure."""


class SequenceState:
    """Answer number `index` of a request.

    Args:
        request: what the client asked.
        index: which of its `n` answers.
        max_tokens: most tokens to generate.
        tokenizer: for text and end tokens.
        emit: receives each piece, on the engine's thread.
        fail: told, there too, why the request ends without an answer.
        matcher: follows the request's grammar; None where it has none.
        adapter: computes the request; None for the model as it is.

    Attributes:
        is_dropped: the request failed; nothing more of it is to be drawn or sent.
    """

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        max_tokens: int,
        tokenizer: ChatTokenizer,
        emit: Emit,
        fail: Fail = ignore,
        matcher: GrammarMatcher | None = None,
        adapter: LoraAdapter | None = None,
    ) -> None:
        self.source = request
        self.matcher = matcher
        self._adapter = adapter
        self.adapter = adapter.number if adapter else 0
        self.index = index
        self.sampling = request.sampling
        self.max_tokens = max_tokens
        self.cache = CacheRequest(
            f"{request.id}#{index}",
            request.tokens,
            salt=request.salt,
            lora=(request.adapter or "", adapter.digest) if adapter else None,
            skip_read=request.sampling.prompt_logprobs is not None,
            priority=request.priority,
        )
        self.num_prompt = len(request.tokens)
        self.cached_tokens = 0
        self.tier_tokens = 0
        self.saved_chunks = 0
        self.arrived = now()
        self.admitted: float | None = None
        self._first_token = 0.0
        self._lookup = NgramProposer()
        self._prompt_logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.draws = UniformStream(request.sampling, index)
        self.is_dropped = False
        self.fail = fail
        self._tokenizer = tokenizer
        self._emit = emit
        self._detokenizer = Detokenizer(tokenizer.decode, request.sampling.stop)

    @property
    def num_remaining(self) -> int:
        """Tokens whose keys and values are not computed yet."""
        return self.cache.num_tokens - self.cache.num_computed_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether those of the prompt are still to be reported."""
        return self.sampling.prompt_logprobs is not None and self.num_generated == 0 and self.index == 0

    @property
    def num_generated(self) -> int:
        return self.cache.num_tokens - self.num_prompt

    @property
    def usage(self) -> Usage:
        return Usage(self.num_prompt, self.num_generated, self.cached_tokens, self.tier_tokens)

    def sibling(self, index: int) -> "SequenceState":
        """Another answer to the same request, to be forked from this one after the prompt is computed."""
        matcher = self.matcher.fork() if self.matcher else None
        other = SequenceState(
            self.source, index, self.max_tokens, self._tokenizer, self._emit, self.fail, matcher, self._adapter
        )
        other.arrived, other.admitted = self.arrived, self.admitted
        other.cached_tokens, other.tier_tokens = self.cached_tokens, self.tier_tokens
        other.saved_chunks = self.saved_chunks
        return other

    def admit(self, pool_tokens: int) -> None:
        """Note that blocks were given, `pool_tokens` of them with content; only the first time counts."""
        if self.admitted is None:
            self.admitted = now()
            self.cached_tokens = pool_tokens

    def guess(self, most: int) -> list[int]:
        """Guesses at the tokens after the last one; never so many that the answer must end before them."""
        if self.matcher is not None:
            # What a grammar allows is known after the token before only.
            return []
        return self._lookup.guess(self.cache.tokens, min(most, self.max_tokens - self.num_generated - 1))

    def take_prompt_logprobs(self, start: int, logits: torch.Tensor) -> None:
        """Note how likely the prompt's tokens from `start + 1` on were, given the logits of those from `start` on."""
        # After a preemption the prompt is computed from its beginning again.
        del self._prompt_logprobs[start:]
        following = self.cache.tokens[start + 1 : min(start + 1 + logits.shape[0], self.num_prompt)]
        for scored in score_tokens(logits, following, self.sampling.prompt_logprobs or 0):
            self._prompt_logprobs += self._logprobs(scored)

    def accept(self, sample: Sample) -> None:
        """Take a sampled token over, send what can be sent, and note whether the answer is complete."""
        if self.num_generated == 0:
            self._first_token = now()
        self.cache.append(sample.token)
        ended = sample.token in self._tokenizer.eos_ids and not self.sampling.ignore_eos
        if self.matcher is not None:
            self.matcher.accept(sample.token)
        text = "" if ended else self._detokenizer.push(sample.token)
        if ended or self._detokenizer.stopped or (self.matcher is not None and self.matcher.is_over):
            self.finish_reason = "stop"
        elif self.num_generated >= self.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason and not self._detokenizer.stopped:
            text += self._detokenizer.finish()
        self._send(text, (sample.token,), () if ended else self._logprobs(sample))

    def conclude(self) -> None:
        """Complete an answer of no tokens: all that was asked for is the prompt."""
        self._first_token = now()
        self.finish_reason = "length"
        self._send("", (), ())

    def _send(self, text: str, tokens: tuple[int, ...], logprobs: Sequence[TokenLogprob]) -> None:
        prompt, self._prompt_logprobs = tuple(self._prompt_logprobs), []
        self._emit(
            Delta(
                index=self.index,
                text=text,
                tokens=tokens,
                logprobs=tuple(logprobs),
                finish_reason=self.finish_reason,
                usage=self.usage,
                timing=self._timing(),
                prompt_logprobs=prompt,
            )
        )

    def _timing(self) -> Timing | None:
        if self.finish_reason is None:
            return None
        admitted = self.admitted if self.admitted is not None else self.arrived
        return Timing(admitted - self.arrived, self._first_token - self.arrived, now() - self.arrived)

    def _logprobs(self, sample: Sample) -> list[TokenLogprob]:
        if sample.logprob is None:
            return []
        name = self._tokenizer.token_text
        top = tuple((token, name(token), value) for token, value in sample.top)
        return [TokenLogprob(sample.token, name(sample.token), sample.logprob, top, sample.rank)]
