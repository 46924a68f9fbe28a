"""Chunked prompts, forks, priorities, tenants, guesses, pins, log-probabilities, cancellations, a pool that
is too small, and tiers of which one fails now and then. The answers equal `model.generate`, and no block stays allocated."""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.pins import PinLimitExceeded
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.chunk_store import ChunkStore
from kvproxy.tiers.local_stores import DiskStore, HostStore
from kvproxy.tiers.tier_chain import TierChain
from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY, random_model, reference, tiny
from tests.reference.integrity import check_integrity
from tests.tiers.doubles import DictStore

LONGEST = 40


@dataclass
class Asked:
    n: int
    expected: list[int]
    cancelled: bool = False


@cache
def corpus(architecture: str) -> list[tuple[tuple[int, ...], list[int]]]:
    chance = random.Random(architecture)
    model = random_model(architecture)
    trunk = [chance.randrange(VOCABULARY) for _ in range(90)]
    prompts = [trunk[: chance.randrange(1, 90)] + _words(chance, 1, 25) for _ in range(9)]
    prompts += [_words(chance, 3, 8) * 9 for _ in range(3)]
    prompts += [prompt + reference(model, prompt, 30) + _words(chance, 1, 9) for prompt in prompts[:3]]
    return [(tuple(prompt), reference(model, prompt, LONGEST)) for prompt in prompts]


def _words(chance: random.Random, least: int, most: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(chance.randrange(least, most))]


class Stress:
    def __init__(self, architecture: str, seed: int, folder: Path, **engine: Any) -> None:
        self.chance = random.Random(seed)
        self.corpus = corpus(architecture)
        sizes = {
            "num_blocks": self.chance.choice((54, 60, 90)),
            "max_model_len": 200,
            "max_num_batched_tokens": self.chance.choice((7, 24, 64)),
        }
        sizes |= {"max_num_seqs": self.chance.choice((3, 8)), "num_speculative_tokens": self.chance.choice((0, 4))}
        loaded, tiers = tiny(architecture), {"host": "1MiB", "load_timeout": 5.0}
        self.driven = Driven(loaded, tiers, **(sizes | engine))
        self.flaky = DictStore("redis", remote=True)
        stores: list[ChunkStore] = [HostStore(60_000), DiskStore(folder, 200_000), self.flaky]
        self.driven.replace_chain(TierChain(stores, max_pending_bytes=self.chance.choice((30_000, 1 << 20))))
        self.asked: dict[str, Asked] = {}

    def ask(self, id: str) -> None:
        chance = self.chance
        prompt, expected = chance.choice(self.corpus)
        count, n = chance.choice((0, 1, 5, 17, LONGEST)), chance.choice((1, 1, 1, 2, 4))
        self.driven.submit(
            id,
            prompt,
            count,
            n=n,
            logprobs=chance.choice((None, 0)),
            prompt_logprobs=chance.choice((None, None, None, 1)),
            salt=chance.choice((None, None, "salt")),
            priority=chance.choice((0, 3)),
            tenant=chance.choice("abc"),
            queue_priority=chance.choice((-1, 0, 0, 0, 2)),
        )
        self.asked[id] = Asked(n, expected[:count])

    def disturb(self) -> None:
        chance, engine = self.chance, self.driven.engine
        open_ids = [id for id, asked in self.asked.items() if self.driven.done.count(id) < asked.n]
        open_ids = [id for id in open_ids if not self.asked[id].cancelled]
        if open_ids and chance.random() < 0.06:
            id = chance.choice(open_ids)
            engine.abort(id)
            self.asked[id].cancelled = True
            self.driven.pieces[id].clear()
        if chance.random() < 0.05:
            self.flaky.failing = not self.flaky.failing
        if chance.random() < 0.02:
            prompt, _ = chance.choice(self.corpus)
            with contextlib.suppress(PinLimitExceeded):
                engine.pins.pin(chance.choice("xy"), CacheRequest("pin", [*prompt, 0]))
        if chance.random() < 0.02:
            engine.pins.unpin(chance.choice("xy"))
        if chance.random() < 0.01:
            self.driven.tiers.chain.clear(chance.choice(("host", "disk")))

    def run(self, requests: int) -> None:
        left = requests
        steps = 0
        while left or self.driven.engine.has_work:
            while left and self.chance.random() < 0.25:
                left -= 1
                self.ask(str(left))
            self.disturb()
            self.driven.step()
            steps += 1
            assert steps < 200 * requests, "the engine does not come to an end"

    def check(self) -> None:
        for id, asked in self.asked.items():
            if asked.cancelled:
                assert self.driven.pieces[id] == [], "a piece of a cancelled answer"
                continue
            assert self.driven.done.count(id) == asked.n
            assert [self.driven.tokens[f"{id}#{index}"] for index in range(asked.n)] == [asked.expected] * asked.n
            assert sum(bool(piece.prompt_logprobs) for piece in self.driven.pieces[id]) <= 1
        for name in "xy":
            self.driven.engine.pins.unpin(name)
        scheduler, tiers = self.driven.engine._scheduler, self.driven.tiers
        assert scheduler.running == scheduler.loading == []
        assert len(scheduler.waiting) == 0
        assert len(tiers._loads) == len(tiers._loading_keys) == 0
        assert self.driven.engine.manager.stats().used == 0
        assert not self.driven.engine.manager.requests
        assert not self.driven.engine.manager.take_copies()
        assert scheduler.waiting._num_live == {}
        self.driven.settle()
        assert not tiers.chain._pending
        self.driven.engine.close()


def test_a_storm_leaves_every_answer_exact_and_nothing_behind(tmp_path: Path) -> None:
    stress = Stress("llama", 0, tmp_path)
    stress.run(30)
    stress.check()


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    chance = random.Random(4)
    sizes = {"num_blocks": 60, "max_num_batched_tokens": 24, "max_num_seqs": 6, "max_model_len": 200}
    settings = EngineSettings(block_size=4, num_speculative_tokens=3, **sizes)
    worker = AsyncLLM(tiny(), settings, TierSettings(disk=tmp_path, chunk_tokens=16))
    await worker.start()

    async def client(number: int, prompt: tuple[int, ...], n: int) -> dict[int, list[int]]:
        await asyncio.sleep(chance.random())
        found: dict[int, list[int]] = {}
        params = SamplingParams(max_tokens=LONGEST, temperature=0.0, n=n)
        request = GenerationRequest(str(number), prompt, params, tenant=str(number % 3))
        async with contextlib.aclosing(worker.generate(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                found.setdefault(piece.index, []).extend(piece.tokens)
        return found

    asked = [(*chance.choice(corpus("llama")), chance.choice((1, 1, 3))) for _ in range(24)]
    tasks = [asyncio.create_task(client(number, prompt, n)) for number, (prompt, _, n) in enumerate(asked)]
    for task in chance.sample(tasks, 12):
        asyncio.get_running_loop().call_later(chance.random() * 3, task.cancel)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    complete = 0
    for (_, expected, n), answer in zip(asked, answers, strict=True):
        if not isinstance(answer, asyncio.CancelledError):
            assert answer == dict.fromkeys(range(n), expected)
            complete += 1
    assert 12 <= complete < 24
    assert (await worker.inspect(lambda manager: manager.stats())).used == 0
    await worker.inspect(lambda manager: check_integrity(manager))
    await worker.stop()
