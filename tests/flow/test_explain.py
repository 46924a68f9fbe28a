"""`explain` predicts what the proxy does with the same request."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flow.proxies import CLOSE, QUESTION, ask, checked, proxy


@pytest.mark.parametrize("question", [QUESTION, CLOSE])
@pytest.mark.parametrize(
    ("control", "fields"),
    [
        ("", {}),
        ("", {"temperature": 0.7}),
        ("max-age=5", {"temperature": 0.7}),
        ("max-age=5", {}),
        ("max-age=500", {}),
        ("no-cache", {}),
        ("no-store", {}),
        ("min-similarity=0.999", {}),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"enabled": False}, {"sampled_requests": "replay"}, {"shadow": True}])
def test_explain_and_the_proxy_agree(
    tmp_path: Path, question: str, control: str, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    now = 1_000_000.0
    with proxy(tmp_path, checked(), clock=lambda: now, **settings) as (url, _, _):
        ask(url, QUESTION, "confirm", **fields)
        now += 60
        body = {"model": "m", "messages": [{"role": "user", "content": question}], **fields}
        report = httpx.post(f"{url}/admin/explain", json=body, headers={"cache-control": control}).json()
        served = ask(url, question, control, **fields).headers["cache-status"]
        layer = ("semantic" if "semantic" in served else "exact") if "; hit" in served else "none"
        assert (report["layer"], report["exact"]["hit"]) == (layer, layer == "exact")
