"""A data folder of an earlier version keeps working: its settings, clients, responses, journal, and sessions.

`earlier-data.tar.gz` was made at commit a489b87f by a proxy with `routing.name = "team"` and two clients.
"""

import json
import tarfile
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.servers import run_proxy

MADE = 1795922640.0
KEYS = {
    "ann": "kvp-y3k6gG_fubDl7Xe89kUOWZ5uIREJWeMUpN2q2vwPrag",
    "bob": "kvp-cs3KCjpc_qA0DBw_ABEoajaaLcOG27TC1_OmPu8n4jo",
}
SYSTEM = {"role": "system", "content": "You are the help desk."}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).parent / "earlier-data.tar.gz") as archive:
        # Python 3.11.2 has neither the filter nor the argument.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    return tmp_path


def test_commands_read_its_settings_and_responses(data: Path) -> None:
    settings = load_settings(data=data)
    assert [rule.name for rule in settings.rules] == ["handbook", "private"]
    assert (settings.journal.currency, settings.cache.policy, settings.routing.name) == ("EUR", "checked", "team")
    listed = result("cache", "ls", "--data", data)
    assert sum(row["hits"] for row in listed) == 7
    assert [row["prompt"] for row in listed if row["pinned"]] == ["What is a block?"]
    assert [row["prompt"] for row in listed if "docs" in row["tags"]] == ["Which plans exist?"]
    assert result("cache", "show", listed[0]["id"], "--data", data)["response"]


def test_a_proxy_serves_its_responses_and_continues_its_journal(data: Path) -> None:
    with (
        run_plain_upstream() as upstream,
        # The verifier of the policy `checked` would take a second to load.
        run_proxy(load_settings(data=data, upstream=upstream, cache={"policy": "threshold"}), clock=lambda: MADE) as (
            url,
            _,
        ),
    ):

        def send(path: str, body: dict[str, object], client: str = "ann") -> httpx.Response:
            headers = {"authorization": f"Bearer {KEYS[client]}"}
            return httpx.post(f"{url}{path}", json={"model": "plain"} | body, headers=headers, timeout=300)

        def chat(question: str, client: str = "ann", **more: object) -> httpx.Response:
            messages = [SYSTEM, {"role": "user", "content": question}]
            return send("/v1/chat/completions", {"messages": messages, **more}, client)

        hits = [
            chat("How do I reset my password?"),
            chat("What is a block?", stream=True),
            chat("Delete an account", "bob"),
            send("/v1/messages", {"max_tokens": 50, "messages": [{"role": "user", "content": "How do I reset it?"}]}),
            send("/v1/embeddings", {"input": "A text"}),
        ]
        assert [hit.status_code for hit in hits] == [200] * 5
        assert all("; hit" in hit.headers["cache-status"] for hit in hits)
        assert hits[0].json()["choices"][0]["message"]["content"] == "Open the settings and choose Reset."
        assert "[DONE]" in hits[1].text
        # Clients are tenants, and keys are required.
        assert "; hit" not in chat("What is a block?", "bob").headers["cache-status"]
        assert httpx.post(f"{url}/v1/embeddings", json={"model": "plain", "input": "A text"}).status_code == 401
        assert "fwd=uri-miss" in chat("A new question").headers["cache-status"]
        until(lambda: "; hit" in chat("A new question").headers["cache-status"])
        admin = {"authorization": "Bearer operator-of-the-fixture"}
        assert httpx.get(f"{url}/admin/cache/stats", headers=admin).json()["hits"] >= 11
    # The proxy has added the columns of this version.
    records = [json.loads(line) for line in kvproxy("log", "--data", data, "--limit", 0, "--json").stdout.splitlines()]
    assert {record["client"] for record in records} == {"ann", "bob", None}
    assert [record["status"] for record in records].count(500) == 1
    assert {"exact", "semantic", "forward"} <= {record["layer"] for record in records}
    savings = result("savings", "--data", data)
    assert next(row for row in savings["rows"] if row["name"] == "exact")["requests"] == 12
    assert max(session["turns"] for session in result("sessions", "--data", data)) == 4
    of_ann = [record for record in records if record["client"] == "ann"]
    clients = {client["name"]: client for client in result("keys", "ls", "--since", "2026-01-01", "--data", data)}
    # Its records name no team.
    assert (clients["ann"]["requests"], {record["team"] for record in records}) == (len(of_ann), {None})
    (row,) = result("savings", "--by", "team", "--data", data)["rows"]
    assert (row["name"], row["requests"]) == ("", sum(saving["requests"] for saving in savings["rows"]))
    assert (clients["ann"]["requests_per_minute"], clients["bob"]["stored_bytes"]) == (600, 2**20)
