"""Tags, provenance, limits and invalidation as a client and an administrator see them."""

from pathlib import Path

import httpx
import pytest

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.servers import run_proxy, until_stored
from tests.statuses import makes_entry

Demo = tuple[str, Services]


def ask(url: str, question: str, tags: str = "", **headers: str) -> httpx.Response:
    body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": question}]}
    given = headers | ({"x-kvproxy-tags": tags} if tags else {})
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=given, timeout=60)


def test_an_entry_says_where_it_came_from(demo: Demo) -> None:
    url, services = demo
    answer = ask(url, "Where do entries come from?", "docs, v1 ,docs", **{"x-request-id": "request-7"})
    assert makes_entry(answer.headers["cache-status"])
    (listed,) = httpx.get(f"{url}/admin/cache", params={"search": "entries come from"}).json()
    shown = httpx.get(f"{url}/admin/cache/{listed['id'][:10]}").json()
    assert shown["tags"] == ["docs", "v1"]
    assert (shown["tenant"], shown["backend"]) == ("public", services.answerer.backend.name)
    assert shown["request_id"] == "request-7"
    assert shown["created"] > 1e9


def test_what_shares_a_tag_goes_together(demo: Demo) -> None:
    url, _ = demo
    for number in range(4):
        ask(url, f"Which tag has number {number}?", "even,x" if number % 2 == 0 else "odd")
    assert len(httpx.get(f"{url}/admin/cache", params={"tag": "even"}).json()) == 2
    stats = httpx.get(f"{url}/admin/cache/stats").json()
    assert stats["tags"]["even"] == 2
    assert httpx.delete(f"{url}/admin/cache", params={"tag": "even"}).json() == {"removed": 2}
    assert httpx.delete(f"{url}/admin/cache", params={"tag": "even"}).json() == {"removed": 0}
    assert "hit" not in ask(url, "Which tag has number 2?").headers["cache-status"]
    assert "hit" in ask(url, "Which tag has number 1?").headers["cache-status"]
    removed = httpx.delete(f"{url}/admin/cache", params={"prompt": "Which tag has"}).json()
    assert removed == {"removed": 3}


@pytest.mark.parametrize("tags", [",".join(map(str, range(17))), "x" * 129])
def test_wrong_tags_are_refused_before_anything_is_computed(demo: Demo, tags: str) -> None:
    answer = ask(demo[0], "Is this computed?", tags)
    assert answer.status_code == 400
    assert "x-kvproxy-tags takes up to 16 tags" in answer.json()["error"]["message"]


def test_tenants_share_responses_only_on_purpose(demo: Demo, tmp_path: Path) -> None:
    def second(url: str) -> str:
        ask(url, "Is this answer shared?", authorization="Bearer one")
        return ask(url, "Is this answer shared?", authorization="Bearer two").headers["cache-status"]

    assert "hit" not in second(demo[0])
    settings = load_settings(data=tmp_path, engine={"num_blocks": 128}, cache={"shared": True, "semantic": False})
    with run_proxy(settings) as (url, services):
        assert 'hit; ttl=86400; detail="exact"' in second(url).replace("ttl=86399", "ttl=86400")
        until_stored(services)
        (entry,) = services.answerer.store.list_entries()
        assert entry.tenant != "public"
