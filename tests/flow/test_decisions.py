"""Similar questions: served responses, comparisons in the background, verdicts of people, and judges."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.flow.compare_responses import (
    ComparedAnswers,
    Comparison,
    ComparisonQueue,
    ModelBudget,
    ResponseComparer,
    judge_with_model,
)
from kvproxy.http.services import Services
from kvproxy.index.entry import Entry
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import LearningRecord
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.decider import MAX_REFUSALS
from kvproxy.index.search.lookup_result import Candidate, Lookup, PendingObservation
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import open_store
from kvproxy.index.store.observations import Observations
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings import CacheSettings
from kvproxy.settings.journal import JournalSettings
from kvproxy.settings.rules import RuleSettings
from tests.commands.run import kvproxy
from tests.flow.proxies import CLOSE, FAR, NEAR, QUESTION, ask, checked, explain, proxy
from tests.index.doubles import Held
from tests.index.entries import make_entry
from tests.journal.test_file import finished
from tests.polling import until
from tests.requests import api_request
from tests.servers import waiting_clients


def stats(url: str) -> dict[str, Any]:
    figures: dict[str, Any] = httpx.get(f"{url}/admin/cache/stats").json()["semantic"]
    return figures


def observed(services: Services) -> Observations:
    return services.cache.store.observations


def compared(services: Services, count: int) -> None:
    """Wait until this number of answers was compared."""
    comparer = services.comparer
    assert comparer is not None
    until(lambda: comparer.counts.total() >= count)


def test_a_hit_says_what_was_measured_and_a_request_may_be_stricter(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, _, _):
        ask(url, QUESTION)
        assert "fwd=" in ask(url, CLOSE, "min-probability=0.99, no-store").headers["cache-status"]
        assert "fwd=" in ask(url, CLOSE, "min-similarity=0.9999, no-store").headers["cache-status"]
        assert "semantic similarity=" in ask(url, CLOSE, "min-probability=0.1").headers["cache-status"]
        assert "fwd=" in ask(url, CLOSE, "min-probability=0.1, max-age=0, no-store").headers["cache-status"]
        assert "fwd=" in ask(url, FAR, "min-probability=0.1, min-similarity=0.1, no-store").headers["cache-status"]
        assert " verifier=0.909" in ask(url, CLOSE).headers["cache-status"]
        assert ask(url, NEAR, "min-probability=nan").status_code == 400
        lookups = stats(url)["lookups"]
        assert (lookups["no neighbour"], lookups["accepted"], lookups["low probability"]) == (1, 2, 2)
        assert lookups["accepted but not served"] == 1
        metrics = httpx.get(f"{url}/metrics").text
        assert 'kvproxy_semantic_lookups_total{outcome="accepted"} 2.0' in metrics


def test_after_many_refused_questions_an_entry_has_exact_hits_only(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, _, _):
        ask(url, QUESTION)
        for number in range(MAX_REFUSALS):
            explain(url, FAR)
            assert "fwd=" in ask(url, FAR + " " * number, "no-store").headers["cache-status"]
        assert "fwd=" in ask(url, NEAR, "no-store").headers["cache-status"]
        neighbour = explain(url, NEAR)["semantic"]["neighbours"][0]
        assert (neighbour["verdict"], neighbour["served"]) == ("refusal limit", False)
        assert neighbour["why"].startswith("too many similar questions were refused")
        assert stats(url)["lookups"]["refusal limit"] == 1
        assert "; hit" in ask(url, QUESTION).headers["cache-status"]


def test_forwarded_answers_are_compared_with_cached_ones(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(0.99)) as (url, services, model):
        model.answers = {QUESTION: "A list of free blocks.", FAR: "a list of FREE blocks"}
        ask(url, QUESTION)
        ask(url, FAR)
        compared(services, 1)
        model.answers["please tell me what the busy queue of blocks is"] = "No idea."
        ask(url, "please tell me what the busy queue of blocks is")
        compared(services, 2)
        assert stats(url)["compared"] == {"right": 1, "wrong": 1}
        assert stats(url)["learned"] | {"rejected": 0} == stats(url)["learned"]
        assert observed(services).summary()["observed"] == 2
        assert all(entry["semantic"] for entry in httpx.get(f"{url}/admin/cache").json())


def test_shadow_mode_serves_nothing_and_reports(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(), shadow=True) as (url, services, model):
        model.answers = {QUESTION: "One thing.", NEAR: "Another thing."}
        ask(url, QUESTION)
        answer = ask(url, NEAR)
        assert answer.json()["choices"][0]["message"]["content"] == "Another thing."
        compared(services, 1)
        figures = stats(url)
        assert figures["shadow"] is True
        assert figures["lookups"] == {"no neighbour": 1, "shadow": 1}
        assert figures["learned"]["accepted_wrong"] == 1
        assert "hit" in ask(url, NEAR).headers["cache-status"]


def test_a_record_has_the_verdict_on_the_stored_response_that_was_not_served(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(), shadow=True) as (url, services, model):
        model.answers = {QUESTION: "One thing.", NEAR: "Another thing.", CLOSE: "one THING"}
        ask(url, QUESTION)
        for count, question in enumerate((NEAR, CLOSE), start=1):
            ask(url, question)
            compared(services, count)

        def verdicts() -> list[str | None]:
            return [record.verdict for record in reversed(services.journal.latest(3))]

        until(lambda: verdicts() == [None, "different", "equal"])
        (id, _) = (record.request_id for record in services.journal.latest(2))
        explained = kvproxy("explain", "--request", id, "--data", tmp_path).stdout
        assert "The fresh response was judged equal to its stored response." in explained


@pytest.mark.parametrize("first", ["record", "verdict"])
def test_a_verdict_and_its_record_may_come_in_any_order(tmp_path: Path, first: str) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    exchange = finished("q", "compared")
    chosen = Candidate("e", "q", 0.9, "a", "explored")
    exchange.lookup = Lookup(None, (chosen,), chosen)
    steps = [lambda: journal.add(exchange), lambda: journal.record_comparison("compared", "undecided")]
    for step in steps if first == "record" else reversed(steps):
        step()
        journal.flush()
    assert [record.verdict for record in journal.latest(1)] == ["undecided"]
    journal.close()


def test_the_log_lists_each_pair_that_shadow_mode_counts(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(), shadow=True) as (url, services, model), ThreadPoolExecutor() as threads:
        ask(url, QUESTION)
        # The same question was sent with another system prompt, and an equal request was stored and removed.
        system = {"role": "system", "content": "Answer in French."}
        ask(url, CLOSE, messages=[system, {"role": "user", "content": CLOSE}])
        ask(url, CLOSE)
        httpx.delete(f"{url}/admin/cache", params={"prompt": CLOSE}).raise_for_status()
        ask(url, CLOSE)
        # An identical request is in flight.
        model.go.clear()
        joined = [threads.submit(ask, url, NEAR) for _ in range(2)]
        until(lambda: waiting_clients(services) == 2)
        model.go.set()
        assert [each.result().status_code for each in joined] == [200, 200]
        # A failed request is no pair.
        model.status = 500
        assert ask(url, NEAR + " now").status_code == 500
        model.status = 200
        services.journal.latest(1)
        rows = httpx.get(f"{url}/admin/log", params={"reason": "shadow"}).json()
        assert len(rows) == stats(url)["lookups"]["shadow"] == 4
        assert all(row["question"] and row["stored_question"] for row in rows)
        assert {row["changed"] for row in rows} == {None, "messages[0] system"}
        assert [row["reason"] for row in httpx.get(f"{url}/admin/log", params={"reason": "error"}).json()]


def test_a_similar_response_that_is_too_old_is_no_pair_of_shadow_mode(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        ask(url, QUESTION)
        ask(url, NEAR, "max-age=0")
        assert services.journal.latest(1)[0].reason == "miss-old"


def test_a_rejected_entry_is_served_to_equal_requests_only(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        ask(url, QUESTION)
        (entry,) = httpx.get(f"{url}/admin/cache").json()
        route = f"{url}/admin/cache/{entry['id'][:8]}/feedback"
        assert httpx.post(route, json={"right": False, "question": NEAR}).json() == {"id": entry["id"], "right": False}
        assert "fwd=" in ask(url, NEAR, "no-store").headers["cache-status"]
        assert 'detail="exact"' in ask(url, QUESTION).headers["cache-status"]
        assert observed(services).rejected_entries([entry["id"]]) == {entry["id"]}
        assert httpx.post(route, json={"right": True}).status_code == 200
        assert "semantic" in ask(url, NEAR).headers["cache-status"]
        for bad in (b"", b"[]", b'{"right": 1}', b'{"right": true, "question": 3}'):
            assert httpx.post(route, content=bad).status_code == 400
        assert httpx.post(f"{url}/admin/cache/nope/feedback", json={"right": True}).status_code == 404


def test_no_neighbour_farther_than_a_rejected_one_is_served(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, _, _):
        ask(url, QUESTION)
        (entry,) = httpx.get(f"{url}/admin/cache").json()
        httpx.post(f"{url}/admin/cache/{entry['id']}/feedback", json={"right": False, "question": NEAR})
        ask(url, NEAR)
        nearest, farther = explain(url, CLOSE)["semantic"]["neighbours"]
        assert nearest["id"] == entry["id"] != farther["id"]
        assert (nearest["verdict"], farther["verdict"]) == ("rejected", "not compared")
        assert "fwd=" in ask(url, CLOSE).headers["cache-status"]
        assert 'detail="exact"' in ask(url, NEAR).headers["cache-status"]


def savings(url: str, services: Services, records: int) -> dict[str, Any]:
    until(lambda: len(services.journal.latest(records)) == records)
    services.journal.flush()
    report: dict[str, Any] = httpx.get(f"{url}/admin/savings").json()
    return {row["name"]: row for row in report["rows"]} | {"marked": report["marked_wrong"]}


def test_a_hit_on_a_rejected_response_saved_nothing_until_the_response_is_approved(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.m]\ninput = 1000\noutput = 10000\n")
    with proxy(tmp_path, checked()) as (url, services, model):
        model.usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        ask(url, QUESTION)
        for question in (QUESTION, NEAR, CLOSE):
            assert "; hit" in ask(url, question).headers["cache-status"]
        before = savings(url, services, 4)
        exact, semantic = before["exact"], before["semantic"]
        assert (semantic["answered"], semantic["prompt_tokens"], semantic["completion_tokens"]) == (2, 200, 20)
        assert semantic["money"] == pytest.approx(2 * exact["money"])
        assert exact["money"] == pytest.approx(0.2)
        (entry,) = httpx.get(f"{url}/admin/cache").json()
        route = f"{url}/admin/cache/{entry['id']}/feedback"
        httpx.post(route, json={"right": False})
        after = savings(url, services, 4)
        wrong = after["semantic"]
        assert (after["marked"], wrong["answered"], wrong["wrong_hits"]) == (1, 2, 2)
        assert (wrong["prompt_tokens"], wrong["completion_tokens"], wrong["money"]) == (0, 0, 0.0)
        assert (wrong["seconds"], wrong["hit_seconds"]) == (0.0, 0.0)
        # Equal requests still receive the response.
        assert after["exact"] == exact
        for by in ("client", "model", "day", "project"):
            (row,) = httpx.get(f"{url}/admin/savings", params={"by": by}).json()["rows"]
            assert (row["money"], row["wrong_hits"]) == (pytest.approx(exact["money"]), 2)
        httpx.post(route, json={"right": True})
        assert savings(url, services, 4) == before


def learned(observations: Observations) -> LearnedPolicy:
    return LearnedPolicy(observations, checked(), 0.2, 0.5)


def test_the_learned_policy_learns_from_traffic_and_shows_it(tmp_path: Path) -> None:
    words = ("queue", "block", "cache", "pool", "stream")

    def question(number: int) -> str:
        return f"please tell me what the {words[number % 5]} is {'in short' if number % 2 else 'today'} number{number}"

    with proxy(tmp_path, learned) as (url, services, model):
        waiting = 0
        for number in range(40):
            model.answers[question(number)] = f"About the {words[number % 5]}."
            if "fwd=" in ask(url, question(number)).headers["cache-status"]:
                compared(services, waiting)
                waiting += 1
        figures = stats(url)
        told = explain(url, question(999))["semantic"]["learned"]
        assert told["observations"] == figures["learning"]["observations"] > 10
        assert told["max_error"] == 0.2
        metrics = httpx.get(f"{url}/metrics").text
        assert "kvproxy_learned_policy_observations" in metrics
        classes = services.cache.store.questions([entry["id"] for entry in httpx.get(f"{url}/admin/cache").json()])
        assert len({head.answer for head in classes.values()}) == len(set(model.answers.values()))


def test_the_policy_learns_from_a_verdict_on_a_response_that_is_no_longer_the_nearest(tmp_path: Path) -> None:
    with proxy(tmp_path, learned) as (url, services, _):
        ask(url, QUESTION)
        (first,) = httpx.get(f"{url}/admin/cache").json()
        assert "semantic" in ask(url, NEAR).headers["cache-status"]
        # The same question is the nearest one now.
        ask(url, NEAR, "no-cache")
        assert len(httpx.get(f"{url}/admin/cache").json()) == 2
        for right in (False, True):
            verdict = {"right": right, "question": NEAR}
            assert httpx.post(f"{url}/admin/cache/{first['id']}/feedback", json=verdict).is_success
        given = [each for each in observed(services).list_since(first["namespace"], 0, 9) if each.source == "user"]
        assert [(each.entry, each.right, each.features is not None) for each in given] == [
            (first["id"], False, True),
            (first["id"], True, True),
        ]


def test_the_model_may_judge(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(0.99), judge="model", judge_similarity=1.0) as (url, services, model):
        last = "please tell me what the busy list of blocks might be"
        wordings = (
            "The bank pays the fee of the card.",
            "The card has a fee that the bank pays.",
            "Fees are the bank's.",
        )
        model.answers = dict(zip((QUESTION, FAR, last), wordings, strict=True))
        ask(url, QUESTION)
        ask(url, FAR)
        compared(services, 1)
        assert QUESTION not in model.judged[0]
        assert all(text in model.judged[0] for text in (FAR, *wordings[:2]))
        assert stats(url)["compared"] == {"right": 1}
        model.verdict = "I cannot tell."
        ask(url, last)
        compared(services, 2)
        assert stats(url)["compared"] == {"right": 1, "undecided": 1}


ANSWERS: dict[str, JsonObject] = {
    "chat": {"choices": [{"message": {"content": "Hm. SAME? No: DIFFERENT."}, "finish_reason": "stop"}]},
    "messages": {"type": "message", "content": [{"type": "text", "text": "SAME"}], "stop_reason": "end_turn"},
    "responses": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "SAME"}]}]},
}


class Judge:
    """A backend that records its requests."""

    name = "model"
    forwarder = None

    def __init__(self) -> None:
        self.asked: list[ApiRequest] = []

    async def send(self, request: ApiRequest) -> RelayedResponse:
        self.asked.append(request)

        async def body() -> AsyncIterator[bytes]:
            yield dumps(ANSWERS[request.api.name])

        return RelayedResponse(200, [], body())


@pytest.mark.parametrize(
    ("name", "headers", "same"),
    [
        ("chat", {"authorization": "Bearer k", "openai-project": "p"}, False),
        ("messages", {"x-api-key": "k", "anthropic-version": "2023-06-01"}, True),
        ("responses", {"api-key": "k"}, True),
    ],
)
async def test_the_judge_receives_the_credentials_of_the_client(
    name: ApiName, headers: Mapping[str, str], same: bool
) -> None:
    model = Judge()
    request = api_request({"model": "m", "messages": []}, name, {**headers, "cookie": "c", "accept": "x"})
    assert await judge_with_model(model, request, "Why?", "One.", "Two.") is same
    (asked,) = model.asked
    assert asked.api.name == name
    assert {key: value for key, value in asked.headers.items() if key != "content-type"} == headers
    asked.api.check(asked.body)
    assert all(text in asked.raw.decode() for text in ("Why?", "One.", "Two."))


async def test_answers_of_completions_are_judged_in_a_chat() -> None:
    model = Judge()
    request = api_request({"model": "m", "prompt": "Why?"}, "completions")
    assert await judge_with_model(model, request, "Why?", "One.", "Two.") is False
    assert [asked.api.name for asked in model.asked] == ["chat"]


class Similar:
    """A semantic cache that measures one similarity between any two texts."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.are_cached = False

    def cached_similarity(self, one: str, other: str) -> float | None:
        return self.value if self.are_cached else None

    async def similarity(self, one: str, other: str) -> float:
        return self.value


