"""A policy of a user that fails, or returns an invalid result, makes a lookup a miss; it may wait for a model."""

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproxy import (
    Cache,
    CachedAnswer,
    CacheSettings,
    Decision,
    Guard,
    Limits,
    Neighbour,
    PolicyResult,
    SettingsError,
    open_async_cache,
    open_cache,
)
from tests.index.doubles import HashEmbedder

STORED = "how do i reset my old password"
SIMILAR = f"{STORED} now"


class Judge:
    """Accepts a question, or returns or raises `answer`."""

    name, num_neighbours, floor = "my judge", 3, 0.5
    answer: Any = PolicyResult([Decision("accepted")], 0)

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> PolicyResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        result: PolicyResult = self.answer
        return result


def opened(tmp_path: Path, judge: Judge, **arguments: Any) -> Cache:
    cache = open_cache(tmp_path / "r.db", policy=judge, embedder=HashEmbedder(), **arguments)
    cache.set(STORED, "so")
    return cache


def failing(answer: Any) -> Judge:
    judge = Judge()
    judge.answer = answer
    return judge


@pytest.mark.parametrize("error", [ConnectionError("the judge is down"), ValueError("bad"), TimeoutError()])
def test_a_policy_that_fails_makes_lookups_misses(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, failing(error)) as cache:
        assert cache.get(SIMILAR) is None
        assert f"policy 'my judge' failed: {type(error).__name__}" in caplog.text
        assert [each and each.answer for each in cache.get_many([STORED, SIMILAR, STORED])] == ["so", None, "so"]
        found = cache.explain(SIMILAR)
        assert (found.reason, found.question) == ("miss-failed", None)
        assert f"policy 'my judge' failed: {type(error).__name__}" in found.sentence
        assert cache.get_or_set(SIMILAR, lambda _: "computed") == "computed"
        stats = cache.stats()
        assert stats["gets"] == {"exact": 2, "semantic": 0, "miss": 3, "shared": 0}
        assert stats["semantic"]["lookups"] == {"failed": 3}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "decide must return a PolicyResult, not NoneType"),
        (PolicyResult([Decision("accepted")], 1), "chosen must be None or the index of one of 1 decisions, not 1"),
        (PolicyResult([Decision("accepted")], -1), "chosen must be None or the index of one of 1 decisions, not -1"),
        (PolicyResult([], None), "decide must return a decision on each of 1 neighbours, not 0"),
        (PolicyResult([Decision("yes")], 0), "the verdict of decisions[0] must be accepted, .*, not compared, not yes"),  # type: ignore[arg-type]
        (
            PolicyResult([Decision("rejected")], None),
            "the verdict of decisions[0] must be accepted, low similarity, vetoed, low probability, uncertain, not compared,"
            " not rejected",
        ),
        (PolicyResult([Decision("uncertain")], 0), "the verdict of the chosen decisions[0] must be accepted"),
        (PolicyResult([Decision("accepted")], None), "decisions[0] is accepted, so chosen must not be None"),
        (PolicyResult(["accepted"], 0), "decisions[0] must be a Decision, not str"),  # type: ignore[list-item]
        (
            PolicyResult([Decision("accepted", score="0.9")], 0),  # type: ignore[arg-type]
            "the score of decisions[0] must be a number or None, not str",
        ),
    ],
)
def test_an_invalid_result_of_a_policy_is_named(tmp_path: Path, answer: Any, message: str) -> None:
    with opened(tmp_path, failing(answer)) as cache:
        assert cache.get(SIMILAR) is None
        found = cache.explain(SIMILAR)
        assert found.reason == "miss-failed"
        assert re.search(re.escape(message).replace(r"\.\*", ".*"), found.sentence), found.sentence


def test_a_policy_receives_the_name_of_the_namespace(tmp_path: Path) -> None:
    names = []

    class PerTenant(Judge):
        def decide(
            self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
        ) -> PolicyResult:
            names.append(namespace)
            return PolicyResult([Decision("accepted") for _ in neighbours], 0)

    passage = "The office opens at nine on all days except Sundays and holidays of the state."
    with open_cache(tmp_path / "r.db", policy=PerTenant(), embedder=HashEmbedder()) as cache:
        for text, similar in ((STORED, SIMILAR), (f"{passage} When is it open?", f"{passage} When is it open then?")):
            cache.set(text, "so", "tenant a")
            cache.explain(similar, "tenant a")
            hit = cache.get(similar, "tenant a")
            assert hit is not None
            cache.feedback(hit, False, question=similar)
    assert set(names) == {"tenant a"}
    assert len(names) > 6, "a decision on differing sentences is missing"


