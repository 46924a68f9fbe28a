"""Keeps the prompt prefixes of paused sessions cached until the session continues.

Anthropic's cache requires keep-warm requests or one-hour breakpoints; the embedded engine requires pins. Rules enable each
method. `providers/cache_policy.py` decides from the lengths of earlier pauses whether a method saves money.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from kvproxy.apis.agent_requests import HEADLESS_TAG, is_headless
from kvproxy.apis.api_request import BYTES_PER_TOKEN, ApiRequest, in_thread_if_large
from kvproxy.apis.json import JsonObject, as_object, dumps, field, loads
from kvproxy.apis.request_directives import project_tags
from kvproxy.clients.quotas import Account, TokenBucket
from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.flow.background_requests import BackgroundRequests
from kvproxy.flow.conversation_digests import (
    BREAKPOINT_FIELD,
    canonical_json,
    content_blocks,
    with_conversation,
)
from kvproxy.flow.prepare.agent_conversations import AgentConversation, ToolCalls
from kvproxy.flow.prepare.breakpoints import find_last_one_hour_message
from kvproxy.flow.single_flight import cancel_tasks
from kvproxy.journal.exchange_record import KEEP_WARM_TAG
from kvproxy.providers.cache_policy import (
    HEADLESS_PAUSES,
    HOUR,
    KEEP_WARM_MARGIN,
    KEEP_WARM_SECONDS,
    PauseTimes,
    keep_warm_requests,
    pause_quantile,
    should_cache_for_an_hour,
)
from kvproxy.providers.cache_rules import rule_of_marks
from kvproxy.providers.prices import relative_prices
from kvproxy.settings.journal import MILLION, PriceSettings, input_price, price_of

Pin = Callable[[str, float | None, ApiRequest], Awaitable[int]]
_MAX_SESSIONS = 256
_MAX_BYTES = 32 * 2**20
MAX_FIXED_MODELS = 1_000
_FORCED_TOOLS = ("any", "tool")
_log = logging.getLogger("kvproxy")


@dataclass(slots=True, eq=False)
class _Session:
    request: ApiRequest  # The last one, without its parsed body, to save memory.
    model: str
    used: float  # Time of the last request or keep-warm request, in seconds since the epoch.
    ended: float  # End of the last response to the client.
    tokens: int
    cached_tokens: (
        int  # Prompt tokens in the provider's cache after the request, read or written; all if it reports no writes.
    )
    last_one_hour_message: int  # Index of the last message that the provider caches for one hour, or -1.
    one_hour_tokens: int  # Tokens up to the end of this message.
    pin: str
    is_headless: bool
    account: Account | None  # Pays for the keep-warm requests.
    team: str | None
    conversation: AgentConversation
    is_answered: bool  # Whether the last response calls no tool, so that a sub-agent has finished.
    sent: int = 0  # Keep-warm requests in this pause.
    has_ended: bool = False  # Whether the end of its keep-warm requests was reported.
    task: "asyncio.Task[None] | None" = None

    @property
    def tenant_and_hour(self) -> tuple[str, int]:
        return self.request.tenant, datetime.fromtimestamp(self.ended).hour


class KeepWarm:
    """Sends the last request of a paused session again, so that the provider's cache keeps the prefix.

    Args:
        prices: prices by model, for the policy and for rules that limit the costs of keep-warm requests.
        pin: see `PrefixCache.pin`; None if the backend has no pins.
        report: receives the id of a session's last request, and what became of the keep-warm requests that followed it.

    Attributes:
        pauses, headless_pauses: pauses of sessions with people, and of runs without.
    """

    def __init__(
        self,
        background: BackgroundRequests,
        prices: Mapping[str, PriceSettings],
        pin: Pin | None,
        report: Callable[[str, str], None] = lambda request_id, text: None,
    ) -> None:
        self._background = background
        self._clock = background.clock
        self.prices = prices
        self.interval = KEEP_WARM_SECONDS
        self.pauses, self.headless_pauses = PauseTimes(), PauseTimes(HEADLESS_PAUSES)
        self._pin = pin
        self._report = report
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._bytes = 0
        self._is_closed = False
        self._budgets: dict[tuple[str, str], TokenBucket] = {}
        # Models whose provider writes the whole prefix again if the lifetime of a breakpoint changes.
        self._fixed_models: set[str] = set()
        # Models whose provider refuses requests for no output.
        self._models_with_output: set[str] = set()

    def add_pauses(self, pauses: Iterable[tuple[float, str, float, bool]]) -> None:
        """Add recorded pauses: seconds, tenant, begin in seconds since the epoch, and whether the run was headless."""
        for seconds, tenant, begin, headless in pauses:
            self._pauses(headless).add(seconds, tenant, datetime.fromtimestamp(begin).hour)

    def _pauses(self, headless: bool) -> PauseTimes:
        return self.headless_pauses if headless else self.pauses

    async def on_request(self, request: ApiRequest) -> tuple[ApiRequest, int]:
        """Stop the session's keep-warm requests. Return the request with the digests of its conversation.

        The number is the index of the last message to cache for one hour, or -1.
        """
        await self._end_sub_agents(request)
        if not self._is_tracked(request):
            return request, -1
        request = await with_conversation(request)
        if is_headless(request) and HEADLESS_TAG not in request.control.tags:
            request = replace(request, control=replace(request.control, tags=(*request.control.tags, HEADLESS_TAG)))
        digests = request.conversation
        session = self._find_session(digests)
        if session is None:
            return request, -1
        if session.task is not None:
            session.task.cancel()
            session.task = None
            if session.sent:
                self._report_end(session, "the session continued")
        if request.model in self._fixed_models:
            return request, -1
        tokens = max(session.tokens, len(request.raw) // BYTES_PER_TOKEN)
        is_alive = self._clock() - session.used < self.interval
        kept = session.one_hour_tokens if self._clock() - session.used < HOUR else 0
        new = tokens - (session.cached_tokens if is_alive else kept)
        pauses, prices = self._pauses(session.is_headless), self._prices_of(request.model)
        survival = pauses.survival(*session.tenant_and_hour)
        if should_cache_for_an_hour(new, tokens - kept, survival, prices):
            return request, len(digests) - 1
        return request, session.last_one_hour_message if kept else -1

    def on_finish(self, exchange: Exchange) -> None:
        request, prefix = exchange.request, exchange.facts.prefix
        digests = [] if request is None or not self._is_tracked(request) else list(request.conversation)
        succeeded = exchange.status == 200 and exchange.failure is None and exchange.hit is None
        before = self._find_session(digests)
        if request is None or not digests or prefix is None or not succeeded or exchange.was_collapsed:
            if before is not None:
                self._start(before)
            elif request is not None and succeeded and (reason := self._untracked_reason(request)):
                self._report(request.request_id, f"none sent: {reason}")
            return
        until, conversation = find_last_one_hour_message(request.body), AgentConversation.of(request)
        self._remove_superseded(conversation, exchange.arrived, before)
        if before is not None:
            self._remove(before)
            pause = max(0.0, exchange.arrived - before.ended)
            self._pauses(before.is_headless).add(pause, *before.tenant_and_hour)
            is_rewritten = exchange.arrived - before.used < self.interval and 2 * prefix.cached_tokens < before.tokens
            is_new = until != before.last_one_hour_message and request.model not in self._fixed_models
            if is_rewritten and is_new and _has_same_beginning(before.request.raw, request.body):
                if len(self._fixed_models) >= MAX_FIXED_MODELS:
                    self._fixed_models.clear()
                self._fixed_models.add(request.model)
                _log.warning("%s: the provider writes prefixes again if their lifetime changes", request.model)
        is_same = before is not None and until == before.last_one_hour_message
        one_hour_tokens = before.one_hour_tokens if before is not None and is_same else prefix.prompt_tokens
        session = _Session(
            replace(request, body={}),
            request.model,
            exchange.arrived,
            self._clock(),
            prefix.prompt_tokens,
            prefix.prompt_tokens if prefix.stored_tokens is None else prefix.stored_tokens,
            until,
            one_hour_tokens if until >= 0 else 0,
            f"session-{request.request_id}" if before is None else before.pin,
            is_headless(request),
            None if exchange.account is None else exchange.account.for_money(),
            exchange.team,
            conversation,
            _calls_no_tool(exchange),
        )
        self._sessions[digests[-1]] = session
        self._bytes += len(request.raw)
        while len(self._sessions) > _MAX_SESSIONS or self._bytes > _MAX_BYTES:
            self._remove(next(iter(self._sessions.values())))
        if session in self._sessions.values():
            self._start(session)

    def _start(self, session: _Session) -> None:
        """Start the session's keep-warm requests, unless they were started already."""
        if session.task is None and not self._is_closed:
            session.has_ended = False
            session.task = asyncio.create_task(self._keep_prefix(session))

    def _prices_of(self, model: str) -> PriceSettings:
        """Return the model's prices of the settings, or its provider's price ratios if one of the cache's prices is missing."""
        price = price_of(model, self.prices)
        if price is None or None in (price.cached, price.write_5m, price.write_1h):
            return relative_prices(model)
        return price

    def _is_tracked(self, request: ApiRequest) -> bool:
        rule = request.control.rule
        is_pinned = rule.pin_sessions and self._pin is not None
        if not is_pinned and not (request.api.name == "messages" and rule.keeps_provider_prefixes):
            return False
        # The provider accepts some of the other requests only once. No client continues a request that warms the cache.
        return not request.control.warming and request.api.is_cacheable(request.body)

    def _untracked_reason(self, request: ApiRequest) -> str | None:
        """Return why no keep-warm requests follow this request; None if they may, or if its rule has no keep-warm."""
        if not request.control.rule.sends_keep_warm or self._is_tracked(request):
            return None
        is_messages = request.api.name == "messages"
        return (
            "the request cannot be repeated" if is_messages else "only requests to /v1/messages have keep-warm requests"
        )

    def _find_session(self, digests: Sequence[bytes]) -> _Session | None:
        return next((self._sessions[digest] for digest in reversed(digests) if digest in self._sessions), None)

    def _remove(self, session: _Session) -> None:
        for digest in [digest for digest, other in self._sessions.items() if other is session]:
            del self._sessions[digest]
            self._bytes -= len(session.request.raw)
        if session.task is not None:
            session.task.cancel()

    def _remove_superseded(self, conversation: AgentConversation, arrived: float, before: _Session | None) -> None:
        """Remove the earlier requests of a session that continued with another model or an edited history."""
        superseded = [
            session
            for session in self._sessions.values()
            if session is not before and session.ended <= arrived and conversation.continues(session.conversation)
        ]
        for session in superseded:
            if session.sent:
                self._report_end(session, "the session continued")
            self._remove(session)
        if superseded and before is None:
            self._pauses(superseded[-1].is_headless).add(
                arrived - superseded[-1].ended, *superseded[-1].tenant_and_hour
            )

    async def _end_sub_agents(self, request: ApiRequest) -> None:
        """End the keep-warm requests of the sub-agents that have finished and whose parent sends this request."""
        if not self._finished_sessions(request.tenant):
            return
        calls = await in_thread_if_large(len(request.raw), lambda: ToolCalls.of(request))
        for session in self._finished_sessions(request.tenant) if calls.prompts else ():
            if session.conversation.may_be_called_by(calls):
                self._report_end(session, "the sub-agent's parent continued with its result")
                self._remove(session)

    def _finished_sessions(self, tenant: str) -> list[_Session]:
        # The task of a session that continues was cancelled.
        sessions = (session for session in self._sessions.values() if session.is_answered and session.task is not None)
        return [session for session in sessions if session.request.tenant == tenant and session.conversation.prompts]

    async def _keep_prefix(self, session: _Session) -> None:
        if session.request.control.rule.pin_sessions:
            await self._pin_prompt(session)
        pauses, end = self._pauses(session.is_headless), "failed"
        try:
            end = await self._send_while_it_pays(session, pauses)
        except Exception:
            _log.exception("a session was not kept warm")
        if end:
            self._report_end(session, end)
        await self._sleep_until(session.ended + HOUR)
        pauses.add(float("inf"), *session.tenant_and_hour)
        session.task = None
        self._remove(session)

    async def _send_while_it_pays(self, session: _Session, pauses: PauseTimes) -> str:
        """Send keep-warm requests. Return why no further one is sent; empty if the rule does not allow them."""
        rule = session.request.control.rule
        if not rule.sends_keep_warm:
            return ""
        cached = max(1, session.cached_tokens)
        kept, uncached = min(1.0, session.one_hour_tokens / cached), max(0, session.tokens - cached) / cached
        survival, prices = pauses.survival(*session.tenant_and_hour), self._prices_of(session.model)
        for _ in range(keep_warm_requests(survival, prices, kept, uncached)):
            await self._sleep_until(session.used + self.interval)
            if self._clock() >= session.used + self.interval + KEEP_WARM_MARGIN:
                # After the response or a suspension of the machine, the prefix has expired: a request would write it.
                return "the prefix had expired"
            if not self._charge_budgets(session):
                return "the rule's budget was used up"
            if problem := await self._send(session):
                return problem
        if session.sent or not keep_warm_requests(survival, prices):
            return "the session was too unlikely to continue"
        if keep_warm_requests(survival, prices, kept):
            if BREAKPOINT_FIELD.encode() not in session.request.raw:
                return "the request had no breakpoint"
            return f"the provider cached only {session.cached_tokens:,} of {session.tokens:,} prompt tokens"
        if session.one_hour_tokens < session.tokens:
            return "the provider keeps a part of the prefix for an hour, and the rest costs less than these requests"
        return "the provider keeps the prefix for an hour"

    def _report_end(self, session: _Session, end: str) -> None:
        """Report why no further keep-warm request follows a request, unless it was reported before."""
        if not session.has_ended:
            session.has_ended = True
            self._report(session.request.request_id, f"{session.sent or 'none'} sent: {end}")

    async def _sleep_until(self, time: float) -> None:
        await asyncio.sleep(time - self._clock())

    async def _pin_prompt(self, session: _Session) -> None:
        if self._pin is None:
            return
        raw = session.request.raw
        seconds = pause_quantile(self.pauses.survival(*session.tenant_and_hour))
        body = await in_thread_if_large(len(raw), lambda: as_object(loads(raw)))
        # A prompt may be shorter than a block, and pins may hold too many blocks already.
        with suppress(KvproxyError):
            await self._pin(session.pin, seconds, replace(session.request, body=body))

    def _charge_budgets(self, session: _Session) -> bool:
        rule, price = session.request.control.rule, price_of(session.model, self.prices)
        wanted: list[tuple[TokenBucket, float]] = []
        if rule.keep_warm_tokens is not None:
            wanted.append((self._budget(rule.name, "tokens", rule.keep_warm_tokens), session.tokens))
        if rule.keep_warm_money is not None:
            # Prices are per million tokens, so the budget counts millionths.
            is_priced = price is not None and price.has_prices
            units = round(rule.keep_warm_money * MILLION) if is_priced else 0
            cost = 0.0 if price is None else input_price(price, session.tokens, session.cached_tokens, 0, 0)
            wanted.append((self._budget(rule.name, "money", units), cost * MILLION))
        if not wanted or any(budget.available_units <= 0 for budget, _ in wanted):
            return False
        for budget, needed in wanted:
            budget.take(needed)
        return True

    def _budget(self, rule: str, unit: str, per_hour: int) -> TokenBucket:
        budget, per_minute = self._budgets.get((rule, unit)), -(-per_hour // 60)
        if budget is None or budget.per_minute != per_minute:
            budget = self._budgets[rule, unit] = TokenBucket(per_minute, self._clock)
        return budget

    async def _send(self, session: _Session) -> str | None:
        """Send a keep-warm request. Return why the prefix is not cached now; None if it is."""
        takes_none = session.model not in self._models_with_output
        body = await asyncio.to_thread(_keep_warm_body, session.request.raw, session.model, takes_none)
        if isinstance(body, str):
            return body
        session.sent += 1
        exchange = await self._send_body(session, body)
        if exchange.status == 400 and body["max_tokens"] == 0:
            if len(self._models_with_output) >= MAX_FIXED_MODELS:
                self._models_with_output.clear()
            self._models_with_output.add(session.model)
            exchange = await self._send_body(session, {**body, "max_tokens": 1})
        prefix = exchange.facts.prefix
        if exchange.failure == "refused-limit":
            session.sent -= 1
            return "the client's budget is used up"
        if exchange.failure is not None or exchange.status != 200:
            return f"the provider answered with status {exchange.status or 'unknown'}"
        is_read = prefix is not None and 2 * prefix.cached_tokens > session.cached_tokens
        return None if is_read else "the provider had dropped the prefix"

    async def _send_body(self, session: _Session, body: JsonObject) -> Exchange:
        tags = (*project_tags(session.request.control.tags)[:1], KEEP_WARM_TAG)
        control = replace(session.request.control, no_cache=True, no_store=True, warming=True, tags=tags)
        id = f"{KEEP_WARM_TAG}-{session.request.request_id}"
        request = replace(
            session.request,
            body=body,
            raw=dumps(body),
            control=control,
            request_id=id,
            conversation=(),
            unmarked_body=None,
        )
        exchange = Exchange(
            request.api.name,
            id,
            request.tenant,
            self._clock(),
            team=session.team,
            account=session.account,
            request=request,
        )
        session.used = exchange.arrived
        with suppress(KvproxyError):
            exchange.key = await self._background.compute_key(request)
            await self._background.send(exchange, "forward")
        return exchange

    async def close(self) -> None:
        # A request may end later, and must not begin keep-warm requests.
        self._is_closed = True
        for session in self._sessions.values():
            if session.task is not None and session.request.control.rule.sends_keep_warm:
                self._report_end(session, "the proxy stopped")
        await cancel_tasks(session.task for session in self._sessions.values() if session.task is not None)


def _keep_warm_body(raw: bytes, model: str, takes_no_output: bool) -> JsonObject | str:
    """Return the body of a keep-warm request, or why the request cannot be repeated."""
    body = as_object(loads(raw))
    if BREAKPOINT_FIELD.encode() not in raw:
        return "the request had no breakpoint"
    messages = dumps(body.get("messages"))
    if BREAKPOINT_FIELD.encode() not in messages and 2 * len(messages) > len(raw):
        return "less than half of the request had a breakpoint"
    if field(body.get("thinking"), "type") == "enabled":
        return "a request with thinking.type = enabled requires output"
    requires_output = (
        field(body.get("output_config"), "format") is not None
        or field(body.get("tool_choice"), "type") in _FORCED_TOOLS
        or body.get("compaction") is not None
    )
    least = 0 if rule_of_marks(model).fills_cache and takes_no_output and not requires_output else 1
    return {name: value for name, value in body.items() if name != "stream"} | {"max_tokens": least}


def _calls_no_tool(exchange: Exchange) -> bool:
    parts = exchange.facts.answer_digests
    return parts is not None and all(kind != "call" for kind, _ in parts)


def _has_same_beginning(raw: bytes, body: JsonObject) -> bool:
    """Whether tools and system prompt are equal apart from breakpoints; otherwise they explain why nothing was read."""
    return _beginning(as_object(loads(raw))) == _beginning(body)


def _beginning(body: JsonObject) -> list[list[bytes]]:
    return [[canonical_json(block) for block in content_blocks(body.get(name))] for name in ("tools", "system")]
