"""A session of requests for a collector, whose response bodies are not read."""

from typing import Any

import requests


class CollectorSession(requests.Session):
    """Sends exports to the configured collector only, and reads the head of its responses only.

    The status tells whether an export succeeded. A body may have no end.
    """

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().request(*args, **{**kwargs, "stream": True})
        response.close()
        response._content = b""
        return response

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Treat a redirect as a failure; requests would read its body."""