@pytest.mark.parametrize(
    ("judge", "similarity", "fresh", "same"),
    [
        ("equality", 0.0, "here is one TEXT", True),
        ("equality", 1.0, "Another text", False),
        ("similarity", 0.0, "here is one TEXT", True),
        ("similarity", 0.9, "In other words, this is the one text", True),
        ("similarity", 0.6, "In other words, this is the one text", None),
        ("similarity", 0.3, "In other words, this is the one text", None),
        ("similarity", 0.3, "In other words, this is the one line", False),
        ("similarity", 0.6, "This is about cards and fees", None),
        ("similarity", 0.3, "This is about cards and fees", False),
    ],
)
async def test_answers_are_compared_by_text_and_by_similarity(
    judge: Any, similarity: float, fresh: str, same: bool | None
) -> None:
    semantic: Any = Similar(similarity)
    model: Any = Judge()
    comparer = ResponseComparer(semantic, model, CacheSettings(judge=judge, judge_similarity=0.65))
    asked = api_request({"model": "m", "messages": []})
    assert await comparer.have_same_meaning(asked, "Why?", "Here is one text.", fresh) is same


class Unusable(Similar):
    """A semantic cache that must not embed."""

    async def similarity(self, one: str, other: str) -> float:
        raise AssertionError


async def test_answers_with_cached_vectors_are_not_embedded() -> None:
    semantic: Any = Unusable(0.9)
    semantic.are_cached = True
    model: Any = Judge()
    comparer = ResponseComparer(semantic, model, CacheSettings(judge_similarity=0.65))
    asked, fresh = api_request({"model": "m", "messages": []}), "In other words, this is the one text"
    assert await comparer.have_same_meaning(asked, "Why?", "Here is one text.", fresh) is True


