"""Reads requests from a file, a cache, or a journal, and sends them through a proxy to fill its caches."""

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, cast

import httpx

from kvproxy.analyse.request_log import LineError, read_log
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonMap, field, loads
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.apis.request_directives import NAMESPACE_HEADER
from kvproxy.errors import KvproxyError, NotFound, ProxyUnreachable
from kvproxy.journal.request_regions import Regions, digest_of_region
from kvproxy.operations.api_paths import API_NAMES, PATHS, credential_headers
from kvproxy.operations.blocks import list_pins, pin_prompt
from kvproxy.operations.blocks_parameters import NewPin
from kvproxy.operations.cache import list_responses, show_response
from kvproxy.operations.cache_parameters import EntryName, EntryPage
from kvproxy.operations.cache_results import ListedResponse
from kvproxy.operations.client import ProxyClient, response_error
from kvproxy.operations.journal import open_direct_journal
from kvproxy.operations.operation import NoParameters
from kvproxy.operations.proxy import store_answer
from kvproxy.units import plural
from kvproxy.upstreams.limited_fetch import tls_context

_ATTEMPTS = 5
_PREFIX = re.compile(r'detail="prefix (\d+)/(\d+)')
UNCACHEABLE = "a temperature above 0 (cache.sampled_requests), state, or a rule excludes hits; --prefix-only sends them"


@dataclass(slots=True)
class WarmRequest:
    """A request to send.

    Attributes:
        line: number of the request's first line in the file, or its rank in the cache or the journal, from 1.
        count: number of equal requests in the file or the journal, or of hits of the stored response.
        answer: text to store as the response; None if the server computes it.
    """

    line: int
    path: str
    body: dict[str, Any]
    count: int
    answer: str | None = None


@dataclass(slots=True)
class WarmSource:
    """The requests of a file, a cache, or a journal.

    Attributes:
        requests: distinct requests, the most frequent first.
        skipped: number of lines without a request, of responses of other tenants, or of prompts whose text is not stored.
        duplicates: number of lines of a file that equal an earlier line.
        omitted: number of requests beyond the maximum.
        notes: sentences for the user about what was skipped.
        format: name of the format of a file; None for another source.
    """

    requests: list[WarmRequest] = dataclass_field(default_factory=list)
    skipped: int = 0
    duplicates: int = 0
    omitted: int = 0
    errors: list[LineError] = dataclass_field(default_factory=list)
    notes: list[str] = dataclass_field(default_factory=list)
    format: str | None = None

    def skip(self, count: int, what: str, suffix: str = "") -> None:
        if count:
            self.skipped += count
            self.notes.append(f"skipped {plural(count, what)}{suffix}")


def read_file_requests(
    file: Path,
    text: str,
    model: str,
    system: str | None,
    *,
    format: str | None = None,
    column: str | None = None,
    answer_column: str | None = None,
) -> WarmSource:
    """Read the distinct requests in `text`, the content of `file`. Raises InvalidRequest if it has no request.

    Requests without a model get `model`, and plain prompts get the system prompt `system`. With `answer_column`, a second
    answer to a question is an error.
    """
    log = read_log(file, text, model, system, format=format, column=column, answer_column=answer_column)
    distinct: dict[str, WarmRequest] = {}
    other_answers = []
    for logged in log.requests:
        key = json.dumps([logged.api.path, logged.body], sort_keys=True)
        answer = None if answer_column is None else str(logged.response)
        request = distinct.setdefault(key, WarmRequest(logged.line, logged.api.path, logged.body, 0, answer))
        if request.answer == answer:
            request.count += 1
        else:
            other_answers.append(LineError(logged.line, f"another answer to the question of line {request.line}"))
    requests = sorted(distinct.values(), key=lambda request: (-request.count, request.line))
    duplicates = len(log.requests) - len(requests) - len(other_answers)
    errors = sorted([*log.errors, *other_answers], key=lambda error: error.line)
    source = WarmSource(requests, duplicates=duplicates, errors=errors)
    source.format = log.format
    source.skipped += log.num_skipped
    if log.skipped:
        source.notes.append(f"skipped {plural(log.num_skipped, 'row')} without a request: {log.describe_skipped()}")
    if log.ignored_fields:
        source.notes.append(
            f"not sent, because they are no fields of a request: {', '.join(sorted(log.ignored_fields))}"
        )
    return source


