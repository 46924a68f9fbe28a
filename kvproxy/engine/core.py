"""The engine: plan a step, compute it, hand out the new tokens."""

import logging
from dataclasses import replace
from itertools import chain

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.residency import ResidencyTracker
from kvproxy.blocks.single_type_manager import CachedWindows
from kvproxy.encryption import Cipher
from kvproxy.engine.attention.selector import select_backends
from kvproxy.engine.health import StepFailed, is_device_error, request_failed
from kvproxy.engine.kv_connector.tier_connector import create_tier_connector
from kvproxy.engine.limits import EngineLimits
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.models.lora import LoraAdapter
from kvproxy.engine.output_processor import OutputProcessor
from kvproxy.engine.sampler.structured_output import GrammarCompiler
from kvproxy.engine.scheduler.chunked_prefill import create_chunked_prefill
from kvproxy.engine.scheduler.scheduler import Scheduler, SchedulerOutput
from kvproxy.engine.scheduler.sequence import Emit, Fail, SequenceState, ignore
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.cuda_graphs import CudaCapture, StepCapture, max_captured_rows
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.memory_profiling import determine_num_blocks
from kvproxy.engine.worker.model_runner import ModelRunner, SequenceLogits
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.generation import GenerationRequest
from kvproxy.settings import EngineSettings, TierSettings

_NO_TIERS = TierSettings()
_log = logging.getLogger("kvproxy")


