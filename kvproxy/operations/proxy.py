"""The operations on a running proxy as a whole: explain a request, and reload the rules."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Protocol

from kvproxy.apis.api import ApiName
from kvproxy.errors import InvalidRequest, SettingsError
from kvproxy.flow.explanation import RequestExplanation
from kvproxy.operations.operation import NoParameters, RequestReader, async_operation
from kvproxy.operations.parameters import Parameter

if TYPE_CHECKING:
    from kvproxy.backends.prefix_cache import PrefixCache
    from kvproxy.flow.path import RequestPath
    from kvproxy.flow.prepare.rules import Rules


class ProxyAccess(Protocol):
    """The path of requests, the prefix cache, and the rules of a proxy."""

    path: "RequestPath"
    prefix: "PrefixCache"
    rules: "Rules"


@dataclass(frozen=True, slots=True)
class RequestFormat:
    api: Annotated[ApiName, Parameter("API of the request in the body.", is_option=False)] = "chat"


@dataclass(frozen=True, slots=True)
class ReloadedRules:
    """The number of rules, and the names of changed settings that need a restart."""

    rules: int
    restart: list[str]


@async_operation("POST", "/explain")
async def explain_request(proxy: ProxyAccess, format: RequestFormat, read: RequestReader) -> RequestExplanation:
    """Predict which layer would answer the request in the body, and why earlier layers would not."""
    from kvproxy.flow.explain import explain

    request = await read(format.api)
    explanation = await explain(proxy.path, proxy.prefix, await proxy.path.edit(request))
    refusal = read.refusal(request.model)
    return explanation if refusal is None else replace(explanation, layer="refused", refusal=refusal)


@async_operation("POST", "/reload")
async def reload_rules(proxy: ProxyAccess, nothing: NoParameters) -> ReloadedRules:
    """Reload `[[rules]]` of kvproxy.toml. An invalid file changes nothing."""
    import asyncio  # Commands import this module, too, and run no event loop.

    try:
        restart = await asyncio.to_thread(proxy.rules.reload)
    except SettingsError as error:
        raise InvalidRequest(f"the rules were not changed: {error.message}") from None
    return ReloadedRules(len(proxy.rules), restart)


PROXY_OPERATIONS = (explain_request, reload_rules)
