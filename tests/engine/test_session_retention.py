"""The eviction policy `sessions` in the engine: at least the hits of LRU, and the same tokens."""

import random
from collections.abc import Iterator

from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY

USERS = 6
SYSTEM = [7] * 16
ANSWER = 4


def conversations(seed: int, driven: Driven) -> Iterator[list[int]]:
    chance, now = random.Random(seed), 0.0
    histories: dict[int, list[int]] = {}
    driven.engine.manager._clock = lambda: now
    for number in range(60):
        now += chance.expovariate(1 / 20)
        user = min(int(chance.expovariate(0.6)), USERS - 1)
        words = [chance.randrange(VOCABULARY) for _ in range(chance.randrange(4, 12))]
        history = histories.get(user, SYSTEM)
        prompt = [*(SYSTEM if len(history) > 90 else history), *words]
        driven.submit(f"{number}", prompt, ANSWER, tenant=f"user {user}")
        # Without the checks of `Driven.run` after each step, which take most of the time.
        while driven.engine.has_work:
            driven.engine.step()
        histories[user] = [*prompt, *driven.tokens[f"{number}#0"]]
        yield driven.tokens[f"{number}#0"]


def test_sessions_hit_at_least_as_much_as_lru_with_the_same_tokens() -> None:
    lru, sessions = (Driven(num_blocks=65, eviction_policy=name) for name in ("lru", "sessions"))
    for one, other in zip(conversations(0, lru), conversations(0, sessions), strict=True):
        assert one == other
    before, after = lru.engine.manager.stats(), sessions.engine.manager.stats()
    assert before.queries == after.queries
    assert before.evictions > 50
    assert after.hits >= before.hits
