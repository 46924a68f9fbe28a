"""A miss is computed once."""

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvproxy import Cache, CacheSettings, CacheStoreError, EmbedderError, open_async_cache, open_cache
from kvproxy.library import AsyncCache
from kvproxy.library.single_flight import Flight
from tests.index.doubles import Held
from tests.polling import until_async

EXACT = CacheSettings(semantic=False)


class Model:
    """Answers questions after all callers have asked."""

    def __init__(self, callers: int) -> None:
        self.calls: list[str] = []
        self.asked = threading.Barrier(callers + 1)
        self.may_answer = threading.Event()

    def answer(self, question: str) -> str:
        assert self.may_answer.wait(60)
        self.calls.append(question)
        if question == "fail":
            raise ValueError("no answer")
        return f"answer to {question}"


@pytest.mark.parametrize("question", ["q", "fail"])
def test_threads_share_a_computation_and_its_exception(tmp_path: Path, question: str) -> None:
    model = Model(8)
    with open_cache(tmp_path / "r.db", EXACT) as cache, ThreadPoolExecutor(8) as threads:

        def ask(_: int) -> str:
            model.asked.wait()
            try:
                return cache.get_or_set(question, model.answer, "n", tags=["t"])
            except ValueError as error:
                return str(error)

        asking = [threads.submit(ask, number) for number in range(8)]
        model.asked.wait()
        model.may_answer.set()
        answers = {each.result() for each in asking}
        assert answers == {"no answer" if question == "fail" else "answer to q"}
        # A thread that asks after the failure computes again.
        assert set(model.calls) == {question}
        assert len(model.calls) == 1 or question == "fail"
        assert cache.contains(question, "n") == (question == "q")
        assert cache.delete_tag("t") == (question == "q")


async def test_tasks_share_a_computation_which_another_one_takes_over_if_it_is_cancelled(tmp_path: Path) -> None:
    calls: list[str] = []
    allowed = asyncio.Event()

    async def answer(question: str) -> str:
        calls.append(question)
        await allowed.wait()
        return question.upper()

    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        first = asyncio.create_task(cache.get_or_set("q", answer))
        await until_async(lambda: len(calls) == 1)
        waiting = [asyncio.create_task(cache.get_or_set("q", answer)) for _ in range(4)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        assert calls == ["q"]
        first.cancel()
        await until_async(lambda: len(calls) == 2)
        allowed.set()
        assert await asyncio.gather(*waiting) == ["Q"] * 3
        assert calls == ["q"] * 2
        assert await cache.get_or_set("q", answer) == "Q"
        assert calls == ["q"] * 2


async def test_decorated_functions_are_called_for_misses_only(tmp_path: Path) -> None:
    calls: list[str] = []
    with open_cache(tmp_path / "r.db", EXACT) as cache:

        @cache.memoize("n", ttl="1h")
        def answer(question: str) -> str:
            """Ask the model."""
            calls.append(question)
            return "a"

        assert [answer("q"), answer("q"), answer("other")] == ["a"] * 3
        assert (calls, answer.__doc__) == (["q", "other"], "Ask the model.")

    async with open_async_cache(tmp_path / "r.db", EXACT) as async_cache:

        @async_cache.memoize("n")
        async def async_answer(question: str) -> str:
            calls.append(question)
            return "b"

        assert [await async_answer("q"), await async_answer("new"), await async_answer("new")] == ["a", "b", "b"]
        assert calls == ["q", "other", "new"]


def test_an_answer_that_cannot_be_stored_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object, **options: object) -> bool:
        raise CacheStoreError("the disk is full")

    with open_cache(tmp_path / "r.db", EXACT) as cache:
        monkeypatch.setattr(AsyncCache, "set", fail)
        assert [cache.get_or_set("q", str.upper) for _ in range(2)] == ["Q", "Q"]
    with pytest.raises(RuntimeError, match="closed"):
        cache.get_or_set("q", str.upper)


async def test_a_computation_that_asks_for_itself_is_an_error(tmp_path: Path) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as async_cache:
        with pytest.raises(RuntimeError, match="asks the cache for the question that it computes"):
            await async_cache.get_or_set("q", lambda question: async_cache.get_or_set(question, lambda _: never()))
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        with pytest.raises(RuntimeError, match="asks the cache for the question that it computes"):
            cache.get_or_set("q", lambda question: cache.get_or_set(question, str.upper))
        assert cache.get_or_set("q", lambda question: cache.get_or_set(question, str.upper, "inner")) == "Q"


async def never() -> str:
    raise AssertionError