def test_a_policy_that_fails_loses_no_verdict(tmp_path: Path) -> None:
    judge = Judge()
    with opened(tmp_path, judge) as cache:
        hit = cache.get(SIMILAR)
        assert hit is not None
        judge.answer = ConnectionError("the judge is down")
        cache.feedback(hit, False, question=SIMILAR)
        assert cache.explain(SIMILAR).reason == "rejected"


def test_a_guard_that_fails_makes_lookups_misses(tmp_path: Path) -> None:
    def fail(question: str, cached_question: str) -> bool:
        raise KeyError(question)

    settings = CacheSettings(policy="threshold", min_similarity=0.8, guards=False)
    guards = [Guard("mine", "a difference", fail)]
    with open_cache(tmp_path / "r.db", settings, guards=guards, embedder=HashEmbedder()) as cache:
        cache.set(STORED, "so")
        assert cache.get(SIMILAR) is None
        assert "guard 'mine' failed: KeyError" in cache.explain(SIMILAR).sentence


def test_the_reason_of_an_own_guard_is_shown(tmp_path: Path) -> None:
    settings = CacheSettings(policy="threshold", min_similarity=0.8)
    guards = [Guard("currency", "Another currency.", lambda one, other: True)]
    with open_cache(tmp_path / "r.db", settings, guards=guards, embedder=HashEmbedder()) as cache:
        cache.set(STORED, "so")
        found = cache.explain(SIMILAR)
        assert (found.reason, found.sentence) == ("veto-currency", "Another currency.")


@pytest.mark.parametrize(
    ("guard", "sentence"),
    [
        ("words", "A word that occurs in no stored question with the same answer."),
        ("tone", "The guard tone found a difference."),
        (None, "The guards found a difference."),
    ],
)
def test_a_veto_of_an_own_policy_is_described(tmp_path: Path, guard: str | None, sentence: str) -> None:
    with opened(tmp_path, failing(PolicyResult([Decision("vetoed", guard)], None))) as cache:
        assert cache.explain(SIMILAR).sentence == sentence


@pytest.mark.parametrize("names", [["numbers"], ["words"], ["mine", "mine"]])
def test_guards_of_one_name_are_refused(tmp_path: Path, names: list[str]) -> None:
    guards = [Guard(name, "a difference", lambda one, other: False) for name in names]
    with pytest.raises(SettingsError, match=f"another guard has the name '{names[0]}'"):
        open_cache(tmp_path / "r.db", CacheSettings(verifier="none"), guards=guards, embedder=HashEmbedder())


async def test_lookups_wait_for_a_policy_on_as_many_threads_as_given(tmp_path: Path) -> None:
    meeting = threading.Barrier(20)

    class Meeting(Judge):
        def decide(self, *arguments: Any, **options: Any) -> PolicyResult:
            meeting.wait(60)
            return super().decide(*arguments, **options)

    arguments: dict[str, Any] = {"policy": Meeting(), "embedder": HashEmbedder(), "lookup_threads": 20}
    async with open_async_cache(tmp_path / "r.db", **arguments) as cache:
        await cache.set(STORED, "so")
        hits = await asyncio.gather(*(cache.get(f"{STORED} {number}") for number in range(20)))
        assert all(isinstance(hit, CachedAnswer) for hit in hits)


def test_a_coroutine_function_is_refused_as_a_policy(tmp_path: Path) -> None:
    class Async(Judge):
        async def decide(self, *arguments: Any, **options: Any) -> PolicyResult:  # type: ignore[override]
            raise AssertionError

    with pytest.raises(TypeError, match=r"policy.decide is a coroutine function: .* lookup_threads"):
        opened(tmp_path, Async())
    for threads in (0, True, "2"):
        with pytest.raises(ValueError, match="lookup_threads must be a positive integer or None"):
            opened(tmp_path, Judge(), lookup_threads=threads)
