"""The proxy's metrics, in Prometheus' format."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from kvproxy.apis.codecs.generation import Delta
from kvproxy.apis.json import as_token_count
from kvproxy.apis.not_stored import Cause
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.blocks.pool_forecast import PoolForecast
from kvproxy.blocks.row_types import PoolStats
from kvproxy.clients.spending_tables import Spent, budgets_of
from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.journal.exchange_record import layer_of, reason_of
from kvproxy.settings.access import ClientSettings
from kvproxy.telemetry.initial_series import CLIENT_STATUSES, LIMITS, STATUSES, request_labels
from kvproxy.telemetry.metric_groups import MetricDescription, MetricGroup
from kvproxy.upstreams.status import EngineStatus

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_MAX_CLIENTS = 200
_MAX_PAID_MODELS = 50
_OTHERS = "(others)"
"""Label for all clients after the first 200, and for all models after the first 50; names of clients have no parentheses."""


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.descriptions: list[MetricDescription] = []
        requests = self._counter(
            "requests",
            "Requests to the cached APIs (`endpoint`), also refused ones. Requests to other routes, such as `/v1/models`, are"
            " only in kvproxy_client_requests_total. A layer has its name in the journal: `forward` includes the"
            " upstream's errors (see `status`), `disconnected` responses that the client interrupted, and `error` responses"
            " that broke off after status 200.",
            "endpoint",
            "layer",
            "status",
        )
        self._not_stored = self._counter(
            "not_stored", "Responses of the backend that were not stored, by cause (see docs/http.md).", "cause"
        )
        first_byte = self._histogram("first_byte", "Time to first byte.", "layer")
        duration = self._histogram(
            "request", "Time to the end of the response.", "layer", buckets=(*_SECONDS, 120.0, 300.0, 600.0)
        )
        completion_tokens = self._counter(
            "completion_tokens",
            "Response tokens by layer, as the backend reports them; a stored response counts each time that it is served."
            " Responses without reported tokens are not counted.",
            "layer",
        )
        self._inputs = self._counter(
            "inputs",
            "Inputs of arrays to embed, by whether the response cache had them.",
            "result",
        )
        # For each request, `labels` would take as long as a lookup in the cache.
        self._requests, self._first_byte = lru_cache(requests.labels), lru_cache(first_byte.labels)
        self._duration, self._completion_tokens = lru_cache(duration.labels), lru_cache(completion_tokens.labels)
        self._blocks = self._group(
            "blocks",
            "Blocks of the embedded engine's pool by state, as `kvproxy blocks` counts them: used by requests, pinned, cached"
            " (idle), or free (empty). Each block has one state.",
            "state",
        )
        self._prefix_cache = self._group(
            "prefix_cache",
            "The prefix cache of the embedded engine.",
            queries_total="Prompt tokens that were looked up.",
            hits_total="Prompt tokens that were found.",
            evictions_total="Evicted blocks.",
        )
        self._queue = self._histogram("queue", "Time until a request is scheduled.")
        self._first_token = self._histogram("ttft", "Time to first token of the embedded engine.")
        self._per_token = self._histogram("tpot", "Time per output token after the first.")
        self._tokens = self._counter(
            "tokens",
            "Tokens of complete responses of the embedded engine: prompt (pool, tier, computed) and generated.",
            "kind",
        )
        self.tiers = self._group(
            "tier",
            "Tiers of KV chunks.",
            "tier",
            available="0 after a failed write or read, until the tier has written a chunk again; else 1.",
            chunks="Chunks.",
            bytes="Bytes of the chunks.",
            hits_total="Chunks that were found.",
            misses_total="Chunks that were not found.",
            damaged_total="Invalid chunks, which were deleted.",
            errors_total="Failed calls.",
            dropped_total="Chunks that were not written, because too many were pending.",
            evictions_total="Evicted chunks.",
        )
        self.lookups = self._group(
            "semantic_lookups_total", "First semantic lookup of each request, by outcome.", "outcome"
        )
        self.stale = self._group("stale_total", "Stale responses by reason, and revalidations by result.", "reason")
        self.compared = self._group(
            "comparisons_total", "Stored responses that were not served, compared with fresh ones.", "result"
        )
        self.learned = self._group(
            "learned_policy",
            "The policy learned.",
            namespaces="Namespaces in memory.",
            serving="Namespaces in which its estimates decide.",
            observations="Observations.",
            served="Served responses.",
            expected_wrong="Expected number of wrong ones, without unestimated responses and undecided comparisons.",
            most_wrong="Bound of this number with about 90% confidence, also for undecided comparisons of responses of checked.",
            would_serve="Share of the recent similar questions that it would answer by its own estimate, without checked.",
            max_error="The setting cache.max_error; 0 without namespaces.",
            equal="Comparisons that found equal responses.",
            undecided="Comparisons that the judge could not decide.",
            unlearnable="Namespaces whose responses are hardly ever judged equal.",
            unestimated="Served responses of namespaces in which no comparison estimates the errors of checked.",
            by_checked="Served responses that checked alone accepted.",
            checked_equal="Comparisons of responses that checked accepts, with equal fresh responses; older ones count less.",
            checked_different="Those with different fresh responses.",
            checked_undecided="Those that the judge could not decide.",
        )
        self._upstreams = self._group(
            "upstream",
            "Upstreams.",
            "upstream",
            up="0 while the upstream is ejected, else 1.",
            draining="1 while an operator drains the upstream, else 0.",
            cooldown="1 while it gets no requests because of its `Retry-After`, else 0.",
            requests="Requests in flight.",
            load="Tokens of work in flight.",
            sent_total="Requests of clients that it received, also of uncached routes such as `/v1/files`. Lists of models that"
            " the proxy requests itself do not count.",
            retried_total="Requests that failed here, and were sent to another upstream, also of a fallback.",
            errors_total="Requests that failed here: no connection or response, a refused key of the settings, a status of 500 or"
            " above, or a broken response.",
            ejections_total="Ejections.",
            cached_blocks="Blocks in its prefix cache, by its KV events; absent while no mirror follows them.",
        )
        self.fallbacks = self._group(
            "fallback",
            "Requests for models with fallbacks.",
            "model",
            requests_total="Requests for the model that an upstream answered with a status below 400; hits are not counted.",
            answered_total="Those of them that a fallback answered.",
        )
        self._engines = self._group(
            "engine",
            "Statistics that upstreams report.",
            "upstream",
            num_blocks="Blocks in the pool.",
            usage="Share of the pool in use.",
            running="Running requests.",
            waiting="Waiting requests.",
            queries_total="Prompt tokens that were looked up.",
            hits_total="Prompt tokens that were found.",
            age_seconds="Seconds since the last report.",
        )
        self._mirrors = self._group(
            "mirror",
            "Mirrors of upstreams' prefix caches; absent without KV events.",
            "upstream",
            connected="1 if all KV event streams are connected, else 0.",
            complete="1 if no event since the engine's start or last reset is missing, else 0.",
        )
        self._slots = self._group(
            "llama_cpp",
            "Slots of llama.cpp upstreams.",
            "upstream",
            slots="Slots.",
            cached_tokens="Tokens in slots.",
            saved="Files that can be restored.",
            saved_bytes="Bytes of these files.",
            saves_total="Slots that were saved.",
            restores_total="Slots that were restored.",
            confirmed_total="Restores that a response confirmed.",
        )
        self._reuse = self._group(
            "reported_reuse",
            "Reuse that upstreams report, and its prediction.",
            "upstream",
            "model",
            reports_total="Responses with a report.",
            prompt_tokens_total="Prompt tokens of these responses.",
            cached_tokens_total="Reused tokens of these responses.",
            predictions_total="Predictions; while only one upstream of the model is available, only for the share"
            " routing.prediction_sample_rate of the requests.",
            exact_total="Exact predictions.",
            too_high_total="Predictions that were too high.",
            too_low_total="Predictions that were too low.",
        )
        self._forecasts = self._group(
            "pool_forecast_hit_rate",
            "Forecast hit rate of the prefix cache, by pool size: half, current, double, quadruple, or unlimited.",
            "upstream",
            "pool",
        )
        self.entries = self._group("cache_entries", "Stored responses; absent while the store cannot be read.")
        self.store_up = self._group(
            "store_up",
            "0 while the store's database cannot be read or written, until the next response is stored; else 1.",
        )
        self.journal_up = self._group(
            "journal_up",
            "0 while the journal's database cannot be read or written, until the next record is written; else 1; absent without"
            " a journal.",
        )
        self.lost_records = self._group("journal_lost_records_total", "Journal records that could not be written.")
        self._client_requests = self._counter(
            "client_requests",
            "Responses to each client, by status, on all routes: also on those that kvproxy_requests_total does not count.",
            "client",
            "status",
        )
        self._client_tokens = self._counter(
            "client_tokens", "Prompt tokens, also reused ones, and response tokens that quotas charged.", "client"
        )
        self._client_prompt_tokens = self._counter(
            "client_reported_prompt_tokens",
            "Prompt tokens of each client's requests for which the backend reported its prefix reuse.",
            "client",
        )
        self._client_reused_tokens = self._counter(
            "client_reused_tokens", "Those of them that the backend's prefix cache held.", "client"
        )
        self._client_spent = self._counter(
            "client_spent",
            "Price of each client's requests that reached the provider, in journal.currency, by model; budgets count the same.",
            "client",
            "model",
        )
        self.budgets = self._group(
            "client_budget",
            "Budgets of clients and teams in this UTC day or month, in journal.currency, for the first 200 with a budget by name;"
            " absent while the spent money cannot be read. Proxies with one store export the same numbers.",
            "client",
            "period",
            limit="The budget.",
            spent="What counts for it.",
            remaining="The rest, at least 0.",
        )
        self._clients: set[str] = set()
        self._paid_models: set[str] = set()
        self._limited = self._counter(
            "limited",
            "Limits that were reached, by the name of the setting; prices counts models without a price.",
            "limit",
        )
        self.prompt_tokens = self._group(
            "prompt_tokens_total",
            "Prompt tokens at the backend, reused or lost by cause, since the journal began.",
            "result",
        )
        self.savings = self._group(
            "savings",
            "Savings since the journal began.",
            "layer",
            answered="Requests that a cache answered.",
            prompt_tokens="Their prompt tokens, and those of the cached inputs of other arrays to embed.",
            completion_tokens="Their response tokens.",
            reused_tokens="Prompt tokens that the backend reused.",
            seconds="Seconds that hits and reused tokens saved, net of the hits' own time; may be negative.",
            spent="Price of the requests that reached the provider; excludes models without a price.",
            money="Saved money, net of the provider's own prefix cache; excludes models without a price.",
        )
        self._begin_series()

    def _begin_series(self) -> None:
        for labels in request_labels():
            self._requests(*labels)
        for layer in STATUSES:
            self._completion_tokens(layer)
        for counter, names in (
            (self._not_stored, Cause),
            (self._limited, LIMITS),
            (self._inputs, ("cached", "missing")),
            (self._tokens, ("pool", "tier", "computed", "generated")),
        ):
            for name in names:
                counter.labels(name)

    def begin_clients(self, names: Collection[str]) -> None:
        """Let the series of these clients exist, unless they are more than have a name in the metrics."""
        if len(names) > _MAX_CLIENTS:
            return
        for label in map(self._client_label, names):
            for status in CLIENT_STATUSES:
                self._client_requests.labels(label, str(status))
            for counter in (self._client_tokens, self._client_prompt_tokens, self._client_reused_tokens):
                counter.labels(label)

    def _describe(self, *fields: Any) -> MetricDescription:
        self.descriptions.append(MetricDescription(*fields))
        return self.descriptions[-1]

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._describe(f"kvproxy_{name}_total", "counter", text, labels)
        return Counter(f"kvproxy_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        self._describe(f"kvproxy_{name}_seconds", "histogram", text, labels)
        return Histogram(f"kvproxy_{name}_seconds", text, labels, buckets=buckets, registry=self._registry)

    def _group(self, name: str, text: str, *labels: str, **members: str) -> MetricGroup:
        kind = "group" if members else "counter" if name.endswith("_total") else "gauge"
        group = MetricGroup(self._describe(f"kvproxy_{name}", kind, text, labels, members))
        self._registry.register(group)
        return group

    def count_client_request(self, name: str, status: int) -> None:
        self._client_requests.labels(self._client_label(name), str(status)).inc()

    def count_exchange(self, exchange: Exchange) -> None:
        if exchange.api is None or exchange.layer == "revalidated" or exchange.is_warming:
            return
        layer = layer_of(exchange, reason_of(exchange))
        self._requests(exchange.api, layer, exchange.status).inc()
        self._duration(layer).observe((exchange.ended or exchange.first_byte) - exchange.started)
        if exchange.inputs is not None:
            self._inputs.labels("cached").inc(exchange.inputs.cached)
            self._inputs.labels("missing").inc(exchange.inputs.count - exchange.inputs.cached)
        if not exchange.was_collapsed:
            facts, hit = exchange.facts, exchange.hit
            if hit is None and facts.prefix is not None and exchange.client is not None:
                self._count_client_reuse(exchange.client.name, facts.prefix)
            # Entries of an import have any numbers.
            tokens = as_token_count(facts.completion_tokens if hit is None else hit.completion_tokens)
            if tokens is not None:
                self._completion_tokens(layer).inc(tokens)
            if facts.write is None or facts.write.done():
                self._count_not_stored(facts)
            else:
                facts.write.add_done_callback(lambda _: self._count_not_stored(facts))
        self._first_byte(layer).observe((exchange.first_byte or exchange.ended) - exchange.started)

    def _count_client_reuse(self, name: str, prefix: PrefixReuse) -> None:
        label = self._client_label(name)
        self._client_prompt_tokens.labels(label).inc(prefix.prompt_tokens)
        self._client_reused_tokens.labels(label).inc(prefix.cached_tokens)

    def _count_not_stored(self, facts: ResponseFacts) -> None:
        if facts.not_stored is not None:
            self._not_stored.labels(facts.not_stored.cause.value).inc()

    def count_client_tokens(self, name: str, tokens: int) -> None:
        self._client_tokens.labels(self._client_label(name)).inc(tokens)

    def count_client_money(self, name: str, model: str, money: float) -> None:
        label = _bounded(model, self._paid_models, _MAX_PAID_MODELS)
        self._client_spent.labels(self._client_label(name), label).inc(money)

    def _client_label(self, name: str) -> str:
        return _bounded(name, self._clients, _MAX_CLIENTS)

    def set_budgets(self, clients: Sequence[ClientSettings], spent: Mapping[str, Spent]) -> None:
        self.budgets.clear()
        for client in clients[:_MAX_CLIENTS]:
            for budget in budgets_of(client, spent.get(client.name, Spent())):
                values = {"limit": budget.limit, "spent": budget.spent, "remaining": budget.remaining}
                self.budgets.set(values, client.name, budget.period)

    def count_reached_limit(self, limit: str) -> None:
        self._limited.labels(limit).inc()

    def count_error(self, error: KvproxyError) -> None:
        if error.limit is not None:
            self.count_reached_limit(error.limit)

    def record_generation(self, last: Delta) -> None:
        usage, timing = last.usage, last.timing
        self._tokens.labels("generated").inc(usage.completion_tokens)
        if timing is not None and usage.completion_tokens > 1:
            self._per_token.observe((timing.total - timing.first_token) / (usage.completion_tokens - 1))
        if last.index:
            return
        self._tokens.labels("pool").inc(usage.cached_tokens - usage.tier_tokens)
        self._tokens.labels("tier").inc(usage.tier_tokens)
        self._tokens.labels("computed").inc(usage.prompt_tokens - usage.cached_tokens)
        if timing is not None:
            self._queue.observe(timing.queue)
            self._first_token.observe(timing.first_token)

    def set_pool(self, stats: PoolStats) -> None:
        for state in ("free", "cached", "used", "pinned"):
            self._blocks.set(getattr(stats, state), state)
        self._prefix_cache.set(stats)

    def set_upstreams(self, statuses: Iterable[EngineStatus]) -> None:
        """Replace the metrics of upstreams: a reload may have removed some."""
        for group in (self._upstreams, self._engines, self._mirrors, self._slots, self._reuse):
            group.clear()
        for status in statuses:
            self._set_upstream(status)

    def _set_upstream(self, status: EngineStatus) -> None:
        names = ("requests", "load", "sent", "retried", "errors", "ejections", "cached_blocks")
        values = {name: getattr(status, name) for name in names}
        up, draining = not status.ejected, status.state == "draining"
        self._upstreams.set(
            {"up": up, "draining": draining, "cooldown": status.state == "cooldown", **values}, status.url
        )
        if status.metrics is not None:
            self._engines.set({**asdict(status.metrics), "age_seconds": status.metrics.age}, status.url)
        if status.streams:
            connected = all(stream.connected for stream in status.streams)
            self._mirrors.set({"connected": connected, "complete": status.complete}, status.url)
        if status.slots is not None:
            self._slots.set(status.slots, status.url)
        for model, reuse in status.reuse.items():
            self._reuse.set(reuse, status.url, model)

    def set_forecasts(self, forecasts: Sequence[PoolForecast]) -> None:
        for forecast in forecasts:
            for point in forecast.points:
                self._forecasts.set(point.hit_rate, forecast.engine or "embedded", point.name)

    def render(self) -> bytes:
        return generate_latest(self._registry)


def _bounded(name: str, known: set[str], most: int) -> str:
    """Return a name as a label, or `(others)` if `known` has the most names already."""
    if name not in known and len(known) >= most:
        return _OTHERS
    known.add(name)
    return name
