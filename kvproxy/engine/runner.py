"""Runs a planned step through the model."""

from dataclasses import dataclass

import torch

from kvproxy.engine.batch import Span, build_batch
from kvproxy.engine.models import LoadedModel
from kvproxy.engine.pool import KVPool
from kvproxy.engine.scheduler import Plan
from kvproxy.engine.sequence import RunningSequence


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
    """

    def __init__(self, loaded: LoadedModel, pool: KVPool) -> None:
        self._model = loaded.model
        self.pool = pool
        self._device = loaded.device

    @torch.inference_mode()
    def forward(self, plan: Plan) -> list[Output]:
        """Compute a step; the logits of each sequence that needs any."""
        work = plan.prefills + plan.decodes
        step = build_batch(self.pool, [span for _, span in plan.prefills], [span for _, span in plan.decodes])
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[tuple[RunningSequence, Span, int]] = []
        rows: list[int] = []
        for sequence, span in work:
            tokens += span.tokens
            positions += range(span.start, span.end)
            count = _num_wanted(sequence, span)
            if count:
                wanted.append((sequence, span, count))
                rows += range(len(tokens) - count, len(tokens))
        device = self._device
        # Without a row to keep the model still needs one; its logits are dropped.
        keep = torch.tensor(rows or [0], device=device)
        output = self._model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([positions], device=device),
            logits_to_keep=keep,
            use_cache=False,
            step=step,
        )
        parts = output.logits[0, : len(rows)].split([count for _, _, count in wanted]) if wanted else ()
        return [Output(sequence, span, part) for (sequence, span, _), part in zip(wanted, parts, strict=True)]


def _num_wanted(sequence: RunningSequence, span: Span) -> int:
    """How many of a span's last tokens need their logits."""
    if sequence.wants_prompt_logprobs:
        return len(span.tokens)
    return 1 + span.drafts if sequence.num_remaining == 0 else 0
