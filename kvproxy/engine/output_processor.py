from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kvproxy.engine.health import is_device_error
from kvproxy.engine.sampler.sampler import SampledToken, sample
from kvproxy.engine.sampler.structured_output import allowed_tokens
from kvproxy.engine.scheduler.scheduler import Scheduler
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.worker.model_runner import SequenceLogits


class OutputProcessor:
    """Samples tokens, and sends them to clients. An error in a sequence aborts only its own request.

    Args:
        on_finished: receives each finished sequence, before its blocks are freed.
        on_failed: receives the output that could not be processed, and the error; must abort its `sequence.request`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        on_finished: Callable[[SequenceState], None],
        on_failed: Callable[[SequenceLogits, Exception], None],
    ) -> None:
        self._scheduler = scheduler
        self._on_finished = on_finished
        self._on_failed = on_failed

    def process(self, outputs: Sequence[SequenceLogits]) -> None:
        """Sample and send the next token of each sequence that has no uncomputed token."""
        ready: list[tuple[SequenceState, SequenceLogits]] = []
        for output in outputs:
            with self._abort_on_error(output):
                ready += [(sequence, output) for sequence in self._ready_sequences(output)]
        ready = [(sequence, output) for sequence, output in ready if not sequence.is_aborted]
        if ready:
            self._sample(ready)

    @contextmanager
    def _abort_on_error(self, output: SequenceLogits) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_device_error(error):
                raise
            self._on_failed(output, error)

    def _ready_sequences(self, output: SequenceLogits) -> list[SequenceState]:
        sequence = output.sequence
        if sequence.needs_prompt_logprobs:
            sequence.add_prompt_logprobs(output.span.start, output.logits)
        if sequence.num_uncomputed_tokens:
            return []
        family = [sequence, *self._fork(sequence)]
        if sequence.max_tokens:
            return family
        for member in family:
            member.finish_without_output()
            self._finish(member)
        return []

    def _fork(self, sequence: SequenceState) -> list[SequenceState]:
        if sequence.num_output_tokens or sequence.index:
            return []
        children = [sequence.fork(index) for index in range(1, sequence.sampling.n)]
        for child in children:
            self._scheduler.fork(sequence, child)
        return children

    def _sample(self, ready: Sequence[tuple[SequenceState, SequenceLogits]]) -> None:
        try:
            sampled = iter(_sample_tokens(ready))
        except Exception as error:
            if is_device_error(error):
                raise
            sampled = None
        for sequence, output in ready:
            tokens = [next(sampled) for _ in range(1 + output.span.num_draft_tokens)] if sampled is not None else None
            # A sibling sequence may have aborted the request.
            if not sequence.is_aborted:
                with self._abort_on_error(output):
                    self._append(sequence, output, tokens or _sample_tokens([(sequence, output)]))

    def _append(self, sequence: SequenceState, output: SequenceLogits, sampled: Sequence[SampledToken]) -> None:
        tokens, num_drafts = output.span.tokens, output.span.num_draft_tokens
        drafts = tokens[len(tokens) - num_drafts :]
        for place, token in enumerate(sampled):
            if place:
                # This step computed the accepted draft token.
                sequence.cache_request.num_computed_tokens += 1
            if not sequence.sampling.is_greedy:
                sequence.uniforms.pop()
            sequence.append(token)
            if sequence.finish_reason or place == num_drafts or token.token != drafts[place]:
                break
        if sequence.finish_reason:
            self._finish(sequence)

    def _finish(self, sequence: SequenceState) -> None:
        self._on_finished(sequence)
        self._scheduler.remove(sequence)


def _sample_tokens(ready: Sequence[tuple[SequenceState, SequenceLogits]]) -> list[SampledToken]:
    counts = [1 + output.span.num_draft_tokens for _, output in ready]
    rows = [sequence for (sequence, _), count in zip(ready, counts, strict=True) for _ in range(count)]
    logits = torch.cat([output.logits[-count:] for (_, output), count in zip(ready, counts, strict=True)])
    matchers = [sequence.matcher for sequence in rows]
    return sample(
        logits,
        [sequence.sampling for sequence in rows],
        [
            uniform
            for (sequence, _), count in zip(ready, counts, strict=True)
            for uniform in ([0.0] * count if sequence.sampling.is_greedy else sequence.uniforms.peek(count))
        ],
        allowed_tokens(matchers, logits.shape[-1]) if any(matchers) else None,
    )
