"""The operations on a running proxy as a whole: explain a request, store an answer, and reload the settings."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Protocol

from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonObject, as_list, text_of
from kvproxy.errors import InvalidRequest, SettingsError
from kvproxy.flow.explanation import RequestExplanation
from kvproxy.operations.operation import NoParameters, RequestReader, async_operation
from kvproxy.operations.parameters import Parameter

if TYPE_CHECKING:
    from kvproxy.backends.prefix_cache import PrefixCache
    from kvproxy.flow.path import RequestPath


class ProxyAccess(Protocol):
    """The path of requests, and the prefix cache of a proxy."""

    path: "RequestPath"
    prefix: "PrefixCache"

    async def reload(self) -> "ReloadedSettings":
        """Apply changed settings. Raises SettingsError or StoreUnavailable, and then changes nothing."""


@dataclass(frozen=True, slots=True)
class RequestFormat:
    api: Annotated[ApiName, Parameter("API of the request in the body.", is_option=False)] = "chat"


@dataclass(frozen=True, slots=True)
class ReloadedSettings:
    """The number of rules, the upstreams, the names of changed settings that need a restart, and what else to consider."""

    rules: int
    upstreams: list[str]
    restart: list[str]
    notes: list[str]


@async_operation("POST", "/explain")
async def explain_request(proxy: ProxyAccess, format: RequestFormat, read: RequestReader) -> RequestExplanation:
    """Predict which layer would answer the request in the body, and why earlier layers would not."""
    from kvproxy.flow.explain import explain

    request = await read(format.api)
    explanation = await explain(proxy.path, proxy.prefix, await proxy.path.edit(request))
    refusal = read.refusal(request.model)
    return explanation if refusal is None else replace(explanation, layer="refused", refusal=refusal)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """Whether an answer was stored; if not, a fresh response to an equal request stays."""

    stored: bool


@async_operation("POST", "/answers")
async def store_answer(proxy: ProxyAccess, nothing: NoParameters, read: RequestReader) -> StoredAnswer:
    """Store the last message of a chat completion request as the response to the messages before it.

    `Cache-Control: no-cache` replaces a fresh response.
    """
    request = await read("chat")
    if (refusal := read.refusal(request.model)) is not None:
        raise InvalidRequest(f"the client of this key may not send the request: {refusal}")
    messages = request.body.get("messages")
    answer = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    if not isinstance(answer, dict) or answer.get("role") != "assistant" or not text_of(answer.get("content")):
        raise InvalidRequest("the last message must be the answer: give it the role assistant and a text")
    question = await proxy.path.edit(request.with_fields({"messages": as_list(messages)[:-1]}))
    response: JsonObject = {
        "id": f"chatcmpl-{question.request_id}",
        "object": "chat.completion",
        "created": int(proxy.path.clock()),
        "model": question.model,
        "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
    }
    return StoredAnswer(await proxy.path.store(question, response))


@async_operation("POST", "/reload")
async def reload_settings(proxy: ProxyAccess, nothing: NoParameters) -> ReloadedSettings:
    """Reload rules, edits, clients, tokens, prices, and upstreams of kvproxy.toml. An invalid file changes nothing."""
    try:
        return await proxy.reload()
    except SettingsError as error:
        raise InvalidRequest(f"the settings were not changed: {error.message}") from None


PROXY_OPERATIONS = (explain_request, store_answer, reload_settings)
