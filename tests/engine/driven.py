"""Engines that are stepped by hand, with tiers or without, and prompts for them."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from kvproxy.apis.codecs.generation import Delta, GenerationRequest, SamplingParams, Usage
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.tier_connector import TierConnector
from kvproxy.engine.worker.cuda_graphs import StepCapture
from kvproxy.errors import KvproxyError
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.chunk_store import ChunkStore
from kvproxy.tiers.tier_chain import TierChain
from tests.engine.models import VOCABULARY, random_model, reference, tiny
from tests.reference.integrity import check_integrity

ANSWER = 12
_SAMPLING = {field.name for field in fields(SamplingParams)}


class Driven:
    """An engine and the results of its requests; `engine` are its settings."""

    def __init__(
        self,
        loaded: LoadedModel | None = None,
        tiers: dict[str, Any] | None = None,
        *,
        capture: StepCapture | None = None,
        **engine: Any,
    ) -> None:
        sizes = {"num_blocks": 200, "block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8} | engine
        # Only tests of the timeout set a short one; a busy machine may exceed the default.
        tiering = TierSettings(**({"chunk_tokens": 16, "load_timeout": 3600.0} | (tiers or {})))
        self.engine = EngineCore(loaded or tiny(), EngineSettings(**sizes), tiering, capture=capture)
        self.tokens: dict[str, list[int]] = {}  # by `id#index`
        self.pieces: dict[str, list[Delta]] = {}
        self.usage: dict[str, Usage] = {}
        self.errors: dict[str, list[KvproxyError]] = {}
        self.done: list[str] = []  # the id of each complete output, in order
        self._steps = 0

    @property
    def tiers(self) -> TierConnector:
        assert self.engine.tiers is not None
        return self.engine.tiers

    def submit(
        self,
        id: str,
        prompt: Sequence[int],
        count: int = ANSWER,
        emit: Callable[[Delta], None] | None = None,
        **more: Any,
    ) -> None:
        """Add a greedy request; `more` are fields of the request or of its sampling."""
        sampling = {"max_tokens": count, "temperature": 0.0}
        sampling |= {name: more.pop(name) for name in _SAMPLING & more.keys()}
        request = GenerationRequest(id, tuple(prompt), SamplingParams(**sampling), **more)
        self.errors[id] = []
        self.engine.add_request(request, emit or self._take(id), self.errors[id].append)

    def _take(self, id: str) -> Callable[[Delta], None]:
        pieces = self.pieces.setdefault(id, [])

        def take(delta: Delta) -> None:
            pieces.append(delta)
            self.tokens.setdefault(f"{id}#{delta.index}", []).extend(delta.tokens)
            self.usage[id] = delta.usage
            if delta.finish_reason:
                self.done.append(id)

        return take

    def step(self) -> None:
        if self.engine.is_stalled:
            time.sleep(0.002)
        try:
            self.engine.step()
        finally:
            # A check of each step takes most of the time.
            self._steps += 1
            if self._steps % 8 == 0 or not self.engine.has_work:
                check_integrity(self.engine.manager, self.engine.pins)

    def run(self) -> None:
        for _ in range(20_000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def answers(self, prompts: list[list[int]], round: str, count: int = ANSWER) -> list[list[int]]:
        for number, prompt in enumerate(prompts):
            self.submit(f"{round}{number}", prompt, count)
        self.run()
        return [self.tokens[f"{round}{number}#0"] for number in range(len(prompts))]

    def logprobs(self, id: str) -> list[float]:
        return [item.logprob for piece in self.pieces[id] for item in piece.logprobs]

    def settle(self) -> None:
        assert self.tiers.chain.flush(300)

    def forget_pool(self) -> None:
        assert self.engine.manager.reset_prefix_cache()

    def hits(self) -> dict[str, int]:
        return {row.name: row.hits for row in self.tiers.chain.stats()}

    def replace_chain(self, chain: TierChain) -> None:
        self.tiers.chain.close()
        self.tiers.chain = chain

    def replace_store(self, *stores: ChunkStore) -> None:
        self.replace_chain(TierChain(stores))


def prompts_of(name: str, count: int = 5) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts of at most 88 tokens that share beginnings, and the model's answers."""
    prompts, answers = zip(*(_prompt_and_answer(name, number) for number in range(count)), strict=True)
    return list(prompts), list(answers)


@cache
def _prompt_and_answer(name: str, number: int) -> tuple[list[int], list[int]]:
    shared = _tokens(random.Random(name), 60)
    chance = random.Random(f"{name} {number}")
    prompt = [*shared[: chance.randrange(10, 60)], *_tokens(chance, chance.randrange(1, 30))]
    return prompt, reference(_reference_model(name), prompt, ANSWER)


@cache
def _reference_model(name: str) -> Any:
    return random_model(name)


def _tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]
