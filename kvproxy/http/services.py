"""Builds the components that the routes use, from the settings."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from statistics import mean
from typing import TYPE_CHECKING

from starlette.requests import Request

from kvproxy.apis.reported_usage import UsageLog
from kvproxy.backends.prefix_cache import PrefixCache
from kvproxy.blocks.pool_forecast import PoolForecast, forecast_hit_rates
from kvproxy.clients.change_log import record_change
from kvproxy.clients.quotas import Quotas
from kvproxy.clients.shared_state import SharedState
from kvproxy.clients.spending_tables import SpendingFile
from kvproxy.clients.spent_money import SpentMoney
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.flow.compare_responses import ResponseComparer
from kvproxy.flow.path import RequestPath
from kvproxy.flow.prepare.rules import Rules
from kvproxy.flow.tenants import Tenants
from kvproxy.http.access_rules import AccessRules
from kvproxy.http.build_backend import BuiltBackend, build_backend
from kvproxy.http.client_authentication import Clients
from kvproxy.http.deadlines_and_disconnects import Deadlines
from kvproxy.http.metrics import Metrics
from kvproxy.http.request_bodies import BodyBudget
from kvproxy.index.errors import CacheStoreError
from kvproxy.installation.descriptor_limit import raise_descriptor_limit
from kvproxy.journal.journal import open_journal
from kvproxy.journal.prefill_time import prefill_costs
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.operations.proxy import ReloadedSettings
from kvproxy.optional_packages import install_command
from kvproxy.privacy.pattern_redaction import load_redactor
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import Settings
from kvproxy.settings.journal import PriceSettings
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.tiers.chunk_store import TierStats

if TYPE_CHECKING:
    from kvproxy.telemetry.otlp_export import Exporter

_MAINTENANCE_SECONDS = 30.0
_UNLIMITED_TOKENS = 1e12
RELOADED = {
    *("upstream", "upstreams", "routing.fallbacks", "routing.hints", "routing.name", "routing.prediction_sample_rate"),
    *("forward.api_key", "forward.connect_timeout", "forward.first_byte_timeout", "forward.read_timeout"),
    *("forward.request_usage", "forward.retries"),
}
"""Settings for upstreams that a reload applies."""
_RELOADED_ALWAYS = ("admin_token", "clients", "edits", "journal.prices", "metrics_token", "rules")
_log = logging.getLogger("kvproxy")


class Services:
    """The components that routes use: caches, backend, journal, rules, quotas, and metrics."""

    def __init__(
        self,
        settings: Settings,
        path: RequestPath,
        metrics: Metrics,
        built: BuiltBackend,
        clients: Clients,
        telemetry: "Exporter | None" = None,
        shared: SharedState | None = None,
    ) -> None:
        self.settings = settings
        self.path = path
        self.backend = path.backend
        self.cache = path.cache
        self.journal = path.journal
        self.comparer = path.comparer
        self.clock = path.clock
        self.metrics = metrics
        self.built = built
        self.prefix: PrefixCache = built.prefix
        self.clients = clients
        self.telemetry = telemetry
        self.shared = shared
        self.tenants = path.tenants
        self.usage_log = UsageLog()
        self._spending_file = SpendingFile(settings.data)
        tables = self._spending_file if shared is None else shared.spending
        self.spent = SpentMoney(tables, ModelPrices(settings.journal), path.clock, settings.journal.currency)
        self.quotas = Quotas(metrics.count_client_tokens, shared, self.spent, metrics.count_client_money)
        self.bodies = BodyBudget(settings.limits)
        assert path.rules is not None
        self.rules = path.rules
        self.access = AccessRules(settings)
        self.deadlines = Deadlines(settings.limits.request_seconds, metrics.count_reached_limit)
        if shared is not None:
            shared.on_heartbeat = self._apply_heartbeat
        self._threads = ThreadPoolExecutor(thread_name_prefix="worker")
        self.uncached_paths: set[str] = set()
        """Paths of which `routes` has logged that they are not cached."""
        self._tasks: list[asyncio.Task[None]] = []
        self._applied_drains: int | None = None
        self._unwritten_drains: dict[str, tuple[str, bool]] = {}
        self._reloading = asyncio.Lock()

    async def forecasts(self, token_bytes: float | None = None, tier_bytes: float | None = None) -> list[PoolForecast]:
        """Forecast the hit rate of each engine's prefix cache for other pool sizes.

        `token_bytes` are KV bytes per token (None: the embedded engine's); `tier_bytes` is the size of an additional tier.
        """
        curves = self.journal.reuse_curves()
        pools: dict[str, tuple[int | None, int | None]] = {}
        tier_tokens = None
        if curves:
            with suppress(KvproxyError):
                pool = await self.prefix.stats()
                pools = {engine.engine: (engine.num_blocks, engine.block_size) for engine in pool.reported}
                if pool.num_blocks and pool.block_size and not pool.engines:
                    pools[""] = pool.num_blocks, pool.block_size
                    token_bytes = token_bytes or (pool.block_bytes or 0) / pool.block_size
                    tier_tokens = _largest_tier_tokens(await self.prefix.tiers(), token_bytes)
        costs = await asyncio.to_thread(self.journal.read, prefill_costs, {}) if curves else {}
        seconds = mean(cost.seconds for cost in costs.values()) if costs else None
        return [
            forecast_hit_rates(
                engine, curve, *pools.get(engine, (None, None)), seconds, token_bytes, tier_bytes, tier_tokens
            )
            for engine, curve in curves.items()
        ]

    async def start(self) -> None:
        asyncio.get_running_loop().set_default_executor(self._threads)
        await self.backend.start()
        self._tasks.append(asyncio.create_task(self._maintain_periodically()))
        self._tasks.append(asyncio.create_task(self.spent.renew_periodically()))
        if self.shared is not None:
            with suppress(CacheStoreError):
                await self.shared.send_heartbeat()
            self._tasks.append(asyncio.create_task(self.shared.send_heartbeats_periodically()))
        if any(rule.keeps_provider_prefixes or rule.pin_sessions for rule in self.settings.rules):
            self._tasks.append(asyncio.create_task(self._learn_pauses()))
        if self.settings.routing.fallbacks:
            self._tasks.append(asyncio.create_task(self._find_fallback_prices(self.settings)))

    async def _find_fallback_prices(self, settings: Settings) -> None:
        # The first search reads the price list. Later, the event loop charges the fallback that answered.
        models = {model for others in settings.routing.fallbacks.values() for model in others}
        with suppress(KvproxyError):
            await asyncio.to_thread(lambda: [self.spent.prices.get(model) for model in models])

    async def _learn_pauses(self) -> None:
        try:
            read = self.journal.read
            pauses = await asyncio.to_thread(read, lambda reader: SessionReader(reader, {}).pauses(time.time()), [])
        except KvproxyError as error:
            _log.warning("the pauses of earlier sessions are unknown: %s", error.message)
            return
        await asyncio.to_thread(self.path.keep_warm.add_pauses, pauses)

    async def _maintain_periodically(self) -> None:
        while True:
            await asyncio.sleep(_MAINTENANCE_SECONDS)
            await asyncio.to_thread(self.clients.store_switches)
            try:
                # Pending writes may have hits already.
                await self.cache.pending_writes.wait_for_all()
                await asyncio.to_thread(self.cache.maintain)
            except CacheStoreError:
                # The store logs its failure.
                continue
            except Exception as error:
                _log.error("housekeeping failed, and is tried again: %s", error)

    async def _apply_heartbeat(self, change: int) -> None:
        await self._write_drains()
        await asyncio.to_thread(self.clients.store_switches)
        await asyncio.to_thread(self.clients.reload, change)
        await asyncio.to_thread(self.spent.write_pending_charges)
        await self.quotas.charge_debts()
        await self._apply_drains(change)

    async def _apply_drains(self, change: int) -> None:
        """Drain the upstreams that operators drain at any proxy, if `change`, the last change in PostgreSQL, is new."""
        fleet = self.built.fleet
        if fleet is None or self.shared is None or change == self._applied_drains:
            return
        drained = await asyncio.to_thread(self.shared.drained_upstreams)
        unwritten = self._unwritten_drains.items()
        fleet.set_drained((drained - {url for url, _ in unwritten}) | {url for url, (_, on) in unwritten if on})
        self._applied_drains = change

    async def _write_drains(self) -> None:
        """Tell all proxies the drains that operators made or ended while PostgreSQL failed."""
        for url, change in [*self._unwritten_drains.items()]:
            operator, drained = change
            with suppress(CacheStoreError):
                assert self.shared is not None
                await asyncio.to_thread(self.shared.set_drained, url, operator, drained=drained)
                if self._unwritten_drains.get(url) is change:
                    del self._unwritten_drains[url]

    async def set_drained(self, request: Request, url: str, *, drained: bool) -> str | None:
        """Drain an upstream, or end that, on all proxies of one PostgreSQL; return why other proxies do not."""
        fleet, operator = self.built.fleet, self.operator(request)
        assert fleet is not None
        if self.shared is None:
            await self.record_change(request, f"{'drain' if drained else 'undrain'} upstream {url}")
        problem = None
        try:
            if self.shared is not None:
                await asyncio.to_thread(self.shared.set_drained, url, operator, drained=drained)
                self._unwritten_drains.pop(url, None)
        except CacheStoreError as error:
            problem = f"only this proxy was changed: {error}; the other proxies follow as soon as the store works"
            self._unwritten_drains[url] = operator, drained
        # A reload may have removed it meanwhile.
        if url in fleet.engines:
            fleet.engines[url].health.draining = drained
        return problem

    async def reload(self) -> ReloadedSettings:
        """Apply changed rules, edits, clients, tokens, prices, and upstreams of the settings to new requests.

        Raises SettingsError or StoreUnavailable, and then changes nothing.
        """
        async with self._reloading:
            settings = await asyncio.to_thread(self.settings.reloaded)
            fleet, applied, notes = self.built.fleet, {*_RELOADED_ALWAYS}, []
            clients = await asyncio.to_thread(self.clients.prepare, settings)
            if fleet is not None and settings.servers:
                raise_descriptor_limit(settings)
                await self._find_fallback_prices(settings)
                names = fleet.names_in_cache_keys()
                await fleet.reload(settings, await self._drained_upstreams())
                # Operators may have drained a new upstream meanwhile.
                self._applied_drains = None
                notes = _lost_names(names, fleet.names_in_cache_keys())
                applied |= RELOADED
            self.clients.replace(clients)
            self.rules.replace(settings)
            self.access.use_tokens(settings)
            self._use_prices(settings.journal.prices)
            restart = [name for name in self.settings.changed_names(settings) if name not in applied]
            return ReloadedSettings(len(self.rules), [] if fleet is None else [*fleet.engines], restart, notes)

    def _use_prices(self, prices: Mapping[str, PriceSettings]) -> None:
        if prices != self.settings.journal.prices:
            journal = self.settings.journal.model_copy(update={"prices": prices})
            self.settings = self.settings.model_copy(update={"journal": journal})
            self.spent.prices = ModelPrices(journal)
            self.path.keep_warm.prices = prices
            self.journal.use_prices(prices)

    async def _drained_upstreams(self) -> set[str]:
        """Return the upstreams that operators drain at any proxy. If PostgreSQL fails, a later heartbeat drains them."""
        with suppress(CacheStoreError):
            return set() if self.shared is None else set(await asyncio.to_thread(self.shared.drained_upstreams))
        return set()

    @property
    def routes_by_model(self) -> bool:
        """Whether upstreams serve different models."""
        return self.built.fleet is not None and self.built.fleet.routes is not None

    async def measure_clients(self) -> None:
        """Set the metrics of the clients' budgets, and begin the series of new clients."""
        self.metrics.begin_clients(self.clients.names)
        clients = self.clients.with_budget()
        try:
            # Without a budget, no table of spent money is made.
            self.metrics.set_budgets(clients, await asyncio.to_thread(self.spent.read) if clients else {})
        except CacheStoreError:
            self.metrics.budgets.clear()

    def reload_clients(self) -> None:
        """Apply a change of the clients immediately. If PostgreSQL fails, a later heartbeat applies it."""
        with suppress(CacheStoreError):
            self.clients.reload(0 if self.shared is None else self.shared.last_change())

    def operator(self, request: Request) -> str:
        """Return the name of the operator who sent an admin request, for the history of changes."""
        return f"admin at {request.client.host if request.client is not None else 'a socket'}"

    async def record_change(self, request: Request, change: str) -> None:
        """Log a change by the operator, and record it in PostgreSQL if proxies share a store there, or else in the folder."""
        operator = self.operator(request)
        _log.info("%s: %s", operator, change)
        if self.shared is not None:
            await asyncio.to_thread(self.shared.record_change, operator, change)
            return
        try:
            await asyncio.to_thread(record_change, self.settings.data, operator, change)
        except SettingsError as error:
            _log.warning("the change is not in kvproxy keys history: %s", error.message)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.path.close()
        if self.comparer is not None:
            await self.comparer.close()
        await self.backend.close()
        await self.spent.close()
        await self._wait_for_threads()
        self._spending_file.close()
        if self.shared is not None:
            with suppress(CacheStoreError):
                await asyncio.to_thread(self.shared.unregister)
        await asyncio.to_thread(self.cache.close)
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.close)
        await asyncio.to_thread(self.journal.close)

    async def _wait_for_threads(self) -> None:
        """Wait for work that continues in a thread after its task was cancelled, and may use a store."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        await asyncio.to_thread(self._threads.shutdown)


def build_services(settings: Settings, clock: Callable[[], float] = time.time) -> Services:
    """Open the store, and load the embedder and the model. Raises SettingsError or ModelUnsupported.

    `clock` returns seconds since the epoch.
    """
    metrics, clients = Metrics(), Clients(settings)
    # The engine first: it captures GPU graphs, and no other code may allocate GPU memory meanwhile.
    built = build_backend(settings)
    if built.worker is not None:
        built.worker.on_finished = metrics.record_generation
    with ExitStack() as opened:
        cache = open_response_cache(
            settings.store_location,
            settings.cache,
            embedder=settings.embedder,
            data=settings.data,
            clock=clock,
            encryption=settings.encryption,
            redaction=settings.redaction,
            tenant_limit=clients.stored_bytes_limit,
        )
        opened.callback(cache.close)
        # A rule may set a judge even if `cache.judge` is none.
        comparer = None if cache.semantic is None else ResponseComparer(cache.semantic, built.backend, settings.cache)
        # The journal is not encrypted, so it stores no texts beside an encrypted store.
        kept = settings.journal.model_copy(update={"text": "none"}) if settings.encryption.enabled else settings.journal
        journal = open_journal(
            settings.journal_location,
            kept,
            cache.store,
            clock,
            redact=load_redactor(settings.redaction),
            proxy=f"{socket.gethostname()}:{settings.port}",
        )
        opened.callback(journal.close)
        if (telemetry := _create_exporter(settings.telemetry)) is not None:
            opened.callback(telemetry.close)
        prices = settings.journal.prices
        shared = SharedState(cache.store.database) if cache.store.remote else None
        path = RequestPath(
            built.backend,
            cache,
            settings.cache,
            clock,
            comparer=comparer,
            journal=journal,
            rules=Rules(settings),
            tenants=Tenants(settings.access),
            count_request=metrics.count_exchange,
            export_spans=(lambda exchange: None) if telemetry is None else telemetry.add,
            trace_sample_rate=None if telemetry is None else settings.telemetry.sample_rate,
            prices=prices,
            shared=shared,
            pin=None if built.worker is None else built.prefix.pin,
            limits=settings.limits,
            plugins=settings.path,
            resolve_model=None if built.fleet is None else built.fleet.resolve,
        )
        services = Services(settings, path, metrics, built, clients, telemetry, shared)
        # From here on, the services close what they use.
        opened.pop_all()
        return services


def _lost_names(before: set[str], after: set[str]) -> list[str]:
    """Return a note if responses that were stored for the former upstreams are not found any more."""
    lost = sorted(before - after)
    if not lost:
        return []
    fix = f', unless routing.name is "{lost[0]}"' if len(before) == 1 else ""
    return [f"responses that were stored for {', '.join(lost)} are no longer found{fix}"]


def _create_exporter(settings: TelemetrySettings) -> "Exporter | None":
    if settings.endpoint is None:
        return None
    try:
        from kvproxy.telemetry.otlp_export import Exporter
    except ImportError as error:
        raise SettingsError(
            f"telemetry.endpoint needs OpenTelemetry ({error}): {install_command('telemetry')}"
        ) from None
    return Exporter(settings)


def services(request: Request) -> Services:
    proxy_services: Services = request.app.state.services
    return proxy_services


def _largest_tier_tokens(tiers: Sequence[TierStats], token_bytes: float) -> float | None:
    """Return how many tokens fit into the largest tier; None without tiers. A tier without a limit has 10^12 tokens."""
    return max(
        (_UNLIMITED_TOKENS if tier.limit is None else tier.limit / token_bytes for tier in tiers if token_bytes),
        default=None,
    )
