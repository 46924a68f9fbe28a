"""Two proxy processes on one PostgreSQL store: a change by one applies to the next request of the other."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.commands.run import command
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.postgres_server import empty
from tests.processes import Serving, serve

QUESTION = "How do I open a port in the firewall?"
REWORDED = "How can I open a port in the firewall?"


@pytest.fixture(scope="module")
def two(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Serving]]:
    empty(postgres)
    with run_plain_upstream() as upstream, ExitStack() as stack:
        found = []
        for name in "ab":
            data, port = tmp_path_factory.mktemp(name), free_port()
            options = ["--upstream", upstream, "--store", postgres, "--data", data, "--port", port]
            started = serve(command("serve", *options), port, data / "log", timeout=240)
            found.append(stack.enter_context(started))
        yield found


def ask(url: str, question: str, system: str, **headers: str) -> str:
    """Ask with `Cache-Control: confirm`, so that the other proxy finds the response."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    named = {"cache-control": "confirm"} | {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.post(
        f"{url}/v1/chat/completions", json={"model": "m", "messages": messages}, headers=named, timeout=60
    )
    assert answer.status_code == 200
    return answer.headers["cache-status"]


def test_a_stored_response_is_at_once_a_semantic_hit_of_another_proxy(two: list[Serving]) -> None:
    one, other = (proxy.url for proxy in two)
    assert "stored" in ask(one, QUESTION, "stores")
    assert "semantic similarity=" in ask(other, REWORDED, "stores")
    assert "semantic" not in ask(other, REWORDED, "stores elsewhere", cache_control="no-store")


def test_feedback_applies_to_all_proxies(two: list[Serving]) -> None:
    one, other = (proxy.url for proxy in two)
    ask(one, QUESTION, "rejects", x_kvproxy_tags="rejects")
    (entry,) = httpx.get(f"{other}/admin/cache", params={"tag": "rejects"}).json()
    feedback = f"{other}/admin/cache/{entry['id']}/feedback"
    for right, expected in ((False, False), (True, True)):
        assert httpx.post(feedback, json={"right": right}).status_code == 200
        for url in (one, other):
            assert ("semantic" in ask(url, REWORDED, "rejects", cache_control="no-store")) == expected
            assert 'detail="exact"' in ask(url, QUESTION, "rejects")


def test_expiry_removal_and_import_apply_to_all_proxies(two: list[Serving]) -> None:
    one, other = (proxy.url for proxy in two)
    ask(one, QUESTION, "lifetime", x_kvproxy_ttl="5")
    assert "semantic" in ask(other, REWORDED, "lifetime")
    ends = time.monotonic() + 5.1
    ask(one, QUESTION, "removal", x_kvproxy_tags="removal")
    kept = [line for line in httpx.get(f"{other}/admin/cache/export").text.splitlines() if '"removal"' in line]
    assert httpx.delete(f"{other}/admin/cache", params={"tag": "removal"}).json() == {"removed": 1}
    assert "fwd=" in ask(one, REWORDED, "removal", cache_control="no-store")
    assert httpx.post(f"{one}/admin/cache/import", content=kept[0]).json()["imported"] == 1
    assert "semantic" in ask(other, REWORDED, "removal")
    time.sleep(max(0.0, ends - time.monotonic()))
    assert "fwd=" in ask(other, REWORDED, "lifetime", cache_control="no-store")


def test_another_proxy_serves_what_a_killed_one_acknowledged(two: list[Serving]) -> None:
    one, other = (proxy.url for proxy in two)
    for number in range(5):
        assert "stored" in ask(one, QUESTION, f"killed {number}")
    two[0].process.kill()
    two[0].process.wait()
    for number in range(5):
        assert 'detail="exact"' in ask(other, QUESTION, f"killed {number}")
        assert "semantic" in ask(other, REWORDED, f"killed {number}")
