"""Checks whether upstreams and the proxy answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvproxy.errors import KvproxyError
from kvproxy.index.policies.policy import NEVER_EQUAL
from kvproxy.settings.access import is_loopback
from kvproxy.units import plural
from kvproxy.upstreams.limited_fetch import FetchedResponse, FetchError, ResponseTooLarge, fetch

if TYPE_CHECKING:
    from kvproxy.settings import Settings, UpstreamServer

_PROXY_SECONDS = 3.0
# `Authorization` may have a client's key.
ADMIN_TOKEN_HEADER = "x-kvproxy-admin-token"


class CheckWarning(Exception):
    """Advice for the user, from a check that found no problem."""


@dataclass(frozen=True, slots=True)
class UpstreamCheck:
    """A reachable upstream.

    Attributes:
        models: names of the served models; empty if the upstream does not list them.
        requires_key: whether the upstream rejects requests without an API key.
        open_events: address of its KV events on a network, where they are not authenticated; None if there are none.
    """

    url: str
    models: tuple[str, ...] = ()
    requires_key: bool = False
    open_events: str | None = None

    def __str__(self) -> str:
        names = ", ".join(self.models[:3]) + (", ..." if len(self.models) > 3 else "")
        key = ", and requires a key from each client" if self.requires_key else ""
        events = ""
        if self.open_events is not None:
            events = f"; KV events from {self.open_events} are not authenticated: see docs/security.md"
        return f"{self.url} answers{f', and serves {names}' if names else ''}{key}{events}"


def check_upstream(server: "UpstreamServer", settings: "Settings") -> UpstreamCheck:
    """Check that an upstream answers within `routing.health_timeout`. Raises KvproxyError."""
    response = _get(f"{server.url}/v1/models", settings.routing.health_timeout, _credential_headers(server))
    if response is None:
        raise KvproxyError(f"nothing answers at {server.url}: start the server, or correct the URL of this upstream")
    if response.status in (401, 403):
        # The proxy needs no key if clients send their own.
        if _credential_headers(server):
            raise KvproxyError(f"{server.url} refuses the key: correct its api_key")
        return UpstreamCheck(server.url, requires_key=True, open_events=_open_events(server))
    if response.status >= 500:
        raise KvproxyError(f"{server.url} answers with HTTP {response.status}: read its log")
    return UpstreamCheck(server.url, _model_names(response), open_events=_open_events(server))


def _open_events(server: "UpstreamServer") -> str | None:
    """Return the address of KV events, unless they come from this machine."""
    endpoint = server.kv_events
    host = urlsplit(endpoint or "").hostname or ""
    return None if not host or is_loopback(host) else endpoint


def check_proxy(url: str, token: str | None, data_folder: Path | None = None) -> str:
    """Check the proxy at a URL, if one is running, and return a text for the user. Raises KvproxyError.

    Raises CheckWarning with advice about an upstream, or if the proxy uses another data folder than `data_folder`. Without the
    admin token, a proxy on another machine does not report why it is not ready.
    """
    url = url.rstrip("/")
    headers = {ADMIN_TOKEN_HEADER: token} if token else {}
    health = _get(f"{url}/health", _PROXY_SECONDS, headers)
    if health is None:
        return f"none at {url} (start one with kvproxy serve)"
    try:
        version = health.json()["version"]
    except (ValueError, KeyError, TypeError):
        raise KvproxyError(f"the server at {url} is not kvproxy: give --url, or serve at another --port") from None
    used, answers = health.json().get("data"), f"{version} answers at {url}"
    if is_other_folder := data_folder is not None and used and Path(used).resolve() != data_folder.resolve():
        answers += f" with the data folder {used}, which the other checks did not check: give --data {used}"
    ready = _get(f"{url}/ready", _PROXY_SECONDS, headers)
    if ready is not None and ready.status == 503:
        raise KvproxyError(f"{answers}; it is not ready: {_unready_reason(ready)}")
    if failures := _storage_failures(health.json()):
        raise KvproxyError("; ".join([answers, *failures]))
    upstreams = _get(f"{url}/admin/upstreams", _PROXY_SECONDS, headers)
    wrong, advice = (_upstream_notes(upstreams, kind) for kind in ("notes", "advice"))
    wrong += _upstream_notes(upstreams, "ejected")
    if wrong or advice:
        message = "; ".join([answers, *wrong, *advice])
        raise KvproxyError(message) if wrong else CheckWarning(message)
    if is_other_folder:
        raise CheckWarning(answers)
    if num_unlearnable := _count_unlearnable(_get(f"{url}/admin/cache/stats", _PROXY_SECONDS, headers)):
        raise CheckWarning(f"{answers}; in {plural(num_unlearnable, 'namespace')}, {NEVER_EQUAL}")
    return answers


def _storage_failures(health: Mapping[str, object]) -> list[str]:
    failed_store, failed_journal = health.get("store"), health.get("journal_error")
    failures = [str(failed_store)] if failed_store else []
    if failed_journal:
        failures.append(
            f"the journal {health.get('journal')} fails: {failed_journal}; look at its disk, or at PostgreSQL"
        )
    if isinstance(tiers := health.get("tiers"), dict):
        failures += [
            f"the tier {name} fails: {error}; free space there, or start the server again"
            for name, error in tiers.items()
        ]
    if health.get("status") == "degraded" and "data" not in health:
        cause = "its store, its journal, or a tier fails, or a model has no available upstream"
        failures.append(f"{cause}: give the admin token (--token) to read which")
    return failures


def _get(url: str, seconds: float, headers: dict[str, str]) -> FetchedResponse | None:
    try:
        return fetch(url, seconds, headers)
    except ResponseTooLarge as error:
        raise KvproxyError(f"{url}: {error}") from None
    except FetchError:
        return None


def _credential_headers(server: "UpstreamServer") -> dict[str, str]:
    authorization, key = server.authorization_or_key()
    value = authorization if key is None else f"Bearer {key}"
    return {} if value is None else {"authorization": value}


def _model_names(response: FetchedResponse) -> tuple[str, ...]:
    try:
        return tuple(str(model["id"]) for model in response.json()["data"])
    except (ValueError, KeyError, TypeError):
        return ()


def _unready_reason(response: FetchedResponse) -> str:
    try:
        body = response.json()
        return f"{body['error']} (give --token to see the cause)" if "hint" in body else str(body["error"])
    except (ValueError, KeyError, TypeError):
        return "the cause is unknown"


def _count_unlearnable(stats: FetchedResponse | None) -> int:
    if stats is None or stats.status != 200:
        return 0
    try:
        learning = stats.json()["semantic"].get("learning")
        return 0 if learning is None else int(learning["unlearnable"])
    except (ValueError, KeyError, TypeError):
        return 0


def _upstream_notes(response: FetchedResponse | None, kind: str) -> list[str]:
    if response is None or response.status != 200:
        return []
    try:
        if kind == "ejected":
            return [
                f"{upstream['url']}: ejected, {upstream['error']}"
                for upstream in response.json()
                if upstream["state"] == kind
            ]
        return [f"{upstream['url']}: {note}" for upstream in response.json() for note in upstream[kind]]
    except (ValueError, KeyError, TypeError):
        return []
