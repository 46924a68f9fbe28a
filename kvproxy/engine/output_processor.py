"""From a step's logits to tokens that are sent. What fails for one sequence fails for its request alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvproxy.engine.health import is_device_error
from kvproxy.engine.sampler.constrained_sampling import sample_constrained
from kvproxy.engine.sampler.sampler import Sample
from kvproxy.engine.scheduler.scheduler import Scheduler
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.worker.model_runner import SequenceLogits
from kvproxy.engine.worker.transfer import stack_rows


class OutputProcessor:
    """Draws the next tokens of the sequences of a step.

    Args:
        scheduler: is told which sequences fork and which are complete.
        finished: called with each sequence that is complete, while it still holds its blocks.
        failed: called with a step's output and the error that its sequence met; drops the sequence's whole request.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        finished: Callable[[SequenceState], None],
        failed: Callable[[SequenceLogits, Exception], None],
    ) -> None:
        self._scheduler = scheduler
        self._finished = finished
        self._failed = failed

    def advance(self, outputs: Sequence[SequenceLogits]) -> None:
        """Draw a token for each sequence that is computed to its end, and send it.

        Raises:
            Exception: the device failed.
        """
        ready: list[tuple[SequenceState, SequenceLogits]] = []
        for output in outputs:
            with self._alone(output):
                ready += [(sequence, output) for sequence in self._begin(output)]
        ready = [(sequence, output) for sequence, output in ready if not sequence.is_dropped]
        if ready:
            self._draw(ready)

    @contextmanager
    def _alone(self, output: SequenceLogits) -> Iterator[None]:
        """An error inside ends this sequence's request, and nothing else."""
        try:
            yield
        except Exception as error:
            if is_device_error(error):
                raise
            self._failed(output, error)

    def _begin(self, output: SequenceLogits) -> list[SequenceState]:
        """Report the prompt where that is asked for; the sequences that need a token now."""
        sequence = output.sequence
        if sequence.wants_prompt_logprobs:
            sequence.take_prompt_logprobs(output.span.start, output.logits)
        if sequence.num_remaining:
            return []
        family = [sequence, *self._fork(sequence)]
        if sequence.max_tokens:
            return family
        for each in family:
            each.conclude()
            self._end(each)
        return []

    def _fork(self, sequence: SequenceState) -> list[SequenceState]:
        """The other answers to a request whose prompt is computed now."""
        if sequence.num_generated or sequence.index:
            return []
        children = [sequence.sibling(index) for index in range(1, sequence.sampling.n)]
        for child in children:
            self._scheduler.fork(sequence, child)
        return children

    def _draw(self, ready: Sequence[tuple[SequenceState, SequenceLogits]]) -> None:
        """Draw for all sequences at once, or one after the other where that fails."""
        try:
            drawn = iter(_samples(ready))
        except Exception as error:
            if is_device_error(error):
                raise
            drawn = None
        for sequence, output in ready:
            own = [next(drawn) for _ in range(1 + output.span.drafts)] if drawn is not None else None
            # Another answer to the same request may have failed just now.
            if not sequence.is_dropped:
                with self._alone(output):
                    self._accept(sequence, output, own or _samples([(sequence, output)]))

    def _accept(self, sequence: SequenceState, output: SequenceLogits, drawn: Sequence[Sample]) -> None:
        """Take the first token over, and as many guesses behind it as were drawn too."""
        tokens, drafts = output.span.tokens, output.span.drafts
        guesses = tokens[len(tokens) - drafts :]
        for place, one in enumerate(drawn):
            if place:
                # This step computed the guess, so what follows it was drawn at once.
                sequence.cache.num_computed_tokens += 1
            if not sequence.sampling.is_greedy:
                sequence.draws.use()
            sequence.accept(one)
            if sequence.finish_reason or place == drafts or one.token != guesses[place]:
                break
        if sequence.finish_reason:
            self._end(sequence)

    def _end(self, sequence: SequenceState) -> None:
        self._finished(sequence)
        self._scheduler.remove(sequence)


def _samples(ready: Sequence[tuple[SequenceState, SequenceLogits]]) -> list[Sample]:
    """A token for each sequence, and for each of its guesses the one that would follow; in one call of the sampler."""
    counts = [1 + output.span.drafts for _, output in ready]
    rows = [sequence for (sequence, _), count in zip(ready, counts, strict=True) for _ in range(count)]
    matchers = [sequence.matcher for sequence in rows]
    logits = stack_rows([output.logits[-count:] for (_, output), count in zip(ready, counts, strict=True)])
    return sample_constrained(
        logits,
        [sequence.sampling for sequence in rows],
        [
            point
            for (sequence, _), count in zip(ready, counts, strict=True)
            for point in ([0.0] * count if sequence.sampling.is_greedy else sequence.draws.peek(count))
        ],
        matchers,
    )
