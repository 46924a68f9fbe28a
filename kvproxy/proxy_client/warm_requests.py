import contextlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.offline.request_log import LineError, read_log
from kvproxy.proxy_client.api_paths import PATHS, ApiName, credential_headers
from kvproxy.proxy_client.cache import RemoteCache
from kvproxy.proxy_client.client import ProxyClient
from kvproxy.proxy_client.journal import DirectJournal, open_journal
from kvproxy.units import plural

UNCACHEABLE = "a temperature above 0 (cache.sampled_requests), state, or a rule excludes hits; --prefix-only sends them"


@dataclass(slots=True)
class WarmRequest:
    """A request to send.

    Attributes:
        line: number of the first line with this request in a file, or its rank in a cache or a journal, from 1.
        count: number of equal requests in a file or a journal, or of hits on the stored response.
    """

    line: int
    path: str
    body: dict[str, Any]
    count: int = 1


@dataclass(slots=True)
class WarmSource:
    """The requests read from a file, a cache, or a journal.

    Attributes:
        requests: distinct requests, the most frequent first.
        skipped: number of lines without a request, stored responses of other tenants, or prompts whose text is not stored.
        first_record, plain_lines: see `RequestLog`.
        uncacheable: number of prompts that are ignored because no stored response may answer them.
    """

    requests: list[WarmRequest] = field(default_factory=list)
    skipped: int = 0
    errors: list[LineError] = field(default_factory=list)
    first_record: int | None = None
    plain_lines: list[int] = field(default_factory=list)
    uncacheable: int = 0


def read_requests(file: Path, text: str, model: str, system: str | None) -> WarmSource:
    """Read the distinct requests of a file. Raises InvalidRequest if it has no request."""
    log = read_log(file, text, model, system)
    requests = [WarmRequest(each.line, each.api.path, each.body) for each in log.requests]
    return WarmSource(distinct_requests(requests), log.skipped, log.errors, log.first_record, log.plain_lines)


def distinct_requests(requests: list[WarmRequest]) -> list[WarmRequest]:
    distinct: dict[str, WarmRequest] = {}
    for request in requests:
        first = distinct.setdefault(json.dumps([request.path, request.body], sort_keys=True), replace(request, count=0))
        first.count += 1
    return sorted(distinct.values(), key=lambda request: (-request.count, request.line))


def stored_requests(
    client: ProxyClient, max_requests: int | None, api_key: str | None, *, same_proxy: bool
) -> WarmSource:
    """Return the requests whose stored responses had hits, the most saved tokens first. Raises NotFound if no response had one.

    Args:
        api_key: client's key with which the requests will be sent.
        same_proxy: `client` is also the proxy to warm, so requests of other tenants are omitted.
    """
    cache = RemoteCache(client)
    entries, _ = cache.entries({}, limit=0)
    served = [entry for entry in entries if entry["hits"] and entry["endpoint"] in PATHS]
    own = served
    if same_proxy:
        tenants = _tenants(client, {entry["endpoint"]: str(entry["model"]) for entry in served}, api_key)
        own = [entry for entry in served if entry["tenant"] == tenants[entry["endpoint"]]]
    if not own:
        others = f"; {plural(len(served), 'response')} of other tenants had one: give their key with --api-key"
        raise NotFound(f"no stored response of {client.url} had a hit{others if served else ''}")
    own.sort(key=lambda entry: entry["hits"] * (entry["prompt_tokens"] + entry["completion_tokens"] + 1), reverse=True)
    requests = []
    for rank, entry in enumerate(own[:max_requests], 1):
        body = cache.entry(entry["id"])["request"] | {"stream": False}
        requests.append(WarmRequest(rank, PATHS[entry["endpoint"]], body, entry["hits"]))
    return WarmSource(requests, skipped=len(served) - len(own))


def logged_requests(
    client: ProxyClient,
    admin_token: str | None,
    data: Path | None,
    max_requests: int | None,
    api_key: str | None,
    *,
    prefix_only: bool,
) -> WarmSource:
    """Return the requests of the journal whose text is stored, the most frequent first.

    Args:
        data: data folder of the proxy; None for the folder that the proxy reports.
        api_key: client's key, which determines the tenant; requests of other tenants are omitted.
        prefix_only: also return requests that no response cache may answer.

    Raises:
        InvalidRequest: the journal is on another machine.
        NotFound: the journal has no request of the tenant with a stored text.
    """
    journal = open_journal(client.url, admin_token, data)
    if not isinstance(journal, DirectJournal):
        raise InvalidRequest(
            f"warm --from-log needs the journal's file or database: run it on the machine of {client.url}, or give --data"
        )
    prompts = [(prompt, prompt.api) for prompt in journal.reader.prompt_counts() if prompt.api in PATHS]
    tenants = _tenants(client, {api: prompt.model for prompt, api in reversed(prompts)}, api_key)
    own = [prompt for prompt, api in prompts if prompt.tenant == tenants[api]]
    if not own:
        others = f"; {len(prompts)} of other tenants: give their key with --api-key" if prompts else ""
        raise NotFound(f"the journal has no successful request of this tenant{others}")
    source = WarmSource()
    if not prefix_only:
        sent = len(own)
        own = sorted((prompt for prompt in own if prompt.cacheable), key=lambda prompt: -prompt.cacheable)
        source.uncacheable = sent - len(own)
    with contextlib.closing(journal.bodies(own)) as bodies:
        for prompt, body in zip(own, bodies, strict=True):
            if body is None:
                source.skipped += 1
                continue
            path, rank = PATHS[cast("ApiName", prompt.api)], len(source.requests) + 1
            source.requests.append(WarmRequest(rank, path, body | {"stream": False}, prompt.requests))
            if rank == max_requests:
                break
    if not own:
        raise NotFound(f"the journal has no cacheable request: {UNCACHEABLE}")
    if not source.requests:
        raise NotFound(
            f"the journal has no text of {plural(len(own), 'prompt')}, and their responses are not stored:"
            ' the setting journal.text = "all" records the text of later requests'
        )
    return source


def prefix_only(requests: list[WarmRequest]) -> list[WarmRequest]:
    """Omit requests for embeddings, and limit the output to one token, so that only the prefix cache is filled."""
    limits = {PATHS["responses"]: "max_output_tokens"}
    return [
        WarmRequest(each.line, each.path, each.body | {limits.get(each.path, "max_tokens"): 1}, each.count)
        for each in requests
        if each.path != PATHS["embeddings"]
    ]


def _tenants(client: ProxyClient, models: dict[ApiName, str], api_key: str | None) -> dict[ApiName, str]:
    return {api: client.tenant(credential_headers(api, api_key), model) for api, model in models.items()}
