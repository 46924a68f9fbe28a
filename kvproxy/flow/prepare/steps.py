"""The steps that prepare a request for its layers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large
from kvproxy.apis.trace_context import TRACE_HEADER, Trace
from kvproxy.exchange import Exchange
from kvproxy.flow.conversation_digests import with_conversation
from kvproxy.flow.prepare.breakpoints import rule_for_breakpoints, with_breakpoints
from kvproxy.flow.prepare.continuations import Continuations
from kvproxy.flow.prepare.diagnoses import PreviousResponses, asks_for_diagnosis
from kvproxy.flow.prepare.history_repair import HistoryRepair
from kvproxy.flow.prepare.keep_warm import KeepWarm
from kvproxy.flow.prepare.rules import Rules
from kvproxy.flow.prepare.unread_writes import UnreadWrites


class Step(Protocol):
    async def prepare(self, exchange: Exchange) -> None:
        """Replace the exchange's request. Raises a KvproxyError."""


class ResolveModel:
    """Finds the upstreams of the model, and replaces an alias by the model's name, so that both share responses."""

    def __init__(self, resolve: Callable[[ApiRequest], ApiRequest]) -> None:
        self._resolve = resolve

    async def prepare(self, exchange: Exchange) -> None:
        request = exchange.api_request
        exchange.request = await in_thread_if_large(len(request.raw), lambda: self._resolve(request))


class ApplyRule:
    """Adds the limits, tags, and switches of the operator's first rule that matches."""

    def __init__(self, rules: Rules | None) -> None:
        self._rules = rules

    async def prepare(self, exchange: Exchange) -> None:
        if self._rules is not None:
            exchange.request = self._rules.apply(exchange.api_request)


class EditPrompt:
    """Removes or moves variable parts of the prompt, so that prompts have a longer common prefix."""

    def __init__(self, rules: Rules | None) -> None:
        self._rules = rules

    async def prepare(self, exchange: Exchange) -> None:
        rules, request = self._rules, exchange.api_request
        if rules is not None and rules.has_edits:
            exchange.request = await in_thread_if_large(len(request.raw), lambda: rules.apply_edits(request))


class RepairHistory:
    """Restores earlier answers to the form that the backend sent, if the rule says so."""

    def __init__(self, history: HistoryRepair) -> None:
        self._history = history

    async def prepare(self, exchange: Exchange) -> None:
        request = exchange.api_request
        if request.control.rule.repair_history:
            exchange.request = await in_thread_if_large(len(request.raw), lambda: self._history.repair(request))


class SetBreakpoints:
    """Ends the pause of the request's session, and sets breakpoints for the provider's cache, if the rule says so."""

    def __init__(self, keep_warm: KeepWarm, unread_writes: UnreadWrites, clock: Callable[[], float]) -> None:
        self._keep_warm = keep_warm
        self._unread_writes = unread_writes
        self._continuations = Continuations(clock)

    async def prepare(self, exchange: Exchange) -> None:
        request, last_one_hour_message = await self._keep_warm.on_request(exchange.api_request)
        rule = None if request.control.rule.breakpoints is None else rule_for_breakpoints(request)
        if rule is not None:
            request = await with_conversation(request)
            is_continued = self._continuations.expects_another(request, request.conversation, rule)
            request = await in_thread_if_large(
                len(request.raw),
                lambda: with_breakpoints(
                    request,
                    last_one_hour_message,
                    is_continued=is_continued,
                    unread=self._unread_writes.find(request),
                ),
            )
        exchange.request = request


class AskForDiagnosis:
    """Asks the provider why it does not reuse the prefix of the previous request, if the rule says so."""

    def __init__(self, responses: PreviousResponses) -> None:
        self._responses = responses

    async def prepare(self, exchange: Exchange) -> None:
        request = exchange.api_request
        if request.control.rule.diagnoses and asks_for_diagnosis(request):
            request = await with_conversation(request)
            exchange.request = self._responses.ask(request)


class AddTraceHeader:
    """Begins or continues the request's OpenTelemetry trace, and sends its header to the upstream.

    `sample_rate` is the share of new traces that are sampled; None without OpenTelemetry.
    """

    def __init__(self, sample_rate: float | None) -> None:
        self._sample_rate = sample_rate

    async def prepare(self, exchange: Exchange) -> None:
        if self._sample_rate is not None:
            request = exchange.api_request
            exchange.trace = trace = Trace.begin(exchange.traceparent, self._sample_rate)
            exchange.request = replace(request, headers={**request.headers, TRACE_HEADER: trace.header})
