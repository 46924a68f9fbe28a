"""Whether the servers that a proxy needs are there: its upstreams, and the proxy itself."""

from typing import TYPE_CHECKING

from kvproxy.errors import KvproxyError

if TYPE_CHECKING:
    from httpx import Response

    from kvproxy.settings import Settings, UpstreamServer

_PROXY_SECONDS = 3.0
ADMIN_TOKEN = "x-kvproxy-admin-token"
"""Carries the admin token, so that `Authorization` is free for a client's key; `apis.control` reads it."""


class Advised(Exception):
    """A check found nothing wrong, but something that would be better; the message says what."""


def check_upstream(server: "UpstreamServer", settings: "Settings", seconds: float | None = None) -> str:
    """What an upstream answers when it is asked for its models.

    Args:
        seconds: timeout; the one of health probes by default.

    Raises:
        KvproxyError: it does not answer, or refuses the key; the message names the fix.
        Advised: it is a llama.cpp server whose slots cannot be used to the full.
    """
    response = _get(f"{server.url}/v1/models", seconds or settings.routing.health_timeout, _credentials(server))
    if response is None:
        raise KvproxyError(f"nothing answers at {server.url}: start the server, or correct --upstream")
    if response.status_code in (401, 403):
        # Where clients bring their own keys, the proxy needs none.
        if _credentials(server):
            raise KvproxyError(f"{server.url} refuses the key: correct api_key, or the credentials in its URL")
        return f"{server.url} answers, and wants a key of each client"
    if response.status_code >= 500:
        raise KvproxyError(f"{server.url} answers with HTTP {response.status_code}: look at its log")
    answers = f"{server.url} answers{_models(response)}"
    advice = _slots(server, settings)
    if advice:
        raise Advised(f"{answers}; {advice}")
    return answers


def check_proxy(url: str, token: str | None) -> str:
    """What the proxy at a URL says; that there is none is no fault.

    Args:
        url: where it listens.
        token: its admin token; without it, a proxy beyond loopback does not tell why it is not ready.

    Raises:
        KvproxyError: something else answers there, the proxy is not ready, or something is wrong between it and an upstream.
        Advised: an upstream could be used better.
    """
    url = url.rstrip("/")
    headers = {ADMIN_TOKEN: token} if token else {}
    health = _get(f"{url}/health", _PROXY_SECONDS, headers)
    if health is None:
        return f"none at {url} (start one with kvproxy serve)"
    try:
        version = health.json()["version"]
    except (ValueError, KeyError, TypeError):
        raise KvproxyError(f"what answers at {url} is no kvproxy: give --url, or serve at another --port") from None
    ready = _get(f"{url}/ready", _PROXY_SECONDS, headers)
    if ready is not None and ready.status_code == 503:
        raise KvproxyError(f"{version} answers at {url}, but is not ready: {_reason(ready)}")
    told = _get(f"{url}/admin/upstreams", _PROXY_SECONDS, headers)
    wrong, advice = _lines(told, "notes"), _lines(told, "advice")
    if wrong or advice:
        message = f"{version} answers at {url}; {'; '.join(wrong + advice)}"
        raise KvproxyError(message) if wrong else Advised(message)
    return f"{version} answers at {url}"


def _get(url: str, seconds: float, headers: dict[str, str]) -> "Response | None":
    """The answer to a GET; None where there is none."""
    import httpx

    try:
        return httpx.get(url, timeout=seconds, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL):
        return None


def _credentials(server: "UpstreamServer") -> dict[str, str]:
    if server.authorization is not None:
        return {"authorization": server.authorization.get_secret_value()}
    return {} if server.api_key is None else {"authorization": f"Bearer {server.api_key.get_secret_value()}"}


def _models(response: "Response") -> str:
    try:
        names = [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return ""
    return f", and serves {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" if names else ""


def _slots(server: "UpstreamServer", settings: "Settings") -> str:
    """What a llama.cpp server lacks for its slots to be used; nothing for any other server."""
    seconds, headers = settings.routing.health_timeout, _credentials(server)
    props = _get(f"{server.url}/props", seconds, headers)
    if props is None or props.status_code != 200 or b'"default_generation_settings"' not in props.content:
        return ""
    slots = _get(f"{server.url}/slots", seconds, headers)
    if slots is None or slots.status_code != 200:
        return "it is llama.cpp and does not tell of its slots: start it with --slots"
    import httpx

    try:
        # With a folder for slots it refuses this because there is no such action, without one whatever the action is.
        asked = httpx.post(f"{server.url}/slots/0?action=none", json={}, timeout=seconds, headers=headers)
    except httpx.HTTPError:
        return ""
    if asked.status_code == 501:
        return "it is llama.cpp without a folder for slots: start it with --slot-save-path FOLDER, and a restart loses none"
    return ""


def _reason(response: "Response") -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return "it tells the cause to its operator only, so give --token"


def _lines(response: "Response | None", kind: str) -> list[str]:
    """The notes or the advice of a proxy on its upstreams; nothing where it has none, or does not tell us."""
    if response is None or response.status_code != 200:
        return []
    try:
        return [f"{each['url']}: {note}" for each in response.json() for note in each[kind]]
    except (ValueError, KeyError, TypeError):
        return []
