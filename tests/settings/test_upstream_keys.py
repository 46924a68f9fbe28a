"""API keys of upstreams: from a variable, from a file, and not from a text that names a variable."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import SettingsError
from kvproxy.settings import load_settings
from kvproxy.settings.sources import setting_sources
from tests.commands.run import kvproxy
from tests.servers import run_proxy, run_upstream


async def show_key(request: Request) -> Response:
    # The proxy adds OpenAI's header to requests in OpenAI's format.
    return JSONResponse({"key": request.headers.get("authorization")})


def test_each_upstream_gets_its_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROXY_TEST_KEY", " one ")
    (file := tmp_path / "key").write_text("two\n")
    keys: list[dict[str, Any]] = [{"api_key_env": "KVPROXY_TEST_KEY"}, {"api_key_file": str(file)}, {}]
    with ExitStack() as stack:
        url = stack.enter_context(run_upstream(show_key))
        upstreams = [{"url": f"{url}/{number}", "models": [f"m{number}"], **key} for number, key in enumerate(keys, 1)]
        settings = load_settings(data=tmp_path, upstreams=upstreams, forward={"api_key": "three"})
        proxy, _ = stack.enter_context(run_proxy(settings))
        for number, key in enumerate(("one", "two", "three"), 1):
            body = {"model": f"m{number}", "messages": []}
            sent = httpx.post(f"{proxy}/v1/chat/completions", json=body, headers={"authorization": "Bearer own"})
            assert sent.json() == {"key": f"Bearer {key}"}
    shown = next(each.value for each in setting_sources(settings, tmp_path) if each.name == "upstreams")
    assert [each.get("api_key_env") or each.get("api_key_file") for each in shown] == [
        *("KVPROXY_TEST_KEY", str(file), None)
    ]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ('api_key_env = "NO_KEY"', "the variable NO_KEY has no key: set it in the environment of this command"),
        ('api_key_file = "FOLDER/none"', "cannot read api_key_file FOLDER/none (No such file or directory)"),
        ('api_key_file = "FOLDER/empty"', "the file FOLDER/empty has no key: write the API key of http://a to it"),
        ('api_key_file = "FOLDER/lines"', "the file FOLDER/lines: a key or token may contain visible ASCII"),
        (
            'api_key_file = "FOLDER/kvproxy.toml"\napi_key = "SECRET"',
            "http://a has api_key and api_key_file: remove one",
        ),
        ('api_key = "$OPENAI_KEY"', 'give an upstream api_key_env = "NAME"'),
        ('api_key = "os.environ/OPENAI_KEY"', 'give an upstream api_key_env = "NAME"'),
        ('authorization = "Bearer ${OPENAI_KEY}"', 'give an upstream api_key_env = "NAME"'),
    ],
)
def test_config_check_names_the_fix_of_a_key(key: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "lines").write_text("SECRET\nSECRET")
    (tmp_path / "kvproxy.toml").write_text(f'[[upstreams]]\nurl = "http://a"\n{key}\n'.replace("FOLDER", str(tmp_path)))
    done = kvproxy("config", "check", "--data", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem.replace("FOLDER", str(tmp_path)) in done.stderr
    assert "SECRET" not in done.stderr


def test_a_token_that_names_a_variable_is_rejected() -> None:
    with pytest.raises(SettingsError, match="set KVPROXY_FORWARD__API_KEY or KVPROXY_ADMIN_TOKEN"):
        load_settings(admin_token="${ADMIN_TOKEN}")
    # Passwords may begin with a dollar sign.
    assert load_settings(admin_token="$2y$05$abc").admin_token == "$2y$05$abc"
