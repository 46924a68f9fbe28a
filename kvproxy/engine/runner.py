"""Runs a planned step through the model."""

from dataclasses import dataclass

import torch

from kvproxy.engine.attention.backend import SDPA, Backends
from kvproxy.engine.batch import build_batch
from kvproxy.engine.models import LoadedModel
from kvproxy.engine.pool import KVPool
from kvproxy.engine.scheduler import Plan
from kvproxy.engine.sequence import RunningSequence
from kvproxy.engine.span import Span
from kvproxy.engine.transfer import upload


@dataclass(frozen=True, slots=True)
class Output:
    """Logits of the last tokens of a sequence's span, `[tokens, vocabulary]`."""

    sequence: RunningSequence
    span: Span
    logits: torch.Tensor


class Runner:
    """A model with its KV pool.

    Args:
        loaded: the model.
        pool: the KV tensors that its attention reads and writes.
        backends: what computes its attention.
    """

    def __init__(self, loaded: LoadedModel, pool: KVPool, backends: Backends = SDPA) -> None:
        self._model = loaded.model
        self.pool = pool
        self._backends = backends

    @torch.inference_mode()
    def forward(self, plan: Plan) -> list[Output]:
        """Compute a step; the logits of each sequence that needs any."""
        wanted = [(sequence, span, _num_wanted(sequence, span)) for sequence, span in plan.prefills + plan.decodes]
        step = build_batch(
            self.pool, [span for _, span in plan.prefills], [span for _, span in plan.decodes], self._backends
        )
        rows: list[int] = []
        end = 0
        for _, span, count in wanted:
            end += len(span.tokens)
            rows += range(end - count, end)
        output = self._model(
            input_ids=step.tokens,
            position_ids=step.positions,
            # Without a row to keep the model still needs one; its logits are dropped.
            logits_to_keep=upload(rows or [0], step.tokens.device),
            use_cache=False,
            step=step,
        )
        parts = output.logits[0, : len(rows)].split([count for _, _, count in wanted])
        return [
            Output(sequence, span, part) for (sequence, span, count), part in zip(wanted, parts, strict=True) if count
        ]


def _num_wanted(sequence: RunningSequence, span: Span) -> int:
    """How many of a span's last tokens need their logits."""
    if sequence.wants_prompt_logprobs:
        return len(span.tokens)
    return 1 + span.drafts if sequence.num_remaining == 0 else 0
