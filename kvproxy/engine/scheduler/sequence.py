"""The state of a sequence, and its draft tokens."""

from collections.abc import Callable, Sequence
from time import perf_counter as now
from typing import TYPE_CHECKING

import torch

from kvproxy.apis.codecs.generation import Delta, FinishReason, GenerationRequest, Timing, TokenLogprob, Usage
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.engine.models.lora import LoraAdapter
from kvproxy.engine.sampler import SampledToken, UniformStream, score_tokens
from kvproxy.engine.text.detokenizer import Detokenizer
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.errors import KvproxyError

if TYPE_CHECKING:
    from llguidance import LLMatcher

OutputCallback = Callable[[Delta], None]
ErrorCallback = Callable[[KvproxyError], None]


class NgramProposer:
    """Proposes draft tokens by prompt lookup: the tokens after the previous occurrence of the last `n` tokens."""

    def __init__(self, n: int = 3) -> None:
        self._n = n
        self._continuations: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def propose(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` draft tokens. `tokens` must begin with the tokens of the previous call."""
        n = self._n
        for start in range(self._num_indexed, len(tokens) - n):
            self._continuations[tuple(tokens[start : start + n])] = start + n
        self._num_indexed = max(self._num_indexed, len(tokens) - n)
        at = self._continuations.get(tuple(tokens[-n:])) if len(tokens) >= n else None
        return [] if at is None else list(tokens[at : at + limit])


class SequenceState:
    """One of a request's `n` sequences, with number `index` from 0. `on_error` receives the error that aborts the request."""

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        max_tokens: int,
        tokenizer: ChatTokenizer,
        on_output: OutputCallback,
        on_error: ErrorCallback,
        matcher: "LLMatcher | None" = None,
        adapter: LoraAdapter | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.sampling = request.sampling
        self.max_tokens = max_tokens
        self.on_error = on_error
        self.matcher = matcher
        self.lora_id = adapter.lora_id if adapter else 0
        self.cache_request = CacheRequest(
            f"{request.id}#{index}",
            request.tokens,
            cache_salt=request.salt,
            lora=(request.adapter or "", adapter.digest) if adapter else None,
            skip_read=request.sampling.prompt_logprobs is not None,
            priority=request.priority,
            client=request.tenant or None,
            lora_id=self.lora_id or None,
            session_id=request.session,
        )
        self.num_prompt_tokens = len(request.tokens)
        self.num_cached_tokens = 0  # prompt tokens found in the block pool or a tier
        self.num_tier_tokens = 0  # prompt tokens found in a tier
        self.num_saved_chunks = 0  # leading chunks that are in the tiers, or are being written
        self.arrival_time = now()
        self.scheduled_time: float | None = None
        self.finish_reason: FinishReason | None = None
        self.uniforms = UniformStream(request.sampling, index)
        self.is_aborted = False
        self._adapter = adapter
        self._tokenizer = tokenizer
        self._on_output = on_output
        self._detokenizer = Detokenizer(tokenizer.decode, request.sampling.stop)
        self._proposer = NgramProposer()
        self._prompt_logprobs: list[TokenLogprob] = []
        # Each token, whether it is an EOS token, and the usage up to it.
        self._unsent: list[tuple[SampledToken, bool, Usage]] = []
        self._first_token_time = 0.0
        self._has_text = False

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.cache_request.num_tokens - self.cache_request.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.cache_request.num_tokens - self.num_prompt_tokens

    @property
    def needs_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None and self.num_output_tokens == 0 and self.index == 0

    def fork(self, index: int) -> "SequenceState":
        matcher = self.matcher.deep_copy() if self.matcher else None
        child = SequenceState(
            self.request,
            index,
            self.max_tokens,
            self._tokenizer,
            self._on_output,
            self.on_error,
            matcher,
            self._adapter,
        )
        child.arrival_time, child.scheduled_time = self.arrival_time, self.scheduled_time
        child.num_cached_tokens, child.num_tier_tokens = self.num_cached_tokens, self.num_tier_tokens
        child.num_saved_chunks = self.num_saved_chunks
        return child

    def mark_scheduled(self, num_cached_tokens: int) -> None:
        # A preempted sequence keeps its first values.
        if self.scheduled_time is None:
            self.scheduled_time = now()
            self.num_cached_tokens = num_cached_tokens

    def propose_drafts(self, limit: int) -> list[int]:
        if self.matcher is not None:
            # The mask depends on the previous token.
            return []
        limit = min(limit, self.max_tokens - self.num_output_tokens - 1)
        return self._proposer.propose(self.cache_request.tokens, limit)

    def add_prompt_logprobs(self, start: int, logits: torch.Tensor) -> None:
        """Add the log-probabilities of prompt tokens. Row `i` of `logits` scores the token at position `start + i + 1`."""
        # A preempted sequence computes its prompt again.
        del self._prompt_logprobs[start:]
        following = self.cache_request.tokens[start + 1 : min(start + 1 + logits.shape[0], self.num_prompt_tokens)]
        for scored in score_tokens(logits, following, self.sampling.prompt_logprobs or 0):
            self._prompt_logprobs += self._logprobs(scored)

    def append(self, sampled: SampledToken) -> None:
        """Append a token, and decide whether it is the last. Call `send` for its text."""
        if self.num_output_tokens == 0:
            self._first_token_time = now()
        self.cache_request.append(sampled.token)
        is_eos = sampled.token in self._tokenizer.eos_ids and not self.sampling.ignore_eos
        # The grammar may be too large, or refuse an EOS token that the request ignores.
        if self.matcher is not None and not self.matcher.consume_token(sampled.token):
            raise RuntimeError(f"the grammar cannot be followed: {self.matcher.get_error()}")
        if is_eos or (self.matcher is not None and self.matcher.is_stopped()):
            self.finish_reason = "stop"
        elif self.num_output_tokens >= self.max_tokens:
            self.finish_reason = "length"
        self._unsent.append((sampled, is_eos, self._usage()))
        if self._detokenizer.has_stop_strings:
            # The text decides whether the token is the last.
            self.send()

    def send(self) -> None:
        """Send the text of the tokens that were appended since the last call."""
        unsent, self._unsent = self._unsent, []
        for place, (sampled, is_eos, usage) in enumerate(unsent, 1):
            text = "" if is_eos else self._detokenizer.push(sampled.token)
            if self._detokenizer.stop_string is not None:
                self.finish_reason = "stop"
            finish_reason = self.finish_reason if place == len(unsent) else None
            if finish_reason and self._detokenizer.stop_string is None:
                text += self._detokenizer.finish()
            if text and not self._has_text:
                self._has_text = True
                form = self._tokenizer.tool_call_format if self.request.has_tools else None
                self.cache_request.awaits_user = form is None or text[0] != form.opening_text[0]
            logprobs = () if is_eos else self._logprobs(sampled)
            self._send(text, (sampled.token,), logprobs, finish_reason, usage)

    def finish_without_output(self) -> None:
        self._first_token_time = now()
        self.finish_reason = "length"
        self._send("", (), (), self.finish_reason, self._usage())

    def _usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self.num_output_tokens, self.num_cached_tokens, self.num_tier_tokens)

    def _send(
        self,
        text: str,
        tokens: tuple[int, ...],
        logprobs: Sequence[TokenLogprob],
        finish_reason: FinishReason | None,
        usage: Usage,
    ) -> None:
        timing, arrival = None, self.arrival_time
        if finish_reason is not None:
            scheduled = self.scheduled_time or arrival
            timing = Timing(scheduled - arrival, self._first_token_time - arrival, now() - arrival)
        prompt_logprobs, self._prompt_logprobs = tuple(self._prompt_logprobs), []
        stop_string = self._detokenizer.stop_string
        self._on_output(
            Delta(
                self.index,
                text,
                tokens,
                tuple(logprobs),
                finish_reason,
                usage,
                timing,
                prompt_logprobs,
                stop_string=stop_string,
            )
        )

    def _logprobs(self, sampled: SampledToken) -> list[TokenLogprob]:
        if sampled.logprob is None:
            return []
        text = self._tokenizer.token_text
        top = tuple((token, text(token), value) for token, value in sampled.top)
        return [TokenLogprob(sampled.token, text(sampled.token), sampled.logprob, top, sampled.rank)]
