"""The code in docs/reliability.md asks the provider if kvproxy is down."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands.run import NOWHERE
from tests.commands.upstream import said
from tests.plain_upstream import run_plain_upstream

PAGE = Path(__file__).resolve().parents[2] / "docs/reliability.md"


def test_the_provider_answers_if_kvproxy_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    with run_plain_upstream() as provider:
        urls = {"http://127.0.0.1:8484/v1": f"{NOWHERE}/v1", "https://api.openai.com/v1": f"{provider}/v1"}
        for documented, url in urls.items():
            assert documented in code
            code = code.replace(documented, url)
        names: dict[str, Any] = {}
        exec(code, names)
        answer = names["chat"](**said("What?"))
        for client in ("cached", "direct"):
            names[client].close()
    assert answer.choices[0].message.content