class EngineCore:
    """A model behind a paged prefix cache. Not thread-safe: one thread calls it (see `worker`).

    Args:
        loaded: the model.
        settings: sizes and limits.
        tiers: what keeps keys and values beyond the pool.
        cipher: encrypts what the tiers keep outside of this process.
        capture: makes decode steps ready to be replayed; by default CUDA graphs, where they are possible.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        tiers: TierSettings = _NO_TIERS,
        cipher: Cipher | None = None,
        *,
        capture: StepCapture | None = None,
    ) -> None:
        shape, size = loaded.shape, settings.block_size
        backends = select_backends(
            loaded.device,
            loaded.dtype,
            shape.head_dim,
            needs=loaded.needs,
            prefill=settings.prefill_attention,
            decode=settings.decode_attention,
        )
        blocks = determine_num_blocks(loaded, backends, settings)
        self.tokenizer = loaded.tokenizer
        self.adapters = loaded.adapters.by_name if loaded.adapters else {}
        pieces = create_chunked_prefill(size, settings.max_batch_tokens, strict=settings.strict)
        # Strict hits end where pieces do, which need not be where a prompt ends.
        cached_windows: CachedWindows = "all" if settings.strict else settings.cached_windows
        self.manager = KVCacheManager(
            blocks,
            groups=[group.spec(size, cached_windows) for group in loaded.groups],
            hasher=BlockHasher(settings.hash_algorithm),
            policy=settings.policy,
            keep_tokens=True,
            priorities=True,
            residency=ResidencyTracker(),
            record_events=settings.kv_events is not None,
            alignment_tokens=pieces.multiple,
        )
        self.limits = EngineLimits(
            loaded.model.get_input_embeddings().num_embeddings,
            min(settings.max_model_len or loaded.max_model_len, loaded.max_model_len),
            self.manager.max_request_tokens(pieces.most),
        )
        self.grammars = GrammarCompiler(loaded.tokenizer, self.limits.vocab_size)
        # What the longest request needs stays free of pins, so that none can wait for blocks for ever.
        self.pins = Pins(
            self.manager, max_blocks=blocks - 1 - self.manager.max_blocks_in_use(self.limits.capacity, pieces.most)
        )
        pool = KVPool(shape, blocks, size, loaded.dtype, loaded.device)
        self.block_bytes = shape.block_bytes(size, loaded.dtype)
        self._runner = ModelRunner(loaded, pool, backends)
        self._strict = settings.strict
        # What a graph replays knows no adapters.
        graphs = settings.cuda_graphs and loaded.adapters is None
        if capture is None and graphs and loaded.device.type == "cuda" and backends.decode.capturable:
            capture = CudaCapture(loaded.device)
        if capture is not None:
            self._runner.capture(capture, most=max_captured_rows(settings), longest=self.limits.capacity)
        self.tiers = create_tier_connector(loaded, pool, self.manager, pieces, settings, tiers, cipher)
        self._stalled = False
        self._scheduler = Scheduler(
            self.manager,
            settings.max_batch_tokens,
            settings.max_sequences,
            pieces,
            # In strict mode tokens of an answer are computed one at a time.
            speculate=0 if settings.strict else settings.speculate,
            tiers=self.tiers,
        )
        self._answers = OutputProcessor(self._scheduler, self._finished, self._drop_row)

    def _finished(self, sequence: SequenceState) -> None:
        if self.tiers is not None:
            self.tiers.saving.finish(sequence)

    @property
    def has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(scheduler.running or scheduler.waiting or scheduler.loading)

    @property
    def is_stalled(self) -> bool:
        """Whether there is nothing to do before a load from a tier makes progress."""
        return self._stalled and self.tiers is not None and self.tiers.idle

    def submit(self, request: GenerationRequest, emit: Emit, fail: Fail = ignore) -> SequenceState:
        """Queue a request.

        Args:
            request: what is asked; its id is that of no other request under way.
            emit: receives the pieces of all its answers.
            fail: told if the request ends without an answer.

        Raises:
            InvalidRequest: see `Limits.check`; or its id is that of another one.
        """
        if any(sequence.source.id == request.id for sequence in self._under_way()):
            raise InvalidRequest(f"a request {request.id!r} is under way: give each request an id of its own")
        matcher = self.grammars.matcher(request.grammar) if request.grammar else None
        most, adapter = self.limits.check(request), self._adapter(request)
        sequence = SequenceState(request, 0, most, self.tokenizer, emit, fail, matcher, adapter)
        self._scheduler.add(sequence)
        self._stalled = False
        return sequence

    def _adapter(self, request: GenerationRequest) -> LoraAdapter | None:
        if request.adapter is None:
            return None
        adapter = self.adapters.get(request.adapter)
        if adapter is None:
            raise InvalidRequest(f"there is no adapter {request.adapter!r}", param="model")
        return adapter

    def cancel(self, request_id: str) -> None:
        """Drop all answers of a request and free their blocks."""
        for sequence in self._under_way():
            if sequence.source.id == request_id:
                self._scheduler.remove(sequence)
        self._stalled = False

    def _under_way(self) -> list[SequenceState]:
        scheduler = self._scheduler
        return [*scheduler.running, *scheduler.loading, *scheduler.waiting]

    def step(self) -> bool:
        """Compute one step and hand out its tokens; does nothing where `is_stalled`.

        Returns:
            Whether there was anything to compute.

        Raises:
            StepFailed: the forward pass failed. Its requests are told and dropped, with the blocks that it was to fill.
            Exception: the engine is in no state to go on before `fail`.
        """
        self.pins.expire()
        plan = self._scheduler.plan()
        copies = self.manager.take_copies()
        self._stalled = not plan and bool(self._scheduler.loading)
        if not plan:
            self._runner.pool.copy_blocks(copies)
            return False
        try:
            self._runner.pool.copy_blocks(copies)
            outputs = self._forward_alone(plan) if self._strict else self._runner.forward(plan)
        except Exception as error:
            if is_device_error(error):
                raise
            self._drop_step(plan, error)
            raise StepFailed(f"{type(error).__name__}: {error}") from error
        if self.tiers is not None:
            self.tiers.saving.save(sequence for sequence, _ in plan.prefills + plan.decodes)
        self._answers.advance(outputs)
        return True

    def _forward_alone(self, plan: SchedulerOutput) -> list[SequenceLogits]:
        outputs = (output for part in plan.alone() for output in self._runner.forward(part))
        # A step that is replayed overwrites the logits of the one before.
        return [replace(output, logits=output.logits.clone()) for output in outputs]

    def _drop_step(self, plan: SchedulerOutput, error: Exception) -> None:
        """Drop the requests of a step whose forward pass failed, and whoever holds a block that it was to fill."""
        work = plan.prefills + plan.decodes
        doubtful = {block for _, span in work for block in self._named(span)}
        lost = {sequence.source.id for sequence, _ in work}
        lost |= {
            sequence.source.id
            for sequence in self._under_way()
            if not doubtful.isdisjoint(chain.from_iterable(self.manager.get_block_ids(sequence.cache.id)))
        }
        self._drop(lost, doubtful, request_failed(error))

    def _drop_row(self, output: SequenceLogits, error: Exception) -> None:
        """Drop the request of one sequence that failed after the forward pass, with what the step had cached for it."""
        request_id = output.sequence.source.id
        _log.error("request %s failed and is dropped", request_id, exc_info=error)
        self._drop({request_id}, self._named(output.span), request_failed(error))

    def _named(self, span: TokenSpan) -> set[int]:
        """The blocks that a span writes to, in all groups."""
        first = span.start // self.manager.block_size
        return {block for table in span.tables for block in table[first:]}

    def _drop(self, request_ids: set[str], doubtful: set[int], error: KvproxyError) -> None:
        pool = self.manager.pool
        pool.evict_blocks([pool.blocks[block] for block in sorted(doubtful) if pool.blocks[block].hash is not None])
        for sequence in self._under_way():
            if sequence.source.id in request_ids:
                self._scheduler.remove(sequence)
                _tell(sequence, error)

    def fail(self, error: KvproxyError) -> None:
        """Drop everything under way, cached blocks too: after an unknown error they may name content that was never written."""
        lost = self._under_way()
        for sequence in lost:
            self._scheduler.remove(sequence)
        self.manager.take_copies()
        self.pins.clear()
        self.manager.reset_prefix_cache()
        for sequence in lost:
            _tell(sequence, error)

    def close(self) -> None:
        """Let the tiers put away what waits; the engine is not used afterwards."""
        if self.tiers is not None:
            self.tiers.close()


def _tell(sequence: SequenceState, error: KvproxyError) -> None:
    """Tell a request's client; whoever cannot be told is gone."""
    sequence.is_dropped = True
    try:
        sequence.fail(error)
    except Exception:
        _log.exception("request %s could not be told that it failed", sequence.source.id)
