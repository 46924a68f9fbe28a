"""Talks to a running proxy."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kvproxy.checks.servers import ADMIN_TOKEN
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache, NotFound, ProxyUnreachable

if TYPE_CHECKING:
    from httpx import Response

_OWN_ROUTES = ("/admin/", "/health", "/ready", "/metrics")


class ProxyClient:
    """The admin routes and the public ones of a proxy.

    Args:
        url: where it listens.
        token: its admin token, where it has one.
        patience: seconds to wait for a part of an answer.
    """

    def __init__(self, url: str, token: str | None = None, patience: float = 600.0) -> None:
        import httpx

        self.url = url.rstrip("/")
        self._token = {ADMIN_TOKEN: token} if token else {}
        self._client = httpx.Client(base_url=self.url, timeout=httpx.Timeout(patience, connect=3.0))
        # Connections end with this object, so that no command has to think of it.
        weakref.finalize(self, self._client.close)

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        """JSON of a GET; query values that are None are left out."""
        return self._json("GET", path, query, headers=headers)

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        """JSON of a POST with a JSON body, or with bytes as they are; query values that are None are left out."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self._json("POST", path, query, headers=headers, **content)

    def delete(self, path: str, **query: Any) -> Any:
        """JSON of a DELETE; query values that are None are left out."""
        return self._json("DELETE", path, query)

    def rows(self, path: str, **query: Any) -> tuple[list[dict[str, Any]], int]:
        """A list that may have been cut, and how many rows there are in all."""
        response = self._send("GET", path, query)
        rows: list[dict[str, Any]] = self._read(response)
        return rows, int(response.headers["x-total-count"])

    def text(self, path: str) -> str:
        """The body of a GET as text."""
        return str(self._send("GET", path, {}).text)

    def parts(self, path: str) -> Iterator[bytes]:
        """The body of a GET as it arrives.

        Raises:
            ProxyUnreachable: no proxy answers, or it broke off; what came before is incomplete then.
        """
        with self._reached(), self._client.stream("GET", path, headers=self._token) as response:
            if not response.is_success:
                response.read()
                raise _error(response)
            yield from response.iter_bytes()

    def models(self, headers: Mapping[str, str] | None = None) -> list[str]:
        """The models that the proxy lists; the headers carry a client's key."""
        listed = self.get("/v1/models", headers=headers)
        try:
            return [str(model["id"]) for model in listed["data"]]
        except (KeyError, TypeError):
            return []

    def first_model(self, headers: Mapping[str, str] | None = None) -> str:
        """The first model that the proxy lists, for requests without a model."""
        models = self.models(headers)
        if not models:
            raise NotFound(f"{self.url} lists no model: name one with --model")
        return models[0]

    def tenant(self, headers: Mapping[str, str], model: str) -> str:
        """The tenant that a client's headers make, by way of a question to a model that is served."""
        body = {"model": model, "messages": [{"role": "user", "content": "?"}]}
        found: dict[str, Any] = self.post("/admin/explain", body, headers=headers)
        return str(found["tenant"])

    def reachable(self) -> bool:
        """Whether a kvproxy answers at the URL, ready or not."""
        try:
            with self._reached():
                health = self._client.get("/health").json()
        except (ProxyUnreachable, ValueError):
            return False
        return isinstance(health, dict) and "version" in health

    def _json(self, method: str, path: str, query: Mapping[str, Any], **more: Any) -> Any:
        return self._read(self._send(method, path, query, **more))

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> "Response":
        # Other routes may lead to an upstream, which must not see the token.
        headers = dict(headers or {}) | (self._token if path.startswith(_OWN_ROUTES) else {})
        # httpx drops a query that stands in the path as soon as it is given one beside it, even an empty one.
        params = {name: value for name, value in query.items() if value is not None} or None
        with self._reached():
            response = self._client.request(method, path, params=params, headers=headers, **more)
        if not response.is_success:
            raise _error(response)
        return response

    def _read(self, response: "Response") -> Any:
        try:
            return response.json()
        except ValueError:
            raise KvproxyError(f"what answers at {self.url} is no kvproxy: give the right --url") from None

    @contextmanager
    def _reached(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            raise InvalidRequest(f"{self.url} is no URL ({error}): give one such as http://127.0.0.1:8484") from None
        except httpx.ConnectError:
            raise ProxyUnreachable(
                f"no proxy answers at {self.url}: start one with 'kvproxy serve', or give --url"
            ) from None
        except httpx.HTTPError as error:
            raise ProxyUnreachable(f"the proxy at {self.url} broke off ({error}): look at its log") from None


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _error(response: "Response") -> KvproxyError:
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}: {response.text[:200]}"
    kinds: dict[int, type[KvproxyError]] = {400: InvalidRequest, 404: NotFound, 409: NoPrefixCache}
    return kinds.get(response.status_code, KvproxyError)(message)
