"""The questions of a semantic hit are readable as long as its record, whatever happens to the stored response."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.exchange import Exchange
from kvproxy.index.entry_redaction import RedactionFailed, Redactor
from kvproxy.index.policies.policy import Verdict
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.conversations import join_turns
from kvproxy.index.search.lookup_result import Candidate, Lookup
from kvproxy.journal.journal import StoredJournal, open_stored_journal
from kvproxy.operations.record_query import RecordQuery
from kvproxy.settings.journal import JournalSettings
from tests.flow.proxies import CLOSE, FAR, QUESTION, ask, checked, proxy
from tests.journal.pruning import prune
from tests.journal.sessions.requests import START
from tests.journal.test_file import finished
from tests.polling import until
from tests.servers import until_stored

ENTRY = f"{7:032x}"
DAY = 86_400.0


def matched(asked: str, stored: str, id: str = "hit", entry: str = ENTRY, **fields: Any) -> Exchange:
    """The exchange of a semantic hit, or with `layer="forward"` of one that shadow mode counted."""
    verdict: Verdict = fields.pop("verdict", "accepted")
    candidate = Candidate(entry, stored, 0.95, "class", verdict)
    chosen = candidate if verdict == "accepted" else None
    exchange = finished(
        asked, id, hit=fields.get("layer", "semantic") == "semantic", lookup=Lookup(None, (candidate,), chosen)
    )
    exchange.layer = "semantic"
    for name, value in fields.items():
        setattr(exchange, name, value)
    return exchange


def questions(journal: StoredJournal) -> list[tuple[str | None, str | None]]:
    """Return both questions of each record, newest first. The store has no entry."""
    journal.flush()
    with closing(journal.reader()) as reader:
        rows = reader.with_questions(reader.records(RecordQuery()), lambda _: {})
    return [(row.question, row.stored_question) for row in rows]


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("end", ["replaced", "expired", "removed"])
def test_the_questions_of_a_hit_outlive_the_entries(tmp_path: Path, end: str, shadow: bool) -> None:
    now = START
    policy = ThresholdPolicy(0.8, guards=())
    with proxy(tmp_path, policy, clock=lambda: now, ttl=60, shadow=shadow) as (url, services, _):
        for question in (QUESTION, CLOSE):
            answer = ask(url, question, "confirm")
            until_stored(services)
        assert ("semantic" in answer.headers["cache-status"]) is not shadow
        cache = services.cache
        if end == "replaced":
            for question in (QUESTION, CLOSE):
                ask(url, question, "confirm, no-cache")
        elif end == "expired":
            now += 30 * DAY
            cache.maintain()
        else:
            for entry in services.cache.store.list_entries():
                httpx.delete(f"{url}/admin/cache/{entry.id}").raise_for_status()
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        journal.flush()
        rows = httpx.get(f"{url}/admin/log").json()
        hits = [row for row in rows if row["reason"] == ("shadow" if shadow else "hit-semantic")]
    assert [(row["question"], row["stored_question"]) for row in hits] == [(CLOSE, QUESTION)]


RAG_PROMPT = (
    "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to answer the"
    " question. If you don't know the answer, just say that you don't know.\nQuestion: {} \nContext: {} \nAnswer:"
)
"""LangChain's `rlm/rag-prompt`."""


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("rule", [{}, {"journal_text": "beginning"}, {"journal_text": "all"}])
def test_the_question_of_a_hit_beside_passages_is_the_compared_one(
    tmp_path: Path, shadow: bool, rule: dict[str, str]
) -> None:
    passages = "The treaty was signed in the year 1492, after nine months of negotiations. " * 9
    rules = [{"name": "all", **rule}] if rule else []
    with proxy(tmp_path, ThresholdPolicy(0.8, guards=()), shadow=shadow, rules=rules) as (url, services, _):
        for question in (QUESTION, CLOSE):
            ask(url, RAG_PROMPT.format(question, passages), "confirm")
            until_stored(services)
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        until(lambda: len(journal.latest(9)) == 2)
        newest = httpx.get(f"{url}/admin/log").json()[0]
    assert newest["reason"] == ("shadow" if shadow else "hit-semantic")
    assert (newest["question"], newest["stored_question"]) == (CLOSE, QUESTION)


def test_the_question_beside_passages_needs_no_lookup(tmp_path: Path) -> None:
    message = RAG_PROMPT.format(QUESTION, "The treaty was signed in the year 1492. " * 9)
    rules = [{"name": "all", "journal_text": "beginning"}]
    with proxy(tmp_path, ThresholdPolicy(0.8, guards=()), rules=rules) as (url, services, _):
        for directives in ("no-cache", "confirm"):
            ask(url, message, directives)
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        until(lambda: len(journal.latest(9)) == 2)
        rows = httpx.get(f"{url}/admin/log").json()
    assert [row["layer"] for row in rows] == ["exact", "forward"]
    assert {row["question"] for row in rows} == {QUESTION}


def test_a_miss_after_other_passages_names_them(tmp_path: Path) -> None:
    pages = [f"The document {year} was signed after nine months of negotiations. " * 3 for year in (1492, 1493)]
    with proxy(tmp_path, ThresholdPolicy(0.8, guards=())) as (url, services, _):
        for question, page in ((QUESTION, pages[0]), (QUESTION, pages[1]), (FAR, pages[1])):
            ask(url, RAG_PROMPT.format(question, page), "confirm")
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        until(lambda: len(journal.latest(9)) == 3)
        other, changed, first = httpx.get(f"{url}/admin/log").json()
        why = httpx.get(f"{url}/admin/log/{changed['request_id']}").json()
    assert (first["reason"], changed["reason"], changed["changed"]) == ("miss-new", "miss-changed", "passages")
    assert changed["against"] == first["prompt"]
    assert (other["changed"], other["against"]) == (None, None)
    sentences = " ".join(why["sentences"])
    assert "passages beside the question differ" in sentences
    assert f"{first['request_id']}," in sentences
    assert "1492" in sentences


