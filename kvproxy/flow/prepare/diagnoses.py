"""Asks providers why a prefix was not reused, by naming the response to the previous request of the conversation."""

from collections import OrderedDict

from kvproxy.apis.api_request import ApiRequest, session_name
from kvproxy.apis.json import as_object, field
from kvproxy.exchange import Exchange
from kvproxy.flow.conversation_digests import messages_of
from kvproxy.flow.prepare.openai_breakpoints import OPTIONS
from kvproxy.providers.cache_rules import cache_rule

_MAX_RESPONSES = 4_096
_FIELD = "diagnostics"
_COMPARED = "comparison_response_id"


def asks_for_diagnosis(request: ApiRequest) -> bool:
    """Whether the request's API and model have diagnoses."""
    rule = cache_rule(request.model)
    if rule is None or not rule.diagnoses:
        return False
    return request.api.name == ("messages" if rule.mark_field == "cache_control" else "responses")


class PreviousResponses:
    """The ids of the last responses, by the conversation up to the last message of their requests, and by session."""

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes | str, str] = OrderedDict()

    def ask(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the id of the previous response, unless the client asks for a comparison itself."""
        keys: list[bytes | str] = [*reversed(request.conversation), *_session_keys(request)]
        previous = next((self._ids[key] for key in keys if key in self._ids), None)
        if request.api.name == "messages":
            if _FIELD in request.body:
                return request
            # Without an id, the provider remembers the request for the next comparison.
            return request.with_cache_fields({**request.body, _FIELD: {"previous_message_id": previous}})
        options = request.body.get(OPTIONS) or {}
        if previous is None or not isinstance(options, dict) or _COMPARED in options:
            return request
        return request.with_cache_fields({**request.body, OPTIONS: {**as_object(options), _COMPARED: previous}})

    def finished(self, exchange: Exchange) -> None:
        """Remember the response to a request whose conversation may continue."""
        request, id = exchange.request, exchange.facts.response_id
        if request is None or not request.conversation or not id or exchange.hit is not None:
            return
        # The provider compares only requests that had the field.
        if request.api.name == "messages" and field(request.body, _FIELD) is None:
            return
        keys: list[bytes | str] = [request.conversation[-1], *_session_keys(request, with_first=True)]
        for key in keys:
            self._ids[key] = id
            self._ids.move_to_end(key)
        while len(self._ids) > _MAX_RESPONSES:
            self._ids.popitem(last=False)


def _session_keys(request: ApiRequest, *, with_first: bool = False) -> list[str]:
    """Return a key of the client's session, by which a changed conversation is found; not for one that only begins."""
    is_first = not any(message.get("role") == "assistant" for message in messages_of(request.body))
    name = session_name(request)
    return [] if name is None or (is_first and not with_first) else [f"{request.tenant}\0{name}"]