async def test_answers_whose_words_decide_are_not_embedded() -> None:
    semantic: Any = Unusable(0.0)
    model: Any = Judge()
    comparer = ResponseComparer(semantic, model, CacheSettings())
    asked = api_request({"model": "m", "messages": []})
    unrelated = "Heavy clouds bring rain tonight, tomorrow stays sunny with light winds."
    assert await comparer.have_same_meaning(asked, "Why?", "Tap Cards, then Lock.", unrelated) is False
    assert await comparer.have_same_meaning(asked, "Why?", "It costs 5 euros.", "It costs 7 euros.") is False


@pytest.mark.parametrize(
    ("setting", "rule", "same"),
    [("none", "equality", False), ("equality", "similarity", True), ("equality", None, False)],
)
async def test_a_rule_selects_the_judge_of_its_requests(setting: Any, rule: Any, same: bool) -> None:
    semantic: Any = Similar(0.9)
    model: Any = Judge()
    comparer = ResponseComparer(semantic, model, CacheSettings(judge=setting))
    asked = api_request({"model": "m", "messages": []})
    asked = replace(asked, control=replace(asked.control, rule=RuleSettings(name="r", judge=rule)))
    assert (
        await comparer.have_same_meaning(asked, "Why?", "Here is one text.", "In other words, this is the one text")
        is same
    )


