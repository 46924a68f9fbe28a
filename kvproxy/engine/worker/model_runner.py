"""Runs the model on the tokens of a step."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from kvproxy.engine.attention.paged_attention import InputBatch, build_input_batch
from kvproxy.engine.attention.selector import SDPA, AttentionBackends
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.scheduler.scheduler_output import SchedulerOutput, TokenSpan
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.worker.cuda_graphs import CannotCapture, CapturedSteps, StepCapture
from kvproxy.engine.worker.host_device_copies import upload
from kvproxy.engine.worker.kv_pool import KVPool

_log = logging.getLogger("kvproxy")
# A step with a longer span runs eagerly, because each row of a captured step reads all keys of its sequence.
_MAX_CAPTURED_SPAN = 16


@dataclass(frozen=True, slots=True)
class SequenceLogits:
    """The logits of a sequence's last tokens in a step, `[tokens, vocabulary]`. The next step may overwrite them."""

    sequence: SequenceState
    span: TokenSpan
    logits: torch.Tensor


class ModelRunner:
    def __init__(self, loaded: LoadedModel, pool: KVPool, backends: AttentionBackends = SDPA) -> None:
        self._model = loaded.model
        self._device = loaded.device
        self._groups = loaded.groups
        self._adapters = loaded.adapters
        self.pool = pool
        self.backends = backends
        self._captured: CapturedSteps | None = None

    @torch.inference_mode()
    def capture(self, capture: StepCapture, *, max_rows: int, max_len: int) -> None:
        """Capture steps of up to `max_rows` tokens, for sequences of up to `max_len` tokens, if the model allows it."""
        with self._device_context():
            try:
                self._captured = CapturedSteps(
                    lambda batch: self._logits(batch, 0),
                    self.pool,
                    self._groups,
                    self.backends.decode,
                    max_rows=max_rows,
                    max_blocks=-(-max_len // self.pool.block_size),
                    capture=capture,
                )
            except CannotCapture as error:
                _log.warning("CUDA graphs are disabled, because the model synchronizes with the GPU: %s", error)

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> list[SequenceLogits]:
        work = scheduled.sequences_and_spans
        counts = [_num_logits(sequence, span) for sequence, span in work]
        logits = self.run_captured([span for _, span in work], counts)
        if logits is None:
            prefills = [span for _, span in scheduled.prefills]
            logits = self.run_eager(prefills, [span for _, span in scheduled.decodes], counts)
        return [SequenceLogits(*item, part) for item, part, count in zip(work, logits, counts, strict=True) if count]

    def run_captured(self, spans: list[TokenSpan], counts: list[int]) -> Sequence[torch.Tensor] | None:
        """Return the logits of the last `counts[i]` tokens of each span `i`; None if the step must run eagerly."""
        if self._captured is None or any(len(span.tokens) > _MAX_CAPTURED_SPAN for span in spans):
            return None
        rows = [row for span in spans for row in span.split_tokens()]
        if not self._captured.fits(rows):
            return None
        with self._device_context():
            logits = self._captured(rows)
        ends = accumulate(len(span.tokens) for span in spans)
        return [logits[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def run_eager(
        self, prefills: list[TokenSpan], decodes: list[TokenSpan], counts: list[int]
    ) -> Sequence[torch.Tensor]:
        rows: list[int] = []
        end = 0
        for span, count in zip(prefills + decodes, counts, strict=True):
            end += len(span.tokens)
            rows += range(end - count, end)
        if self._adapters is not None:
            self._adapters.set_token_adapters([span.lora_id for span in prefills + decodes for _ in span.tokens])
        with self._device_context():
            batch = build_input_batch(self.pool, self._groups, prefills, decodes, self.backends)
            # The model requires at least one row of logits.
            logits = self._logits(batch, upload(rows or [0], self._device))
        return torch.split(logits[: len(rows)], counts)

    def _logits(self, batch: InputBatch, rows_to_keep: torch.Tensor | int) -> torch.Tensor:
        inputs = {"input_ids": batch.tokens, "position_ids": batch.positions, "input_batch": batch}
        logits: torch.Tensor = self._model(**inputs, logits_to_keep=rows_to_keep, use_cache=False).logits[0]
        return logits

    def _device_context(self) -> Any:
        # Triton launches on the thread's current device.
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _num_logits(sequence: SequenceState, span: TokenSpan) -> int:
    if sequence.needs_prompt_logprobs:
        return len(span.tokens)
    return 1 + span.num_draft_tokens if sequence.num_uncomputed_tokens == 0 else 0
