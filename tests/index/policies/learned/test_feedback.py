"""Fresh answers are compared with cached ones, and their classes are stored."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kvproxy.index.entry import Entry, namespace_with_passages
from kvproxy.index.policies.learned.answer_classes import run_comparisons
from kvproxy.index.policies.learned.error_model import ErrorModelPrior
from kvproxy.index.policies.learned.feedback import FeedbackRecorder
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.learned.learner import Learner
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Store
from kvproxy.index.store.observations import Observation
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry
from tests.reference.memory_observations import MemoryObservations

QUESTION = "how do I open my account"


class Shop:
    """A cache with known answers, and a judge that compares their first words."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.policy = LearnedPolicy(MemoryObservations(), None, 0.05, 0.1)
        self.cache = SemanticCache(
            store, HashEmbedder(), self.policy, MemoryObservations(), random_number=lambda: 0.999
        )
        self.cache.rebuild()
        self.answers: dict[str, str] = {}

    @property
    def learning(self) -> FeedbackRecorder:
        assert self.cache.learning is not None
        return self.cache.learning

    async def answer(self, prompt: str, answer: str, namespace: str = "n") -> tuple[Entry, Observation | None]:
        """Forward a question, and learn from its answer."""
        lookup = await self.cache.lookup(namespace, prompt)
        fresh = make_entry(prompt, namespace=namespace)
        await self.cache.insert(fresh)
        self.answers[fresh.id] = answer

        def same(id: str, other: str) -> bool | None:
            one, two = self.answers[id].split()[0], self.answers[other].split()[0]
            return None if "?" in (one, two) else bool(set(one.split("|")) & set(two.split("|")))

        return fresh, run_comparisons(self.learning.record_response(lookup, fresh, answer), same)

    def answer_class(self, entry: Entry) -> str:
        return self.store.questions([entry.id])[entry.id].answer


@pytest.fixture
async def shop(make_store: MakeStore) -> AsyncIterator[Shop]:
    opened = Shop(make_store())
    yield opened
    opened.cache.close()


async def test_equal_answers_share_a_class(shop: Shop) -> None:
    first, nothing = await shop.answer(QUESTION, "yes one")
    assert nothing is None
    second, found = await shop.answer(f"{QUESTION} now", "yes two")
    third, other = await shop.answer(f"{QUESTION} then", "no")
    assert found is not None
    assert other is not None
    assert (found.right, found.joined) == (True, shop.answer_class(first))
    assert (other.right, other.joined) == (False, third.id)
    assert shop.answer_class(first) == shop.answer_class(second) != shop.answer_class(third)
    # Answers with the same words share a class, even for different questions.
    far, _ = await shop.answer("bananas", "NO!")
    assert shop.answer_class(far) == shop.answer_class(third)
    # The question is below the least similarity, so its answer is not compared.
    assert shop.policy.status("n").observations == 2


async def test_questions_about_other_passages_are_learned_together_but_not_served(shop: Shop) -> None:
    one, other = namespace_with_passages("n", "one"), namespace_with_passages("n", "other")
    await shop.answer(QUESTION, "yes one", one)
    first, _ = await shop.answer(f"{QUESTION} now", "yes two", one)
    assert not (await shop.cache.lookup(other, QUESTION)).candidates
    await shop.answer(QUESTION, "no one", other)
    entry, found = await shop.answer(f"{QUESTION} now", "no two", other)
    assert found is not None
    assert (found.right, found.namespace) == (True, "n")
    statuses = [shop.learning.status(space) for space in (one, other, "n")]
    assert [status and status.observations for status in statuses] == [2, 2, 2]
    lookup = await shop.cache.lookup(one, f"{QUESTION} then")
    assert entry.id not in [candidate.id for candidate in lookup.candidates]
    shop.learning.record_served(replace(lookup, chosen=lookup.candidates[0]))
    await shop.cache.feedback(first, right=False, question=f"{QUESTION} now")
    assert [shop.policy.status(space).served for space in ("n", one)] == [1, 0]


async def test_an_entry_that_differs_from_its_class_has_exact_hits_only(shop: Shop) -> None:
    entries = [(await shop.answer(f"{QUESTION} {word}", "yes"))[0] for word in ("now", "then")]
    nearest = (await shop.cache.lookup("n", f"{QUESTION} now please")).candidates[0].id
    shop.answers[nearest] = "changed"
    _, found = await shop.answer(f"{QUESTION} now please", "yes again")
    assert found is not None
    assert (found.right, found.joined) == (False, shop.answer_class(entries[0]))
    assert nearest not in [candidate.id for candidate in (await shop.cache.lookup("n", QUESTION)).candidates]
    assert shop.store.get(nearest) is not None


async def test_a_rejected_entry_leaves_its_class_and_a_removed_one_loses_its_answer(shop: Shop) -> None:
    first, _ = await shop.answer(QUESTION, "yes one")
    second, _ = await shop.answer(f"{QUESTION} now", "yes two")
    await shop.cache.feedback(second, right=False, question=f"{QUESTION} now")
    assert shop.answer_class(second) == second.id != shop.answer_class(first)
    shop.store.delete([first.id])
    shop.store.set_answer_class(first.id, "n", "x", "t")
    assert shop.store.answer_class("n", "t") is None


async def test_classes_that_a_fresh_answer_equals_are_merged(shop: Shop) -> None:
    first, _ = await shop.answer(QUESTION, "blue")
    second, _ = await shop.answer(f"{QUESTION} now", "azure")
    third, _ = await shop.answer(f"{QUESTION} now then", "azure too")
    assert shop.answer_class(first) != shop.answer_class(second) == shop.answer_class(third)
    shop.answers[first.id] = shop.answers[second.id] = "blue|azure"
    fresh, found = await shop.answer(f"{QUESTION} then", "blue|azure")
    assert found is not None
    assert len(found.merged) == 1
    assert len({shop.answer_class(each) for each in (first, second, third, fresh)}) == 1


async def test_an_undecided_comparison_is_counted_and_changes_nothing(shop: Shop) -> None:
    await shop.answer(QUESTION, "?")
    before = shop.policy.learner("n").error_model.weights.tolist()
    fresh, found = await shop.answer(f"{QUESTION} now", "yes")
    assert found is not None
    assert found.source == "undecided"
    assert shop.answer_class(fresh) == fresh.id
    status = shop.policy.status("n")
    assert (status.observations, status.undecided, status.equal, status.warning) == (0, 1, 0, None)
    assert shop.policy.learner("n").error_model.weights.tolist() == before
    for number in range(30):
        await shop.answer(f"{QUESTION} now {number}", "?")
    warning = shop.policy.status("n").warning
    assert warning is not None
    assert 'cache.judge = "model"' in warning
    other, new = shop.policy.learner("other namespace"), Learner.new(ErrorModelPrior(), shop.policy.max_error)
    assert other.error_model.weights.tolist() == new.error_model.weights.tolist()
    assert other.level.wrong == new.level.wrong


async def test_a_text_of_the_judged_class_is_right_without_a_decision(shop: Shop) -> None:
    await shop.answer(QUESTION, "?")
    _, found = await shop.answer(f"{QUESTION} now", "?")
    assert found is not None
    assert (found.source, found.right) == ("answer", True)
