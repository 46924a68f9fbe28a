"""The engine: plan a step, compute it, hand out the new tokens."""

from dataclasses import replace

import torch

from kvproxy.blocks.digest import BlockHasher
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.residency import Residency
from kvproxy.engine.attention.backend import choose
from kvproxy.engine.graphs import Capture, CudaCapture
from kvproxy.engine.models import LoadedModel
from kvproxy.engine.pieces import make_pieces
from kvproxy.engine.pool import KVPool, count_blocks
from kvproxy.engine.runner import Output, Runner
from kvproxy.engine.sampler import Sample, sample
from kvproxy.engine.scheduler import Plan, Scheduler
from kvproxy.engine.sequence import Emit, RunningSequence
from kvproxy.engine.tiering import make_tiering
from kvproxy.errors import ContextTooLong, InvalidRequest
from kvproxy.generation import GenerationRequest
from kvproxy.settings import EngineSettings, TierSettings

_NO_TIERS = TierSettings()


class Engine:
    """A model behind a paged prefix cache. Not thread-safe: one thread calls it (see `worker`).

    Args:
        loaded: the model.
        settings: sizes and limits.
        tiers: what keeps keys and values beyond the pool.
        capture: makes decode steps ready to be replayed; by default CUDA graphs, where they are possible.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        tiers: TierSettings = _NO_TIERS,
        *,
        capture: Capture | None = None,
    ) -> None:
        shape, size = loaded.shape, settings.block_size
        backends = choose(
            loaded.device,
            loaded.dtype,
            shape.head_dim,
            prefill=settings.prefill_attention,
            decode=settings.decode_attention,
        )
        blocks = settings.num_blocks or count_blocks(shape, size, loaded.dtype, loaded.device, settings.kv_memory)
        self.tokenizer = loaded.tokenizer
        self.vocab_size: int = loaded.model.get_input_embeddings().num_embeddings
        self.max_model_len = min(settings.max_model_len or loaded.max_model_len, loaded.max_model_len)
        self.manager = KVCacheManager(
            blocks,
            size,
            hasher=BlockHasher(settings.hash_algorithm),
            policy=settings.policy,
            keep_tokens=True,
            priorities=True,
            residency=Residency(),
            record_events=settings.kv_events is not None,
        )
        # What the longest request needs stays free of pins, so that none can wait for blocks for ever.
        self.pins = Pins(self.manager, max_blocks=blocks - 1 - -(-self.capacity // size))
        pool = KVPool(shape, blocks, size, loaded.dtype, loaded.device)
        self._runner = Runner(loaded, pool, backends)
        if capture is None and settings.cuda_graphs and loaded.device.type == "cuda" and backends.decode.capturable:
            capture = CudaCapture(loaded.device)
        if capture is not None:
            self._runner.capture(capture, most=settings.max_sequences, longest=self.capacity)
        self._strict = settings.strict
        pieces = make_pieces(size, settings.max_batch_tokens, strict=settings.strict)
        self.tiers = make_tiering(loaded, pool, self.manager, pieces, settings, tiers)
        self._stalled = False
        self._scheduler = Scheduler(
            self.manager,
            settings.max_batch_tokens,
            settings.max_sequences,
            pieces,
            # Guesses would be computed several at a time.
            speculate=0 if settings.strict else settings.speculate,
            tiers=self.tiers,
        )

    @property
    def capacity(self) -> int:
        """Longest sequence that the model and the pool can hold, in tokens."""
        return min(self.max_model_len, (self.manager.pool.num_blocks - 1) * self.manager.block_size)

    @property
    def has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(scheduler.running or scheduler.waiting or scheduler.loading)

    @property
    def is_stalled(self) -> bool:
        """Whether there is nothing to do before a load from a tier makes progress."""
        return self._stalled and self.tiers is not None and self.tiers.idle

    def check(self, request: GenerationRequest) -> int:
        """Most tokens that may be generated for a request.

        Raises:
            InvalidRequest: the prompt is empty, or has tokens that the model does not know.
            ContextTooLong: prompt and answer can never fit.
        """
        prompt, asked = len(request.tokens), request.sampling.max_tokens
        if prompt == 0:
            raise InvalidRequest("the prompt has no tokens: send some text")
        if not 0 <= min(request.tokens) <= max(request.tokens) < self.vocab_size:
            raise InvalidRequest(f"the prompt has ids beyond the model's {self.vocab_size} tokens")
        room = self.capacity - prompt
        if room < (1 if asked is None else asked):
            limit = "the model" if self.capacity == self.max_model_len else "the block pool (raise num_blocks)"
            answer = f" and max_tokens {asked}" if asked is not None else ""
            raise ContextTooLong(
                f"a prompt of {prompt} tokens{answer} does not fit {limit}: {self.capacity} tokens in all"
            )
        return room if asked is None else asked

    def submit(self, request: GenerationRequest, emit: Emit) -> RunningSequence:
        """Queue a checked request; `emit` receives the pieces of all its answers."""
        sequence = RunningSequence(request, 0, self.check(request), self.tokenizer, emit)
        self._scheduler.add(sequence)
        self._stalled = False
        return sequence

    def cancel(self, request_id: str) -> None:
        """Drop all answers of a request and free their blocks."""
        for sequence in self._under_way():
            if sequence.source.id == request_id:
                self._scheduler.remove(sequence)
        self._stalled = False

    def _under_way(self) -> list[RunningSequence]:
        scheduler = self._scheduler
        return [*scheduler.running, *scheduler.loading, *scheduler.waiting]

    def step(self) -> None:
        """Compute one step and hand out its tokens; does nothing where `is_stalled`."""
        self.pins.expire()
        plan = self._scheduler.plan()
        self._runner.pool.copy_blocks(self.manager.take_copies())
        self._stalled = not plan and bool(self._scheduler.loading)
        if plan:
            outputs = self._forward_alone(plan) if self._strict else self._runner.forward(plan)
            if self.tiers is not None:
                self.tiers.save(sequence for sequence, _ in plan.prefills + plan.decodes)
            self._advance(outputs)

    def _forward_alone(self, plan: Plan) -> list[Output]:
        outputs = (output for part in plan.alone() for output in self._runner.forward(part))
        # A step that is replayed overwrites the logits of the one before.
        return [replace(output, logits=output.logits.clone()) for output in outputs]

    def fail(self) -> list[str]:
        """Drop everything after a failed step, cached blocks too: they may name content that was never written.

        Returns:
            Ids of the requests that were under way.
        """
        lost = self._under_way()
        for sequence in lost:
            self._scheduler.remove(sequence)
        self.manager.take_copies()
        self.pins.clear()
        self.manager.reset_prefix_cache()
        return list(dict.fromkeys(sequence.source.id for sequence in lost))

    def close(self) -> None:
        """Let the tiers put away what waits; the engine is not used afterwards."""
        if self.tiers is not None:
            self.tiers.close()

    def _advance(self, outputs: list[Output]) -> None:
        """Draw the next tokens, and send them."""
        for output in outputs:
            if output.sequence.wants_prompt_logprobs:
                output.sequence.take_prompt_logprobs(output.span.start, output.logits)
        ready = [(output.sequence, output) for output in outputs if output.sequence.num_remaining == 0]
        ready += [(child, output) for sequence, output in ready for child in self._fork(sequence)]
        for sequence in [sequence for sequence, _ in ready if sequence.max_tokens == 0]:
            sequence.conclude()
            self._scheduler.remove(sequence)
        ready = [(sequence, output) for sequence, output in ready if sequence.max_tokens]
        if not ready:
            return
        samples = sample(
            torch.stack([output.logits[-1 - output.span.drafts] for _, output in ready]),
            [sequence.sampling for sequence, _ in ready],
            [sequence.generator for sequence, _ in ready],
        )
        for (sequence, output), drawn in zip(ready, samples, strict=True):
            self._accept(sequence, output, drawn)

    def _fork(self, sequence: RunningSequence) -> list[RunningSequence]:
        """The other answers to a request whose prompt is computed now."""
        if sequence.num_generated or sequence.index:
            return []
        children = [sequence.sibling(index) for index in range(1, sequence.sampling.n)]
        for child in children:
            self._scheduler.fork(sequence, child)
        return children

    def _accept(self, sequence: RunningSequence, output: Output, drawn: Sample) -> None:
        """Take a drawn token over, and as many guesses behind it as are drawn too."""
        drafts = output.span.drafts
        sequence.accept(drawn)
        for row, guess in enumerate(output.span.tokens[len(output.span.tokens) - drafts :], -drafts):
            if sequence.finish_reason or drawn.token != guess:
                break
            # This step computed the guess, so what follows it can be drawn at once.
            sequence.cache.num_computed_tokens += 1
            (drawn,) = sample(output.logits[row][None], [sequence.sampling], [sequence.generator])
            sequence.accept(drawn)
        if sequence.finish_reason:
            self._scheduler.remove(sequence)
