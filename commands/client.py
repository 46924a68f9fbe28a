"""Talks to a running proxy."""

from typing import Any

from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, ProxyUnreachable


class ProxyClient:
    """The admin routes and the public ones of a proxy.

    Args:
        url: where it listens.
        token: its admin token, where it has one.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        import httpx

        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(600.0, connect=3.0))

    def get(self, path: str, **query: Any) -> Any:
        """JSON of a GET; query values that are None are left out."""
        return self._send(
            "GET", path, params={name: value for name, value in query.items() if value is not None}
        ).json()

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """JSON of a POST with a JSON body, or with bytes as they are; query values that are None are left out."""
        params = {name: value for name, value in query.items() if value is not None}
        if isinstance(body, bytes):
            return self._send("POST", path, content=body, params=params).json()
        return self._send("POST", path, json=body, params=params).json()

    def delete(self, path: str, **query: Any) -> Any:
        """JSON of a DELETE."""
        return self._send(
            "DELETE", path, params={name: value for name, value in query.items() if value is not None}
        ).json()

    def text(self, path: str) -> str:
        """The body of a GET as text."""
        return str(self._send("GET", path).text)

    def reachable(self) -> bool:
        """Whether a proxy answers at the URL."""
        try:
            return bool(self.get("/health").get("status") == "ok")
        except KvproxyError:
            return False

    def _send(self, method: str, path: str, **arguments: Any) -> Any:
        import httpx

        try:
            response = self._client.request(method, path, **arguments)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{self.url} is no URL ({error}): give one such as http://127.0.0.1:8484") from None
        except httpx.HTTPError:
            raise ProxyUnreachable(
                f"no proxy answers at {self.url}: start one with 'kvproxy serve', or give --url"
            ) from None
        if response.is_success:
            return response
        raise _error(response)


def _error(response: Any) -> KvproxyError:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}: {response.text[:200]}"
    if response.status_code == 404:
        return NotFound(message)
    return InvalidRequest(message) if response.status_code == 400 else KvproxyError(message)