def stored_requests(client: ProxyClient, limit: int | None, api_key: str | None, *, same_proxy: bool) -> WarmSource:
    """Return the requests whose stored responses had hits, the most saved tokens first. Raises NotFound if no response had a hit.

    Args:
        api_key: client's key with which the requests will be sent.
        same_proxy: `client` is also the proxy to warm, so requests of other tenants are omitted.
    """
    api_of: dict[str, ApiName] = {name: name for name in PATHS}
    responses = client.perform(list_responses, EntryPage(limit=0)).rows
    served = [
        (api_of[response.endpoint], response) for response in responses if response.hits and response.endpoint in api_of
    ]
    own = served
    if same_proxy:
        tenants = _tenant_by_api(client, {api: response.model for api, response in served}, api_key)
        own = [(api, response) for api, response in served if response.tenant == tenants[api]]
    if not own:
        others = f"; {plural(len(served), 'response')} of other tenants had one: give their key with --api-key"
        hint = others if served else "; --from-log reads the journal instead"
        raise NotFound(f"no stored response of {client.url} had a hit since it was stored or refreshed{hint}")
    own.sort(key=lambda served: _saved_tokens(served[1]), reverse=True)
    requests = []
    for rank, (api, response) in enumerate(own[:limit], 1):
        body = client.perform(show_response, EntryName(response.id)).request | {"stream": False}
        requests.append(WarmRequest(rank, PATHS[api], body, response.hits))
    source = WarmSource(requests, omitted=len(own) - len(requests))
    source.skip(len(served) - len(own), "response", " of other tenants: give their key with --api-key")
    return source


def _saved_tokens(response: ListedResponse) -> int:
    # A response whose tokens are unknown counts as one.
    return response.hits * ((response.prompt_tokens or 0) + (response.completion_tokens or 0) + 1)


def logged_requests(
    client: ProxyClient,
    data: Path | None,
    limit: int | None,
    api_key: str | None,
    headers: Mapping[str, str],
    *,
    prefix_only: bool,
) -> WarmSource:
    """Return the requests of the journal whose text is stored, the most frequent first. Raises InvalidRequest or NotFound.

    Args:
        data: data folder of the proxy; None for the folder that the proxy reports.
        api_key: client's key, which determines the tenant; requests of other tenants are omitted.
        headers: of the warmed requests; requests of other namespaces than theirs are omitted.
        prefix_only: also return requests whose responses are never stored; warming computes their prefixes.
    """
    journal = open_direct_journal(client.url, client.token, data, "warm --from-log")
    prompts = [(prompt, prompt.api) for prompt in journal.reader.prompt_counts() if prompt.api in PATHS]
    tenants = _tenant_by_api(client, {api: prompt.model for prompt, api in reversed(prompts)}, api_key)
    own = [prompt for prompt, api in prompts if prompt.tenant == tenants[api]]
    if not own:
        others = f"; {len(prompts)} of other tenants: give their key with --api-key" if prompts else ""
        raise NotFound(f"the journal has no successful request of this tenant{others}")
    source = WarmSource()
    if not prefix_only:
        sent = len(own)
        own = sorted((prompt for prompt in own if prompt.cacheable), key=lambda prompt: -prompt.cacheable)
        source.skip(sent - len(own), "uncacheable prompt", f": {UNCACHEABLE}")
    sent = len(own)
    namespace = headers.get(NAMESPACE_HEADER)
    own = [prompt for prompt in own if _has_namespace(journal.reader.regions(prompt.number), namespace)]
    source.skip(sent - len(own), "prompt", " of other namespaces: give theirs with --namespace")
    without_text = 0
    with contextlib.closing(journal.request_bodies(own)) as bodies:
        for prompt, body in zip(own, bodies, strict=True):
            if body is None:
                without_text += 1
                continue
            path, rank = PATHS[cast("ApiName", prompt.api)], len(source.requests) + 1
            source.requests.append(WarmRequest(rank, path, body | {"stream": False}, prompt.requests))
            if rank == limit:
                source.omitted = len(own) - rank - without_text
                break
    source.skip(without_text, "prompt", " without text: see the setting journal.text")
    if not own:
        others = "" if not sent else "; those of other namespaces need --namespace"
        raise NotFound(f"the journal has no cacheable request: {UNCACHEABLE}{others}")
    if not source.requests:
        raise NotFound(
            f"the journal has no text of {plural(len(own), 'prompt')}, and their responses are not stored:"
            ' the setting journal.text = "all" records the text of later requests'
        )
    return source


