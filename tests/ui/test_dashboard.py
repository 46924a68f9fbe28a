"""The dashboard in a real browser: it shows the data of the admin API, and its buttons work."""

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from kvproxy.commands.formatting import amount_text
from kvproxy.http.services import Services
from kvproxy.index.store import EntryFilter, NewEntry, WriteResult
from tests.commands.upstream import proxied, said
from tests.ui.conftest import HOSTILE, ask
from tests.ui.page import Page

pytestmark = pytest.mark.usefixtures("calm")


def figure(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_overview_says_that_tokens_of_hits_are_unknown(page: Page, url: str) -> None:
    page.open(url)
    script = (
        "const done = arguments[0]; import('./savings.js').then(({priceNote, tokensNote}) =>"
        " done([0, 3].map((unreported_hits) => [tokensNote, priceNote].map((note) => note({unreported_hits})))))"
    )
    assert page.driver.execute_async_script(script) == [
        ["by hits, since the journal began", "at model prices"],
        ["by hits with reported tokens", "of reported tokens, at model prices"],
    ]


def test_the_overview_counts_what_the_journal_counts(page: Page, url: str) -> None:
    page.open(url, "overview?since=3600")
    groups = {"forward": ("forward", "bypass"), "refused": ("refused", "disconnected")}
    counts = httpx.get(f"{url}/admin/log/series?since=3600&step=60").json()["counts"]
    wanted = {
        group: sum(sum(counts.get(layer, [])) for layer in groups.get(group, (group,)))
        for group in ("exact", "semantic", "shared", "prefix", "plugin", "forward", "refused", "error")
    }
    assert wanted["exact"]
    assert wanted["semantic"]
    assert wanted["refused"]
    page.until(lambda: figure(page.text("[data-figure=requests]")) == sum(wanted.values()))
    page.until(lambda: {group: figure(page.text(f"[data-layer={group}]")) for group in wanted} == wanted)
    total = httpx.get(f"{url}/admin/savings").json()["total"]
    # Savings by hits are separate from the reuse of the backend's own prefix cache.
    page.until(lambda: page.text("[data-figure=money]") == f"{amount_text(total['hit_money'])} USD")
    assert page.text("[data-figure=money] + small").startswith("at most, at model prices")
    page.until(lambda: figure(page.text("[data-figure=tokens]")) == total["prompt_tokens"] + total["completion_tokens"])
    page.until(lambda: figure(page.text("[data-figure=prefix]")) == total["reused_tokens"])
    entries = httpx.get(f"{url}/admin/cache/stats").json()["entries"]
    page.until(lambda: figure(page.text("[data-figure=entries]")) == entries)
    # The reasons are of the same period.
    by_reason = httpx.get(f"{url}/admin/log/series?since=3600&step=60&by=reason").json()["counts"]
    reasons = {name: sum(each) for name, each in by_reason.items()}

    def shown() -> dict[str, int]:
        counts = map(figure, page.texts(".bars li a ~ .number:nth-child(3)"))
        return dict(zip(page.texts(".bars li a"), counts, strict=True))

    page.until(lambda: shown() == reasons)
    # The keyboard selects each bar of the chart. A period with an end does not move meanwhile.
    page.open(url, f"overview?since=3600&until={math.ceil(time.time())}")
    canvas = page.find(".chart:has(canvas)")
    canvas.send_keys("\ue011")
    while "exact" not in (told := str(canvas.get_attribute("aria-valuetext"))):
        canvas.send_keys("\ue014")
        page.until(lambda told=told: canvas.get_attribute("aria-valuetext") != told)


def test_the_journal_follows_filters_and_tells_a_story(page: Page, url: str) -> None:
    page.open(url, "journal")
    rows = ".grid .row[id]"
    every = httpx.get(f"{url}/admin/log").json()
    page.until(lambda: page.texts(f"{rows} > :nth-child(3)") == [each["reason"] for each in every])
    # A new request comes by itself.
    ask(url, "carol", "Is this seen at once?")
    page.until(lambda: page.texts(f"{rows} > :last-child")[0] == "Is this seen at once?")
    # A paused journal waits.
    page.run("document.activeElement.blur()")
    page.press("p")
    before = page.texts(f"{rows} > :last-child")
    ask(url, "carol", "While it is paused")
    page.until(lambda: "1 new" in page.text("[aria-pressed=true][aria-keyshortcuts=p]"))
    assert page.texts(f"{rows} > :last-child") == before
    page.press("p")
    page.until(lambda: page.texts(f"{rows} > :last-child")[0] == "While it is paused")
    page.click("select")
    page.run("const s = document.querySelector('select'); s.value = 'semantic'; s.dispatchEvent(new Event('change'))")
    page.until(lambda: set(page.texts(f"{rows} > :nth-child(2)")) == {"semantic"})
    page.run("const s = document.querySelector('select'); s.value = ''; s.dispatchEvent(new Event('change'))")
    page.find("input.first").send_keys("veto-")
    wanted = httpx.get(f"{url}/admin/log?reason=veto-").json()
    assert [each["guard"] for each in wanted] == ["numbers"]
    page.until(lambda: page.texts(f"{rows} > :nth-child(3)") == ["veto-numbers"])
    page.click(rows)
    page.until(lambda: "The guard numbers vetoed" in page.text(".beside .sentences"))
    assert wanted[0]["request_id"] in page.text(".beside")
    assert page.texts(".beside .said") == [wanted[0]["question"], wanted[0]["stored_question"]]
    # The address keeps it: it can be sent to somebody else.
    shared = page.driver.current_url
    page.close()
    page.driver.get(shared)
    page.until(lambda: "The guard numbers vetoed" in page.text(".beside .sentences"))
    page.until(lambda: page.texts(f"{rows} > :nth-child(3)") == ["veto-numbers"])


def test_a_question_appears_when_its_response_is_committed(
    page: Page, url: str, running: tuple[str, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    services = running[1]
    go, put = threading.Event(), services.cache.store.put_many

    def late(entries: Sequence[NewEntry]) -> WriteResult:
        assert go.wait(300)
        return put(entries)

    monkeypatch.setattr(services.cache.store, "put_many", late)
    page.open(url, "journal")
    rows = ".grid .row[id] > :last-child"
    page.until(lambda: page.texts(rows))
    count = page.find("[aria-rowcount]").get_attribute("aria-rowcount")
    ask(url, "dora", "Is it committed late?")
    page.until(lambda: page.find("[aria-rowcount]").get_attribute("aria-rowcount") != count)
    page.until(lambda: page.texts(rows)[0] == "–")
    go.set()
    page.until(lambda: page.texts(rows)[0] == "Is it committed late?")


def test_the_pool_is_shown_as_it_is(page: Page, url: str) -> None:
    page.open(url, "pool")
    page.until(lambda: "prompt tokens whose reuse it reported." in page.text("main"))
    rows = httpx.get(f"{url}/admin/blocks").json()
    states = [row["state"] for row in rows]
    for state in ("cached", "free", "null"):
        page.until(lambda state=state: figure(page.text(f"[data-state={state}] .number")) == states.count(state))
    page.until(lambda: page.all("canvas.map"))
    page.hover(page.find(".mapbox"), 9 + 18, 9)
    block = httpx.get(f"{url}/admin/blocks/1").json()
    page.until(lambda: block["hash"][:12] in page.text(".panes .hint"))
    page.until(lambda: block["text"].strip()[:20] in page.text(".panes .hint"))
    page.click("button", "tenant")
    page.until(lambda: any(count.startswith("none") for count in page.texts(".legend li")))
    pool = httpx.get(f"{url}/admin/blocks/map").json()
    counts = {name: pool["tenant"].count(place) for place, name in enumerate(pool["tenants"])}
    shown = {f"{name}{count}" for name, count in counts.items() if count} | {f"none{pool['tenant'].count(-1)}"}
    assert len(shown) >= 3
    page.until(lambda: {text.replace(",", "") for text in page.texts(".legend li")} == shown)
    page.click("button", "Eviction order")
    queue = httpx.get(f"{url}/admin/blocks/queue").json()

    def follows_the_queue() -> bool:
        order = [figure(text) for text in page.texts(".panes .grid .row[id] > :nth-child(2)")]
        return bool(order) and order == [row["id"] for row in queue[: len(order)]]

    page.until(follows_the_queue)
    page.until(lambda: page.find(".panes .grid").get_attribute("aria-rowcount") == str(len(queue) + 1))


def test_chains_unfold_by_the_keys(page: Page, url: str) -> None:
    page.open(url, "pool?part=chains")
    branches = httpx.get(f"{url}/admin/blocks/tree").json()
    texts = [each["text"].split() for each in branches]
    page.until(lambda: [text.split() for text in page.texts(".branch .text")] == texts)
    place = next(place for place, each in enumerate(branches) if each["below"])
    first = branches[place]
    page.find(".tree").send_keys("\ue015" * place + "\ue007")
    whole = "".join(httpx.get(f"{url}/admin/blocks/{name}").json()["text"] for name in first["names"])
    page.until(lambda: page.text(".beside blockquote").split() == whole.split())
    page.press("\ue014")
    ways = httpx.get(f"{url}/admin/blocks/tree", params={"parent": first["end"]}).json()
    page.until(lambda: len(page.texts("[aria-level='2']")) == len(ways))
    page.until(lambda: page.all("[aria-level='1'][aria-expanded=true]"))


def card(page: Page, words: str) -> str:
    """Selects the match whose questions hold some words."""
    page.until(lambda: any(words in text for text in page.texts(".match")))
    script = (
        "return [...document.querySelectorAll('.match')].find(n => n.textContent.includes(arguments[0])).dataset.number"
    )
    return f".match[data-number='{page.run(script, words)}']"


def test_matches_can_be_judged_pinned_and_removed(page: Page, url: str, store) -> None:  # type: ignore[no-untyped-def]
    served = next(each for each in httpx.get(f"{url}/admin/log?judged=true").json() if each["layer"] == "semantic")
    page.open(url, "matches")
    match = card(page, "How can I reset my password?")
    assert page.texts(f"{match} .said") == ["How can I reset my password?", "How do I reset my password?"]
    scores = page.texts(f"{match} .scores dd")
    assert scores[0] == f"{served['similarity']:.3f}"
    assert scores[-1] == "served"
    # A rejected answer serves no similar question any more; an approved one does again.
    page.click(f"{match} button", "Reject")
    page.until(lambda: "Rejected" in page.text(f"{match} .note[role=status]"))
    assert 'detail="semantic' not in ask(url, "alice", "How could I reset my password?").headers["cache-status"]
    page.click(f"{match} button", "Approve")
    page.until(lambda: "Approved" in page.text(f"{match} .note[role=status]"))
    page.click(f"{match} button", "Pin")
    page.until(lambda: "Pinned" in page.text(f"{match} .note[role=status]"))
    assert store.pinned_ids() == [served["near"]]
    page.click(f"{match} button", "Remove")
    assert store.get(served["near"]) is not None
    page.click(f"{match} button", "Really remove?")
    page.until(lambda: "Removed" in page.text(f"{match} .note[role=status]"))
    assert store.get(served["near"]) is None


def test_stored_responses_are_searched_opened_and_removed(page: Page, url: str, store) -> None:  # type: ignore[no-untyped-def]
    ask(url, "dora", "Shall this be dropped?")
    # The admin route waits for the response above.
    entries = httpx.get(f"{url}/admin/cache/stats").json()["entries"]
    page.open(url, "stored")
    page.until(lambda: f"{entries} responses" in page.text(".filters"))
    page.find("input.first").send_keys("dropped?")
    page.until(lambda: page.texts(".grid .row[id] > :last-child") == ["Shall this be dropped?"])
    page.click(".grid .row[id]")
    page.click(".beside button", "Remove")
    page.until(lambda: "Removed." in page.text(".beside [role=status]"))
    assert store.ids(EntryFilter(search="dropped?")) == []
    page.until(lambda: not page.texts(".grid .row[id]"))


def test_stored_responses_say_why_they_are_kept_and_whose_they_are(page: Page, url: str) -> None:
    ask(url, "dora", "Shall this be kept?")
    (entry,) = httpx.get(f"{url}/admin/cache?search=Shall this be kept?").json()
    page.open(url, f"stored?id={entry['id']}")
    kept = ".beside [data-figure=kept]"
    page.until(lambda: "as long as it saves more" in page.text(kept))
    page.click(".beside button", "Pin")
    page.until(lambda: "pinned" in page.text(kept))
    page.until(lambda: page.texts(".grid .row[id] > :nth-child(5)")[0] == "pinned")
    assert set(page.texts(".grid .row[id] > :nth-child(5)")[1:]) == {"–"}
    page.open(url, f"stored?id={entry['id']}")
    page.until(lambda: "pinned" in page.text(kept))

    page.click("button", "Next to go")
    queue = httpx.get(f"{url}/admin/cache/queue").json()
    assert [each["reason"] for each in queue][-2:] == ["low priority", "pinned"]
    page.until(lambda: page.texts(".grid .row[id] > :nth-child(2)") == [each["reason"] for each in queue])
    page.click(".beside button", "Unpin")
    page.until(lambda: set(page.texts(".grid .row[id] > :nth-child(2)")) == {"low priority"})

    stats = httpx.get(f"{url}/admin/cache/stats").json()
    page.until(lambda: page.text("[data-figure=responses]") == f"{stats['entries']:,}")
    page.click("button", "Whose")
    usage = httpx.get(f"{url}/admin/cache/usage?by=tenant").json()
    cells = "return [...document.querySelectorAll('main tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    wanted = [[each["name"], f"{each['entries']:,}", f"{each['hits']:,}"] for each in usage]
    page.until(lambda: [[name, entries, hits] for name, entries, _, hits in page.run(cells)] == wanted)


def test_hostile_text_stays_text(page: Page, url: str) -> None:
    page.open(url, "pool?part=chains")
    branches = httpx.get(f"{url}/admin/blocks/tree").json()
    page.until(lambda: len(page.all(".branch")) == len(branches))
    for node, branch in zip(page.all(".branch"), branches, strict=True):
        node.click()
        page.until(lambda branch=branch: len(page.all(".beside blockquote span")) == len(branch["names"]))
        if "onerror" in page.text(".beside blockquote"):
            break
    page.until(lambda: "<img src=x" in page.text(".beside blockquote"))
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    number = next(each["number"] for each in httpx.get(f"{url}/admin/log").json() if each["question"] == HOSTILE)
    for view, place in [
        (f"journal?request={number}", ".beside blockquote"),
        ("stored?search=onerror", ".grid .row[id] > :last-child"),
    ]:
        page.open(url, view)
        page.until(lambda place=place: any(HOSTILE in text for text in page.texts(place)))
        assert page.run("return document.querySelectorAll('main img, main script').length") == 0
        assert "taken" not in page.driver.title
    # Were a text ever taken for HTML, nothing of it would run.
    script = "try { document.body.innerHTML = arguments[0]; return 'taken' } catch (error) { return error.name }"
    assert page.run(script, HOSTILE) == "TypeError"
    page.driver.get_log("browser")


def test_money_without_unpriced_models_is_marked(page: Page, tmp_path: Path) -> None:
    with proxied(tmp_path, journal={"prices": {"m": {"input": 2.5, "output": 10.0}}}) as url:
        first, answer = said("a"), {"role": "assistant", "content": "a"}
        second = said("b", model="free") | {"messages": [*first["messages"], answer, *said("b")["messages"]]}
        for body in (first, first, second, second):
            httpx.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm"}).raise_for_status()
        page.open(url)
        page.until(lambda: page.text("[data-figure=money] + small") == "models with a price")
        page.open(url, "sessions")
        page.until(lambda: [cost for cost in page.texts("tbody tr > :nth-child(10)") if cost.endswith(" (priced)")])


def test_the_overview_names_what_to_change_first(page: Page, tmp_path: Path) -> None:
    with proxied(tmp_path, journal={"prices": {"m": {"input": 2.5, "cached": 0.25, "output": 10.0}}}) as url:
        for minute in ("12:00", "12:01"):
            system = {"role": "system", "content": f"It is {minute}."}
            body = {"model": "m", "messages": [system, {"role": "user", "content": "Which rules apply? " * 200}]}
            httpx.post(f"{url}/v1/chat/completions", json=body, headers={"x-session-id": "s"}).raise_for_status()
        page.until(lambda: httpx.get(f"{url}/admin/savings/advice").json()["rows"])
        (advice,) = httpx.get(f"{url}/admin/savings/advice").json()["rows"]
        page.open(url)
        cells = "[aria-label='What to change first'] tbody td"
        page.until(lambda: page.texts(cells)[:1] == [advice["cause"]])
        assert figure(page.texts(cells)[5]) == advice["tokens"]


def test_sessions_show_their_turns(page: Page, url: str) -> None:
    messages = [{"role": "user", "content": "How large is a block of this pool?"}]
    for question in ("And how many are there?", "Which are free?"):
        body = {"model": "demo", "temperature": 0, "max_tokens": 4, "messages": messages}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).json()["choices"][0]["message"]
        messages = [*messages, answer, {"role": "user", "content": question}]
    page.open(url, "sessions")
    page.until(lambda: any(row.split()[-1] == "2" for row in page.texts("tbody tr > :nth-child(4)")))
    (session,) = [each for each in httpx.get(f"{url}/admin/sessions?turns=2").json() if each["tenant"] == "public"]
    page.click("tbody button", str(session["id"]))
    page.until(lambda: page.text("main h2 ~ dl") and len(page.texts("[aria-label=Turns] tbody tr")) == 2)
    turns = httpx.get(f"{url}/admin/sessions/{session['id']}").json()
    reused = [str(row["turn"]["reused_tokens"]) for row in turns]
    page.until(lambda: page.texts("[aria-label=Turns] tbody tr > :nth-child(5)") == reused)
    assert f"session={session['id']}" in page.driver.current_url
    with page.wide(390):
        page.until(
            lambda: page.run("const n = document.querySelector('.cards'); return n.scrollWidth <= n.clientWidth")
        )
        (cost,) = page.all(".cards td[data-title=cost]")
        assert 0 <= cost.location["x"] <= 390 - cost.size["width"]
    # Requests with one turn are sessions, too, which the filter leaves out at first.
    page.run("const s = document.querySelector('select'); s.value = '1'; s.dispatchEvent(new Event('change'))")
    count = len(httpx.get(f"{url}/admin/sessions").json())
    page.until(lambda: len(page.texts("[aria-label='List of sessions'] tbody tr")) == count)
    page.find("input.first").send_keys("public")
    page.until(lambda: set(page.texts("[aria-label='List of sessions'] td:nth-child(2)")) == {"public"})
