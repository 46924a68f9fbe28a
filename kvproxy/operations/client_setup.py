"""Prepares kvproxy for a client: its rule, the client's configuration, and a test of the prompt cache."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvproxy.apis.api import ApiName
from kvproxy.errors import OTHER_FOLDER, InvalidRequest, file_error
from kvproxy.operations.api_paths import PATHS, credential_headers
from kvproxy.operations.client import ProxyClient

if TYPE_CHECKING:
    from kvproxy.apis.json import Json, JsonObject

ClientName = Literal["claude-code", "codex", "opencode", "aider", "openai-sdk"]
URL = "http://127.0.0.1:8484"
"""The proxy's URL in `ClientSetup.files` and `ClientSetup.commands`."""
_SENTENCE = "This sentence fills the beginning of a prompt for the cache. "
_TOKENS_OF_SENTENCE = 10
_SPARE_TOKENS = 400
_ANSWER_TOKENS = 64

_RENEWED_LOGIN = (
    "{login} renews its token, and tenants are digests of credentials: after a renewal, stored responses, sessions, and"
    " keep-warm requests start anew. Remedy: a key of kvproxy beside the login, see docs/security.md, Renewed tokens."
)
_REPEATED_COST = "{client} displays a cost for responses that kvproxy served without cost."


@dataclass(frozen=True, slots=True)
class ClientSetup:
    """How a client uses kvproxy.

    Attributes:
        upstream: URL of the provider.
        key: environment variable with the API key.
        files: contents of the client's configuration files by path.
        commands: shell commands that configure and start the client.
        traps: sentences about what goes wrong without further settings.
    """

    title: str
    api: ApiName
    model: str
    upstream: str
    key: str
    commands: str
    traps: Sequence[str]
    files: Mapping[str, str]

    def rule(self, name: str) -> str:
        """Return the TOML of the rule for this client."""
        return (
            f'[[rules]]\nname = "{name}"\npath = "{PATHS[self.api]}"\nbreakpoints = "auto"\nrepair_history = true\n'
            + ("keep_warm_tokens = 2_000_000\n" if self.api == "messages" else "")
        )


CLIENTS: Mapping[ClientName, ClientSetup] = {
    "claude-code": ClientSetup(
        "Claude Code",
        "messages",
        "claude-sonnet-5-5",
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        f"export ANTHROPIC_BASE_URL={URL} ANTHROPIC_API_KEY=sk-ant-...\nclaude\n",
        (
            _RENEWED_LOGIN.format(login="A Claude subscription (OAuth login)"),
            "Interactive sessions begin with a random value (cch). Set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for engines other than"
            " Anthropic's, or no prefix is reused.",
            "Behind another URL, Claude Code sends the definitions of all MCP tools. ENABLE_TOOL_SEARCH=true sends only those"
            " that the model searches for.",
            'Runs with -p have no pauses: breakpoints = "5m" costs less for them than "auto".',
            'ANTHROPIC_CUSTOM_HEADERS="x-kvproxy-tags: project:NAME" assigns the cost to a project (kvproxy sessions --by'
            " project).",
            _REPEATED_COST.format(client="Claude Code"),
        ),
        {},
    ),
    "codex": ClientSetup(
        "Codex",
        "responses",
        "gpt-5.6",
        "https://api.openai.com",
        "OPENAI_API_KEY",
        "export OPENAI_API_KEY=sk-...\ncodex\n",
        (
            "WebSockets: keep supports_websockets out of the provider, and do not set openai_base_url. kvproxy answers an"
            " upgrade with 426, so that Codex starts with a failed attempt.",
            _RENEWED_LOGIN.format(login="A ChatGPT login (OAuth)"),
            "Results of shell commands contain a random Chunk ID: only the first request of an equal session is an exact hit.",
        ),
        {
            "~/.codex/config.toml": (
                'model = "gpt-5.6"\nmodel_provider = "kvproxy"\n\n[model_providers.kvproxy]\nname = "kvproxy"\n'
                f'base_url = "{URL}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
            )
        },
    ),
    "opencode": ClientSetup(
        "opencode",
        "messages",
        "claude-sonnet-5-5",
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        "export ANTHROPIC_API_KEY=sk-ant-...\nopencode\n",
        (
            "Name each model of the provider under models, or opencode does not list it.",
            'For a server of your own, use "npm": "@ai-sdk/openai-compatible", and the path /v1/chat/completions in the rule.',
        ),
        {
            "opencode.json": (
                '{\n  "$schema": "https://opencode.ai/config.json",\n  "model": "kvproxy/claude-sonnet-5-5",\n  "provider": {\n'
                '    "kvproxy": {\n      "npm": "@ai-sdk/anthropic",\n'
                f'      "options": {{"baseURL": "{URL}/v1", "apiKey": "{{env:ANTHROPIC_API_KEY}}"}},\n'
                '      "models": {"claude-sonnet-5-5": {}}\n    }\n  }\n}\n'
            )
        },
    ),
    "aider": ClientSetup(
        "aider",
        "chat",
        "gpt-4o",
        "https://api.openai.com",
        "OPENAI_API_KEY",
        f"export OPENAI_API_BASE={URL}/v1 OPENAI_API_KEY=sk-...\naider --model openai/gpt-4o\n",
        (
            "The model's name needs the prefix openai/, or aider ignores OPENAI_API_BASE.",
            _REPEATED_COST.format(client="aider"),
        ),
        {},
    ),
    "openai-sdk": ClientSetup(
        "the openai package",
        "chat",
        "gpt-5.6",
        "https://api.openai.com",
        "OPENAI_API_KEY",
        f"export OPENAI_BASE_URL={URL}/v1 OPENAI_API_KEY=sk-...\n",
        (
            "The URL ends with /v1, unlike that of the anthropic package.",
            "A request without a temperature is sampled: an equal request gets a stored sample (docs/http.md).",
            "Requests with previous_response_id are never answered from the cache; the rule is for Chat Completions, so copy it"
            " with path /v1/responses for Responses.",
        ),
        {},
    ),
}


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """The usage of a request; None if the provider did not report it."""

    prompt_tokens: int | None
    cached_tokens: int | None
    written_tokens: int | None


