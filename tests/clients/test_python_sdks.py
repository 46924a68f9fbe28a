"""The Python SDKs behave the same without kvproxy, through it, and with its cache; see `make test-clients` for more clients."""

from importlib import import_module
from pathlib import Path

import pytest

from kvproxy.settings import load_settings
from tests.clients.recorded_proxy import forwarded_pairs, run_recorded_proxy, without_requested_usage
from tests.clients.scripted_upstream import ScriptedUpstream
from tests.servers import until_stored

# Requests of the second run that are forwarded: those with ids that live at the provider, and routes without a cache.
FORWARDED = {
    "openai_sdk": ["GET models", *["POST responses"] * 2, "GET responses", *["DELETE responses"] * 2],
    "anthropic_sdk": ["POST messages/count_tokens", *["POST messages"] * 2],
    "langchain_sdk": [],
}


@pytest.mark.parametrize("name", list(FORWARDED))
def test_an_sdk_gets_the_same_results_directly_and_from_the_cache(name: str, tmp_path: Path) -> None:
    note, upstream = tmp_path / "note.txt", ScriptedUpstream()
    note.write_text("The word is marzipan.\n")

    def steps(url: str) -> list[tuple[str, object]]:
        return list(import_module(f"tests.clients.scripts.{name}").run(url, str(note)))

    with upstream.run() as target:
        settings = load_settings(data=tmp_path / "data", upstream=target, cache={"semantic": False})
        with run_recorded_proxy(settings) as (url, services, exchanges):
            direct = steps(target)
            upstream.exchanges.clear()
            assert steps(url) == direct
            until_stored(services)
            count = len(exchanges)
            assert steps(url) == direct
    assert upstream.errors == []
    pairs = list(forwarded_pairs(exchanges, upstream.exchanges))
    for client, forwarded in pairs:
        assert (client.method, client.path, client.status) == (forwarded.method, forwarded.path, forwarded.status)
        assert (client.body, client.content) == without_requested_usage(client, forwarded)
    second = exchanges[count:]
    seen = [each for each, _ in pairs if each in second]
    assert [f"{each.method} {_route(each.path)}" for each in seen] == FORWARDED[name]
    assert len(second) - len(seen) == sum("kvproxy; hit" in each.response_headers["cache-status"] for each in second)


def _route(path: str) -> str:
    """Return a route without `/v1/`, query, and id of a response."""
    route = path.partition("?")[0].removeprefix("/v1/")
    return "responses" if route.startswith("responses/") else route
