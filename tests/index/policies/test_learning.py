"""Fresh answers teach: classes are kept in the store, of either kind, and survive with what was learned from them."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.policies.learned.policy import LearnedPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import ClassifiedAnswer, Store
from kvproxy.index.store.observations import Observation, ReplayObservations
from kvproxy.index.store.opening import open_observations
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry


class Shop:
    """A cache whose answers are known, and a judge that compares them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.policy = LearnedPolicy(ReplayObservations(), None, 0.05, 0.1)
        self.cache = SemanticCache(store, HashEmbedder(), self.policy, ReplayObservations(), chance=lambda: 0.999)
        self.cache.rebuild()
        self.said: dict[str, str] = {}
        self.asked: list[str] = []

    async def answer(self, prompt: str, said: str) -> tuple[Entry, Observation | None]:
        """Ask a question that is forwarded, and learn from its answer."""
        lookup = await self.cache.lookup("n", prompt)
        fresh = make_entry(prompt)
        await self.cache.insert(fresh)
        self.said[fresh.id] = said
        assert self.cache.learning is not None

        async def same(id: str) -> bool | None:
            self.asked.append(id)
            return None if self.said[id] == "?" else self.said[id].split()[0] == said.split()[0]

        return fresh, await self.cache.learning.record_response(lookup, fresh, said, same)

    def answer_class(self, entry: Entry) -> str:
        return self.store.questions([entry.id])[entry.id].answer


def run(shop: Shop, script: Callable[[Shop], object]) -> None:
    async def work() -> None:
        await script(shop)  # type: ignore[misc]

    asyncio.run(work())
    shop.cache.close()


def test_answers_that_agree_share_a_class_and_others_do_not(make_store: Callable[..., Store]) -> None:
    async def script(shop: Shop) -> None:
        first, nothing = await shop.answer("how do I open my account", "yes one")
        assert nothing is None
        second, found = await shop.answer("how do I open my account now", "yes two")
        third, other = await shop.answer("how do I open my account then", "no")
        assert found is not None
        assert (found.right, found.joined) == (True, shop.answer_class(first))
        assert other is not None
        assert (other.right, other.joined) == (False, third.id)
        assert shop.answer_class(first) == shop.answer_class(second) != shop.answer_class(third)
        # The same words are the same answer, however far the question.
        far, _ = await shop.answer("bananas", "NO!")
        assert shop.answer_class(far) == shop.answer_class(third)
        assert shop.policy.status("n").observations == 3

    run(Shop(make_store()), script)


def test_an_answer_is_embedded_when_it_is_compared_and_then_its_vector_is_kept(
    make_store: Callable[..., Store],
) -> None:
    async def script(shop: Shop) -> None:
        first, _ = await shop.answer("how do I open my account", "yes one")
        assert shop.store.answer_vectors([first.id], HashEmbedder.name) == {}
        learning = shop.cache.learning
        assert learning is not None
        cosine = await learning.answer_similarity(first.id, "yes one", "yes two")
        one, two = HashEmbedder().embed(["yes one", "yes two"])
        assert cosine == float(two @ one)
        second, _ = await shop.answer("how do I open my account now", "yes two")
        vectors = shop.store.answer_vectors([first.id, second.id, "gone"], HashEmbedder.name)
        assert set(vectors) == {second.id}
        assert vectors[second.id].tolist() == two.tolist()
        # It is the kept vector that counts, whatever the answer is said to be.
        assert await learning.answer_similarity(second.id, "something else", "yes one") == float(one @ two)

    run(Shop(make_store()), script)


def test_an_entry_that_differs_from_its_class_is_kept_for_equal_requests_only(make_store: Callable[..., Store]) -> None:
    async def script(shop: Shop) -> None:
        entries = [(await shop.answer(f"how do I open my account {word}", "yes"))[0] for word in ("now", "then")]
        nearest = (await shop.cache.lookup("n", "how do I open my account now please")).candidates[0].id
        shop.said[nearest] = "changed"
        _, found = await shop.answer("how do I open my account now please", "yes again")
        assert found is not None
        assert not found.right
        assert found.joined == shop.answer_class(entries[0])
        near = [candidate.id for candidate in (await shop.cache.lookup("n", "how do I open my account")).candidates]
        assert nearest not in near
        assert shop.store.get(nearest) is not None

    run(Shop(make_store()), script)


def test_a_rejected_entry_leaves_its_class_and_what_goes_takes_its_answer_along(
    make_store: Callable[..., Store],
) -> None:
    async def script(shop: Shop) -> None:
        first, _ = await shop.answer("how do I open my account", "yes one")
        second, _ = await shop.answer("how do I open my account now", "yes two")
        await shop.cache.feedback(second, right=False, question="how do I open my account now")
        assert shop.answer_class(second) == second.id != shop.answer_class(first)
        shop.store.delete([first.id])
        assert shop.store.answer_vectors([first.id], HashEmbedder.name) == {}
        shop.store.classify(ClassifiedAnswer(first.id, "n", "x", "t"))
        assert shop.store.answer_class("n", "t") is None

    run(Shop(make_store()), script)


def test_what_cannot_be_told_teaches_nothing_but_its_class(make_store: Callable[..., Store]) -> None:
    async def script(shop: Shop) -> None:
        await shop.answer("how do I open my account", "?")
        fresh, found = await shop.answer("how do I open my account now", "yes")
        assert found is None
        assert shop.answer_class(fresh) == fresh.id
        assert shop.policy.status("n").observations == 0

    run(Shop(make_store()), script)


LEARNER = """
import random, sys
from pathlib import Path
from kvproxy.index.policies.learned.error_model import compute_features
from kvproxy.index.store.observations import Observation
from kvproxy.index.store.opening import open_observations
from kvproxy.index.policies.learned.policy import LearnedPolicy

policy = LearnedPolicy(open_observations(Path(sys.argv[1])), None, 0.05, 0.5)
generator = random.Random(sys.argv[2])
policy.learner("n")
print("ready", flush=True)
while True:
    near = sorted((generator.random() for _ in range(5)), reverse=True)
    seen = compute_features(near, [generator.choice("ab") for _ in near])
    right = generator.random() < near[0]
    policy.record_served("n", 0.01)
    policy.learn([Observation("e", right, "answer", False, 0.0, "n", "a", tuple(seen.tolist()), 1 - near[0])])
    print(policy.learner("n").number, policy.learner("n").to_json(), flush=True)
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_kill_loses_no_acknowledged_observation_and_the_same_is_decided_after_it(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "o.db"
    for round_ in range(2):
        command = [sys.executable, "-c", LEARNER, str(path), f"{seed} {round_}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as learner:
            assert learner.stdout is not None
            assert learner.stdout.readline() == "ready\n"
            lines = [learner.stdout.readline() for _ in range(120 + 150 * seed)]
            learner.send_signal(signal.SIGKILL)
            lines += [line for line in learner.stdout if line.endswith("}\n")]
        number, _, acknowledged = lines[-1].partition(" ")
        log = open_observations(path)
        kept = log.since("n", 0, 10**6)
        assert len(kept) >= int(number) == kept[int(number) - 1].number
        # One that was written but not acknowledged may be there too.
        again = LearnedPolicy(log, None, 0.05, 0.5).learner("n")
        if again.number == int(number):
            assert again.to_json() == acknowledged.strip()
        log.close()
