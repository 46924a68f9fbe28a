"""Runs the steps of the engine: schedule, forward pass, sample."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice

import torch

from kvproxy.apis.codecs.generation import GenerationRequest
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.residency import ResidencyTracker
from kvproxy.engine.attention.selector import select_backends
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.request_validation import EngineLimits
from kvproxy.engine.sampler import SampledToken, sample
from kvproxy.engine.scheduler.scheduler import Scheduler
from kvproxy.engine.scheduler.scheduler_output import ChunkedPrefill, SchedulerOutput, TokenSpan
from kvproxy.engine.scheduler.sequence import ErrorCallback, OutputCallback, SequenceState
from kvproxy.engine.step_errors import StepFailed, error_for_client, is_device_error
from kvproxy.engine.structured_output import GrammarCompiler, allowed_tokens
from kvproxy.engine.tier_connector import create_tier_connector
from kvproxy.engine.worker.cuda_graphs import CudaCapture, StepCapture, max_captured_rows
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.memory_profiling import determine_num_blocks
from kvproxy.engine.worker.model_runner import ModelRunner, SequenceLogits
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.privacy.encryption import Cipher
from kvproxy.settings import EngineSettings, TierSettings

_log = logging.getLogger("kvproxy")


class EngineCore:
    """Schedules steps, runs the model, and samples tokens. Not thread-safe: `EngineThread` makes all calls."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        tiers: TierSettings = TierSettings(),
        cipher: Cipher | None = None,
        *,
        capture: StepCapture | None = None,  # None: CUDA graphs if settings and device allow them
    ) -> None:
        shape, block_size = loaded.shape, settings.block_size
        backends = select_backends(
            loaded.device,
            loaded.dtype,
            shape.head_dim,
            has_softcap=loaded.has_softcap,
            prefill=settings.prefill_attention,
            decode=settings.decode_attention,
        )
        num_blocks = determine_num_blocks(loaded, backends, settings)
        self.tokenizer = loaded.tokenizer
        self.adapters = loaded.adapters.by_name if loaded.adapters else {}
        chunked_prefill = ChunkedPrefill(block_size, settings.max_num_batched_tokens, strict=settings.batch_invariant)
        max_step_tokens = chunked_prefill.max_step_tokens
        # Strict hits end at chunk boundaries, which need not be the end of a prompt.
        retention_interval = None if settings.batch_invariant or settings.cached_windows == "all" else 0
        self.manager = KVCacheManager(
            num_blocks,
            groups=[group.group_spec(block_size, retention_interval) for group in loaded.groups],
            hasher=BlockHasher(settings.hash_algorithm),
            policy=settings.eviction_policy,
            priorities=True,
            residency=ResidencyTracker(),
            record_events=settings.kv_events is not None,
            alignment_tokens=chunked_prefill.alignment,
        )
        self.limits = EngineLimits(
            loaded.model.get_input_embeddings().num_embeddings,
            min(settings.max_model_len or loaded.max_model_len, loaded.max_model_len),
            self.manager.max_request_tokens(max_step_tokens),
            loaded.default_max_tokens,
        )
        self.grammars = GrammarCompiler(loaded.tokenizer, self.limits.vocab_size)
        # Pins leave enough blocks for the model's longest request, which a smaller pool rejects, and so holds no pin.
        max_request_blocks = self.manager.max_blocks_in_use(self.limits.max_model_len, max_step_tokens)
        self.pins = Pins(self.manager, max_blocks=num_blocks - 1 - max_request_blocks)
        pool = KVPool(shape, num_blocks, block_size, loaded.dtype, loaded.device)
        self.block_bytes = shape.block_bytes(block_size, loaded.dtype)
        self._runner = ModelRunner(loaded, pool, backends)
        self._strict = settings.batch_invariant
        # Captured steps do not support LoRA.
        use_graphs = settings.cuda_graphs and loaded.adapters is None
        if capture is None and use_graphs and loaded.device.type == "cuda" and backends.decode.supports_capture:
            capture = CudaCapture(loaded.device)
        if capture is not None:
            self._runner.capture(capture, max_rows=max_captured_rows(settings), max_len=self.limits.token_capacity)
        self.tiers = create_tier_connector(loaded, pool, self.manager, chunked_prefill, settings, tiers, cipher)
        self._waits_for_load = False
        # A GPU computes the next step while the host decodes and sends the outputs of the last.
        self._sends_during_next_step = loaded.device.type == "cuda"
        self._unsent: list[SequenceState] = []
        self._scheduler = Scheduler(
            self.manager,
            settings.max_num_batched_tokens,
            settings.max_num_seqs,
            chunked_prefill,
            # Strict mode computes output tokens one at a time.
            num_draft_tokens=0 if settings.batch_invariant else settings.num_speculative_tokens,
            tiers=self.tiers,
        )

    @property
    def has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(scheduler.running or scheduler.waiting or scheduler.loading)

    @property
    def is_stalled(self) -> bool:
        """Whether no sequence can run, because all wait for chunks from the tiers."""
        return self._waits_for_load and self.tiers is not None and self.tiers.is_idle

    def add_request(
        self, request: GenerationRequest, on_output: OutputCallback, on_error: ErrorCallback = lambda error: None
    ) -> SequenceState:
        if any(sequence.request.id == request.id for sequence in self._scheduler.sequences):
            raise InvalidRequest(f"request id {request.id!r} is in use: give each request its own id")
        matcher = self.grammars.create_matcher(request.grammar) if request.grammar else None
        max_tokens, adapter = self.limits.validate(request), None
        if request.adapter is not None:
            adapter = self.adapters.get(request.adapter)
            if adapter is None:
                raise InvalidRequest(f"unknown LoRA adapter {request.adapter!r}", param="model")
        sequence = SequenceState(request, 0, max_tokens, self.tokenizer, on_output, on_error, matcher, adapter)
        self._scheduler.add(sequence)
        self._waits_for_load = False
        return sequence

    def abort(self, request_id: str) -> None:
        # Later, the id may be another request's.
        self._unsent = [sequence for sequence in self._unsent if sequence.request.id != request_id]
        for sequence in self._scheduler.sequences:
            if sequence.request.id == request_id:
                self._scheduler.remove(sequence)
        self._waits_for_load = False

    def step(self) -> bool:
        """Run one step, and send the sampled tokens. Return False if no sequence could run.

        Raises:
            StepFailed: the forward pass failed, and the requests of the step were aborted.
            Exception: any other error; the caller must call `fail_all`.
        """
        self.pins.expire()
        scheduled = self._scheduler.schedule()
        copies = self.manager.take_copies()
        self._waits_for_load = not scheduled and bool(self._scheduler.loading)
        if not scheduled:
            self._send_outputs()
            self._runner.pool.copy_blocks(copies)
            return False
        try:
            self._runner.pool.copy_blocks(copies)
            outputs = self._execute_one_by_one(scheduled) if self._strict else self._runner.execute_model(scheduled)
        except Exception as error:
            if is_device_error(error):
                raise
            self._abort_step(scheduled, error)
            raise StepFailed(f"{type(error).__name__}: {error}") from error
        if self.tiers is not None:
            self.tiers.save(sequence for sequence, _ in scheduled.sequences_and_spans)
        self._send_outputs()
        self._process_outputs(outputs)
        return True

    def _execute_one_by_one(self, scheduled: SchedulerOutput) -> list[SequenceLogits]:
        outputs = (output for part in scheduled.split_by_sequence() for output in self._runner.execute_model(part))
        # A captured step overwrites the logits of the previous step.
        return [replace(output, logits=output.logits.clone()) for output in outputs]

    def _process_outputs(self, outputs: Sequence[SequenceLogits]) -> None:
        ready: list[SequenceLogits] = []
        for output in outputs:
            with self._abort_on_error(output.sequence, output.span):
                ready += self._outputs_to_sample(output)
        ready = [output for output in ready if not output.sequence.is_aborted]
        if not ready:
            return
        try:
            sampled = _sample_tokens(ready)
        except Exception as error:
            if is_device_error(error):
                raise
            # Sample each sequence alone, so that an error aborts only its own request.
            sampled = None
        for place, output in enumerate(ready):
            # A sibling sequence may have aborted the request.
            if not output.sequence.is_aborted:
                with self._abort_on_error(output.sequence, output.span):
                    self._append(output, sampled[place] if sampled else _sample_tokens([output])[0])

    def _send_outputs(self) -> None:
        unsent, self._unsent = self._unsent, []
        for sequence in unsent:
            if not sequence.is_aborted:
                with self._abort_on_error(sequence):
                    sequence.send()

    @contextmanager
    def _abort_on_error(self, sequence: SequenceState, invalid_span: TokenSpan | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_device_error(error):
                raise
            request_id = sequence.request.id
            _log.error("request %s failed and was aborted", request_id, exc_info=error)
            blocks = self._written_blocks(invalid_span) if invalid_span else set()
            self._abort_requests({request_id}, blocks, error_for_client(error))

    def _outputs_to_sample(self, output: SequenceLogits) -> list[SequenceLogits]:
        sequence = output.sequence
        if sequence.needs_prompt_logprobs:
            sequence.add_prompt_logprobs(output.span.start, output.logits)
        if sequence.num_uncomputed_tokens:
            return []
        ready = [output]
        if sequence.num_output_tokens == 0 and sequence.index == 0:
            for index in range(1, sequence.sampling.n):
                child = sequence.fork(index)
                self._scheduler.fork(sequence, child)
                ready.append(replace(output, sequence=child))
        if sequence.max_tokens:
            return ready
        for ready_output in ready:
            ready_output.sequence.finish_without_output()
            self._finish(ready_output.sequence)
        return []

    def _append(self, output: SequenceLogits, sampled: Sequence[SampledToken]) -> None:
        sequence, tokens, num_drafts = output.sequence, output.span.tokens, output.span.num_draft_tokens
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
        if self._sends_during_next_step and not sequence.finish_reason:
            self._unsent.append(sequence)
            return
        sequence.send()
        if sequence.finish_reason:
            self._finish(sequence)

    def _finish(self, sequence: SequenceState) -> None:
        if self.tiers is not None:
            self.tiers.count_dropped_chunks(sequence)
        self._scheduler.remove(sequence)

    def _abort_step(self, scheduled: SchedulerOutput, error: Exception) -> None:
        work = scheduled.sequences_and_spans
        unwritten = {block for _, span in work for block in self._written_blocks(span)}
        failed = {sequence.request.id for sequence, _ in work}
        failed |= {
            sequence.request.id
            for sequence in self._scheduler.sequences
            if not unwritten.isdisjoint(chain.from_iterable(self.manager.get_block_ids(sequence.cache_request.id)))
        }
        self._abort_requests(failed, unwritten, error_for_client(error))

    def _written_blocks(self, span: TokenSpan) -> set[int]:
        first = span.start // self.manager.block_size
        return {block for table in span.block_tables for block in table[first:]}

    def _abort_requests(self, request_ids: set[str], invalid_blocks: set[int], error: KvproxyError) -> None:
        self._send_outputs()
        pool = self.manager.pool
        invalid = [pool.blocks[block] for block in sorted(invalid_blocks)]
        pool.evict_blocks([block for block in invalid if block.hash is not None])
        for sequence in self._scheduler.sequences:
            if sequence.request.id in request_ids:
                self._scheduler.remove(sequence)
                _send_error(sequence, error)

    def fail_all(self, error: KvproxyError) -> None:
        """Abort all requests, and clear the prefix cache, whose content may be wrong."""
        self._send_outputs()
        failed = self._scheduler.sequences
        for sequence in failed:
            self._scheduler.remove(sequence)
        self.manager.take_copies()
        self.pins.clear()
        self.manager.reset_prefix_cache()
        for sequence in failed:
            _send_error(sequence, error)

    def close(self) -> None:
        if self.tiers is not None:
            self.tiers.close()


def _send_error(sequence: SequenceState, error: KvproxyError) -> None:
    sequence.is_aborted = True
    try:
        sequence.on_error(error)
    except Exception:
        _log.exception("the error of request %s was not delivered", sequence.request.id)


def _sample_tokens(outputs: Sequence[SequenceLogits]) -> list[list[SampledToken]]:
    counts = [1 + output.span.num_draft_tokens for output in outputs]
    rows = [output.sequence for output, count in zip(outputs, counts, strict=True) for _ in range(count)]
    logits = torch.cat([output.logits[-count:] for output, count in zip(outputs, counts, strict=True)])
    matchers = [sequence.matcher for sequence in rows]
    uniforms: list[float] = []
    for output, count in zip(outputs, counts, strict=True):
        sequence = output.sequence
        uniforms += [0.0] * count if sequence.sampling.is_greedy else sequence.uniforms.peek(count)
    allowed = allowed_tokens(matchers, logits.shape[-1]) if any(matchers) else None
    sampled = iter(sample(logits, [sequence.sampling for sequence in rows], uniforms, allowed))
    return [list(islice(sampled, count)) for count in counts]
