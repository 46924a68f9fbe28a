"""Conversations as padded batches of token ids, with the loss on the answers only."""

import random
from collections.abc import Callable

import torch

from training.demo.conversations import ConversationSampler

IGNORED = -100


class BatchMaker:
    """Packs conversations into rows of at most `length` tokens.

    Args:
        sampler: where turns come from.
        encode: text -> token ids, special tokens included.
        random: source of all choices.
    """

    def __init__(self, sampler: ConversationSampler, encode: Callable[[str], list[int]], random: random.Random) -> None:
        self._sampler = sampler
        self._encode = encode
        self._random = random

    def batch(self, rows: int, length: int, *, system_share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels, both `[rows, length]`.

        Args:
            rows: conversations.
            length: tokens of each.
            system_share: greatest part of a row that its system prompt takes; 0 for short prompts or none.
        """
        drawn = [self._row(length, system_share) for _ in range(rows)]
        ids = torch.tensor([row[0] for row in drawn])
        labels = torch.tensor([row[1] for row in drawn])
        return ids, labels

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
            turn = self._sampler.turn()
            question = self._encode(f"<|user|>{turn.question}<|end|><|assistant|>")
            answer = self._encode(f"{turn.answer}<|end|>")
            ids += question + answer
            labels += [IGNORED] * len(question) + answer
        return ids[:length], labels[:length]
