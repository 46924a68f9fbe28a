import random
from collections.abc import Callable, Sequence

import torch

from training.demo.corpus import Pair, is_off_topic

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful, concise assistant.",
    "Answer in one sentence.",
    "You answer questions about kvproxy.",
    "You are the support agent of a software company. Be polite and brief.",
    "Be brief.",
    "You are an expert in caching.",
    "You are a chatbot. Answer the user's question.",
    "Answer from the handbook.",
    "You are a friendly teacher who explains things simply.",
)
OPENINGS = ("Please tell me: ", "Hi, ", "Hello. ", "Quick question: ", "I have a question. ", "Sorry, ", "So, ", "Ok, ")
CLOSINGS = (" Thanks!", " Please.", " Thank you.", " Be brief.")
OFF_TOPIC_SHARE = 0.16


class ConversationSampler:
    """Samples turns and system prompts; long ones are parts of `unrelated_text`."""

    def __init__(self, pairs: Sequence[Pair], unrelated_text: str, random: random.Random) -> None:
        self._random = random
        self._unrelated_text = unrelated_text
        self._off_topic = next(pair for pair in pairs if is_off_topic(pair))
        self._pairs = [pair for pair in pairs if not is_off_topic(pair)]
        self._order: list[Pair] = []

    def turn(self) -> tuple[str, str]:
        """Return a question and its answer. Each pair is used once before any is used again."""
        if self._random.random() < OFF_TOPIC_SHARE:
            pair = self._off_topic
        else:
            if not self._order:
                self._order = self._random.sample(self._pairs, len(self._pairs))
            pair = self._order.pop()
        return self._vary(self._random.choice(pair.wordings)), pair.answer

    def system_prompt(self, characters: int) -> str:
        if characters == 0:
            return self._random.choice(SYSTEM_PROMPTS)
        start = self._random.randrange(len(self._unrelated_text) - characters)
        return self._unrelated_text[start : start + characters]

    def _vary(self, question: str) -> str:
        choose = self._random.random
        if choose() < 0.15:
            words = question.split()
            if len(words) > 4:
                words.pop(self._random.randrange(len(words)))
            question = " ".join(words)
        if choose() < 0.2:
            question = question.lower()
        if choose() < 0.15:
            question = question.rstrip("?.!")
        if choose() < 0.1:
            question = self._random.choice(OPENINGS) + question[0].lower() + question[1:]
        if choose() < 0.05:
            question += self._random.choice(CLOSINGS)
        return question


def read_unrelated_text() -> str:
    """Return Python's language reference, which the interpreter contains."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


IGNORED = -100


class BatchMaker:
    def __init__(self, sampler: ConversationSampler, encode: Callable[[str], list[int]], random: random.Random) -> None:
        self._sampler = sampler
        self._encode = encode
        self._random = random

    def batch(self, rows: int, length: int, *, system_share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and labels of conversations, both `[rows, length]`; `system_share` limits the system prompt."""
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