@pytest.mark.parametrize("error", [EmbedderError("no model"), CacheStoreError("no disk")])
def test_a_failed_lookup_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fail(*arguments: object) -> None:
        raise error

    with open_cache(tmp_path / "r.db", EXACT) as cache:
        monkeypatch.setattr(AsyncCache, "get", fail)
        assert cache.get_or_set("q", str.upper) == "Q"
        assert cache.stats()["gets"] == {"exact": 0, "semantic": 0, "miss": 1, "shared": 0}


def test_a_decorator_checks_its_arguments_at_once(tmp_path: Path) -> None:
    async def answer(question: str) -> str:
        return question

    function: Any = answer
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        with pytest.raises(TypeError, match=r"write @cache.memoize\(\) with parentheses"):
            cache.memoize(function)
        with pytest.raises(TypeError, match="namespace must be a string, not int"):
            cache.memoize(1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="compute is a coroutine function: use open_async_cache"):
            cache.memoize()(function)
        unfit: list[Any] = [lambda question, context: "a", lambda: "a", lambda *, question: "a"]
        for wrong in unfit:
            with pytest.raises(TypeError, match="memoize requires a function of one argument, the question"):
                cache.memoize()(wrong)


class Service:
    """Answers in its language."""

    def __init__(self, cache: Cache, language: str) -> None:
        self.language = language
        self.ask = cache.memoize(language)(self.answer)

    def answer(self, question: str) -> str:
        return f"{question} in {self.language}"


def test_a_memoized_function_takes_its_question_by_position_or_by_name(tmp_path: Path) -> None:
    def limited(text: str, limit: int = 5) -> str:
        return text.upper()[:limit]

    def first(*texts: str) -> str:
        return texts[0]

    with open_cache(tmp_path / "r.db", EXACT) as cache:
        answer = cache.memoize()(limited)
        assert [answer(text="question"), answer("question")] == ["QUEST"] * 2
        assert str(inspect.signature(answer)) == "(text: str) -> str"
        for wrong in ({"text": "q", "limit": 3}, {"question": "q"}, {}):
            with pytest.raises(TypeError, match=r"takes only the question \(text: str\) -> str, but the call"):
                answer(**wrong)
        assert [cache.memoize("2")(each)("b") for each in (first, str.upper)] == ["b", "b"]
        services = [Service(cache, language) for language in ("French", "German")]
        assert [each.ask(question="q") for each in services] == ["q in French", "q in German"]
        with pytest.raises(TypeError, match=r"decorate the method of the object instead, in __init__: self.ask ="):
            cache.memoize()(Service.answer)  # type: ignore[type-var]


async def test_a_memoized_coroutine_function_takes_its_question_by_name(tmp_path: Path) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:

        @cache.memoize()
        async def answer(text: str) -> str:
            return text.upper()

        assert [await answer(text="q"), await answer("q")] == ["Q", "Q"]
        assert str(inspect.signature(answer)) == "(text: str) -> str"
        assert inspect.iscoroutinefunction(answer)


async def test_a_decorator_for_coroutines_checks_its_function(tmp_path: Path) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        wrong: Any = lambda question, context: never()  # noqa: E731
        with pytest.raises(TypeError, match="memoize requires a function of one argument"):
            cache.memoize()(wrong)


def test_options_are_checked_before_the_answer_is_computed(tmp_path: Path) -> None:
    calls: list[str] = []

    def compute(question: str) -> str:
        calls.append(question)
        return "a"

    wrong: Any
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        for wrong in ({"ttl": -1}, {"ttl": "soon"}, {"tags": "news"}, {"tags": [""]}):
            with pytest.raises((TypeError, ValueError)):
                cache.get_or_set("q", compute, **wrong)
            with pytest.raises((TypeError, ValueError)):
                cache.memoize(**wrong)
        assert not calls
        tags: Any = iter(["news"])
        answer = cache.memoize(tags=tags)(compute)
        assert (answer("1"), answer("2"), cache.delete_tag("news")) == ("a", "a", 2)


async def test_a_computed_answer_that_is_no_unicode_text_is_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half = "\ud83d"

    async def compute(question: str) -> str:
        return half

    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert cache.get_or_set("q", lambda question: half) == half
        assert not cache.contains("q")
    assert "a computed answer is not stored: answer has half of a surrogate pair" in caplog.text
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache_for_asyncio:
        assert await cache_for_asyncio.get_or_set("q", compute) == half


async def test_a_cache_for_asyncio_in_two_event_loops_is_an_error(tmp_path: Path) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        await cache.set("q", "a")
        with pytest.raises(RuntimeError, match="another event loop uses this cache"):
            await asyncio.to_thread(asyncio.run, cache.get("q"))