def test_a_rule_without_a_judge_compares_nothing(tmp_path: Path) -> None:
    rules = [{"name": "unjudged", "headers": {"cache-control": "*x-unjudged*"}, "judge": "none"}]
    with proxy(tmp_path, checked(0.99), rules=rules) as (url, services, _):
        ask(url, QUESTION)
        ask(url, FAR, "x-unjudged")
        assert services.comparer is not None
        until(lambda: len(httpx.get(f"{url}/admin/cache").json()) == 2)
        assert services.comparer.counts.total() == 0
        ask(url, "please tell me what the busy queue of blocks is")
        compared(services, 1)
        assert services.comparer.counts.total() == 1


@pytest.mark.parametrize(
    ("cached", "fresh", "same"),
    [
        ("Tap Cards, then Lock.", "Tap Cards, then Unlock.", False),
        ("This is the answer about first 3.", "This is the answer about first 4.", False),
        ("The capital of France is Paris.", "Paris is the capital of France.", True),
        ("You can reset it in the settings.", "You can reset it in the menu.", None),
        ("die Karte sperren", "die Karte entsperren", False),
        ("Sie können die Karte sperren.", "Hier können Sie die Karten sperren.", True),
        ("die Bestellung vor dem Versand stornieren", "die Bestellung nach dem Versand stornieren", False),
        ("冻结我的银行卡", "解冻我的银行卡", False),
        ("カードの限度額を上げる", "カードの限度額を下げる", False),
        ("定期購入を一時停止する。", "定期購入を再開する。", False),
        (
            "Öffnen Sie die App, tippen Sie auf Karten, und sperren Sie dort die verlorene Karte.",
            "Tippen Sie in der App auf Karten, wählen Sie die verlorene Karte aus, dann Sperren und Bestätigen.",
            True,
        ),
    ],
)
async def test_similar_answers_differ_if_a_few_words_change_the_meaning(
    cached: str, fresh: str, same: bool | None
) -> None:
    semantic: Any = Similar(0.95)
    model: Any = Judge()
    comparer = ResponseComparer(semantic, model, CacheSettings())
    asked = api_request({"model": "m", "messages": []})
    assert await comparer.have_same_meaning(asked, "Why?", cached, fresh) is same


