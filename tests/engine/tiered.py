"""Engines with tiers, run by hand."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.kernels.packed_linear import pack_linears
from kvproxy.engine.kv_connector.tier_connector import TierConnector
from kvproxy.engine.models.loader import LoadedModel, prepare_model
from kvproxy.engine.worker.cuda_graphs import StepCapture
from kvproxy.generation import Delta, GenerationRequest, SamplingParams, Usage
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.store import ChunkStore
from tests.engine.models import VOCABULARY, LetterTokenizer, random_model, reference
from tests.reference.integrity import check_integrity

ANSWER = 12


class Driven:
    """An engine and what its answers were.

    Args:
        loaded: the model.
        tiers: settings of the tiers; chunks are of 16 tokens unless given.
        capture: makes steps ready to be replayed; by default what the device has.
        engine: settings of the engine; blocks are of 4 tokens unless given.
    """

    def __init__(
        self, loaded: LoadedModel, tiers: dict[str, Any], *, capture: StepCapture | None = None, **engine: Any
    ) -> None:
        sizes = {"num_blocks": 200, "block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8} | engine
        tiering = TierSettings(**({"chunk_tokens": 16} | tiers))
        self.engine = EngineCore(loaded, EngineSettings(**sizes), tiering, capture=capture)
        self.tokens: dict[str, list[int]] = {}
        self.usage: dict[str, Usage] = {}

    @property
    def tiers(self) -> TierConnector:
        assert self.engine.tiers is not None
        return self.engine.tiers

    def submit(self, id: str, prompt: Sequence[int], count: int = 12, **sampling: Any) -> None:
        params = SamplingParams(**({"max_tokens": count, "temperature": 0.0} | sampling))
        self.engine.add_request(GenerationRequest(id, tuple(prompt), params), self._take(id))

    def _take(self, id: str) -> Callable[[Delta], None]:
        def take(delta: Delta) -> None:
            self.tokens.setdefault(f"{id}#{delta.index}", []).extend(delta.tokens)
            self.usage[id] = delta.usage

        return take

    def step(self) -> None:
        if self.engine.is_stalled:
            time.sleep(0.002)
        self.engine.step()
        check_integrity(self.engine.manager)

    def run(self) -> None:
        """Until every answer is complete."""
        began = time.monotonic()
        while self.engine.has_work:
            self.step()
            assert time.monotonic() - began < 60, "the engine does not come to an end"

    def settle(self) -> None:
        """Until everything saved is put away."""
        assert self.tiers.chain.flush(20)

    def forget_pool(self) -> None:
        assert self.engine.manager.reset_prefix_cache()

    def hits(self) -> dict[str, int]:
        return {row.name: row.hits for row in self.tiers.chain.stats()}


def tiny(architecture: str = "llama", seed: int = 0) -> LoadedModel:
    """A random model, loaded."""
    attention.register()
    model = random_model(architecture, seed)
    pack_linears(model)
    return prepare_model(architecture, model, LetterTokenizer(), torch.device("cpu"))


def prompts_of(name: str, count: int = 8) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts that share beginnings, and what the model answers."""
    chance = random.Random(name)
    shared = [chance.randrange(VOCABULARY) for _ in range(80)]
    prompts = [
        shared[: chance.randrange(20, 80)] + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 30))]
        for _ in range(count)
    ]
    model = random_model(name)
    return prompts, [reference(model, prompt, ANSWER) for prompt in prompts]


def answers(driven: Driven, prompts: list[list[int]], round: str) -> list[list[int]]:
    for number, prompt in enumerate(prompts):
        driven.submit(f"{round}{number}", prompt, ANSWER)
    driven.run()
    return [driven.tokens[f"{round}{number}#0"] for number in range(len(prompts))]


def replace_store(driven: Driven, *stores: ChunkStore) -> None:
    """Put test doubles in the place of the tiers that the settings made."""
    replace_chain(driven.tiers, TierChain(stores))


def replace_chain(tiers: TierConnector, chain: TierChain) -> None:
    """Put another chain in the place of the one that the settings made."""
    tiers.chain.close()
    tiers.chain = tiers.saver._chain = chain
