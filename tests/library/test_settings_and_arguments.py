"""Settings and arguments of a library cache have an effect, or are refused with the fix."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from kvproxy import Cache, CacheSettings, EmbedderError, FunctionEmbedder, open_cache
from kvproxy.errors import SettingsError
from kvproxy.index.policies.guards import Guard
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.store.store_types import StoreStatistics
from kvproxy.library.arguments import _PROXY_FIELDS
from kvproxy.library.cache_stats import CacheStats, GetStats, SemanticStats
from kvproxy.operations.cache_results import CacheStatistics, SemanticStatistics
from tests.index.doubles import HashEmbedder

EXACT = CacheSettings(semantic=False)
LONG = "how do i reset my very old and rather long password that an earlier program made for me last year in spring"
SIMILAR: dict[str, Any] = {"policy": "threshold", "min_similarity": 0.8}


class CountingEmbedder(HashEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(len(texts))
        return super().embed(texts)


class RoundingEmbedder(HashEmbedder):
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.float32(1 + 2e-7) * super().embed([text.lower() for text in texts])


@pytest.mark.parametrize(
    ("given", "served", "reason"),
    [
        ({}, True, "hit-semantic"),
        ({"shadow": True}, False, "shadow"),
        ({"lookup_timeout": 0}, False, "skipped-timeout"),
        ({"guards": False, "policy": "learned", "verifier": "none"}, False, "uncertain"),
        ({"min_similarity": 0.99}, False, "low-similarity"),
        ({"languages": ("de",)}, False, "miss-new"),
    ],
)
def test_settings_of_lookups_have_an_effect(tmp_path: Path, given: dict[str, Any], served: bool, reason: str) -> None:
    settings = CacheSettings(**SIMILAR | given)
    with open_cache(tmp_path / "r.db", settings, embedder=HashEmbedder()) as cache:
        cache.set("how do i reset my old password", "so")
        question = "how do i reset my old password now"
        assert cache.explain(question).reason == reason
        assert (cache.get(question) is not None) == served
        assert cache.get("how do i reset my old password") is not None
        assert cache.stats()["semantic"]["shadow"] is settings.shadow
        assert cache.stats()["semantic"]["lookups"].get("shadow", 0) == settings.shadow


@pytest.mark.parametrize(
    ("limit", "stored"), [({"max_ttl": 10}, 10), ({"max_ttl": 10, "ttl": 5}, 5), ({"ttl": "2h"}, 7200)]
)
def test_a_lifetime_has_the_limit_of_the_settings(tmp_path: Path, limit: dict[str, Any], stored: float) -> None:
    settings = CacheSettings(semantic=False, **limit)
    with open_cache(tmp_path / "r.db", settings, namespace_ttls={"long": "3h"}) as cache:
        cache.set("q", "a")
        cache.set("q", "a", "long")
        cache.set("q", "a", "own", ttl=timedelta(hours=1))
        lifetimes = {each.namespace: each.expires - each.created for each in cache}
        longest = limit.get("max_ttl", 10_800)
        assert lifetimes == {"": stored, "long": min(10_800, longest), "own": min(3_600, longest)}


def test_large_answers_are_not_stored(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", CacheSettings(semantic=False, max_response_bytes=100)) as cache:
        assert cache.set("short", "a")
        assert not cache.set("long", "a" * 100)
        assert cache.set_many({"short": "b", "long": "a" * 100}) == 1
        assert [each.question for each in cache] == ["short"]


def test_answers_before_a_failure_of_their_iterator_are_stored(tmp_path: Path) -> None:
    def rows(cache: Cache) -> Iterator[tuple[str, str]]:
        for number in range(2500):
            if number == 1500:
                assert cache.get("question 7") is not None
            yield f"question {number}", "a"
        raise OSError("the table ends here")

    with open_cache(tmp_path / "r.db", CacheSettings(semantic=False)) as cache:
        with pytest.raises(OSError, match="the table ends here"):
            cache.set_many(rows(cache))
        assert len(cache) == 2000


def test_all_rows_of_a_list_or_dict_are_checked_before_one_is_stored(tmp_path: Path) -> None:
    rows = [(f"question {number}" if number != 1500 else " ", "a") for number in range(1600)]
    with open_cache(tmp_path / "r.db", CacheSettings(semantic=False)) as cache:
        with pytest.raises(ValueError, match=r"answers\[1500\]: the question is empty"):
            cache.set_many(rows)
        with pytest.raises(ValueError, match=r"answers\[' '\]: the question is empty"):
            cache.set_many(dict(rows))
        assert len(cache) == 0
        with pytest.raises(ValueError, match=r"answers\[1500\]: the question is empty"):
            cache.set_many(iter(rows))
        assert len(cache) == 1000


def test_evicted_answers_are_not_counted_as_stored(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", CacheSettings(semantic=False, max_entries=10)) as cache:
        assert cache.set_many({f"question {number}": "a" for number in range(600)}) == len(cache) == 10
        assert {each.question for each in cache} == {f"question {number}" for number in range(590, 600)}
        more = {f"other {number}": "a" for number in range(5)}
        assert cache.set_many(more) == sum(map(cache.contains, more)) == 5


def test_settings_for_proxies_are_refused(tmp_path: Path) -> None:
    other: dict[str, Any] = {
        "enabled": False,
        "sampled_requests": "fresh",
        "conversations": False,
        "judge": "model",
        "judge_similarity": 0.5,
        "judge_budget": 1.0,
        "stale_while_revalidate": "1h",
        "stale_if_error": "1h",
        "shared": True,
    }
    assert other.keys() == _PROXY_FIELDS.keys()
    for name, value in other.items():
        with pytest.raises(SettingsError, match=rf"CacheSettings\({name}=...\) has no effect in a library"):
            open_cache(tmp_path / "r.db", CacheSettings(**{name: value}))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (":memory:", "a store in memory is not supported: give a path, for example in a temporary folder"),
        ("file::memory:?cache=shared", "a store in memory"),
        ("redis://:secret@localhost", r"^redis:// is no store of kvproxy: give a path, or postgresql://\.\.\.$"),
        ("sqlite:///x.db", "sqlite:// is no store of kvproxy: give the path x.db"),
        ("sqlite:////tmp/x.db", "give the path /tmp/x.db"),
        ("postgresql+psycopg://localhost/x", "is no store of kvproxy"),
        ("", "a store needs a name"),
        (".", "a store needs a name"),
        (Path("/"), r"/ is a folder: give the path of a file in it, for example /answers\.db"),
    ],
)
def test_places_that_are_no_store_are_refused(
    where: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=message):
        open_cache(where, EXACT)
    assert list(tmp_path.iterdir()) == []


def test_a_postgres_server_that_is_down_names_no_option(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot reach .*: start PostgreSQL, or correct its URL") as error:
        open_cache("postgresql://nobody:secret@127.0.0.1:1/x", EXACT)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"where": 3}, TypeError, "where must be of the type str or Path, not int"),
        ({"guards": [lambda one, other: True]}, TypeError, "guards must be a sequence of kvproxy.Guard"),
        ({"guards": "ab"}, TypeError, "guards must be a sequence of kvproxy.Guard"),
        ({"guards": None}, TypeError, "guards must be a sequence of kvproxy.Guard"),
        ({"policy": "thresold"}, ValueError, "unknown policy 'thresold': use learned, checked, threshold"),
        ({"policy": ThresholdPolicy}, TypeError, "policy must be a name, .* is a class|lacks"),
        ({"policy": 5}, TypeError, "lacks name, num_neighbours, floor, decide"),
        ({"embedder": object()}, TypeError, "embedder must be .*; object lacks name, dim, vocabulary, embed, can_read"),
        ({"embedder": None}, TypeError, "NoneType lacks"),
        ({"embedder": len}, TypeError, r"write FunctionEmbedder\('name of the model', function\)"),
        ({"embedder": Path("/nothing/here")}, SettingsError, "cannot load embedder '/nothing/here'"),
        ({"namespace_ttls": ["news"]}, TypeError, "namespace_ttls must be of the type Mapping, not list"),
        ({"namespace_ttls": {1: "1h"}}, TypeError, "must be a string, not int"),
        ({"refusal_limit": 0}, ValueError, "refusal_limit must be a positive integer or None"),
        ({"refusal_limit": True}, ValueError, "refusal_limit must be a positive integer or None"),
        ({"settings": {"ttl": 5}}, TypeError, "settings must be of the type CacheSettings, not dict"),
        ({"encryption": "key"}, TypeError, "encryption must be of the type EncryptionSettings, not str"),
        ({"redaction": ["x"]}, TypeError, "redaction must be of the type RedactionSettings, not list"),
    ],
)
def test_wrong_arguments_are_refused_at_opening(
    given: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    arguments = {"where": tmp_path / "r.db", "embedder": HashEmbedder()} | given
    with pytest.raises(kind, match=message):
        open_cache(**arguments)


def test_a_function_becomes_an_embedder(tmp_path: Path) -> None:
    texts: list[str] = []

    def embed(batch: list[str]) -> list[list[float]]:
        texts.extend(batch)
        return [[3.0 * text.count(letter) for letter in "aeiou"] for text in batch]

    embedder = FunctionEmbedder("vowels-1", embed, max_characters=20)
    with open_cache(tmp_path / "r.db", CacheSettings(**SIMILAR, guards=False), embedder=embedder) as cache:
        cache.set("reset a door", "so")
        hit = cache.get("a reset door")
        assert hit is not None
        assert hit.similarity == pytest.approx(1)
        assert cache.get("i") is None
        assert cache.explain("a reset door " * 2).sentence.endswith("cannot read all of the question: exact hits only.")
        assert not any(len(text) > 21 for text in texts)


@pytest.mark.parametrize(
    ("returned", "message"),
    [([1.0, 2.0], "must return a list of one vector for one text"), (OSError("no key"), "'mine' failed: no key")],
)
def test_a_function_that_is_no_embedder_is_refused(returned: Any, message: str) -> None:
    def embed(texts: list[str]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    with pytest.raises(EmbedderError, match=message):
        FunctionEmbedder("mine", embed)
    assert FunctionEmbedder("mine", embed, dim=2).dim == 2


def test_a_policy_may_be_a_name_and_a_guard_an_object(tmp_path: Path) -> None:
    never = Guard("never", "nothing is alike", lambda one, other: True)
    no_guards = CacheSettings(guards=False)
    with open_cache(tmp_path / "r.db", no_guards, policy="threshold", embedder=HashEmbedder(), guards=[never]) as cache:
        assert cache.stats()["semantic"]["policy"] == "threshold"
        cache.set(LONG, "so")
        found = cache.explain(f"{LONG} now")
        assert (found.reason, found.guard) == ("veto-never", "never")


def test_a_similarity_is_at_most_one(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", CacheSettings(**SIMILAR), embedder=RoundingEmbedder()) as cache:
        cache.set(LONG, "so")
        hit = cache.get(LONG.upper())
        assert hit is not None
        assert hit.similarity == cache.explain(LONG.upper()).similarity == 1


class WrongDimension(HashEmbedder):
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return HashEmbedder.embed(self, texts)[:, 1:]


def test_an_embedder_of_another_dimension_is_refused(tmp_path: Path) -> None:
    settings = CacheSettings(**SIMILAR)
    with pytest.raises(SettingsError, match=r"returned an array of shape \(1, 63\) for 1 texts instead of \(1, 64\)"):
        open_cache(tmp_path / "r.db", settings, embedder=WrongDimension())
    with open_cache(tmp_path / "r.db", settings, embedder=HashEmbedder(64)) as cache:
        cache.set("q", "a")
    with pytest.raises(
        SettingsError, match=r"has 32 dimensions, but its stored vectors have 64.*: give it another name"
    ):
        open_cache(tmp_path / "r.db", settings, embedder=HashEmbedder(32))


def test_wrong_arguments_of_methods_are_refused(tmp_path: Path) -> None:
    settings = CacheSettings(**SIMILAR)
    with open_cache(tmp_path / "r.db", settings, embedder=HashEmbedder()) as cache:
        unchecked: Any = cache
        assert cache.set_many([("q", "first"), ("q", "a")]) == 1
        answer = cache.get("q")
        for use, kind, message in (
            (lambda: unchecked.feedback(None, True), TypeError, "answer must be of the type CachedAnswer"),
            (lambda: unchecked.feedback(answer, "no"), TypeError, "right must be of the type bool, not str"),
            (lambda: unchecked.feedback(answer, True, question=3), TypeError, "question must be a string"),
            (lambda: unchecked.set_many(None), TypeError, "answers must be of the type Iterable, not NoneType"),
            (lambda: unchecked.get_many(None), TypeError, "questions must be of the type Iterable, not NoneType"),
            (lambda: unchecked.set("q", "a", tags=5), TypeError, "tags must be of the type Iterable, not int"),
            (lambda: CacheSettings(extra_guards=("x",)), ValueError, "unknown guard 'x': install a package"),
            (lambda: unchecked.set_many(["q"]), TypeError, r"answers\[0\] is no pair"),
            (lambda: unchecked.set_many([("a", "b"), ("c",)]), TypeError, r"answers\[1\] is no pair"),
            (lambda: unchecked.get_many("q"), TypeError, r"write \['q'\]"),
            (lambda: cache.get_many(["q", " "]), ValueError, r"questions\[1\]: the question is empty"),
            (lambda: unchecked.get_many(["q", 5]), TypeError, r"questions\[1\]: question must be a string, not int"),
            (lambda: cache.set_many({"a": "b", " ": "c"}), ValueError, r"answers\[' '\]: the question is empty"),
            (lambda: unchecked.set_many({"a": 5}), TypeError, r"answers\['a'\]: answer must be a string, not int"),
            (lambda: cache.set_many([("a", "b"), ("", "c")]), ValueError, r"answers\[1\]: the question is empty"),
            (lambda: cache.set("q", "a", ttl=1e12), ValueError, "ttl must be below ten years"),
            (lambda: cache.set("q\ud800", "a"), ValueError, "question has half of a surrogate pair at position 1"),
            (lambda: cache.set("q", "\udfff"), ValueError, "answer has half of a surrogate pair"),
            (lambda: cache.get("q", "\ud800"), ValueError, "namespace has half of a surrogate pair"),
            (lambda: cache.set("q", "b", tags=["t", " "]), ValueError, r"tags\[1\]: the tag is empty"),
            (lambda: cache.delete_tag(""), ValueError, "the tag is empty"),
            (lambda: cache.set("q", "b", tags=["\ud800"]), ValueError, r"tags\[0\] has half of a surrogate pair"),
            (lambda: cache.delete_tag("\ud800"), ValueError, "tag has half of a surrogate pair"),
        ):
            with pytest.raises(kind, match=message):
                use()
        assert [(each.question, each.answer) for each in cache] == [("q", "a")]


def test_many_questions_are_embedded_together(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    questions = [f"question number {number} about topic {number % 7}" for number in range(300)]
    with open_cache(tmp_path / "r.db", CacheSettings(**SIMILAR), embedder=embedder) as cache:
        embedder.calls.clear()  # Without the text that checks the embedder.
        assert cache.set_many((question, "a") for question in questions) == 300
        assert sum(embedder.calls) == 300
        assert len(embedder.calls) <= 3
    embedder = CountingEmbedder()
    with open_cache(tmp_path / "r.db", CacheSettings(**SIMILAR), embedder=embedder) as cache:
        asked = [
            *questions[:50],
            *(f"{question} please" for question in questions[:20]),
            "something else",
            questions[0],
        ]
        found = cache.get_many(asked)
        assert [each is None or each.similarity for each in found[:50]] == [None] * 50
        assert found[-1] == found[0]
        assert [found[place] for place in range(50, 71)] == [cache.get(question) for question in asked[50:71]]
        assert embedder.calls[1:] == [21]


def test_statistics_are_json_with_the_names_of_the_command(tmp_path: Path) -> None:
    for settings in (EXACT, CacheSettings(verifier="none")):
        with open_cache(tmp_path / f"{settings.semantic}.db", settings, embedder=HashEmbedder()) as cache:
            cache.set("how is it", "a")
            cache.get("how is that")
            stats = json.loads(json.dumps(cache.stats()))
            assert stats.keys() == {*(each.name for each in fields(CacheStatistics)), "gets"}
            assert stats["semantic"].keys() == {each.name for each in fields(SemanticStatistics)}
            for typed, figures in ((CacheStats, stats), (SemanticStats, stats["semantic"]), (GetStats, stats["gets"])):
                assert get_type_hints(typed).keys() == figures.keys()
            assert get_type_hints(CacheStats).items() >= get_type_hints(StoreStatistics).items()
    assert stats["semantic"]["learning"]["observations"] == 0


def test_refusals_can_be_unlimited(tmp_path: Path) -> None:
    never = Guard("never", "nothing is alike", lambda one, other: "purple" in one)
    for limit, reason in ((2, "refusal-limit"), (None, "hit-semantic")):
        arguments: dict[str, Any] = {"embedder": HashEmbedder(), "guards": [never], "refusal_limit": limit}
        with open_cache(tmp_path / f"{limit}.db", CacheSettings(**SIMILAR, guards=False), **arguments) as cache:
            cache.set(LONG, "so")
            for word in ("red", "blue"):
                assert cache.get(f"{LONG} purple {word}") is None
            assert cache.explain(f"{LONG} now").reason == reason


def test_the_policy_counts_the_hits_that_a_library_serves(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db") as cache:
        question = "How can I reset my password?"
        cache.set("How do I reset my password?", "Open the settings.")
        hit = cache.get(question)
        assert hit is not None
        assert hit.similarity is not None
        cache.feedback(hit, True, question)
        learning = cache.stats()["semantic"]["learning"]
        assert (learning["observations"], learning["served"], learning["by_checked"]) == (1, 1, 1)
        cache.feedback(hit, False, question)
        cache.feedback(hit, False)
        semantic = cache.stats()["semantic"]
        learning = semantic["learning"]
        assert (learning["observations"], learning["served"], learning["by_checked"]) == (2, 1, 1)
        assert (learning["equal"], learning["checked_equal"], learning["checked_different"]) == (0, 0, 0)
        assert semantic["learned"]["rejected"] == 1
        assert semantic["lookups"] == {"accepted": 1}