class StoredAnswers:
    """Entries of a store, without the removed ones, and the ids of each read."""

    def __init__(self, removed: str) -> None:
        self._removed = removed
        self.reads: list[list[str]] = []

    def entries(self, ids: list[str]) -> dict[str, Entry]:
        self.reads.append(list(ids))
        choices = [{"index": 0, "message": {"content": "An answer."}}]
        return {id: make_entry(id=id, response=dumps({"choices": choices})) for id in ids if id != self._removed}


def test_the_answers_of_other_classes_are_read_together() -> None:
    candidates = tuple(Candidate(id, "q", 0.9, id[0], "uncertain") for id in ("a1", "b1", "a2", "c1"))
    pending = PendingObservation(candidates[0], LearningRecord(0, None, 0.0), candidates, False, 1.0)
    comparison = Comparison(
        api_request({"model": "m", "messages": []}),
        make_entry(id="fresh"),
        Lookup(None, candidates, observation=pending),
    )
    stored: Any = StoredAnswers(removed="c1")
    answers = ComparedAnswers(stored, comparison, "A new answer.")
    assert answers.texts("a1", "fresh") == ["An answer.", "A new answer."]
    assert answers.texts("a2", "fresh") == ["An answer.", "A new answer."]
    assert answers.texts("b1", "c1") == ["An answer.", None]
    assert stored.reads == [["a1"], ["a2", "b1", "c1"]]


