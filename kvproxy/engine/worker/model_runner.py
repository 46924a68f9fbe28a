"""Runs a planned step through the model."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from kvproxy.engine.attention.selector import SDPA, AttentionBackends
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.scheduler.scheduler import SchedulerOutput
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.cuda_graphs import CannotCapture, CapturedSteps, StepCapture
from kvproxy.engine.worker.input_batch import InputBatch, build_input_batch
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.transfer import upload

_log = logging.getLogger("kvproxy")
_LONGEST_SPAN = 16
"""Most tokens of a sequence that are computed as rows of their own: each of them reads all of the sequence's keys again."""


@dataclass(frozen=True, slots=True)
class SequenceLogits:
    """Logits of the last tokens of a sequence's span, `[tokens, vocabulary]`; they last until the next step."""

    sequence: SequenceState
    span: TokenSpan
    logits: torch.Tensor


class ModelRunner:
    """A model with its KV pool.

    Args:
        loaded: the model.
        pool: the KV tensors that its attention reads and writes.
        backends: what computes its attention.
    """

    def __init__(self, loaded: LoadedModel, pool: KVPool, backends: AttentionBackends = SDPA) -> None:
        self._model = loaded.model
        self._device = loaded.device
        self._groups = loaded.groups
        self._adapters = loaded.adapters
        self.pool = pool
        self.backends = backends
        self._graphs: CapturedSteps | None = None

    @property
    def replays(self) -> bool:
        """Whether steps of few tokens a sequence are replayed."""
        return self._graphs is not None

    @torch.inference_mode()
    def capture(self, capture: StepCapture, *, most: int, longest: int) -> None:
        """Make steps of up to `most` tokens ready to be replayed, for sequences of up to `longest` tokens.

        Where the model does not let that happen, its steps go on being launched one by one.
        """
        with self._on_device():
            try:
                self._graphs = CapturedSteps(
                    lambda step: self._logits(step, 0),
                    self.pool,
                    self._groups,
                    self.backends.decode,
                    most=most,
                    width=-(-longest // self.pool.block_size),
                    capture=capture,
                )
            except CannotCapture as error:
                _log.warning("decoding goes on without CUDA graphs, because the model waits for the GPU: %s", error)

    @torch.inference_mode()
    def forward(self, plan: SchedulerOutput) -> list[SequenceLogits]:
        """Compute a step; the logits of each sequence that needs any."""
        work = plan.prefills + plan.decodes
        counts = [_num_wanted(sequence, span) for sequence, span in work]
        parts = self.replay([span for _, span in work], counts)
        if parts is None:
            parts = self.compute([span for _, span in plan.prefills], [span for _, span in plan.decodes], counts)
        return [SequenceLogits(*each, part) for each, part, count in zip(work, parts, counts, strict=True) if count]

    def replay(self, spans: list[TokenSpan], counts: list[int]) -> Sequence[torch.Tensor] | None:
        """Logits of the last `counts` tokens of each span, by a step that was made ready; None where there is none."""
        if self._graphs is None or any(len(span.tokens) > _LONGEST_SPAN for span in spans):
            return None
        rows = [row for span in spans for row in span.rows()]
        if not self._graphs.fits(rows):
            return None
        with self._on_device():
            logits = self._graphs(rows)
        ends = accumulate(len(span.tokens) for span in spans)
        return [logits[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def compute(self, prefills: list[TokenSpan], decodes: list[TokenSpan], counts: list[int]) -> Sequence[torch.Tensor]:
        """Logits of the last `counts` tokens of each span, computed eagerly."""
        rows: list[int] = []
        end = 0
        for span, count in zip(prefills + decodes, counts, strict=True):
            end += len(span.tokens)
            rows += range(end - count, end)
        if self._adapters is not None:
            self._adapters.use([span.adapter for span in prefills + decodes for _ in span.tokens])
        with self._on_device():
            step = build_input_batch(self.pool, self._groups, prefills, decodes, self.backends)
            # Without a row to keep the model still needs one; its logits are dropped.
            logits = self._logits(step, upload(rows or [0], self._device))
        return torch.split(logits[: len(rows)], counts)

    def _logits(self, step: InputBatch, keep: torch.Tensor | int) -> torch.Tensor:
        output = self._model(
            input_ids=step.tokens, position_ids=step.positions, logits_to_keep=keep, use_cache=False, step=step
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _on_device(self) -> Any:
        # Triton launches on the thread's current device, wherever the tensors are.
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _num_wanted(sequence: SequenceState, span: TokenSpan) -> int:
    """How many of a span's last tokens need their logits."""
    if sequence.wants_prompt_logprobs:
        return len(span.tokens)
    return 1 + span.drafts if sequence.num_remaining == 0 else 0