def write_rule(file: Path, name: ClientName, upstream: str | None) -> bool:
    """Add the rule of a client to kvproxy.toml, and in a new file the upstream. Return False if it has the rule.

    An invalid result changes nothing. Raises InvalidRequest or SettingsError.
    """
    from kvproxy.settings import load_settings
    from kvproxy.settings.settings_file import appended

    setup = CLIENTS[name]
    try:
        before = file.read_text("utf-8") if file.exists() else None
        if before is not None and any(rule.get("name") == name for rule in tomllib.loads(before).get("rules", ())):
            return False
        head = f'upstream = "{upstream or setup.upstream}"\n' if before is None else "" if before[-1:] in "\n" else "\n"
        with appended(file, f"{head}\n{setup.rule(name)}"):
            load_settings(data=file.parent)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise file_error("write", file, error, OTHER_FOLDER) from None
    return True


def api_key_of(setup: ClientSetup) -> str | None:
    return os.environ.get(setup.key) or None


def try_prompt_cache(client: ProxyClient, setup: ClientSetup, model: str, api_key: str | None) -> list[CachedTokens]:
    """Send two requests with one prefix past the response cache; the second should read the first one's prefix from the cache.

    They are no requests of a client, so they count in no session and are not kept warm.
    """
    from kvproxy.apis import APIS
    from kvproxy.apis.json import as_object
    from kvproxy.apis.reported_usage import reported_reuse
    from kvproxy.providers.cache_rules import cache_rule_or_assumption

    minimum = cache_rule_or_assumption(model).minimum_tokens or 1_024
    text = _SENTENCE * ((minimum + _SPARE_TOKENS) // _TOKENS_OF_SENTENCE)
    headers = credential_headers(setup.api, api_key) | {"cache-control": "no-cache, no-store, warming"}
    results = []
    for number in (1, 2):
        body = _probe(setup.api, model, text, f"Answer with the number {number}.")
        response = as_object(client.post(PATHS[setup.api], body, headers=headers))
        prompt, _ = APIS[setup.api].prompt_and_completion_tokens(response)
        reuse = reported_reuse(response)
        written = None if reuse is None or reuse.written_5m is None else reuse.written_5m + (reuse.written_1h or 0)
        results.append(CachedTokens(prompt, None if reuse is None else reuse.cached_tokens, written))
    return results


def _probe(api: ApiName, model: str, text: str, question: str) -> "JsonObject":
    user: Json = {"role": "user", "content": question}
    if api == "messages":
        return {"model": model, "max_tokens": _ANSWER_TOKENS, "system": text, "messages": [user]}
    if api == "responses":
        # OpenAI accepts no breakpoint in `instructions`.
        return {
            "model": model,
            "max_output_tokens": _ANSWER_TOKENS,
            "input": [{"role": "developer", "content": text}, user],
        }
    return {
        "model": model,
        "max_completion_tokens": _ANSWER_TOKENS,
        "messages": [{"role": "system", "content": text}, user],
    }
