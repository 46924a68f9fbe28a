import random
from collections.abc import Callable

import torch

from training.demo.conversations import ConversationSampler

IGNORED = -100


class BatchMaker:
    def __init__(self, sampler: ConversationSampler, encode: Callable[[str], list[int]], random: random.Random) -> None:
        self._sampler = sampler
        self._encode = encode
        self._random = random

    def batch(self, rows: int, length: int, *, system_share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and labels, both `[rows, length]`; each row is a conversation.

        Args:
            system_share: maximum share of a row in its system prompt; 0 for a short prompt or no prompt.
        """
        drawn = [self._row(length, system_share) for _ in range(rows)]
        return torch.tensor([ids for ids, _ in drawn]), torch.tensor([labels for _, labels in drawn])

    def _row(self, length: int, system_share: float) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        if system_share > 0:
            budget = self._random.randrange(20, int(length * system_share))
            text = self._sampler.system_prompt(budget * 3)
            ids = self._encode(f"<|system|>{text}")[:budget] + self._encode("<|end|>")
        elif self._random.random() < 0.5:
            ids = self._encode(f"<|system|>{self._sampler.system_prompt(0)}<|end|>")
        labels = [IGNORED] * len(ids)
        while len(ids) < length:
            question, answer = self._sampler.turn()
            prompt, completion = (
                self._encode(f"<|user|>{question}<|end|><|assistant|>"),
                self._encode(f"{answer}<|end|>"),
            )
            ids += prompt + completion
            labels += [IGNORED] * len(prompt) + completion
        return ids[:length], labels[:length]