async def test_explored_hits_are_compared_first_and_dropped_last() -> None:
    request, entry = api_request({"model": "m", "messages": []}), make_entry("q")
    candidate = Candidate("e", "q", 0.9, "a", "explored")
    pending = PendingObservation(candidate, LearningRecord(0, None, 0.0), (candidate,), True, 0.1)
    explored = Lookup(None, (candidate,), candidate, observation=pending)
    judged, unrelated = Lookup(None, (candidate,), observation=pending), Lookup(None, ())
    queue = ComparisonQueue(3)
    waiting = [Comparison(request, entry, lookup) for lookup in (unrelated, judged, explored, explored, judged)]
    dropped = [queue.put(each) for each in waiting]
    assert dropped == [None, None, None, waiting[0], waiting[1]]
    assert await queue.take(2) == [waiting[2], waiting[3]]
    assert await queue.take(2) == [waiting[4]]


def test_the_model_judges_within_its_budget_undecided_pairs_first() -> None:
    budget = ModelBudget(0.5, random_number=lambda: 0.9)
    assert [budget.take(is_audit=False) for _ in range(11)] == [True] * 10 + [False]
    budget.add_response()
    assert not budget.take(is_audit=False)
    budget.add_response()
    assert not budget.take(is_audit=True), "this pair is not in the audited share"
    assert budget.take(is_audit=False)
    audited = ModelBudget(0.5, random_number=lambda: 0.0)
    assert audited.take(is_audit=True)


async def test_lookups_go_before_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, embedder, ended = open_store(tmp_path / "r.db"), Held(), list[str]()
    semantic = SemanticCache(store, embedder, ThresholdPolicy(0.8), store.observations, threads=1)
    decide = semantic.decider.decide
    monkeypatch.setattr(semantic.decider, "decide", lambda *each: ended.append("lookup") or decide(*each))
    backend: Any = Judge()
    comparer = ResponseComparer(semantic, backend, CacheSettings())
    await semantic.insert(make_entry("what is a block"))
    embedder.go.clear()
    running = asyncio.create_task(semantic.lookup("n", "what is a queue"))
    await asyncio.to_thread(until, lambda: len(embedder.calls) == 2)
    answer = dumps({"choices": [{"index": 0, "message": {"content": "An answer."}}]})
    comparer.compare(api_request({"model": "m", "messages": []}), make_entry("n", response=answer), Lookup(None, ()))
    compared = asyncio.create_task(comparer.wait_until_idle())
    compared.add_done_callback(lambda _: ended.append("comparison"))
    await asyncio.to_thread(until, lambda: len(semantic._queue._background) == 1)
    waiting = asyncio.create_task(semantic.lookup("n", "what is a chain"))
    await asyncio.to_thread(until, lambda: len(semantic._queue) == 1)
    embedder.go.set()
    await asyncio.gather(running, waiting, compared)
    assert ended == ["lookup", "lookup", "comparison"]
    await comparer.close()
    semantic.close()
    store.close()