@pytest.mark.parametrize("layer", ["semantic", "forward"])
def test_a_hit_keeps_both_questions_as_far_as_allowed(place: str, layer: str) -> None:
    def secret(text: str) -> str:
        if "failing" in text:
            raise RedactionFailed
        return text.replace("secret", "[redacted]")

    def kept(exchange: Exchange, text: str = "hits", redact: Redactor | None = None) -> tuple[str | None, str | None]:
        journal = open_stored_journal(place, JournalSettings.model_validate({"text": text}), redact=redact)
        journal.add(exchange)
        found = questions(journal)[0]
        journal.close()
        return found

    assert kept(matched("asked 0", "stored", "0", f"{0:032x}", layer=layer), "none") == (None, None)
    refused = matched("asked 1", "stored", "1", f"{1:032x}", layer="forward", verdict="vetoed")
    assert kept(refused) == (None, None)
    assert kept(matched("asked 2", "s" * 300 + "?", "2", f"{2:032x}", layer=layer)) == (
        "asked 2",
        "s" * 77 + " … " + "s" * 119 + "?",
    )
    later = matched("asked 3", join_turns(["earlier", "stored"]), "3", "imported", layer=layer)
    assert kept(later, "beginning") == ("asked 3", "stored")
    hidden = matched("my secret", "your secret", "4", f"{4:032x}", layer=layer)
    assert kept(hidden, redact=secret) == ("my [redacted]", "your [redacted]")
    assert kept(matched("asked 5", "failing", "5", f"{5:032x}", layer=layer), redact=secret) == (None, None)
    private = matched("asked 6", "stored", "6", f"{6:032x}", layer=layer)
    private.request = replace(private.api_request, control=replace(private.api_request.control, no_store=True))
    assert kept(private) == (None, "stored")


def test_a_hit_of_a_known_prompt_keeps_its_question(journal: StoredJournal) -> None:
    journal.add(finished("asked", "first"))
    assert questions(journal) == [(None, None)]
    journal.add(matched("asked", "stored"))
    assert questions(journal) == [("asked", "stored"), ("asked", None)]


def test_stored_questions_go_with_the_last_record_of_a_hit(place: str) -> None:
    now = START
    clock: Callable[[], float] = lambda: now  # noqa: E731
    journal = open_stored_journal(place, JournalSettings(retention=2 * DAY), clock)
    for day, entry in ((0, ENTRY), (0, "imported"), (3, ENTRY)):
        journal.add(matched(f"asked on day {day}", f"stored as {entry}", f"{day}", entry, arrived=START + day * DAY))
    journal.flush()
    now += 3.9 * DAY
    prune(journal)
    assert questions(journal) == [("asked on day 3", f"stored as {ENTRY}")]
    with closing(journal.reader()) as reader:
        assert len(reader.rows("select text from prompts", [])) == 2
    now += 3 * DAY
    prune(journal)
    with closing(journal.reader()) as reader:
        assert reader.rows("select text from prompts", []) == []
    journal.close()


@pytest.mark.parametrize(
    ("earlier", "level", "reason"),
    [
        ({"system": "Be brief."}, 0.8, "shadow"),
        ({"system": "Be brief."}, 0.999, "low-probability"),
        ({"namespace": "b"}, 0.8, "shadow"),
    ],
    ids=["changed, accepted", "changed, scored", "of another namespace"],
)
def test_a_compared_neighbour_is_the_reason_and_the_change_a_column(
    tmp_path: Path, earlier: dict[str, str], level: float, reason: str
) -> None:
    """The same question with another beginning was asked before, as in a proxy that changes to shadow mode."""
    with proxy(tmp_path, checked(level), shadow=True) as (url, services, _):
        messages = [{"role": "system", "content": earlier["system"]}] if "system" in earlier else []
        body = {"model": "m", "messages": [*messages, {"role": "user", "content": CLOSE}]}
        headers = {"cache-control": "confirm", "x-kvproxy-namespace": earlier.get("namespace", "a")}
        httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
        for question in (QUESTION, CLOSE):
            ask(url, question, "confirm")
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        # A request is recorded after its response.
        until(lambda: len(journal.latest(9)) == 3)
        newest = httpx.get(f"{url}/admin/log").json()[0]
    assert (newest["question"], newest["reason"]) == (CLOSE, reason)
    assert newest["changed"]


def test_a_skipped_lookup_is_the_reason_of_a_miss_after_a_change(tmp_path: Path) -> None:
    with proxy(tmp_path, ThresholdPolicy(0.8, guards=()), lookup_timeout=0) as (url, services, _):
        # Without a stored question beside the passage, no lookup is needed.
        for question, year in ((QUESTION, 1492), (FAR, 1493), (QUESTION, 1493)):
            passage = f"The document {year} was signed after nine months of negotiations. " * 3
            ask(url, RAG_PROMPT.format(question, passage), "confirm")
        journal = services.journal
        assert isinstance(journal, StoredJournal)
        until(lambda: len(journal.latest(9)) == 3)
        changed, _, first = httpx.get(f"{url}/admin/log").json()
        metrics = httpx.get(f"{url}/metrics").text
    assert (first["reason"], first["changed"]) == ("miss-new", None)
    assert (changed["reason"], changed["changed"]) == ("skipped-timeout", "passages")
    assert changed["against"] == first["prompt"]
    assert 'kvproxy_semantic_lookups_total{outcome="skipped"} 1.0' in metrics