def _has_namespace(regions: Regions | None, namespace: str | None) -> bool:
    """Whether a prompt of the journal has a namespace; true if its regions are unknown."""
    if regions is None:
        return True
    digests = dict(zip(regions.names, regions.digests, strict=True))
    return digests.get("namespace") == (digest_of_region(namespace) if namespace else None)


def select_prefixes(source: WarmSource) -> None:
    """Change requests so that they fill only the prefix cache: each generates one token. Skip requests for embeddings."""
    limits, count = {PATHS["responses"]: "max_output_tokens"}, len(source.requests)
    source.requests = [
        WarmRequest(
            request.line, request.path, request.body | {limits.get(request.path, "max_tokens"): 1}, request.count
        )
        for request in source.requests
        if request.path != PATHS["embeddings"]
    ]
    source.skip(count - len(source.requests), "request", " for embeddings, which have no prefix cache")


def _tenant_by_api(client: ProxyClient, models: dict[ApiName, str], api_key: str | None) -> dict[ApiName, str]:
    return {api: client.tenant(credential_headers(api, api_key), model) for api, model in models.items()}


@dataclass(slots=True)
class WarmReport:
    """Results of warming a cache.

    Attributes:
        outcomes: number of responses by result: `stored`, `forwarded` (not stored), `provided` (an answer of the file was
            stored), `exact`, or `semantic`.
        pinned: number of pinned tokens; None if no pins were requested.
        failed, not_pinned: errors by line of the request, for requests without a response, and for prompts without a pin.
        has_cache: whether the server is a kvproxy.
        cached: requests whose responses are stored.
        not_stored: lines of the requests whose responses were computed, but not stored.
    """

    source: WarmSource
    outcomes: Counter[str] = dataclass_field(default_factory=Counter)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    pinned: int | None = None
    failed: list[LineError] = dataclass_field(default_factory=list)
    not_pinned: list[LineError] = dataclass_field(default_factory=list)
    has_cache: bool = False
    cached: list[WarmRequest] = dataclass_field(default_factory=list)
    not_stored: list[int] = dataclass_field(default_factory=list)

    @property
    def errors(self) -> list[LineError]:
        return [*self.source.errors, *self.failed, *self.not_pinned]

    @property
    def _has_answers(self) -> bool:
        return any(request.answer is not None for request in self.source.requests)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON. The counts from `computed_and_stored` to `invalid` add up to `total`."""
        source, invalid, failed = self.source, len(self.source.errors), len(self.failed)
        distinct = len(source.requests) + source.omitted
        pinned = {} if self.pinned is None else {"tokens_pinned": self.pinned, "not_pinned": len(self.not_pinned)}
        return {
            "total": distinct + source.duplicates + source.skipped + invalid,
            "computed_and_stored": self.outcomes["stored"],
            "computed_not_stored": self.outcomes["forwarded"],
            **({"answers_stored": self.outcomes["provided"]} if self._has_answers else {}),
            "exact_hits": self.outcomes["exact"],
            "semantic_hits": self.outcomes["semantic"],
            "failed": failed,
            "remaining": distinct - sum(self.outcomes.values()) - failed,
            "duplicates": source.duplicates,
            "skipped": source.skipped,
            "invalid": invalid,
            "prompt_tokens": self.prompt_tokens,
            "reused_prompt_tokens": self.reused_tokens,
            **pinned,
            "failures": [{"line": error.line, "message": error.message} for error in self.errors],
        }

    def add_answer(self, request: WarmRequest, *, stored: bool) -> None:
        """Count an answer of the file: it was stored, or a fresh response to an equal request stays."""
        self.has_cache = True
        self.outcomes["provided" if stored else "exact"] += 1
        self.cached.append(request)

    def add_response(self, request: WarmRequest, cache_status: str, response: JsonMap) -> None:
        """Count a response and its reused prompt tokens, by its header Cache-Status or else its `usage`."""
        # A cache behind this server writes its part first.
        status = cache_status.rsplit(", ", 1)[-1]
        self.has_cache = self.has_cache or status.startswith("kvproxy")
        if "; hit" in status:
            self.outcomes["semantic" if "semantic" in status else "exact"] += 1
            self.cached.append(request)
            return
        if "; stored" in status:
            self.outcomes["stored"] += 1
            self.cached.append(request)
        else:
            self.outcomes["forwarded"] += 1
            self.not_stored.append(request.line)
        if prefix := _PREFIX.search(status):
            reused, prompt = int(prefix[1]), int(prefix[2])
        elif reuse := reported_reuse(response):
            reused, prompt = reuse.cached_tokens, reuse.prompt_tokens
        else:
            counts = (field(response.get("usage"), name) for name in ("prompt_tokens", "input_tokens"))
            reused, prompt = 0, next((count for count in counts if isinstance(count, int)), 0)
        self.reused_tokens += reused
        self.prompt_tokens += prompt


async def send_all(
    requests: Sequence[WarmRequest],
    url: str,
    report: WarmReport,
    concurrency: int,
    rate: float | None,
    api_key: str | None,
    cache_control: str | None,
    headers: Mapping[str, str],
    progress: Callable[[float], None],
) -> None:
    """Start the requests in order, and wait for their responses. Raises ProxyUnreachable.

    Args:
        report: is updated after each response, so it is valid even if the run is interrupted.
        concurrency, rate: maximum number of requests in flight, and of requests per second.
        cache_control: directives to add to the header Cache-Control.
    """
    # A response counts as stored only when it is on disk. The journal does not count the requests as those of a client.
    control = {"cache-control": f"confirm, warming, {cache_control}" if cache_control else "confirm, warming"}
    queue = iter(enumerate(requests, 1))
    next_start = 0.0

    async def work(client: httpx.AsyncClient) -> None:
        nonlocal next_start
        for number, request in queue:
            now = time.monotonic()
            start = max(next_start, now)
            next_start = start + (1 / rate if rate else 0.0)
            await asyncio.sleep(start - now)
            await _send(client, request, {**credential_headers(API_NAMES[request.path], api_key), **headers}, report)
            progress(number / len(requests))

    timeout = httpx.Timeout(600.0, connect=3.0)
    context = tls_context(url)
    async with httpx.AsyncClient(base_url=url.rstrip("/"), headers=control, timeout=timeout, verify=context) as client:
        is_lost = False
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(requests))):
                    group.create_task(work(client))
        except* httpx.TransportError:
            # Python before 3.11.4 puts an exception that is raised here into a group.
            is_lost = True
        if is_lost:
            raise ProxyUnreachable(f"{url} stopped answering: start it, then run the command again")


def pin_all(client: ProxyClient, requests: Sequence[WarmRequest], source: str, report: WarmReport) -> None:
    """Pin the blocks of each answered prompt under the name `source:line`, and report the tokens and the failures."""
    tokens, names, failed = 0, set(), {error.line for error in report.failed}
    for request in requests:
        if request.path == PATHS["embeddings"] or request.line in failed:
            continue
        name, api = f"{source}:{request.line}", API_NAMES[request.path]
        try:
            tokens += client.perform(pin_prompt, NewPin(name, api=api), request.body).tokens
            names.add(name)
        except KvproxyError as error:
            report.not_pinned.append(LineError(request.line, f"not pinned: {error.message}"))
    # Prompts with a common beginning share its blocks.
    pins = client.perform(list_pins, NoParameters()) if names else []
    blocks = [id for pin in pins if pin.name in names for id in pin.blocks]
    report.pinned = tokens * len(set(blocks)) // max(1, len(blocks))


async def _send(
    client: httpx.AsyncClient, request: WarmRequest, headers: Mapping[str, str], report: WarmReport
) -> None:
    path, body = request.path, request.body
    if request.answer is not None:
        answer = {"role": "assistant", "content": request.answer}
        path, body = f"/admin{store_answer.path}", body | {"messages": [*body["messages"], answer]}
    for attempt in range(_ATTEMPTS):
        response = await client.post(path, json=body, headers=headers)
        if response.status_code not in (429, 503):
            break
        await asyncio.sleep(0.2 * 2**attempt)
    if not response.is_success:
        status, message = f"HTTP {response.status_code}: ", response_error(response).message
        report.failed.append(LineError(request.line, status + message.removeprefix(status)))
        return
    try:
        value = loads(response.content)
    except ValueError:
        value = None
    document = value if isinstance(value, dict) else {}
    if request.answer is not None:
        report.add_answer(request, stored=document.get("stored") is True)
    else:
        report.add_response(request, response.headers.get("cache-status", ""), document)
