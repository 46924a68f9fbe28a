"""Runs a planned step through the model."""

import torch

from kvproxy.engine.batch import build_batch
from kvproxy.engine.models import LoadedModel
from kvproxy.engine.pool import KVPool
from kvproxy.engine.scheduler import Plan
from kvproxy.engine.sequence import RunningSequence


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
    def forward(self, plan: Plan) -> tuple[list[RunningSequence], torch.Tensor]:
        """Compute a step.

        Returns:
            The sequences whose tokens are now all computed, and their logits `[sequences, vocabulary]`.
        """
        work = plan.prefills + plan.decodes
        step = build_batch(self.pool, [span for _, span in plan.prefills], [span for _, span in plan.decodes])
        tokens: list[int] = []
        positions: list[int] = []
        ready: list[RunningSequence] = []
        rows: list[int] = []
        for sequence, span in work:
            tokens += span.tokens
            positions += range(span.start, span.end)
            if sequence.num_remaining == 0:
                ready.append(sequence)
                rows.append(len(tokens) - 1)
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
        return ready, output.logits[0, : len(rows)]
