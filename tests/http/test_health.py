"""Liveness and readiness: a proxy whose engine is broken does not call itself healthy."""

import httpx
import pytest

from kvproxy.http.services import Services


def test_a_broken_engine_is_told(demo: tuple[str, Services], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device error that stays left `/health` ok, while every request failed."""
    url, services = demo
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
    monkeypatch.setattr(type(services.built.worker), "failure", property(lambda worker: "CUDA error: device lost"))
    for path in ("/health", "/ready"):
        answer = httpx.get(url + path)
        assert (answer.status_code, answer.json()["error"]) == (503, "CUDA error: device lost")
    assert httpx.get(f"{url}/metrics").status_code == 200