def test_an_event_loop_may_follow_another_one(tmp_path: Path) -> None:
    cache = open_async_cache(tmp_path / "r.db", EXACT)
    assert asyncio.run(cache.set("q", "a"))
    assert asyncio.run(cache.count()) == 1
    asyncio.run(cache.close())


def test_an_embedder_that_fails_leaves_exact_hits(tmp_path: Path) -> None:
    embedder = Held()
    settings = CacheSettings(policy="threshold", min_similarity=0.8, guards=False)
    with open_cache(tmp_path / "r.db", settings, embedder=embedder) as cache:
        cache.set("a stored question", "1")
        embedder.broken = True
        assert cache.set_many({f"new question {number}": "2" for number in range(50)}) == 50
        assert len(embedder.calls) < 10, "each answer waits for the embedder"
        embedder.calls.clear()
        questions = ["a stored question", *(f"other {number}" for number in range(50)), "new question 7"]
        hits = cache.get_many(questions)
        assert [hit and hit.answer for hit in hits] == ["1", *[None] * 50, "2"]
        assert len(embedder.calls) < 10, "each question waits for the embedder"
        stats = cache.stats()
        assert stats["gets"] == {"exact": 2, "semantic": 0, "miss": 50, "shared": 0}
        assert stats["semantic"]["lookups"] == {"failed": 50}
        with pytest.raises(EmbedderError):
            cache.get("a question that is not embedded")
        assert cache.get_or_set("another question that is not embedded", lambda question: "3") == "3"
        assert cache.stats()["semantic"]["lookups"] == {"failed": 52}
    with open_cache(tmp_path / "r.db", settings, embedder=embedder) as cache:
        assert cache.get("new question 7") is not None
    embedder.broken = False
    with open_cache(tmp_path / "r.db", settings, embedder=embedder) as cache:
        assert cache.explain("new question 7 please").reason == "hit-semantic"


async def test_missing_and_needless_awaits_are_named(tmp_path: Path) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        unchecked: Any = cache
        with pytest.raises(TypeError, match="compute must return an awaitable, not str: define it with async"):
            await unchecked.get_or_set("q", str.upper)
        assert not await cache.contains("q")
        with pytest.raises(TypeError, match="open_async_cache needs no await"):
            await unchecked
    with open_cache(tmp_path / "r.db", EXACT) as threads:
        unchecked = threads
        with pytest.raises(ValueError, match="the question is empty"):
            unchecked.get_or_set(" ", lambda question: never())
        with pytest.raises(TypeError, match="compute must return a string, not coroutine"):
            unchecked.get_or_set("q", lambda question: never())


async def test_shared_computations_are_counted(tmp_path: Path) -> None:
    async def answer(question: str) -> str:
        await asyncio.sleep(0)
        return question.upper()

    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        assert await asyncio.gather(*(cache.get_or_set("q", answer) for _ in range(5))) == ["Q"] * 5
        assert (await cache.stats())["gets"] == {"exact": 0, "semantic": 0, "miss": 1, "shared": 4}
        assert [stored.answer async for stored in cache] == ["Q"]


async def test_tasks_that_share_an_exception_are_counted_but_no_cancelled_ones(tmp_path: Path) -> None:
    is_running, may_fail = asyncio.Event(), asyncio.Event()

    async def fail(question: str) -> str:
        is_running.set()
        await may_fail.wait()
        raise KeyError(question)

    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        asking = [asyncio.create_task(cache.get_or_set("q", fail)) for _ in range(5)]
        await is_running.wait()
        await asyncio.sleep(0)
        asking.pop().cancel()
        await asyncio.sleep(0)
        may_fail.set()
        assert [type(each) for each in await asyncio.gather(*asking, return_exceptions=True)] == [KeyError] * 4
        assert (await cache.stats())["gets"] == {"exact": 0, "semantic": 0, "miss": 1, "shared": 3}


def test_threads_that_share_an_exception_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_running, may_fail = threading.Event(), threading.Event()

    def fail(question: str) -> str:
        is_running.set()
        assert may_fail.wait(60)
        raise KeyError(question)

    with open_cache(tmp_path / "r.db", EXACT) as cache, ThreadPoolExecutor(1) as threads:
        leading = threads.submit(cache.get_or_set, "q", fail)
        assert is_running.wait(60)
        join = cache._cache.flights.join

        def join_and_fail(key: str) -> "Flight | None":
            running = join(key)
            may_fail.set()
            return running

        monkeypatch.setattr(cache._cache.flights, "join", join_and_fail)
        with pytest.raises(KeyError):
            cache.get_or_set("q", fail)
        assert isinstance(leading.exception(), KeyError)
        assert cache.stats()["gets"]["shared"] == 1
